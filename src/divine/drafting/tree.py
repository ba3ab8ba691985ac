"""DraftTree: guesses at how a sequence goes on, as data.

A tree hangs below the last token that is known. Nodes lie in one list, parents before children, and
siblings hold different tokens. A chain is a tree. Knows no drafters, no costs and no model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_ROUNDING = 1e-3  # of the sum of a distribution
ROOT = -1  # as a parent: the last token known, which is no node


@dataclass(slots=True)
class DraftTree:
    """The nodes of a tree, one entry of each list per node.

    tokens   token ids
    parents  index of an earlier node, or ROOT
    claims   0 to 1: the estimate that this node is right, given that its parent is
    sources  bit set: bit i says that drafter i of the sequence's drafters proposed it
    draws    for rejection sampling only: the distribution float64 [vocabulary] from which the node
             was drawn, given the siblings before it; None: it was not drawn but certain
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    claims: list[float] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    draws: list[NDArray[np.float64] | None] | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @staticmethod
    def chain(tokens: Sequence[int], claims: Sequence[float]) -> DraftTree:
        """Each token the child of the one before."""
        count = len(tokens)
        return DraftTree(list(tokens), list(range(-1, count - 1)), list(claims), [1] * count)

    def add(self, token: int, parent: int, claim: float, source: int = 1) -> int:
        """Append a node; returns its index."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.claims.append(claim)
        self.sources.append(source)
        return len(self.tokens) - 1

    def child(self, node: int, token: int) -> int | None:
        """The child of `node` (or ROOT) that holds `token`."""
        for index in range(node + 1, len(self.tokens)):
            if self.parents[index] == node and self.tokens[index] == token:
                return index
        return None

    def children(self, node: int) -> list[int]:
        """The children of `node` (or ROOT), in order."""
        return [i for i in range(node + 1, len(self.parents)) if self.parents[i] == node]

    def depths(self) -> list[int]:
        """Depth of each node; children of the root have depth 1."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return depths

    def keep(self, nodes: Iterable[int]) -> DraftTree:
        """The tree of these nodes only; with a node its parent must be kept."""
        kept = sorted(nodes)
        index = {node: i for i, node in enumerate(kept)}
        index[ROOT] = ROOT
        return DraftTree(
            [self.tokens[i] for i in kept],
            [index[self.parents[i]] for i in kept],
            [self.claims[i] for i in kept],
            [self.sources[i] for i in kept],
            None if self.draws is None else [self.draws[i] for i in kept],
        )

    def check(self, vocabulary: int) -> None:
        """Raise ValueError, naming the first offending node, unless the tree is well-formed."""
        sizes = {len(self.tokens), len(self.parents), len(self.claims), len(self.sources)}
        if self.draws is not None:
            sizes.add(len(self.draws))
        if len(sizes) != 1:
            raise ValueError("the lists of a draft tree differ in length")
        seen = set()
        for node, (token, parent, claim, source) in enumerate(
            zip(self.tokens, self.parents, self.claims, self.sources, strict=True)
        ):
            if not type(token) is type(parent) is type(source) is int:  # no bool, no 1.0
                raise ValueError(
                    f"node {node} is {token!r} below {parent!r} from {source!r}; all must be int"
                )
            if not 0 <= token < vocabulary:
                raise ValueError(f"node {node} has token {token}, outside 0 to {vocabulary - 1}")
            if not ROOT <= parent < node:
                raise ValueError(f"node {node} has parent {parent}; parents come before children")
            if not 0 <= claim <= 1:
                raise ValueError(f"node {node} claims {claim}, outside 0 to 1")
            if (parent, token) in seen:
                raise ValueError(f"node {node} repeats token {token} of a sibling")
            seen.add((parent, token))
        for node, drawn_from in enumerate(self.draws or ()):
            if drawn_from is not None:
                _check_draw(node, self.tokens[node], drawn_from, vocabulary)


def _check_draw(node: int, token: int, drawn_from: object, vocabulary: int) -> None:
    """Raise ValueError unless the node can have been drawn from this distribution."""
    if not isinstance(drawn_from, np.ndarray) or drawn_from.shape != (vocabulary,):
        shape = getattr(drawn_from, "shape", type(drawn_from).__name__)
        raise ValueError(f"node {node} was drawn from {shape}; [{vocabulary}] is needed")
    if not (drawn_from >= 0).all() or not abs(float(drawn_from.sum()) - 1) < _ROUNDING:
        raise ValueError(f"node {node} was drawn from what is no distribution")
    if not drawn_from[token] > 0:
        raise ValueError(f"node {node} holds token {token}, which its distribution never draws")


def merge(trees: Sequence[DraftTree]) -> DraftTree:
    """One tree of several: equal prefixes once, the largest claim, the union of the sources."""
    if len(trees) == 1:
        return trees[0]
    merged = DraftTree()
    place: dict[tuple[int, int], int] = {}  # (parent, token) in `merged` -> node
    for tree in trees:
        moved: list[int] = []
        for token, parent, claim, source in zip(
            tree.tokens, tree.parents, tree.claims, tree.sources, strict=True
        ):
            key = (ROOT if parent == ROOT else moved[parent], token)
            node = place.get(key)
            if node is None:
                node = place[key] = merged.add(token, key[0], claim, source)
            else:
                merged.claims[node] = max(merged.claims[node], claim)
                merged.sources[node] |= source
            moved.append(node)
    return merged
