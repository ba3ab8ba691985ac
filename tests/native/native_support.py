"""What the native tests share: weights in memory, a program with everything, and the oracle.

Weights and programs are made here without a file, so a test can ask for any format, window or
softcap. The oracle runs one row at a time on one thread: what it says is what every other way of
running the same rows must say, bit for bit. Nothing here asserts.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from divine.backends.base import COMMITTED, KvType, PassResult, Rows, Want
from divine.backends.cpu.backend import CpuBackend, CpuExecutable, CpuState
from divine.blocks import block_format
from divine.gguf import TensorData
from divine.program import (
    Attention,
    Embed,
    GatedMlp,
    Head,
    Linear,
    Norm,
    Op,
    Part,
    Program,
    Rope,
    Tap,
)
from memory_weights import MemoryWeights
from tiny_models import random_tensor

EPS = 1e-5
FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class Toy:
    """Sizes and features of a small program; the defaults have a bit of everything."""

    dim: int = 64
    ffn: int = 96
    vocabulary: int = 300  # more than one chunk of the head, and no multiple of 16
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    windows: tuple[int | None, ...] = (None, 20)  # one for each layer
    softcap: float | None = None
    rope: Literal["half", "interleaved"] = "half"
    activation: Literal["silu", "gelu"] = "silu"
    head_norms: bool = True
    biases: bool = True
    scale: float = 1.0  # of the embedding

    def program(self) -> Program:
        frequencies = tuple(10000.0 ** (-i * 2 / self.head_dim) for i in range(self.head_dim // 2))
        rope = Rope(self.rope, self.head_dim, frequencies)
        ops: list[Op] = [Embed("x", "table", self.scale)]
        for i, window in enumerate(self.windows):
            parts = tuple(
                Part(p, f"{i}.{p}.weight", f"{i}.{p}.bias" if self.biases else None) for p in "qkv"
            )
            norms = {p: Norm(f"{i}.{p}.norm", EPS) if self.head_norms else None for p in "qk"}
            ops += [
                Tap(f"layer.{i}.input", "x"),
                Linear("x", parts, Norm(f"{i}.attention.norm", EPS)),
                Attention(
                    "a", "q", "k", "v", i, self.heads, self.kv_heads, self.head_dim,
                    self.head_dim**-0.5, rope, norms["q"], norms["k"], window, self.softcap,
                ),
                Linear("a", (Part("x", f"{i}.out.weight"),), residual="x"),
                GatedMlp("m", "x", f"{i}.gate.weight", f"{i}.up.weight", self.activation,
                         Norm(f"{i}.mlp.norm", EPS)),
                Linear("m", (Part("x", f"{i}.down.weight"),), residual="x"),
            ]  # fmt: skip
        bias = "output.bias" if self.biases else None
        ops.append(Head("x", "output.weight", Norm("final.norm", EPS), bias))
        return Program("toy", self.dim, self.vocabulary, len(self.windows), 4096, tuple(ops))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "table": (self.vocabulary, self.dim),
            "output.weight": (self.vocabulary, self.dim),
            "output.bias": (self.vocabulary,),
            "final.norm": (self.dim,),
        }
        for i in range(len(self.windows)):
            layer: dict[str, tuple[int, ...]] = {
                "attention.norm": (self.dim,),
                "mlp.norm": (self.dim,),
                "out.weight": (self.dim, q),
                "gate.weight": (self.ffn, self.dim),
                "up.weight": (self.ffn, self.dim),
                "down.weight": (self.dim, self.ffn),
            }
            for part, width in (("q", q), ("k", kv), ("v", kv)):
                layer[f"{part}.weight"] = (width, self.dim)
                layer[f"{part}.bias"] = (width,)
                layer[f"{part}.norm"] = (self.head_dim,)
            shapes.update({f"{i}.{name}": shape for name, shape in layer.items()})
        return shapes

    def weights(self, formats: Sequence[str] = ("Q8_0",), seed: int = 0) -> MemoryWeights:
        """Random weights; matrices take the formats in turn, Q8_0 where a row does not fit."""
        rng = np.random.default_rng(seed)
        tensors: dict[str, TensorData] = {}
        turn = 0
        for name, shape in self.shapes().items():
            kind = "F32"
            if len(shape) == 2:
                kind = formats[turn % len(formats)]
                turn += 1
                if shape[1] % block_format(kind).elements:
                    kind = "Q8_0"
            role = name.replace("table", "token_embd")
            tensors[name] = random_tensor(role, shape, kind, rng)
        return MemoryWeights(tensors)


def long_program(toy: Toy, times: int) -> Program:
    """The toy's first layer, with the same weights, `times` times over: slow, yet small."""
    program = replace(toy, windows=(None,)).program()
    first, *layer, head = (op for op in program.ops if not isinstance(op, Tap))
    ops: list[Op] = [first]
    for i in range(times):
        ops += [replace(op, layer=i) if isinstance(op, Attention) else op for op in layer]
    return replace(program, layers=times, ops=(*ops, head))


