"""SuffixSession: drafts by reading on where the end of a sequence has stood before.

Of the text that is read, the sequence itself or another, and of its n-grams the native core keeps
its own copy (cpp/drafting); a proposal is one call. Knows no probabilities but the claims it gets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from divine.backends.cpu import _native
from divine.drafting.base import Budget
from divine.drafting.tree import DraftTree
from divine.sampling import Histories


class SuffixSession:
    """Drafts for one sequence."""

    def __init__(
        self,
        tokens: Sequence[int],
        text: Sequence[int] | None = None,
        *,
        start: int = 0,
        trust: int = 0,
    ) -> None:
        """Reads in `text`, of which the sequence's token `start` is expected to be the beginning,
        worth a match of `trust` tokens; or, if it is None, in the sequence `tokens` itself.
        """
        self._tokens = tokens
        self._reader = _native.SuffixReader(text, start, trust)

    def cost_ms(self, depth: int) -> float:
        """Free."""
        return 0.0

    def propose(self, histories: Histories, budget: Budget) -> DraftTree:
        """What followed the longest matches of the sequence's end, and of shorter ones."""
        tokens, parents, claims = self._reader.propose(
            self._tokens, budget.nodes, budget.depth, budget.row_price
        )
        return DraftTree(tokens, parents, claims, [1] * len(tokens))

    def observe(self, taps: Mapping[str, NDArray[np.float32]]) -> None:
        """Needs nothing."""

    def close(self) -> None:
        """The text goes with the session."""
