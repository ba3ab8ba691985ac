"""Drafting heads as data: forms, keys, shapes, the equations of one level, weights in files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from divine.errors import FormatError, UnsupportedError, UsageError
from divine.gguf import open_gguf, typed, write_gguf
from divine.heads import DRAFT_VOCAB, HeadsDefinition, HeadWeights, base_fingerprint, tensor_name
from divine.heads.reference import level, start_state
from heads_support import FORMS, random_heads
from tiny_models import split_gguf, tiny_llama

BEST = FORMS["best"]


def rms(x: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean() + eps)


# ---- the definition ----


def test_the_size_of_the_paper_s_heads() -> None:
    """M = 4, r = 512, d = 4096: the 42 to 84 million of the paper do not follow from its shapes."""
    paper = HeadsDefinition.paper(4, 512, 4096)
    assert paper.parameters == 4 * (512 * 8192 + 4096 * 512 + 4096) == 25_182_208
    matrices = sum(r * c for shape in paper.tensor_shapes().values() if len(shape) == 2
                   for r, c in [shape])  # fmt: skip
    assert round(2 * matrices / 1e6, 1) == 50.3
    assert round(2 * paper.parameters / 1e6, 1) == 50.4
    assert paper.tensor_shapes()["divine.mtp.0.proj_down.weight"] == (512, 8192)
    assert paper.tensor_shapes()["divine.mtp.3.proj_up.weight"] == (4096, 512)


@pytest.mark.parametrize("name", FORMS)
def test_keys_and_json_give_the_definition_back(name: str, tmp_path: Path) -> None:
    form = FORMS[name]
    write_gguf(tmp_path / "keys.gguf", form.to_keys(), {})
    with open_gguf(tmp_path / "keys.gguf") as file:
        assert HeadsDefinition.from_keys(file.metadata, 64, "f") == form
    assert HeadsDefinition.from_dict(json.loads(json.dumps(form.to_dict())), "f") == form


def test_five_keys_alone_are_the_published_package_s(tmp_path: Path) -> None:
    keys = {
        "divine.speculative.architecture": "mtp",
        "divine.speculative.num_heads": typed("u32", 2),
        "divine.speculative.projection_dim": typed("u32", 16),
        "divine.speculative.discount_gamma": typed("f32", 0.9),
        "divine.speculative.shared_lm_head": True,
    }
    write_gguf(tmp_path / "keys.gguf", keys, {})
    with open_gguf(tmp_path / "keys.gguf") as file:
        assert HeadsDefinition.from_keys(file.metadata, 64, "f") == FORMS["published"]


@pytest.mark.parametrize(
    ("key", "value", "kind", "words"),
    [
        ("architecture", "eagle", UnsupportedError, "architecture 'eagle'; known are mtp"),
        ("version", typed("u32", 2), UnsupportedError, "version 2; this Divine knows up to 1"),
        ("shared_lm_head", False, UnsupportedError, "output matrix of their own"),
        (
            "num_heads",
            typed("u32", 0),
            FormatError,
            "num_heads is 0; allowed is an integer from 1 to 64",
        ),
        ("activation", "relu", FormatError, "activation is 'relu'; allowed are none, silu, gelu"),
        ("carry", "lost", FormatError, "carry is 'lost'; allowed are sum, unit, gained"),
        ("eps", typed("f64", 0.0), FormatError, "eps is 0.0; allowed is a number above 0"),
        ("bias", "yes", FormatError, "bias"),
        ("start", None, FormatError, "start"),
    ],
)
def test_bad_keys(key: str, value: Any, kind: type[Exception], words: str, tmp_path: Path) -> None:
    keys = {**BEST.to_keys(), f"divine.speculative.{key}": value}
    if value is None:
        del keys[f"divine.speculative.{key}"]
    write_gguf(tmp_path / "keys.gguf", keys, {})
    with open_gguf(tmp_path / "keys.gguf") as file, pytest.raises(kind, match=words):
        HeadsDefinition.from_keys(file.metadata, 64, "f")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rank": 0}, "rank is 0; allowed is an integer from 1"),
        ({"rank": True}, "rank is True"),
        ({"dim": 1 << 21}, "dim is 2097152"),
        ({"shared": 1}, "shared is 1; true or false"),
        ({"scale": float("nan")}, "scale is nan"),
        ({"draft_vocab": -1}, "draft_vocab is -1"),
    ],
)
def test_bad_settings(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        replace(BEST, **change)
    with pytest.raises(FormatError, match=words):
        HeadsDefinition.from_dict({**BEST.to_dict(), **change}, "f")


def test_bad_json() -> None:
    with pytest.raises(FormatError, match="unknown fields: speed"):
        HeadsDefinition.from_dict({**BEST.to_dict(), "speed": 3}, "f")
    with pytest.raises(FormatError, match="missing fields: rank"):
        HeadsDefinition.from_dict({"num_heads": 1, "dim": 64}, "f")
    with pytest.raises(UnsupportedError, match="version 9"):
        HeadsDefinition.from_dict({**BEST.to_dict(), "version": 9}, "f")


def test_shapes_are_checked_by_name() -> None:
    shapes = BEST.tensor_shapes()
    down = tensor_name(1, "proj_down.weight")
    with pytest.raises(FormatError, match=r'"divine.mtp.1.proj_down.weight".* is missing'):
        BEST.check_shapes({k: v for k, v in shapes.items() if k != down}, "f")
    with pytest.raises(
        FormatError, match=r"has shape \[32, 64\]; .*rank 32, width 64.*\[32, 128\]"
    ):
        BEST.check_shapes({**shapes, down: (32, 64)}, "f")
    with pytest.raises(FormatError, match=r"divine.mtp.3.norm.weight.* belongs to no head"):
        BEST.check_shapes({**shapes, "divine.mtp.3.norm.weight": (64,)}, "f")


def test_depths_and_sets() -> None:
    assert [BEST.set_of(depth) for depth in (1, 2, 3, 4, 9)] == [0, 1, 2, 2, 2]
    assert [FORMS["shared"].set_of(depth) for depth in (1, 2, 9)] == [0, 0, 0]
    assert FORMS["shared"].sets == 1


# ---- the equations ----


def test_the_paper_s_form() -> None:
    """s_k = RMSNorm(W_up W_down [s ; E] + s), spelled out."""
    form = FORMS["paper"]
    weights = random_heads(form)
    rng = np.random.default_rng(1)
    s, e = rng.standard_normal((2, 64))
    for depth in (1, 2, 3):
        down, up, gain = (
            weights.tensors[tensor_name(depth - 1, part)].astype(np.float64)
            for part in ("proj_down.weight", "proj_up.weight", "norm.weight")
        )
        wanted = rms(up @ down @ np.concatenate([s, e]) + s, form.eps) * gain
        state, output = level(form, weights.tensors, depth, s[None], e[None])
        np.testing.assert_allclose(output[0], wanted, rtol=1e-6)
        np.testing.assert_array_equal(state, output)
        s = wanted


def test_the_form_that_trained_best() -> None:
    form = FORMS["best"]
    weights = random_heads(form)
    rng = np.random.default_rng(1)
    h, gain, token = rng.standard_normal((3, 64))
    gain[5] = 0.0
    z = start_state(form, h[None].astype(np.float32), gain.astype(np.float32))[0]
    assert z[5] == 0.0
    np.testing.assert_allclose(
        np.delete(z, 5), np.delete(h / np.where(gain, gain, 1), 5), rtol=1e-5
    )
    part = {
        name: weights.tensors[tensor_name(0, name)].astype(np.float64)
        for name in ("proj_down.weight", "proj_down.bias", "proj_up.weight", "residual.weight")
    }
    x = part["proj_down.weight"] @ np.concatenate([z, rms(token, form.eps)])
    x = x + part["proj_down.bias"]
    u = part["proj_up.weight"] @ (x / (1 + np.exp(-x)))
    unit = rms(part["residual.weight"] * z + 1.7 * u, form.eps)
    state, output = level(form, weights.tensors, 1, z[None], token[None])
    np.testing.assert_allclose(state[0], unit, rtol=1e-5)
    np.testing.assert_allclose(
        output[0], unit * weights.tensors["divine.mtp.0.norm.weight"], rtol=1e-5
    )


def test_the_published_form_carries_the_plain_sum() -> None:
    form = FORMS["published"]
    weights = random_heads(form)
    rng = np.random.default_rng(1)
    s, e = rng.standard_normal((2, 64))
    state, output = level(form, weights.tensors, 1, s[None], e[None])
    x = weights.tensors["divine.mtp.0.proj_down.weight"].astype(np.float64) @ np.concatenate([s, e])
    gelu = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    total = s + weights.tensors["divine.mtp.0.proj_up.weight"].astype(np.float64) @ gelu
    np.testing.assert_allclose(state[0], total, rtol=1e-6)
    wanted = rms(total, form.eps) * weights.tensors["divine.mtp.0.norm.weight"]
    np.testing.assert_allclose(output[0], wanted, rtol=1e-6)


# ---- weights in files ----


@pytest.mark.parametrize("name", FORMS)
def test_safetensors_give_the_weights_back(name: str, tmp_path: Path) -> None:
    made = {"command": "divine tune", "acceptance": [0.5, 0.4]}
    weights = random_heads(FORMS[name], fingerprint="ab" * 16, provenance=made)
    weights.save(tmp_path / "heads.safetensors")
    found = HeadWeights.load(tmp_path / "heads.safetensors")
    assert (found.definition, found.fingerprint) == (weights.definition, weights.fingerprint)
    assert found.provenance == made
    assert found.tensors.keys() == weights.tensors.keys()
    for tensor, data in weights.tensors.items():
        np.testing.assert_array_equal(found.tensors[tensor], data)
    assert [path.name for path in tmp_path.iterdir()] == ["heads.safetensors"]


def test_weights_of_the_published_package(tmp_path: Path) -> None:
    """Float16, with nothing but a format's name in the metadata."""
    weights = random_heads(FORMS["published"])
    halves = {
        name: data.astype(np.float16) if data.ndim == 2 else data
        for name, data in weights.tensors.items()
    }
    save_file(halves, tmp_path / "h.safetensors", {"format": "divine-mtp-safetensors"})
    found = HeadWeights.load(tmp_path / "h.safetensors")
    assert found.definition == FORMS["published"]
    name = tensor_name(1, "proj_up.weight")
    np.testing.assert_array_equal(found.tensors[name], halves[name].astype(np.float32))


