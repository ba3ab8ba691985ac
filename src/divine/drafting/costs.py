"""CostTable: the milliseconds of a pass by its rows and context, from a prior and from real passes.

    cost(n, L) = scale * (level(n) + slope * n * L)        level(n) = prior(n) * exp(shift(n))

The scale follows the machine (other programs, frequencies), the shifts correct the prior's shape
where passes of n rows were seen; rows never seen take the shifts of their neighbours. Knows no
drafters, and not what a row is good for.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

TABLE_ROWS = 64  # longer passes read prompts; their cost goes on in a straight line
# Relative costs of the design's measured model; the milliseconds are of a 1.5B model on two cores.
_DEFAULT = {1: 56.0, 2: 57.0, 3: 63.0, 4: 67.0, 5: 77.0, 6: 90.0, 8: 116.0, 16: 221.0, 64: 880.0}

_SCALE_GAIN = 0.15  # share of a residual that is the machine's, once the shape is known
_NEWS, _NEWS_GAIN = 3, 0.4  # the same, once so many in a row lay beyond the clip on one side
_SHIFT_GAIN = 0.02  # least share of it that is the shape's: slow, since the shape hardly changes
_SHRINK = 0.25  # passes that the prior's shape is worth
_FORGET = 0.995  # per pass: what was seen once, badly, is tried again after some hundred passes
_CLIP = 0.2  # of a residual (log): an outlier counts as 20 % only, unless others follow it
_FEW = 3  # passes of a number of rows, before which the quicker ones are believed
_FIRST_CLIP = 0.7  # of the first residual of a number of rows: a factor of two
_REBUILD_EVERY = 64  # passes, if no shift moved by more than this:
_REBUILD_SHIFT = 0.01
_SLOPE_EVERY = 4  # passes: it changes slowly
_SLOPE_FORGET = 0.992
_SLOPE_SPREAD = 0.3  # least relative spread of contexts from which a slope is fitted
_SLOPE_PASSES = 12
_SLOPE_MOST = 1 / 1000  # of level(1): a row's attention costs a plain pass at 1,000 positions

_LOADED_WEIGHT = 8.0  # at most: a machine may have changed since


MULTIPLY_ADDS_PER_CORE = 50e9  # a second: a first guess, until passes were measured


def prior_costs(
    weight_bytes: float,
    products_per_row: float,
    roof_bytes_s: float = 16e9,
    mac_s: float = 100e9,
) -> dict[int, float]:
    """Milliseconds of passes of 1 to 64 rows of a model that was never measured.

    The larger of memory and arithmetic plus 20 % of the smaller. `mac_s` are the multiply-adds per
    second of all threads together: about 50e9 for each core.
    """
    memory = weight_bytes / roof_bytes_s
    row = products_per_row / mac_s
    return {
        n: 1e3 * (max(memory, n * row) + 0.2 * min(memory, n * row))
        for n in range(1, TABLE_ROWS + 1)
    }


class CostTable:
    """What a pass costs here; starts from a prior and learns from observe().

    `prior` gives the milliseconds of some numbers of rows at context 0 (straight lines between
    them); `slope` the prior milliseconds per row and position of context.
    """

    def __init__(self, prior: Mapping[int, float] | None = None, *, slope: float = 0.0) -> None:
        self._prior = _filled(_DEFAULT if prior is None else prior)
        self._fixed = False
        self._levels = list(self._prior)
        self._scale = 1.0
        self._log_scale = 0.0
        self._slope = slope
        self._prior_slope = slope
        self._shifts: dict[int, float] = {}
        self._weights: dict[int, tuple[float, int]] = {}  # rows -> (passes, as of pass)
        self._passes = 0
        self._streak = 0  # residuals beyond the clip, one after another on the same side
        self._moments = [0.0] * 5  # of (rows * context / level, ms / level): w, u, v, uu, uv

    @classmethod
    def frozen(cls, table: Mapping[int, float]) -> CostTable:
        """Exactly these milliseconds, straight lines between and beyond; learns nothing."""
        costs = cls(table)
        costs._fixed = True
        return costs

    def cost(self, rows: int, context: int) -> float:
        """Milliseconds of a pass of `rows` rows, each at about `context` positions."""
        return self._scale * (self._level(rows) + self._slope * rows * context)

    def curve(self, rows: int, more: int, context: int) -> list[float]:
        """The costs of rows, rows + 1, ..., rows + more."""
        scale, slope = self._scale, self._scale * self._slope * context
        end = rows + more + 1
        levels = self._levels[rows:end]
        levels += map(self._level, range(rows + len(levels), end))  # beyond the table
        if slope == 0.0:
            return [scale * level for level in levels]
        return [scale * level + slope * n for n, level in enumerate(levels, rows)]

    def weight(self, rows: int) -> float:
        """How many passes of so many rows are behind the figure; older ones count less."""
        if self._fixed:
            return math.inf
        weight, at = self._weights.get(rows, (0.0, self._passes))
        return weight * _FORGET ** (self._passes - at)

    def observe(self, rows: int, context: int, ms: float) -> None:
        """A pass took `ms`. Passes beyond the table's rows (prompts) are not looked at."""
        if self._fixed or not 1 <= rows < len(self._levels) or not 0 < ms < math.inf:
            return
        weight = self.weight(rows)
        first = not self._weights
        level = self._levels[rows]
        expected = self._scale * (level + self._slope * rows * context)
        residual = math.log(ms / expected)
        share = 1 / (weight + 1)
        if weight >= _FEW:
            if self._passes % _SLOPE_EVERY == 0:
                self._learn_slope(rows * context / level, ms / level, residual)
            residual = self._clipped(residual)
        elif weight > 0.5 and residual < -_CLIP:
            share = 1.0  # it was the earlier ones that something held up
        elif weight > 0.5:
            residual = min(residual, _CLIP)
        self._passes += 1
        self._weights[rows] = (weight + 1, self._passes)
        gain = _NEWS_GAIN if abs(self._streak) >= _NEWS else _SCALE_GAIN
        if rows == 1 or first:
            self._log_scale += residual * max(gain, share)
        else:
            residual = max(-_FIRST_CLIP, min(_FIRST_CLIP, residual))
            if weight >= _FEW:
                self._log_scale += residual * gain
            self._move(rows, residual * max(_SHIFT_GAIN, share))
        self._scale = math.exp(self._log_scale)
        if self._passes % _REBUILD_EVERY == 0:
            self._rebuild()

    def data(self) -> dict[str, Any] | None:
        """What was learned, for JSON; None if nothing was."""
        if self._fixed or not self._weights:
            return None
        rows = {
            str(n): [round(self._scale * self._levels[n], 5), round(self.weight(n), 3)]
            for n in sorted(self._weights)
        }
        return {"slope": self._scale * self._slope, "rows": rows}

    def restore(self, data: object) -> None:
        """Take over what data() gave; raises ValueError, and changes nothing, for anything else."""
        rows, slope = _parsed(data, len(self._levels))
        if self._fixed:
            return
        base = min(rows)
        ratios = {n: math.log(ms / self._prior[n]) for n, (ms, _) in rows.items()}
        self._log_scale = ratios[base]
        self._scale = math.exp(self._log_scale)
        self._slope = min(slope / self._scale, _SLOPE_MOST * self._prior[1])
        self._shifts, self._weights = {}, {}
        for n, (_, weight) in rows.items():
            weight = min(weight, _LOADED_WEIGHT)
            self._weights[n] = (weight, self._passes)
            if n > 1:  # undo the shrinking, which _rebuild() will do again
                shrunk = weight / (weight + _SHRINK)
                self._shifts[n] = (ratios[n] - self._log_scale) / max(shrunk, 0.1)
        self._rebuild()

    def _level(self, rows: int) -> float:
        levels = self._levels
        if rows < len(levels):
            return levels[rows]
        last = len(levels) - 1
        span = min(4, last - 1) or 1
        return levels[last] + (rows - last) * (levels[last] - levels[last - span]) / span

    def _clipped(self, residual: float) -> float:
        """An outlier counts little; several on the same side are news and count fully."""
        if abs(residual) <= _CLIP:
            self._streak = 0
            return residual
        sign = 1 if residual > 0 else -1
        self._streak = self._streak + sign if self._streak * sign > 0 else sign
        most = _CLIP * abs(self._streak)
        return max(-most, min(most, residual))

    def _move(self, rows: int, by: float) -> None:
        self._shifts[rows] = self._shifts.get(rows, 0.0) + by
        if abs(by) > _REBUILD_SHIFT:
            self._rebuild()

    def _rebuild(self) -> None:
        """The levels from prior, shifts and their weights: interpolated, then made monotone."""
        known = [(1, 0.0)]
        for n in sorted(self._shifts):
            weight = self.weight(n)
            known.append((n, self._shifts[n] * weight / (weight + _SHRINK)))
        levels, weights, at = [0.0], [0.0], 0
        for n in range(1, len(self._prior)):
            while at + 1 < len(known) and known[at + 1][0] <= n:
                at += 1
            left, shift = known[at]
            if left < n and at + 1 < len(known):
                right, other = known[at + 1]
                shift += (other - shift) * (n - left) / (right - left)
            levels.append(self._prior[n] * math.exp(shift))
            weights.append(0.1 + self.weight(n) if n in self._weights else 0.1)
        self._levels = _monotone(levels, weights)

    def _learn_slope(self, u: float, v: float, residual: float) -> None:
        """Regress ms on rows * context, both over the level; outliers stay out."""
        if abs(residual) > 2 * _CLIP:
            return
        moments = [m * _SLOPE_FORGET for m in self._moments]
        for index, value in enumerate((1.0, u, v, u * u, u * v)):
            moments[index] += value
        self._moments = moments
        weight = moments[0]
        mean_u, mean_v = moments[1] / weight, moments[2] / weight
        variance = moments[3] / weight - mean_u * mean_u
        if weight < _SLOPE_PASSES or variance <= (_SLOPE_SPREAD * mean_u) ** 2:
            return
        rise = (moments[4] / weight - mean_u * mean_v) / variance
        start = mean_v - rise * mean_u
        fitted = rise / start if start > 0 else 0.0
        self._slope = min(max(fitted, 0.25 * self._prior_slope), _SLOPE_MOST * self._prior[1])


