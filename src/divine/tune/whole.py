"""WholeAnswers: batches of answers from their first token on, for networks that look back.

Answers of like length share a batch, so little of it is padding; which ones do, and the order of
batches, is a function of seed and epoch. Knows the store; no torch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from divine.errors import UsageError
from divine.tune.answers import AnswerStore
from divine.tune.batches import Batch, gather

LONGEST = 512  # positions; what an answer has beyond them is a piece of its own
_ALIKE = 16  # so many batches are sorted by length at a time


class WholeAnswers:
    """All answers of a choice; the same interface as Batches."""

    def __init__(
        self,
        store: AnswerStore,
        chosen: NDArray[np.int64],
        *,
        depth: int,
        positions: int,
        seed: int,
    ) -> None:
        """`chosen`: indices of answers; `positions`: about so many in a batch.

        Raises UsageError if they hold nothing to learn from.
        """
        lasts = store.lengths[chosen].astype(np.int64) - 1  # positions with a next token
        pieces = [
            (index, start, min(LONGEST, last - start))
            for index, last in zip(chosen.tolist(), lasts.tolist(), strict=True)
            for start in range(0, last, LONGEST)
        ]
        if not pieces:
            raise UsageError(
                f"{store.folder} holds no answer of two tokens or more to train on; capture more"
            )
        self._store = store
        self._pieces = np.array(pieces, np.int64)  # (answer, first position, positions)
        self._depth, self._seed = depth, seed
        self.positions = int(self._pieces[:, 2].sum())
        self._share = max(1, round(positions * len(pieces) / self.positions))  # pieces in a batch
        self._epoch = -1
        self._order: NDArray[np.int64] = np.zeros(0, np.int64)

    @property
    def steps_per_epoch(self) -> int:
        """Batches that show every position once."""
        return -(-len(self._pieces) // self._share)

    def batch(self, step: int, rank: int = 0, ranks: int = 1) -> Batch:
        """The batch of a step, from 0; with several processes the share of one of them."""
        epoch, within = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._order, self._epoch = self._shuffle(epoch), epoch
        number = int(self._turns()[within])
        start, end = (len(self._order) * n // self.steps_per_epoch for n in (number, number + 1))
        return self._gather(self._order[start:end], rank, ranks)

    def all(self, limit: int) -> list[Batch]:
        """The first answers, about `limit` positions in all."""
        before = np.cumsum(self._pieces[:, 2]) - self._pieces[:, 2]
        order = np.flatnonzero(before < max(1, limit))
        return [
            self._gather(order[start : start + self._share])
            for start in range(0, len(order), self._share)
        ]

    def _shuffle(self, epoch: int) -> NDArray[np.int64]:
        """Pieces in an order in which neighbours are about as long as each other."""
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self._pieces))
        group = _ALIKE * self._share
        for start in range(0, len(order), group):
            part = order[start : start + group]
            order[start : start + group] = part[np.argsort(self._pieces[part, 2], kind="stable")]
        return order

    def _turns(self) -> NDArray[np.int64]:
        """The order of this epoch's batches, in which short and long ones are mixed."""
        random = np.random.default_rng([self._seed, self._epoch, 1])
        return random.permutation(self.steps_per_epoch)

    def _gather(self, order: NDArray[np.int64], rank: int = 0, ranks: int = 1) -> Batch:
        pieces = self._pieces[order]
        return gather(self._store, pieces[rank::ranks, :2], int(pieces[:, 2].max()), self._depth)
