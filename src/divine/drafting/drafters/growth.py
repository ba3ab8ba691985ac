"""Growing a draft tree level by level: which places to ask the draft model about next.

Keeps the calibrated probability of each node's path, picks the leaves worth a row of the draft's
next pass, and cuts the tree at the best nodes. Knows prices and probabilities; runs no model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from divine.drafting.base import Budget
from divine.drafting.drafters.guesses import Guess
from divine.drafting.tree import ROOT, DraftTree

PASS_ROWS = 8  # of a draft pass for one level: more would cost more than a second level


@dataclass(frozen=True, slots=True)
class Level:
    """The next pass of the draft model: leaves to ask, and the path all of them share."""

    leaves: list[int]
    shared: list[int]  # nodes, from the root
    branches: list[list[int]]  # for each leaf its nodes after the shared ones, itself the last


class Growth:
    """A tree in the making.

    `expected`: the calibrated probability that a best guess is thought to have before it is known.
    """

    def __init__(
        self, budget: Budget, nodes: int, depth: int, ends: frozenset[int], expected: float
    ) -> None:
        """`ends`: tokens after which nothing follows."""
        self.tree = DraftTree()
        self.expected = expected
        self._budget = budget
        self._nodes = nodes
        self._depth = depth
        self._ends = ends
        self._chances: list[float] = []  # of each node's path
        self._depths: list[int] = []
        self._leaves: set[int] = set()  # nodes that may still be asked

    def sprout(self, parent: int, guesses: Sequence[Guess]) -> float:
        """Add guesses below a node or ROOT; returns the calibrated claim of the first."""
        chance = 1.0 if parent == ROOT else self._chances[parent]
        depth = 1 if parent == ROOT else self._depths[parent] + 1
        self._leaves.discard(parent)
        best = 0.0
        for token, claim, draw in guesses:
            likely = min(1.0, max(0.0, self._budget.calibrate(depth, claim)))
            best = max(best, likely)
            if chance * likely < self._budget.row_price:
                continue
            node = self.tree.add(token, parent, claim)
            if draw is not None:
                self.tree.draws = self.tree.draws or []
                self.tree.draws.append(draw)
            self._chances.append(chance * likely)
            self._depths.append(depth)
            if depth < self._depth and token not in self._ends:
                self._leaves.add(node)
        return best

    def next_level(self, ms: Callable[[int], float]) -> Level | None:
        """The leaves worth asking in a pass, where n rows take ms(n); None when it is enough."""
        leaves = sorted(self._leaves, key=lambda node: (-self._chances[node], node))
        if not leaves:
            return None
        least = self._budget.row_price
        if len(self.tree) >= self._nodes:  # a new node must be better than one that is there
            least = max(least, sorted(self._chances, reverse=True)[self._nodes - 1])
        level = None
        spent = hope = 0.0
        for leaf in leaves:
            gain = self._chances[leaf] * self.expected
            if gain < least or (gain == least and len(self.tree) >= self._nodes):
                break
            larger = self._level([leaf] if level is None else [*level.leaves, leaf])
            rows = len({node for branch in larger.branches for node in branch})
            if rows > PASS_ROWS:
                break
            cost = ms(rows)
            if level is None or gain >= self._budget.time_price * (cost - spent):
                level, spent, hope = larger, cost, hope + gain
        return level if hope >= self._budget.time_price * spent else None

    def _level(self, leaves: list[int]) -> Level:
        leaves = sorted(leaves)
        paths = [self.path(leaf) for leaf in leaves]
        shared = paths[0][:-1]
        for path in paths[1:]:
            same = 0
            while same < min(len(shared), len(path) - 1) and shared[same] == path[same]:
                same += 1
            shared = shared[:same]
        return Level(leaves, shared, [path[len(shared) :] for path in paths])

    def path(self, node: int) -> list[int]:
        """The nodes from the root to this one, itself the last."""
        path: list[int] = []
        while node != ROOT:
            path.append(node)
            node = self.tree.parents[node]
        return path[::-1]

    def depth_of(self, node: int) -> int:
        """Depth of a node; children of the root have 1."""
        return self._depths[node]

    def finish(self) -> DraftTree:
        """The tree of the best nodes."""
        if len(self.tree) <= self._nodes:
            return self.tree
        order = sorted(range(len(self.tree)), key=lambda node: (-self._chances[node], node))
        return self.tree.keep(order[: self._nodes])
