"""What a pass returns of the logits: the best, the top k, the log-sum-exp; ties and extremes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_support import TOY, MemoryWeights, Toy, compile_toy, everything, make_rows, tokens_of

from divine.backends.base import Rows, Want
from divine.backends.cpu.backend import CpuExecutable


@pytest.fixture(scope="module")
def executable() -> CpuExecutable:
    return compile_toy(TOY, TOY.weights(["Q4_0", "Q8_0", "F16"]))


@pytest.mark.parametrize("k", [1, 2, 40, 299, 300])
def test_best_top_and_logits_agree(executable: CpuExecutable, k: int) -> None:
    rows = Rows.chain(tokens_of(12, TOY.vocabulary, seed=5))
    result = executable.run([executable.new_state(16)], rows, everything(executable, 12, k))
    order = np.lexsort((np.broadcast_to(np.arange(300), result.logits.shape), -result.logits))
    assert (result.top_ids == order[:, :k]).all()
    assert (result.top_logits == np.take_along_axis(result.logits, order[:, :k], 1)).all()
    assert (result.best_ids == order[:, 0]).all()
    assert (result.best_logits == result.logits.max(1)).all()
    assert (result.log_sum_exp == result.top_log_sum_exp).all()
    exact = np.log(np.exp(result.logits.astype(np.float64)).sum(1))
    assert np.abs(result.log_sum_exp - exact).max() < 2e-6 * max(1.0, np.abs(exact).max())


@given(
    best=st.sets(st.integers(0, 7)),
    top=st.sets(st.integers(0, 7)),
    logits=st.sets(st.integers(0, 7)),
    taps=st.sets(st.integers(0, 7)),
)
@settings(max_examples=40, deadline=None)
def test_what_is_wanted_does_not_change_it(
    executable: CpuExecutable, best: set[int], top: set[int], logits: set[int], taps: set[int]
) -> None:
    rows = make_rows(list(range(8)), [-1, 0, 1, -1, 3, 0, 5, -1])
    full = executable.run([executable.new_state(16)], rows, everything(executable, 8))
    name = executable.tap_names[-1]
    some = executable.run(
        [executable.new_state(16)], rows,
        Want(sorted(best), (sorted(top), 5), sorted(logits), {name: sorted(taps)}),
    )  # fmt: skip
    assert (some.best_ids == full.best_ids[sorted(best)]).all()
    assert (some.log_sum_exp == full.log_sum_exp[sorted(best)]).all()
    if top:
        assert (some.top_ids == full.top_ids[sorted(top)]).all()
        assert (some.top_logits == full.top_logits[sorted(top)]).all()
    assert (some.logits == full.logits[sorted(logits)]).all()
    assert (some.taps[name] == full.taps[name][sorted(taps)]).all()


def tied_model(ids: list[int]) -> CpuExecutable:
    """A model whose logits are equal, except that those of `ids` are a little larger."""
    toy = Toy(windows=(None,), vocabulary=700)
    weights = toy.weights(["F32"])
    zero = np.zeros((700, toy.dim), np.float32)
    tensors = dict(weights.tensors)
    tensors["output.weight"] = type(tensors["table"])("F32", zero.shape, zero)
    bias = np.full(700, 0.25, np.float32)
    bias[ids] = 0.5
    tensors["output.bias"] = type(tensors["table"])("F32", bias.shape, bias)
    return compile_toy(toy, MemoryWeights(tensors))


@pytest.mark.parametrize("ids", [[], [0], [15, 16], [255, 256], [511, 600, 699], [256, 300, 512]])
def test_ties_go_to_the_lowest_id(ids: list[int]) -> None:
    executable = tied_model(ids)
    rows = Rows.chain([3, 1, 2])
    result = executable.run([executable.new_state(8)], rows, everything(executable, 3, 20))
    first = sorted(ids) + [token for token in range(700) if token not in ids]
    assert (result.best_ids == first[0]).all()
    assert result.top_ids.tolist() == [first[:20]] * 3
    exact = np.log(len(ids) * np.exp(0.5) + (700 - len(ids)) * np.exp(0.25))
    assert np.abs(result.log_sum_exp - exact).max() < 2e-6 * exact


def test_log_sum_exp_of_far_apart_logits() -> None:
    """Logits thousands apart neither overflow nor lose the largest."""
    toy = Toy(windows=(None,), vocabulary=520)
    weights = toy.weights(["F32"])
    bias = np.linspace(-9e4, 9e4, 520, dtype=np.float32)
    weights.tensors["output.bias"] = type(weights.tensors["table"])("F32", (520,), bias)
    executable = compile_toy(toy, weights)
    result = executable.run([executable.new_state(8)], Rows.chain([3]), everything(executable, 1))
    assert result.best_ids[0] == 519
    assert result.log_sum_exp[0] == result.best_logits[0]
