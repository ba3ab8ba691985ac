"""Drafting with a layer: a level needs the answer's earlier rows, which it remembers.

Every committed row of the answer is fed with the base's own hidden state, those of several passes
in one call and not before something is to be proposed; what was drafted is forgotten. A call for a
level has the level's nodes and all above them, for they were not kept. Knows the layer as one
executable and its states; the rest is levelled.py's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from divine.backends.base import COMMITTED, PassResult, State, Want
from divine.drafting.base import DraftSession, DraftTask
from divine.drafting.drafters.growth import Growth
from divine.drafting.drafters.levelled import LevelDrafter, LevelSession, WantOf
from divine.drafting.tree import ROOT
from divine.heads.layer_program import MAX_ROWS, LayerLevels
from divine.program.program import FINAL_TAP


class LayerDrafter(LevelDrafter):
    """Drafts with a layer."""

    levels: LayerLevels

    def begin(self, task: DraftTask) -> DraftSession:
        """A session; it can propose once a pass has been observed."""
        return LayerSession(self, task)


class LayerSession(LevelSession):
    """The drafter at work on one sequence."""

    def __init__(self, drafter: LayerDrafter, task: DraftTask) -> None:
        super().__init__(drafter, task)
        self._levels = drafter.levels
        self._state: State | None = None
        self._fed = 0  # rows of the state
        self._waiting: list[NDArray[np.float32]] = []  # [dim] each: of rows that were not fed yet,
        self._root: NDArray[np.float32] | None = None  # and of the last one that was
        self._seen = task.prompt_length  # tokens there were when the last row was observed
        self._after: dict[int, NDArray[np.float32]] = {}  # z [dim] for a node's children

    def cost_ms(self, depth: int) -> float:
        """Milliseconds of catching up and so many levels; infinite if there is nothing to feed."""
        if self._room() < 1:
            return math.inf
        times = self._drafter.times
        return times.estimate(len(self._waiting)) + max(0, depth - 1) * times.estimate(1)

    def observe(self, taps: Mapping[str, NDArray[np.float32]]) -> None:
        """Keep the rows of the answer; of a prompt none but the last is one."""
        rows, count = taps[FINAL_TAP], len(self._task.tokens)
        answer = count - self._task.prompt_length
        if not len(rows) or answer < 1:
            return
        news = rows[-answer:].copy()
        if count - self._seen != len(news):  # read again, or some was not seen: begin anew
            self._forget()
        self._seen = count
        self._waiting += list(news)
        window = self._levels.definition.window
        if len(self._waiting) > window:  # the last row sees nothing of what came before
            self._waiting = self._waiting[-window:]
            self._drop_state()

    def _room(self) -> int:
        """The greatest depth that the context allows; 0 without the last row's hidden state."""
        count = len(self._task.tokens)
        if self._seen != count or (self._root is None and not self._waiting):
            return 0
        return self._task.context - count

    def _ask(self, nodes: Sequence[int], growth: Growth, want: WantOf) -> PassResult:
        if nodes[0] == ROOT:
            return self._feed(want)
        tree = growth.tree
        rows = sorted({above for node in nodes for above in growth.path(node)})
        places = {node: row for row, node in enumerate(rows)}
        parents = [places.get(tree.parents[node], COMMITTED) for node in rows]
        vectors = np.stack([self._after[tree.parents[node]] for node in rows])
        ids = [tree.tokens[node] for node in rows]
        wanted = want([places[node] for node in nodes])
        result, states = self._run(ids, parents, vectors, wanted)
        self._after.update(zip(rows, states, strict=True))
        return result

    def _feed(self, want: WantOf) -> PassResult:
        """Feed what waits, the last row with what is wanted."""
        if self._state is None:
            self._state = self._levels.new_state(self._task.context)
        if self._state.length != self._fed:  # an interruption came between two lines of this
            self._state.truncate(0)
            self._fed = 0
        if not self._waiting:  # asked again without a pass between
            assert self._root is not None
            self._waiting = [self._root]
            self._fed = max(0, self._fed - 1)
            self._state.truncate(self._fed)
        tokens = self._task.tokens[-len(self._waiting) :]
        while True:
            part = self._waiting[:MAX_ROWS]
            count, last = len(part), len(part) == len(self._waiting)
            hidden = self._levels.start(np.stack(part))
            wanted = want([count - 1]) if last else Want()
            chain = range(COMMITTED, count - 1)
            result, states = self._run(tokens[:count], chain, hidden, wanted)
            self._state.commit(range(count))
            self._fed += count
            self._root = part[-1]
            del self._waiting[:count]
            tokens = tokens[count:]
            if last:
                self._after = {ROOT: states[-1]}
                return result

    def _run(
        self,
        ids: Sequence[int],
        parents: Sequence[int],
        vectors: NDArray[np.float32],
        want: Want,
    ) -> tuple[PassResult, NDArray[np.float32]]:
        assert self._state is not None
        began = time.perf_counter()
        tokens, above = np.array(ids, np.int32), np.array(parents, np.int32)
        found = self._levels.run(self._state, tokens, above, vectors, want)
        self._drafter.times.observe(len(ids), 1e3 * (time.perf_counter() - began))
        return found

    def _forget(self) -> None:
        self._waiting, self._root = [], None
        self._drop_state()

    def _drop_state(self) -> None:
        if self._state is not None:
            self._state.close()
        self._state, self._fed = None, 0

    def close(self) -> None:
        """Free the state."""
        self._drop_state()
