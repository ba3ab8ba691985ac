"""From what drafters claim to how often such claims turn out right.

Two levels. A ClaimTable is shared by all sequences: claims in bins, depths in buckets, counts that
fade, a prior centred at the claim itself. A ClaimFilter belongs to one sequence: one number that
shifts the log-odds of all its claims, known within a few tokens (a prompt where a drafter is bad,
or good, must be recognised at once). A node may be observed only if its parent was reached.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Any

# Bin borders, about evenly spaced in log-odds.
_BORDERS = (0.01, 0.03, 0.07, 0.15, 0.25, 0.35, 0.5, 0.65, 0.75, 0.85, 0.93, 0.97, 0.99)
_BUCKETS = (0, 0, 1, 2, 2, 3, 3, 3, 3)  # depth -> bucket: 1, 2, 3-4, 5-8, then 9 and more
_LAST_BUCKET = 4
_LEAST, _MOST = 0.002, 0.998  # no drafter is certain
_CLAIM_STRENGTH = 6.0  # nodes that the claim itself is worth, against all depths together
_POOL_STRENGTH = 12.0  # nodes that all depths together are worth, against one depth
_SAMPLED = " sampled"  # ends the name of a table for temperatures above 0
_FADE = 0.997  # per node of a bin: 300 nodes of memory

_VARIANCE = 1.0  # of log-odds between prompts, before a node of this one was seen
_WANDER = 0.003  # by how much it grows per node, and
_JUMP = 0.1  # times how far several surprises on one side exceed a single one: the text changed
_MEMORY = 0.8  # of surprises, per node
_REST = 0.99  # per node: back towards what is true of all prompts
_FARTHEST = 6.0


class ClaimTable:
    """Counts of one drafter, greedy or sampled, over all sequences."""

    __slots__ = ("_rights", "_totals", "nodes")

    def __init__(self) -> None:
        bins = len(_BORDERS) + 1
        self._rights = [[0.0] * bins for _ in range(_LAST_BUCKET + 2)]  # the last: all depths
        self._totals = [[0.0] * bins for _ in range(_LAST_BUCKET + 2)]
        self.nodes = 0  # ever observed

    def probability(self, depth: int, claim: float) -> float:
        """How often such a claim at this depth is right; between .002 and .998."""
        at = bisect_right(_BORDERS, claim)
        bucket = _BUCKETS[depth] if depth < 9 else _LAST_BUCKET
        pooled = (_CLAIM_STRENGTH * claim + self._rights[-1][at]) / (
            _CLAIM_STRENGTH + self._totals[-1][at]
        )
        share = (_POOL_STRENGTH * pooled + self._rights[bucket][at]) / (
            _POOL_STRENGTH + self._totals[bucket][at]
        )
        return min(max(share, _LEAST), _MOST)

    def observe(self, depth: int, claim: float, right: bool) -> None:
        """A node whose parent was reached was right or not."""
        at = bisect_right(_BORDERS, claim)
        bucket = _BUCKETS[depth] if depth < 9 else _LAST_BUCKET
        hit = 1.0 if right else 0.0
        for index in (bucket, -1):
            rights, totals = self._rights[index], self._totals[index]
            rights[at] = rights[at] * _FADE + hit
            totals[at] = totals[at] * _FADE + 1.0
        self.nodes += 1

    def data(self) -> dict[str, Any]:
        """The counts, for JSON."""
        return {"nodes": self.nodes, "rights": self._rights, "totals": self._totals}

    def restore(self, data: object) -> None:
        """Take over what data() gave; raises ValueError, and changes nothing, for anything else."""
        if not isinstance(data, dict):
            raise ValueError("not a table of claims")
        rights, totals = (_counts(data.get(name), self._rights) for name in ("rights", "totals"))
        lines = zip(rights, totals, strict=True)
        too_many = any(r > t for right, total in lines for r, t in zip(right, total, strict=True))
        if too_many or not isinstance(data.get("nodes"), int):
            raise ValueError("a damaged table of claims")
        self._rights, self._totals, self.nodes = rights, totals, data["nodes"]


class ClaimFilter:
    """One sequence's correction of a table; observe() teaches both.

    A Kalman filter for the shift of log-odds, linearised at each observation.
    """

    __slots__ = ("_drift", "_odds", "_shift", "_table", "_variance")

    def __init__(self, table: ClaimTable) -> None:
        self._table = table
        self._shift = 0.0
        self._odds = 1.0  # exp(shift)
        self._variance = _VARIANCE
        self._drift = 0.0  # recent surprises, with their sign

    def probability(self, depth: int, claim: float) -> float:
        """The table's probability, corrected for this sequence."""
        share = self._table.probability(depth, claim)
        odds = self._odds * share / (1.0 - share)
        return odds / (1.0 + odds)

    def hopeful(self, depth: int, claim: float, deviations: float) -> float:
        """The probability, so many standard deviations above what is expected."""
        share = self._table.probability(depth, claim)
        odds = self._odds * math.exp(deviations * math.sqrt(self._variance)) * share / (1.0 - share)
        return odds / (1.0 + odds)

    def observe(self, depth: int, claim: float, right: bool) -> None:
        """A node whose parent was reached was right or not."""
        share = self.probability(depth, claim)
        self._table.observe(depth, claim, right)
        surprise = 1.0 - share if right else -share
        self._drift = drift = self._drift * _MEMORY + surprise
        wander = _WANDER + _JUMP * max(0.0, drift * drift - 1.0)
        variance = 1.0 / (1.0 / (self._variance + wander) + share * (1.0 - share))
        self._variance = variance = min(variance, _VARIANCE)
        shift = self._shift * _REST + variance * surprise
        self._shift = min(max(shift, -_FARTHEST), _FARTHEST)
        self._odds = math.exp(self._shift)

    def rest(self, share: float) -> None:
        """Time without observations passed: less is certain, `share` of the shift is kept."""
        self._variance = min(self._variance + _WANDER, _VARIANCE)
        if share != 1.0:
            self._shift *= share
            self._odds = math.exp(self._shift)


