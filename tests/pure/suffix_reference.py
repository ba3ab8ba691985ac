"""The specification of _native.SuffixReader: the same trees, in Python one can read.

A *place* is a position of a text whose preceding tokens match the end of a query (the same text, or
another), so the token at the place is a guess at the query's next one. SuffixIndex finds the places
of the longest matches, Follower keeps its place in a text that is copied with changes, and read_on
makes a tree of the places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from divine.drafting import ROOT, Budget, DraftTree

# The n-grams that are indexed, and how many of the latest places of each are looked at: those of
# three tokens seldom recur more often, and of a single token only what came lately says much. More
# of either, or further orders, accept nothing more in greedy answers and edited code.
_ORDERS = ((3, 16), (1, 8))
# A match as long as this gains nothing from places of shorter ones.
_LONG = 12
# How far back a place is compared when it is met first. A match that goes on grows without limit.
_FIRST_LOOK = 32


class SuffixIndex:
    """The n-grams of a text that only grows: of each its latest place, and the one before each.

    Grams are kept by hash; collisions do no harm, since every place is compared with the query.
    Takes some 200 bytes for each token of the text.
    """

    def __init__(self, text: Sequence[int]) -> None:
        self._text = text
        self._indexed = 1  # places below this; place 0 follows nothing
        self._tables: list[tuple[int, int, dict[int, int], list[int]]] = [
            (order, looks, {}, [0] * order) for order, looks in _ORDERS
        ]
        self._lengths: dict[int, int] = {}  # the last query's places and lengths
        self._queried = 0  # the last query's own length

    def extend(self) -> None:
        """Take in what the text has gained, at less than a microsecond for each token."""
        text, end = self._text, len(self._text)
        for order, _, latest, earlier in self._tables:
            start = max(self._indexed, order)
            window = text[start - order : end - 1]
            grams = zip(*(window[skipped:] for skipped in range(order)), strict=False)
            for place, gram in enumerate(grams, start):
                key = hash(gram)
                earlier.append(latest.get(key, 0))
                latest[key] = place
        self._indexed = max(self._indexed, end)

    def find(self, query: Sequence[int], floor: int = 0) -> dict[int, int]:
        """Places that follow the end of query[floor:] -> length of the match, at least 1.

        The longest match is among them unless its last three tokens have recurred many times since.
        The query must be the one of the last call, grown or not.
        """
        end = len(query)
        found: dict[int, int] = {}
        longest = 0
        for order, looks, latest, earlier in self._tables:
            if longest >= _LONG:
                break
            place = latest.get(hash(tuple(query[-order:])), 0)
            while place and looks:
                if place not in found:
                    length = self._match(query, place, floor)
                    if length:
                        found[place] = length
                        longest = max(longest, length)
                place = earlier[place]
                looks -= 1
        self._lengths, self._queried = found, end
        return found

    def _match(self, query: Sequence[int], place: int, floor: int) -> int:
        text, end = self._text, len(query)
        grown = end - self._queried
        before = self._lengths.get(place - grown)
        if before is not None and text[place - grown : place] == query[end - grown :]:
            return before + grown
        limit = min(place, end - floor, _FIRST_LOOK)
        length = 0
        while length < limit and text[place - 1 - length] == query[end - 1 - length]:
            length += 1
        return length


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


# A place speaks with the power of its match's length; "none of them" with a constant. In greedy
# answers of small models a lone match of 1 is right one time in six, of 4 two times in three and
# of 16 nineteen times in twenty, which these meet.
_WEIGHTS = [length**1.5 for length in range(129)]
_NONE = 5.0
_CLAIMS = [weight / (weight + _NONE) for weight in _WEIGHTS]
_LAST = len(_WEIGHTS) - 1
_UNCHANGED: Mapping[int, Change] = {}

# place, length of its match, the place where it began to read, tokens that come before the place
_Reader = tuple[int, int, int, tuple[int, ...]]


def read_on(
    text: Sequence[int],
    places: Mapping[int, int],
    budget: Budget,
    *,
    loop: bool,
    changes: Mapping[int, Change] = _UNCHANGED,
    owed: tuple[int, ...] = (),
) -> DraftTree:
    """The tree of what follows `places` (place -> length of its match), the likeliest paths first.

    Where places disagree there are siblings, each with the weight of the places that say so; along
    a path the matches grow. Of equals the earlier in `places` comes first. With `loop` a place that
    reaches the end of the text goes on where it began, as the text itself would if it went on so.
    A token of `changes` may be replaced; `owed` is to be said before the first of the places. Paths
    that would not be worth their row are left out.
    """
    if not places:
        return DraftTree()
    reading = _Reading(text, budget, loop, changes)
    readers: list[_Reader] = [(place, length, place, ()) for place, length in places.items()]
    if owed:
        readers[0] = (*readers[0][:3], owed)
    reading.branch(readers, ROOT, 1, 1.0)
    queue, tree = reading.queue, reading.tree
    while queue and len(tree) < budget.nodes and -queue[0][0] >= budget.row_price:
        negative, _, token, claim, parent, depth, readers = heappop(queue)
        node = tree.add(token, parent, claim)
        if len(readers) == 1:
            reading.chain(readers[0], node, depth + 1, -negative)
        else:
            reading.branch(readers, node, depth + 1, -negative)
    return tree


class _Reading:
    """A tree that grows by its likeliest path; those that might be next are in the queue."""

    def __init__(
        self, text: Sequence[int], budget: Budget, loop: bool, changes: Mapping[int, Change]
    ) -> None:
        self.tree = DraftTree()
        # -probability of the path, order, token, claim, parent, depth, those who read it
        self.queue: list[tuple[float, int, int, float, int, int, list[_Reader]]] = []
        self._text, self._budget, self._loop, self._changes = text, budget, loop, changes
        self._offers = 0

    def branch(self, readers: Sequence[_Reader], parent: int, depth: int, path: float) -> None:
        """Offer a child of `parent` for every token that some reader has next."""
        if depth > self._budget.depth:
            return
        text, end = self._text, len(self._text)
        groups: dict[int, list[_Reader]] = {}
        weights: dict[int, float] = {}
        total = _NONE

        def add(token: int, weight: float, reader: _Reader) -> None:
            if token in groups:
                weights[token] += weight
                groups[token].append(reader)
            else:
                weights[token] = weight
                groups[token] = [reader]

        for place, length, start, owed in readers:
            weight = _WEIGHTS[length] if length < _LAST else _WEIGHTS[_LAST]
            if owed:
                total += weight
                add(owed[0], weight, (place, length + 1, start, owed[1:]))
                continue
            if place == end and self._loop:
                place = start
            if place == end:  # a replacement may end where the text does
                continue
            total += weight
            token = text[place]
            change = self._changes.get(token)
            kept, made = (1.0, ()) if change is None else change.shares()
            add(token, weight * kept, (place + 1, length + 1, start, ()))
            for (skipped, new), share in made:
                after = min(place + skipped, end)
                add(new[0], weight * share, (after, length + 1, start, new[1:]))
        for token, weight in weights.items():
            claim = weight / total
            self._offer(path * claim, token, claim, parent, depth, groups[token])

    def chain(self, reader: _Reader, node: int, depth: int, path: float) -> None:
        """Add what one reader has next below `node`, until something in the queue is likelier."""
        text, end, tree, changes = self._text, len(self._text), self.tree, self._changes
        place, length, start, owed = reader
        rival = max(-self.queue[0][0] if self.queue else 0.0, self._budget.row_price)
        for level in range(depth, self._budget.depth + 1):
            if owed or (place < end and text[place] in changes):
                self.branch([(place, length, start, owed)], node, level, path)
                return
            if place == end and self._loop:
                place = start
            if place == end:
                return
            token = text[place]
            claim = _CLAIMS[length] if length < _LAST else _CLAIMS[_LAST]
            path *= claim
            place += 1
            length += 1
            if path < rival or len(tree) >= self._budget.nodes:
                self._offer(path, token, claim, node, level, [(place, length, start, ())])
                return
            node = tree.add(token, node, claim)

    def _offer(
        self, path: float, token: int, claim: float, parent: int, depth: int, on: list[_Reader]
    ) -> None:
        self._offers += 1
        heappush(self.queue, (-path, self._offers, token, claim, parent, depth, on))


class ReferenceReader:
    """_native.SuffixReader: `text` None means the sequence itself."""

    def __init__(self, text: Sequence[int] | None, start: int = 0, trust: int = 0) -> None:
        self._query: list[int] = []
        self._own = text is None
        self._text = self._query if text is None else list(text)
        self._start = start
        self._index = SuffixIndex(self._text)
        self._follower = Follower(self._text, trust)

    def propose(
        self, sequence: Sequence[int], nodes: int, depth: int, row_price: float
    ) -> tuple[list[int], list[int], list[float]]:
        """Tokens, parents and claims of the tree."""
        query, follower = self._query, self._follower
        followed = max(len(query), self._start)
        query += sequence[len(query) :]
        self._index.extend()
        follower.take(query[followed:])
        places = follower.join(query, self._index.find(query, self._start))
        tree = read_on(
            self._text,
            places,
            Budget(nodes, depth, row_price),
            loop=self._own,
            changes=follower.changes,
            owed=follower.owed,
        )
        return tree.tokens, tree.parents, tree.claims
