"""Drafting with recurrent heads: a level needs the state of a node's parent and nothing else.

Knows the heads as levels; the rest is levelled.py's.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from divine.backends.base import PassResult
from divine.drafting.base import DraftSession, DraftTask
from divine.drafting.drafters.growth import Growth
from divine.drafting.drafters.levelled import LevelDrafter, LevelSession, WantOf
from divine.drafting.tree import ROOT
from divine.heads.levels import Levels
from divine.program.program import FINAL_TAP


class HeadsDrafter(LevelDrafter):
    """Drafts with recurrent heads."""

    levels: Levels

    def begin(self, task: DraftTask) -> DraftSession:
        """A session; it can propose once a pass has been observed."""
        return HeadsSession(self, task)


class HeadsSession(LevelSession):
    """The drafter at work on one sequence."""

    def __init__(self, drafter: HeadsDrafter, task: DraftTask) -> None:
        super().__init__(drafter, task)
        self._levels = drafter.levels
        self._hidden: NDArray[np.float32] | None = None  # [dim] of the row before the last token
        self._seen = 0  # tokens there were when it was observed
        self._after: dict[int, NDArray[np.float32]] = {}  # z [dim] for a node's children

    def _ask(self, nodes: Sequence[int], growth: Growth, want: WantOf) -> PassResult:
        tree = growth.tree
        if nodes[0] == ROOT:
            assert self._hidden is not None
            number = self._levels.set_of(1)
            states = self._levels.start(self._hidden)[None]
            ids = np.array(self._task.tokens[-1:], np.int32)
            self._after = {}
        else:
            number = self._levels.set_of(growth.depth_of(nodes[0]) + 1)
            states = np.stack([self._after[tree.parents[node]] for node in nodes])
            ids = np.array([tree.tokens[node] for node in nodes], np.int32)
        began = time.perf_counter()
        result, states = self._levels.run(number, states, ids, want(range(len(nodes))))
        self._drafter.times.observe(len(nodes), 1e3 * (time.perf_counter() - began))
        self._after.update(zip(nodes, states, strict=True))
        return result

    def _calls(self, leaves: list[int], growth: Growth) -> list[list[int]]:
        """One for each set of heads."""
        by_set: dict[int, list[int]] = {}
        for leaf in leaves:
            by_set.setdefault(self._levels.set_of(growth.depth_of(leaf) + 1), []).append(leaf)
        return list(by_set.values())

    def _room(self) -> int:
        """The greatest depth that the context allows; 0 without the last row's hidden state."""
        count = len(self._task.tokens)
        if self._hidden is None or self._seen != count:
            return 0
        return self._task.context - count

    def observe(self, taps: Mapping[str, NDArray[np.float32]]) -> None:
        """Keep the last committed row's hidden state."""
        rows = taps[FINAL_TAP]
        if len(rows):
            self._hidden = rows[-1].copy()
            self._seen = len(self._task.tokens)
