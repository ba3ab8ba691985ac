"""The reference backend: a program interpreted operation by operation in NumPy.

It is the specification and the oracle of all tests: every row is computed by itself, with the same
calls whatever else is in the pass, so its numbers cannot depend on other rows. Weights are held in
float32 (four bytes each: 6 GB for a model of 1.5 billion). Equations live in arithmetic.py, what a
sequence remembers in state.py; nothing here is fast, except that `batched` multiplies all rows at
once for whoever needs many positions and can bear a difference in the last bits.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from divine.backends.base import (
    COMMITTED,
    Cancelled,
    KvType,
    PassResult,
    Rows,
    Shortlist,
    State,
    Want,
    WeightSource,
)
from divine.backends.extension import OwnWeights, check_packed
from divine.backends.reference.arithmetic import (
    Q8_BLOCK,
    activate,
    attend,
    log_sum_exp,
    rms_norm,
    rotate,
    round_to_cache,
)
from divine.backends.reference.state import Pending, ReferenceState
from divine.backends.rows import check_pass, check_shortlist, require_finite
from divine.blocks import dequantize
from divine.errors import CapacityError, UnsupportedError
from divine.program import (
    Add,
    Attention,
    Concat,
    Embed,
    GatedMlp,
    Given,
    Head,
    Linear,
    Norm,
    Normalize,
    Op,
    Program,
    Tap,
)
from divine.program.program import FINAL_TAP

MAX_ROWS = 1024  # of one pass; any number would do

Floats = NDArray[np.float32]


class ReferenceBackend:
    """Compiles programs for the NumPy interpreter."""

    name = "reference"

    def __init__(self, *, batched: bool = False) -> None:
        self._batched = batched

    def compile(
        self, program: Program, weights: WeightSource, *, threads: int | None = None
    ) -> ReferenceExecutable:
        """Dequantize all weights to float32; NumPy decides about threads.

        Raises FormatError for weights that do not fit the program, UnsupportedError for a block
        type that cannot be decoded, CapacityError when the memory does not suffice.
        """
        if threads is not None and threads < 1:
            raise ValueError(f"threads is {threads}; 1 or more are allowed")
        program.check(weights.shape)
        return ReferenceExecutable(program, _load(program.weights(), weights), self._batched)


def _load(names: Iterable[str], weights: WeightSource) -> dict[str, Floats]:
    loaded: dict[str, Floats] = {}
    for name in names:
        shape = weights.shape(name)
        try:
            loaded[name] = dequantize(weights.raw(name), weights.block_type(name), shape)
        except MemoryError:
            raise CapacityError(
                f'tensor "{name}" of shape {list(shape)} does not fit into memory in float32'
            ) from None
        weights.release(name)
    return loaded


class ReferenceShortlist:
    """Tokens of one vocabulary; see backends.base.Shortlist."""

    def __init__(self, ids: NDArray[np.int32], vocabulary: int) -> None:
        check_shortlist(ids, vocabulary)
        self.ids = ids.copy()
        self.vocabulary = vocabulary


class ReferenceExecutable:
    """A program with its weights in float32."""

    def __init__(self, program: Program, weights: dict[str, Floats], batched: bool) -> None:
        self.program = program
        self.weights = weights
        self.batched = batched
        self.vocabulary = program.vocabulary
        self.dim = program.dim
        self.max_rows = MAX_ROWS
        self.tap_names = program.tap_names
        self.threads, self.level = 1, "numpy"
        self._attentions = sorted(
            (op for op in program.ops if isinstance(op, Attention)), key=lambda op: op.layer
        )
        self._running = threading.Lock()
        self._cancel = threading.Event()

    def new_state(self, capacity: int, kv_type: KvType = "f16") -> ReferenceState:
        """An empty state; raises CapacityError, and UnsupportedError for q8_0 of uneven heads."""
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}; 1 or more are allowed")
        if kv_type not in ("f16", "q8_0"):
            raise ValueError(f'kv_type is "{kv_type}"; "f16" and "q8_0" are allowed')
        for op in self._attentions:
            if kv_type == "q8_0" and op.head_dim % Q8_BLOCK:
                raise UnsupportedError(
                    f"a q8_0 cache needs heads of a multiple of {Q8_BLOCK} values; "
                    f"this model's have {op.head_dim}, for which f16 is allowed"
                )
        widths = [op.kv_heads * op.head_dim for op in self._attentions]
        return ReferenceState(self, widths, capacity, kv_type)

    def extend(
        self, program: Program, weights: WeightSource, *, max_rows: int
    ) -> ReferenceExecutable:
        """A further program; arrays of this one's weights are shared."""
        own = OwnWeights(weights, {name: array.shape for name, array in self.weights.items()})
        program.check(own.shape)
        loaded = _load(own.names(program), weights)
        shared = {name: self.weights[name] for name in program.weights() if name in self.weights}
        extension = ReferenceExecutable(program, {**shared, **loaded}, self.batched)
        extension.max_rows = max_rows
        return extension

    def new_shortlist(
        self, ids: NDArray[np.int32], packed: Shortlist | None = None
    ) -> ReferenceShortlist:
        """A draft vocabulary; raises ValueError for ids that do not ascend."""
        shortlist = ReferenceShortlist(ids, self.vocabulary)
        if packed is not None:
            check_packed(ids, packed)
        return shortlist

    def pack_shortlist(self, ids: NDArray[np.int32]) -> ReferenceShortlist:
        """A draft vocabulary; there is nothing to gain by a copy."""
        return ReferenceShortlist(ids, self.vocabulary)

    def run(self, states: Sequence[State], rows: Rows, want: Want) -> PassResult:
        """One pass; raises ValueError, NumericError or Cancelled, then the states are unchanged."""
        with self._running, np.errstate(all="ignore"), self._hearing_cancel():
            if not self.weights:
                raise ValueError("the executable is closed")
            mine = [s for s in states if isinstance(s, ReferenceState) and s.owner is self]
            if len(mine) != len(states):
                raise ValueError("a state given to a pass belongs to another executable")
            positions = check_pass(self, states, rows, want)
            if want.shortlist is not None and (
                not isinstance(want.shortlist, ReferenceShortlist)
                or want.shortlist.vocabulary != self.vocabulary
            ):
                raise ValueError("the shortlist given to a pass belongs to another vocabulary")
            return _Pass(self, mine, rows, want, positions).run()

    @contextlib.contextmanager
    def _hearing_cancel(self) -> Iterator[None]:
        """Forgets cancel() at the end only: who cancels may be ahead of the pass."""
        try:
            yield
        finally:
            self._cancel.clear()

    def check_cancelled(self) -> None:
        """Raises Cancelled when cancel() was called since the pass before ended."""
        if self._cancel.is_set():
            raise Cancelled

    def cancel(self) -> None:
        """Stop the pass in progress at its next operation, or the next pass."""
        self._cancel.set()

    def close(self) -> None:
        """Free the weights."""
        self.weights = {}


