"""Merging: scan, heap, rounds of NumPy, HF `tokenizers` and the definition give the same pieces."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.models import BPE

from divine.text import merge
from divine.text.merge import PairMerger

WORDS = st.lists(st.text("abc", min_size=1, max_size=30), min_size=1, max_size=8)


def by_definition(word: str, ranks: dict[str, int], joint: str) -> list[str]:
    """Join the pair of lowest rank, leftmost first, until none is left."""
    pieces = list(word)
    while True:
        found = [
            (ranks[key], i)
            for i in range(len(pieces) - 1)
            if (key := pieces[i] + joint + pieces[i + 1]) in ranks
        ]
        if not found:
            return pieces
        _, i = min(found)
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]


@st.composite
def merge_lists(draw: st.DrawFn) -> dict[str, int]:
    """Merges in any order, also such as no training gives; all their parts are tokens."""
    pieces = ["a", "b", "c"]
    merges = {}
    for _ in range(draw(st.integers(1, 12))):
        left, right = draw(st.sampled_from(pieces)), draw(st.sampled_from(pieces))
        if len(left + right) <= 8:
            merges[f"{left} {right}"] = 0
            pieces.append(left + right)
    order = draw(st.permutations(list(merges)))
    return {key: rank for rank, key in enumerate(order)}


def check_all_ways(words: list[str], ranks: dict[str, int], joint: str) -> None:
    texts = sorted({key.replace(" ", "") for key in ranks} | set("abc"))
    ids = {text: id_ for id_, text in enumerate(texts)}
    expected = [ids[piece] for word in words for piece in by_definition(word, ranks, joint)]
    found = []
    for short, bulk in ((1 << 30, 1 << 30), (0, 1 << 30), (0, 1)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(merge, "SHORT_LENGTH", short)
            patch.setattr(merge, "BULK_LENGTH", bulk)
            merger = PairMerger(ids, ranks, joint, lambda piece: [-1])
            found.append(merger.encode(words))
    assert found == [expected] * 3


@given(WORDS, merge_lists())
@settings(max_examples=200, deadline=None)
def test_merge_lists(words: list[str], ranks: dict[str, int]) -> None:
    check_all_ways(words, ranks, " ")


@given(WORDS, st.dictionaries(st.text("abc", min_size=2, max_size=5), st.integers(0, 6)))
@settings(max_examples=200, deadline=None)
def test_scores_with_ties(words: list[str], ranks: dict[str, int]) -> None:
    check_all_ways(words, ranks, "")


@given(WORDS, merge_lists())
@settings(max_examples=100, deadline=None)
def test_merge_lists_as_huggingface_merges_them(words: list[str], ranks: dict[str, int]) -> None:
    texts = sorted({key.replace(" ", "") for key in ranks} | set("abc"))
    ids = {text: id_ for id_, text in enumerate(texts)}
    merges = [tuple(key.split(" ")) for key in sorted(ranks, key=ranks.__getitem__)]
    oracle = BPE(vocab=ids, merges=merges)
    merger = PairMerger(ids, ranks, " ", lambda piece: [-1])
    for word in words:
        assert merger.encode([word]) == [token.id for token in oracle.tokenize(word)]


def test_a_long_run_is_merged_in_bulk() -> None:
    ranks = {"a a": 0, "aa aa": 1, "aaaa aaaa": 2}
    ids = {"a": 0, "aa": 1, "aaaa": 2, "aaaaaaaa": 3}
    merger = PairMerger(ids, ranks, " ", lambda piece: [-1])
    assert merger.encode(["a" * 200_007]) == [3] * 25_000 + [2, 1, 0]


def test_the_cache_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "CACHED_WORDS", 10)
    merger = PairMerger({"a": 0}, {}, " ", lambda piece: [-1])
    for length in range(1, 60):
        assert merger.encode(["a" * length]) == [0] * length
    assert len(merger._cache) <= 10
