"""`divine inspect`: what it shows, and that nothing in a file can spoil the showing."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import numpy as np
import pytest

from divine.gguf import open_gguf, typed
from tiny_models import CHATML, tiny_llama

from .conftest import assert_one_sentence


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.gguf"


def document(divine, path, *arguments):
    result = divine("inspect", path, "--json", *arguments)
    assert result.code == 0, result.err
    return json.loads(result.out, parse_constant=pytest.fail)


def test_figures(divine, path):
    tiny_llama(path, block_type="Q4_0", tied=True)
    found = document(divine, path, "--tensors")
    with open_gguf(path) as file:
        nbytes = {tensor.name: tensor.nbytes for tensor in file.tensors.values()}
    assert {tensor["name"]: tensor["bytes"] for tensor in found["tensors"]} == nbytes
    assert sum(group["bytes"] for group in found["types"].values()) == sum(nbytes.values())
    assert sum(group["tensors"] for group in found["types"].values()) == len(nbytes)
    assert found["bytes_per_token"] == sum(nbytes.values())  # tied: the table is the output too
    assert found["metadata"]["general.architecture"] == "llama"
    assert found["metadata"]["tokenizer.ggml.tokens"]["length"] == 320
    assert len(found["metadata"]["tokenizer.ggml.tokens"]["first"]) == 8


def test_lines_fit_the_terminal(path):
    """Long values are cut, with the length of an array in front where it stays."""
    tiny_llama(path, metadata_overrides={"general.name": "x" * 200})
    master, slave = pty.openpty()
    environment = {**os.environ, "COLUMNS": "60"}
    command = [sys.executable, "-m", "divine", "inspect", str(path)]
    with subprocess.Popen(command, stdout=slave, stderr=slave, env=environment) as running:
        os.close(slave)
        output = b""
        while True:
            try:
                output += os.read(master, 65536)
            except OSError:  # its last writer is gone
                break
        assert running.wait(30) == 0
    os.close(master)
    table = output.decode().split("\r\n\r\n")[2].splitlines()
    assert any(line.startswith("tokenizer.ggml.tokens") and "  320: [" in line for line in table)
    assert max(map(len, table)) <= 60


def test_an_untied_table_is_read_one_row_a_token(divine, path):
    tiny_llama(path, tied=False)
    found = document(divine, path, "--tensors")
    table = next(t for t in found["tensors"] if t["name"] == "token_embd.weight")
    every = sum(tensor["bytes"] for tensor in found["tensors"])
    expected = every - table["bytes"] + table["bytes"] // table["shape"][0]
    assert found["bytes_per_token"] == expected


def test_a_table_without_dimensions_is_shown(divine, path):
    tiny_llama(path, tensor_overrides={"token_embd.weight": np.array(1, np.float32)})
    assert document(divine, path)["bytes_per_token"] > 4


def test_the_template_is_shown_and_not_run(divine, path):
    evil = "{{ ''.__class__.__mro__[1].__subclasses__() }}{% for i in range(10**9) %}{% endfor %}"
    tiny_llama(path, metadata_overrides={"tokenizer.chat_template": evil})
    result = divine("inspect", path)
    assert result.code == 0
    assert evil in result.out
    assert document(divine, path)["metadata"]["tokenizer.chat_template"] == evil


ODD = {
    "odd.bytes": typed("string", b"\xff\xfe\x1b[31m\x00"),
    "odd.long": "x" * 100_000,
    "odd.nan": typed("f32", float("nan")),
    "odd.inf": typed("[f64]", [float("inf"), 1.0]),
    "odd.empty": typed("[string]", []),
    "odd.nested": typed("[[u8]]", [[1], []]),
    "odd.\x1b]0;title\x07": True,
    "general.name": typed("string", b"caf\xe9"),
    "llama.expert_count": "many",
    "llama.expert_used_count": -1,
}


def test_odd_metadata(divine, path):
    tiny_llama(path, metadata_overrides=ODD)
    result = divine("inspect", path, "--tensors")
    assert result.code == 0, result.err
    assert result.out.replace("\n", "").isprintable()
    assert max(len(line) for line in result.out.splitlines()) < max(250, len(CHATML) + 10)
    found = document(divine, path)["metadata"]
    assert found["odd.long"] == "x" * 100_000
    assert found["odd.nan"] == "nan"
    assert found["odd.inf"] == ["inf", 1.0]
    assert found["odd.nested"] == [[1], []]


def test_files_that_are_no_models(divine, path, tmp_path):
    path.write_bytes(b"<!doctype html>")
    (tmp_path / "empty").touch()
    for bad in (path, tmp_path / "empty", "/dev/zero"):
        result = divine("inspect", bad)
        assert result.code == 1
        assert_one_sentence(result, str(bad))


def test_a_truncated_model(divine, path):
    tiny_llama(path)
    path.write_bytes(path.read_bytes()[:-1])
    result = divine("inspect", path)
    assert result.code == 1
    assert_one_sentence(result, str(path))
