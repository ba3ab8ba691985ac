"""The measuring itself: rounds of decoding, passes, prefill and bandwidth, alternating in one run.

A shared machine's speed drifts within seconds, so every measurement stands between two readings of
the yardsticks (read bandwidth, in-cache rates), is divided by their mean, and medians over several
rounds are reported, of times and of shares each. Efficiency of a pass is max(bytes / roof,
products / in-cache rate) over the time it took: the share of what the machine could do at best if
memory and arithmetic overlapped fully.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from divine.backends.base import Rows, Want, WeightSource
from divine.backends.cpu import _native
from divine.backends.cpu.backend import CpuBackend, CpuExecutable, CpuState
from divine.bench.circumstances import describe_machine, today
from divine.bench.shapes import SHAPES, load_shape
from divine.gguf import open_gguf
from divine.machine import peak_rss_bytes
from divine.models import build_program, bytes_per_token
from divine.program import Embed, Program

CONTEXT = 256  # committed positions under the passes of n rows
LONG_CONTEXT = 8192
PREFILL = 512
ROW_COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32)
DECODED = 32  # tokens of plain decoding in a round
ROUNDS = 7
LEAST_ROUNDS = 3
ENOUGH_SECONDS = 180.0
_FEW_ROWS = 6  # of the native kernels: a single tile
_ROOF_BYTES = 1 << 29

Progress = Callable[[str], None]


def run(
    target: str | Path, *, threads: int | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Measure a model file, or random weights "name:RECIPE" of real shapes.

    Returns {"machine", "model", "memory_roof_gb_s", "in_cache_gmac_s", "in_cache_gmac_s_16_rows",
    "plain", "cost_ms", "efficiency", "prefill", "long_context", "load_s", "peak_rss_mb"}: see
    docs/benchmarks.md.
    Raises UsageError, FormatError or UnsupportedError for a target that cannot be loaded.
    """
    say = progress or (lambda _: None)
    say(f"loading {target} ...")
    start = time.perf_counter()
    program, weights = _load(target)
    executable = CpuBackend().compile(program, weights, threads=threads)
    load_seconds = time.perf_counter() - start
    peak = peak_rss_bytes()
    bench = _Bench(executable, _Work(program, weights))
    start = time.perf_counter()
    for number in range(ROUNDS):
        if number >= LEAST_ROUNDS and time.perf_counter() - start > ENOUGH_SECONDS:
            break  # a large model
        say(f"round {number + 1} of {ROUNDS} at most ...")
        bench.round()
    return {
        "machine": describe_machine(executable.level, executable.threads),
        "model": Path(target).name if not _is_shape(target) else str(target),
        "date": today(),
        **bench.figures(),
        "load_s": round(load_seconds, 3),
        "peak_rss_mb": round(peak / 1e6, 1),
    }


def _is_shape(target: str | Path) -> bool:
    return isinstance(target, str) and target.partition(":")[0] in SHAPES


def _load(target: str | Path) -> tuple[Program, WeightSource]:
    if isinstance(target, Path) or Path(target).exists():
        file = open_gguf(target)
        return build_program(file), file
    return load_shape(target)


class _Work:
    """Bytes read and products made by one pass, from the file's own sizes."""

    def __init__(self, program: Program, weights: WeightSource) -> None:
        head = program.head.weight
        tables = {op.table for op in program.ops if isinstance(op, Embed)}
        nbytes = {name: len(weights.raw(name)) for name in program.weights()}
        self.bytes = bytes_per_token(nbytes, program.vocabulary)
        self.products: dict[str, int] = defaultdict(int)  # per row, by block type
        self.head_products: dict[str, int] = defaultdict(int)
        for name in program.weights():
            shape = weights.shape(name)
            if len(shape) == 2 and (name == head or name not in tables):
                where = self.head_products if name == head else self.products
                where[weights.block_type(name)] += shape[0] * shape[1]
        self.block_types = sorted(set(self.products) | set(self.head_products))

    def arithmetic(self, rates: Mapping[str, float], rows: int, head_rows: int) -> float:
        """Seconds that the products of a pass take at the in-cache rates (products a second)."""
        body = sum(rows * count / rates[kind] for kind, count in self.products.items())
        return body + sum(head_rows * n / rates[kind] for kind, n in self.head_products.items())


@dataclass(frozen=True)
class _Yardstick:
    """What the machine could do just now: bytes and products a second.

    Few rows are multiplied from the weights as they lie, more from opened ones: two rates.
    """

    roof: float
    few: Mapping[str, float]
    many: Mapping[str, float]

    def rates(self, rows: int) -> Mapping[str, float]:
        """Of passes of so many rows."""
        return self.few if rows <= _FEW_ROWS else self.many


def _mean(a: _Yardstick, b: _Yardstick) -> _Yardstick:
    few = {kind: (a.few[kind] + b.few[kind]) / 2 for kind in a.few}
    many = {kind: (a.many[kind] + b.many[kind]) / 2 for kind in a.many}
    return _Yardstick((a.roof + b.roof) / 2, few, many)


