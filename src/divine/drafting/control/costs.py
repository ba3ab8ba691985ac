"""CostTable: the milliseconds of a pass by its rows and context, from a prior and from real passes.

    cost(n, L) = scale * (level(n) + slope * n * L)        level(n) = prior(n) * exp(shift(n))

The scale follows the machine (other programs, frequencies), the shifts correct the prior's shape
where passes of n rows were seen; rows never seen take the shifts of their neighbours. Knows no
drafters, and not what a row is good for.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

TABLE_ROWS = 64  # longer passes read prompts; their cost goes on in a straight line
# Relative costs of the design's measured model; the milliseconds are of a 1.5B model on two cores.
_DEFAULT = {1: 56.0, 2: 57.0, 3: 63.0, 4: 67.0, 5: 77.0, 6: 90.0, 8: 116.0, 16: 221.0, 64: 880.0}

# How much of a residual is the machine's (the scale) and how much the shape's (a shift) follows
# their variances, in units of one pass's own (0.1 squared, in logarithms).
_SCALE_UNKNOWN = 1e9  # before any pass
_SCALE_LOADED = 10.0  # the machine may be busier than when this was saved
_SCALE_NEWS = 0.027  # per pass: a known scale takes 0.15 of a residual of one row
_SCALE_MOVED = 0.67  # at least, once so many in a row lay beyond the clip on one side: 0.4 of it
_NEWS = 3
_PRIOR_PASSES = 0.1  # that the prior's shape is worth in this
_SHIFT_GAIN = 0.02  # least share that is the shape's, which hardly changes
_TIES = 3.0  # passes that the tie between a number of rows and the next is worth
_LEAST_RISE = 0.4  # of the prior's rise from one number of rows to the next
_FORGET = 0.995  # per pass: what was seen once, badly, is tried again after some hundred passes
_CLIP = 0.2  # of a residual (log): an outlier counts as 20 % only, unless others follow it
_FEW = 3  # passes of a number of rows, before which the quicker ones are believed
_FIRST_CLIP = 0.7  # of the first residual of a number of rows: a factor of two
_REBUILD_EVERY = 64  # passes, if shifts have not moved by more than this, taken together:
_REBUILD_SHIFT = 0.03
_WORTH_KEEPING = 0.05  # passes
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


class CostCurve:
    """curve[n]: the cost of a pass with n more rows than some it has anyway, for 0 to a most.

    Figures are made when they are asked for: in most passes few of them are.
    """

    __slots__ = ("_levels", "_more", "_rows", "_scale", "_slope")

    def __init__(
        self, levels: Sequence[float], rows: int, more: int, scale: float, slope: float
    ) -> None:
        """`levels`: by rows in all; a row's part of the cost is `slope`."""
        self._levels, self._rows, self._more = levels, rows, more
        self._scale, self._slope = scale, slope

    def __len__(self) -> int:
        return self._more + 1

    def __getitem__(self, more: int) -> float:
        if not 0 <= more <= self._more:
            raise IndexError(more)
        rows = self._rows + more
        return self._scale * self._levels[rows] + self._slope * rows

    def after(self, taken: int, most: int) -> CostCurve:
        """The curve once some rows are taken, for at most so many more of those that are left."""
        more = min(self._more - taken, most)
        return CostCurve(self._levels, self._rows + taken, more, self._scale, self._slope)


