"""Fuzzes the native entry points; run as a script by test_native_border.py, one target a process.

A call may succeed or raise one of ALLOWED; anything else, a dead process above all, is a bug. The
call in progress is kept in the file named by the second argument, so that it is known after a
crash. An address-space limit turns absurd allocations into MemoryError.
"""

from __future__ import annotations

import os
import resource
import sys
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_support import Toy, make_rows

from divine.backends.base import Want
from divine.backends.cpu import _native, backend, compiler
from divine.errors import CapacityError
from divine.heads import HeadsDefinition
from divine.heads.packaging import heads_tensors
from divine.heads.program import level_program
from heads_support import random_heads
from memory_weights import MemoryWeights

ALLOWED = (ValueError, TypeError, OverflowError, MemoryError)
ADDRESS_SPACE = 6 << 30
LOG = int(sys.argv[2]) if len(sys.argv) > 2 else -1

# One value is far wider than the others: a mix-up overruns memory by so much that it shows.
TOY = Toy(dim=32, ffn=4096, vocabulary=40, heads=2, kv_heads=1, head_dim=32, windows=(None, 3))
WEIGHTS = TOY.weights(["Q4_0", "F32"])
EXAMPLES = int(os.environ.get("DIVINE_FUZZ_EXAMPLES", "120"))  # more for a longer hunt
fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def attempt(name: str, call: Callable[..., Any], *args: Any) -> Any:
    """The result of a call, or None when it was refused."""
    if LOG >= 0:
        text = f"{name}{args!r}"[:3000].encode().ljust(3000)
        os.pwrite(LOG, text, 0)
    try:
        return call(*args)
    except ALLOWED:
        return None


small = st.integers(-3, 45)
huge = st.sampled_from(
    [2**24, 2**24 + 1, 2**31 - 1, 2**31, 2**32 + 1, 2**63, 2**64, 10**30, -(2**31), -(2**63), 4097]
)
ints = st.one_of(small, small, huge)
floats = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([0.0, 1.0, -0.0, 1e-5, 1e300])
)
junk = st.sampled_from([None, "x", b"x", 1.5, [], [1, 2], {}, object(), True, [None], [[1]], [-1]])
rows_lists = st.one_of(
    st.lists(st.integers(-2, 9), max_size=9), st.just([0]), junk, st.lists(huge, max_size=2)
)
texts = st.one_of(
    st.sampled_from([*_native.formats(), "f16", "q8_0", "scalar", "", "Q9_K", "\0", "é" * 99]), junk
)
id_lists = st.sets(st.integers(-1, 40)).map(lambda ids: np.array(sorted(ids), np.int32))
few_threads = st.sampled_from([-1, 0, 1, 1, 2, 257, 2**31 - 1, 2**40])


def odd_arrays(dtype: Any, sizes: st.SearchStrategy[int] = small) -> st.SearchStrategy[Any]:
    """Arrays of a dtype, right ones and all kinds of wrong ones."""
    kind = np.dtype(dtype)

    def plain(size: int, seed: int) -> Any:
        rng = np.random.default_rng(abs(seed))
        if kind.kind == "f":
            return rng.standard_normal(max(size, 0)).astype(kind)
        return rng.integers(0, 40, max(size, 0)).astype(kind)

    def shape(array: Any, how: int) -> Any:
        if how == 1:
            return np.repeat(array, 2)[::2]
        if how == 2:
            return array[::-1]
        if how == 3:
            return array.reshape(1, -1)
        if how == 4:
            return array.astype(np.float64)
        if how == 5:
            return array.astype(kind.newbyteorder(">"))
        if how == 6:
            raw = b"\1" + array.tobytes()
            return np.frombuffer(raw, kind, offset=1)
        if how == 7:
            return np.broadcast_to(array[:1], (3,)) if len(array) else array
        if how == 8:
            return array.astype(object)
        if how == 9:
            return np.asfortranarray(array.reshape(-1, 1)[:, [0, 0]])
        if how == 10:
            return array[:0]
        return array

    made = st.builds(plain, sizes, small)
    return st.one_of(made, st.builds(shape, made, st.integers(0, 10)), junk)


@fuzz
@given(
    text=texts, rows=ints, columns=ints, seed=ints,
    raw=odd_arrays(np.uint8, st.sampled_from([0, 18, 34, 144])),
    threads=few_threads, seconds=st.sampled_from([1e-4, 0.0, -1.0, 61.0, np.nan, "x"]),
)  # fmt: skip
def functions(
    text: Any, rows: Any, columns: Any, raw: Any, seed: Any, threads: Any, seconds: Any
) -> None:
    attempt("check_level", _native.check_level, text)
    attempt("dequantize_repacked", _native.dequantize_repacked, text, rows, columns, raw)
    if not (isinstance(rows, int) and isinstance(columns, int) and 2**26 < rows * columns < 2**62):
        attempt("random_weights", _native.random_weights, text, rows, columns, seed)
    attempt("in_cache_rate", _native.in_cache_rate, text, threads, rows, seconds, "")
    attempt("read_bandwidth", _native.read_bandwidth, (rows if rows < 99 else 2**37), threads, 1)


