"""The coarse operations a program is made of.

An operation names its inputs, outputs and weights; it holds no arrays and computes nothing. A
value is a float32 matrix of one vector per row of the pass, known by a short name ("x", "q", ...);
writing to a name again replaces it. A weight is the name of a GGUF tensor. Fusion is expressed by
attributes (a norm on the input, a residual on the output): no backend needs a fusion compiler.

Equations and names follow the GGUF tensors of each architecture; matrices are [out, in], y = W x.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Activation: TypeAlias = Literal["silu", "gelu"]


@dataclass(frozen=True)
class Norm:
    """RMS norm: x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019)."""

    weight: str | None  # [dim]; None: ones
    eps: float


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding (Su et al. 2021) of the first `dims` values of each head.

    Pair i turns by position * frequencies[i] * and cos and sin are multiplied by `magnitude`.
    "interleaved" pairs (2i, 2i+1), the GGUF layout of llama; "half" pairs (i, i + dims/2).
    The frequencies already contain every scaling (linear, yarn, llama-3 factors).
    """

    style: Literal["interleaved", "half"]
    dims: int
    frequencies: tuple[float, ...]  # [dims / 2], radians per position, float64
    magnitude: float = 1.0


@dataclass(frozen=True)
class Part:
    """One matrix of a Linear: out = W x + bias."""

    out: str
    weight: str  # [out_dim, in_dim]
    bias: str | None = None  # [out_dim]


@dataclass(frozen=True)
class Embed:
    """out[row] = scale * table[token of the row], or the row's input vector as it is."""

    out: str
    table: str  # [vocabulary, dim]
    scale: float = 1.0


@dataclass(frozen=True)
class Given:
    """out[row] = the row's input vector, for programs whose rows have a token and a vector each."""

    out: str


@dataclass(frozen=True)
class Linear:
    """Matrices that share one (optionally normed) input; several parts run side by side.

    With `activation`, out = activation(W x + bias). With `residual`, the single part adds to that
    value: out = residual + W x + bias. Not both.
    """

    x: str
    parts: tuple[Part, ...]
    norm: Norm | None = None
    residual: str | None = None
    activation: Activation | None = None


@dataclass(frozen=True)
class Normalize:
    """out = norm(x), where no product follows that could fuse it."""

    out: str
    x: str
    norm: Norm


@dataclass(frozen=True)
class Concat:
    """out = the values one after the other."""

    out: str
    xs: tuple[str, ...]


@dataclass(frozen=True)
class Add:
    """out = weight * x + scale * y, element by element."""

    out: str
    x: str
    y: str
    weight: str | None = None  # [width]; None: ones
    scale: float = 1.0


@dataclass(frozen=True)
class Attention:
    """Causal attention with grouped queries over a sequence's own history.

    q [heads * head_dim], k and v [kv_heads * head_dim] come from Linear. q and k are normed per
    head (if q_norm, k_norm), then turned by rope; k and v are written to the state of `layer`,
    rounded to its type; scores are scale * q.k, soft-capped (cap * tanh(s / cap)) if asked, kept
    where 0 <= position(q) - position(k) < window, softmaxed in float32. Query head h reads key head
    h // (heads / kv_heads).
    """

    out: str
    q: str
    k: str
    v: str
    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    rope: Rope | None
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    window: int | None = None
    softcap: float | None = None


@dataclass(frozen=True)
class GatedMlp:
    """out = activation(gate x) * (up x), with the norm of the input fused."""

    out: str
    x: str
    gate: str  # [ffn, dim]
    up: str  # [ffn, dim]
    activation: Activation
    norm: Norm | None = None


@dataclass(frozen=True)
class Tap:
    """Names the value x at this point so that a pass can return it for chosen rows."""

    name: str
    x: str


@dataclass(frozen=True)
class Head:
    """Logits = W norm(x) [+ bias], for the rows that want them. The last operation.

    The normed x is the tap "final".
    """

    x: str
    weight: str  # [vocabulary, dim]
    norm: Norm | None = None
    bias: str | None = None


Op: TypeAlias = (
    Embed | Given | Linear | Normalize | Concat | Add | Attention | GatedMlp | Tap | Head
)
