"""The native SuffixReader against its specification: the same nodes in the same order, claims equal
to the last bit, whatever the texts, their growth and the budgets."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from suffix_reference import ReferenceReader

from divine.backends.cpu import _native

Proposal = tuple[list[int], list[int], list[float]]

steps = st.lists(st.integers(0, 7), max_size=60)
budgets = st.lists(
    st.tuples(st.integers(0, 24), st.integers(0, 12), st.sampled_from([0.0, 0.0, 0.02, 0.1, 0.5])),
    min_size=1,
    max_size=5,
)


@st.composite
def texts(draw: st.DrawFn, most: int = 100) -> list[int]:
    """Few distinct tokens, so that everything recurs."""
    kinds = draw(st.sampled_from([1, 2, 3, 5, 20, 300]))
    return draw(st.lists(st.integers(0, kinds - 1), max_size=most))


@st.composite
def copies(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """A text, and a copy with a change that recurs, others that do not, and jumps."""
    source = random.Random(draw(st.integers(0, 2**32)))
    kinds = draw(st.sampled_from([2, 6, 30, 400]))
    text = source.choices(range(kinds), k=source.randrange(5, 100))
    old = source.choices(range(source.choice([kinds, 500])), k=source.randint(1, 5))
    new = source.choices(range(500), k=source.randint(0, 9))
    for _ in range(source.randrange(12)):
        at = source.randrange(len(text) + 1)
        text[at:at] = old
    if source.random() < 0.3:
        text += old[: source.randint(1, len(old))]
    changes, jumps = source.choice([0.6, 0.95]), source.choice([0.0, 0.01])
    copy: list[int] = []
    at = 0
    while at < len(text) and len(copy) < 250:
        chance = source.random()
        if text[at : at + len(old)] == old[: len(text) - at] and chance < changes:
            copy += new
            at += len(old)
        elif chance < jumps:
            at = source.randrange(len(text))
        elif chance < 0.02:
            copy += source.choices(range(500), k=source.randint(1, 30))
            at += source.choice([0, 0, 1, 5])
        else:
            copy.append(text[at])
            at += 1
    return text, [*copy, *source.choices(range(500), k=3)]


def both(
    text: Sequence[int] | None,
    sequence: list[int],
    sizes: Sequence[int],
    limits: Sequence[tuple[int, int, float]],
    *,
    start: int = 0,
    trust: int = 0,
) -> list[Proposal]:
    """Proposals while the sequence grows by `sizes`, then token by token; checked to be equal."""
    native = _native.SuffixReader(text, start, trust)
    reference = ReferenceReader(text, start, trust)
    grown, proposals = sequence[:start], []
    for index, size in enumerate([*sizes, *([1] * len(sequence))]):
        nodes, depth, row_price = limits[index % len(limits)]
        expected = reference.propose(grown, nodes, depth, row_price)
        assert native.propose(grown, nodes, depth, row_price) == expected
        proposals.append(expected)
        if len(grown) == len(sequence):
            break
        grown += sequence[len(grown) : len(grown) + size]
    return proposals


@given(texts(), steps, budgets)
def test_sequences_that_repeat_themselves(text: list[int], sizes: list[int], limits) -> None:
    both(None, text, sizes, limits)


@given(texts(60), texts(60), steps, budgets, st.integers(0, 12), st.integers(0, 9))
def test_another_text(
    text: list[int], sequence: list[int], sizes: list[int], limits, trust: int, start: int
) -> None:
    both(text, sequence, sizes, limits, start=min(start, len(sequence)), trust=trust)


@settings(max_examples=60, deadline=None)
@given(copies(), steps, budgets, st.sampled_from([0, 4]))
def test_copies_with_changes(
    pair: tuple[list[int], list[int]], sizes: list[int], limits, trust: int
) -> None:
    text, copy = pair
    both(text, [7, 8, 9, *copy], sizes, limits, start=3, trust=trust)
    both(None, [*text, *copy], [len(text), *sizes], limits)


def test_copies_are_proposed_with_their_changes() -> None:
    """So that the comparison above is one of trees that say something."""
    text, copy = list(range(200)), list(range(200))
    for at in range(10, 190, 20):
        text[at : at + 2], copy[at : at + 2] = [800, 801], [900, 901]
    proposals = both(text, copy, [], [(8, 4, 0.0)], trust=4)
    right = sum(900 in tokens[:3] for tokens, _, _ in proposals)
    assert right >= 8
    assert any(-1 in parents[1:] for _, parents, _ in proposals)  # there are branches


@pytest.mark.parametrize("gone", [1, 4, 5])
@pytest.mark.parametrize("size", [1, 7, 8, 9])
def test_changes_at_the_limits_of_what_is_remembered(gone: int, size: int) -> None:
    """Two that begin alike take turns, the second takes one token more, the same each time; at last
    the text ends within what they replace."""
    old = [700, 701, 702, 703, 704][:gone]
    ways = [[800, *range(first, first + size - 1)] for first in (810, 820)]
    text: list[int] = []
    copy: list[int] = []
    for index in range(9):
        part = range(20 * index, 20 * index + 12)
        text += [600, *part, *old]
        copy += [*([] if index and index % 2 == 0 else [600]), *part, *ways[index % 2]]
    for end in range(gone):
        tail = text[: len(text) - end]
        both(tail, [*copy, 900, 901], [], [(16, 8, 0.0)], trust=4)
        both(None, [*tail, 999, *copy, 900, 901], [len(tail)], [(16, 12, 0.0)])


@pytest.mark.parametrize("length", [1, 2, 127, 128, 129, 130, 5000])
def test_long_matches(length: int) -> None:
    """The claims of every length of a match, and beyond the longest that counts."""
    part = [token % 977 for token in range(length)]
    both(None, [*part, *part], [2 * length], [(20, 20, 0.0)])


def test_many_tokens_are_taken_in_at_once() -> None:
    """A long text in which grams recur at all distances, and one token repeated."""
    source = random.Random(3)
    mixed = [source.randrange(source.choice([3, 50, 30_000])) for _ in range(30_000)]
    for text in (mixed, [7] * 30_000):
        proposals = both(None, text, [len(text) - 3], [(16, 8, 0.0)])
        assert proposals[-1][0]
    largest = 2**31 - 1
    assert both(None, [largest, 0] * 9, [17], [(4, 4, 0.0)])[-1][0] == [largest, 0, largest, 0]
