"""States as bytes: what is restored goes on with the same bits, and wrong bytes harm nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divine.backends.base import SAVED_BLOCK, Rows, Want
from divine.backends.cpu import _native
from divine.backends.cpu.backend import CpuBackend
from divine.backends.reference.backend import ReferenceBackend
from divine.errors import CapacityError
from divine.gguf import open_gguf
from divine.models import build_program
from tiny_models import tiny_llama

LENGTH = 600  # two cuts of 256 positions, and more


@pytest.fixture(scope="module", params=["cpu", "reference"])
def executable(request, tmp_path_factory):
    path = tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf", context=1024, head_dim=32)
    backend = CpuBackend() if request.param == "cpu" else ReferenceBackend()
    with open_gguf(path) as file:
        yield backend.compile(build_program(file), file, threads=1)


@pytest.fixture(scope="module", params=["f16", "q8_0"])
def read(request, executable):
    """A state that has read LENGTH tokens, and its KV type."""
    state = executable.new_state(1024, request.param)
    rng = np.random.default_rng(0)
    feed(executable, state, rng.integers(3, 300, LENGTH).tolist())
    return state, request.param


def feed(executable, state, tokens):
    """Commit tokens; the logits after the last."""
    logits = None
    for start in range(0, len(tokens), 200):
        part = tokens[start : start + 200]
        result = executable.run([state], Rows.chain(part), Want(logits=[len(part) - 1]))
        logits = result.logits[0].copy()
        state.commit(range(len(part)))
    return logits


@pytest.mark.parametrize("cuts", [[16], [64, 128, 192, 256, 320], [256, 512], [48, 592], [592]])
def test_a_restored_state_goes_on_with_the_same_bits(executable, read, cuts):
    state, kv_type = read
    new = executable.new_state(1024, kv_type)
    for start, stop in zip([0, *cuts], cuts, strict=False):
        new.load(state.save(start, stop))
    assert new.length == cuts[-1]
    old = state.fork()
    old.truncate(cuts[-1])
    more = [5, 9, 17, 200, 31]
    assert feed(executable, new, more).tobytes() == feed(executable, old, more).tobytes()
    end = (cuts[-1] // SAVED_BLOCK) * SAVED_BLOCK
    assert new.save(0, end).tobytes() == state.save(0, end).tobytes()


def test_a_restored_state_can_be_cut_forked_and_used_again(executable, read):
    state, kv_type = read
    new = executable.new_state(1024, kv_type)
    new.load(state.save(0, 320))
    new.truncate(100)
    assert new.fork().save(0, 96).tobytes() == state.save(0, 96).tobytes()
    with pytest.raises(ValueError, match="load"):
        new.load(state.save(96, 112))  # 100 is within a block
    new.truncate(96)
    new.load(state.save(96, 112))
    assert new.save(0, 112).tobytes() == state.save(0, 112).tobytes()


@pytest.mark.parametrize(("start", "stop"), [(0, 608), (8, 24), (0, 20), (-16, 16), (32, 16)])
def test_only_whole_committed_blocks_are_saved(read, start, stop):
    with pytest.raises(ValueError, match="save"):
        read[0].save(start, stop)


def test_what_is_pending_is_not_saved(executable, read):
    state = read[0].fork()
    executable.run([state], Rows.chain(list(range(3, 35))), Want())
    with pytest.raises(ValueError, match="save"):
        state.save(592, 624)


def test_more_than_fits_is_refused_and_changes_nothing(executable, read):
    state, kv_type = read
    small = executable.new_state(100, kv_type)
    small.load(state.save(0, 64))
    with pytest.raises(CapacityError, match=r"capacity|can hold"):
        small.load(state.save(64, 112))
    assert small.length == 64
    assert small.save(0, 64).tobytes() == state.save(0, 64).tobytes()


@given(size=st.integers(0, 5000), extra=st.integers(-3, 3), blocks=st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_bytes_of_any_other_size_are_refused(executable, read, size, extra, blocks):
    state, kv_type = read
    block = len(state.save(0, SAVED_BLOCK))
    new = executable.new_state(64, kv_type)
    for count in {size, max(0, blocks * block + extra)}:
        data = np.zeros(count, np.uint8)
        if count and count % block == 0:
            new.load(data)
            new.truncate(0)
        else:
            with pytest.raises(ValueError, match="load"):
                new.load(data)
            assert new.length == 0


def test_a_program_without_attention_keeps_nothing_to_load():
    bare = _native.Executor("scalar", 1, 4, 10**6)
    bare.add_matrix("Q8_0", 32, 256, np.asarray(_native.random_weights("Q8_0", 32, 256, 1)))
    value = bare.add_value(256)
    bare.embed(value, 0, 1.0)
    bare.head(value, 0, -1, None)
    bare.finish(32, 256)
    with pytest.raises(ValueError, match="keeps nothing of a position"):
        bare.new_state(16, "f16").load(np.zeros(1, np.uint8))


@given(seed=st.integers(0, 2**32), count=st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_random_bytes_never_harm(executable, read, seed, count):
    """They are keys and values like any other, NaN among them: numbers, no addresses."""
    state, kv_type = read
    data = np.random.default_rng(seed).integers(
        0, 256, count * len(state.save(0, SAVED_BLOCK)), dtype=np.uint8
    )
    new = executable.new_state(256, kv_type)
    new.load(data)
    assert new.length == count * SAVED_BLOCK
    executable.run([new], Rows.chain([5, 6]), Want())
    new.commit([0, 1])
    assert new.length == count * SAVED_BLOCK + 2


def test_other_arrays_are_refused(executable, read):
    state, kv_type = read
    new = executable.new_state(64, kv_type)
    good = state.save(0, 32)
    new.load(good.copy())
    if type(new).__name__ == "CpuState":
        for wrong in (good.view(np.int32), good[::2], good.reshape(2, -1), None, b"x"):
            with pytest.raises((TypeError, ValueError)):
                new.load(wrong)
    assert new.length == 32
