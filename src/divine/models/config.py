"""The sizes of a model, read from GGUF metadata once and held against each other.

Keys and defaults are those that every architecture shares; what an architecture does with them is
its own module's business. Every contradiction is one sentence with both numbers. Limits lie far
above any real model: they keep a damaged number from becoming an allocation. Tensors are not
checked here, only counted upon for the vocabulary of files without a tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass

from divine.errors import FormatError, UnsupportedError
from divine.gguf import Metadata, keys

MAX_LAYERS = 1 << 12
MAX_WIDTH = 1 << 20  # of the residual stream and of the feed-forward layer
MAX_HEADS = 1 << 12
MAX_HEAD_DIM = 1 << 12
MAX_CONTEXT = 1 << 24  # what a state can hold
MAX_VOCABULARY = 1 << 24

SCALINGS = ("none", "linear", "yarn")  # of rotary embedding

_NEXTN_LAYERS = "nextn_predict_layers"
_CAUSAL = "attention.causal"
_YARN_LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"

# Ids that generation indexes with; others, such as padding, may be anything and are not used.
_USED_IDS = (keys.BOS_ID, keys.EOS_ID, keys.EOT_ID, keys.EOM_ID)


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding as the metadata tell it; rope.py makes frequencies of it."""

    dims: int
    base: float
    scaling: str  # one of SCALINGS
    factor: float  # 1 for no scaling
    original_context: int
    magnitude: float  # multiplies cos and sin, besides what yarn adds
    yarn_log_multiplier: float | None


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of a decoder whose layers are all alike."""

    architecture: str
    vocabulary: int
    dim: int
    blocks: int  # those of the file
    layers: int  # those that run: trailing next-token-prediction blocks are not counted
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    ffn: int
    context: int
    eps: float
    experts: int
    causal: bool
    rope: RopeConfig

    @staticmethod
    def from_metadata(metadata: Metadata, rows: int) -> ModelConfig:
        """Read and check; `rows`, the height of the embedding table, is the size of the vocabulary
        where the file has no tokenizer. Raises FormatError, UnsupportedError.
        """
        read = _Reader(metadata)
        dim = read.size(keys.EMBEDDING_LENGTH, MAX_WIDTH)
        blocks = read.size(keys.BLOCK_COUNT, MAX_LAYERS)
        heads, kv_heads = _heads(read, blocks)
        head_dim = _head_dim(read, dim, heads)
        value_dim = head_dim
        if read.has(keys.VALUE_LENGTH):
            value_dim = read.size(keys.VALUE_LENGTH, MAX_HEAD_DIM)
        context = read.size(keys.CONTEXT_LENGTH, MAX_CONTEXT)
        return ModelConfig(
            architecture=read.architecture,
            vocabulary=_vocabulary(metadata, rows),
            dim=dim,
            blocks=blocks,
            layers=_layers(read, blocks),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            value_dim=value_dim,
            ffn=read.same(keys.FEED_FORWARD_LENGTH, blocks, MAX_WIDTH),
            context=context,
            eps=metadata.float(read.key(keys.RMS_EPSILON), minimum=1e-20, maximum=1.0),
            experts=metadata.int(read.key(keys.EXPERT_COUNT), 0),
            causal=metadata.bool(read.key(_CAUSAL), True),
            rope=_rope(read, head_dim, context),
        )


class _Reader:
    """One architecture's keys; Metadata's getters check and word what they refuse."""

    def __init__(self, metadata: Metadata) -> None:
        self.metadata = metadata
        self.architecture = metadata.str(keys.ARCHITECTURE)

    def key(self, key: str) -> str:
        return keys.architecture_key(self.architecture, key)

    def has(self, key: str) -> bool:
        return self.key(key) in self.metadata

    def size(self, key: str, maximum: int) -> int:
        """An integer from 1 to maximum."""
        return self.metadata.int(self.key(key), minimum=1, maximum=maximum)

    def same(self, key: str, blocks: int, maximum: int) -> int:
        """A size given once, or for each block alike: the layers of these models do not differ."""
        name = self.key(key)
        values = self.metadata.ints(name, blocks, minimum=1, maximum=maximum)
        if len(set(values)) > 1:
            raise UnsupportedError(
                f"the metadata key {name!r} differs between blocks ({min(values)} to "
                f'{max(values)}); architecture "{self.architecture}" is supported with one value '
                "for all blocks only"
            )
        return values[0]

    def number(self, key: str, default: float, minimum: float, maximum: float) -> float:
        return self.metadata.float(self.key(key), default, minimum=minimum, maximum=maximum)


def _layers(read: _Reader, blocks: int) -> int:
    """Blocks that run: the last ones may be heads that predict further tokens."""
    return blocks - read.metadata.int(read.key(_NEXTN_LAYERS), 0, minimum=0, maximum=blocks - 1)


def _heads(read: _Reader, blocks: int) -> tuple[int, int]:
    heads = read.same(keys.HEAD_COUNT, blocks, MAX_HEADS)
    if not read.has(keys.HEAD_COUNT_KV):
        return heads, heads
    kv_heads = read.same(keys.HEAD_COUNT_KV, blocks, MAX_HEADS)
    if heads % kv_heads:
        raise FormatError(
            f"the metadata key {read.key(keys.HEAD_COUNT)!r} is {heads}; it must be a multiple of "
            f"{read.key(keys.HEAD_COUNT_KV)!r}, which is {kv_heads}"
        )
    return heads, kv_heads


def _head_dim(read: _Reader, dim: int, heads: int) -> int:
    if read.has(keys.KEY_LENGTH):
        return read.size(keys.KEY_LENGTH, MAX_HEAD_DIM)
    if dim % heads or dim // heads > MAX_HEAD_DIM:
        raise FormatError(
            f"the metadata key {read.key(keys.EMBEDDING_LENGTH)!r} is {dim}; without "
            f"{read.key(keys.KEY_LENGTH)!r} it must be a multiple of "
            f"{read.key(keys.HEAD_COUNT)!r}, which is {heads}, and at most {MAX_HEAD_DIM} times it"
        )
    return dim // heads


def _vocabulary(metadata: Metadata, rows: int) -> int:
    """The number of tokens, with which every id that generation uses must agree."""
    vocabulary = rows
    if keys.TOKENS in metadata:
        vocabulary = metadata.length(keys.TOKENS) or len(metadata.strings(keys.TOKENS))
    if not 1 <= vocabulary <= MAX_VOCABULARY:
        raise FormatError(
            f"the vocabulary has {vocabulary} tokens; it must have 1 to {MAX_VOCABULARY}"
        )
    for name in _USED_IDS:
        metadata.int(name, None, minimum=0, maximum=vocabulary - 1)
    return vocabulary


def _rope(read: _Reader, head_dim: int, context: int) -> RopeConfig:
    dims = head_dim
    if read.has(keys.ROPE_DIMENSIONS):
        dims = read.size(keys.ROPE_DIMENSIONS, MAX_HEAD_DIM)
    if dims > head_dim or dims % 2:
        raise FormatError(
            f"the metadata key {read.key(keys.ROPE_DIMENSIONS)!r} is {dims}; it must be even and "
            f"at most the size of a head, {head_dim}"
        )
    scaling = read.metadata.str(read.key(keys.ROPE_SCALING_TYPE), "linear")
    if scaling not in SCALINGS:
        raise UnsupportedError(
            f"the metadata key {read.key(keys.ROPE_SCALING_TYPE)!r} is {scaling[:80]!r}; "
            f"supported are {', '.join(SCALINGS)}"
        )
    original = context
    if read.has(keys.ROPE_SCALING_CONTEXT):
        original = read.size(keys.ROPE_SCALING_CONTEXT, MAX_CONTEXT)
    log_multiplier = None
    if read.has(_YARN_LOG_MULTIPLIER):
        log_multiplier = read.number(_YARN_LOG_MULTIPLIER, 1.0, 0.0, 4.0)
    return RopeConfig(
        dims=dims,
        base=read.number(keys.ROPE_BASE, 10_000.0, 2.0, 1e12),
        scaling=scaling,
        factor=_rope_factor(read),
        original_context=original,
        magnitude=read.number(keys.ROPE_SCALING_ATTENTION, 1.0, 1e-3, 1e3),
        yarn_log_multiplier=log_multiplier,
    )


def _rope_factor(read: _Reader) -> float:
    """By how much positions are stretched; old files have another key, and 0 stands for 1."""
    for key in (keys.ROPE_SCALING_FACTOR, keys.ROPE_SCALING_LINEAR):
        if read.has(key):
            if read.metadata.float(read.key(key)) == 0:
                return 1.0
            return read.number(key, 1.0, 0.1, 1e6)
    return 1.0