class Calibration:
    """The tables of a model's drafters."""

    def __init__(self) -> None:
        self._tables: dict[tuple[str, bool], ClaimTable] = {}

    def table(self, drafter: str, sampled: bool) -> ClaimTable:
        """The counts shared by all sequences that draft with it."""
        key = (drafter, sampled)
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = ClaimTable()
        return table

    def data(self) -> dict[str, Any]:
        """The tables, for JSON."""
        return {
            f"{drafter}{_SAMPLED if sampled else ''}": table.data()
            for (drafter, sampled), table in self._tables.items()
            if table.nodes
        }

    def restore(self, data: object) -> None:
        """Take over what data() gave; raises ValueError, and changes nothing, for anything else."""
        if not isinstance(data, dict):
            raise ValueError("no tables of claims")
        tables: dict[tuple[str, bool], ClaimTable] = {}
        for name, entry in data.items():
            key = (name.removesuffix(_SAMPLED), name.endswith(_SAMPLED))
            tables[key] = ClaimTable()
            tables[key].restore(entry)
        self._tables = tables

    def probability(self, drafter: str, depth: int, claim: float, sampled: bool) -> float:
        """How often such a claim is right, over all sequences."""
        return self.table(drafter, sampled).probability(depth, claim)

    def observe(self, drafter: str, depth: int, claim: float, sampled: bool, right: bool) -> None:
        """Count a node whose parent was reached."""
        self.table(drafter, sampled).observe(depth, claim, right)


def _counts(lines: object, like: list[list[float]]) -> list[list[float]]:
    """Lists of numbers of the same sizes as `like`; raises ValueError for anything else."""
    if not isinstance(lines, list) or len(lines) != len(like):
        raise ValueError("a damaged table of claims")
    counts: list[list[float]] = []
    for line, model in zip(lines, like, strict=True):
        if not isinstance(line, list) or len(line) != len(model):
            raise ValueError("a damaged table of claims")
        if not all(isinstance(n, (int, float)) and 0 <= n < math.inf for n in line):
            raise ValueError("a damaged table of claims")
        counts.append([float(n) for n in line])
    return counts
