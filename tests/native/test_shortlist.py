"""A head restricted to a draft vocabulary: the listed tokens' own bits, nothing of the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_support import TOY, MemoryWeights, Toy, compile_toy, make_rows, tokens_of
from numpy.typing import NDArray

from divine.backends.base import Executable, PassResult, Rows, Want
from divine.backends.cpu import _native
from divine.backends.cpu.backend import CpuExecutable
from divine.backends.reference.backend import ReferenceBackend
from divine.errors import NumericError

TREE = make_rows(list(range(8)), [-1, 0, 1, -1, 3, 0, 5, -1])
ROWS = range(8)
LOG_SUM_TOLERANCE = 2e-6  # relative; sums are float32


@pytest.fixture(scope="module")
def executable() -> CpuExecutable:
    return compile_toy(TOY, TOY.weights(["Q4_0", "Q8_0", "F16"]))


@pytest.fixture(scope="module")
def full(executable: CpuExecutable) -> PassResult:
    return executable.run([executable.new_state(16)], TREE, Want(logits=ROWS))


def ids_of(tokens: Any) -> NDArray[np.int32]:
    return np.array(sorted(tokens), np.int32)


def check_restricted(found: PassResult, full: NDArray[np.float32], ids: NDArray[np.int32]) -> None:
    """`found` is what the full logits say of these tokens, in all of its parts."""
    masked = np.full_like(full, -np.inf)
    masked[:, ids] = full[:, ids]
    assert found.logits.tobytes() == masked.tobytes()
    order = np.lexsort((np.broadcast_to(np.arange(full.shape[1]), full.shape), -masked))
    k = found.top_ids.shape[1]
    assert (found.best_ids == order[:, 0]).all()
    assert (found.best_logits == masked.max(1)).all()
    assert (found.top_ids == order[:, :k]).all()
    assert (found.top_logits == np.take_along_axis(masked, order[:, :k], 1)).all()
    exact = np.log(np.exp(masked.astype(np.float64)).sum(1))
    assert np.abs(found.log_sum_exp - exact).max() < LOG_SUM_TOLERANCE * max(1, np.abs(exact).max())
    assert (found.log_sum_exp == found.top_log_sum_exp).all()


def restricted(executable: Executable, ids: NDArray[np.int32], k: int) -> PassResult:
    want = Want(ROWS, (ROWS, k), ROWS, shortlist=executable.new_shortlist(ids))
    return executable.run([executable.new_state(16)], TREE, want)


@given(tokens=st.sets(st.integers(0, 299), min_size=1), threads=st.sampled_from([1, 2]))
@settings(max_examples=60, deadline=None)
def test_listed_tokens_keep_their_bits(
    executable: CpuExecutable, full: PassResult, tokens: set[int], threads: int
) -> None:
    ids = ids_of(tokens)
    target = executable if threads == 1 else TWO_THREADS
    check_restricted(restricted(target, ids, min(3, len(ids))), full.logits, ids)


TWO_THREADS = compile_toy(TOY, TOY.weights(["Q4_0", "Q8_0", "F16"]), threads=2)


@pytest.mark.parametrize(
    "ids", [[0], [299], [15, 16], [288, 299], [0, 17, 160, 161, 256, 257, 298], range(300)]
)
def test_edges_of_groups_and_chunks(executable: CpuExecutable, full: PassResult, ids: Any) -> None:
    for k in {1, len(ids)}:
        check_restricted(restricted(executable, ids_of(ids), k), full.logits, ids_of(ids))


def test_all_tokens_listed_is_the_full_head(executable: CpuExecutable) -> None:
    want = Want(ROWS, (ROWS, 5), ROWS)
    plain = executable.run([executable.new_state(16)], TREE, want)
    listed = restricted(executable, ids_of(range(300)), 5)
    assert listed.logits.tobytes() == plain.logits.tobytes()
    assert listed.log_sum_exp.tobytes() == plain.log_sum_exp.tobytes()


def test_reference_agrees() -> None:
    weights = TOY.weights(["F32"], seed=3)
    reference = ReferenceBackend().compile(TOY.program(), weights)
    full = reference.run([reference.new_state(16)], TREE, Want(logits=ROWS))
    ids = ids_of([3, 4, 90, 200, 299])
    found = restricted(reference, ids, 4)
    check_restricted(found, full.logits, ids)
    native = restricted(compile_toy(TOY, weights), ids, 4)
    assert (native.best_ids == found.best_ids).all()
    assert (native.top_ids == found.top_ids).all()
    assert (np.isneginf(native.logits) == np.isneginf(found.logits)).all()


def test_a_shortlist_serves_many_passes_and_does_not_stay(
    executable: CpuExecutable, full: PassResult
) -> None:
    ids = ids_of([7, 8, 9])
    short = executable.new_shortlist(ids)
    ids[:] = 0  # the shortlist is its own
    want = Want(ROWS, (ROWS, 2), ROWS, shortlist=short)
    for _ in range(2):
        found = executable.run([executable.new_state(16)], TREE, want)
        check_restricted(found, full.logits, short.ids)
        plain = executable.run([executable.new_state(16)], TREE, replace(want, shortlist=None))
        assert plain.logits.tobytes() == full.logits.tobytes()


def test_only_needed_groups_are_read() -> None:
    assert _native.Shortlist(ids_of([0, 1, 15, 16, 299]), 300).groups == 3
    assert _native.Shortlist(ids_of(range(300)), 300).groups == 19


def infinite_logit(token: int) -> MemoryWeights:
    weights = Toy(windows=(None,)).weights(["F32"])
    weights.poke("output.bias", token, np.nan)
    return weights


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_numbers_of_unlisted_tokens_do_not_matter(backend: str) -> None:
    toy, weights = Toy(windows=(None,)), infinite_logit(17)
    executable: Executable = (
        compile_toy(toy, weights)
        if backend == "cpu"
        else ReferenceBackend().compile(toy.program(), weights)
    )
    rows = Rows.chain(tokens_of(3, 300))
    for ids, fails in (([16, 18, 20], False), ([16, 17], True)):
        short = executable.new_shortlist(ids_of(ids))
        for want in (
            Want(best=[2], shortlist=short),
            Want(top=([2], 2), shortlist=short),
            Want(logits=[2], shortlist=short),
        ):
            if not fails:
                executable.run([executable.new_state(4)], rows, want)
                continue
            with pytest.raises(NumericError, match="NaN at position 2"):
                executable.run([executable.new_state(4)], rows, want)


@pytest.mark.parametrize(
    "ids",
    [
        np.zeros(0, np.int32), np.array([3, 3], np.int32), np.array([4, 3], np.int32),
        np.array([-1, 2], np.int32), np.array([300], np.int32), np.array([1, 2], np.int64),
        np.array([[1, 2]], np.int32), [1, 2], None,
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_wrong_ids_are_refused(executable: CpuExecutable, ids: Any, backend: str) -> None:
    target: Executable = executable
    if backend == "reference":
        target = ReferenceBackend().compile(TOY.program(), TOY.weights(["F32"]))
    with pytest.raises(ValueError, match="shortlist"):
        target.new_shortlist(ids)


def test_wrong_uses_are_refused(executable: CpuExecutable) -> None:
    reference = ReferenceBackend().compile(TOY.program(), TOY.weights(["F32"]))
    other = compile_toy(Toy(vocabulary=64))
    rows = Rows.chain([1])
    for target, short in (
        (executable, reference.new_shortlist(ids_of([1]))),
        (executable, other.new_shortlist(ids_of([1]))),
        (reference, executable.new_shortlist(ids_of([1]))),
    ):
        with pytest.raises(ValueError, match="shortlist"):
            target.run([target.new_state(4)], rows, Want(best=[0], shortlist=short))
    for target in (executable, reference):
        short = target.new_shortlist(ids_of([1, 2]))
        with pytest.raises(ValueError, match=r"\b2\b"):
            target.run([target.new_state(4)], rows, Want(top=([0], 3), shortlist=short))
