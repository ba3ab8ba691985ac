"""`divine export`, and what `inspect` and `run` make of its files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from divine.gguf import open_gguf
from divine.heads import LayerDefinition, base_fingerprint
from divine.heads.packaging import package
from divine.tune.table import make_table, table_content
from heads_support import FORMS, LAYERS, random_heads
from tiny_models import split_gguf, tiny_llama

from .conftest import assert_one_sentence, process

ASK = ("--raw", "--temp", "0", "-n", "8")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "base.gguf")


@pytest.fixture
def weights(base: Path, tmp_path: Path) -> Path:
    with open_gguf(base) as file:
        fingerprint = base_fingerprint(file)
    made = {"command": "divine tune base.gguf", "held_out": {"acceptance": [0.4, 0.3]}}
    heads = random_heads(FORMS["best"], fingerprint=fingerprint, provenance=made)
    path = tmp_path / "heads" / "heads.safetensors"
    path.parent.mkdir()
    heads.save(path)
    return path


@pytest.mark.parametrize(
    ("packaging", "name"),
    [(None, "base.divine.gguf"), ("sidecar", "base.heads.gguf"), ("inline", "base.inline.gguf")],
)
def test_export_inspect_run_and_strip(divine, base, weights, tmp_path, packaging, name):
    options = ["--packaging", packaging] if packaging else []
    result = divine("export", base, weights, *options)
    assert result.code == 0, result.err
    path = tmp_path / name
    assert f"wrote {path}" in result.err
    assert ("llama.cpp" in result.err) == (packaging == "inline")
    card = (tmp_path / "README.md").read_text()
    assert "divine tune base.gguf" in card
    assert "| right, if all before were | 0.4 |" in card

    shown = divine("inspect", path, "--json")
    found = json.loads(shown.out)["additions"]
    assert found["packaging"] == (packaging or "appended")
    assert found["heads"] == {"version": 1, **FORMS["best"].to_dict()}
    assert found["tensors"]["divine.mtp.0.proj_down.weight"] == ["F16", 32, 128]
    text = divine("inspect", path, "--tensors")
    assert "additions of Divine" in text.out
    assert "divine.mtp.2.norm.weight" in text.out

    plain = divine("run", base, "hello", *ASK)
    arguments = (base, "--heads", path) if packaging == "sidecar" else (path,)
    for more in ((), ("--draft", "mtp", "--draft-tree", "4"), ("--draft", "none")):
        answer = divine("run", arguments[0], "hello", *arguments[1:], *ASK, *more)
        assert (answer.code, answer.out) == (0, plain.out)

    if packaging != "sidecar":
        result = divine("export", path, "--strip", "-o", tmp_path / "plain.gguf")
        assert result.code == 0, result.err
        assert (tmp_path / "plain.gguf").read_bytes() == base.read_bytes()


def test_a_layer_is_exported_shown_and_used(divine, base, tmp_path):
    path = tmp_path / "layer.safetensors"
    random_heads(LAYERS["narrow"], provenance={"acceptance": [0.5]}).save(path)
    result = divine("export", base, path, "-o", tmp_path / "out.divine")
    assert result.code == 0, result.err
    assert "| ffn | 32 |" in (tmp_path / "README.md").read_text()
    found = json.loads(divine("inspect", tmp_path / "out.divine", "--json").out)["additions"]
    assert found["heads"] == LAYERS["narrow"].to_dict()
    assert found["tensors"]["divine.mtp.layer.attn_k.weight"] == ["F16", 32, 64]
    plain = divine("run", base, "hello", *ASK)
    drafted = divine("run", tmp_path / "out.divine", "hello", *ASK, "--draft", "mtp")
    assert (drafted.code, drafted.out) == (0, plain.out)
    fused = LayerDefinition.for_width(64, taps=("layer.1.input",))
    random_heads(fused).save(path)
    assert divine("export", base, path, "-o", tmp_path / "fused.divine").code == 0
    refused = divine("run", tmp_path / "fused.divine", "hello", *ASK, "--heads", "required")
    assert_one_sentence(refused, "only the final one is supported")


def test_a_folder_of_weights_and_a_type(divine, base, weights, tmp_path):
    output = tmp_path / "small.divine"
    result = divine("export", base, weights.parent, "--heads-type", "q8_0", "-o", output)
    assert result.code == 0, result.err
    found = json.loads(divine("inspect", output, "--json").out)["additions"]
    assert found["tensors"]["divine.mtp.0.proj_up.weight"][0] == "Q8_0"
    (weights.parent / "more.safetensors").write_bytes(b"")
    result = divine("export", base, weights.parent)
    assert_one_sentence(result, "is a folder with 2 .safetensors files")


def test_from_one_packaging_to_another(divine, base, weights, tmp_path):
    assert divine("export", base, weights, "-o", tmp_path / "a.gguf").code == 0
    result = divine("export", base, tmp_path / "a.gguf", "--packaging", "sidecar")
    assert result.code == 0, result.err
    assert divine("run", base, "hello", *ASK, "--heads", tmp_path / "base.heads.gguf").code == 0
    result = divine("export", tmp_path / "a.gguf", weights, "-o", tmp_path / "b.gguf")
    assert result.code == 0, result.err
    assert "the drafting heads that" in result.err
    assert "are not in it; it has what was given" in result.err
    again = (tmp_path / "a.gguf", tmp_path / "a.gguf", "-o", tmp_path / "c.gguf")
    result = divine("export", *again)
    assert result.code == 0, result.err
    assert "are not in it" not in result.err
    result = divine("run", base, "hello", *ASK, "--heads", weights)
    assert_one_sentence(result, "looks like safetensors")
    result = divine("export", base, tmp_path / "a.gguf", "--heads-type", "f32")
    assert_one_sentence(result, "--heads-type is for trained weights")


def test_heads_and_a_table_in_one_file(divine, base, weights, tmp_path):
    text = np.arange(40, dtype=np.int32) % 7
    with open_gguf(base) as file:
        package(file, table_content(make_table([(text, 0)])), tmp_path / "table.gguf", "sidecar")
    output = tmp_path / "both.gguf"
    given = (base, weights, tmp_path / "table.gguf")
    result = divine(
        "export", *given, "--packaging", "sidecar", "--heads-type", "q8_0", "-o", output
    )
    assert result.code == 0, result.err
    found = json.loads(divine("inspect", output, "--json").out)["additions"]["tensors"]
    assert found["divine.mtp.0.proj_up.weight"][0] == "Q8_0"
    assert any(name.startswith("divine.table") for name in found)
    assert divine("run", base, "hello", *ASK, "--heads", output).code == 0


def test_a_split_base_gets_a_sidecar(divine, base, weights, tmp_path):
    shard = split_gguf(base, 2)[0]
    result = divine("export", shard, weights)
    assert result.code == 0, result.err
    assert (tmp_path / f"{shard.stem}.heads.gguf").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{base}"], "no WEIGHTS are given"),
        (["{base}", "{weights}", "--strip"], "WEIGHTS is for packing"),
        (["{base}", "--strip", "--packaging", "inline"], "--packaging is for packing"),
        (["{base}", "{base}"], "has no drafting heads"),
        (["{base}", "{weights}", "-o", "{base}"], "is the base itself"),
        (["{base}", "{weights}", "-o", "no/where.gguf"], "there is no folder no"),
        (["{base}", "{weights}", "{weights}"], "is given twice"),
        (["{base}", "gone.safetensors"], "there is no such file"),
        (["{base}", "{weights}", "--heads-type", "q4"], "q4"),
        (["{other}", "{weights}"], "made for another model"),
        (["{wide}", "{weights}"], "made for another model"),
    ],
)
def test_one_sentence_for_each_mistake(divine, base, weights, tmp_path, arguments, words):
    places = {
        "base": base,
        "weights": weights,
        "other": tiny_llama(tmp_path / "other.gguf", seed=5),
        "wide": tiny_llama(tmp_path / "wide.gguf", dim=96),
    }
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.gguf")}
    result = divine("export", *(argument.format(**places) for argument in arguments))
    assert result.code in (1, 2)
    assert words in result.err
    assert len(result.err.splitlines()) == 1
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.gguf")} == before


def test_a_file_that_lost_its_section_says_so_once(divine, base, weights, tmp_path):
    assert divine("export", base, weights).code == 0
    path = tmp_path / "base.divine.gguf"
    path.write_bytes(path.read_bytes()[:-64])
    answer = process("run", path, "hello", *ASK)
    assert answer.code == 0
    assert answer.out == divine("run", base, "hello", *ASK).out
    lines = [line for line in answer.err.splitlines() if "drafting heads" in line]
    assert len(lines) == 1
    assert lines[0].startswith("divine: warning: ")
    assert lines[0].endswith("decoding without drafting heads")
    assert_one_sentence(divine("run", path, "hello", *ASK, "--heads", "required"), "no section")
    shown = divine("inspect", path)
    assert shown.code == 0
    assert "there is no section with them" in " ".join(shown.out.split())


def test_heads_that_are_not_there(divine, base):
    result = divine("run", base, "hello", "--heads", "required")
    assert_one_sentence(result, "has no drafting heads")
    result = divine("run", base, "hello", "--draft", "mtp")
    assert_one_sentence(result, '"mtp" needs drafting heads')
