"""The drafter "model": it proposes what its model says, follows the text, and never changes it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from draft_support import (
    ALL,
    CHAIN,
    GREEDY,
    NAMES,
    PENALIZED,
    PROMPT,
    SAMPLED,
    Counting,
    Target,
    first_chain,
    models,
    propose,
    task_of,
)

from divine.backends.base import Rows, Want
from divine.drafting import ROOT, Budget
from divine.sampling import SamplingParams
from tiny_models import tiny_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drafts")


@pytest.fixture(scope="module")
def paths(folder: Path) -> tuple[Path, Path]:
    return models(folder)


@pytest.fixture(scope="module")
def target(paths: tuple[Path, Path]) -> Target:
    return Target.load(paths[0])


@pytest.mark.parametrize("params", ALL, ids=NAMES)
def test_the_same_model_is_always_right(target: Target, params: SamplingParams) -> None:
    """Every pass accepts the whole first chain: the draft sees what the target will see."""
    drafter = target.drafter()
    plain = target.plain(PROMPT, 40, params)
    assert target.decode(PROMPT, 40, params, drafter, CHAIN) == plain
    for step in target.steps:
        chain = first_chain(step.tree)
        assert chain
        assert step.tokens[: len(chain)] == chain
    drafter.close()


@pytest.mark.parametrize("params", ALL, ids=NAMES)
@pytest.mark.parametrize("vocabulary", [0, 100])
def test_another_model_changes_no_text(
    target: Target, paths: tuple[Path, Path], params: SamplingParams, vocabulary: int
) -> None:
    drafter = target.drafter(paths[1], vocabulary=vocabulary)
    plain = target.plain(PROMPT, 40, params)
    assert target.decode(PROMPT, 40, params, drafter, CHAIN) == plain
    drafted = sum(len(step.tree) for step in target.steps)
    accepted = sum(len(step.nodes) for step in target.steps)
    assert 0 < accepted < drafted  # a model of its own, with rollbacks on the way
    drafter.close()


def test_proposals_are_what_the_model_continues_with(
    target: Target, paths: tuple[Path, Path]
) -> None:
    drafter = target.drafter(paths[1])
    alone = Target.load(paths[1])
    for params in ALL:
        task = task_of(target, list(PROMPT), params)
        tree = propose(drafter.begin(task), task)
        chain = first_chain(tree)
        assert chain == alone.plain(PROMPT, len(chain), params)
    drafter.close()


def test_greedy_claims_are_probabilities(target: Target) -> None:
    drafter = target.drafter()
    task = task_of(target, list(PROMPT), GREEDY)
    tree = propose(drafter.begin(task), task, Budget(nodes=4, depth=1))
    state = target.executable.new_state(16)
    logits = target.executable.run([state], Rows.chain(PROMPT), Want(logits=[6])).logits[0]
    odds = np.exp(logits.astype(np.float64))
    odds /= odds.sum()
    assert tree.tokens == np.argsort(-logits, kind="stable")[:4].tolist()
    assert tree.claims == pytest.approx(odds[tree.tokens].tolist(), rel=1e-4)
    assert tree.parents == [ROOT] * 4
    drafter.close()


@pytest.mark.parametrize("params", ALL, ids=NAMES)
def test_claims_do_not_depend_on_the_width(target: Target, params: SamplingParams) -> None:
    claims = []
    for width in (1, 3):
        drafter = target.drafter(width=width)
        task = task_of(target, list(PROMPT), params)
        claims.append(propose(drafter.begin(task), task, Budget(nodes=3, depth=1)).claims)
        drafter.close()
    assert claims[0] == claims[1][:1]
    assert claims[0][0] < 0.999


@pytest.mark.parametrize("params", ALL, ids=NAMES)
def test_branches_are_what_the_model_says_below_them(
    target: Target, params: SamplingParams
) -> None:
    """With its own model, each node with children has the model's choice as the first of them."""
    drafter = target.drafter()
    task = task_of(target, list(PROMPT), params)
    tree = propose(drafter.begin(task), task, Budget(nodes=24, depth=4))
    inner = sorted(set(tree.parents))
    assert len(inner) > 4  # there is more than the chain
    for node in inner:
        path: list[int] = []
        above = node
        while above != ROOT:
            path.append(tree.tokens[above])
            above = tree.parents[above]
        text = [*PROMPT, *path[::-1]]
        state = target.executable.new_state(64)
        last = len(text) - 1
        logits = target.executable.run([state], Rows.chain(text), Want(logits=[last])).logits[0]
        histories = task.sampler.start(PROMPT)
        for token in path[::-1]:
            histories = task.sampler.advance(histories, token)
        choice = task.sampler.choose(histories, logits, len(text))
        assert tree.tokens[tree.parents.index(node)] == choice
    drafter.close()


def test_prices_end_a_draft(target: Target) -> None:
    drafter = target.drafter()
    task = task_of(target, list(PROMPT), GREEDY)
    session = drafter.begin(task)
    everything = propose(session, task, Budget(nodes=8, depth=8))
    assert len(everything) == 8
    assert len(propose(session, task, Budget(nodes=8, depth=8, row_price=1.1))) == 0
    one = propose(session, task, Budget(nodes=8, depth=8, time_price=1e6))
    assert set(one.depths()) == {1}  # the first level is paid for before it is known
    doubt = Budget(nodes=8, depth=8, row_price=0.3, calibrate=lambda depth, claim: 0.5)
    assert set(propose(session, task, doubt).depths()) == {1}
    assert len(propose(session, task, Budget(nodes=0, depth=8))) == 0
    assert len(propose(session, task, Budget(nodes=8, depth=0))) == 0
    drafter.close()


