"""Which rows go into the next pass. No arrays, no backend: lists of sequences and numbers.

Sequences with one pending token go first, each with one row, so that answers flow. Longer pending
runs (prompts) fill up, the shortest first: beside decoding sequences as many rows as fit the time a
reader may be kept waiting, alone a large fixed number, since a pass can be cancelled, or as many as
fit the time that a newcomer may be kept waiting.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from divine.drafting import DraftTree
from divine.engine.sequence import Sequence

CHUNK_SECONDS = 0.12  # of a pass with rows for prompts, so that the longest of many stays near 0.15
ROWS_ALONE = 256
FIRST_ROWS = 16  # beside decoding sequences, before anything was measured
MEASURED_ROWS = 8  # smaller passes read weights rather than compute: no measure of a row's cost
SMOOTHING = 0.3  # of the newest measurement
OLDEST_SHARE = 0.25  # of the rows for prompts


@dataclass(slots=True)
class Slice:
    """Rows of one sequence in a pass: a chain of its next `count` pending tokens, then its tree."""

    sequence: Sequence
    count: int
    chooses: bool  # the last row of the chain ends what is pending: a token follows
    tree: DraftTree = field(default_factory=DraftTree)  # below that row
    decoded: bool = False  # the sequence had chosen a token before this pass
    first: int = 0  # its first row in the pass
    at: int = 0  # where its choosing rows begin in what the pass returns
    tapped: dict[str, int] = field(default_factory=dict)  # where its rows begin in each tap

    @property
    def rows(self) -> int:
        """Rows in the pass."""
        return self.count + len(self.tree)

    @property
    def root(self) -> int:
        """The last row of the chain; node i of the tree is row root + 1 + i."""
        return self.first + self.count - 1


class Scheduler:
    """Plans passes; learns what a row costs from what passes took."""

    def __init__(self, max_rows: int, read_seconds: float | None = None) -> None:
        """`read_seconds`: of a pass that one sequence has alone and reads its prompt in."""
        self._max_rows = max_rows
        self._read_seconds = read_seconds
        self._seconds_per_row: float | None = None
        self._turn = 0  # of the decoding sequences, when there are more than rows

    def plan(self, sequences: SequenceOf[Sequence]) -> list[Slice]:
        """The slices of the next pass; empty if there are no sequences."""
        if len(sequences) == 1:  # the common case, every token
            sequence = sequences[0]
            pending = sequence.pending
            count = min(pending, self._rows_alone())
            return [Slice(sequence, count, count == pending)]
        ready = [sequence for sequence in sequences if sequence.pending == 1]
        if len(ready) > self._max_rows:
            start = self._turn % len(ready)
            ready = (ready[start:] + ready[:start])[: self._max_rows]
            self._turn = start + self._max_rows
        slices = [Slice(sequence, 1, True) for sequence in ready]
        room = self._room(len(ready))
        readers = [sequence for sequence in sequences if sequence.pending > 1]
        counts = _shares([sequence.pending for sequence in readers], room)
        for sequence, count in zip(readers, counts, strict=True):
            if count:
                slices.append(Slice(sequence, count, count == sequence.pending))
        return slices

    def observe(self, rows: int, seconds: float) -> None:
        """A pass of `rows` rows took `seconds`."""
        if rows < MEASURED_ROWS:
            return
        measured = seconds / rows
        known = self._seconds_per_row
        self._seconds_per_row = (
            measured if known is None else known + SMOOTHING * (measured - known)
        )

    def _room(self, decoding: int) -> int:
        """Rows for prompts beside `decoding` rows."""
        free = self._max_rows - decoding
        if decoding == 0:
            return min(free, self._rows_alone())
        if self._seconds_per_row is None:
            return min(free, FIRST_ROWS)
        # At least one row: a prompt must move even where a pass always takes longer.
        return min(free, max(1, int(CHUNK_SECONDS / self._seconds_per_row) - decoding))

    def _rows_alone(self) -> int:
        """Rows of a pass in which nobody decodes."""
        most = min(self._max_rows, ROWS_ALONE)
        if self._read_seconds is None:
            return most
        if self._seconds_per_row is None:
            return min(most, FIRST_ROWS)
        return min(most, max(MEASURED_ROWS, int(self._read_seconds / self._seconds_per_row)))


def _shares(pending: SequenceOf[int], room: int) -> list[int]:
    """Rows for each of several prompts: the shortest first, since it is soonest done with.

    The first, which has waited longest, gets a share in any case.
    """
    counts = [0] * len(pending)
    if not pending or room <= 0:
        return counts
    counts[0] = min(pending[0], max(1, int(OLDEST_SHARE * room)))
    room -= counts[0]
    for index in sorted(range(len(pending)), key=lambda index: pending[index]):
        more = min(pending[index] - counts[index], room)
        counts[index] += more
        room -= more
    return counts
