"""TableDrafter: reads on in a static table of what the model tends to write.

No arithmetic and nothing to train here: a look-up for each node. Best where a text is ordinary, and
where no earlier text can be copied. What a node's probability is worth the controller learns.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from divine.drafting.base import Budget, DraftTask, FreeDrafter
from divine.drafting.drafters.ngram_table import ORDERS, NgramTable
from divine.drafting.tree import ROOT, DraftTree
from divine.sampling import Histories

_SPAN = max(ORDERS)
_REMEMBERED = 4096  # contexts whose continuations are kept ready
_SIBLINGS = 4
_LEAST = 0.01  # probability of a path that is looked at


class TableDrafter(FreeDrafter):
    """Drafts from an NgramTable."""

    name = "table"

    def __init__(self, table: NgramTable) -> None:
        self._table = table
        self._ready: OrderedDict[tuple[int, ...], list[tuple[int, float]]] = OrderedDict()

    def begin(self, task: DraftTask) -> TableSession:
        """A session for one sequence."""
        return TableSession(self, task)

    def after(self, context: tuple[int, ...]) -> list[tuple[int, float]]:
        """The likeliest continuations of the last tokens."""
        ready = self._ready
        found = ready.get(context)
        if found is None:
            found = ready[context] = self._table.after(context, _SIBLINGS)
            if len(ready) > _REMEMBERED:
                ready.popitem(last=False)
        return found


class TableSession:
    """Drafts for one sequence; remembers nothing of it."""

    def __init__(self, drafter: TableDrafter, task: DraftTask) -> None:
        self._drafter = drafter
        self._tokens: Sequence[int] = task.tokens

    def cost_ms(self, depth: int) -> float:
        """Free."""
        return 0.0

    def propose(self, histories: Histories, budget: Budget) -> DraftTree:
        """The likeliest paths first, as far as they promise to be worth a row."""
        tree = DraftTree()
        after, calibrate = self._drafter.after, budget.calibrate
        least = max(_LEAST, budget.row_price)
        offers = 0
        # -probability of the path, order of the offers, token, claim, parent, depth, context
        queue: list[tuple[float, int, int, float, int, int, tuple[int, ...]]] = []

        def offer(context: tuple[int, ...], parent: int, depth: int, path: float) -> None:
            nonlocal offers
            for token, claim in after(context):
                likely = path * calibrate(depth, claim)
                if likely >= least:
                    offers += 1
                    heappush(queue, (-likely, offers, token, claim, parent, depth, context))

        offer(tuple(self._tokens[-_SPAN:]), ROOT, 1, 1.0)
        while queue and len(tree) < budget.nodes:
            negative, _, token, claim, parent, depth, context = heappop(queue)
            node = tree.add(token, parent, min(claim, 1.0))
            if depth < budget.depth:
                offer((*context, token)[-_SPAN:], node, depth + 1, -negative)
        return tree

    def observe(self, taps: Mapping[str, NDArray[np.float32]]) -> None:
        """Needs nothing."""

    def close(self) -> None:
        """Holds nothing."""
