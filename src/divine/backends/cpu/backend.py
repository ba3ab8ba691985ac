"""CpuBackend: hands a program and its weights to the native executor and passes to its rows.

It translates dataclasses to arrays and back. The arithmetic, the checks of rows and the threads are
in cpp/ (executor.h, pass.h); compiler.py brings the program and its weights there.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from divine.backends.base import (
    Cancelled,
    KvType,
    PassResult,
    Rows,
    Shortlist,
    State,
    Want,
    WeightSource,
)
from divine.backends.cpu import _native
from divine.backends.cpu.compiler import Base, Compiler
from divine.backends.extension import OwnWeights
from divine.backends.rows import check_shortlist, require_finite, row_positions
from divine.checks import check_integer
from divine.errors import CapacityError, UnsupportedError
from divine.program import Program

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

    def __init__(
        self, ids: NDArray[np.int32], vocabulary: int, packed: _native.PackedRows | None = None
    ) -> None:
        self.native = _native.Shortlist(ids, vocabulary, packed)
        self.packed = packed
        self.ids = ids.copy()


class CpuExecutable:
    """A program in the native executor; see backends.base.Executable."""

    def __init__(
        self, native: _native.Executor, program: Program, base: Base | None = None
    ) -> None:
        """`base`: the same executor, for programs that extend this one."""
        self._base = base
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

    def extend(self, program: Program, weights: WeightSource, *, max_rows: int) -> CpuExecutable:
        """A further program that reads this one's matrices where they lie."""
        base = self._base
        if base is None:
            raise ValueError("this model is closed")
        program.check(OwnWeights(weights, base.shapes).shape)
        return _executable(Compiler(program, weights, self.level, self.threads, max_rows, base))

    def new_shortlist(
        self, ids: NDArray[np.int32], packed: Shortlist | None = None
    ) -> CpuShortlist:
        """A draft vocabulary; raises ValueError for ids that do not ascend."""
        check_shortlist(ids, self.vocabulary)
        rows = None
        if packed is not None:
            if not isinstance(packed, CpuShortlist) or packed.packed is None:
                raise ValueError("the packed shortlist must come from this backend")
            rows = packed.packed
        return CpuShortlist(np.require(ids, np.int32, ["C", "A"]), self.vocabulary, rows)

    def pack_shortlist(self, ids: NDArray[np.int32]) -> CpuShortlist:
        """A draft vocabulary with its rows of the output matrix side by side."""
        check_shortlist(ids, self.vocabulary)
        ids = np.require(ids, np.int32, ["C", "A"])
        return CpuShortlist(ids, self.vocabulary, self._executor().pack_rows(ids))

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
        self._native = self._base = None

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
        check_integer("threads", threads, 1, 256)
        level = self._level
        if level is None:
            level, warning = _native.best_level()
            if warning:
                warnings.warn(warning, RuntimeWarning, stacklevel=2)
        return _executable(Compiler(program, weights, level, threads, MAX_ROWS))


def _executable(compiler: Compiler) -> CpuExecutable:
    native = compiler.compile()
    shapes = {name: compiler.shapes[name] for name in compiler.matrices}
    return CpuExecutable(native, compiler.program, Base(native, compiler.matrices, shapes))
