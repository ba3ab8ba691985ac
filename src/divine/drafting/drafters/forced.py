"""ForcedDrafter: what a constraint leaves no choice about.

Between two values of a JSON object whose schema is known, all text is certain: its tokens cost rows
of one pass instead of a pass each. Text that is forced but may be cut into tokens in more than one
way, where it meets text that is not, is claimed less. Nothing to do for sequences without a
constraint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from divine.drafting.base import Budget, DraftTask, FreeDrafter
from divine.drafting.tree import DraftTree
from divine.sampling import Histories

CERTAIN = 0.999
OPEN_CUT = 0.5  # the last forced bytes may become part of a token that goes on
Encode = Callable[[str], list[int]]


class ForcedDrafter(FreeDrafter):
    """Proposes forced text as a chain."""

    name = "forced"

    def __init__(self, encode: Encode, token_bytes: Callable[[int], bytes]) -> None:
        """`encode`: token ids of a text that goes on another; `token_bytes`: of one token."""
        self._encode = encode
        self._token_bytes = token_bytes

    def begin(self, task: DraftTask) -> ForcedSession:
        """A session; it proposes nothing where there is no constraint."""
        return ForcedSession(task, self._encode, self._token_bytes)


class ForcedSession:
    """Drafts for one sequence."""

    def __init__(
        self, task: DraftTask, encode: Encode, token_bytes: Callable[[int], bytes]
    ) -> None:
        self._constraint = task.sampler.constraint
        self._encode = encode
        self._token_bytes = token_bytes

    def cost_ms(self, depth: int) -> float:
        """Free."""
        return 0.0

    def propose(self, histories: Histories, budget: Budget) -> DraftTree:
        """The forced tokens, then the likeliest cut of the forced bytes that are left."""
        if self._constraint is None:
            return DraftTree()
        tokens, text = self._constraint.forced(histories[-1])
        claims = [CERTAIN] * len(tokens)
        known = sum(len(self._token_bytes(token)) for token in tokens)
        rest = text[known:].decode(errors="ignore")
        if rest:
            open_cut = self._encode(rest)
            tokens = [*tokens, *open_cut]
            claims += [CERTAIN] * (len(open_cut) - 1) + [OPEN_CUT]
        count = min(budget.nodes, budget.depth, len(tokens))
        return DraftTree.chain(tokens[:count], claims[:count])

    def observe(self, taps: Mapping[str, NDArray[np.float32]]) -> None:
        """Needs nothing."""

    def close(self) -> None:
        """Nothing is held."""