@fuzz
@given(
    logits=odd_arrays(np.float32), tokens=odd_arrays(np.int32), temperature=floats, top_p=floats,
    min_p=floats, numbers=st.lists(ints, min_size=6, max_size=6),
)  # fmt: skip
def sampling(
    logits: Any, tokens: Any, temperature: Any, top_p: Any, min_p: Any, numbers: list[int]
) -> None:
    k, seed, choice, position, chosen, top = numbers
    attempt("sample", _native.sample, logits, temperature, k, top_p, min_p, seed, choice, position)
    attempt("rank", _native.rank, logits, temperature, k, top_p, min_p, seed, choice, position, top)
    attempt("distribution", _native.distribution, logits, temperature, k, top_p, min_p)
    attempt("gumbel", _native.gumbel, seed, choice, position, tokens)
    attempt("log_probabilities", _native.log_probabilities, logits, chosen, top)


Calls = list[tuple[str, tuple[Any, ...]]]


def record(make: Callable[[], Any]) -> tuple[_native.Executor, Calls]:
    """An executor that is made by compiling something, and the calls that made it."""
    calls: list[tuple[str, tuple[Any, ...]]] = []
    made: list[_native.Executor] = []

    class Recorder:
        def __init__(self, *args: Any) -> None:
            calls.append(("__init__", args))
            made.append(_native.Executor(*args))

        def __getattr__(self, name: str) -> Any:
            found = getattr(made[0], name)
            if not callable(found):
                return found

            def call(*args: Any) -> Any:
                calls.append((name, args))
                return found(*args)

            return call

    real = compiler._native
    try:
        compiler._native = SimpleNamespace(  # type: ignore[assignment]
            Executor=Recorder, formats=_native.formats
        )
        make()
    finally:
        compiler._native = real
    return made[0], calls


def compile_toy() -> backend.CpuExecutable:
    return backend.CpuBackend("scalar").compile(TOY.program(), WEIGHTS, threads=1)


BASE = compile_toy()
HEADS = HeadsDefinition.best(1, 32, TOY.dim)
HEAD_WEIGHTS = MemoryWeights({**WEIGHTS.tensors, **heads_tensors(random_heads(HEADS), "f32")})
EXECUTOR, CALLS = record(compile_toy)
_, HEAD_CALLS = record(
    lambda: BASE.extend(level_program(HEADS, 0, TOY.program()), HEAD_WEIGHTS, max_rows=4)
)


def run_small(executor: Any, states: Any) -> None:
    tokens = np.array([1, 2, 3], np.int32)
    parents = np.array([-1, 0, 0], np.int32)
    rows = [0, 1, 2]
    taps = [(-1, rows), (0, rows), (1, rows)]
    vectors = np.ones((3, 32), np.float32)
    arguments = (states, tokens, parents, parents * 0, vectors, None, rows, rows, 3, rows)
    if attempt("run", executor.run, *arguments, taps) is None:
        attempt("run", executor.run, *arguments, [])


# Mostly numbers of other values, matrices and vectors: wrong wires that look right.
numbers_of_others = st.integers(0, 9)
argument = st.one_of(
    numbers_of_others, numbers_of_others, ints, floats, junk, texts, st.tuples(ints, floats)
)
change = st.tuples(st.sampled_from(["replace", "drop", "twice", "swap"]), small, small, argument)


@fuzz
@given(changes=st.lists(change, max_size=3), capacity=ints, kv=texts, heads=st.booleans())
def building(changes: list[Any], capacity: Any, kv: Any, heads: bool) -> None:
    """The calls that build a right executor, a little wrong."""
    calls = list(HEAD_CALLS if heads else CALLS)
    for what, first, second, value in changes:
        at = 1 + first % (len(calls) - 1)
        name, args = calls[at]
        if what == "replace":
            where = second % max(len(args), 1)
            calls[at] = (name, (*args[:where], value, *args[where + 1 :]))
        elif what == "drop":
            del calls[at]
        elif what == "twice":
            calls.insert(at, calls[at])
        else:
            other = 1 + second % (len(calls) - 1)
            calls[at], calls[other] = calls[other], calls[at]
    executor = _native.Executor(*calls[0][1])
    for name, args in calls[1:]:
        attempt(name, getattr(executor, name), *args)
    attempt("new_state", executor.new_state, capacity, kv)
    state = attempt("new_state", executor.new_state, 8, "f16")
    run_small(executor, [] if state is None else [state])


