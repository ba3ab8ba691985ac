"""The specification of a drafting layer: one row in NumPy, float64 inside.

What training differentiates is this, in other words and other precision. Knows the definition and
arrays; no base model, no files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike, NDArray

from divine.heads.layer import LayerDefinition, layer_tensor
from divine.heads.reference import Floats, activate, inverse_gain, rms

Tensors = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class RowMemory:
    """What later rows see of a row; key (turned to its position), value [kv_heads, head_dim]."""

    position: int
    key: NDArray[np.float64]
    value: NDArray[np.float64]


def layer_start(
    definition: LayerDefinition, tensors: Tensors, hidden: Floats, final_gain: NDArray[np.float32]
) -> NDArray[np.float32]:
    """z, float32 [n, d], where the base has been.

    hidden [n, taps * d]: what the definition's taps gave, side by side. final_gain float32 [d]: the
    weight of the base's final norm; where it is 0 the hidden state says nothing and z is 0.
    """
    if not definition.fused:
        return np.asarray(hidden, np.float32) * inverse_gain(final_gain)
    parts = np.asarray(hidden, np.float64).reshape(len(hidden), len(definition.taps), -1)
    together = rms(parts, definition.eps).reshape(len(hidden), -1)
    return rms(together @ _tensor(tensors, "taps").T, definition.eps).astype(np.float32)


def layer_row(
    definition: LayerDefinition,
    tensors: Tensors,
    state: Floats,
    embedding: Floats,
    position: int,
    past: Sequence[RowMemory],
    kept: DTypeLike = np.float64,
) -> tuple[NDArray[np.float32], NDArray[np.float32], RowMemory]:
    """(n, o, memory) of one row; n and o float32 [d].

    state [d]: its z. embedding [d]: the row of the base's table for its token, as it lies there.
    `past`: the rows before it, in order; `kept`: the type that keys and values are rounded to. o
    times the base's output matrix gives the logits of the token after its own.
    """
    eps = definition.eps
    z, e = np.asarray(state, np.float64), rms(np.asarray(embedding, np.float64), eps)
    x = _tensor(tensors, "fuse") @ np.concatenate([z, e])
    inner = rms(x, eps) * _tensor(tensors, "attn_norm")
    query, key, value = (
        (_tensor(tensors, f"attn_{name}") @ inner).reshape(-1, definition.head_dim)
        for name in ("q", "k", "v")
    )
    own = RowMemory(
        position,
        _turn(definition, key, position).astype(kept).astype(np.float64),
        value.astype(kept).astype(np.float64),
    )
    attended = _attend(definition, _turn(definition, query, position), [*past, own])
    added = _tensor(tensors, "attn_output") @ attended
    m = rms(x + added, eps) * _tensor(tensors, "ffn_norm")
    gated = activate(_tensor(tensors, "ffn_gate") @ m, "silu") * (_tensor(tensors, "ffn_up") @ m)
    s = z * _tensor(tensors, "residual") + added + _tensor(tensors, "ffn_down") @ gated
    unit = rms(s, eps)
    output = unit * _tensor(tensors, "norm")
    return unit.astype(np.float32), output.astype(np.float32), own


def _attend(
    definition: LayerDefinition, query: NDArray[np.float64], rows: Sequence[RowMemory]
) -> NDArray[np.float64]:
    """float64 [heads * head_dim] of queries [heads, head_dim] over rows, the last being its own."""
    position = rows[-1].position
    seen = [row for row in rows if position - row.position < definition.window]
    group = definition.heads // definition.kv_heads
    out = np.empty_like(query)
    for head in range(definition.heads):
        keys = np.stack([row.key[head // group] for row in seen])
        scores = keys @ query[head] / np.sqrt(definition.head_dim)
        weights = np.exp(scores - scores.max())
        out[head] = (weights / weights.sum()) @ np.stack([row.value[head // group] for row in seen])
    return out.reshape(-1)


def _turn(
    definition: LayerDefinition, x: NDArray[np.float64], position: int
) -> NDArray[np.float64]:
    """x [heads, head_dim] turned to its position."""
    half = definition.head_dim // 2
    angles = position * rope_frequencies(definition)
    a, b = x[:, :half], x[:, half:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=1)


def rope_frequencies(definition: LayerDefinition) -> NDArray[np.float64]:
    """Radians per position of each pair, float64 [head_dim / 2]."""
    pairs = np.arange(definition.head_dim // 2)
    frequencies: NDArray[np.float64] = definition.rope_theta ** (-2.0 * pairs / definition.head_dim)
    return frequencies


def _tensor(tensors: Tensors, part: str) -> NDArray[np.float64]:
    return np.asarray(tensors[layer_tensor(f"{part}.weight")], np.float64)
