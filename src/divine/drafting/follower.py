"""Follower: keeps its place in a text that another text copies with changes.

It knows the place while the two agree, where it may be when they part, and which tokens the copy
replaces again and again: a name, a keyword, a spelling. Finds no places anywhere (suffixes.py) and
makes no trees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

# A match of _TRUSTED tokens is followed. Where the query parts from it, a place among the next
# _WINDOW tokens that fits the query's last token counts as a match _NEAR tokens longer, and those
# to go on from if the tokens were inserted, or replace as many, count as a match of _CHANGED. After
# _PATIENCE tokens it gives up.
_TRUSTED = 8
_WINDOW = 24
_NEAR = 4
_CHANGED = 1
_PATIENCE = 24

# Changes of at most so many tokens of the text, into at most so many, are remembered; longer ones
# seldom come twice.
_MOST_SKIPPED = 4
_MOST_NEW = 8
_DOUBT = 1.0  # of a change, beside how often it was made: the text stays as it is

Replacement = tuple[int, tuple[int, ...]]  # tokens of the text that are left out; those instead


@dataclass(slots=True)
class Change:
    """What the copy has had where the text has a certain token that was replaced once."""

    kept: int
    made: dict[Replacement, int] = field(default_factory=dict)  # never empty

    def shares(self) -> tuple[float, Sequence[tuple[Replacement, float]]]:
        """How likely the token stays, and how likely each replacement is."""
        total = self.kept + _DOUBT + sum(self.made.values())
        return (self.kept + _DOUBT) / total, [(new, n / total) for new, n in self.made.items()]


class Follower:
    """Keeps its place in `text`; a query is followed from where a match is long enough.

    When the two part, the query's next tokens may stand for as many of the text or for none, or
    some of the text's were left out: places near the parting are then worth more than their matches
    alone, until one there or elsewhere is long enough to follow.

    changes  token of the text -> what the query has had in its place
    owed     tokens of a replacement that has begun: they come before the place that is followed
    """

    def __init__(self, text: Sequence[int], trust: int = 0) -> None:
        """Begins at the start of the text, worth a match of `trust`; with 0 it begins nowhere."""
        self.changes: dict[int, Change] = {}
        self.owed: tuple[int, ...] = ()
        self._text = text
        self._place = 0  # where the query's next token is expected, or where the query parted
        self._length = trust  # of the match that led there; 0: nothing is followed
        self._astray = 0  # tokens of the query since the parting
        self._kept: Counter[int] = Counter()  # tokens that the query has taken over

    def take(self, tokens: Iterable[int]) -> None:
        """The query has grown by these tokens."""
        if not self._length:
            return
        for token in tokens:
            if self._astray:
                self._astray += 1
            elif not self._agrees(token):
                self._astray, self.owed = 1, ()
        if self._astray > _PATIENCE:
            self._length = 0

    def join(self, query: Sequence[int], found: Mapping[int, int]) -> dict[int, int]:
        """Places to be expected -> what they are worth as a match's length; then those found."""
        places: dict[int, int] = {}
        if self._length and self._astray:
            places = self._around(query[-1], found)
        elif self._length and (self.owed or self._place < len(self._text)):
            places = {self._place: self._length}
        for place, length in found.items():
            if places.setdefault(place, length) < length:
                places[place] = length
        if places:
            best = max(places, key=places.__getitem__)
            followed = 0 if self._astray else self._length
            if places[best] >= _TRUSTED and places[best] > followed:
                if self._astray and self._length:
                    self._learn(query, best)
                self._place, self._length, self._astray = best, places[best], 0
                self.owed = ()
        return places

    def _agrees(self, token: int) -> bool:
        """Whether the query goes on as expected; if so, so does the place."""
        if self.owed:
            if self.owed[0] != token:
                return False
            self.owed = self.owed[1:]
        elif self._place == len(self._text):
            return False
        else:
            expected = self._text[self._place]
            change = self.changes.get(expected)
            if token == expected:
                self._place += 1
                self._kept[token] += 1
                if change is not None:
                    change.kept += 1
            else:
                known = () if change is None else change.made
                made = next((made for made in known if made[1][0] == token), None)
                if change is None or made is None:
                    return False
                change.made[made] += 1
                self._place = min(self._place + made[0], len(self._text))
                self.owed = made[1][1:]
        self._length += 1
        return True

    def _learn(self, query: Sequence[int], place: int) -> None:
        """The query has come back to the text at `place`: remember what stood between."""
        text, parting, end = self._text, self._place, len(query)
        parted = end - self._astray
        agree = 0
        most = min(self._astray, place - parting)
        while agree < most and text[place - 1 - agree] == query[end - 1 - agree]:
            agree += 1
        skipped = place - agree - parting
        new = tuple(query[parted : end - agree])
        if 0 < skipped <= _MOST_SKIPPED and 0 < len(new) <= _MOST_NEW:
            token = text[parting]
            made = self.changes.setdefault(token, Change(self._kept[token])).made
            made[skipped, new] = made.get((skipped, new), 0) + 1

    def _around(self, last: int, found: Mapping[int, int]) -> dict[int, int]:
        text, parting = self._text, self._place
        expected = parting + self._astray
        places: dict[int, int] = {}
        for place in range(parting + 1, min(expected + _WINDOW, len(text))):
            if text[place - 1] == last:
                places[place] = found.get(place, 1) + _NEAR
        for place in (expected, parting):
            if place < len(text):
                places.setdefault(place, _CHANGED)
        return places