class _Pass:
    """One pass in progress: the values by name, and what it will leave pending."""

    def __init__(
        self,
        executable: ReferenceExecutable,
        states: list[ReferenceState],
        rows: Rows,
        want: Want,
        positions: NDArray[np.int32],
    ) -> None:
        self.executable = executable
        self.weights = executable.weights
        self.states = states
        self.rows = rows
        self.want = want
        self.positions = positions
        self.paths = _paths(rows)
        self.x: dict[str, Floats] = {}  # values of the program, each [n, width]
        layers = executable.program.layers
        empty = np.empty((0, 0), np.float32)
        self.keys, self.values = [empty] * layers, [empty] * layers  # [n, kv_heads * head_dim]
        self.taps: dict[str, Floats] = {}
        self.headed: dict[int, int] = {}  # row -> its line in logits
        self.logits = empty

    def run(self) -> PassResult:
        began = time.perf_counter()
        for op in self.executable.program.ops:
            self.executable.check_cancelled()
            self.step(op)
        result = self.result(began)
        for index, state in enumerate(self.states):
            mine = self.rows.sequences == index
            state.hold(Pending(self.rows.parents.copy(), mine, self.keys, self.values))
        return result

    def step(self, op: Op) -> None:
        match op:
            case Embed():
                self.embed(op)
            case Given():
                if self.rows.vectors is None:
                    raise ValueError("the program needs a vector for each row, but rows have none")
                self.x[op.out] = self.rows.vectors
            case Linear():
                self.linear(op)
            case Normalize():
                self.x[op.out] = self.normed(self.x[op.x], op.norm)
            case Concat():
                self.x[op.out] = np.concatenate([self.x[x] for x in op.xs], axis=1)
            case Add():
                x = self.x[op.x] if op.weight is None else self.weights[op.weight] * self.x[op.x]
                self.x[op.out] = x + np.float32(op.scale) * self.x[op.y]
            case Attention():
                self.attention(op)
            case GatedMlp():
                x = self.normed(self.x[op.x], op.norm)
                gate = activate(self.product(op.gate, x), op.activation)
                self.x[op.out] = gate * self.product(op.up, x)
            case Tap():
                self.tap(op.name, self.x[op.x])
            case Head():
                self.head(op)

    def embed(self, op: Embed) -> None:
        chosen = self.rows.takes_vector
        tokens = self.rows.tokens if chosen is None else np.where(chosen, 0, self.rows.tokens)
        x = self.weights[op.table][tokens] * np.float32(op.scale)
        if chosen is not None and self.rows.vectors is not None:
            x[chosen] = self.rows.vectors[chosen]
        self.x[op.out] = x

    def linear(self, op: Linear) -> None:
        x = self.normed(self.x[op.x], op.norm)
        outs = {}
        for part in op.parts:
            outs[part.out] = self.product(part.weight, x, part.bias)
            if op.activation is not None:
                outs[part.out] = activate(outs[part.out], op.activation)
            if op.residual is not None:
                outs[part.out] = self.x[op.residual] + outs[part.out]
        self.x.update(outs)

    def attention(self, op: Attention) -> None:
        n = len(self.rows)
        q = self.normed(self.x[op.q].reshape(n, op.heads, op.head_dim), op.q_norm)
        k = self.normed(self.x[op.k].reshape(n, op.kv_heads, op.head_dim), op.k_norm)
        if op.rope is not None:
            q = rotate(q, self.positions, op.rope)
            k = rotate(k, self.positions, op.rope)
        # Rows read their own and their ancestors' keys as they will later be read from the state.
        self.keys[op.layer] = self.rounded(k.reshape(n, -1))
        self.values[op.layer] = self.rounded(self.x[op.v])
        out = np.empty((n, op.heads, op.head_dim), np.float32)
        for row in range(n):
            keys, values = self.seen(row, op)
            out[row] = attend(q[row], keys, values, op.scale, op.softcap)
        self.x[op.out] = out.reshape(n, -1)

    def rounded(self, x: Floats) -> Floats:
        """Each row as its own state's type would hold it."""
        rounded = np.empty_like(x)
        for index, state in enumerate(self.states):
            mine = self.rows.sequences == index
            if mine.any():
                rounded[mine] = round_to_cache(x[mine], state.kv_type)
        return rounded

    def seen(self, row: int, op: Attention) -> tuple[Floats, Floats]:
        """Keys and values that a row attends to, by position: [seen, kv_heads, head_dim] each."""
        state = self.states[self.rows.sequences[row]]
        position = int(self.positions[row])
        first = 0 if op.window is None else max(0, position - op.window + 1)
        path = self.paths[row]
        seen = []
        for committed, passed in ((state.keys, self.keys), (state.values, self.values)):
            history = np.concatenate([committed[op.layer][: state.length], passed[op.layer][path]])
            seen.append(history[first:].reshape(-1, op.kv_heads, op.head_dim))
        return seen[0], seen[1]

    def tap(self, name: str, x: Floats) -> None:
        if name in self.want.taps:
            chosen = list(self.want.taps[name])
            require_finite(x[chosen], chosen, self.positions)
            self.taps[name] = x[chosen]

    def head(self, op: Head) -> None:
        x = self.normed(self.x[op.x], op.norm)
        self.tap(FINAL_TAP, x)
        chosen = sorted({*self.want.best, *self.want.top[0], *self.want.logits})
        self.headed = {row: line for line, row in enumerate(chosen)}
        self.logits = self.product(op.weight, x[chosen], op.bias)
        if self.want.shortlist is None:
            require_finite(self.logits, chosen, self.positions)
            return
        ids = self.want.shortlist.ids
        listed = self.logits[:, ids]
        require_finite(listed, chosen, self.positions)
        self.logits = np.full_like(self.logits, -np.inf)
        self.logits[:, ids] = listed

    def normed(self, x: Floats, norm: Norm | None) -> Floats:
        if norm is None:
            return x
        return rms_norm(x, None if norm.weight is None else self.weights[norm.weight], norm.eps)

    def product(self, weight: str, x: Floats, bias: str | None = None) -> Floats:
        """W x + bias for each row of x [n, in]: [n, out]."""
        matrix = self.weights[weight]
        if self.executable.batched:
            out: Floats = x @ matrix.T
        else:
            # A product of all rows at once would round each row by how many there are.
            out = np.empty((len(x), len(matrix)), np.float32)
            for row, vector in enumerate(x):
                out[row] = matrix @ vector
        return out if bias is None else out + self.weights[bias]

    def result(self, began: float) -> PassResult:
        best = self.picked(self.want.best)
        best_ids = best.argmax(axis=1).astype(np.int32)  # the first, so the lowest, on ties
        top, k = self.picked(self.want.top[0]), self.want.top[1]
        top_ids = np.argsort(-top, axis=1, kind="stable")[:, :k].astype(np.int32)
        return PassResult(
            best_ids=best_ids,
            best_logits=best[np.arange(len(best)), best_ids],
            log_sum_exp=log_sum_exp(best),
            top_ids=top_ids,
            top_logits=np.take_along_axis(top, top_ids, axis=1),
            top_log_sum_exp=log_sum_exp(top),
            logits=self.picked(self.want.logits),
            taps=self.taps,
            native_seconds=time.perf_counter() - began,
        )

    def picked(self, rows: Sequence[int]) -> Floats:
        return self.logits[[self.headed[row] for row in rows]]


def _paths(rows: Rows) -> list[list[int]]:
    """For each row its ancestors in the pass, oldest first, and itself."""
    paths: list[list[int]] = []
    for row, parent in enumerate(rows.parents.tolist()):
        above = [] if parent == COMMITTED else paths[parent]
        paths.append([*above, row])
    return paths