def test_gaps_are_read_when_something_is_proposed(target: Target, paths: tuple[Path, Path]) -> None:
    """Tokens may come while nobody asks; wrong guesses are forgotten; the cost says how many."""
    drafter = target.drafter(paths[1], width=1)
    fresh = target.drafter(paths[1], width=1)
    rng = np.random.default_rng(0)
    tokens = [int(t) for t in rng.integers(3, 300, 30)]
    task = task_of(target, tokens, PENALIZED)
    session = drafter.begin(task)
    for grown in (1, 9, 1, 2, 40, 1):
        tree = propose(session, task)
        again = propose(session, task)
        other = propose(fresh.begin(task), task)
        assert (tree.tokens, tree.parents) == (other.tokens, other.parents)
        assert (again.tokens, again.parents) == (tree.tokens, tree.parents)
        chain = first_chain(tree)[: grown // 2]  # some guesses turn out right, the rest wrong
        tokens += [*chain, *(int(t) for t in rng.integers(3, 300, grown - len(chain)))]
    drafter.close()
    fresh.close()


def test_nothing_is_read_twice(target: Target) -> None:
    drafter = target.drafter(width=1)
    counting = drafter.model.executable = Counting(drafter.model.executable)
    tokens = list(PROMPT)
    task = task_of(target, tokens, GREEDY)
    session = drafter.begin(task)
    assert counting.rows == []
    chain = Budget(nodes=4, depth=4)
    tree = propose(session, task, chain)
    assert counting.rows == [7, 1, 1, 1]
    tokens += [*first_chain(tree), 9]  # all right: the last guess and what followed are unread
    propose(session, task, chain)
    assert counting.rows[4:] == [2, 1, 1, 1]
    tree = propose(session, task, chain)
    assert counting.rows[8:] == [1, 1, 1, 1]
    tokens += [first_chain(tree)[0], 8]  # the first is right and was read, 8 came instead
    propose(session, task, chain)
    assert counting.rows[12:] == [1, 1, 1, 1]
    drafter.close()


def test_cost_counts_what_is_missing(target: Target) -> None:
    drafter = target.drafter()
    tokens = [3 + i % 200 for i in range(60)]
    task = task_of(target, tokens, GREEDY)
    session = drafter.begin(task)
    times = drafter.model.times
    for _ in range(40):
        times.observe(1, 10.0)
        times.observe(60, 120.0)
    assert session.cost_ms(1) == pytest.approx(120, rel=0.01)
    assert session.cost_ms(4) == pytest.approx(150, rel=0.01)
    propose(session, task)
    for _ in range(40):
        times.observe(1, 10.0)
        times.observe(2, 12.0)
    tokens += [5]
    assert session.cost_ms(3) == pytest.approx(30, rel=0.01)
    tokens += [5]
    assert session.cost_ms(1) == pytest.approx(12, rel=0.01)
    drafter.close()


def test_cost_has_a_prior() -> None:
    from divine.drafting.drafters.reader import PassTimes

    times = PassTimes({n: 30.0 + 4 * n for n in range(1, 65)})
    assert times.estimate(1) == pytest.approx(34)
    assert times.estimate(4) < 2 * times.estimate(1)
    assert times.estimate(512) > 50 * times.estimate(1)
    assert times.estimate(0) == 0
    times.observe(1, 7.0)
    assert times.estimate(1) == 7.0
    assert 7.0 < times.estimate(2) < 14.0


@pytest.mark.parametrize("context", [8, 9, 10, 12])
def test_drafts_shrink_to_the_context(target: Target, context: int) -> None:
    drafter = target.drafter(width=1)
    task = task_of(target, list(PROMPT), GREEDY, context=context)
    session = drafter.begin(task)
    depths = propose(session, task, Budget(nodes=16, depth=16, row_price=1e-9)).depths()
    assert max(depths, default=0) == context - len(PROMPT)
    task = task_of(target, list(PROMPT), GREEDY, context=len(PROMPT))
    assert len(propose(drafter.begin(task), task)) == 0
    assert drafter.begin(task).cost_ms(4) == math.inf
    drafter.close()


def test_a_draft_model_of_a_shorter_context(target: Target, folder: Path) -> None:
    short = tiny_llama(folder / "short.gguf", seed=1, context=16)
    drafter = target.drafter(short)
    plain = target.plain(PROMPT, 40, SAMPLED)
    assert target.decode(PROMPT, 40, SAMPLED, drafter, CHAIN) == plain
    sizes = [len(step.tree) for step in target.steps]
    assert sizes[0] > 0
    assert sizes[-1] == 0
    drafter.close()


def test_draft_max_and_min(target: Target) -> None:
    task = task_of(target, list(PROMPT), GREEDY)
    large = Budget(nodes=64, depth=64)
    for most in (0, 1, 3):
        drafter = target.drafter(draft_max=most)
        assert len(propose(drafter.begin(task), task, large)) == most
        drafter.close()
    drafter = target.drafter(draft_min=5)
    assert len(propose(drafter.begin(task), task, Budget(nodes=4, depth=4))) == 0
    assert len(propose(drafter.begin(task), task, Budget(nodes=5, depth=5))) == 5
    drafter.close()


def test_nothing_follows_an_end_token(target: Target) -> None:
    drafter = target.drafter(width=1)
    task = task_of(target, list(PROMPT), GREEDY)
    free = propose(drafter.begin(task), task)
    end = first_chain(free)[1]
    drafter.ends = frozenset([end])
    tree = propose(drafter.begin(task), task)
    assert tree.tokens == first_chain(free)[:2]
    drafter.close()
