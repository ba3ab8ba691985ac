"""The equations of the operations on plain arrays: norm, rotary embedding, attention, activations.

One function per equation, for one row at a time where rows could influence each other's rounding.
Sums run in float64 where that is cheap and results are rounded to float32. Nothing here knows
programs, states or passes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from divine.backends.base import KvType
from divine.blocks import dequantize, quantize
from divine.program import Activation, Rope

Floats = NDArray[np.float32]

Q8_BLOCK = 32  # values of a head that share a scale in a q8_0 cache


def rms_norm(x: Floats, weight: Floats | None, eps: float) -> Floats:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, x float32 [..., width]."""
    wide = x.astype(np.float64)
    scale = 1.0 / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return _f32(wide * scale if weight is None else wide * scale * weight)


def rotate(x: Floats, positions: NDArray[np.int32], rope: Rope) -> Floats:
    """Rotary embedding (Su et al. 2021) of x float32 [n, heads, head_dim], positions int32 [n]."""
    angles = positions[:, None].astype(np.float64) * np.array(rope.frequencies)  # [n, dims / 2]
    cos = (np.cos(angles) * rope.magnitude)[:, None, :]
    sin = (np.sin(angles) * rope.magnitude)[:, None, :]
    half = rope.dims // 2
    if rope.style == "interleaved":
        first, second = slice(0, rope.dims, 2), slice(1, rope.dims, 2)
    else:
        first, second = slice(0, half), slice(half, rope.dims)
    a, b = x[..., first].astype(np.float64), x[..., second].astype(np.float64)
    turned = x.copy()
    turned[..., first] = a * cos - b * sin
    turned[..., second] = a * sin + b * cos
    return turned


def attend(q: Floats, keys: Floats, values: Floats, scale: float, softcap: float | None) -> Floats:
    """One row's attention over the keys it may see.

    q [heads, head_dim]; keys and values [seen, kv_heads, head_dim]; returns [heads, head_dim].
    Query head h reads key head h // (heads / kv_heads) (Ainslie et al. 2023).
    """
    heads, head_dim = q.shape
    kv_heads = keys.shape[1]
    grouped = q.astype(np.float64).reshape(kv_heads, heads // kv_heads, head_dim)
    scores = scale * (grouped @ keys.astype(np.float64).transpose(1, 2, 0))  # [kv, group, seen]
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed = weights @ values.astype(np.float64).transpose(1, 0, 2)  # [kv, group, head_dim]
    return _f32(mixed.reshape(heads, head_dim))


def activate(x: Floats, activation: Activation) -> Floats:
    """silu x * sigmoid(x), or gelu in its tanh approximation (Hendrycks and Gimpel 2016)."""
    wide = x.astype(np.float64)
    if activation == "silu":
        return _f32(wide / (1.0 + np.exp(-wide)))
    inner = np.sqrt(2.0 / np.pi) * (wide + 0.044715 * wide**3)
    return _f32(0.5 * wide * (1.0 + np.tanh(inner)))


def log_sum_exp(logits: Floats) -> Floats:
    """log(sum(exp(logits))) over the last axis of float32 [n, vocabulary]."""
    wide = logits.astype(np.float64)
    best = wide.max(axis=-1, keepdims=True)
    return _f32(best[:, 0] + np.log(np.exp(wide - best).sum(axis=-1)))


def round_to_cache(x: Floats, kv_type: KvType) -> Floats:
    """x float32 [n, width] as it would be read back from the cache.

    f16 rounds to nearest even; q8_0 is the GGUF format Q8_0: 32 values share one f16 scale.
    """
    if kv_type == "f16":
        return x.astype(np.float16).astype(np.float32)
    blocks = x.reshape(-1, Q8_BLOCK)
    # A block with a number that is none has no scale: all of it becomes NaN, which logits show.
    rounded = np.full_like(blocks, np.nan)
    finite = np.isfinite(blocks).all(axis=1)
    rounded[finite] = dequantize(quantize(blocks[finite], "Q8_0"), "Q8_0", blocks[finite].shape)
    return rounded.reshape(x.shape)


def _f32(x: NDArray[Any]) -> Floats:
    return x.astype(np.float32)
