"""Names of metadata keys that Divine reads or writes, in one place.

Keys of an architecture are given without its prefix: architecture_key("llama", BLOCK_COUNT) is
"llama.block_count". What the values mean is told where they are used.
"""

from __future__ import annotations

ARCHITECTURE = "general.architecture"
NAME = "general.name"
TYPE = "general.type"
ALIGNMENT = "general.alignment"
FILE_TYPE = "general.file_type"
QUANTIZATION_VERSION = "general.quantization_version"
SIZE_LABEL = "general.size_label"

SPLIT_NUMBER = "split.no"
SPLIT_COUNT = "split.count"
SPLIT_TENSORS = "split.tensors.count"

CONTEXT_LENGTH = "context_length"
EMBEDDING_LENGTH = "embedding_length"
BLOCK_COUNT = "block_count"
FEED_FORWARD_LENGTH = "feed_forward_length"
VOCABULARY_SIZE = "vocab_size"
EXPERT_COUNT = "expert_count"
EXPERT_USED_COUNT = "expert_used_count"
HEAD_COUNT = "attention.head_count"
HEAD_COUNT_KV = "attention.head_count_kv"
KEY_LENGTH = "attention.key_length"
VALUE_LENGTH = "attention.value_length"
RMS_EPSILON = "attention.layer_norm_rms_epsilon"
SLIDING_WINDOW = "attention.sliding_window"
ROPE_DIMENSIONS = "rope.dimension_count"
ROPE_BASE = "rope.freq_base"
ROPE_SCALING_TYPE = "rope.scaling.type"
ROPE_SCALING_FACTOR = "rope.scaling.factor"
ROPE_SCALING_CONTEXT = "rope.scaling.original_context_length"
ROPE_SCALING_ATTENTION = "rope.scaling.attn_factor"
ROPE_SCALING_LINEAR = "rope.scale_linear"

TOKENIZER_MODEL = "tokenizer.ggml.model"
TOKENIZER_PRE = "tokenizer.ggml.pre"
TOKENS = "tokenizer.ggml.tokens"
TOKEN_TYPES = "tokenizer.ggml.token_type"
TOKEN_SCORES = "tokenizer.ggml.scores"
MERGES = "tokenizer.ggml.merges"
BOS_ID = "tokenizer.ggml.bos_token_id"
EOS_ID = "tokenizer.ggml.eos_token_id"
EOT_ID = "tokenizer.ggml.eot_token_id"
EOM_ID = "tokenizer.ggml.eom_token_id"
UNKNOWN_ID = "tokenizer.ggml.unknown_token_id"
PADDING_ID = "tokenizer.ggml.padding_token_id"
ADD_BOS = "tokenizer.ggml.add_bos_token"
ADD_EOS = "tokenizer.ggml.add_eos_token"
ADD_SPACE_PREFIX = "tokenizer.ggml.add_space_prefix"
CHAT_TEMPLATE = "tokenizer.chat_template"


def architecture_key(architecture: str, key: str) -> str:
    """The full name of an architecture's own key."""
    return f"{architecture}.{key}"
