"""From slices to one pass and back: the rows, what is wanted of them, the walk over the result.

Today a sequence's rows are a chain and the walk keeps all of it; drafts will make it a tree, and
the walk will follow the choices. Runs no scheduling and ends no sequences.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np

from divine.backends.base import COMMITTED, Executable, PassResult, Rows, State, Want
from divine.engine.scheduler import Slice
from divine.sampling import TokenLogprob, log_probabilities

LONG_ROWS = 16  # passes of more rows may take seconds: cancelling one of their sequences cuts them


class PassRunner:
    """Builds and runs passes on one executable; its arrays are used again for every pass."""

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        size = executable.max_rows
        self._tokens = np.zeros(size, dtype=np.int32)
        self._parents = np.zeros(size, dtype=np.int32)
        self._sequences = np.zeros(size, dtype=np.int32)
        self._chain = np.arange(-1, size - 1, dtype=np.int32)

    def run(self, slices: SequenceOf[Slice]) -> tuple[PassResult, Want]:
        """One pass over the slices, in order."""
        states: list[State] = []
        best: list[int] = []
        logits: list[int] = []
        row = 0
        for index, part in enumerate(slices):
            sequence, end = part.sequence, row + part.count
            assert sequence.state is not None
            states.append(sequence.state)
            start = sequence.committed
            if part.count == 1:
                self._tokens[row] = sequence.tokens[start]
                self._parents[row] = COMMITTED
                self._sequences[row] = index
            else:
                self._tokens[row:end] = sequence.tokens[start : start + part.count]
                self._parents[row:end] = self._chain[: part.count]
                self._parents[row + 1 : end] += row
                self._sequences[row:end] = index
            if part.chooses:
                (logits if sequence.wants_logits else best).append(end - 1)
            row = end
        rows = Rows(self._tokens[:row], self._parents[:row], self._sequences[:row])
        want = Want(best=best, logits=logits)
        return self._executable.run(states, rows, want), want


def walk(
    part: Slice, first: int, result: PassResult, want: Want
) -> tuple[range, int | None, TokenLogprob | None]:
    """The rows to commit, and the token chosen where the walk ends (None inside a prompt).

    `first` is the slice's first row in the pass. Raises NumericError for logits that are not
    finite.
    """
    path = range(first, first + part.count)
    if not part.chooses:
        return path, None, None
    sequence = part.sequence
    if not sequence.wants_logits:
        return path, int(result.best_ids[want.best.index(path[-1])]), None
    logits = result.logits[want.logits.index(path[-1])]
    position = len(sequence.tokens)
    token = sequence.sampler.choose(sequence.histories, logits, position)
    if sequence.top_logprobs is None:
        return path, token, None
    return path, token, log_probabilities(logits, token, sequence.top_logprobs, position)
