"""The n-gram drafter against brute force, at its edges, and on what it is for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from suffix_reference import SuffixIndex, read_on

from divine.drafting import ROOT, Budget, DraftTask, NgramDrafter, walk
from divine.drafting.drafters.suffixes import SuffixSession
from divine.sampling import Sampler, SamplingParams

VOCABULARY = 1000
LATEST_SINGLES, LATEST_TRIPLES = 8, 16  # places of the last token and the last three looked at
FIRST_LOOK = 32

texts = st.integers(1, 6).flatmap(lambda kinds: st.lists(st.integers(0, kinds - 1), max_size=80))
budgets = st.builds(Budget, st.integers(0, 20), st.integers(0, 9))


def session_of(tokens: list[int], prompt: int = 0) -> SuffixSession:
    sampler = Sampler(SamplingParams(temperature=0.0), VOCABULARY)
    return NgramDrafter().begin(DraftTask(tokens, prompt, sampler, 10**6))


def indexed(text: Sequence[int]) -> SuffixIndex:
    index = SuffixIndex(text)
    index.extend()
    return index


def match(text: Sequence[int], place: int, query: Sequence[int]) -> int:
    """How many tokens before `place` equal the query's last ones."""
    length = 0
    while (
        length < min(place, len(query))
        and text[place - 1 - length] == query[len(query) - 1 - length]
    ):
        length += 1
    return length


def passes(prompt: list[int], answer: list[int], budget: Budget) -> int:
    """Passes in which an answer is decoded with the drafter."""
    tokens = list(prompt)
    session = session_of(tokens, len(prompt))
    count = 0
    while len(tokens) < len(prompt) + len(answer):
        tree = session.propose((), budget)
        tree.check(VOCABULARY)
        depths = tree.depths()
        assert len(tree) <= budget.nodes
        assert max(depths, default=0) <= budget.depth
        base = len(tokens) - len(prompt)

        def choose(node: int, base: int = base, depths: list[int] = depths) -> int:
            at = base + (0 if node == ROOT else depths[node])
            return answer[at] if at < len(answer) else VOCABULARY

        for token in walk(tree, choose).tokens:
            if token != VOCABULARY:
                tokens.append(token)
        count += 1
    assert tokens == prompt + answer
    return count


@given(texts)
@example([0] * 60)
def test_matches_are_those_of_brute_force(text: list[int]) -> None:
    places = {place: match(text, place, text) for place in range(1, len(text))}
    found = indexed(text).find(text)
    for place, length in found.items():
        assert 1 <= length == min(places[place], FIRST_LOOK)
    singles = sum(length >= 1 for length in places.values())
    triples = sum(length >= 3 for length in places.values())
    longest = max(places.values(), default=0)
    if singles <= LATEST_SINGLES or (longest >= 3 and triples <= LATEST_TRIPLES):
        assert max(found.values(), default=0) == min(longest, FIRST_LOOK)
    if singles:
        assert found


@given(texts, st.lists(st.integers(1, 7)))
def test_an_index_that_grew_finds_what_one_built_at_once_does(
    text: list[int], steps: list[int]
) -> None:
    grown: list[int] = []
    index = SuffixIndex(grown)
    for step in [*steps, len(text)]:
        grown.extend(text[len(grown) : len(grown) + step])
        index.extend()
        found = index.find(grown)
        at_once = indexed(grown).find(grown)
        capped = {place: min(length, FIRST_LOOK) for place, length in found.items()}
        assert capped == at_once or max(found.values()) >= FIRST_LOOK
        for place, length in found.items():
            assert length <= match(grown, place, grown)


def test_a_match_that_goes_on_has_no_limit() -> None:
    copy = list(range(100))
    tokens = list(copy)
    index = SuffixIndex(tokens)
    for token in copy:
        tokens.append(token)
        index.extend()
        found = index.find(tokens)
    assert found == {100: 100}


@given(texts, budgets)
def test_trees_are_well_formed_and_within_the_budget(text: list[int], budget: Budget) -> None:
    tree = session_of(text).propose((), budget)
    tree.check(max(text, default=0) + 1)
    assert len(tree) <= budget.nodes
    assert max(tree.depths(), default=0) <= budget.depth


@given(texts, st.integers(0, 20), st.integers(1, 9))
def test_likeliest_paths_come_first(text: list[int], nodes: int, depth: int) -> None:
    """So a smaller tree is the beginning of a larger one, and nothing likelier was left out."""
    places = indexed(text).find(text)
    tree = read_on(text, places, Budget(64, depth), loop=True)
    paths: list[float] = []
    for parent, claim in zip(tree.parents, tree.claims, strict=True):
        paths.append(claim * (1.0 if parent == ROOT else paths[parent]))
    assert all(later <= path * (1 + 1e-12) for path, later in pairwise(paths))
    smaller = read_on(text, places, Budget(nodes, depth), loop=True)
    assert smaller.tokens == tree.tokens[:nodes]
    assert smaller.parents == tree.parents[:nodes]


