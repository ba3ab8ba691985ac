"""The specification of drafting heads: one level in NumPy, float64 inside, row by row.

What program.py builds for the backends and what training differentiates is this, in other words and
other precision. Knows the definition and arrays; no base model, no files.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from divine.heads.definition import HeadsDefinition, tensor_name

Floats = NDArray[np.floating]


def start_state(
    definition: HeadsDefinition, hidden: Floats, final_gain: NDArray[np.float32]
) -> NDArray[np.float32]:
    """z_0, float32 [n, d], from hidden states after the final norm [n, d].

    final_gain float32 [d]: the weight of the base's final norm. Where it is 0 the hidden state says
    nothing and z_0 is 0.
    """
    hidden = np.asarray(hidden, np.float32)
    if definition.start == "hidden":
        return hidden
    return hidden * inverse_gain(final_gain)


def inverse_gain(final_gain: NDArray[np.float32]) -> NDArray[np.float32]:
    """1 / final_gain where that is finite, else 0; float32 [d]."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1.0) / np.asarray(final_gain, np.float32)
    inverse[~np.isfinite(inverse)] = 0.0
    return inverse


def level(
    definition: HeadsDefinition,
    tensors: Mapping[str, NDArray[np.float32]],
    depth: int,
    state: Floats,
    embedding: Floats,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(z_k, o_k), each float32 [n, d], of depth k = `depth`, from 1.

    state [n, d]: z_{k-1}. embedding [n, d]: rows of the base's table for the tokens y_{t+k}, as
    they lie there. o_k times the base's output matrix gives the logits of y_{t+k+1}.
    """
    number = definition.set_of(depth)
    z = np.asarray(state, np.float64)
    e = np.asarray(embedding, np.float64)
    if definition.embedding_norm:
        e = rms(e, definition.eps)

    def tensor(part: str) -> NDArray[np.float64]:
        return np.asarray(tensors[tensor_name(number, part)], np.float64)

    inner = np.concatenate([z, e], axis=-1) @ tensor("proj_down.weight").T
    if definition.bias:
        inner = inner + tensor("proj_down.bias")
    update = activate(inner, definition.activation) @ tensor("proj_up.weight").T
    residual = z * tensor("residual.weight") if definition.residual_weight else z
    total = residual + definition.scale * update
    unit = rms(total, definition.eps)
    output = unit * tensor("norm.weight")
    carried = {"sum": total, "unit": unit, "gained": output}[definition.carry]
    return carried.astype(np.float32), output.astype(np.float32)


def rms(x: NDArray[np.float64], eps: float) -> NDArray[np.float64]:
    """x / sqrt(mean(x^2) + eps) over the last axis."""
    scaled: NDArray[np.float64] = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)
    return scaled


def activate(x: NDArray[np.float64], activation: str) -> NDArray[np.float64]:
    """silu, gelu in its tanh approximation, or x itself."""
    if activation == "silu":
        with np.errstate(over="ignore"):
            return x / (1.0 + np.exp(-x))
    if activation == "gelu":
        inner = np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)
        return np.asarray(0.5 * x * (1.0 + np.tanh(inner)))
    return x
