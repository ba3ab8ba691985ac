"""Which nodes of the proposed trees get rows: pure arithmetic on probabilities and costs.

The rule: the rows of a pass are worth the sum of their paths' probabilities (expected tokens) minus
price times the milliseconds they add. Costs rise in steps, so every number of rows is tried.
`curve[n]` is the cost of a pass with n nodes in it, `price` tokens per millisecond, `plain` the
cost of a pass with neither nodes nor rows that only read a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from divine.drafting.tree import DraftTree


class Curve(Protocol):
    """Milliseconds by number of nodes; never falling."""

    def __len__(self) -> int: ...

    def __getitem__(self, nodes: int, /) -> float: ...


def path_probabilities(tree: DraftTree) -> list[float]:
    """For each node the probability that it and its ancestors are right, claims being honest."""
    paths: list[float] = []
    for parent, claim in zip(tree.parents, tree.claims, strict=True):
        paths.append(claim if parent < 0 else paths[parent] * claim)
    return paths


def ranked(paths: Sequence[float], most: int) -> list[int]:
    """The `most` likeliest nodes, best first; with a node always its parent (ties: by index)."""
    return sorted(range(len(paths)), key=paths.__getitem__, reverse=True)[:most]


def best_count(
    paths: Sequence[float], curve: Curve, price: float, plain: float, roots: int = 1
) -> tuple[int, float]:
    """How many of these falling probabilities to take, and the tokens gained beyond their price.

    Time is worth at least what this very pass can make of it, per millisecond (`roots` sequences
    get a token each in the `plain` milliseconds without nodes): what more rows would bring then
    comes as cheaply in the next pass, when it is known that these came true.
    """
    best, gain, total, base = 0, 0.0, 0.0, curve[0]
    densest, density, at_density = 0, price, 0.0
    for count, path in enumerate(paths[: len(curve) - 1], 1):
        total += path
        added = curve[count] - base
        net = total - price * added
        if net > gain:
            best, gain = count, net
        if roots + total > density * (plain + added):
            densest, density, at_density = count, (roots + total) / (plain + added), net
    return (densest, at_density) if densest else (best, gain)


def share_rows(
    wishes: Sequence[Sequence[float]],
    curve: Curve,
    price: float,
    plain: float,
    roots: int,
) -> list[int]:
    """Rows for each of several sequences that compete for one pass.

    `wishes` holds each one's path probabilities, falling; the likeliest nodes of all go first.
    """
    if len(wishes) == 1:
        return [best_count(wishes[0], curve, price, plain, roots)[0]]
    every = sorted(
        ((path, -index) for index, paths in enumerate(wishes) for path in paths), reverse=True
    )
    count, _ = best_count([path for path, _ in every], curve, price, plain, roots)
    shares = [0] * len(wishes)
    for _, index in every[:count]:
        shares[-index] += 1
    return shares


def worthy_levels(tree: DraftTree, curve: Curve, price: float) -> list[int]:
    """The nodes of whole levels, cut before the first that is not worth its mean price.

    For drawn nodes: whether a level is kept depends on the claims of that level and of those above
    (which do not depend on the level's own draws), never on what was drawn in it or below, so the
    kept draws have the distributions that their acceptance counts on.
    """
    most = len(curve) - 1
    mean = price * (curve[most] - curve[0]) / most if most else 0.0
    paths = path_probabilities(tree)
    levels: dict[int, list[int]] = {}
    for node, depth in enumerate(tree.depths()):
        levels.setdefault(depth, []).append(node)
    kept: list[int] = []
    for depth in sorted(levels):
        level = levels[depth]
        too_many = len(kept) + len(level) > most
        if too_many or sum(paths[node] for node in level) < mean * len(level):
            break
        kept += level
    return kept