def _filled(table: Mapping[int, float]) -> list[float]:
    """Index rows -> ms for 0 to the larger of the last entry and TABLE_ROWS; never falling."""
    known = sorted(table)
    if not known or known[0] < 1 or any(not 0 < table[n] < math.inf for n in known):
        raise ValueError("a cost table needs positive milliseconds for one row or more")
    levels = [0.0]
    for n in range(1, max(known[-1], TABLE_ROWS) + 1):
        at = min(max(bisect_left(known, n), 1), len(known) - 1) if len(known) > 1 else 0
        if at == 0:
            value = table[known[0]]
        else:
            left, right = known[at - 1], known[at]
            share = max(0.0, (n - left) / (right - left))
            value = table[left] + (table[right] - table[left]) * share
        levels.append(max(value, levels[-1]))
    return levels


def _monotone(levels: list[float], weights: list[float]) -> list[float]:
    """The closest sequence that never falls: neighbours that do are averaged by weight."""
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(levels[1:], weights[1:], strict=True):
        count = 1
        while blocks and blocks[-1][0] > value:
            before, other, more = blocks.pop()
            value = (value * weight + before * other) / (weight + other)
            weight, count = weight + other, count + more
        blocks.append((value, weight, count))
    return [0.0, *(value for value, _, count in blocks for _ in range(count))]


def _parsed(data: object, end: int) -> tuple[dict[int, tuple[float, float]], float]:
    """Rows -> (ms, weight), and the slope; ValueError for anything that data() does not give."""
    if not isinstance(data, dict):
        raise ValueError("not a cost table")
    entries = data.get("rows")
    if not isinstance(entries, dict) or not entries:
        raise ValueError("a damaged cost table")
    rows: dict[int, tuple[float, float]] = {}
    for key, entry in entries.items():
        n = int(key)
        if not 1 <= n < end or not isinstance(entry, list) or len(entry) != 2:
            raise ValueError("a damaged cost table")
        rows[n] = (_number(entry[0]), _number(entry[1]))
        if rows[n][0] == 0:
            raise ValueError("a damaged cost table")
    return rows, _number(data.get("slope"))


def _number(value: object) -> float:
    if isinstance(value, (int, float)) and 0 <= value < math.inf:
        return float(value)
    raise ValueError("a damaged cost table")
