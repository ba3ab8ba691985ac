"""The drafter "mtp": heads that predict from the base's own last hidden state.

Nothing of the base is computed again: a pass hands over the hidden state of its last committed
row, and each level of the tree is one small call. Siblings, claims and the tree itself come about
as with a draft model. Knows the heads as levels; no files, no definition and no passes of the base.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from divine.backends.base import Want
from divine.drafting.base import Budget, DraftSession, DraftTask
from divine.drafting.draft_model import DraftVocabulary
from divine.drafting.growth import Growth
from divine.drafting.guesses import guesser_for
from divine.drafting.reader import PassTimes
from divine.drafting.tree import ROOT, DraftTree
from divine.heads.levels import Levels
from divine.program.program import FINAL_TAP
from divine.sampling import Histories

DRAFT_MAX = 16
WIDTH = 4
EXPECTED_CLAIM = 0.4  # before anything is known of a text
NEWS = 0.1  # weight of a new claim in what is expected


class HeadsDrafter:
    """Drafts with heads; shared by the sequences of one model."""

    name = "mtp"
    free = False
    taps: tuple[str, ...] = (FINAL_TAP,)

    def __init__(
        self,
        levels: Levels,
        always: NDArray[np.bool_],
        prior: Mapping[int, float],
        *,
        ends: frozenset[int] = frozenset(),
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        """`always` bool [vocabulary]: tokens that are always drafted; all of them for the whole.

        `prior`: nodes -> a first estimate of a level's milliseconds. `ends`: tokens that end an
        answer.
        """
        self.levels = levels
        self.always = always
        self.ends = ends
        self.times = PassTimes(prior)
        self._on_close = on_close
        self.cancelled = False

    def begin(self, task: DraftTask) -> DraftSession:
        """A session; it can propose once a pass has been observed."""
        return HeadsSession(self, task)

    def cancel(self) -> None:
        """End what is being proposed after the level in progress, from any thread."""
        self.cancelled = True

    def forget(self) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Free the heads; may be called twice."""
        self.levels.close()
        self._on_close()
        self._on_close = lambda: None


class HeadsSession:
    """The drafter at work on one sequence."""

    def __init__(self, drafter: HeadsDrafter, task: DraftTask) -> None:
        levels = self._levels = drafter.levels
        self._drafter = drafter
        self._task = task
        self._guesser = guesser_for(task.sampler, task.rejection, levels.base.vocabulary, WIDTH)
        self._vocabulary = DraftVocabulary(levels.base, drafter.always, levels.packed)
        self._hidden: NDArray[np.float32] | None = None  # [dim] of the row before the last token
        self._seen = 0  # tokens there were when it was observed
        self._expected = EXPECTED_CLAIM

    def cost_ms(self, depth: int) -> float:
        """Milliseconds of so many levels; infinite if there is no hidden state to begin with."""
        if self._room() < 1:
            return math.inf
        return depth * self._drafter.times.estimate(1)

    def propose(self, histories: Histories, budget: Budget) -> DraftTree:
        """A tree of the heads' guesses; empty if there is nothing to begin with.

        Raises NumericError if the heads produce NaN.
        """
        self._drafter.cancelled = False
        nodes = min(budget.nodes, DRAFT_MAX)
        depth = min(budget.depth, nodes, self._room())
        if depth < 1:
            return DraftTree()
        growth = Growth(budget, nodes, depth, self._drafter.ends, self._expected)
        return growth.finish() if self._grow(growth, histories) else DraftTree()

    def _grow(self, growth: Growth, histories: Histories) -> bool:
        """Ask level by level; False if cancelled."""
        task, tree, drafter = self._task, growth.tree, self._drafter
        tokens = task.tokens
        count = len(tokens)
        shortlist = self._vocabulary.of(tokens)
        hidden = self._hidden
        assert hidden is not None
        at = {ROOT: histories}  # histories after a node
        after: dict[int, NDArray[np.float32]] = {}  # z [dim] that a node's children start from

        def ask(number: int, nodes: Sequence[int]) -> None:
            """Guess below these nodes, all of one set of heads."""
            parents = [tree.parents[node] if node != ROOT else ROOT for node in nodes]
            if nodes[0] == ROOT:
                states = self._levels.start(hidden)[None]
                ids = np.array(tokens[-1:], np.int32)
            else:
                states = np.stack([after[parent] for parent in parents])
                ids = np.array([tree.tokens[node] for node in nodes], np.int32)
            want: Want = self._guesser.want(range(len(nodes)), shortlist)
            began = time.perf_counter()
            result, states = self._levels.run(number, states, ids, want)
            drafter.times.observe(len(nodes), 1e3 * (time.perf_counter() - began))
            for line, node in enumerate(nodes):
                depth = 0
                if node != ROOT:
                    depth = growth.depth_of(node)
                    at[node] = task.sampler.advance(at[parents[line]], tree.tokens[node])
                after[node] = states[line]
                guesses = self._guesser.guess(result, line, at[node], count + depth)
                self._expect(growth, growth.sprout(node, guesses))

        ask(self._levels.set_of(1), [ROOT])
        while (level := growth.next_level(drafter.times.estimate)) is not None:
            if drafter.cancelled:
                return False
            by_set: dict[int, list[int]] = {}
            for leaf in level.leaves:
                by_set.setdefault(self._levels.set_of(growth.depth_of(leaf) + 1), []).append(leaf)
            for number, leaves in by_set.items():
                ask(number, leaves)
        return True

    def _expect(self, growth: Growth, likely: float) -> None:
        self._expected += NEWS * (likely - self._expected)
        growth.expected = self._expected

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

    def close(self) -> None:
        """Nothing is held."""
