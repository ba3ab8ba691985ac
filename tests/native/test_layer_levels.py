"""The layer on the backends: the specification's numbers, the base's weights, row invariance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from native_support import TOY

from divine.backends.base import COMMITTED, Backend, State, Want
from divine.backends.cpu import _native
from divine.backends.cpu.backend import CpuBackend
from divine.backends.reference.backend import ReferenceBackend
from divine.blocks import dequantize
from divine.errors import FormatError, UnsupportedError
from divine.heads import HeadWeights, LayerDefinition
from divine.heads.layer_program import LayerLevels, layer_program
from divine.heads.layer_reference import RowMemory, layer_row, layer_start
from divine.heads.packaging import HeadsType, heads_tensors
from heads_support import LAYERS, random_heads
from memory_weights import MemoryWeights

WEIGHTS = TOY.weights(["Q4_0", "Q8_0", "F16"])
FLOATS = TOY.weights(["F32"])
LENGTH = 6  # committed rows
TREE = [COMMITTED, 0, 0, 1, 1, 2]  # parents of the rows of a pass


def levels_of(
    weights: HeadWeights,
    base: MemoryWeights = WEIGHTS,
    backend: Backend | None = None,
    heads_type: HeadsType = "f16",
) -> LayerLevels:
    program = TOY.program()
    executable = (backend or CpuBackend()).compile(program, base, threads=1)
    source = MemoryWeights(heads_tensors(weights, heads_type))
    assert isinstance(weights.definition, LayerDefinition)
    return LayerLevels(weights.definition, source, program, executable, base, weights.draft_vocab)


def layer(name: str) -> HeadWeights:
    return random_heads(LAYERS[name], vocabulary=TOY.vocabulary - 20)


def rows(count: int, seed: int = 0) -> tuple[Any, Any]:
    """z float32 [count, dim] and tokens int32."""
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((count, TOY.dim)).astype(np.float32)
    return z, rng.integers(0, TOY.vocabulary, count).astype(np.int32)


def committed(found: LayerLevels) -> State:
    state = found.new_state(64)
    z, tokens = rows(LENGTH)
    chain = np.arange(-1, LENGTH - 1, dtype=np.int32)
    found.run(state, tokens, chain, z, Want())
    state.commit(range(LENGTH))
    return state


def values(base: MemoryWeights, name: str) -> Any:
    return dequantize(base.raw(name), base.block_type(name), base.shape(name))


@pytest.mark.parametrize("backend", [ReferenceBackend(), CpuBackend()], ids=["reference", "cpu"])
@pytest.mark.parametrize("name", LAYERS)
def test_rows_are_those_of_the_specification(name: str, backend: Backend) -> None:
    """Rows of a tree above committed ones; what differs is where float16 rounds otherwise."""
    weights = layer(name)
    definition: Any = weights.definition
    found = levels_of(weights, FLOATS, backend, "f32")
    embedding, output = values(FLOATS, "table"), values(FLOATS, "output.weight")
    bias = values(FLOATS, "output.bias")
    hidden = rows(3, 9)[0]
    gain = values(FLOATS, "final.norm")
    begun = layer_start(definition, weights.tensors, hidden, gain)
    np.testing.assert_allclose(found.start(hidden), begun, rtol=1e-6)

    past: list[RowMemory] = []
    for place, (z, token) in enumerate(zip(*rows(LENGTH), strict=True)):
        *_, own = layer_row(
            definition, weights.tensors, z, embedding[token], place, past, np.float16
        )
        past.append(own)
    z, tokens = rows(len(TREE), 1)
    want = Want(logits=range(len(TREE)))
    result, states = found.run(committed(found), tokens, np.array(TREE, np.int32), z, want)
    memories: list[list[RowMemory]] = []
    for row, parent in enumerate(TREE):
        before = past if parent == COMMITTED else memories[parent]
        unit, normed, own = layer_row(
            definition, weights.tensors, z[row], embedding[tokens[row]], len(before), before,
            np.float16,
        )  # fmt: skip
        memories.append([*before, own])
        np.testing.assert_allclose(states[row], unit, atol=2e-4)
        logits = output @ normed + bias
        np.testing.assert_allclose(result.logits[row], logits, atol=2e-4 * np.abs(logits).max())


@pytest.mark.parametrize("name", LAYERS)
def test_a_row_s_bits_are_its_own(name: str) -> None:
    """With its ancestors alone or among others, at every level of the CPU."""
    weights = layer(name)
    z, tokens = rows(len(TREE), 1)
    bits: list[list[bytes]] = []
    for instruction_set in _native.levels():
        found = levels_of(weights, backend=CpuBackend(instruction_set))
        state = committed(found)

        def outcome(chosen: list[int], found: LayerLevels = found, state: Any = state) -> bytes:
            parents = [chosen.index(TREE[row]) if TREE[row] >= 0 else -1 for row in chosen]
            last = len(chosen) - 1
            result, states = found.run(
                state, tokens[chosen], np.array(parents, np.int32), z[chosen], Want(logits=[last])
            )
            return result.logits.tobytes() + states[last].tobytes()

        alone = [outcome(path) for path in ([0], [0, 1], [0, 2], [0, 1, 3], [0, 1, 4], [0, 2, 5])]
        assert outcome([0, 1, 2, 3]) == alone[3]
        assert outcome([0, 1, 2, 3, 4, 5]) == alone[5]
        bits.append(alone)
    assert all(line == bits[0] for line in bits)


def test_layers_that_do_not_fit() -> None:
    with pytest.raises(FormatError, match="for models of width 32; this one's is 64"):
        levels_of(random_heads(LayerDefinition.for_width(32)))
    fused = LayerDefinition.for_width(64, taps=("layer.0.input", "final"))
    with pytest.raises(UnsupportedError, match=r"states layer.0.input, final; only the final"):
        layer_program(fused, TOY.program())
