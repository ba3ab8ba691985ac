"""The native executor against the NumPy reference: the same model, so nearly the same numbers.

The reference keeps activations in float32; the native kernels round them to int8, one scale for
every 32 values, wherever the weights are quantized. So quantized models agree in the large and
float models closely.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from native_support import WIDE, MemoryWeights, Toy, make_rows, tokens_of
from numpy.typing import NDArray

from divine.backends.base import Backend, KvType, PassResult, Rows, Want, WeightSource
from divine.backends.cpu.backend import CpuBackend
from divine.backends.reference.backend import ReferenceBackend
from divine.blocks import SUPPORTED
from divine.gguf import open_gguf
from divine.models import ARCHITECTURES, build_program
from divine.program import Program
from tiny_models import tiny_llama

# Float weights: both sides sum float32 products, in another order, and round keys and values to
# f16, where a last bit of the sum may tip a tie (2^-11) of one key among many.
FLOAT_TOLERANCE = 1e-4
FLOAT_KV_TOLERANCE = 3e-4
# Quantized weights: rounding activations to int8 errs by about 0.3 % of a product's size (the step
# is 1/127 of the largest of 32 normal values: 2.2 / 127 / sqrt(12) = 0.5 % of a value), and some
# ten products in a row add up. Random weights damp nothing.
INT8_TOLERANCE = 0.03
FLOATS = ("F32", "F16", "BF16")

BACKENDS: tuple[Backend, ...] = (CpuBackend(), ReferenceBackend())


def both(
    program: Program, weights: WeightSource, kv: KvType, tokens: NDArray[np.int32]
) -> tuple[PassResult, PassResult]:
    """The pass of a small tree after a committed prefix, on both backends."""
    found = []
    for backend in BACKENDS:
        executable = backend.compile(program, weights, threads=1)
        state = executable.new_state(len(tokens) + 8, kv)
        prefix = tokens[:-6]
        executable.run([state], Rows.chain(prefix), Want())
        state.commit(range(len(prefix)))
        rows = make_rows(tokens[-6:].tolist(), [-1, 0, 1, 0, -1, 4])
        taps = dict.fromkeys(executable.tap_names, range(6))
        found.append(executable.run([state], rows, Want(range(6), (range(6), 8), range(6), taps)))
    return found[0], found[1]


def error(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    """Root mean square of the difference, relative to the size of what was wanted."""
    difference = (found.astype(np.float64) - wanted) ** 2
    return float(np.sqrt(difference.mean() / (wanted.astype(np.float64) ** 2).mean()))


def assert_close(found: PassResult, wanted: PassResult, tolerance: float) -> None:
    assert error(found.logits, wanted.logits) < tolerance
    for name, values in found.taps.items():
        assert error(values, wanted.taps[name]) < tolerance, name
    spread = float(wanted.logits.std())
    assert np.abs(found.log_sum_exp - wanted.log_sum_exp).max() < 4 * tolerance * spread


@pytest.mark.parametrize("block_type", [t for t in SUPPORTED if t not in FLOATS])
def test_quantized_formats(block_type: str) -> None:
    weights = WIDE.weights([block_type], seed=4)
    found, wanted = both(WIDE.program(), weights, "f16", tokens_of(30, WIDE.vocabulary))
    assert_close(found, wanted, INT8_TOLERANCE)


@pytest.mark.parametrize("block_type", FLOATS)
def test_float_formats(block_type: str) -> None:
    weights = WIDE.weights([block_type], seed=4)
    found, wanted = both(WIDE.program(), weights, "f16", tokens_of(30, WIDE.vocabulary))
    assert_close(found, wanted, FLOAT_KV_TOLERANCE)
    assert (found.best_ids == wanted.best_ids).all()


@pytest.mark.parametrize("block_type", FLOATS)
def test_float_formats_without_history_are_exact(block_type: str) -> None:
    """One row attends to itself alone: no sum over keys rounded to f16 that could tip."""
    weights = WIDE.weights([block_type], seed=4)
    logits = []
    for backend in BACKENDS:
        executable = backend.compile(WIDE.program(), weights, threads=1)
        rows = make_rows(list(range(8)), [-1] * 8)
        logits.append(executable.run([executable.new_state(8)], rows, Want(logits=range(8))).logits)
    assert error(logits[0], logits[1]) < FLOAT_TOLERANCE


@pytest.mark.parametrize("kv", ["f16", "q8_0"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_architectures(architecture: str, kv: KvType, tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "m.gguf", arch=architecture, head_dim=32, block_type="F16")
    with open_gguf(path) as gguf:
        found, wanted = both(build_program(gguf), gguf, kv, tokens_of(60, 320))
    # A q8_0 cache rounds coarsely, so a tie tips further.
    assert_close(found, wanted, FLOAT_KV_TOLERANCE if kv == "f16" else 3 * FLOAT_KV_TOLERANCE)


@pytest.mark.parametrize(
    "toy",
    [
        Toy(activation="gelu", rope="interleaved", scale=3.5, windows=(None, 7)),
        Toy(softcap=5.0, windows=(3, None, 40)),
        Toy(dim=40, ffn=72, vocabulary=257, heads=3, kv_heads=1, windows=(None,)),
        Toy(biases=False, head_norms=False),
    ],
    ids=["gelu, interleaved, scale", "softcap, windows", "odd sizes", "plain"],
)
def test_features(toy: Toy) -> None:
    weights = toy.weights(["F32"], seed=9)
    found, wanted = both(toy.program(), weights, "f16", tokens_of(60, toy.vocabulary))
    assert_close(found, wanted, FLOAT_KV_TOLERANCE)


def test_long_context() -> None:
    toy = Toy(windows=(None, 300))
    weights = toy.weights(["F32"], seed=2)
    found, wanted = both(toy.program(), weights, "f16", tokens_of(262, toy.vocabulary))
    assert_close(found, wanted, FLOAT_KV_TOLERANCE)


def test_vectors_as_input() -> None:
    toy = Toy()
    weights: MemoryWeights = toy.weights(["F32"], seed=2)
    vectors = np.random.default_rng(0).standard_normal((4, toy.dim)).astype(np.float32)
    logits = []
    for backend in BACKENDS:
        executable = backend.compile(toy.program(), weights, threads=1)
        chain = Rows.chain([0, 5, 0, 7])
        takes = np.array([True, False, True, False])
        rows = Rows(chain.tokens, chain.parents, chain.sequences, vectors, takes)
        result = executable.run([executable.new_state(8)], rows, Want(logits=range(4)))
        logits.append(result.logits)
    assert error(logits[0], logits[1]) < FLOAT_KV_TOLERANCE
