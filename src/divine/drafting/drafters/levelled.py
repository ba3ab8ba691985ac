"""What drafting with heads has in common, whatever their architecture: the drafter "mtp".

Nothing of the base is computed again: a pass hands over the hidden states of committed rows, and
each level of the tree is one small call. Siblings, claims and the tree itself come about as with a
draft model. Knows no files, no definition and no passes of the base; the calls are heads.py's and
layer.py's.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from divine.backends.base import PassResult, Want
from divine.drafting.base import Budget, DraftSession, DraftTask
from divine.drafting.drafters.draft_model import DraftVocabulary
from divine.drafting.drafters.growth import Growth
from divine.drafting.drafters.guesses import guesser_for
from divine.drafting.drafters.reader import PassTimes
from divine.drafting.tree import ROOT, DraftTree
from divine.heads.levels import OnBase
from divine.program.program import FINAL_TAP
from divine.sampling import Histories

DRAFT_MAX = 16
WIDTH = 4
EXPECTED_CLAIM = 0.4  # before anything is known of a text
NEWS = 0.1  # weight of a new claim in what is expected

WantOf = Callable[[Sequence[int]], Want]


class LevelDrafter(ABC):
    """Drafts with heads; shared by the sequences of one model."""

    name = "mtp"
    free = False
    taps: tuple[str, ...] = (FINAL_TAP,)

    def __init__(
        self,
        levels: OnBase,
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

    @abstractmethod
    def begin(self, task: DraftTask) -> DraftSession:
        """A session; it can propose once a pass has been observed."""

    def cancel(self) -> None:
        """End what is being proposed after the level in progress, from any thread."""
        self.cancelled = True

    def forget(self) -> None:  # noqa: B027 - none has anything to forget
        """Nothing is kept."""

    def close(self) -> None:
        """Free the heads; may be called twice."""
        self.levels.close()
        self._on_close()
        self._on_close = lambda: None


class LevelSession(ABC):
    """A drafter at work on one sequence, level by level."""

    def __init__(self, drafter: LevelDrafter, task: DraftTask) -> None:
        levels = drafter.levels
        self._drafter = drafter
        self._task = task
        self._guesser = guesser_for(task.sampler, task.rejection, levels.base.vocabulary, WIDTH)
        self._vocabulary = DraftVocabulary(levels.base, drafter.always, levels.packed)
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
        count = len(task.tokens)
        shortlist = self._vocabulary.of(task.tokens)
        at = {ROOT: histories}  # histories after a node

        def guess_below(nodes: Sequence[int]) -> None:
            result = self._ask(nodes, growth, lambda rows: self._guesser.want(rows, shortlist))
            for line, node in enumerate(nodes):
                depth = 0
                if node != ROOT:
                    depth = growth.depth_of(node)
                    at[node] = task.sampler.advance(at[tree.parents[node]], tree.tokens[node])
                guesses = self._guesser.guess(result, line, at[node], count + depth)
                self._expect(growth, growth.sprout(node, guesses))

        guess_below([ROOT])
        while (level := growth.next_level(drafter.times.estimate)) is not None:
            if drafter.cancelled:
                return False
            for leaves in self._calls(level.leaves, growth):
                guess_below(leaves)
        return True

    @abstractmethod
    def _ask(self, nodes: Sequence[int], growth: Growth, want: WantOf) -> PassResult:
        """One call: what `want` says of some of its rows, which are these nodes in their order.

        `nodes`: ROOT alone, the first of a tree, or ascending leaves.
        """

    def _calls(self, leaves: list[int], growth: Growth) -> list[list[int]]:
        """The leaves of a level by the call that answers them."""
        return [leaves]

    def _expect(self, growth: Growth, likely: float) -> None:
        self._expected += NEWS * (likely - self._expected)
        growth.expected = self._expected

    @abstractmethod
    def _room(self) -> int:
        """The greatest depth that the context allows; 0 if there is nothing to begin with."""

    @abstractmethod
    def observe(self, taps: Mapping[str, NDArray[np.float32]]) -> None:
        """Keep what is needed of committed rows."""

    def close(self) -> None:  # noqa: B027 - heads hold nothing
        """Free what is held."""