TOY = Toy()
WIDE = Toy(dim=256, ffn=256, heads=4, kv_heads=2, head_dim=64, windows=(None,))  # for K formats


def compile_toy(
    toy: Toy,
    weights: MemoryWeights | None = None,
    *,
    threads: int = 1,
    level: str | None = None,
) -> CpuExecutable:
    return CpuBackend(level).compile(toy.program(), weights or toy.weights(), threads=threads)


def everything(executable: CpuExecutable, rows: int, top: int = 5) -> Want:
    """All that a pass can return, for all of its rows."""
    chosen = range(rows)
    return Want(chosen, (chosen, top), chosen, dict.fromkeys(executable.tap_names, chosen))


def row_bytes(result: PassResult, row: int) -> dict[str, bytes]:
    """The bits of one row of everything()."""
    found = {
        "logits": result.logits[row],
        "best": (result.best_ids[row], result.best_logits[row], result.log_sum_exp[row]),
        "top": (result.top_ids[row], result.top_logits[row], result.top_log_sum_exp[row]),
        **{f"tap {name}": values[row] for name, values in result.taps.items()},
    }
    return {
        name: b"".join(np.asarray(part).tobytes() for part in value)
        if isinstance(value, tuple)
        else value.tobytes()
        for name, value in found.items()
    }


def kv_bytes(state: CpuState, start: int = 0) -> list[bytes]:
    """Keys and values of all committed positions from `start` on."""
    return [state.native.bytes_at(position) for position in range(start, state.length)]


def python(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """A child that imports what this process imports."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment, text=True, capture_output=True, timeout=120, check=False, **options,
    )  # fmt: skip


def tokens_of(count: int, vocabulary: int, seed: int = 7) -> NDArray[np.int32]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, vocabulary, count).astype(np.int32)


def reserve_slots(executable: CpuExecutable, state: CpuState, slots: int) -> None:
    """Make the state allocate slots behind its end, so that poison() reaches them."""
    while slots > 0:
        count = min(slots, executable.max_rows)
        executable.run([state], make_rows([0] * count, [COMMITTED] * count), Want())
        slots -= count
    state.commit([])


def make_rows(
    tokens: Sequence[int], parents: Sequence[int], sequences: Sequence[int] | None = None
) -> Rows:
    count = len(tokens)
    return Rows(
        np.array(tokens, np.int32),
        np.array(parents, np.int32),
        np.array([0] * count if sequences is None else sequences, np.int32),
    )


@dataclass
class Oracle:
    """Runs trees row by row on one thread: walk down, commit, come back by truncating."""

    executable: CpuExecutable
    states: list[CpuState]
    top: int = 5
    rows: dict[int, dict[str, bytes]] = field(default_factory=dict)

    def tree(self, rows: Rows) -> dict[int, dict[str, bytes]]:
        """The bits of each row of a pass, by its number."""
        self.rows = {}
        children: dict[tuple[int, int], list[int]] = {}
        for row, (parent, sequence) in enumerate(
            zip(rows.parents.tolist(), rows.sequences.tolist(), strict=True)
        ):
            children.setdefault((sequence, parent), []).append(row)
        for sequence in range(len(self.states)):
            self._walk(rows, children, sequence, COMMITTED)
        return self.rows

    def _walk(self, rows: Rows, children: Any, sequence: int, parent: int) -> None:
        state = self.states[sequence]
        for row in children.get((sequence, parent), []):
            before = state.length
            self.rows[row] = row_bytes(self._one(state, rows, row), 0)
            state.commit([0])
            self._walk(rows, children, sequence, row)
            state.truncate(before)

    def _one(self, state: CpuState, rows: Rows, row: int) -> PassResult:
        taken = slice(row, row + 1)
        single = Rows(
            rows.tokens[taken],
            np.array([COMMITTED], np.int32),
            np.zeros(1, np.int32),
            None if rows.vectors is None else rows.vectors[taken],
            None if rows.takes_vector is None else rows.takes_vector[taken],
        )
        return self.executable.run([state], single, everything(self.executable, 1, self.top))

    def commit(self, rows: Rows, sequence: int, path: Sequence[int]) -> None:
        for row in path:
            self._one(self.states[sequence], rows, row)
            self.states[sequence].commit([0])


def grown(
    executable: CpuExecutable, tokens: NDArray[np.int32], chunk: int, kv: KvType = "f16"
) -> CpuState:
    """A state of these tokens, prefilled in chunks."""
    state = executable.new_state(4096, kv)
    for start in range(0, len(tokens), chunk):
        piece = tokens[start : start + chunk]
        executable.run([state], Rows.chain(piece), Want())
        state.commit(range(len(piece)))
    return state
