"""The drafter "model" at its edges: draft vocabularies, rejection sampling, failures, options."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draft_support import (
    ALL,
    CHAIN,
    GREEDY,
    PROMPT,
    SAMPLED,
    Counting,
    Target,
    models,
    propose,
    task_of,
)

from divine.drafting import Budget
from divine.errors import FormatError, NumericError, UnsupportedError, UsageError
from divine.gguf import TensorData, typed
from divine.sampling import SamplingParams
from tiny_models import tiny_llama, tiny_vocabulary


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drafts")


@pytest.fixture(scope="module")
def paths(folder: Path) -> tuple[Path, Path]:
    return models(folder)


@pytest.fixture(scope="module")
def target(paths: tuple[Path, Path]) -> Target:
    return Target.load(paths[0])


# ---- draft vocabulary ----


def test_draft_vocabulary_grows_with_the_text(target: Target) -> None:
    drafter = target.drafter(vocabulary=50)
    counting = drafter.model.executable = Counting(drafter.model.executable)
    tokens = [1, 10, 200, 11]
    task = task_of(target, tokens, GREEDY)
    session = drafter.begin(task)
    always = set(range(50)) | {0, 1, 2}
    tree = propose(session, task)
    assert set(counting.shortlists[-1].ids.tolist()) == always | {200}
    assert set(tree.tokens) <= always | {200}
    first = counting.shortlists[-1]
    tokens += [12, 200]
    propose(session, task)
    assert counting.shortlists[-1] is first  # nothing new: not built again
    tokens += [260, 12, 299]
    propose(session, task)
    assert set(counting.shortlists[-1].ids.tolist()) == always | {200, 260, 299}
    other = drafter.begin(task_of(target, [1, 5], GREEDY))
    propose(other, task_of(target, [1, 5], GREEDY))
    assert set(counting.shortlists[-1].ids.tolist()) >= always
    whole = target.drafter(vocabulary=320)
    counting = whole.model.executable = Counting(whole.model.executable)
    propose(whole.begin(task), task)
    assert counting.shortlists == [None] * len(counting.shortlists)
    drafter.close()
    whole.close()


def test_padding_may_differ(folder: Path, target: Target) -> None:
    """A vocabulary padded to another size; what only one has is never proposed."""
    smaller = tiny_llama(folder / "smaller.gguf", seed=1, vocab=310)
    larger = tiny_llama(folder / "larger.gguf", seed=1, vocab=352)
    for path in (smaller, larger):
        drafter = target.drafter(path)
        for params in ALL:
            plain = target.plain(PROMPT, 30, params)
            assert target.decode(PROMPT, 30, params, drafter, CHAIN) == plain
            tokens = [token for step in target.steps for token in step.tree.tokens]
            assert tokens
            assert max(tokens) < 320
        task = task_of(target, [*PROMPT, 315], GREEDY)
        tree = propose(drafter.begin(task), task)
        assert (len(tree) == 0) == (path == smaller)  # a token that it does not have
        drafter.close()


# ---- rejection sampling ----


def test_drawn_nodes_have_their_distributions(target: Target) -> None:
    params = SamplingParams(temperature=0.8, top_k=5, seed=3)
    task = task_of(target, list(PROMPT), params, rejection=True)
    drafter = target.drafter()
    tree = propose(drafter.begin(task), task, Budget(nodes=20, depth=4))
    assert tree.draws is not None
    assert len(tree.draws) == len(tree)
    spread: dict[int, list[int]] = {}
    for node, draw in enumerate(tree.draws):
        assert draw is not None
        assert draw.shape == (320,)
        assert draw.sum() == pytest.approx(1)
        assert draw[tree.tokens[node]] > 0
        assert np.count_nonzero(draw) <= 5
        earlier = spread.setdefault(tree.parents[node], [])
        assert not draw[earlier].any()  # without replacement
        earlier.append(tree.tokens[node])
    assert any(len(siblings) > 1 for siblings in spread.values())
    drafter.close()


def test_draws_follow_their_distribution_and_claims_do_not_tell_them(target: Target) -> None:
    drafter = target.drafter()
    counts = np.zeros(320)
    odds = claims = None
    draws = 3000
    task = task_of(target, list(PROMPT), SamplingParams(temperature=1.0, seed=8), rejection=True)
    session = drafter.begin(task)
    for _ in range(draws):
        tree = propose(session, task, Budget(nodes=2, depth=1))
        assert tree.draws is not None
        counts[tree.tokens[0]] += 1
        odds = tree.draws[0]
        assert claims is None or tree.claims[0] == claims
        claims = tree.claims[0]
    assert odds is not None
    often = odds > 20 / draws
    expected = draws * odds[often]
    chi_square = float(((counts[often] - expected) ** 2 / expected).sum())
    degrees = int(often.sum())
    assert degrees > 3
    assert chi_square < degrees + 4 * math.sqrt(2 * degrees)  # four deviations; the seed is fixed
    drafter.close()


def test_greedy_rejection_draws_nothing(target: Target) -> None:
    drafter = target.drafter()
    task = task_of(target, list(PROMPT), GREEDY, rejection=True)
    assert propose(drafter.begin(task), task).draws is None
    drafter.close()


# ---- failures ----


def test_cancelled_passes_leave_a_usable_session(target: Target) -> None:
    from divine.backends.base import Cancelled

    drafter = target.drafter()
    counting = drafter.model.executable = Counting(drafter.model.executable)
    task = task_of(target, list(PROMPT), SAMPLED)
    session = drafter.begin(task)
    right = propose(drafter.begin(task), task)
    real, calls = counting.run, 0

    def run(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls in (1, 4):
            raise Cancelled
        return real(*args)

    counting.run = run  # type: ignore[method-assign]
    assert len(propose(session, task)) == 0
    assert len(propose(session, task)) == 0
    assert propose(session, task).tokens == right.tokens
    drafter.cancel()  # without a pass nothing happens
    drafter.close()


@pytest.mark.parametrize("call", [1, 2, 3])
def test_an_interruption_after_a_commit_is_repaired(target: Target, call: int) -> None:
    """Ctrl-C may come when the state has committed and the session does not know it yet."""
    drafter = target.drafter(width=1)
    task = task_of(target, list(PROMPT), SAMPLED)
    right = propose(drafter.begin(task), task)
    session = drafter.begin(task)
    session.cost_ms(1)
    state, calls = session._reader._state, 0
    real = state.commit

    def commit(path: Any) -> None:
        nonlocal calls
        calls += 1
        real(path)
        if calls == call:
            raise KeyboardInterrupt

    state.commit = commit
    with pytest.raises(KeyboardInterrupt):
        propose(session, task)
    again = propose(session, task)
    assert (again.tokens, again.claims) == (right.tokens, right.claims)
    drafter.close()


def test_numbers_that_are_none_are_raised(folder: Path, target: Target) -> None:
    values = np.ones(64, np.float32)
    values[3] = np.nan
    norm = {"output_norm.weight": TensorData("F32", (64,), values)}
    path = tiny_llama(folder / "nan.gguf", tensor_overrides=norm)
    drafter = target.drafter(path)
    for params in ALL:
        task = task_of(target, list(PROMPT), params)
        with pytest.raises(NumericError):
            propose(drafter.begin(task), task)
    drafter.close()


def test_states_are_kept_for_texts_that_begin_the_same(target: Target) -> None:
    drafter = target.drafter()
    counting = drafter.model.executable = Counting(drafter.model.executable)
    tokens = [3 + i % 200 for i in range(100)]
    task = task_of(target, tokens, GREEDY)
    session = drafter.begin(task)
    tree = propose(session, task)
    session.close()
    session.close()
    counting.rows.clear()
    longer = task_of(target, [*tokens, 7, 8], GREEDY)
    session = drafter.begin(longer)
    propose(session, longer)
    assert counting.rows[0] == 2  # the rest was read by the sequence before
    drafter.begin(longer).close()  # never asked
    assert tree.tokens
    drafter.close()
    drafter.close()


def test_two_executables_share_the_threads_of_the_process(paths: tuple[Path, Path]) -> None:
    tasks = Path("/proc/self/task")
    target = Target.load(paths[0], threads=3)
    target.plain(PROMPT, 3, GREEDY)
    before = len(list(tasks.iterdir()))
    drafter = target.drafter(paths[1], threads=3)
    target.decode(PROMPT, 20, GREEDY, drafter, CHAIN)
    assert len(list(tasks.iterdir())) == before
    drafter.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"draft_max": -1}, "draft_max is -1"),
        ({"draft_max": 256}, "draft_max is 256"),
        ({"draft_min": 5, "draft_max": 3}, "draft_min is 5"),
        ({"vocabulary": -1}, "draft vocabulary is -1"),
        ({"backend": "gpu"}, '"gpu" is unknown'),
    ],
)
def test_options_out_of_range(target: Target, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        target.drafter(**options)


def test_files_that_are_no_draft_models(target: Target, folder: Path) -> None:
    with pytest.raises(UsageError, match=r"missing\.gguf"):
        target.drafter(folder / "missing.gguf")
    other = tiny_llama(folder / "other.gguf", metadata_overrides={"general.architecture": "clip"})
    with pytest.raises(UnsupportedError, match=r"other\.gguf.*'clip'"):
        target.drafter(other)
    texts, types, _ = tiny_vocabulary(330)
    wrong = tiny_llama(
        folder / "wrong.gguf",
        metadata_overrides={
            "tokenizer.ggml.tokens": texts, "tokenizer.ggml.token_type": typed("[i32]", types),
        },
    )  # fmt: skip
    with pytest.raises((FormatError, UsageError), match=r"wrong\.gguf"):
        target.drafter(wrong)
