"""What is captured is what the model says, with the states it says it from; however it was cut."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import divine.api
from divine.backends.base import Rows, Want
from divine.errors import CapacityError, UsageError
from divine.tune import capture as module
from divine.tune.answers import AnswerStore, Finish
from divine.tune.base import Base
from divine.tune.capture import Captured, CaptureSettings, capture, loops
from divine.tune.conversations import Conversation
from divine.tune.sameness import check_same
from tiny_models import tiny_llama

WORDS = ("hello the world", "is the model", "the user and the assistant", "world", "and is ing")
PROMPTS = [Conversation(({"role": "user", "content": f"{WORDS[n % 5]} {n}"},)) for n in range(24)]
SETTINGS = CaptureSettings(answer_tokens=24, prompt_tokens=100, sequences=5)
SOURCE = {"sources": ["test"]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("capture") / "tiny.gguf", seed=3)


def captured(
    model: Path,
    folder: Path,
    settings: CaptureSettings = SETTINGS,
    prompts: Sequence[Conversation] = PROMPTS,
) -> tuple[Captured, AnswerStore]:
    with Base(model, threads=1) as base:
        state, _ = capture(base, prompts, folder, settings, source=SOURCE)
    return state, AnswerStore(folder)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_answers_are_those_of_the_model(model: Path, tmp_path: Path, temperature: float) -> None:
    settings = CaptureSettings(
        answer_tokens=24, prompt_tokens=100, sequences=5, temperature=temperature
    )
    _, store = captured(model, tmp_path / "a", settings)
    assert len(store) == len(PROMPTS)
    with divine.api.load(model, threads=1) as plain:
        ends = plain.tokenizer.end_ids
        for answer, prompt in zip(store, PROMPTS, strict=True):
            expected = plain.generate(
                [dict(message) for message in prompt.messages],
                max_tokens=24, temperature=temperature, seed=answer.number, draft="none",
                top_k=0, top_p=1.0, min_p=0.0,
            )  # fmt: skip
            tokens = answer.answer.tolist()
            if answer.finish is Finish.STOP:
                assert tokens.pop() in ends
            assert tokens == expected.tokens[: len(tokens)]
            assert len(tokens) == len(expected.tokens) or answer.finish is Finish.LOOP


def test_states_are_those_that_chose_the_tokens(model: Path, tmp_path: Path) -> None:
    _, store = captured(model, tmp_path / "a")
    with Base(model, threads=1) as base:
        for answer in list(store)[:4]:
            state = base.executable.new_state(256)
            rows = Rows.chain(answer.tokens[:-1])
            wanted = range(answer.prompt - 1, len(answer.tokens) - 1)
            result = base.executable.run([state], rows, Want(best=wanted, taps={"final": wanted}))
            assert np.array_equal(answer.states, result.taps["final"].astype(np.float16))
            assert np.array_equal(answer.answer, result.best_ids)


def test_a_run_cut_at_any_moment_leaves_the_same_files(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured(model, tmp_path / "whole")
    for stop in (1, 2, 7):

        def interrupt(state: Captured, stop: int = stop) -> None:
            if state.prompts % (stop + 5) == stop:
                raise KeyboardInterrupt

        folder = tmp_path / str(stop)
        for _ in range(30):
            try:
                with Base(model, threads=1) as base:
                    capture(base, PROMPTS, folder, SETTINGS, source=SOURCE, progress=interrupt)
                break
            except KeyboardInterrupt:
                continue
        for name in ("00000.tokens", "00000.states", "00000.index", "capture.json"):
            assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_it_stops_at_the_tokens_asked_for_and_goes_on_for_more(model: Path, tmp_path: Path) -> None:
    few = CaptureSettings(tokens=50, answer_tokens=24, prompt_tokens=100, sequences=5)
    state, store = captured(model, tmp_path / "a", few)
    assert 50 <= store.lengths.sum() < 50 + 25
    assert state.tokens == store.lengths.sum()
    _, more = captured(model, tmp_path / "a")
    assert len(more) == len(PROMPTS) > len(store)


def test_given_answers_are_read_not_made(model: Path, tmp_path: Path) -> None:
    talks = [
        Conversation((
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": f"the world is {n}"},
        ))
        for n in range(6)
    ]  # fmt: skip
    settings = CaptureSettings(answer_tokens=40, prompt_tokens=100, sequences=4, given=True)
    _, store = captured(model, tmp_path / "a", settings, talks)
    with Base(model, threads=1) as base:
        for number, answer in enumerate(store):
            text = base.tokenizer.decode(answer.answer.tolist())
            assert text.startswith(f"the world is {number}")
            state = base.executable.new_state(256)
            wanted = range(answer.prompt - 1, len(answer.tokens) - 1)
            result = base.executable.run(
                [state], Rows.chain(answer.tokens), Want(taps={"final": wanted})
            )
            assert np.array_equal(answer.states, result.taps["final"].astype(np.float16))


def test_long_prompts_are_left_out_and_counted(model: Path, tmp_path: Path) -> None:
    prompts = [*PROMPTS[:2], Conversation(({"role": "user", "content": "hello " * 80},))]
    with Base(model, threads=1) as base:
        _, skipped = capture(base, prompts, tmp_path / "a", SETTINGS, source=SOURCE)
    assert skipped.sentence() == "1 left out: 1 longer than 100 tokens"
    assert len(AnswerStore(tmp_path / "a")) == 2


def test_a_full_disk_ends_the_run_with_a_sentence(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: module.AnswerWriter, answer: object) -> None:
        raise CapacityError("answers cannot be written")

    monkeypatch.setattr(module.AnswerWriter, "append", full)
    with Base(model, threads=1) as base, pytest.raises(CapacityError):
        capture(base, PROMPTS, tmp_path / "a", SETTINGS, source=SOURCE)


def test_other_prompts_are_refused(model: Path, tmp_path: Path) -> None:
    captured(model, tmp_path / "a", prompts=PROMPTS[:2])
    with (
        Base(model, threads=1) as base,
        pytest.raises(UsageError, match=r"was made with sources \['test'\]"),
    ):
        capture(base, PROMPTS, tmp_path / "a", SETTINGS, source={"sources": ["other"]})
    assert json.loads((tmp_path / "a" / "capture.json").read_text())["source"] == SOURCE


def test_what_people_have_said_is_named_before_what_follows(tmp_path: Path) -> None:
    before = {"seed": 0, "source": {"sources": ["a"], "digest": "1"}, "old": 1}
    for now, words in (
        ({"seed": 5, "source": {"sources": ["a"], "digest": "2"}}, "with seed 0"),
        ({"seed": 0, "source": {"sources": ["a"], "digest": "2"}}, "with digest '1'"),
        ({"seed": 0, "source": {"sources": ["a"], "digest": "1"}}, "with old 1"),
    ):
        with pytest.raises(UsageError, match=f"was made {words}"):
            check_same(tmp_path, before, now)
    check_same(tmp_path, before, before)


def test_loops_are_seen() -> None:
    random = np.random.default_rng(0).integers(0, 1000, 200).tolist()
    assert not loops(random)
    assert loops([*random, *[5, 6, 7] * 22])
    assert loops([*random, *list(range(30)) * 3])
    assert not loops([*random, *[5, 6, 7] * 12])
