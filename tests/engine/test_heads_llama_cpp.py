"""llama.cpp on exported files: it loads an appended one and says what it says for the plain one."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import compare
import pytest

from divine.errors import DownloadError
from divine.gguf import open_gguf
from divine.heads import HeadsDefinition
from divine.store import resolve
from heads_support import FORMS, pack, random_heads
from tiny_models import tiny_llama

# Prompts are token ids, so that nothing but the weights and the program decides.
WORKER = """
import json, os, sys
import xllamacpp
settings = xllamacpp.CommonParams()
settings.model.path = sys.argv[1]
settings.n_ctx, settings.n_parallel, settings.verbosity = 128, 1, -1
settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(settings)
answers = []
for prompt in json.loads(sys.argv[2]):
    question = {"prompt": prompt, "n_predict": 24, "temperature": 0, "cache_prompt": False,
                "n_probs": 3}
    (choice,) = server.handle_completions(question)["choices"]
    answers.append([choice["text"], choice["logprobs"]])
print("ANSWERS " + json.dumps(answers), flush=True)
os._exit(0)
"""
PROMPTS = [[1, 10, 11, 12], [1, 44, 45, 46, 44, 45]]


@pytest.fixture(scope="module")
def python() -> Path:
    try:
        python = compare.peer_python()
        subprocess.run([str(python), "-c", "import xllamacpp"], check=True, capture_output=True)
        return python
    except (subprocess.CalledProcessError, OSError) as error:
        pytest.skip(f"{compare.WHEEL} cannot be installed: {error}")


def ask(python: Path, model: Path) -> subprocess.CompletedProcess[str]:
    command = [str(python), "-c", WORKER, str(model), json.dumps(PROMPTS)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def answers(python: Path, model: Path) -> list[Any]:
    done = ask(python, model)
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWERS ")]
    assert len(lines) == 1, done.stderr[-2000:]
    found: list[Any] = json.loads(lines[0].removeprefix("ANSWERS "))
    return found


@pytest.mark.oracle
def test_appended_files_are_the_plain_model_to_others(python: Path, tmp_path: Path) -> None:
    base = tiny_llama(tmp_path / "base.gguf", seed=3, context=128)
    appended = pack(base, random_heads(FORMS["best"]), tmp_path / "appended.gguf")
    plain = answers(python, base)
    assert answers(python, appended) == plain
    assert all(len(answer[1]["content"]) > 3 for answer in plain)


@pytest.mark.oracle
def test_inline_files_are_refused_by_others(python: Path, tmp_path: Path) -> None:
    """Which is why appending is the default, and why the command says so."""
    base = tiny_llama(tmp_path / "base.gguf", seed=3, context=128)
    inline = pack(base, random_heads(FORMS["best"]), tmp_path / "inline.gguf", "inline")
    done = ask(python, inline)
    assert "ANSWERS" not in done.stdout


@pytest.mark.oracle
@pytest.mark.model
def test_a_real_model_says_the_same(python: Path, tmp_path: Path) -> None:
    try:
        base = resolve("smollm2")
    except DownloadError as error:
        pytest.skip(str(error))
    with open_gguf(base) as file:
        dim = file.metadata.int("llama.embedding_length")
    weights = random_heads(HeadsDefinition.best(2, 32, dim, draft_vocab=64))
    appended = pack(base, weights, tmp_path / "appended.gguf")
    assert answers(python, appended) == answers(python, base)
