"""What a draft model has read of one sequence: its state, its passes, and how long they take.

A reader is told how a text goes on and does what is cheapest: commits rows of its last pass that
turned out right, forgets what turned out wrong, reads what is missing. Knows tokens and rows of its
own model; nothing of the target, of trees or of what is worth drafting.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from divine.backends.base import COMMITTED, Executable, KvType, PassResult, Rows, State, Want
from divine.backends.prefixes import Prefixes

LONG_ROWS = 16  # passes of more rows take about as long for each further row
NEWS = 0.2  # weight of a new measurement


class PassTimes:
    """Milliseconds of a draft model's passes by their number of rows, from its own passes.

    Numbers of rows that have not been met are estimated from the nearest that has, and before the
    first pass from the prior.
    """

    def __init__(self, prior: Mapping[int, float]) -> None:
        """`prior`: rows -> milliseconds, from 1 to more than LONG_ROWS."""
        self._measured: dict[int, float] = {}  # rows up to LONG_ROWS -> ms
        self._long: float | None = None  # ms of one row of longer passes
        self._prior = prior
        most = max(prior)
        self._prior_long = prior[most] / most

    def observe(self, rows: int, ms: float) -> None:
        """A pass has taken so long."""
        if rows > LONG_ROWS:
            self._long = _mixed(self._long, ms / rows)
        else:
            self._measured[rows] = _mixed(self._measured.get(rows), ms)

    def estimate(self, rows: int) -> float:
        """Milliseconds of a pass, or of several long ones; rows from 0."""
        if rows > LONG_ROWS:
            return rows * (self._prior_long if self._long is None else self._long)
        known = self._measured.get(rows)
        if known is not None or rows < 1:
            return known or 0.0
        if not self._measured:
            return self._prior[rows]
        nearest = min(self._measured, key=lambda met: abs(met - rows))
        return self._measured[nearest] * self._prior[rows] / self._prior[nearest]


def _mixed(old: float | None, new: float) -> float:
    return new if old is None else old + NEWS * (new - old)


class Reader:
    """One sequence's state of a draft model."""

    def __init__(
        self,
        executable: Executable,
        prefixes: Prefixes,
        times: PassTimes,
        capacity: int,
        kv_type: KvType,
    ) -> None:
        self._executable = executable
        self._prefixes = prefixes
        self._times = times
        self._capacity = capacity
        self._kv_type: KvType = kv_type
        self._state: State | None = None
        self._tokens: list[int] = []  # committed
        self._agreed = 0  # so many of them will never have to be compared again
        self._pending: dict[tuple[int, int], int] = {}  # of the last pass: (parent, token) -> row

    def open(self, tokens: Sequence[int]) -> None:
        """Take a kept state that begins like these tokens, or a new one; does nothing twice."""
        if self._state is not None:
            return
        state = self._prefixes.take(
            tokens, lambda: self._executable.new_state(self._capacity, self._kv_type)
        )
        self._tokens = list(tokens[: state.length])
        self._agreed = state.length
        self._state = state

    def missing(self, tokens: Sequence[int], stable: int) -> int:
        """How many rows must be read before the last of `tokens` has been; see read()."""
        length = len(tokens) - 1
        common = self._common(tokens, length, (), stable)
        path, _ = self._confirmed(tokens, length, (), common)
        return len(tokens) - common - len(path)

    def read(
        self,
        text: Sequence[int],
        length: int,
        more: Sequence[int],
        branches: Sequence[Sequence[int]],
        want: Callable[[Sequence[int]], Want],
        stable: int,
    ) -> PassResult:
        """Read text[:length], then `more`, then each branch; what `want` of the branches' ends.

        Branches may share beginnings, none is the beginning of another. The first `stable` tokens
        of the text are the same in every call from now on. Raises as Executable.run does; what has
        been committed by then stays, and the next call goes on from there.
        """
        state = self._settle(text, length, more, stable)
        gap = [_at(text, length, more, i) for i in range(len(self._tokens), length + len(more))]
        rows = sum(len(branch) for branch in branches)
        while len(gap) + rows > self._executable.max_rows:
            chunk, gap = gap[: self._executable.max_rows], gap[self._executable.max_rows :]
            self._run(state, chunk, list(range(-1, len(chunk) - 1)), Want())
            self._commit(state, range(len(chunk)), chunk)
            self._agreed = max(self._agreed, min(len(self._tokens), length, stable))
        tokens, parents = list(gap), list(range(-1, len(gap) - 1))
        places = {(p, t): row for row, (p, t) in enumerate(zip(parents, tokens, strict=True))}
        ends = []
        for branch in branches:
            row = len(gap) - 1
            for token in branch:
                parent = row
                row = places.setdefault((parent, token), len(tokens))
                if row == len(tokens):
                    tokens.append(token)
                    parents.append(parent)
            ends.append(row)
        assert all(a < b for a, b in pairwise(ends))
        result = self._run(state, tokens, parents, want(ends))
        self._pending = places
        return result

    def close(self, text: Sequence[int], stable: int) -> None:
        """Keep the state for sequences that begin like this text; may be called twice."""
        if self._state is None:
            return
        state = self._settle(text, len(text), (), stable)
        self._state = None
        self._prefixes.put(self._tokens, state)

    def _common(self, text: Sequence[int], length: int, more: Sequence[int], stable: int) -> int:
        """Committed tokens that agree with text[:length] and `more`."""
        end = min(len(self._tokens), length + len(more))
        common = min(self._agreed, end)
        while common < end and self._tokens[common] == _at(text, length, more, common):
            common += 1
        self._agreed = max(self._agreed, min(common, length, stable))
        return common

    def _settle(self, text: Sequence[int], length: int, more: Sequence[int], stable: int) -> State:
        """Commit and forget until what is committed begins the text."""
        state = self._state
        assert state is not None
        if state.length > len(self._tokens):  # an interruption came between two lines of _commit
            state.truncate(len(self._tokens))
            self._pending = {}
        common = self._common(text, length, more, stable)
        if common < len(self._tokens):
            state.truncate(common)
            del self._tokens[common:]
            self._agreed = min(self._agreed, common)
            self._pending = {}
        path, tokens = self._confirmed(text, length, more, common)
        if path:
            self._commit(state, path, tokens)
        return state

    def _confirmed(
        self, text: Sequence[int], length: int, more: Sequence[int], common: int
    ) -> tuple[list[int], list[int]]:
        """Pending rows, with their tokens, that continue what is committed as the text does."""
        path: list[int] = []
        tokens: list[int] = []
        if common < len(self._tokens):
            return path, tokens
        row = COMMITTED
        for i in range(common, length + len(more)):
            token = _at(text, length, more, i)
            found = self._pending.get((row, token))
            if found is None:
                break
            path.append(found)
            tokens.append(token)
            row = found
        return path, tokens

    def _commit(self, state: State, path: Sequence[int], tokens: Sequence[int]) -> None:
        self._pending = {}
        state.commit(path)
        self._tokens += tokens

    def _run(
        self, state: State, tokens: Sequence[int], parents: Sequence[int], want: Want
    ) -> PassResult:
        self._pending = {}
        rows = Rows(
            np.array(tokens, np.int32),
            np.array(parents, np.int32),
            np.zeros(len(tokens), np.int32),
        )
        began = time.perf_counter()
        result = self._executable.run([state], rows, want)
        self._times.observe(len(tokens), 1e3 * (time.perf_counter() - began))
        return result


def _at(text: Sequence[int], length: int, more: Sequence[int], index: int) -> int:
    return text[index] if index < length else more[index - length]