class _Bench:
    """Measurements of several rounds, and the figures made of them."""

    def __init__(self, executable: CpuExecutable, work: _Work) -> None:
        self._executable = executable
        self._work = work
        self._seconds: dict[str, list[float]] = defaultdict(list)
        self._shares: dict[str, list[float]] = defaultdict(list)
        self._yardsticks: list[_Yardstick] = []
        self._rng = np.random.default_rng(0)
        self._fresh: dict[str, tuple[float, Callable[[_Yardstick], float]]] = {}

    def round(self) -> None:
        """Everything once, yardsticks between."""
        self._measure()
        self._decode()
        self._measure()
        for rows in ROW_COUNTS:
            self._rows(rows)
            if rows % 4 == 0:
                self._measure()
        self._prefill()
        self._measure()
        self._long_context()
        self._measure()

    def _measure(self) -> None:
        """Read the yardsticks, and judge by them what was measured since the last reading."""
        threads = self._executable.threads
        roof = 1e9 * _native.read_bandwidth(_ROOF_BYTES, threads, 2)

        def rates(rows: int) -> dict[str, float]:
            kinds = self._work.block_types
            return {k: 1e9 * _native.in_cache_rate(k, threads, rows, 0.1) for k in kinds}

        now = _Yardstick(roof, rates(4), rates(16))
        if self._yardsticks:
            around = _mean(self._yardsticks[-1], now)
            for name, (seconds, least) in self._fresh.items():
                self._seconds[name].append(seconds)
                self._shares[name].append(least(around) / seconds)
        self._fresh.clear()
        self._yardsticks.append(now)

    def _note(self, name: str, seconds: list[float], least: Callable[[_Yardstick], float]) -> None:
        """`least`: the seconds it would take at best, by a yardstick."""
        self._fresh[name] = (statistics.median(seconds), least)

    def _decode(self) -> None:
        state = self._state(CONTEXT)
        token, total, outside = 1, [], []
        for step in range(DECODED + 2):
            start = time.perf_counter()
            result = self._executable.run([state], Rows.chain([token]), Want(best=[0]))
            state.commit([0])
            if step >= 2:  # the first two warm up
                total.append(time.perf_counter() - start)
                outside.append(total[-1] - result.native_seconds)
            token = int(result.best_ids[0])
        self._note("plain", total, lambda y: self._work.bytes / y.roof)
        self._seconds["outside"].append(statistics.median(outside))

    def _rows(self, rows: int) -> None:
        state, work = self._state(CONTEXT), self._work

        def least(y: _Yardstick) -> float:
            return max(work.bytes / y.roof, work.arithmetic(y.rates(rows), rows, rows))

        self._note(f"pass {rows}", [self._pass(state, rows, rows) for _ in range(3)], least)

    def _prefill(self) -> None:
        state = self._executable.new_state(PREFILL)
        start = time.perf_counter()
        most = self._executable.max_rows
        for first in range(0, PREFILL, most):
            rows = min(most, PREFILL - first)
            last = first + rows == PREFILL
            self._pass(state, rows, 1 if last else 0)
            state.commit(range(rows))
        seconds = time.perf_counter() - start
        self._note("prefill", [seconds], lambda y: self._work.arithmetic(y.many, PREFILL, 1))

    def _long_context(self) -> None:
        state = self._state(LONG_CONTEXT - 1)
        bytes_read = self._work.bytes + state.native.bytes_per_position * LONG_CONTEXT
        seconds = [self._pass(state, 1, 1) for _ in range(3)]
        self._note("long", seconds, lambda y: bytes_read / y.roof)

    def _pass(self, state: CpuState, rows: int, wanted: int) -> float:
        """Seconds of one pass of a chain of random tokens, argmax of its last `wanted` rows."""
        tokens = self._rng.integers(0, self._executable.vocabulary, rows, dtype=np.int32)
        want = Want(best=list(range(rows - wanted, rows)))
        start = time.perf_counter()
        self._executable.run([state], Rows.chain(tokens), want)
        return time.perf_counter() - start

    def _state(self, length: int) -> CpuState:
        """A state with `length` positions of arbitrary keys and values."""
        state = self._executable.new_state(length + 2 * DECODED)
        state.native.fill(length)
        return state

    def figures(self) -> dict[str, Any]:
        """The report's figures: medians over the rounds."""

        def seconds(name: str) -> float:
            return statistics.median(self._seconds[name])

        def share(name: str) -> float:
            return round(statistics.median(self._shares[name]), 3)

        def speed(name: str, tokens: int) -> dict[str, Any]:
            return {"tokens": tokens, "tok_s": round(tokens / seconds(name), 2)}

        middle = statistics.median
        kinds = self._work.block_types
        few = {k: round(middle(y.few[k] for y in self._yardsticks) / 1e9, 1) for k in kinds}
        many = {k: round(middle(y.many[k] for y in self._yardsticks) / 1e9, 1) for k in kinds}
        long_tok_s = round(1 / seconds("long"), 2)
        return {
            "memory_roof_gb_s": round(middle(y.roof for y in self._yardsticks) / 1e9, 2),
            "in_cache_gmac_s": few,
            "in_cache_gmac_s_16_rows": many,
            "bytes_per_token": self._work.bytes,
            "plain": {
                "tok_s": round(1 / seconds("plain"), 2),
                "roof_share": share("plain"),
                "outside_native": round(seconds("outside") / seconds("plain"), 4),
            },
            "cost_ms": {str(n): round(1e3 * seconds(f"pass {n}"), 2) for n in ROW_COUNTS},
            "efficiency": {str(n): share(f"pass {n}") for n in ROW_COUNTS},
            "prefill": speed("prefill", PREFILL) | {"efficiency": share("prefill")},
            "long_context": {
                "tokens": LONG_CONTEXT, "tok_s": long_tok_s, "roof_share": share("long")
            },
        }  # fmt: skip
