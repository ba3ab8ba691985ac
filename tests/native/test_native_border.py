"""The border of the native core: bad programs, rows, states and numbers raise, and nothing crashes.

Fuzzing might kill a process and so runs in one of its own (border_fuzz.py).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_support import (
    TOY,
    Toy,
    compile_toy,
    make_rows,
    python,
)

from divine.backends.base import Rows, Want
from divine.backends.cpu import _native
from divine.backends.cpu.backend import CpuExecutable
from divine.errors import CapacityError, NumericError, UnsupportedError, UsageError

HERE = Path(__file__).parent
FUZZ_TARGETS = (
    "functions",
    "sampling",
    "building",
    "adding",
    "running",
    "drafting",
    "objects",
    "trees",
)


@pytest.mark.parametrize("target", FUZZ_TARGETS)
def test_fuzz(target: str) -> None:
    with tempfile.TemporaryFile() as log:
        number = log.fileno()
        script = str(HERE / "border_fuzz.py")
        child = python("-X", "faulthandler", script, target, str(number), pass_fds=[number])
        log.seek(0)
        last = log.read().decode(errors="replace").rstrip()
    assert child.returncode == 0, f"in {last}\n{child.stderr[-3000:]}"
    assert last, "nothing was called"


# ---- programs ----


def executor(max_rows: int = 4, weight_bytes: int = 1 << 20) -> tuple[_native.Executor, int, int]:
    """An executor with a matrix F32 [40, 32] and a value of 32; and their numbers."""
    made = _native.Executor("scalar", 1, max_rows, weight_bytes)
    return made, made.add_matrix("F32", 40, 32, np.zeros(40 * 32 * 4, np.uint8)), made.add_value(32)


def wide_tap(ex: _native.Executor, matrix: int, x: int) -> None:
    wide = ex.add_value(40)
    ex.embed(x, matrix, 1.0)
    ex.linear(x, [[wide, matrix, -1]], None, -1)
    ex.tap(wide)
    ex.head(x, matrix, -1, None)


def wide_head(ex: _native.Executor, matrix: int, x: int) -> None:
    wide = ex.add_value(40)
    ex.embed(x, matrix, 1.0)
    ex.linear(x, [[wide, matrix, -1]], None, -1)
    ex.head(wide, ex.add_matrix("F32", 40, 40, np.zeros(40 * 40 * 4, np.uint8)), -1, None)


def second_embed(ex: _native.Executor, matrix: int, x: int) -> None:
    ex.embed(x, matrix, 1.0)
    ex.embed(x, ex.add_matrix("F32", 1, 32, np.zeros(32 * 4, np.uint8)), 1.0)
    ex.head(x, matrix, -1, None)


def overflowing_heads(ex: _native.Executor, matrix: int, x: int) -> None:
    wide = ex.add_value(1024)
    ex.embed(x, matrix, 1.0)
    heads = 2**22 + 1  # times 1024 is 1024 in 32 bits
    ex.attention(wide, wide, wide, wide, 0, heads, 1, 1024, 1.0, -1, None, None, 0, 0.0)
    ex.head(x, matrix, -1, None)


def missing_head(ex: _native.Executor, matrix: int, x: int) -> None:
    ex.embed(x, matrix, 1.0)


def two_heads(ex: _native.Executor, matrix: int, x: int) -> None:
    ex.embed(x, matrix, 1.0)
    ex.head(x, matrix, -1, None)
    ex.head(x, matrix, -1, None)


def unknown_matrix(ex: _native.Executor, matrix: int, x: int) -> None:
    ex.embed(x, matrix, 1.0)
    ex.head(x, matrix + 1, -1, None)


def short_bias(ex: _native.Executor, matrix: int, x: int) -> None:
    ex.embed(x, matrix, 1.0)
    ex.head(x, matrix, ex.add_vector(np.zeros(8, np.float32)), None)


@pytest.mark.parametrize(
    "build",
    [
        wide_tap, wide_head, second_embed, overflowing_heads, missing_head, two_heads,
        unknown_matrix, short_bias,
    ],
)  # fmt: skip
def test_ill_formed_programs_are_refused(build: Callable[[Any, int, int], None]) -> None:
    ex, matrix, x = executor()
    build(ex, matrix, x)
    with pytest.raises(ValueError, match=r"\w"):
        ex.finish(40, 32)
    with pytest.raises(ValueError, match="not finished"):
        ex.new_state(4, "f16")


def test_unfinished_executor_does_not_run() -> None:
    ex, _, _ = executor()
    one = np.zeros(1, np.int32)
    with pytest.raises(ValueError, match="not finished"):
        ex.run([], one, one - 1, one, None, None, [], [], 0, [], [])


def test_full_arena_and_huge_sizes_are_refused() -> None:
    ex, _, _ = executor(weight_bytes=48 * 32 * 4)  # rows are padded to groups of 16
    with pytest.raises(ValueError, match="arena"):
        ex.add_matrix("F32", 40, 32, np.zeros(40 * 32 * 4, np.uint8))
    for wide in (0, -1, 2**20 + 1, 2**31 - 1):
        with pytest.raises(ValueError, match="width"):
            ex.add_value(wide)
    with pytest.raises(MemoryError):
        _native.Executor("scalar", 1, 4, 2**63)


# ---- passes through the backend ----


def vector_rows(shape: tuple[int, int] | None, flags: int) -> Rows:
    """Two rows that take vectors of a shape, with so many flags."""
    zeros = np.zeros(2, np.int32)
    vectors = None if shape is None else np.zeros(shape, np.float32)
    return Rows(zeros, zeros - 1, zeros, vectors, np.ones(flags, np.bool_))


@pytest.fixture(scope="module")
def executable() -> CpuExecutable:
    return compile_toy(TOY)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (make_rows([300], [-1]), "token 300"),
        (make_rows([-1], [-1]), "token -1"),
        (make_rows([1, 2], [-1, 1]), "parent 1"),
        (make_rows([1, 2], [1, 0]), "parent 1"),
        (make_rows([1, 2], [-2, 0]), "parent -2"),
        (make_rows([1, 2], [-1, 0], [0, 1]), "parent 0"),
        (make_rows([1], [-1], [2]), "sequence 2"),
        (make_rows([1], [-1], [-1]), "sequence -1"),
        (make_rows([], []), "rows, not 0"),
        (make_rows([0] * 257, [-1] * 257), "too many rows"),
        (vector_rows(None, 2), "takes a vector"),
        (vector_rows((2, 63), 2), "vectors must be"),
        (vector_rows((3, 64), 2), "vectors must be"),
        (vector_rows((2, 64), 3), "flag for each row"),
        (Rows(np.zeros(2, np.int32), np.zeros(1, np.int32), np.zeros(2, np.int32)), "equally long"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_rows_leave_states_as_they_were(
    executable: CpuExecutable, rows: Rows, message: str
) -> None:
    states = [executable.new_state(300), executable.new_state(300)]
    executable.run(states, make_rows([5, 6], [-1, -1], [0, 1]), Want())
    with pytest.raises(ValueError, match=message):
        executable.run(states, rows, Want())
    for row, state in enumerate(states):
        state.commit([row])  # what was pending is still there
        assert state.length == 1


@pytest.mark.parametrize(
    "want",
    [
        Want(best=[1]), Want(best=[-1]), Want(best=[0, 0]), Want(logits=[1]), Want(top=([1], 3)),
        Want(top=([0], 0)), Want(top=([0], 301)), Want(taps={"final": [1]}), Want(taps={"x": [0]}),
    ],
)  # fmt: skip
def test_bad_wants(executable: CpuExecutable, want: Want) -> None:
    state = executable.new_state(8)
    with pytest.raises(ValueError, match=r"\w"):
        executable.run([state], Rows.chain([1]), want)
    assert state.length == 0


def test_states_given_wrongly(executable: CpuExecutable) -> None:
    state = executable.new_state(8)
    with pytest.raises(ValueError, match="twice"):
        executable.run([state, state], Rows.chain([1]), Want())
    other = compile_toy(Toy(windows=(None,)))
    with pytest.raises(ValueError, match="another program"):
        other.run([state], Rows.chain([1]), Want())
    state.close()
    for call in (
        lambda: executable.run([state], Rows.chain([1]), Want()),
        lambda: state.length, state.fork, lambda: state.commit([]), lambda: state.truncate(0),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="closed"):
            call()
    state.close()


def test_capacity(executable: CpuExecutable) -> None:
    state = executable.new_state(3)
    executable.run([state], Rows.chain([1, 2, 3]), Want())
    state.commit([0, 1])
    with pytest.raises(CapacityError, match="exceeds the capacity of 3"):
        executable.run([state], Rows.chain([1, 2]), Want())
    executable.run([state], make_rows([1, 2, 3], [-1, -1, -1]), Want())  # siblings share a place
    state.commit([2])
    assert state.length == 3
    for capacity in (0, -1, 2**24 + 1):
        with pytest.raises(UnsupportedError):
            executable.new_state(capacity)
    with pytest.raises(UnsupportedError, match="multiple of 32 values; this model's have 16"):
        compile_toy(Toy(head_dim=16)).new_state(8, "q8_0")


def test_closed_executable_and_wrong_threads(executable: CpuExecutable) -> None:
    closed = compile_toy(TOY)
    state = closed.new_state(8)
    closed.run([state], Rows.chain([1, 2]), Want())
    closed.close()
    closed.cancel()
    closed.close()
    with pytest.raises(ValueError, match="closed"):
        closed.run([state], Rows.chain([1]), Want())
    state.commit([0, 1])  # a state outlives its executable
    assert state.length == 2
    for threads in (0, -1, 257):
        with pytest.raises(UsageError, match="threads"):
            compile_toy(TOY, threads=threads)


# ---- numbers that are none ----


WANTS = {
    "best": Want(best=[2]),
    "top": Want(top=([2], 3)),
    "logits": Want(logits=[2]),
    "tap": Want(taps={"final": [2]}),
}


@pytest.mark.parametrize("kind", WANTS)
@pytest.mark.parametrize(("value", "name"), [(np.nan, "NaN"), (np.inf, "NaN|infinity")])
def test_vectors_that_are_not_numbers(
    executable: CpuExecutable, kind: str, value: float, name: str
) -> None:
    state = executable.new_state(16)
    executable.run([state], Rows.chain([1, 2, 3]), Want())
    state.commit([0, 1, 2])
    chain = make_rows([1, 2, 3, 4], [-1, 0, 1, 1])
    vectors = np.zeros((4, 64), np.float32)
    vectors[2, 5] = value
    takes = np.array([False, False, True, False])
    rows = Rows(chain.tokens, chain.parents, chain.sequences, vectors, takes)
    with pytest.raises(NumericError, match=f"({name}) at position 5"):
        executable.run([state], rows, WANTS[kind])
    executable.run([state], rows, Want(best=[0, 1, 3], logits=[3]))  # the others are as ever


@pytest.mark.parametrize("tensor", ["final.norm", "1.mlp.norm", "0.q.bias", "output.bias", "table"])
@pytest.mark.parametrize("formats", [("F32",), ("F32", "Q8_0", "Q4_0")])
def test_weights_that_are_not_numbers(tensor: str, formats: tuple[str, ...]) -> None:
    weights = TOY.weights(formats)
    weights.poke(tensor, 3, np.nan)
    executable = compile_toy(TOY, weights)
    state = executable.new_state(8)
    with pytest.raises(NumericError, match="NaN at position 0"):
        executable.run([state], Rows.chain([0, 1]), Want(best=[0, 1]))


# ---- reading on in texts ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, -1],), "outside 0 to"),
        (([2**31],), "outside 0 to"),
        (([10**30],), "outside 0 to"),
        (([1], -1), "start"),
        (([1], 2**30 + 1), "start"),
        (([1], 0, -1), "trust"),
        (([1], 0, 4097), "trust"),
        ((None, 1), "start and trust"),
        ((None, 0, 4), "start and trust"),
    ],
)
def test_bad_texts(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _native.SuffixReader(*arguments)
    for text in (3, [None], ["1"], [1.0]):
        with pytest.raises(TypeError):
            _native.SuffixReader(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([5, 5], 8, 8, 0.0), "fewer tokens"),
        (([5, 6, 5, 6, -1], 8, 8, 0.0), "outside 0 to"),
        (([5, 6, 5, 6, 2**31], 8, 8, 0.0), "outside 0 to"),
        (([5, 6, 5, 6], -1, 8, 0.0), "nodes and depth"),
        (([5, 6, 5, 6], 4097, 8, 0.0), "nodes and depth"),
        (([5, 6, 5, 6], 8, 4097, 0.0), "nodes and depth"),
        (([5, 6, 5, 6], 8, 8, np.nan), "row_price"),
        (([5, 6, 5, 6], 8, 8, np.inf), "row_price"),
    ],
)
def test_bad_proposals_leave_a_reader_as_it_was(arguments: Any, message: str) -> None:
    reader = _native.SuffixReader(None)
    assert reader.propose([5, 6, 5], 4, 4, 0.0)[0] == [6, 5, 6, 5]
    with pytest.raises(ValueError, match=message):
        reader.propose(*arguments)
    assert reader.propose([5, 6, 5, 6], 4, 4, 0.0)[0] == [5, 6, 5, 6]