class CostTable:
    """What a pass costs here; starts from a prior and learns from observe().

    `prior` gives the milliseconds of some numbers of rows at context 0 (straight lines between
    them); `slope` the prior milliseconds per row and position of context.
    """

    def __init__(self, prior: Mapping[int, float] | None = None, *, slope: float = 0.0) -> None:
        self._prior = _filled(_DEFAULT if prior is None else prior)
        self._fixed = False
        self._levels = list(self._prior)
        self._longer: list[float] = []  # the same, and as many beyond the table as were asked for
        self._scale = 1.0
        self._log_scale = 0.0
        self._scale_variance = _SCALE_UNKNOWN
        self._slope = slope
        self._prior_slope = slope
        self._shifts: dict[int, float] = {}
        self._weights: dict[int, tuple[float, int]] = {}  # rows -> (passes, as of pass)
        self._passes = 0
        self._moved = 0.0  # by how much shifts have moved since the levels were made
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

    def curve(self, rows: int, more: int, context: int) -> CostCurve:
        """The costs of rows, rows + 1, ..., rows + more."""
        if rows + more >= len(self._longer):
            beyond = range(len(self._levels), 2 * (rows + more) + 1)
            self._longer = self._levels + [self._level(n) for n in beyond]
        scale = self._scale
        return CostCurve(self._longer, rows, more, scale, scale * self._slope * context)

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
        level = self._levels[rows]
        expected = self._scale * (level + self._slope * rows * context)
        residual = math.log(ms / expected)
        variance, shape = self._scale_variance, 0.0
        if rows > 1:
            shape = 1 / (weight + _PRIOR_PASSES)
        if weight >= _FEW:
            if self._passes % _SLOPE_EVERY == 0:
                self._learn_slope(rows * context / level, ms / level, residual)
            residual = self._clipped(residual)
            if abs(self._streak) >= _NEWS:
                variance = max(variance, _SCALE_MOVED)
        elif weight > 0.5 and residual < -_CLIP:
            shape = math.inf  # it was the earlier ones that something held up
        elif weight > 0.5:
            residual = min(residual, _CLIP)
        # The scale takes its share of the residual, what is left is news of the shape.
        machine = variance / (variance + shape + 1)
        self._scale_variance = variance * (1 - machine) + _SCALE_NEWS
        self._log_scale += machine * residual
        self._scale = math.exp(self._log_scale)
        self._passes += 1
        self._weights[rows] = (weight + 1, self._passes)
        if rows > 1:
            left = (1 - machine) * residual
            seen = math.log(level / self._prior[rows])
            seen += max(-_FIRST_CLIP, min(_FIRST_CLIP, left))
            share = 1.0 if shape == math.inf else max(_SHIFT_GAIN, 1 / (weight + 1))
            shift = self._shifts.get(rows, 0.0)
            moved = share * (seen - shift)
            self._shifts[rows] = shift + moved
            self._moved += abs(moved)
            if self._moved > _REBUILD_SHIFT or self._passes % _REBUILD_EVERY == 0:
                self._rebuild()

    def data(self) -> dict[str, Any] | None:
        """What was learned, for JSON; None if nothing was."""
        if self._fixed or not self._weights:
            return None
        rows = {
            str(n): [round(self._scale * self._prior[n] * math.exp(shift), 5), round(weight, 3)]
            for n, shift in sorted({1: 0.0, **self._shifts}.items())
            if (weight := self.weight(n)) > _WORTH_KEEPING or n == 1
        }
        return {"slope": self._scale * self._slope, "rows": rows}

    def restore(self, data: object) -> None:
        """Take over what data() gave; raises ValueError, and changes nothing, for anything else."""
        rows, slope = _parsed(data, len(self._levels))
        if self._fixed:
            return
        ratios = {n: math.log(ms / self._prior[n]) for n, (ms, _) in rows.items()}
        self._log_scale = ratios[min(rows)]
        self._scale = math.exp(self._log_scale)
        self._scale_variance = _SCALE_LOADED
        self._slope = min(slope / self._scale, _SLOPE_MOST * self._prior[1])
        self._shifts, self._weights = {}, {}
        for n, (_, weight) in rows.items():
            self._weights[n] = (min(weight, _LOADED_WEIGHT), self._passes)
            if n > 1:
                self._shifts[n] = ratios[n] - self._log_scale
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

    def _rebuild(self) -> None:
        """The levels from prior, shifts and their weights: interpolated, then made monotone."""
        prior = self._prior
        weights = [0.0] * len(prior)
        for n in self._shifts:
            weights[n] = self.weight(n)
        shifts = _tied([self._shifts.get(n, 0.0) for n in range(len(prior))], weights)
        levels, factor = [0.0, prior[1]], 1.0
        for n in range(2, len(prior)):
            least = levels[-1] + _LEAST_RISE * factor * (prior[n] - prior[n - 1])
            factor = math.exp(shifts[n])
            levels.append(max(prior[n] * factor, least))
        self._levels, self._longer, self._moved = levels, [], 0.0

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


def _tied(shifts: list[float], weights: list[float]) -> list[float]:
    """Shifts drawn to their neighbours: the least of

        sum_n weights[n] (x_n - shifts[n])^2 + _TIES sum_n (x_n - x_{n-1})^2,  x_1 = 0.

    Single passes scatter by more than neighbours differ; taken at their word, some number of rows
    would always look cheap by luck, and be chosen for it. Entry 0 is not used.
    """
    end = len(shifts)
    if end < 3:
        return [0.0] * end
    # A tridiagonal system, solved by Thomas' algorithm: going down, x_n = values[n] + factors[n] *
    # x_{n+1}; going up, the values become the solution.
    values, factors = [0.0, 0.0], [0.0, 0.0]
    for n in range(2, end):
        ties = 2 * _TIES if n + 1 < end else _TIES
        pivot = weights[n] + ties - _TIES * factors[-1]
        values.append((weights[n] * shifts[n] + _TIES * values[-1]) / pivot)
        factors.append(_TIES / pivot)
    for n in range(end - 2, 1, -1):
        values[n] += factors[n] * values[n + 1]
    return values


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