@fuzz
@given(numbers=st.lists(ints, min_size=6, max_size=6), eps=floats, frequencies=st.lists(floats),
       data=odd_arrays(np.float32), raw=odd_arrays(np.uint8), text=texts)  # fmt: skip
def adding(
    numbers: list[int], eps: float, frequencies: list[float], data: Any, raw: Any, text: Any
) -> None:
    """Whatever is added to an executor, before and after it is finished."""
    a, b, c, d, e, f = numbers
    attempt("Executor", _native.Executor, text, a, b, c)
    executor = attempt("Executor", _native.Executor, "scalar", 1, b, d)
    for target in (executor or _native.Executor("scalar", 1, 4, 9), record(compile_toy)[0]):
        attempt("add_matrix", target.add_matrix, text, a, b, raw)
        attempt("add_vector", target.add_vector, data)
        if not 2**20 < a < 2**31:
            attempt("add_value", target.add_value, a)
        attempt("add_rope", target.add_rope, a, b, eps, frequencies)
        attempt("embed", target.embed, a, b, eps)
        attempt("linear", target.linear, a, [numbers[:3]], (b, eps), c)
        attempt("linear", target.linear, a, [numbers[:3]], None, c, text)
        attempt("given", target.given, a)
        attempt("normalize", target.normalize, a, b, (c, eps))
        attempt("concat", target.concat, a, numbers[1:3])
        attempt("add", target.add, a, b, c, d, eps)
        attempt("share_matrix", target.share_matrix, EXECUTOR, a)
        attempt("share_matrix", target.share_matrix, target, b)
        attempt("attention", target.attention, a, b, c, d, e, f, a, b, eps, c, None, (d, eps), e, 1)
        attempt("gated_mlp", target.gated_mlp, a, b, c, d, e, None)
        attempt("head", target.head, a, b, c, (d, eps))
        attempt("tap", target.tap, a)
        attempt("finish", target.finish, a, b)
        run_small(target, [])
    attempt("__init__", executor.__init__ if executor else EXECUTOR.__init__, "scalar", 1, 1, 1)


@fuzz
@given(
    tokens=odd_arrays(np.int32, st.integers(0, 6)), parents=odd_arrays(np.int32, st.integers(0, 6)),
    sequences=odd_arrays(np.int32, st.integers(0, 6)), best=rows_lists, top=rows_lists, k=ints,
    logits=rows_lists, taps=st.one_of(st.lists(st.tuples(ints, rows_lists), max_size=3), junk),
    vectors=odd_arrays(np.float32, st.sampled_from([0, 32, 96])),
    takes=odd_arrays(np.uint8, st.integers(0, 6)), ids=st.one_of(id_lists, odd_arrays(np.int32)),
    right=st.integers(0, 255), commit=rows_lists, number=ints,
)  # fmt: skip
def running(
    tokens: Any, parents: Any, sequences: Any, best: Any, top: Any, k: Any, logits: Any, taps: Any,
    vectors: Any, takes: Any, ids: Any, right: int, commit: Any, number: Any,
) -> None:  # fmt: skip
    """run() with some arguments right (the bits of `right`) and the others anything."""
    states: Any = [EXECUTOR.new_state(6, "f16"), EXECUTOR.new_state(6, "q8_0")]
    if right & 1:
        tokens = np.array([1, 2, 3], np.int32)
    if right & 2:
        parents = np.array([-1, 0, -1], np.int32)
    if right & 4:
        sequences = np.array([0, 0, 1], np.int32)
    if right & 8:
        best, top, logits, k = [0, 2], [1], [0, 1, 2], 3
    if right & 16:
        taps = [(0, [0]), (-1, [2])]
    if right & 32:
        vectors, takes = None, None
    elif right & 64 and isinstance(vectors, np.ndarray) and vectors.size == 96:
        vectors, takes = vectors.reshape(3, 32), np.array([1, 0, 1], np.uint8)
    if not right & 128:
        states = [states[0], states[0], states, None, EXECUTOR, 3][: number % 6 if number else 0]
    size = 40 if right & 1 else number
    packed = attempt("pack_rows", EXECUTOR.pack_rows, ids)
    more = attempt("Shortlist", _native.Shortlist, ids, size, packed)
    shortlist = attempt("Shortlist", _native.Shortlist, ids, size) if right & 4 else more
    attempt(
        "run", EXECUTOR.run, states, tokens, parents, sequences, vectors, takes, best, top, k,
        logits, taps, shortlist if right & 2 else ids,
    )  # fmt: skip
    for state in states:
        if isinstance(state, _native.State):
            attempt("commit", state.commit, commit)
            attempt("poison", state.poison)
            attempt("bytes_at", state.bytes_at, number)
            attempt("truncate", state.truncate, number)
            attempt("fork", state.fork)
            assert 0 <= state.length <= state.capacity


