"""The measuring itself: rounds of decoding, passes, prefill and bandwidth, alternating in one run.

A machine's speed drifts while it is shared, so every quantity is measured once in each of several
rounds, next to the yardsticks it is divided by, and medians are reported. Efficiency of a pass is
max(bytes / roof, products / in-cache rate) over the time it took: the share of what the machine
could do at best if memory and arithmetic overlapped fully.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from divine import __version__
from divine.backends.base import Rows, Want, WeightSource
from divine.backends.cpu import _native
from divine.backends.cpu.backend import CpuBackend, CpuExecutable, CpuState
from divine.bench.shapes import SHAPES, load_shape
from divine.gguf import open_gguf
from divine.machine import peak_rss_bytes, probe_cpu, probe_memory
from divine.models import build_program
from divine.program import Embed, Head, Program

CONTEXT = 256  # committed positions under the passes of n rows
LONG_CONTEXT = 8192
PREFILL = 512
ROW_COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32)
DECODED = 32  # tokens of plain decoding in a round
ROUNDS = 5
_ROOF_BYTES = 1 << 30

Progress = Callable[[str], None]


def run(
    target: str | Path, *, threads: int | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Measure a model file, or random weights "name:RECIPE" of real shapes.

    Returns {"machine", "model", "memory_roof_gb_s", "in_cache_gmac_s", "plain", "cost_ms",
    "efficiency", "prefill", "long_context", "load_s", "peak_rss_mb"}: see docs/benchmarks.md.
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
    for number in range(ROUNDS):
        say(f"round {number + 1} of {ROUNDS} ...")
        bench.round()
    say("long context ...")
    return {
        "machine": _machine(executable),
        "model": Path(target).name if not _is_shape(target) else str(target),
        "date": datetime.now(UTC).date().isoformat(),
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


def _machine(executable: CpuExecutable) -> dict[str, Any]:
    cpu, memory = probe_cpu(), probe_memory()
    return {
        "cpu": cpu.name,
        "level": executable.level,
        "threads": executable.threads,
        "memory_gb": round(memory.total / 1e9, 1),
        "huge_pages": memory.huge_pages,
        "system": platform.platform(),
        "divine": __version__,
    }


class _Work:
    """Bytes read and products made by one pass, from the file's own sizes."""

    def __init__(self, program: Program, weights: WeightSource) -> None:
        head = next(op.weight for op in program.ops if isinstance(op, Head))
        table = next(op.table for op in program.ops if isinstance(op, Embed))
        self.bytes = 0
        self.products: dict[str, int] = defaultdict(int)  # per row, by block type
        self.head_products: dict[str, int] = defaultdict(int)
        for name in program.weights():
            shape = weights.shape(name)
            if name == table != head:
                continue  # one row of it is read: nothing beside the rest
            self.bytes += len(weights.raw(name))
            if len(shape) == 2:
                where = self.head_products if name == head else self.products
                where[weights.block_type(name)] += shape[0] * shape[1]
        self.block_types = sorted(set(self.products) | set(self.head_products))

    def arithmetic(self, rates: Mapping[str, float], rows: int, head_rows: int) -> float:
        """Seconds that the products of a pass take at the in-cache rates (products a second)."""
        body = sum(rows * count / rates[kind] for kind, count in self.products.items())
        return body + sum(head_rows * n / rates[kind] for kind, n in self.head_products.items())


class _Bench:
    """Measurements of several rounds, and the figures made of them."""

    def __init__(self, executable: CpuExecutable, work: _Work) -> None:
        self._executable = executable
        self._work = work
        self._samples: dict[str, list[float]] = defaultdict(list)
        self._rng = np.random.default_rng(0)

    def round(self) -> None:
        """Everything once, yardsticks between."""
        threads = self._executable.threads
        self._roof(threads)
        self._decode()
        for kind in self._work.block_types:
            self._add(f"rate {kind}", 1e9 * _native.in_cache_rate(kind, threads, 4, 0.25))
        self._passes()
        self._roof(threads)
        self._prefill()
        self._long_context()

    def _roof(self, threads: int) -> None:
        self._add("roof", 1e9 * _native.read_bandwidth(_ROOF_BYTES, threads, 3))

    def _decode(self) -> None:
        state = self._state(CONTEXT)
        token = 1
        for step in range(DECODED + 2):
            start = time.perf_counter()
            result = self._executable.run([state], Rows.chain([token]), Want(best=[0]))
            state.commit([0])
            if step >= 2:
                self._add("plain", time.perf_counter() - start)
                self._add("outside", time.perf_counter() - start - result.native_seconds)
            token = int(result.best_ids[0])

    def _passes(self) -> None:
        state = self._state(CONTEXT)
        for rows in ROW_COUNTS:
            for _ in range(2):
                self._add(f"pass {rows}", self._pass(state, rows, rows))

    def _prefill(self) -> None:
        state = self._executable.new_state(PREFILL)
        start = time.perf_counter()
        most = self._executable.max_rows
        for first in range(0, PREFILL, most):
            rows = min(most, PREFILL - first)
            last = first + rows == PREFILL
            self._pass(state, rows, 1 if last else 0)
            state.commit(range(rows))
        self._add("prefill", time.perf_counter() - start)

    def _long_context(self) -> None:
        state = self._state(LONG_CONTEXT - 1)
        for _ in range(3):
            self._add("long", self._pass(state, 1, 1))

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
        self._kv_bytes = state.native.bytes_per_position * length
        return state

    def _add(self, name: str, value: float) -> None:
        self._samples[name].append(value)

    def _median(self, name: str) -> float:
        return statistics.median(self._samples[name])

    def figures(self) -> dict[str, Any]:
        """The report's figures."""
        work, roof = self._work, self._median("roof")
        rates = {kind: self._median(f"rate {kind}") for kind in work.block_types}
        plain, long = self._median("plain"), self._median("long")
        cost = {n: self._median(f"pass {n}") for n in ROW_COUNTS}
        limit = {n: max(work.bytes / roof, work.arithmetic(rates, n, n)) for n in ROW_COUNTS}
        prefill = self._median("prefill")
        return {
            "memory_roof_gb_s": round(roof / 1e9, 2),
            "in_cache_gmac_s": {kind: round(rate / 1e9, 1) for kind, rate in rates.items()},
            "bytes_per_token": work.bytes,
            "plain": {
                "tok_s": round(1 / plain, 2),
                "roof_share": round(work.bytes / roof / plain, 3),
                "outside_native": round(self._median("outside") / plain, 4),
            },
            "cost_ms": {str(n): round(1e3 * seconds, 2) for n, seconds in cost.items()},
            "efficiency": {str(n): round(limit[n] / cost[n], 3) for n in ROW_COUNTS},
            "prefill": {
                "tokens": PREFILL,
                "tok_s": round(PREFILL / prefill, 2),
                "efficiency": round(work.arithmetic(rates, PREFILL, 1) / prefill, 3),
            },
            "long_context": {
                "tokens": LONG_CONTEXT,
                "tok_s": round(1 / long, 2),
                "roof_share": round((work.bytes + self._kv_bytes) / roof / long, 3),
            },
        }
