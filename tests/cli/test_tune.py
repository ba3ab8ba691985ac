"""`divine tune`: capturing through the command line, and what is wrong is said in a sentence."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from divine.cli.main import execute
from divine.cli.tuning import going_on, is_checkpoint
from divine.errors import UsageError
from divine.tune.answers import AnswerStore
from tiny_models import tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_llama(tmp_path_factory.mktemp("tune") / "tiny.gguf", seed=3))


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"hello {n}"}) for n in range(9)) + "\n{}\n")
    return str(path)


def test_both_spellings_capture_and_go_on(
    model: str, prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["--base_model", model, "--output_dir", str(out), "--prompts", prompts, "-t", "1"]
    arguments += ["--capture-only", "--answer_tokens", "12", "--tokens"]
    assert execute(["tune", *arguments, "20"]) == 0
    told = capsys.readouterr().err
    assert "9 prompts" in told
    assert "1 left out" in told
    few = len(AnswerStore(out / "answers"))
    assert execute(["tune", *[a.replace("_", "-") if a.startswith("--") else a for a in arguments],
                    "1000"]) == 0  # fmt: skip
    assert len(AnswerStore(out / "answers")) == 9 > few
    assert "all prompts are used up; 1000 tokens were asked for" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ([], "give --output FOLDER"),
        (["-o", "x", "--capture-only", "--train-only"], "exclude each other"),
        (["-o", "x", "--no-states"], "--no-states is for --capture-only"),
        (["-o", "x", "--no-table", "--table-entries", "9"], "exclude each other"),
        (["-o", "x", "--table-entries", "0"], "--table-entries is 0"),
        (["-o", "x", "--prompts", "nowhere.jsonl", "--capture-only"], "nowhere.jsonl: there is no"),
        (["-o", "x", "--num-heads", "0"], "--num-heads is 0"),
        (["-o", "x", "--architecture", "layer", "--rank", "8"], "--rank is for --architecture mtp"),
        (["-o", "x", "--ffn", "64"], "ffn is a setting of the architecture layer only"),
        (["-o", "x", "--steps", "5", "--minutes", "3"], "is given, too"),
        (
            ["-o", "x", "--dataset", "a.jsonl", "--prompts", "generated"],
            "conversations have theirs",
        ),
        (["-o", "x", "--capture-only", "--sequences", "0"], "sequences is 0"),
    ],
)
def test_wrong_options_are_named(
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    extra: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert execute(["tune", model, *extra]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_a_checkpoint_is_told_from_a_file(model: str, tmp_path: Path) -> None:
    assert not is_checkpoint(model)
    assert not is_checkpoint("smollm2")
    assert not is_checkpoint("missing.gguf")
    assert is_checkpoint("owner/model")
    with pytest.raises(UsageError, match=r"folder without config\.json"):
        is_checkpoint(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert is_checkpoint(str(tmp_path))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_whoever_stops_it_is_told_how_to_go_on(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    plan = SimpleNamespace(output="the-folder")
    with pytest.raises(KeyboardInterrupt), going_on(plan):  # type: ignore[arg-type]
        os.kill(os.getpid(), number)  # Python raises before the next statement
    assert "goes on from what is in the-folder" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before
