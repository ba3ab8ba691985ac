"""Real model files that others made: read as the gguf package reads them, copied without a change.

Needs the SmolLM2 model in the user's model folder (DIVINE_MODELS overrides it).
"""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import numpy as np
import pytest
from platformdirs import user_cache_path

from divine.blocks import dequantize
from divine.gguf import GGUFFile, copy_metadata, copy_tensors, open_gguf, write_gguf

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def smollm2() -> Path:
    folder = Path(os.environ.get("DIVINE_MODELS") or user_cache_path("divine") / "models")
    path = folder / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return path


def test_smollm2_is_read_as_the_gguf_package_reads_it(smollm2):
    reader = gguf.GGUFReader(smollm2)
    with open_gguf(smollm2) as file:
        own = {key for key in reader.fields if not key.startswith("GGUF.")}
        assert set(file.metadata) == own
        for key in own - {"tokenizer.ggml.tokens", "tokenizer.ggml.merges"}:
            assert file.metadata[key] == reader.fields[key].contents(), key
        for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges"):
            field = reader.fields[key]
            expected = [field.parts[part].tobytes() for part in field.data]
            assert file.metadata.strings_bytes(key) == expected
        assert list(file.tensors) == [tensor.name for tensor in reader.tensors]
        for tensor in reader.tensors[:12]:
            theirs = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            np.testing.assert_array_equal(decoded(file, tensor.name), theirs)


def decoded(file: GGUFFile, name: str) -> np.ndarray:
    return dequantize(file.raw(name), file.block_type(name), file.shape(name))


def test_a_copy_of_smollm2_is_the_same_file(smollm2, tmp_path):
    copy = tmp_path / "copy.gguf"
    with open_gguf(smollm2) as file:
        write_gguf(copy, copy_metadata(file), copy_tensors(file))
    with smollm2.open("rb") as one, copy.open("rb") as two:
        while True:
            expected = one.read(1 << 20)
            assert two.read(1 << 20) == expected
            if not expected:
                break
