"""Heads on the backends: the specification's numbers, the base's weights, row invariance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from native_support import TOY, WIDE, compile_toy, make_rows

from divine.backends.base import Backend, Rows, Want
from divine.backends.cpu import _native
from divine.backends.cpu.backend import CpuBackend
from divine.backends.reference.backend import ReferenceBackend
from divine.blocks import block_format, dequantize
from divine.errors import FormatError, NumericError
from divine.gguf import TensorData
from divine.heads import HeadsDefinition, HeadWeights, tensor_name
from divine.heads.levels import Levels
from divine.heads.packaging import HeadsType, heads_tensors
from divine.heads.program import level_program
from divine.heads.reference import level, start_state
from heads_support import FORMS, random_heads
from memory_weights import MemoryWeights

NODES = 7
WEIGHTS = TOY.weights(["Q4_0", "Q8_0", "F16"])
FLOATS = TOY.weights(["F32"])


def levels_of(
    weights: HeadWeights,
    base: MemoryWeights = WEIGHTS,
    backend: Backend | None = None,
    heads_type: HeadsType = "f16",
    threads: int = 1,
) -> Levels:
    program = TOY.program()
    executable = (backend or CpuBackend()).compile(program, base, threads=threads)
    source = MemoryWeights(heads_tensors(weights, heads_type))
    return Levels(weights.definition, source, program, executable, base, weights.draft_vocab)


def heads(name: str) -> HeadWeights:
    return random_heads(FORMS[name], vocabulary=TOY.vocabulary - 20)


def nodes(seed: int = 0) -> tuple[Any, Any]:
    """Hidden states float32 [nodes, dim] and tokens."""
    rng = np.random.default_rng(seed)
    hidden = rng.standard_normal((NODES, TOY.dim)).astype(np.float32)
    return hidden, rng.integers(0, TOY.vocabulary, NODES).astype(np.int32)


def values(base: MemoryWeights, name: str) -> Any:
    return dequantize(base.raw(name), base.block_type(name), base.shape(name))


@pytest.mark.parametrize("backend", [ReferenceBackend(), CpuBackend()], ids=["reference", "cpu"])
@pytest.mark.parametrize("name", FORMS)
def test_levels_are_those_of_the_specification(name: str, backend: Backend) -> None:
    """Three levels deep, each from the backend's own state before; 1e-5 of the numbers' size."""
    weights = heads(name)
    found = levels_of(weights, FLOATS, backend, "f32")
    hidden, tokens = nodes()
    z = np.stack([found.start(row) for row in hidden])
    gain = values(FLOATS, "final.norm")
    np.testing.assert_allclose(z, start_state(weights.definition, hidden, gain), rtol=1e-6)
    embedding, output = values(FLOATS, "table"), values(FLOATS, "output.weight")
    bias = values(FLOATS, "output.bias")
    for depth in (1, 2, 3):
        want = Want(logits=range(NODES), top=(range(NODES), 4))
        result, after = found.run(found.set_of(depth), z, tokens, want)
        carried, normed = level(weights.definition, weights.tensors, depth, z, embedding[tokens])
        np.testing.assert_allclose(after, carried, atol=1e-5 * np.abs(carried).max())
        logits = normed @ output.T + bias
        np.testing.assert_allclose(result.logits, logits, atol=1e-5 * np.abs(logits).max())
        assert (result.top_ids[:, 0] == result.logits.argmax(1)).all()
        z, tokens = after, result.top_ids[:, 0].copy()


@pytest.mark.parametrize("heads_type", ["f16", "q8_0", "f32"])
def test_quantized_bases_and_heads_stay_near(heads_type: HeadsType) -> None:
    """int8 activations and blocks are all that the two backends differ by."""
    weights = heads("best")
    hidden, tokens = nodes()
    outcomes = []
    for backend in (ReferenceBackend(), CpuBackend()):
        found = levels_of(weights, WEIGHTS, backend, heads_type)
        z = np.stack([found.start(row) for row in hidden])
        result, after = found.run(0, z, tokens, Want(logits=range(NODES)))
        outcomes.append((result.logits, after))
    for ours, theirs in zip(*outcomes, strict=True):
        assert np.abs(ours - theirs).max() < 0.02 * np.abs(ours).max()
        assert np.abs(ours - theirs).max() > 0 or heads_type == "f32"


@pytest.mark.parametrize("name", FORMS)
def test_a_node_s_bits_are_its_own(name: str) -> None:
    """Alone or among others, in any order, on one thread or two, at every level of the CPU."""
    weights = heads(name)
    hidden, tokens = nodes()
    packed = weights.draft_vocab is not None
    bits: list[list[bytes]] = []
    for number, instruction_set in enumerate(_native.levels()):
        found = levels_of(weights, backend=CpuBackend(instruction_set), threads=1 + number % 2)
        z = np.stack([found.start(row) for row in hidden])

        def outcome(chosen: list[int], found: Levels = found, z: Any = z) -> list[bytes]:
            lines = range(len(chosen))
            want = Want((), (lines, 3), lines, shortlist=found.packed if packed else None)
            result, after = found.run(0, z[chosen], tokens[chosen], want)
            parts = (result.top_ids, result.top_logits, result.top_log_sum_exp, result.logits)
            return [b"".join(p[i].tobytes() for p in (*parts, after)) for i in lines]

        alone = [outcome([node])[0] for node in range(NODES)]
        bits.append(alone)
        assert outcome(list(range(NODES))) == alone
        assert outcome(list(range(NODES))[::-1]) == alone[::-1]
        assert outcome([3, 3, 0]) == [alone[3], alone[3], alone[0]]
    assert all(line == bits[0] for line in bits)


def test_the_base_s_matrices_are_shared() -> None:
    """Only the heads' own matrices take memory."""
    weights = heads("best")
    executable = compile_toy(TOY, WEIGHTS)
    program = level_program(weights.definition, 0, TOY.program())
    source = MemoryWeights(heads_tensors(weights, "f16"))
    both = MemoryWeights({**WEIGHTS.tensors, **source.tensors})
    extension = executable.extend(program, both, max_rows=8)
    own = sum(t.shape[0] * t.shape[1] * 2 for n, t in source.tensors.items()
              if n.startswith("divine.mtp.0.proj") and len(t.shape) == 2)  # fmt: skip
    assert own <= extension.weight_bytes <= own + 256
    executable.close()  # the extension keeps what it reads
    state = extension.new_state(1)
    rows = Rows(*(np.zeros(1, np.int32) + k for k in (4, -1, 0)), np.ones((1, 64), np.float32))
    assert np.isfinite(extension.run([state], rows, Want(logits=[0])).logits).all()


