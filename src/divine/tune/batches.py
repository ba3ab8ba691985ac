"""Batches: stretches of answers in an order that is a function of seed and step.

A stretch is `length` positions of one answer and what follows as far as the deepest head looks.
Neighbours share the base's own distributions, which is what makes soft targets cheap; stretches are
shuffled anew, and cut at other places, in every epoch. Knows the store; no torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from divine.errors import UsageError
from divine.tune.answers import AnswerStore

MEASURED = 400  # held-out answers at most
NONE = -1  # a token that is not there: the answer has ended


@dataclass(frozen=True)
class Batch:
    """Stretches of answers.

    states  float32 [stretches, length + depth, dim]: states[s, j] chose tokens[s, j]
    tokens  int32 [stretches, length + depth]: NONE after an answer's end

    Head k at position j < length takes tokens[j + k - 1] and predicts tokens[j + k].
    """

    states: NDArray[np.float32]
    tokens: NDArray[np.int32]


class Batches:
    """All stretches of some answers."""

    def __init__(
        self,
        store: AnswerStore,
        chosen: NDArray[np.int64],
        *,
        depth: int,
        length: int,
        stretches: int,
        seed: int,
    ) -> None:
        """`chosen`: indices of answers. Raises UsageError if they hold nothing to learn from."""
        lengths = store.lengths[chosen].astype(np.int64)
        self._store = store
        self._chosen = chosen[lengths > 1]
        self._lengths = lengths[lengths > 1]
        if not len(self._chosen):
            raise UsageError(
                f"{store.folder} holds no answer of two tokens or more to train on; capture more"
            )
        self._depth, self._length = depth, length
        self._stretches, self._seed = stretches, seed
        self._epoch = -1
        self._order: NDArray[np.int64] = np.zeros((0, 2), np.int64)
        self.positions = int((self._lengths - 1).sum())

    @property
    def steps_per_epoch(self) -> int:
        """Batches that show every position about once."""
        return max(1, round(self.positions / (self._length * self._stretches)))

    def batch(self, step: int, rank: int = 0, ranks: int = 1) -> Batch:
        """The batch of a step, from 0; with several processes the share of one of them."""
        epoch, within = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._order, self._epoch = self._shuffle(epoch), epoch
        start = within * self._stretches
        places = np.arange(start, start + self._stretches) % len(self._order)
        return self._gather(self._order[places[rank::ranks]])

    def all(self, limit: int) -> list[Batch]:
        """Stretches from the beginning of answers on, at most about `limit` positions in all."""
        order = self._cut(np.zeros(len(self._lengths), np.int64))
        order = order[: max(1, limit // self._length)]
        return [
            self._gather(order[start : start + self._stretches])
            for start in range(0, len(order), self._stretches)
        ]

    def _shuffle(self, epoch: int) -> NDArray[np.int64]:
        random = np.random.default_rng([self._seed, epoch])
        order = self._cut(random.integers(0, self._length, len(self._lengths)))
        return order[random.permutation(len(order))]

    def _cut(self, phases: NDArray[np.int64]) -> NDArray[np.int64]:
        """Stretches as (answer, first position) [n, 2]; the first of an answer may be shorter."""
        last = self._lengths - 1  # positions with a next token
        first = np.where(phases > 0, phases - self._length, 0)
        counts = -(-(last - first) // self._length)
        answers = np.repeat(np.arange(len(last)), counts)
        number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.stack([answers, first[answers] + number * self._length], axis=1)

    def _gather(self, order: NDArray[np.int64]) -> Batch:
        places = np.stack([self._chosen[order[:, 0]], order[:, 1]], axis=1)
        return gather(self._store, places, self._length, self._depth)


def gather(
    store: AnswerStore,
    places: NDArray[np.int64],
    length: int,
    depth: int,
    ends: NDArray[np.int64] | None = None,
) -> Batch:
    """Stretches of `length` positions; places [n, 2]: index of the answer, first position.

    A first position below 0 begins so many positions before the answer. `ends` int64 [n]: positions
    of each stretch, `length` at most and by default.
    """
    span = length + depth
    states = np.zeros((len(places), span, store.dim), np.float32)
    tokens = np.full((len(places), span), NONE, np.int32)
    for row, (index, at) in enumerate(places.tolist()):
        answer = store[index]
        skip = max(0, -at)
        whole = span if ends is None else int(ends[row]) + depth
        start, end = at + skip, min(at + whole, len(answer.answer))
        tokens[row, skip : skip + end - start] = answer.answer[start:end]
        states[row, skip : skip + end - start] = answer.states[start:end]
    return Batch(states, tokens)


def split(
    store: AnswerStore, held_out: float, tokens: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices of answers for training and for measuring, by the number of their prompts.

    So a folder that grows never moves an answer from one side to the other. `tokens`: train on the
    first answers of together at most so many, one at least; what is measured stays the same.
    """
    mixed = (store.numbers * 2654435761) % 2**32 / 2**32  # Knuth's multiplicative hash
    aside = mixed < held_out
    chosen = np.flatnonzero(~aside)
    if tokens is not None:
        within = np.cumsum(store.lengths[chosen], dtype=np.int64) <= tokens
        chosen = chosen[: max(1, int(within.sum()))]
    return chosen, np.flatnonzero(aside)[:MEASURED]
