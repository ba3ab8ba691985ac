"""Every CPU level that this machine has gives the bits of the scalar level.

Levels that the machine lacks cannot be run here; the check at load time is what guards those.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import pytest
from native_support import (
    WIDE,
    MemoryWeights,
    Toy,
    compile_toy,
    everything,
    kv_bytes,
    make_rows,
    row_bytes,
    tokens_of,
)

from divine.backends.base import KvType, Rows
from divine.backends.cpu import _native
from divine.backends.cpu.backend import CpuBackend, CpuExecutable
from divine.blocks import SUPPORTED
from divine.gguf import open_gguf
from divine.models import ARCHITECTURES, build_program
from tiny_models import tiny_llama

LEVELS = _native.levels()
FAST = LEVELS[1:]
ALL_LEVELS = ("scalar", "avx2", "avx_vnni", "avx512")
KV_TYPES: tuple[KvType, ...] = ("f16", "q8_0")


def run_tree(executable: CpuExecutable, kv: KvType) -> list[object]:
    """Bits of a prefill of 21 rows, of trees with 1 to 9 rows, and of what is committed."""
    state = executable.new_state(64, kv)
    tokens = tokens_of(21, executable.vocabulary)
    found: list[object] = []
    result = executable.run([state], Rows.chain(tokens), everything(executable, 21))
    found += [row_bytes(result, row) for row in range(21)]
    state.commit(range(21))
    for count in range(1, 10):
        rows = make_rows(
            tokens[:count].tolist(), [(row - 2) if row > 1 else -1 for row in range(count)]
        )
        result = executable.run([state], rows, everything(executable, count))
        found += [row_bytes(result, row) for row in range(count)]
    state.commit([0, 2, 4])
    return [*found, kv_bytes(state)]


def test_scalar_is_always_there_and_first() -> None:
    assert LEVELS[0] == "scalar"
    assert set(LEVELS) <= set(ALL_LEVELS)
    assert set(_native.formats()) == set(SUPPORTED)


@pytest.mark.parametrize("level", LEVELS)
def test_level_passes_its_own_check(level: str) -> None:
    assert _native.check_level(level) == ""


def test_best_level_is_the_last_that_this_machine_has() -> None:
    assert _native.best_level() == (LEVELS[-1], "")


@pytest.mark.parametrize("level", ["sse2", "AVX2", "avx2 ", "scalar\0"])
def test_unknown_level_is_refused(level: str) -> None:
    with pytest.raises(ValueError, match="unknown level"):
        _native.check_level(level)
    with pytest.raises(ValueError, match="unknown level"):
        _native.Executor(level, 1, 1, 1)


@pytest.mark.parametrize("level", ALL_LEVELS)
def test_level_of_another_processor_is_refused(level: str) -> None:
    if level in LEVELS:
        assert _native.Executor(level, 1, 1, 1).level == level
        return
    with pytest.raises(ValueError, match=f"does not have the level {level}"):
        _native.Executor(level, 1, 1, 1)


@pytest.mark.parametrize("kv", KV_TYPES)
@pytest.mark.parametrize("block_type", SUPPORTED)
def test_every_format_equals_scalar(block_type: str, kv: KvType) -> None:
    weights = WIDE.weights([block_type], seed=3)
    wanted = run_tree(compile_toy(WIDE, weights, level="scalar"), kv)
    for level in FAST:
        assert run_tree(compile_toy(WIDE, weights, level=level), kv) == wanted, level


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_architectures_equal_scalar(architecture: str, tmp_path: Path) -> None:
    mixed = {"attn_v.weight": "Q5_0", "ffn_down.weight": "Q4_1", "attn_q.weight": "IQ4_NL"}
    path = tiny_llama(
        tmp_path / "m.gguf", arch=architecture, head_dim=32, block_type="Q4_0", block_types=mixed
    )
    with open_gguf(path) as gguf:
        program = build_program(gguf)
        compiled = {level: CpuBackend(level).compile(program, gguf, threads=1) for level in LEVELS}
        for kv in KV_TYPES:
            wanted = run_tree(compiled["scalar"], kv)
            for level in FAST:
                assert run_tree(compiled[level], kv) == wanted, (level, kv)


@pytest.mark.parametrize(
    "toy",
    [
        Toy(activation="gelu", softcap=5.0, rope="interleaved", windows=(7, None), scale=3.5),
        # Odd sizes: tails of vectors, groups that are not full, products in float where 32 does
        # not divide a row.
        Toy(dim=40, ffn=72, vocabulary=257, heads=3, kv_heads=1, head_dim=32, windows=(None,)),
        Toy(dim=48, ffn=33, vocabulary=17, heads=2, kv_heads=2, head_dim=96, windows=(5,)),
    ],
    ids=["features", "odd sizes", "smaller"],
)
def test_features_and_odd_sizes_equal_scalar(toy: Toy) -> None:
    weights = MemoryWeights(toy.weights(["F16", "F32", "BF16"], seed=5).tensors)
    wanted = run_tree(compile_toy(toy, weights, level="scalar"), "f16")
    for level in FAST:
        assert run_tree(compile_toy(toy, weights, level=level), "f16") == wanted, level


@pytest.mark.parametrize("kv", KV_TYPES)
def test_long_context_equals_scalar(kv: KvType) -> None:
    toy = Toy(windows=(None, 300))
    weights = toy.weights(["Q4_0", "Q8_0"], seed=6)
    tokens = tokens_of(530, toy.vocabulary)
    found = []
    for level in LEVELS:
        executable = compile_toy(toy, weights, level=level)
        state = executable.new_state(1024, kv)
        bits: list[object] = []
        for start in range(0, 530, 106):
            rows = Rows.chain(tokens[start : start + 106])
            result = executable.run([state], rows, everything(executable, 106))
            bits += [row_bytes(result, row) for row in range(106)]
            state.commit(range(106))
        found.append([*bits, kv_bytes(state)])
    assert all(bits == found[0] for bits in found[1:])


def test_extreme_values_equal_scalar() -> None:
    """Input vectors near the largest float, subnormal and zero give the same bits too."""
    toy = Toy(windows=(None,))
    weights = toy.weights(["Q8_0", "Q4_1"], seed=8)
    vectors = np.random.default_rng(2).standard_normal((6, toy.dim)).astype(np.float32)
    vectors *= np.array([[1e-44], [1e-30], [1.0], [1e15], [0.0], [1e-3]], np.float32)
    rows = make_rows([0] * 6, [-1] * 6)
    rows = Rows(rows.tokens, rows.parents, rows.sequences, vectors, np.ones(6, np.bool_))
    found = []
    for level in LEVELS:
        executable = compile_toy(toy, weights, level=level)
        state = executable.new_state(8)
        result = executable.run([state], rows, everything(executable, 6))
        found.append([row_bytes(result, row) for row in range(6)])
    assert np.isfinite(result.logits).all()
    assert all(bits == found[0] for bits in found[1:])
    assert len({cast("bytes", bits["logits"]) for bits in found[0]}) > 1
