"""CpuBackend: hands a program and its weights to the native executor and passes to its rows.

It translates: names to numbers, tensors to the interleaved arena, dataclasses to arrays and back.
The arithmetic, the checks of rows and the threads are in cpp/ (executor.h, pass.h). Matrices lie
in order of use; loading lets go of the file's pages one tensor at a time, the largest first, so
that memory peaks at little more than the size of the file.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from divine.backends.base import (
    Cancelled,
    KvType,
    PassResult,
    Rows,
    State,
    Want,
    WeightSource,
)
from divine.backends.cpu import _native
from divine.backends.rows import check_shortlist, require_finite, row_positions
from divine.blocks import dequantize
from divine.errors import CapacityError, UnsupportedError, UsageError
from divine.program import Attention, Embed, GatedMlp, Head, Linear, Norm, Program, Rope, Tap

MAX_ROWS = 256  # rows of one pass; prefill goes in chunks of at most this many
_FINAL = -1  # the native number of the tap "final"


class CpuState:
    """One sequence's keys and values in the native core; see backends.base.State."""

    def __init__(self, native: _native.State) -> None:
        self._native: _native.State | None = native

    @property
    def native(self) -> _native.State:
        """The native object. Raises ValueError after close()."""
        if self._native is None:
            raise ValueError("this state is closed")
        return self._native

    @property
    def length(self) -> int:
        """Committed positions."""
        return self.native.length

    @property
    def capacity(self) -> int:
        """The most positions it can hold."""
        return self.native.capacity

    @property
    def nbytes(self) -> int:
        """Bytes reserved so far; memory grows with the text."""
        return self.native.nbytes

    def commit(self, path: Sequence[int]) -> None:
        """Append the rows of a path of the last pass, in order, and drop the rest."""
        try:
            self.native.commit(path)
        except OverflowError as error:
            raise CapacityError(str(error)) from None

    def truncate(self, length: int) -> None:
        """Forget everything from position `length` on."""
        self.native.truncate(length)

    def fork(self) -> CpuState:
        """An independent copy of what is committed."""
        return CpuState(self.native.fork())

    def save(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Committed positions as bytes; see backends.base.State."""
        return self.native.save(start, stop)

    def load(self, data: NDArray[np.uint8]) -> None:
        """Append positions that save() gave."""
        try:
            self.native.load(data)
        except OverflowError as error:
            raise CapacityError(str(error)) from None

    def close(self) -> None:
        """Free the memory."""
        self._native = None


class CpuShortlist:
    """Tokens and the groups of 16 outputs that hold them; see backends.base.Shortlist."""

    def __init__(self, ids: NDArray[np.int32], vocabulary: int) -> None:
        self.native = _native.Shortlist(ids, vocabulary)
        self.ids = ids.copy()


class CpuExecutable:
    """A program in the native executor; see backends.base.Executable."""

    def __init__(self, native: _native.Executor, program: Program) -> None:
        self._native: _native.Executor | None = native
        self.vocabulary = program.vocabulary
        self.dim = program.dim
        self.max_rows: int = native.max_rows
        self.level: str = native.level
        self.threads: int = native.threads
        self.weight_bytes: int = native.weight_bytes
        self.tap_names = program.tap_names
        no_logits = np.zeros((0, self.vocabulary), np.float32)
        no_tap = np.zeros((0, self.dim), np.float32)
        none, nothing = np.zeros(0, np.int32), np.zeros(0, np.float32)
        no_top = np.zeros((0, 0), np.float32)
        # What nobody wanted, in the order of PassResult, then a tap; made once, as a pass may be
        # short.
        self._empty = (
            none, nothing, nothing, no_top.astype(np.int32), no_top, nothing, no_logits, no_tap
        )  # fmt: skip
        self._taps = {name: i for i, name in enumerate(program.tap_names)}
        self._taps[program.tap_names[-1]] = _FINAL

    def new_state(self, capacity: int, kv_type: KvType = "f16") -> CpuState:
        """An empty state. Raises UnsupportedError when head sizes do not suit the KV type."""
        try:
            return CpuState(self._executor().new_state(capacity, kv_type))
        except ValueError as error:
            raise UnsupportedError(str(error)) from None

    def new_shortlist(self, ids: NDArray[np.int32]) -> CpuShortlist:
        """A draft vocabulary; raises ValueError for ids that do not ascend."""
        check_shortlist(ids, self.vocabulary)
        return CpuShortlist(np.require(ids, np.int32, ["C", "A"]), self.vocabulary)

    def run(self, states: Sequence[State], rows: Rows, want: Want) -> PassResult:
        """One pass; raises ValueError, CapacityError, Cancelled or NumericError (see the base)."""
        native_states = [state.native for state in states if isinstance(state, CpuState)]
        if len(native_states) != len(states):
            raise ValueError("the states must come from this backend")
        for name in want.taps:
            if name not in self._taps:
                raise ValueError(f"unknown tap {name!r}; known are {', '.join(self.tap_names)}")
        shortlist = want.shortlist
        if shortlist is not None and not isinstance(shortlist, CpuShortlist):
            raise ValueError("the shortlist must come from this backend")
        top_rows, k = want.top
        vectors, flags = rows.vectors, rows.takes_vector
        try:
            out = self._executor().run(
                native_states,
                rows.tokens,
                rows.parents,
                rows.sequences,
                vectors,
                None if flags is None else flags.view(np.uint8),
                want.best,
                top_rows,
                k if top_rows else 0,
                want.logits,
                [(self._taps[name], chosen) for name, chosen in want.taps.items()],
                None if shortlist is None else shortlist.native,
                self._empty,
            )
        except OverflowError as error:
            raise CapacityError(str(error)) from None
        if out is None:
            raise Cancelled
        ids, best, sums, top_ids, top_logits, top_sums, logits, tap_values, seconds, finite = out
        taps = dict(zip(want.taps, tap_values, strict=True)) if tap_values else {}
        result = PassResult(
            ids, best, sums, top_ids, top_logits, top_sums, logits, taps, seconds
        )  # fmt: skip
        if not finite:
            _require_finite(states, rows, want, result)
        return result

    def cancel(self) -> None:
        """Stop the pass in progress at its next operation, or the next pass."""
        if self._native is not None:
            self._native.cancel()

    def close(self) -> None:
        """Free the weights."""
        self._native = None

    def _executor(self) -> _native.Executor:
        if self._native is None:
            raise ValueError("this model is closed")
        return self._native


def _require_finite(states: Sequence[State], rows: Rows, want: Want, result: PassResult) -> None:
    """Raise NumericError naming the position of the first wanted row with NaN or infinity."""
    sums: list[tuple[NDArray[np.float32], Sequence[int]]] = [
        (result.log_sum_exp, want.best),
        (result.top_log_sum_exp, want.top[0]),
        # What is not in a shortlist is -infinity.
        (
            result.logits if want.shortlist is None else result.logits[:, want.shortlist.ids],
            want.logits,
        ),
        *((result.taps[name], chosen) for name, chosen in want.taps.items()),
    ]
    for values, chosen in sums:
        if len(chosen) and not np.isfinite(values).all():
            lengths = np.array([state.length for state in states], np.int32)
            lines = values.reshape(len(chosen), -1)
            require_finite(lines, chosen, row_positions(rows, lengths))


class CpuBackend:
    """Compiles programs for the CPU; `level` forces one of _native.levels() (tests)."""

    name = "cpu"

    def __init__(self, level: str | None = None) -> None:
        self._level = level

    def compile(
        self, program: Program, weights: WeightSource, *, threads: int | None = None
    ) -> CpuExecutable:
        """Repack the weights and hand over the operations."""
        if threads is None:
            threads = _native.processors()
        if not 1 <= threads <= 256:
            raise UsageError(f"threads must be 1 to 256, not {threads}")
        level = self._level
        if level is None:
            level, warning = _native.best_level()
            if warning:
                warnings.warn(warning, RuntimeWarning, stacklevel=2)
        return _Compiler(program, weights, level, threads).compile()


class _Compiler:
    """Turns names into the executor's numbers, once."""

    def __init__(self, program: Program, weights: WeightSource, level: str, threads: int) -> None:
        self.program = program
        self.weights = weights
        self.values: dict[str, int] = {}
        self.ropes: dict[Rope, int] = {}
        self.matrices: dict[str, int] = {}
        self.vectors: dict[str, int] = {}
        self.native = _native.Executor(level, threads, MAX_ROWS, self._arena_bytes())

    def compile(self) -> CpuExecutable:
        for op in self.program.ops:
            self._add(op)
        self._fill()
        self.native.finish(self.program.vocabulary, self.program.dim)
        return CpuExecutable(self.native, self.program)

    def _fill(self) -> None:
        """Repack the matrices, largest first: each lies in memory twice for a moment, and the later
        that moment, the more of the others are there already."""
        for name in sorted(self.matrices, key=lambda n: -math.prod(self.weights.shape(n))):
            self.native.fill_matrix(self.matrices[name], self.weights.raw(name))
            self.weights.release(name)

    def _arena_bytes(self) -> int:
        """Bytes of all matrices in the interleaved layout: rows padded to 16, starts to 64."""
        known = set(_native.formats())
        total = 0
        for name in self.program.weights():
            shape = self.weights.shape(name)
            if len(shape) < 2:
                continue
            if self.weights.block_type(name) not in known:
                raise UnsupportedError(
                    f"tensor {name!r} has type {self.weights.block_type(name)}; "
                    f"the cpu backend knows {', '.join(sorted(known))}"
                )
            padded = -(-shape[0] // 16) * 16
            total += len(self.weights.raw(name)) // shape[0] * padded + 64
        return total

    def _value(self, name: str, dim: int) -> int:
        key = f"{name}:{dim}"
        if key not in self.values:
            self.values[key] = self.native.add_value(dim)
        return self.values[key]

    def _matrix(self, name: str) -> int:
        if name not in self.matrices:
            out, columns = self.weights.shape(name)
            block_type = self.weights.block_type(name)
            self.matrices[name] = self.native.add_matrix(block_type, out, columns)
        return self.matrices[name]

    def _vector(self, name: str | None) -> int:
        if name is None:
            return -1
        if name not in self.vectors:
            shape = self.weights.shape(name)
            values = dequantize(self.weights.raw(name), self.weights.block_type(name), shape)
            self.vectors[name] = self.native.add_vector(
                np.require(values.ravel(), np.float32, ["C", "A"])
            )
        return self.vectors[name]

    def _norm(self, norm: Norm | None) -> tuple[int, float] | None:
        return None if norm is None else (self._vector(norm.weight), norm.eps)

    def _rope(self, rope: Rope | None) -> int:
        if rope is None:
            return -1
        if rope not in self.ropes:
            self.ropes[rope] = self.native.add_rope(
                rope.style == "half", rope.dims, rope.magnitude, list(rope.frequencies)
            )
        return self.ropes[rope]

    def _rows(self, weight: str) -> int:
        return self.weights.shape(weight)[0]

    def _columns(self, weight: str) -> int:
        return self.weights.shape(weight)[1]

    def _add(self, op: object) -> None:
        match op:
            case Embed(out, table, scale):
                x = self._value(out, self._columns(table))
                self.native.embed(x, self._matrix(table), scale)
            case Linear():
                self._add_linear(op)
            case Attention():
                self._add_attention(op)
            case GatedMlp():
                x = self._value(op.x, self._columns(op.gate))
                self.native.gated_mlp(
                    self._value(op.out, self._rows(op.gate)), x, self._matrix(op.gate),
                    self._matrix(op.up), op.activation == "gelu", self._norm(op.norm),
                )  # fmt: skip
            case Tap(_, x):
                self.native.tap(self._value(x, self.program.dim))
            case Head():
                x = self._value(op.x, self._columns(op.weight))
                self.native.head(
                    x, self._matrix(op.weight), self._vector(op.bias), self._norm(op.norm)
                )
            case _:
                raise UnsupportedError(f"the cpu backend does not know the operation {op!r}")

    def _add_linear(self, op: Linear) -> None:
        x = self._value(op.x, self._columns(op.parts[0].weight))
        parts = []
        for part in op.parts:
            out = self._value(part.out, self._rows(part.weight))
            parts.append([out, self._matrix(part.weight), self._vector(part.bias)])
        residual = -1
        if op.residual is not None:
            residual = self._value(op.residual, self._rows(op.parts[0].weight))
        self.native.linear(x, parts, self._norm(op.norm), residual)

    def _add_attention(self, op: Attention) -> None:
        width, kv_width = op.heads * op.head_dim, op.kv_heads * op.head_dim
        if op.head_dim % 16:
            raise UnsupportedError(
                f"the cpu backend needs a head size divisible by 16, not {op.head_dim}"
            )
        self.native.attention(
            self._value(op.out, width), self._value(op.q, width), self._value(op.k, kv_width),
            self._value(op.v, kv_width), op.layer, op.heads, op.kv_heads, op.head_dim, op.scale,
            self._rope(op.rope), self._norm(op.q_norm), self._norm(op.k_norm), op.window or 0,
            op.softcap or 0.0,
        )  # fmt: skip
