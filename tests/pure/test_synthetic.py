"""The synthetic drafter: as right as it is told to be, the same again, silent once it is lost."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from divine.drafting import Budget, DraftTask, SyntheticDrafter
from divine.errors import UsageError
from divine.sampling import Sampler, SamplingParams

VOCABULARY = 50
PROMPT = [7, 8, 9]


def task_of(tokens: list[int], guess: list[int], seed: int = 1) -> DraftTask:
    sampler = Sampler(SamplingParams(temperature=0.0, seed=seed), VOCABULARY)
    return DraftTask(tokens, len(PROMPT), sampler, 10**6, guess)


def proposals(probability: float, answer: list[int], seed: int = 1) -> list[int]:
    """The first token proposed at each position of the answer."""
    tokens = list(PROMPT)
    session = SyntheticDrafter(probability).begin(task_of(tokens, answer, seed))
    first = []
    for token in answer:
        tree = session.propose((), Budget(nodes=1, depth=1))
        tree.check(VOCABULARY)
        first.append(tree.tokens[0])
        tokens.append(token)
    return first


@given(
    st.lists(st.integers(0, VOCABULARY - 1)),
    st.floats(0, 1),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(0, 2**64 - 1),
)
def test_trees_are_chains_within_the_budget_and_claim_what_they_are(
    answer: list[int], probability: float, nodes: int, depth: int, seed: int
) -> None:
    session = SyntheticDrafter(probability).begin(task_of(list(PROMPT), answer, seed))
    tree = session.propose((), Budget(nodes, depth))
    tree.check(VOCABULARY)
    assert len(tree) == min(nodes, depth, len(answer))
    assert tree.parents == list(range(-1, len(tree) - 1))
    assert tree.claims == [probability] * len(tree)


def test_certain_and_impossible() -> None:
    answer = [0, 1, 2, VOCABULARY - 1, 0]
    assert proposals(1.0, answer) == answer
    assert all(a != b for a, b in zip(proposals(0.0, answer), answer, strict=True))


@pytest.mark.parametrize("probability", [0.25, 0.8])
def test_right_as_often_as_told(probability: float) -> None:
    answer = [i * i % VOCABULARY for i in range(4000)]
    right = sum(a == b for a, b in zip(proposals(probability, answer), answer, strict=True))
    deviation = math.sqrt(probability * (1 - probability) / len(answer))
    assert abs(right / len(answer) - probability) < 4 * deviation


def test_a_position_is_decided_once() -> None:
    """Whatever the root and the run: measurements repeat. Another seed decides otherwise."""
    answer = [i % VOCABULARY for i in range(200)]
    first = proposals(0.5, answer)
    assert proposals(0.5, answer) == first
    assert proposals(0.5, answer, seed=2) != first
    tokens = PROMPT + answer[:40]
    session = SyntheticDrafter(0.5).begin(task_of(tokens, answer))
    assert session.propose((), Budget(64, 16)).tokens == first[40:56]


def test_silent_after_a_departure_and_at_the_end() -> None:
    answer = [1, 2, 3, 4]
    tokens = list(PROMPT)
    session = SyntheticDrafter(1.0).begin(task_of(tokens, answer))
    tokens += [1, 2]
    assert session.propose((), Budget(8, 8)).tokens == [3, 4]
    tokens += [3, 4]
    assert len(session.propose((), Budget(8, 8))) == 0
    tokens += [5]
    assert len(session.propose((), Budget(8, 8))) == 0

    tokens = list(PROMPT)
    session = SyntheticDrafter(1.0).begin(task_of(tokens, answer))
    tokens += [1, 9]
    assert len(session.propose((), Budget(8, 8))) == 0
    tokens += [3]
    assert len(session.propose((), Budget(8, 8))) == 0


def test_without_a_guess_there_is_nothing() -> None:
    session = SyntheticDrafter(0.5).begin(task_of(list(PROMPT), []))
    assert len(session.propose((), Budget(8, 8))) == 0


@pytest.mark.parametrize("probability", [-0.1, 1.1, math.nan, math.inf])
def test_no_probability(probability: float) -> None:
    with pytest.raises(UsageError, match=r"--draft synthetic:\S+ has P .* from 0 to 1"):
        SyntheticDrafter.from_name(f"synthetic:{probability}")