@fuzz
@given(
    text=st.one_of(rows_lists, st.none(), odd_arrays(np.int32)), start=ints, trust=ints,
    calls=st.lists(
        st.tuples(st.one_of(rows_lists, id_lists, st.integers(0, 9)), ints, ints, floats),
        max_size=6,
    ),
    right=st.integers(0, 63),
)  # fmt: skip
def drafting(text: Any, start: Any, trust: Any, calls: list[Any], right: int) -> None:
    """Sequences that grow, shrink or are none, with budgets of all kinds."""
    if right & 1:
        start, trust = (0, 0) if text is None else (1, 4)
    reader = attempt("SuffixReader", _native.SuffixReader, text, start, trust)
    reader = reader or _native.SuffixReader([1, 2, 1, 3], 0, 4)
    sequence: list[int] = []
    for tokens, nodes, depth, row_price in calls:
        if right & 2 and isinstance(tokens, list):
            sequence += [1, 2, 1][: len(tokens)]
            tokens = sequence
        elif right & 4 and isinstance(tokens, int):
            tokens = Sloppy(sequence, tokens, reader)
        if right & 8:
            nodes, depth = 9, 5
        if right & 16:
            row_price = 0.0
        found = attempt("propose", reader.propose, tokens, nodes, depth, row_price)
        if found is not None:
            assert len({len(part) for part in found}) == 1
            assert len(found[0]) <= nodes
            assert all(-1 <= parent < node for node, parent in enumerate(found[1]))
            assert all(0 <= claim <= 1 for claim in found[2])


class Sloppy(list):  # type: ignore[type-arg]
    """Tokens that change the list, and use the reader, while they are asked for."""

    def __init__(self, tokens: list[int], more: int, reader: Any) -> None:
        super().__init__([*tokens, *([self] * more)])
        self._reader = reader

    def __index__(self) -> int:
        del self[2:]
        self._reader.propose([1, 2, 3], 4, 4, 0.0)
        return len(self)


@fuzz
@given(value=junk)
def objects(value: Any) -> None:
    """Objects that were never made, and methods on the wrong ones."""
    kinds = (_native.State, _native.Executor, _native.Shortlist, _native.PackedRows)
    for kind in (*kinds, _native.SuffixReader):
        attempt("new", kind)
        bare = attempt("__new__", kind.__new__, kind)
        for name in ("length", "capacity", "level", "threads", "cancel", "fork", "poison"):
            if bare is not None and hasattr(kind, name):
                attempt(name, lambda name=name, bare=bare: getattr(bare, name))
        attempt("run", _native.Executor.run, value, [], value, value, value)
        attempt("fork", _native.State.fork, value)
        attempt("propose", _native.SuffixReader.propose, bare, [], 1, 1, 0.0)
        attempt("commit", _native.State.commit, bare, [])
        one = np.zeros(1, np.int32)
        arguments = ([EXECUTOR.new_state(4, "f16")], one, one - 1, one, None, None, [0], [], 0, [])
        attempt("run", EXECUTOR.run, *arguments, [], bare)


@fuzz
@given(
    tokens=st.lists(st.integers(-2, 41), min_size=1, max_size=6),
    parents=st.lists(st.integers(-3, 7), min_size=1, max_size=6),
    sequences=st.lists(st.integers(-1, 3), min_size=1, max_size=6),
)
def trees(tokens: list[int], parents: list[int], sequences: list[int]) -> None:
    """Bad tokens, forward and foreign parents, cycles, missing sequences, full states."""
    executable = backend.CpuExecutable(EXECUTOR, TOY.program())
    states = [executable.new_state(3), executable.new_state(5, "q8_0"), executable.new_state(1)]
    length = min(len(tokens), len(parents), len(sequences))
    rows = make_rows(tokens[:length], parents[:length], sequences[:length])
    try:
        result = attempt("run", executable.run, states, rows, Want(logits=range(length)))
    except CapacityError:
        return
    if result is None:
        return
    assert result.logits.shape == (length, 40)
    assert np.isfinite(result.logits).all()


def main() -> None:
    warnings.simplefilter("ignore")  # nanobind tells of every object that was never made
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    {name: target for name, target in globals().items() if hasattr(target, "hypothesis")}[
        sys.argv[1]
    ]()


if __name__ == "__main__":
    main()