def test_rows_need_vectors() -> None:
    weights = heads("paper")
    both = MemoryWeights({**WEIGHTS.tensors, **heads_tensors(weights)})
    for backend in (ReferenceBackend(), CpuBackend()):
        base = backend.compile(TOY.program(), WEIGHTS, threads=1)
        program = level_program(weights.definition, 0, TOY.program())
        extension = base.extend(program, both, max_rows=8)
        with pytest.raises(ValueError, match="needs a vector for each row"):
            extension.run([extension.new_state(1)], Rows.chain([1]), Want(best=[0]))


def test_heads_that_do_not_fit() -> None:
    with pytest.raises(FormatError, match="for models of width 32; this one's is 64"):
        levels_of(random_heads(HeadsDefinition.paper(1, 16, 32)))
    wide = HeadsDefinition.best(1, 32, 64, draft_vocab=5)
    with pytest.raises(
        FormatError, match=r"vocabulary has token \d+; the model has tokens 0 to 299"
    ):
        levels_of(random_heads(wide, vocabulary=100_000))


def test_numbers_that_are_not_finite_show() -> None:
    weights = heads("paper")
    found = levels_of(weights)
    hidden, tokens = nodes()
    hidden[4, 7] = np.inf
    with pytest.raises(NumericError):
        found.run(0, hidden, tokens, Want(top=(range(NODES), 2)))


# ---- rows packed out of an output matrix ----


