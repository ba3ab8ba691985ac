"""From a program and its weights to the native executor: names become numbers, tensors an arena.

Matrices lie in order of use; loading lets go of the file's pages one tensor at a time, the largest
first, so that memory peaks at little more than the size of the file. Runs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from divine.backends.base import WeightSource
from divine.backends.cpu import _native
from divine.blocks import dequantize
from divine.errors import UnsupportedError
from divine.program import (
    Add,
    Attention,
    Concat,
    Embed,
    GatedMlp,
    Given,
    Head,
    Linear,
    Norm,
    Normalize,
    Program,
    Rope,
    Tap,
)


@dataclass(frozen=True)
class Base:
    """An executor whose matrices a further program may use, with their numbers and shapes."""

    native: _native.Executor | None
    matrices: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]]


class Compiler:
    """Turns names into the executor's numbers, once."""

    def __init__(
        self,
        program: Program,
        weights: WeightSource,
        level: str,
        threads: int,
        max_rows: int,
        base: Base | None = None,
    ) -> None:
        """`base`: whose matrices are used where the program names them."""
        self.program = program
        self.weights = weights
        self._base = Base(None, {}, {}) if base is None else base
        self.values: dict[str, int] = {}
        self.ropes: dict[Rope, int] = {}
        self.matrices: dict[str, int] = {}
        self.vectors: dict[str, int] = {}
        self.widths: dict[str, int] = {}  # of each value, as it was last written
        self.shapes = {
            name: weights.shape(name) if self._own(name) else self._base.shapes[name]
            for name in program.weights()
        }
        self.native = _native.Executor(level, threads, max_rows, self._arena_bytes())

    def compile(self) -> _native.Executor:
        """Repack the weights and hand over the operations."""
        for op in self.program.ops:
            self._add(op)
        self._fill()
        self.native.finish(self.program.vocabulary, self.program.dim)
        return self.native

    def _own(self, name: str) -> bool:
        return name not in self._base.matrices

    def _fill(self) -> None:
        """Repack the matrices, largest first: each lies in memory twice for a moment, and the later
        that moment, the more of the others are there already."""
        mine = [name for name in self.matrices if self._own(name)]
        for name in sorted(mine, key=lambda n: -math.prod(self.shapes[n])):
            self.native.fill_matrix(self.matrices[name], self.weights.raw(name))
            self.weights.release(name)

    def _arena_bytes(self) -> int:
        """Bytes of all matrices in the interleaved layout: rows padded to 16, starts to 64."""
        known = set(_native.formats())
        total = 0
        for name in self.program.weights():
            shape = self.shapes[name]
            if len(shape) < 2 or not self._own(name):
                continue
            if self.weights.block_type(name) not in known:
                raise UnsupportedError(
                    f"tensor {name!r} has type {self.weights.block_type(name)}; "
                    f"the cpu backend knows {', '.join(sorted(known))}"
                )
            padded = -(-shape[0] // 16) * 16
            total += len(self.weights.raw(name)) // shape[0] * padded + 64
        return total

    def _value(self, name: str, dim: int) -> int:
        self.widths[name] = dim
        key = f"{name}:{dim}"
        if key not in self.values:
            self.values[key] = self.native.add_value(dim)
        return self.values[key]

    def _matrix(self, name: str) -> int:
        if name not in self.matrices:
            base = self._base
            if base.native is not None and name in base.matrices:
                self.matrices[name] = self.native.share_matrix(base.native, base.matrices[name])
            else:
                out, columns = self.shapes[name]
                block_type = self.weights.block_type(name)
                self.matrices[name] = self.native.add_matrix(block_type, out, columns)
        return self.matrices[name]

    def _vector(self, name: str | None) -> int:
        if name is None:
            return -1
        if name not in self.vectors:
            shape = self.weights.shape(name)
            values = dequantize(self.weights.raw(name), self.weights.block_type(name), shape)
            self.vectors[name] = self.native.add_vector(
                np.require(values.ravel(), np.float32, ["C", "A"])
            )
        return self.vectors[name]

    def _norm(self, norm: Norm | None) -> tuple[int, float] | None:
        return None if norm is None else (self._vector(norm.weight), norm.eps)

    def _rope(self, rope: Rope | None) -> int:
        if rope is None:
            return -1
        if rope not in self.ropes:
            self.ropes[rope] = self.native.add_rope(
                rope.style == "half", rope.dims, rope.magnitude, list(rope.frequencies)
            )
        return self.ropes[rope]

    def _rows(self, weight: str) -> int:
        return self.shapes[weight][0]

    def _columns(self, weight: str) -> int:
        return self.shapes[weight][1]

    def _add(self, op: object) -> None:
        match op:
            case Embed(out, table, scale):
                x = self._value(out, self._columns(table))
                self.native.embed(x, self._matrix(table), scale)
            case Given(out):
                self.native.given(self._value(out, self.program.dim))
            case Linear():
                self._add_linear(op)
            case Normalize() | Concat() | Add():
                self._add_elementwise(op)
            case Attention():
                self._add_attention(op)
            case GatedMlp():
                x = self._value(op.x, self._columns(op.gate))
                self.native.gated_mlp(
                    self._value(op.out, self._rows(op.gate)), x, self._matrix(op.gate),
                    self._matrix(op.up), op.activation == "gelu", self._norm(op.norm),
                )  # fmt: skip
            case Tap(_, x):
                self.native.tap(self._value(x, self.program.dim))
            case Head():
                x = self._value(op.x, self._columns(op.weight))
                self.native.head(
                    x, self._matrix(op.weight), self._vector(op.bias), self._norm(op.norm)
                )
            case _:
                raise UnsupportedError(f"the cpu backend does not know the operation {op!r}")

    def _add_linear(self, op: Linear) -> None:
        x = self._value(op.x, self._columns(op.parts[0].weight))
        parts = []
        for part in op.parts:
            out = self._value(part.out, self._rows(part.weight))
            parts.append([out, self._matrix(part.weight), self._vector(part.bias)])
        residual = -1
        if op.residual is not None:
            residual = self._value(op.residual, self._rows(op.parts[0].weight))
        self.native.linear(x, parts, self._norm(op.norm), residual, op.activation or "")

    def _add_elementwise(self, op: Normalize | Concat | Add) -> None:
        def value(name: str) -> int:
            return self._value(name, self.widths[name])

        match op:
            case Normalize(out, x, norm):
                self.native.normalize(self._value(out, self.widths[x]), value(x), self._norm(norm))
            case Concat(out, xs):
                width = sum(self.widths[x] for x in xs)
                self.native.concat(self._value(out, width), [value(x) for x in xs])
            case Add(out, x, y, weight, scale):
                numbers = value(x), value(y), self._vector(weight)
                self.native.add(self._value(out, self.widths[x]), *numbers, scale)

    def _add_attention(self, op: Attention) -> None:
        width, kv_width = op.heads * op.head_dim, op.kv_heads * op.head_dim
        if op.head_dim % 16:
            raise UnsupportedError(
                f"the cpu backend needs a head size divisible by 16, not {op.head_dim}"
            )
        self.native.attention(
            self._value(op.out, width), self._value(op.q, width), self._value(op.k, kv_width),
            self._value(op.v, kv_width), op.layer, op.heads, op.kv_heads, op.head_dim, op.scale,
            self._rope(op.rope), self._norm(op.q_norm), self._norm(op.k_norm), op.window or 0,
            op.softcap or 0.0,
        )  # fmt: skip
