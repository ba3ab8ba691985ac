"""The layer's definition: settings checked, tensors by name and shape, JSON to and fro."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from divine.errors import FormatError, UnsupportedError, UsageError
from divine.gguf import open_gguf, typed, write_gguf
from divine.heads import HeadsDefinition, HeadWeights, LayerDefinition
from divine.heads.architectures import definition_from_dict, definition_from_keys
from divine.heads.packaging import heads_content

LAYER = LayerDefinition.for_width(
    128, kv_heads=1, taps=("layer.1.input", "final"), draft_vocab=5, window=64
)


def test_shapes_and_parameters() -> None:
    plain = LayerDefinition.for_width(576, depths=4)
    assert (plain.heads, plain.kv_heads, plain.head_dim, plain.ffn) == (9, 9, 64, 1152)
    assert plain.parameters == 2 * 576**2 + 4 * 576**2 + 3 * 576 * 1152 + 4 * 576
    assert "divine.mtp.layer.taps.weight" not in plain.tensor_shapes()
    shapes = LAYER.tensor_shapes()
    assert shapes["divine.mtp.layer.taps.weight"] == (128, 256)
    assert shapes["divine.mtp.layer.attn_k.weight"] == (64, 128)
    LAYER.check_shapes(shapes, "f")
    with pytest.raises(FormatError, match=r'f: the tensor "divine.mtp.layer.norm.weight".*missing'):
        LAYER.check_shapes({k: v for k, v in shapes.items() if "layer.norm" not in k}, "f")
    with pytest.raises(FormatError, match="ffn 256, width 128"):
        LAYER.check_shapes({**shapes, "divine.mtp.layer.ffn_up.weight": (1, 2)}, "f")
    with pytest.raises(FormatError, match="belongs to no head; they are a layer"):
        LAYER.check_shapes({**shapes, "divine.mtp.0.norm.weight": (128,)}, "f")


def test_json_to_and_fro() -> None:
    text = json.dumps(LAYER.to_dict())
    assert definition_from_dict(json.loads(text), "f") == LAYER
    heads = HeadsDefinition.best(2, 8, 16)
    assert definition_from_dict(json.loads(json.dumps(heads.to_dict())), "f") == heads


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architecture": "tree"}, "known are mtp, layer"),
        ({"kv_heads": 3}, "kv_heads is 3; a divisor of heads, 2"),
        ({"head_dim": 7}, "head_dim is 7; an even number"),
        ({"ffn": 0}, "ffn is 0"),
        ({"window": 2}, "window is 2; at least depths, 3"),
        ({"rope_theta": -1.0}, "rope_theta is -1.0"),
        ({"taps": []}, "taps are"),
        ({"taps": "final"}, "taps are"),
        ({"more": 1}, "unknown fields: more"),
        ({"version": 9}, "version 9"),
    ],
)
def test_wrong_settings_are_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises((FormatError, UnsupportedError), match=f"^f: .*{words}"):
        definition_from_dict({**LAYER.to_dict(), **change}, "f")
    if "more" not in change and "version" not in change and "taps" not in change:
        with pytest.raises(UsageError):
            LayerDefinition(**{**_fields(), **change})


def _fields() -> dict[str, Any]:
    values = LAYER.to_dict()
    del values["version"]
    return {**values, "taps": tuple(values["taps"])}


def test_weights_and_keys_to_and_fro(tmp_path: Any) -> None:
    tensors: dict[str, Any] = {
        name: np.ones(shape, np.float32) for name, shape in LAYER.tensor_shapes().items()
    }
    tensors["divine.mtp.draft_vocab"] = np.arange(5, dtype=np.int32)
    weights = HeadWeights(LAYER, tensors, "print", {"steps": 3})
    weights.save(tmp_path / "w.safetensors")
    read = HeadWeights.load(tmp_path / "w.safetensors")
    assert read.definition == LAYER
    assert all(np.array_equal(read.tensors[name], data) for name, data in tensors.items())
    content = heads_content(read)
    write_gguf(tmp_path / "w.gguf", content.keys, content.tensors)
    with open_gguf(tmp_path / "w.gguf") as file:
        assert definition_from_keys(file.metadata, 1, "f") == LAYER
    for change, words in (
        ({"kv_heads": typed("u32", 3)}, "kv_heads is 3"),
        ({"version": typed("u32", 2)}, "version 2; this Divine knows 1"),
        ({"architecture": "tree"}, "known are mtp, layer"),
    ):
        keys = {f"divine.speculative.{key}": value for key, value in change.items()}
        write_gguf(tmp_path / "x.gguf", {**content.keys, **keys}, content.tensors)
        with (
            open_gguf(tmp_path / "x.gguf") as file,
            pytest.raises((FormatError, UnsupportedError), match=words),
        ):
            definition_from_keys(file.metadata, 1, "f")
