"""The border of the native core: bad calls raise, and nothing crashes, hangs or leaks.

What might kill a process runs in one of its own: fuzzing (border_fuzz.py), signals and forks.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_support import (
    TOY,
    Toy,
    compile_toy,
    everything,
    kv_bytes,
    long_program,
    make_rows,
    row_bytes,
    tokens_of,
)

from divine.backends.base import Cancelled, Rows, Want
from divine.backends.cpu import _native
from divine.backends.cpu.backend import CpuBackend, CpuExecutable, CpuState
from divine.errors import CapacityError, NumericError, UnsupportedError, UsageError

HERE = Path(__file__).parent
# An interrupted pass ends at the next operation after at most 50 ms; on a busy machine later. Not
# interrupted it would take many times as long.
INTERRUPT_SECONDS = 3.0
FUZZ_TARGETS = (
    "functions",
    "sampling",
    "building",
    "adding",
    "running",
    "objects",
    "trees",
)


def python(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """A child that imports what this process imports."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment, text=True, capture_output=True, timeout=120, check=False, **options,
    )  # fmt: skip


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
    with pytest.raises(UnsupportedError, match="divisible by 32"):
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


# ---- threads and signals ----

SLOW = Toy(dim=256, ffn=1024, vocabulary=64, head_dim=32)


def slow_executable() -> CpuExecutable:
    """At 256 rows a pass takes many seconds: scalar code, 60 layers."""
    return CpuBackend("scalar").compile(long_program(SLOW, 60), SLOW.weights(["Q8_0"]), threads=1)


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Run a call in a thread; its result or its exception is put into the list."""
    found: list[object] = []

    def work() -> None:
        try:
            found.append(call())
        except Exception as error:  # noqa: BLE001 - the test looks at it
            found.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread, found


def test_cancel_leaves_states_as_before() -> None:
    executable = slow_executable()
    prompt = tokens_of(5, 64)
    state = executable.new_state(512)
    executable.run([state], Rows.chain(prompt), Want())
    state.commit(range(5))
    before = kv_bytes(state)
    again = executable.run([state], Rows.chain([7]), everything(executable, 1))
    thread, found = in_thread(
        lambda: executable.run([state], Rows.chain(tokens_of(256, 64)), Want(best=[255]))
    )
    time.sleep(0.3)
    with pytest.raises(ValueError, match="in use"):
        state.truncate(0)
    for call in (state.fork, lambda: state.commit([]), state.native.poison):
        with pytest.raises(ValueError, match="in use"):
            call()
    start = time.monotonic()
    executable.cancel()
    thread.join(60)
    assert time.monotonic() - start < INTERRUPT_SECONDS
    assert isinstance(found[0], Cancelled)
    assert kv_bytes(state) == before
    with pytest.raises(ValueError, match="not a pending row"):
        state.commit([0])
    result = executable.run([state], Rows.chain([7]), everything(executable, 1))
    assert row_bytes(result, 0) == row_bytes(again, 0)


def test_cancel_without_a_pass_does_nothing(executable: CpuExecutable) -> None:
    executable.cancel()
    executable.run([executable.new_state(4)], Rows.chain([1]), Want(best=[0]))


INTERRUPTED = """
import sys
from divine.backends.base import Rows, Want
from native_support import kv_bytes, tokens_of
from test_native_border import slow_executable
executable = slow_executable()
state = executable.new_state(512)
executable.run([state], Rows.chain([1, 2, 3]), Want())
state.commit([0, 1, 2])
before = kv_bytes(state)
print("running", flush=True)
try:
    executable.run([state], Rows.chain(tokens_of(256, 64)), Want(best=[255]))
except KeyboardInterrupt:
    print("interrupted", flush=True)
assert kv_bytes(state) == before
executable.run([state], Rows.chain([4]), Want(best=[0]))
state.commit([0])
print("usable", state.length, flush=True)
"""


def test_keyboard_interrupt() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        assert child.stderr is not None
        try:
            assert child.stdout.readline() == "running\n", child.stderr.read()
            time.sleep(0.3)
            start = time.monotonic()
            child.send_signal(signal.SIGINT)
            line = child.stdout.readline()
            assert line == "interrupted\n", line + child.stderr.read()
            assert time.monotonic() - start < INTERRUPT_SECONDS
            assert child.stdout.readline() == "usable 4\n", child.stderr.read()
            assert child.wait(60) == 0
        finally:
            child.kill()


def bits_of_a_run(executable: CpuExecutable) -> list[object]:
    state = executable.new_state(64)
    bits: list[object] = []
    for start in range(0, 40, 4):
        rows = Rows.chain(tokens_of(40, executable.vocabulary)[start : start + 4])
        result = executable.run([state], rows, everything(executable, 4))
        bits += [row_bytes(result, row) for row in range(4)]
        state.commit(range(4))
    return bits


@pytest.mark.parametrize("shared", [False, True], ids=["own executable", "same executable"])
def test_passes_from_several_python_threads(shared: bool) -> None:
    weights = TOY.weights()
    first = compile_toy(TOY, weights, threads=2)
    executables = [first] * 3
    if not shared:
        executables[1:] = [compile_toy(TOY, weights, threads=n) for n in (1, 2)]
    wanted = bits_of_a_run(first)
    started = [in_thread(lambda e=e: bits_of_a_run(e)) for e in executables]  # type: ignore[misc]
    for thread, found in started:
        thread.join(60)
        assert found == [wanted]


def test_one_state_in_two_threads_is_refused() -> None:
    executable = slow_executable()
    state = executable.new_state(512)
    rows = Rows.chain(tokens_of(256, 64))
    thread, found = in_thread(lambda: executable.run([state], rows, Want()))
    time.sleep(0.3)
    with pytest.raises(ValueError, match="in use"):
        executable.run([state], Rows.chain([1]), Want())
    executable.cancel()
    thread.join(60)
    assert isinstance(found[0], Cancelled)


FORKED = """
import multiprocessing, os, sys
from test_native_border import bits_of_a_run
from native_support import TOY, compile_toy
executable = compile_toy(TOY, threads=2)
wanted = bits_of_a_run(executable)
child = os.fork()
if child == 0:
    os._exit(0 if bits_of_a_run(executable) == wanted else 3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "forked"
def work(queue):
    queue.put(bits_of_a_run(executable) == wanted)
context = multiprocessing.get_context("fork")
queue = context.Queue()
process = context.Process(target=work, args=(queue,))
process.start()
assert queue.get(timeout=60) is True
process.join(60)
assert bits_of_a_run(executable) == wanted
print("done")
"""


def test_forked_processes_can_run() -> None:
    child = python("-W", "ignore", "-c", FORKED)
    assert (child.returncode, child.stdout) == (0, "done\n"), child.stderr


# ---- memory ----


def resident_mb() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_compiling_and_closing_does_not_leak() -> None:
    toy = Toy(dim=256, ffn=1024, windows=(None,))
    weights = toy.weights(["F32"])  # 4 MB

    def once() -> None:
        executable = compile_toy(toy, weights)
        state: CpuState = executable.new_state(600)
        executable.run([state], Rows.chain([1, 2, 3]), Want(logits=[0, 1, 2]))
        state.commit([0, 1, 2])
        state.fork().close()
        state.close()
        executable.close()

    for _ in range(5):
        once()
    before = resident_mb()
    for _ in range(50):
        once()
    assert resident_mb() - before < 16  # a leak of the weights alone would be 200