@pytest.mark.parametrize("kind", _native.formats())
def test_packed_rows_keep_their_bits(kind: str) -> None:
    """Of every format: a packed token's logit is that of the whole matrix, and so is the top."""
    toy = WIDE if block_format(kind).elements > 32 else TOY
    base = toy.weights([kind])
    executable = compile_toy(toy, base)
    rng = np.random.default_rng(3)
    packed = np.sort(rng.choice(toy.vocabulary, 37, replace=False)).astype(np.int32)
    more = np.union1d(packed, np.array([0, 1, 2, 151, 298], np.int32)).astype(np.int32)
    state = executable.new_state(8)
    rows = make_rows([5, 6, 7], [-1, 0, 0])
    full = executable.run([state], rows, Want(logits=range(3))).logits
    near = executable.pack_shortlist(packed)
    for ids, shortlist in ((packed, near), (more, executable.new_shortlist(more, near))):
        want = Want(range(3), (range(3), 9), range(3), shortlist=shortlist)
        found = executable.run([state], rows, want)
        masked = np.full_like(full, -np.inf)
        masked[:, ids] = full[:, ids]
        assert found.logits.tobytes() == masked.tobytes()
        order = np.lexsort((np.broadcast_to(np.arange(full.shape[1]), full.shape), -masked))[:, :9]
        assert (found.top_ids == order).all()
        assert (found.best_ids == order[:, 0]).all()
        exact = np.log(np.exp(masked.astype(np.float64)).sum(1))
        np.testing.assert_allclose(found.log_sum_exp, exact, rtol=1e-5, atol=1e-5)


def test_ties_between_packed_rows_and_others_go_to_the_lowest_token() -> None:
    base = TOY.weights(["F32"])
    for name in ("output.weight", "output.bias"):
        data = base.raw(name).view(np.float32).reshape(base.shape(name)).copy()
        data[:] = data[7]
        base.tensors[name] = TensorData("F32", data.shape, data)
    executable = compile_toy(TOY, base)
    near = executable.pack_shortlist(np.array([40, 200, 280], np.int32))
    ids = np.array([9, 40, 41, 200, 280, 299], np.int32)
    want = Want([0], ([0], 3), (), shortlist=executable.new_shortlist(ids, near))
    found = executable.run([executable.new_state(2)], make_rows([5], [-1]), want)
    assert found.best_ids.tolist() == [9]
    assert found.top_ids.tolist() == [[9, 40, 41]]


def test_shortlists_that_do_not_belong() -> None:
    executable = compile_toy(TOY, WEIGHTS)
    near = executable.pack_shortlist(np.array([4, 5], np.int32))
    with pytest.raises(ValueError, match="not among the ids"):
        executable.new_shortlist(np.array([4], np.int32), near)
    with pytest.raises(ValueError, match="must come from this backend"):
        executable.new_shortlist(np.array([4], np.int32), executable.new_shortlist(near.ids))
    with pytest.raises(ValueError, match="empty"):
        executable.pack_shortlist(np.zeros(0, np.int32))
    other = compile_toy(TOY, WEIGHTS)
    with pytest.raises(ValueError, match="packed from another output matrix"):
        other.run([other.new_state(2)], make_rows([5], [-1]), Want(top=([0], 1), shortlist=near))


def test_names_of_a_level_s_program() -> None:
    program = level_program(FORMS["best"], 1, TOY.program())
    shapes = {name: WEIGHTS.shape(name) for name in ("table", "output.weight", "output.bias")}
    shapes |= FORMS["best"].tensor_shapes()
    program.check(shapes.__getitem__)
    text = str(program)
    for part in (
        "z = given", "e = norm(e)", "c = concat(z, e)",
        "i = silu linear(c; divine.mtp.1.proj_down.weight + divine.mtp.1.proj_down.bias)",
        "s = divine.mtp.1.residual.weight * z + 1.7 * u", "tap state = n",
        "logits = head(norm(s; divine.mtp.1.norm.weight); output.weight + output.bias)",
    ):  # fmt: skip
        assert part in text
    missing = {name: shape for name, shape in shapes.items() if "proj_up" not in name}
    with pytest.raises(FormatError, match=tensor_name(1, "proj_up.weight")):
        program.check(missing.__getitem__)