def test_bfloat16_of_training_is_read(tmp_path: Path) -> None:
    """By hand, as NumPy cannot write it: the upper halves of float32."""
    weights = random_heads(BEST)
    header: dict[str, Any] = {"__metadata__": {"divine.definition": json.dumps(BEST.to_dict())}}
    body = b""
    for name, data in weights.tensors.items():
        listed = name == DRAFT_VOCAB
        raw = data if listed else (data.view(np.uint32) >> 16).astype(np.uint16)
        offsets = [len(body), len(body) + raw.nbytes]
        kind = "I32" if listed else "BF16"
        header[name] = {"dtype": kind, "shape": list(data.shape), "data_offsets": offsets}
        body += raw.tobytes()
    head = json.dumps(header).encode()
    (tmp_path / "h.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + body)
    found = HeadWeights.load(tmp_path / "h.safetensors")
    for name, data in weights.tensors.items():
        np.testing.assert_allclose(found.tensors[name], data, rtol=2**-7)


def test_arrays_are_written_by_value(tmp_path: Path) -> None:
    """A transposed view is what it shows, not what lies in memory."""
    weights = random_heads(BEST)
    views = {n: np.asfortranarray(data) for n, data in weights.tensors.items()}
    HeadWeights(BEST, views).save(tmp_path / "h.safetensors")
    found = HeadWeights.load(tmp_path / "h.safetensors")
    for name, data in weights.tensors.items():
        np.testing.assert_array_equal(found.tensors[name], data)


def test_files_that_are_no_heads(tmp_path: Path) -> None:
    path = tmp_path / "h.safetensors"
    with pytest.raises(UsageError, match="there is no such file"):
        HeadWeights.load(path)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(FormatError, match="no safetensors file of heads"):
        HeadWeights.load(path)
    save_file({"x": np.zeros(3, np.float32)}, path)
    with pytest.raises(FormatError, match='"x" is not one of drafting heads'):
        HeadWeights.load(path)
    tensors = dict(random_heads(BEST).tensors)
    save_file(tensors, path)
    with pytest.raises(FormatError, match=r"have no divine\.definition"):
        HeadWeights.load(path)
    save_file(tensors, path, {"divine.definition": "{"})
    with pytest.raises(FormatError, match="is no JSON"):
        HeadWeights.load(path)
    wrong = json.dumps(replace(BEST, rank=31).to_dict())
    save_file(tensors, path, {"divine.definition": wrong})
    with pytest.raises(FormatError, match=r"proj_down.weight. has shape \[32, 128\]"):
        HeadWeights.load(path)


def test_weights_that_are_wrong() -> None:
    weights = random_heads(BEST)
    name = tensor_name(2, "proj_up.weight")
    bad = weights.tensors[name].copy()
    bad[3, 3] = np.nan
    with pytest.raises(FormatError, match=r"divine.mtp.2.proj_up.weight.* not finite"):
        HeadWeights(BEST, {**weights.tensors, name: bad})
    with pytest.raises(FormatError, match="must ascend"):
        HeadWeights(BEST, {**weights.tensors, DRAFT_VOCAB: weights.draft_vocab[::-1]})


def test_weights_into_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        random_heads(BEST).save(tmp_path / "no" / "heads.safetensors")


# ---- the fingerprint of a base ----


def fingerprint(path: Path) -> str:
    with open_gguf(path) as file:
        return base_fingerprint(file)


def test_the_fingerprint_is_of_the_weights(tmp_path: Path) -> None:
    base = fingerprint(tiny_llama(tmp_path / "a.gguf"))
    named = tiny_llama(tmp_path / "b.gguf", metadata_overrides={"general.name": "another name"})
    assert fingerprint(named) == base
    aligned = tiny_llama(tmp_path / "c.gguf", alignment=64)
    assert fingerprint(aligned) == base
    assert fingerprint(split_gguf(tmp_path / "a.gguf", 2)[0]) == base
    assert fingerprint(tiny_llama(tmp_path / "d.gguf", seed=1)) != base
    assert fingerprint(tiny_llama(tmp_path / "e.gguf", block_type="Q8_0")) != base
