"""Blocks that architectures share: each function emits the operations of one part of a decoder.

Names of values are short and the same in every program: x is the residual stream, q, k, v and a
belong to attention, m to the feed-forward layer. Nothing here computes or reads metadata.
"""

from __future__ import annotations

import math
from typing import Literal

from divine.errors import UnsupportedError
from divine.models.config import ModelConfig
from divine.models.rope import make_rope
from divine.models.weights import EMBEDDING, OUTPUT, Weights
from divine.program import (
    Activation,
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


def plain_decoder(
    config: ModelConfig,
    weights: Weights,
    *,
    rope_style: Literal["interleaved", "half"],
    rope_factors: str | None = None,
    head_norms: bool = False,
) -> Program:
    """A decoder of equal layers: x += attention(norm x), x += mlp(norm x), as Llama is made.

    `rope_factors` names the tensor of per-pair factors, if the architecture may have one;
    `head_norms` says that queries and keys are normed per head.
    """
    require_plain(config)
    table = weights.need(EMBEDDING, config.vocabulary, config.dim)
    factors = None
    if rope_factors is not None:
        factors = weights.factors(rope_factors, config.rope.dims // 2)
    rope = make_rope(config.rope, rope_style, factors)
    ops: list[Op] = [Embed("x", table)]
    for layer in range(config.layers):
        ops.append(Tap(f"layer.{layer}.input", "x"))
        ops += attention(config, weights, layer, rope, head_norms=head_norms)
        ops += gated_mlp(config, weights, layer, "silu")
    ops.append(head(config, weights))
    return Program(
        architecture=config.architecture,
        dim=config.dim,
        vocabulary=config.vocabulary,
        layers=config.layers,
        context=config.context,
        ops=tuple(ops),
    )


def attention(
    config: ModelConfig, weights: Weights, layer: int, rope: Rope, *, head_norms: bool
) -> list[Op]:
    """x += Wo attention(norm x); biases are used where the file has them."""
    prefix = f"blk.{layer}"
    dim, head_dim = config.dim, config.head_dim
    q_width, kv_width = config.heads * head_dim, config.kv_heads * head_dim
    norm = Norm(weights.need(f"{prefix}.attn_norm.weight", dim), config.eps)
    weights.absent(f"{prefix}.attn_qkv.weight", "fused query, key and value matrices")
    parts = (
        _part(weights, "q", f"{prefix}.attn_q", q_width, dim),
        _part(weights, "k", f"{prefix}.attn_k", kv_width, dim),
        _part(weights, "v", f"{prefix}.attn_v", kv_width, dim),
    )
    q_norm = k_norm = None
    if head_norms:
        q_norm = Norm(weights.need(f"{prefix}.attn_q_norm.weight", head_dim), config.eps)
        k_norm = Norm(weights.need(f"{prefix}.attn_k_norm.weight", head_dim), config.eps)
    output = _part(weights, "x", f"{prefix}.attn_output", dim, q_width)
    return [
        Linear("x", parts, norm),
        Attention(
            out="a",
            q="q",
            k="k",
            v="v",
            layer=layer,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=head_dim,
            scale=1.0 / math.sqrt(head_dim),
            rope=rope,
            q_norm=q_norm,
            k_norm=k_norm,
        ),
        Linear("a", (output,), residual="x"),
    ]


def gated_mlp(
    config: ModelConfig, weights: Weights, layer: int, activation: Activation
) -> list[Op]:
    """x += Wdown (activation(Wgate norm x) * (Wup norm x)) (Shazeer 2020)."""
    prefix = f"blk.{layer}"
    dim, ffn = config.dim, config.ffn
    norm = Norm(weights.need(f"{prefix}.ffn_norm.weight", dim), config.eps)
    for name in ("ffn_gate", "ffn_up"):
        weights.absent(f"{prefix}.{name}.bias", "biases of a gated feed-forward layer")
    gate = weights.need(f"{prefix}.ffn_gate.weight", ffn, dim)
    up = weights.need(f"{prefix}.ffn_up.weight", ffn, dim)
    down = _part(weights, "x", f"{prefix}.ffn_down", dim, ffn)
    return [
        GatedMlp("m", "x", gate, up, activation, norm),
        Linear("m", (down,), residual="x"),
    ]


def head(config: ModelConfig, weights: Weights) -> Head:
    """Logits of norm x, by the output matrix or, where the file has none, the embedding table."""
    norm = Norm(weights.need("output_norm.weight", config.dim), config.eps)
    matrix = weights.may(OUTPUT, config.vocabulary, config.dim) or EMBEDDING
    return Head("x", matrix, norm, weights.may("output.bias", config.vocabulary))


def require_plain(config: ModelConfig) -> None:
    """Raise UnsupportedError for what metadata may ask for and plain_decoder() cannot give."""
    key = config.architecture
    if not config.causal:
        raise UnsupportedError(f"{key}.attention.causal is false; only causal models are supported")
    if config.experts:
        raise UnsupportedError(
            f"{key}.expert_count is {config.experts}; mixtures of experts are not supported for "
            f'architecture "{key}"'
        )
    for name, size in (
        ("attention.value_length", config.value_dim),
        ("rope.dimension_count", config.rope.dims),
    ):
        if size != config.head_dim:
            raise UnsupportedError(
                f"{key}.{name} is {size}; only the size of a key, {config.head_dim}, is supported"
            )


def _part(weights: Weights, out: str, name: str, rows: int, columns: int) -> Part:
    """A matrix [rows, columns] with the bias that the file may have for it."""
    matrix = weights.need(f"{name}.weight", rows, columns)
    return Part(out, matrix, weights.may(f"{name}.bias", rows))
