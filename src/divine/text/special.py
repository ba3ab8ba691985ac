"""Finding special tokens in text: leftmost, longest first, in time linear in the text.

First characters find where a token may begin, a table of lengths what begins there, so that a
hundred thousand tokens take no time to prepare. Knows texts and ids; which tokens are special, and
when text may be parsed for them, is decided in tokenizer.py.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, pairwise

HEAD = 4  # characters that say which lengths are worth looking at


class SpecialSplitter:
    """Cuts text at the given token texts."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = dict(ids)
        self._whole = _Finder(self._ids)
        self._longer = _Finder(text for text in self._ids if len(text) > 1)
        self._forwards = sorted(text for text in self._ids if len(text) > 1)
        self._backwards = sorted(text[::-1] for text in self._forwards)
        self._longest = max(map(len, self._ids), default=0)

    @property
    def texts(self) -> Iterable[str]:
        """The token texts."""
        return self._ids

    @property
    def ids(self) -> Iterable[int]:
        """The tokens."""
        return self._ids.values()

    def split(self, text: str) -> Iterator[str | int]:
        """The pieces of text (never empty) and the ids of the tokens between them, in order."""
        done = 0
        for start, end in self._whole.find(text):
            if start > done:
                yield text[done:start]
            yield self._ids[text[start:end]]
            done = end
        if done < len(text):
            yield text[done:]

    def protect(self, text: str, sentinel: str) -> str:
        """The text with sentinels in it, so that no token text is found in it or across its ends.

        Sentinels go between all characters of every token text, again where breaking one leaves
        another that overlapped it, and one goes into what begins a token text at the end of the
        text or ends one at its start, and so might become whole beside other text. Texts of a
        single character cannot be protected.
        """
        while places := [range(start + 1, end) for start, end in self._longer.find(text)]:
            starts = [0, *chain.from_iterable(places)]
            text = sentinel.join(text[a:b] for a, b in pairwise([*starts, len(text)]))
        size = len(text)
        longest = min(self._longest, size + 1)
        cuts = {
            size - n + 1 for n in range(2, longest) if _begins(self._forwards, text[size - n :])
        }
        cuts |= {n - 1 for n in range(2, longest) if _begins(self._backwards, text[n - 1 :: -1])}
        for cut in sorted(cuts, reverse=True):
            text = text[:cut] + sentinel + text[cut:]
        return text


class _Finder:
    """Occurrences of any of some texts."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = frozenset(texts)
        lengths: dict[str, set[int]] = {}
        for text in self._texts:
            lengths.setdefault(text[:HEAD], set()).add(len(text))
        # By the head: the lengths of the texts that begin so, longest first.
        self._lengths = {head: sorted(found, reverse=True) for head, found in lengths.items()}
        first = "".join(sorted({head[:1] for head in lengths}))
        self._first = re.compile(f"[{re.escape(first)}]") if first else None

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """Start and end of each, leftmost, longest first, without overlap."""
        search = self._first.search if self._first else None
        at = 0
        while search and (match := search(text, at)):
            start = match.start()
            length = self._length_at(text, start)
            at = start + (length or 1)
            if length:
                yield start, at

    def _length_at(self, text: str, start: int) -> int:
        """Of the longest text that begins there; 0 if none does."""
        for size in range(HEAD, 0, -1):  # a text shorter than a head is its own head
            for length in self._lengths.get(text[start : start + size], ()):
                if text[start : start + length] in self._texts:
                    return length
        return 0


def _begins(texts: list[str], start: str) -> bool:
    """Whether one of the sorted texts begins so and goes on."""
    place = bisect_right(texts, start)
    return place < len(texts) and texts[place].startswith(start)
