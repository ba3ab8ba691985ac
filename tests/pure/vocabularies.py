"""Vocabularies for the tokenizer tests: small ones written here, llama.cpp's fetched on demand.

The latter lie in llama.cpp's source (scripts/llama_cpp.py), with texts and the ids that it gives
them; only those files are unpacked.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

from divine.gguf import GGUFFile, Metadata, open_gguf, typed, write_gguf
from divine.store.folder import models_folder
from divine.text import Tokenizer
from tiny_models import byte_letters

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def write_metadata(folder: Path, keys: Mapping[str, Any]) -> Metadata:
    """A file with these keys and no tensors, opened."""
    path = folder / "vocabulary.gguf"
    write_gguf(path, {"general.architecture": "llama", **keys}, {})
    return open_gguf(path).metadata


def tokenizer(folder: Path, keys: Mapping[str, Any]) -> Tokenizer:
    return Tokenizer.from_metadata(write_metadata(folder, keys), "vocabulary.gguf")


def byte_level(
    merges: list[str], special: Mapping[str, int] | None = None, pre: str = "qwen2", **extra: Any
) -> dict[str, Any]:
    """Keys of a byte-level vocabulary: 256 letters, the merged pieces, then special tokens."""
    tokens = byte_letters() + [merge.replace(" ", "") for merge in merges]
    types = [NORMAL] * len(tokens)
    for text, kind in (special or {}).items():
        tokens.append(text)
        types.append(kind)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": typed("[i32]", types),
        "tokenizer.ggml.merges": merges,
        **{f"tokenizer.ggml.{key}": value for key, value in extra.items()},
    }


def sentencepiece(
    pieces: Mapping[str, float], byte_tokens: bool = True, unknown: bool = True, **extra: Any
) -> dict[str, Any]:
    """Keys of a scored vocabulary: <unk> <s> </s>, byte tokens, then the pieces."""
    rows: list[tuple[str, int, float]] = [("<unk>", UNKNOWN if unknown else CONTROL, 0.0)]
    rows += [("<s>", CONTROL, 0.0), ("</s>", CONTROL, 0.0)]
    if byte_tokens:
        rows += [(f"<0x{byte:02X}>", BYTE, 0.0) for byte in range(256)]
    rows += [(piece, NORMAL, score) for piece, score in pieces.items()]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [row[0] for row in rows],
        "tokenizer.ggml.token_type": typed("[i32]", [row[1] for row in rows]),
        "tokenizer.ggml.scores": typed("[f32]", [row[2] for row in rows]),
        **{f"tokenizer.ggml.{key}": value for key, value in extra.items()},
    }


def real_model(name: str) -> GGUFFile:
    """A real model file, or the test is skipped."""
    path = models_folder() / name
    if not path.exists():
        pytest.skip(f"{name} is not in {path.parent}")
    return open_gguf(path)


def llama_cpp_vocabularies() -> Path:
    """The folder with ggml-vocab-*.gguf and their .inp and .out, or the test is skipped."""
    vocabularies = llama_cpp.folder() / "vocabularies"
    if not vocabularies.exists():
        try:
            archive = llama_cpp.archive()
        except OSError as error:
            pytest.skip(f"{llama_cpp.ARCHIVE} cannot be fetched: {error}")
        _unpack(archive, vocabularies)
    return vocabularies


def _unpack(archive: Path, folder: Path) -> None:
    partial = folder.with_suffix(f".{os.getpid()}")
    partial.mkdir()
    with tarfile.open(archive) as tar:
        for member in tar:
            name = Path(member.name)
            if member.isfile() and name.name.startswith("ggml-vocab-"):
                source = tar.extractfile(member)
                assert source is not None
                (partial / name.name).write_bytes(source.read())
    try:
        partial.rename(folder)
    except OSError:  # another test process was first
        assert folder.exists()
