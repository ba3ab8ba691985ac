"""Merging: the native code, HF `tokenizers` and the definition give the same tokens."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.models import BPE

from divine.backends.cpu._native import Merger

# One, two, three and four bytes of UTF-8.
LETTERS = "a\u00e9\u20ac\U0001f600"
WORDS = st.lists(st.text(LETTERS, min_size=1, max_size=30), min_size=1, max_size=8)


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


def packed(strings: Sequence[str]) -> bytes:
    """As GGUF writes them: each after its length."""
    return b"".join(struct.pack("<Q", len(s.encode())) + s.encode() for s in strings)


def merger(texts: list[str], *, merges: Sequence[str] | bytes = (), **rules: Any) -> Merger:
    plain: dict[str, Any] = {"ranks": [], "barred": [], "letters": [], "wholes": []}
    plain |= {"bytes": [], "unknown": -1}
    plain["merges"] = merges if isinstance(merges, bytes) else packed(merges)
    return Merger(texts, **{**plain, **rules})


def tokens(made: Merger, *words: str) -> list[int]:
    ids, missing = made.encode(list(words))
    assert missing == b""
    return ids


@st.composite
def merge_lists(draw: st.DrawFn) -> list[str]:
    """Merges in any order, also such as no training gives; all their parts are tokens."""
    pieces = list(LETTERS)
    merges = set()
    for _ in range(draw(st.integers(1, 12))):
        left, right = draw(st.sampled_from(pieces)), draw(st.sampled_from(pieces))
        if len(left + right) <= 8:
            merges.add(f"{left} {right}")
            pieces.append(left + right)
    return draw(st.permutations(sorted(merges)))


def texts_of(keys: list[str]) -> list[str]:
    return sorted({key.replace(" ", "") for key in keys} | set(LETTERS))


@given(WORDS, merge_lists())
@settings(max_examples=300, deadline=None)
def test_merge_lists(words: list[str], merges: list[str]) -> None:
    texts = texts_of(merges)
    ranks = {merge: rank for rank, merge in enumerate(merges)}
    expected = [texts.index(piece) for word in words for piece in by_definition(word, ranks, " ")]
    assert tokens(merger(texts, merges=merges), *words) == expected
    ids = {text: id_ for id_, text in enumerate(texts)}
    oracle = BPE(vocab=ids, merges=[(left, right) for left, right in map(str.split, merges)])
    assert [token.id for word in words for token in oracle.tokenize(word)] == expected


@given(WORDS, st.dictionaries(st.text(LETTERS, min_size=2, max_size=5), st.integers(0, 6)))
@settings(max_examples=300, deadline=None)
def test_scores_with_ties(words: list[str], scored: dict[str, int]) -> None:
    texts = texts_of([*scored])
    expected = [texts.index(piece) for word in words for piece in by_definition(word, scored, "")]
    made = merger(texts, ranks=[scored.get(text, 0) for text in texts])
    assert tokens(made, *words) == expected


@given(st.lists(st.text("abc", min_size=1, max_size=30)), st.data())
@settings(max_examples=200, deadline=None)
def test_letters_stand_for_bytes(words: list[str], data: st.DataObject) -> None:
    letters = [chr(0x100 + byte) for byte in range(256)]
    a, b, c = letters[ord("a")], letters[ord("b")], letters[ord("c")]
    pairs = [f"{a} {b}", f"{b} {c}", f"{a}{b} {c}", f"{a} {b}{c}", f"{c} {c}"]
    merges = data.draw(st.permutations(pairs))
    texts = [*letters, *dict.fromkeys(merge.replace(" ", "") for merge in merges)]
    ranks = {merge: rank for rank, merge in enumerate(merges)}
    expected = [
        texts.index(piece)
        for word in words
        for piece in by_definition("".join(letters[byte] for byte in word.encode()), ranks, " ")
    ]
    assert tokens(merger(texts, merges=merges, letters=letters), *words) == expected


def test_a_long_run() -> None:
    made = merger(["a", "aa", "a" * 4, "a" * 8], merges=["a a", "aa aa", "aaaa aaaa"])
    assert tokens(made, "a" * 200_007) == [3] * 25_000 + [2, 1, 0]


def test_no_words_and_empty_words() -> None:
    assert tokens(merger(["a"])) == []
    assert tokens(merger(["a"]), "", "a", "") == [0]


def test_of_equal_texts_and_merges_the_first_counts() -> None:
    texts = ["a", "b", "c", "ab", "ab", "bc", "a"]
    made = merger(texts, merges=["a b", "b c", "a b"])
    assert tokens(made, "abc") == [3, 2]


def test_merges_of_another_form_and_barred_ones_are_passed_over() -> None:
    texts = ["a", "b", "ab", "ba"]
    odd = ["ab", " ab", "a ", "a b b", "", " "]
    assert tokens(merger(texts, merges=[*odd, "a b"]), "ab") == [2]
    assert tokens(merger(texts, merges=["a b", "b a"], barred=["ab"]), "aba") == [0, 3]


def test_words_that_are_tokens() -> None:
    texts = ["a", "b", "ab", "aba", "bab"]
    made = merger(texts, merges=["a b"], wholes=[3])
    assert tokens(made, "aba", "bab", "ababa") == [3, 1, 2, 2, 2, 0]


def test_pieces_that_are_no_tokens() -> None:
    bytes_ = [-1] * 256
    bytes_[0xC3], bytes_[0xA9] = 1, 2
    texts = ["a", "<C3>", "<A9>", "?"]
    made = merger(texts, merges=["\u00e9 a"], bytes=bytes_)
    assert made.encode(["a\u00e9", "a\u20aca"]) == ([0, 1, 2, 0], "\u20ac".encode())
    assert made.encode(["\u00e9a"]) == ([], "\u00e9a".encode())
    assert tokens(merger(texts, bytes=bytes_, unknown=3), "\u20aca\u00e9") == [3, 0, 1, 2]


@pytest.mark.parametrize(
    "wrong",
    [
        {"wholes": [1]},
        {"wholes": [-1]},
        {"bytes": [1] * 256},
        {"bytes": [-1] * 255},
        {"unknown": 1},
        {"letters": ["a"]},
        {"ranks": [0, 0]},
        {"ranks": [-1]},
        {"merges": packed(["a"])[:-1]},
        {"merges": b"1234567"},
    ],
)
def test_the_border_refuses(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"entry|token|rank|packed"):
        merger(["a"], **wrong)


def test_the_border_takes_texts_only() -> None:
    with pytest.raises(UnicodeEncodeError):
        merger(["a"]).encode(["\ud800"])
    with pytest.raises(TypeError):
        merger(["a"]).encode([1])  # type: ignore[list-item]
