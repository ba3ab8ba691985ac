"""ChainDrafter: another drafter's best path alone, for measuring what branches are worth.

Knows nothing of how the other guesses; it asks for a tree and follows the child that claims
most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from divine.drafting.base import Budget, Drafter, DraftSession, DraftTask
from divine.drafting.tree import ROOT, DraftTree
from divine.sampling import Histories

PREFIX = "chain:"
_ROOM = 4  # nodes asked for each one of the chain: best-first trees spend some on branches
_MOST = 64


class ChainDrafter:
    """Drafts chains; holds nothing of its own."""

    def __init__(self, inner: Drafter) -> None:
        self.name = PREFIX + inner.name
        self.free = inner.free
        self.taps: tuple[str, ...] = inner.taps
        self._inner = inner

    def begin(self, task: DraftTask) -> DraftSession:
        """A session on one of the other's."""
        return _ChainSession(self._inner.begin(task))

    def cancel(self) -> None:
        """Cut the other short."""
        self._inner.cancel()

    def forget(self) -> None:
        """The other is told by whoever holds it."""

    def close(self) -> None:
        """The other is closed by whoever holds it."""


class _ChainSession:
    def __init__(self, inner: DraftSession) -> None:
        self._inner = inner
        self.cost_ms = inner.cost_ms
        self.close = inner.close

    def propose(self, histories: Histories, budget: Budget) -> DraftTree:
        wide = replace(
            budget,
            nodes=min(_MOST, _ROOM * budget.nodes),
            depth=min(budget.depth, budget.nodes),
        )
        tree = self._inner.propose(histories, wide)
        path: list[int] = []
        node = ROOT
        while len(path) < budget.nodes:
            children = tree.children(node)
            if not children:
                break
            node = max(children, key=lambda child: tree.claims[child])
            path.append(node)
        return tree.keep(path)

    def observe(self, taps: Mapping[str, NDArray[np.float32]]) -> None:
        self._inner.observe(taps)
