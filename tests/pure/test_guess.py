"""The caller's own guess: followed while it is right, found again after every kind of change."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from divine.drafting import ROOT, Budget, DraftTask, DraftTree, TextDrafter
from divine.drafting.drafters.suffixes import SuffixSession
from divine.sampling import Sampler, SamplingParams

VOCABULARY = 5000
PROMPT = [4990, 4991, 4992]
BUDGET = Budget(nodes=16, depth=8)
PROSE = random.Random(5).choices(range(300), k=600)  # tokens recur, longer parts hardly do

short = st.lists(st.integers(0, 4), max_size=60)


def session_of(tokens: list[int], guess: list[int]) -> SuffixSession:
    sampler = Sampler(SamplingParams(temperature=0.0), VOCABULARY)
    return TextDrafter().begin(DraftTask(tokens, len(PROMPT), sampler, 10**6, guess))


def proposals(guess: list[int], answer: list[int]) -> list[DraftTree]:
    """What is proposed at each position of an answer that comes token by token."""
    tokens = list(PROMPT)
    session = session_of(tokens, guess)
    trees = []
    for token in answer:
        trees.append(session.propose((), BUDGET))
        trees[-1].check(VOCABULARY)
        tokens.append(token)
    return trees


def foreseen(tree: DraftTree, token: int) -> bool:
    """The token is among the children of the root."""
    return tree.child(ROOT, token) is not None


@given(short, short, st.lists(st.integers(1, 5)), st.integers(0, 9), st.integers(0, 9))
def test_trees_are_well_formed_and_within_the_budget(
    guess: list[int], answer: list[int], steps: list[int], nodes: int, depth: int
) -> None:
    tokens = list(PROMPT)
    session = session_of(tokens, guess)
    for step in [*steps, 1]:
        tree = session.propose((), Budget(nodes, depth))
        tree.check(VOCABULARY)
        assert len(tree) <= nodes
        assert max(tree.depths(), default=0) <= depth
        taken = len(tokens) - len(PROMPT)
        tokens += answer[taken : taken + step]


def test_a_right_guess_is_followed_from_its_first_token() -> None:
    trees = proposals(PROSE, PROSE)
    for at, tree in enumerate(trees):
        assert tree.tokens[:8] == PROSE[at : at + 8]
    assert trees[0].claims[0] > 0.5
    assert all(tree.claims[0] > 0.9 for tree in trees[15:])


def test_nothing_beyond_the_guess() -> None:
    tokens = PROMPT + PROSE[:10]
    assert session_of(tokens, PROSE[:12]).propose((), BUDGET).tokens == PROSE[10:12]
    tokens = PROMPT + PROSE[:12]
    assert not foreseen(session_of(tokens, PROSE[:12]).propose((), BUDGET), PROSE[12])


@pytest.mark.parametrize("guess", [[], [7]])
def test_hardly_a_guess(guess: list[int]) -> None:
    trees = proposals(guess, [7, 8, 9])
    assert [tree.tokens for tree in trees] == [guess, [], []]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 10])
def test_replaced_tokens(count: int) -> None:
    """As many others instead: the place after them is foreseen, and the next surely."""
    answer = PROSE[:100] + [4000 + i for i in range(count)] + PROSE[100 + count : 200]
    trees = proposals(PROSE, answer)
    assert trees[100].claims[0] > 0.9  # in step until the change
    assert max(tree.claims[0] for tree in trees[101 : 101 + count]) < 0.5
    assert all(foreseen(trees[at], answer[at]) for at in range(100 + count, len(answer)))
    assert all(trees[at].tokens[0] == answer[at] for at in range(103 + count, len(answer)))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 10, 20])
def test_inserted_tokens(count: int) -> None:
    answer = PROSE[:100] + [4000 + i for i in range(count)] + PROSE[100:200]
    trees = proposals(PROSE, answer)
    assert all(foreseen(trees[at], answer[at]) for at in range(100 + count, len(answer)))
    assert all(trees[at].tokens[0] == answer[at] for at in range(103 + count, len(answer)))
    back = trees[100 + count].child(ROOT, PROSE[100])
    assert back is not None
    assert 0 < trees[100 + count].claims[back] < 0.5


@pytest.mark.parametrize("new", [[900], [900, 901, 902]])
@pytest.mark.parametrize("gone", [1, 2])
def test_a_change_that_recurs_is_expected(gone: int, new: list[int]) -> None:
    """As a name that is changed everywhere: from the second time on, and what follows it too."""
    text = list(range(300))
    old = [800, 801][:gone]
    guess, answer, starts = [], [], []
    for at in range(0, 300, 30):
        guess += [*text[at : at + 30], *old]
        answer += text[at : at + 30]
        starts.append(len(answer))
        answer += new
    trees = proposals(guess, answer)
    for start in starts[1:]:
        path, node = [*new, *answer[start + len(new) :]][: BUDGET.depth], ROOT
        for token in path:
            child = trees[start].child(node, token)
            assert child is not None
            node = child
        end = min(start + len(new) + 1, len(answer))
        for at in range(start + 1, end):  # the place is kept while the change is being made
            assert foreseen(trees[at], answer[at]), at


@pytest.mark.parametrize("rest", [[], [700], [700, 701]])
def test_a_change_at_the_end_of_the_guess(rest: list[int]) -> None:
    """More tokens were left out elsewhere than the guess has left."""
    text, old = list(range(60)), [800, 801, 802]
    guess = [*text[:20], *old, *text[20:40], *old, *text[40:], old[0]]
    answer = [*text[:20], 900, 901, *text[20:40], 900, 901, *text[40:], 900, 901, *rest]
    trees = proposals(guess, answer)
    assert foreseen(trees[64], 900)
    assert foreseen(trees[65], 901)


def test_a_change_that_is_not_made_any_more_is_forgotten() -> None:
    text = list(range(500))
    guess, answer, starts = [], [], []
    for index, at in enumerate(range(0, 500, 25)):
        guess += [*text[at : at + 25], 800]
        answer += text[at : at + 25]
        starts.append(len(answer))
        answer.append(900 if index < 3 else 800)
    trees = proposals(guess, answer)
    first = [trees[start].tokens[0] for start in starts]
    assert first[1:5] == [800, 900, 900, 900]  # a single change may have been the only one
    assert first[-1] == 800
    assert foreseen(trees[starts[-1]], 900)


def test_one_change_after_another() -> None:
    answer = [*PROSE[:100], 4000, 4001, *PROSE[100:160], 4002, 4003, *PROSE[160:200]]
    trees = proposals(PROSE, answer)
    assert foreseen(trees[102], PROSE[100])
    assert foreseen(trees[164], PROSE[160])


def test_silent_when_the_place_is_lost() -> None:
    answer = PROSE[:100] + [4000 + i for i in range(200)]
    trees = proposals(PROSE, answer)
    assert all(len(tree) > 0 for tree in trees[:110])
    assert all(len(tree) == 0 for tree in trees[150:])


@pytest.mark.parametrize("count", [1, 2, 3, 5, 10, 20])
def test_deleted_tokens(count: int) -> None:
    """The first token after the gap cannot be known; the one after it is."""
    answer = PROSE[:100] + PROSE[100 + count : 200]
    trees = proposals(PROSE, answer)
    assert all(foreseen(trees[at], answer[at]) for at in range(101, len(answer)))
    assert all(trees[at].tokens[0] == answer[at] for at in range(103, len(answer)))


@pytest.mark.parametrize(("gone", "new"), [(200, 0), (0, 200), (150, 200), (200, 37)])
def test_long_stretches(gone: int, new: int) -> None:
    answer = PROSE[:100] + [4000 + i for i in range(new)] + PROSE[100 + gone : 500]
    trees = proposals(PROSE, answer)
    assert all(foreseen(trees[at], answer[at]) for at in range(103 + new, len(answer)))
    assert all(trees[at].tokens[0] == answer[at] for at in range(106 + new, len(answer)))


def test_parts_in_another_order() -> None:
    answer = PROSE[300:400] + PROSE[100:200] + PROSE[400:500]
    trees = proposals(PROSE, answer)
    for start in (0, 100, 200):
        assert all(trees[at].tokens[0] == answer[at] for at in range(start + 6, start + 100))


@pytest.mark.parametrize("start", [[4000], [4000, 4001, 4002], [4000, PROSE[1]]])
def test_an_answer_that_begins_otherwise(start: list[int]) -> None:
    """As with a space in its first token, or a sentence before what was guessed."""
    rest = PROSE[2:50] if len(start) == 2 else PROSE[1:50]
    answer = start + rest
    trees = proposals(PROSE, answer)
    assert foreseen(trees[0], PROSE[0])
    assert all(trees[at].tokens[0] == answer[at] for at in range(len(start) + 3, len(answer)))


def test_the_nearer_of_equal_matches_comes_first() -> None:
    """A line that recurs all over the guess, after a change just before one of them."""
    line = [1, 2, 3, 4]
    guess = [token for i in range(40) for token in (*line, 100 + i)]
    answer = [*guess[:50], 4000, *guess[51:60]]
    trees = proposals(guess, answer)
    assert trees[54].tokens[0] == guess[54] == 110


def test_the_prompt_is_no_part_of_the_answer() -> None:
    """A match does not reach back over the answer's first token."""
    tokens = [*PROMPT, 1]
    repeated = session_of(tokens, [9, *PROMPT, 1, 2]).propose((), BUDGET)
    other = session_of(tokens, [9, 4000, 4001, 4002, 1, 2]).propose((), BUDGET)
    assert repeated.claims[0] == other.claims[0]
    assert repeated.tokens[0] == other.tokens[0] == 2


def test_the_task_is_left_as_it_is() -> None:
    tokens = [*PROMPT, *PROSE[:5]]
    session = session_of(tokens, PROSE)
    session.propose((), BUDGET)
    session.observe({})
    session.close()
    assert tokens == [*PROMPT, *PROSE[:5]]
    assert session.cost_ms(8) == 0.0
