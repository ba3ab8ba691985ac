"""DepthCounts: what became of drafted nodes at one depth, all of them or those of one drafter.

Only nodes that had a row in a pass count; a node that several drafters proposed counts once among
all, and for each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from itertools import zip_longest

from divine.drafting.tree import DraftTree


@dataclass(slots=True)
class DepthCounts:
    """Nodes at one depth; acceptance is accepted / (accepted + rejected)."""

    accepted: int = 0  # on the walk
    rejected: int = 0  # its parent is on the walk (or is the root), it is not
    unreached: int = 0  # its parent is not

    @property
    def drafted(self) -> int:
        """All of them."""
        return self.accepted + self.rejected + self.unreached


@dataclass(frozen=True)
class DraftCounts:
    """The same by depth, as figures; entry 0 of each is depth 1."""

    drafted: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()
    rejected: tuple[int, ...] = ()
    unreached: tuple[int, ...] = ()

    @staticmethod
    def of(depths: Sequence[DepthCounts]) -> DraftCounts:
        """The counts of all depths."""
        return DraftCounts(
            tuple(at.drafted for at in depths),
            tuple(at.accepted for at in depths),
            tuple(at.rejected for at in depths),
            tuple(at.unreached for at in depths),
        )

    def __add__(self, other: DraftCounts) -> DraftCounts:
        """Both together."""
        return DraftCounts(
            *(
                tuple(map(sum, zip_longest(mine, theirs, fillvalue=0)))
                for mine, theirs in zip(astuple(self), astuple(other), strict=True)
            )
        )

    @property
    def acceptance(self) -> tuple[float | None, ...]:
        """By depth: accepted / (accepted + rejected), the share of those whose parent was right."""
        return tuple(
            right / (right + wrong) if right + wrong else None
            for right, wrong in zip(self.accepted, self.rejected, strict=True)
        )


def count_nodes(
    tree: DraftTree,
    accepted: list[int],
    every: list[DepthCounts],
    drafters: Iterable[list[DepthCounts]],
) -> None:
    """Add a verified tree; every[d - 1] is of depth d, drafter i has bit i of the sources."""
    depths = tree.depths()
    on_walk = set(accepted)
    counted = [(-1, every), *((1 << bit, counts) for bit, counts in enumerate(drafters))]
    for node, (parent, sources) in enumerate(zip(tree.parents, tree.sources, strict=True)):
        depth = depths[node]
        reached = parent < 0 or parent in on_walk
        for mask, counts in counted:
            if not sources & mask:
                continue
            while len(counts) < depth:
                counts.append(DepthCounts())
            at = counts[depth - 1]
            if node in on_walk:
                at.accepted += 1
            elif reached:
                at.rejected += 1
            else:
                at.unreached += 1