@given(texts)
def test_claims_of_siblings_sum_to_less_than_one(text: list[int]) -> None:
    tree = session_of(text).propose((), Budget(30, 6))
    sums: dict[int, float] = {}
    for parent, claim in zip(tree.parents, tree.claims, strict=True):
        sums[parent] = sums.get(parent, 0.0) + claim
    assert all(0 < total < 1 for total in sums.values())


def test_siblings_by_count_then_by_recency() -> None:
    phrase = [1, 2, 3]
    text = [*phrase, 10, 50, *phrase, 10, 51, *phrase, 11, 52, *phrase]
    tree = session_of(text).propose((), Budget(2, 1))
    assert tree.tokens == [10, 11]
    assert tree.claims[0] > tree.claims[1]
    tree = session_of([*phrase, 10, 50, *phrase, 11, 51, *phrase]).propose((), Budget(2, 1))
    assert tree.tokens == [11, 10]


def test_shorter_matches_come_after_longer_ones() -> None:
    tree = session_of([1, 2, 3, 10, 50, 3, 20, 51, 1, 2, 3]).propose((), Budget(2, 1))
    assert tree.tokens == [10, 20]
    assert tree.claims[0] > 2 * tree.claims[1]


def test_longer_matches_and_agreement_claim_more() -> None:
    def claim(text: list[int]) -> float:
        return session_of(text).propose((), Budget(1, 1)).claims[0]

    claims = [claim([*range(n), 99, *range(n)]) for n in (1, 2, 4, 8, 16, 32)]
    assert claims == sorted(claims)
    assert claims[0] < 0.3
    assert claims[-1] > 0.95
    assert claim([1, 99, 2, 1, 99, 3, 1]) > claim([1, 99, 3, 1])


def test_branches_lie_where_occurrences_part() -> None:
    phrase = list(range(10))
    text = [*phrase, 20, 21, 22, 50, *phrase, 20, 31, 32, 51, *phrase]
    tree = session_of(text).propose((), Budget(5, 3))
    assert tree.tokens[0] == 20
    assert [tree.tokens[i] for i in range(5) if tree.parents[i] == 0] == [31, 21]
    assert {tree.tokens[i] for i in range(5) if tree.depths()[i] == 3} == {22, 32}


@pytest.mark.parametrize("text", [[], [5], [5, 6], list(range(500))])
def test_silent_where_nothing_recurs(text: list[int]) -> None:
    assert len(session_of(text).propose((), Budget(16, 8))) == 0


def test_two_equal_tokens_are_enough() -> None:
    assert session_of([5, 5]).propose((), Budget(4, 4)).tokens == [5, 5, 5, 5]


@pytest.mark.parametrize("period", [1, 2, 3, 7])
def test_loops_go_on_past_the_end_of_the_text(period: int) -> None:
    text = [50, 51, *(i % period for i in range(1, 2 * period + 20))]
    tree = session_of(text).propose((), Budget(12, 12))
    expected = [i % period for i in range(2 * period + 20, 2 * period + 32)]
    assert tree.tokens == expected
    assert tree.parents == list(range(-1, 11))


def test_loops_with_branches_go_on_past_the_end_of_the_text() -> None:
    """Both places read the same up to the text's end, and on from where each began."""
    tree = session_of([50, 1, 2, 1, 2, 1, 2]).propose((), Budget(12, 12))
    assert tree.tokens == [1, 2] * 6


def test_a_prompt_that_ends_where_its_copy_ends() -> None:
    phrase = list(range(20))
    tree = session_of([50, *phrase, *phrase]).propose((), Budget(30, 30))
    assert tree.tokens == phrase + phrase[:10]


def test_work_is_bounded_in_one_token_repeated() -> None:
    tokens = [7] * 30_000
    index = indexed(tokens)
    for _ in range(3):
        assert len(index.find(tokens)) <= LATEST_TRIPLES + LATEST_SINGLES
        tokens.append(7)
        index.extend()
    assert passes([7] * 100, [7] * 500, Budget(16, 8)) < 70


def test_copies_with_changes_are_copied() -> None:
    """A 400-token text given back with every 25th token another: few passes beyond the changes."""
    prompt = [(i * i * 7 + i * 31) % 401 for i in range(400)]
    answer = [900 + i // 25 if i % 25 == 12 else token for i, token in enumerate(prompt)]
    assert passes([*prompt, 998], answer, Budget(16, 8)) <= 16 * 4 + 4


def test_the_task_is_left_as_it_is() -> None:
    tokens = [1, 2, 3, 1, 2]
    session = session_of(tokens)
    session.propose((), Budget(8, 8))
    session.observe({})
    session.close()
    assert tokens == [1, 2, 3, 1, 2]
    assert session.cost_ms(8) == 0.0
