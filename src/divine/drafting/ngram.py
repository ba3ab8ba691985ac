"""NgramDrafter: what came next when prompt or answer ended like this before.

Copies of the prompt, with changes too, and the answer's own repetitions are what it is good at. It
needs no model and takes microseconds, whatever the length of the text. A claim grows with the match
and with the places that agree.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from divine.drafting.base import Budget, DraftTask, FreeDrafter
from divine.drafting.follower import Follower
from divine.drafting.suffixes import SuffixIndex, read_on
from divine.drafting.tree import DraftTree
from divine.sampling import Histories


class NgramDrafter(FreeDrafter):
    """Looks up the end of the sequence in all that is before it."""

    name = "ngram"

    def begin(self, task: DraftTask) -> NgramSession:
        """A session with an index of its own, made when it first proposes."""
        return NgramSession(task)


class NgramSession:
    """Drafts for one sequence."""

    def __init__(self, task: DraftTask) -> None:
        self._tokens = task.tokens
        self._index = SuffixIndex(task.tokens)
        self._follower = Follower(task.tokens)
        self._taken = len(task.tokens)

    def cost_ms(self, depth: int) -> float:
        """Free."""
        return 0.0

    def propose(self, histories: Histories, budget: Budget) -> DraftTree:
        """What followed the longest matches of the sequence's end, and of shorter ones."""
        tokens = self._tokens
        self._index.extend()
        follower = self._follower
        follower.take(tokens[self._taken :])
        self._taken = len(tokens)
        places = follower.join(tokens, self._index.find(tokens))
        return read_on(
            tokens, places, budget, loop=True, changes=follower.changes, owed=follower.owed
        )

    def observe(self, taps: Mapping[str, NDArray[np.float32]]) -> None:
        """Needs nothing."""

    def close(self) -> None:
        """The index goes with the session."""
