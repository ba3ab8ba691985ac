"""Pieces: batches of long pieces of answers, for networks that look back.

A piece is as long as the network looks back and knows nothing of what came before it; pieces are
cut at other places in every epoch. Those of like length share a batch, so little of it is padding,
which is at their ends only; which ones do, and the order of batches, is a function of seed and
epoch. Knows the store; no torch.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from divine.errors import UsageError
from divine.tune.answers import AnswerStore
from divine.tune.batches import Batch, gather

LONGEST = 512  # positions in which answers are measured: what one has beyond them is another
_ALIKE = 16  # so many batches are sorted by length at a time


class Pieces:
    """Pieces of the answers of a choice; the same interface as Batches."""

    def __init__(
        self,
        store: AnswerStore,
        chosen: NDArray[np.int64],
        *,
        depth: int,
        longest: int,
        positions: int,
        seed: int,
    ) -> None:
        """`chosen`: indices of answers; `longest`: positions of a piece; `positions`: of a batch.

        Raises UsageError if they hold nothing to learn from.
        """
        lasts = store.lengths[chosen].astype(np.int64) - 1  # positions with a next token
        self._chosen, self._lasts = chosen[lasts > 0], lasts[lasts > 0]
        if not len(self._chosen):
            raise UsageError(
                f"{store.folder} holds no answer of two tokens or more to train on; capture more"
            )
        self._store = store
        self._depth, self._longest, self._seed = depth, longest, seed
        self.positions = int(self._lasts.sum())
        self.steps_per_epoch = max(1, round(self.positions / positions))
        self._in_batch = positions
        self._epoch = -1
        self._pieces: NDArray[np.int64] = np.zeros((0, 3), np.int64)
        self._turns: NDArray[np.int64] = np.zeros(0, np.int64)

    def batch(self, step: int, rank: int = 0, ranks: int = 1) -> Batch:
        """The batch of a step, from 0; with several processes the share of one of them."""
        epoch, within = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._shuffle(epoch)
        number, count = int(self._turns[within]), len(self._pieces)
        start, end = (count * n // self.steps_per_epoch for n in (number, number + 1))
        # More steps than pieces: some batches would have none.
        return self._gather(self._pieces[start : max(end, start + 1)], rank, ranks)

    def all(self, limit: int) -> list[Batch]:
        """The first answers, whole, about `limit` positions in all."""
        pieces = self._cut(np.zeros(len(self._lasts), np.int64), LONGEST)
        before = np.cumsum(pieces[:, 2]) - pieces[:, 2]
        pieces = pieces[before < max(1, limit)]
        batches, start = [], 0
        for end in range(1, len(pieces) + 1):
            if end == len(pieces) or pieces[start : end + 1, 2].sum() > self._in_batch:
                batches.append(self._gather(pieces[start:end]))
                start = end
        return batches

    def _shuffle(self, epoch: int) -> None:
        """Cut anew; neighbours are about as long as each other, batches come in any order."""
        random = np.random.default_rng([self._seed, epoch])
        pieces = self._cut(random.integers(0, self._longest, len(self._lasts)), self._longest)
        pieces = pieces[random.permutation(len(pieces))]
        group = max(1, _ALIKE * len(pieces) // self.steps_per_epoch)
        for start in range(0, len(pieces), group):
            part = pieces[start : start + group]
            pieces[start : start + group] = part[np.argsort(part[:, 2], kind="stable")]
        self._pieces, self._epoch = pieces, epoch
        self._turns = random.permutation(self.steps_per_epoch)

    def _cut(self, phases: NDArray[np.int64], longest: int) -> NDArray[np.int64]:
        """(answer, first position, positions) [n, 3]; an answer is first cut at its phase."""
        pieces = []
        chosen, lasts = self._chosen.tolist(), self._lasts.tolist()
        for index, last, phase in zip(chosen, lasts, phases.tolist(), strict=True):
            cuts = [0, *range(phase or longest, last, longest), last]
            pieces += [(index, start, end - start) for start, end in pairwise(cuts)]
        return np.array(pieces, np.int64)

    def _gather(self, pieces: NDArray[np.int64], rank: int = 0, ranks: int = 1) -> Batch:
        length = int(pieces[:, 2].max())
        return gather(
            self._store, pieces[rank::ranks, :2], length, self._depth, ends=pieces[rank::ranks, 2]
        )
