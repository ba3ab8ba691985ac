"""The native core among threads, signals and forks; and memory that comes back.

What might kill or block a process runs in one of its own.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from native_support import (
    TOY,
    Toy,
    compile_toy,
    everything,
    kv_bytes,
    long_program,
    python,
    row_bytes,
    tokens_of,
)

from divine.backends.base import Cancelled, Rows, Want
from divine.backends.cpu.backend import CpuBackend, CpuExecutable, CpuState
from divine.errors import CapacityError
from tiny_models import tiny_llama

# An interrupted pass ends at the next operation after at most 50 ms; on a busy machine later. Not
# interrupted it would take many times as long.
INTERRUPT_SECONDS = 3.0

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


def test_cancel_ahead_of_a_pass_stops_that_one_only() -> None:
    executable = compile_toy(TOY)
    state = executable.new_state(4)
    executable.cancel()
    executable.cancel()
    with pytest.raises(Cancelled):
        executable.run([state], Rows.chain([1]), Want(best=[0]))
    executable.run([state], Rows.chain([1]), Want(best=[0]))
    executable.cancel()
    with pytest.raises(CapacityError):  # this one ended otherwise
        executable.run([state], Rows.chain([1] * 5), Want())
    executable.run([state], Rows.chain([1]), Want(best=[0]))


INTERRUPTED = """
import sys
from divine.backends.base import Rows, Want
from native_support import kv_bytes, tokens_of
from test_native_threads import slow_executable
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


LEFT_RUNNING = """
import sys, threading, time
import divine
model = divine.load(sys.argv[1])
def talk():
    while True:
        model.generate("hello the world " * 60, max_tokens=500)
for _ in range(2):
    threading.Thread(target=talk, daemon=True).start()
time.sleep(0.5)
"""


def test_a_program_may_end_while_daemon_threads_generate(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "tiny.gguf", dim=512, ffn=1024, layers=8, context=2048)
    command = [sys.executable, "-W", "ignore", "-c", LEFT_RUNNING, str(model)]
    for _ in range(3):
        assert subprocess.run(command, stderr=subprocess.DEVNULL, timeout=60).returncode == 0


HELD = """
import threading, time
from divine.backends.cpu import _native
held = _native.Executor("scalar", 1, 8, 1 << 20)
threading.Thread(target=lambda mine: time.sleep(60), args=(held,), daemon=True).start()
"""


def test_what_a_daemon_thread_holds_is_no_leak_to_warn_of() -> None:
    ended = python("-c", HELD)
    assert (ended.returncode, ended.stderr) == (0, "")


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
from test_native_threads import bits_of_a_run
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
