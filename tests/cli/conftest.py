"""Running command lines: in this process where only words and codes matter, else as a process."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from divine.cli.main import execute
from tiny_models import ENDOFTEXT, IM_END, tiny_llama


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty models folder of the test's own."""
    folder = tmp_path / "models"
    monkeypatch.setenv("DIVINE_MODELS", str(folder))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return folder


@pytest.fixture
def divine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    """Run a command line in this process, with bytes on standard input."""

    def run(*arguments: object, stdin: bytes = b"") -> Result:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8"))
        code = execute([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


def process(*arguments: object, stdin: bytes = b"", **environment: str) -> Result:
    """Run a command line as a process of its own, with bytes on standard input."""
    done = subprocess.run(
        [sys.executable, "-m", "divine", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        env={**os.environ, **environment},
        timeout=60,
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose text is nonsense, but always the same nonsense."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    tiny_llama(path)
    return path


@pytest.fixture(scope="session")
def endless(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Arguments with which an answer goes on until someone stops it."""
    path = tmp_path_factory.mktemp("endless") / "endless.gguf"
    tiny_llama(path, context=1 << 20)
    banned = (f"--logit-bias={token}=-inf" for token in (ENDOFTEXT, IM_END))
    return str(path), "--temp", "1", "--ctx", str(1 << 17), *banned


def assert_one_sentence(result: Result, *words: str) -> None:
    """The error is one line from `divine:` that holds `words`, and no traceback."""
    lines = result.err.strip().splitlines()
    assert len(lines) == 1, result.err
    assert lines[0].startswith("divine: "), result.err
    for word in words:
        assert word in lines[0], (word, lines[0])
