"""From slices to one pass and back: the rows, what is wanted of them, the choices at them.

A slice's rows are a chain of pending tokens and the tree that was drafted below them. Runs no
scheduling, drafts nothing and ends no sequences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import NDArray

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

    def run(self, slices: SequenceOf[Slice]) -> PassResult:
        """One pass over the slices, in order; says in each where its rows and choices are."""
        states: list[State] = []
        best: list[int] = []
        logits: list[int] = []
        taps: dict[str, list[int]] = {}
        row = 0
        for index, part in enumerate(slices):
            sequence = part.sequence
            assert sequence.state is not None
            states.append(sequence.state)
            part.first = row
            self._fill(part, index)
            row += part.rows
            if part.chooses:
                chosen = logits if sequence.wants_logits else best
                part.at = len(chosen)
                chosen.extend(range(part.root, row))
            if sequence.draft is not None:
                for name in sequence.draft.taps:
                    rows_wanted = taps.setdefault(name, [])
                    part.tapped[name] = len(rows_wanted)
                    rows_wanted.extend(range(part.first, row))
        rows = Rows(self._tokens[:row], self._parents[:row], self._sequences[:row])
        return self._executable.run(states, rows, Want(best=best, logits=logits, taps=taps))

    def _fill(self, part: Slice, index: int) -> None:
        """Write the rows of one slice, whose sequence is number `index` in the pass."""
        first, end, tree = part.first, part.first + part.count, part.tree
        start = part.sequence.committed
        if part.count == 1:
            self._tokens[first] = part.sequence.tokens[start]
            self._parents[first] = COMMITTED
        else:
            self._tokens[first:end] = part.sequence.tokens[start : start + part.count]
            self._parents[first:end] = self._chain[: part.count]
            self._parents[first + 1 : end] += first
        nodes = len(tree)
        if nodes:
            self._tokens[end : end + nodes] = tree.tokens
            self._parents[end : end + nodes] = tree.parents
            self._parents[end : end + nodes] += end  # node 0 is row `end`, ROOT the one before
        self._sequences[first : end + nodes] = index


class Choices:
    """What the model chooses after the nodes of a slice's tree; asked along one path, downwards."""

    def __init__(self, part: Slice, result: PassResult) -> None:
        self._sequence = part.sequence
        self._result = result
        self._at = part.at + 1  # where node 0 is
        self._histories = part.sequence.histories
        self.position = len(part.sequence.tokens)  # of the token that is asked about
        self._index = 0  # of the node last asked about
        self.logprobs: list[TokenLogprob] = []

    def __call__(self, node: int) -> int:
        """Choose by the shared noise. Raises NumericError for logits that are not finite."""
        if not self._sequence.wants_logits:
            self._index = self._at + node
            self.position += 1
            return int(self._result.best_ids[self._index])
        token = self._sequence.sampler.choose(self._histories, self._logits(node), self.position)
        self.take(token)
        return token

    def probabilities(self, node: int) -> NDArray[np.float64]:
        """The processed distribution float64 [vocabulary] after `node`; raises NumericError."""
        sampler = self._sequence.sampler
        return sampler.distribution(self._histories, self._logits(node), self.position)

    def take(self, token: int) -> None:
        """`token` follows the node last asked about: what is asked next lies below it."""
        top = self._sequence.top_logprobs
        if top is not None:
            logits = self._result.logits[self._index]
            self.logprobs.append(log_probabilities(logits, token, top, self.position))
        self._histories = self._sequence.sampler.advance(self._histories, token)
        self.position += 1

    def confidence(self) -> float:
        """The model's own probability of its best token after the node last asked about."""
        result, index = self._result, self._index
        if not self._sequence.wants_logits:
            return math.exp(float(result.best_logits[index]) - float(result.log_sum_exp[index]))
        logits = result.logits[index]
        best = log_probabilities(logits, int(np.argmax(logits)), 0, self.position)
        return math.exp(best.logprob)

    def _logits(self, node: int) -> NDArray[np.float32]:
        self._index = self._at + node
        row: NDArray[np.float32] = self._result.logits[self._index]
        return row
