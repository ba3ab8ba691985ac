"""SyntheticDrafter: drafts that are right with a probability set beforehand, for measuring.

It knows the answer (`DraftTask.guess` holds what the model says without drafts) and spoils its own
proposals at random, so that what a drafter of some quality would be worth can be measured without
one. A position's token is right or spoilt whenever it is proposed, and again in the next run: that
depends on seed and position only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from divine.drafting.base import Budget, DraftTask, FreeDrafter
from divine.drafting.tree import DraftTree
from divine.errors import UsageError
from divine.sampling import Histories

PREFIX = "synthetic:"
_MASK = (1 << 64) - 1


class SyntheticDrafter(FreeDrafter):
    """Proposes chains whose tokens are each right with one probability, which is their claim."""

    def __init__(self, probability: float) -> None:
        self._probability = float(probability)
        self.name = f"{PREFIX}{probability:g}"

    @classmethod
    def from_name(cls, name: str) -> SyntheticDrafter:
        """The drafter of "synthetic:P"; raises UsageError for a P that is no probability."""
        given = name.removeprefix(PREFIX)
        try:
            probability = float(given)
        except ValueError:
            probability = math.nan
        if not 0 <= probability <= 1:
            raise UsageError(f"--draft {name} has P {given}; allowed are probabilities from 0 to 1")
        return cls(probability)

    def begin(self, task: DraftTask) -> SyntheticSession:
        """A session that follows task.guess until the sequence departs from it."""
        return SyntheticSession(task, self._probability)


class SyntheticSession:
    """Drafts for one sequence."""

    def __init__(self, task: DraftTask, probability: float) -> None:
        self._tokens = task.tokens
        self._answer = list(task.guess)
        self._start = task.prompt_length
        self._seed = task.sampler.seed
        self._probability = probability
        self._compared = 0  # tokens of the sequence's answer that are known to be as guessed

    def cost_ms(self, depth: int) -> float:
        """Free."""
        return 0.0

    def propose(self, histories: Histories, budget: Budget) -> DraftTree:
        """A chain, right and spoilt tokens mixed; empty after a departure or at the answer's end.

        What follows a spoilt token is proposed as if it were none, as drafters do.
        """
        known = len(self._tokens) - self._start
        latest = list(self._tokens[self._start + self._compared :])
        if latest != self._answer[self._compared : known]:
            self._answer = []  # departed: whatever it says from here on, it was not foreseen
        self._compared = known
        count = min(budget.nodes, budget.depth)
        position = len(self._tokens)
        tokens = []
        for token in self._answer[known : known + count]:
            tokens.append(token if self._right(position) else _spoilt(token))
            position += 1
        return DraftTree.chain(tokens, [self._probability] * len(tokens))

    def observe(self, taps: Mapping[str, NDArray[np.float32]]) -> None:
        """Needs nothing."""

    def close(self) -> None:
        """Nothing is held."""

    def _right(self, position: int) -> bool:
        return _uniform(self._seed, position) < self._probability


def _spoilt(token: int) -> int:
    """Another token; a neighbour, since the size of the vocabulary is not known here."""
    return token - 1 if token else 1


def _uniform(seed: int, position: int) -> float:
    """0 to 1, 1 excluded: the finalizer of SplitMix64 over a counter (Steele, Lea, Flood 2014)."""
    mixed = _mix(_mix(seed) + position)
    return (mixed >> 11) / (1 << 53)


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
