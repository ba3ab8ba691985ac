"""TextDrafter: the caller's own guess at the answer, such as the file that is to be edited.

Follows the guess from its first token on, and finds its place again where the answer differs from
it: by what a change would look like near the place, by longer matches anywhere. Tokens of the guess
need not begin where those of the answer do.
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

# The first token of the guess is worth a match of this length, as right as any caller's guess.
_TRUST = 4


class TextDrafter(FreeDrafter):
    """Reads on in DraftTask.guess."""

    name = "text"

    def begin(self, task: DraftTask) -> TextSession:
        """A session at the start of the guess."""
        return TextSession(task)


class TextSession:
    """Drafts for one sequence."""

    def __init__(self, task: DraftTask) -> None:
        self._tokens = task.tokens
        self._start = self._taken = task.prompt_length
        self._guess = list(task.guess)
        self._index = SuffixIndex(self._guess)
        self._index.extend()
        self._follower = Follower(self._guess, _TRUST)

    def cost_ms(self, depth: int) -> float:
        """Free."""
        return 0.0

    def propose(self, histories: Histories, budget: Budget) -> DraftTree:
        """How the guess goes on where the answer has come to; after a change, where that may be."""
        follower = self._follower
        follower.take(self._tokens[self._taken :])
        self._taken = len(self._tokens)
        found = self._index.find(self._tokens, self._start)
        places = follower.join(self._tokens, found)
        return read_on(
            self._guess, places, budget, loop=False, changes=follower.changes, owed=follower.owed
        )

    def observe(self, taps: Mapping[str, NDArray[np.float32]]) -> None:
        """Needs nothing."""

    def close(self) -> None:
        """The guess goes with the session."""
