"""Chains are paths of trees, sizes are kept, and what is counted is what the engine did."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import divine.api
from divine.cli.main import execute
from divine.drafting import Budget, ChainDrafter, DraftTask, TableDrafter
from divine.errors import UsageError
from divine.gguf import open_gguf
from divine.heads.packaging import package
from divine.sampling import Sampler, SamplingParams
from divine.tune.table import make_table, table_content
from tiny_models import tiny_llama

PROMPTS = ("hello the world", "is the model", "and is ing")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a table of what it says, appended."""
    folder = tmp_path_factory.mktemp("evaluate")
    base = tiny_llama(folder / "base.gguf", seed=4)
    with divine.api.load(base, threads=1) as plain:
        texts = [
            (np.array(plain.generate(p, max_tokens=40, temperature=0).tokens, np.int32), 0)
            for p in PROMPTS
        ]
    path = folder / "model.gguf"
    with open_gguf(base) as file:
        package(file, table_content(make_table(texts)), path, "appended")
    return path


def test_a_chain_is_the_best_path_of_a_tree() -> None:
    text = np.array([1, 2, 3, 4, 5] * 9 + [1, 2, 7, 8] * 4, np.int32)
    inner = TableDrafter(make_table([(text, 0)]))
    sampler = Sampler(SamplingParams(temperature=0.0), 320)
    task = DraftTask([1, 2], 2, sampler, 100)
    for size in (1, 2, 4):
        tree = ChainDrafter(inner).begin(task).propose((), Budget(size, 16))  # type: ignore[arg-type]
        assert tree.parents == list(range(-1, size - 1))
        assert tree.tokens == [3, 4, 5, 1][:size]


def test_figures_are_those_of_the_engine(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "held.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt": p, "class": p[:2]}) for p in PROMPTS))
    out, picture = tmp_path / "figures.json", tmp_path / "figures.png"
    arguments = ["evaluate", "heads", str(model), "--prompts", str(prompts), "--chains", "1,3"]
    arguments += ["--trees", "4", "-n", "30", "-t", "1", "--json", str(out), "--plot", str(picture)]
    assert execute(arguments) == 0
    assert "tokens" in capsys.readouterr().out
    result = json.loads(out.read_text())
    assert result["differences"] == []
    assert result["comparisons"] == 3 * 3 * 3  # prompts, drafters with all, shapes
    entries = {(e["draft"], e["shape"], e["size"], e["class"]): e for e in result["acceptance"]}
    assert len(entries) == 3 * 3 * 4
    whole = entries["table", "chain", 3, "all classes"]
    assert whole["prompts"] == 3
    assert len(whole["acceptance"]) <= 3
    assert 1.5 < whole["tokens_per_pass"] <= 4  # the table was made of these very answers
    with divine.api.load(model, threads=1) as loaded:
        answer = loaded.generate(
            PROMPTS[0], max_tokens=30, temperature=0, draft="chain:table", draft_tree=3
        )
    of_class = entries["table", "chain", 3, PROMPTS[0][:2]]
    expected = answer.statistics.tokens_per_pass
    assert expected is not None
    assert of_class["tokens_per_pass"] == pytest.approx(expected, abs=1e-3)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_bad_sizes_and_drafters_are_named(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "held.jsonl"
    prompts.write_text('{"prompt": "hello"}')
    start = ["evaluate", "heads", str(model), "--prompts", str(prompts)]
    for extra, words in (
        (["--chains", "1,x"], "--chains is '1,x'"),
        (["--trees", "0"], "trees is 0"),
        (["--draft", "mtp"], "needs drafting heads"),
    ):
        assert execute([*start, *extra]) in (1, 2)
        assert words in capsys.readouterr().err
    assert execute(start[:3]) == 2
    assert "give --prompts" in capsys.readouterr().err
    plain = str(tiny_llama(tmp_path / "plain.gguf", seed=4))
    assert execute(["evaluate", "heads", plain, "--prompts", str(prompts)]) == 2
    assert "neither heads nor a table" in capsys.readouterr().err
    with divine.api.load(model) as loaded, pytest.raises(UsageError, match="'nobody'"):
        loaded.generate("hello", draft="chain:nobody", max_tokens=2)
