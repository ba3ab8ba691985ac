"""Builds tiny GGUF models with Divine's own writer: no downloads, no model files.

tiny_llama() makes a complete model of a few tens of KB: a real byte-level BPE vocabulary with a few
merges, ChatML special tokens and template, and random weights scaled so that logits vary. Damage is
done by overriding or dropping keys and tensors. split_gguf() cuts a file into shards.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from divine.blocks import ENCODABLE, block_format, quantize, random_blocks
from divine.gguf import (
    MetaValue,
    TensorData,
    copy_metadata,
    copy_tensors,
    open_gguf,
    typed,
    write_gguf,
)

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content']"
    " + '<|im_end|>' + '\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # ids 0, 1, 2
ENDOFTEXT, IM_START, IM_END = range(3)
WORDS = ("hello", " the", " world", " model", "ing", " is", " and", " user", "assistant", "  ")
VOCABULARY = 320  # tokens by default; the last ones are unused padding

_CONTROL, _NORMAL, _UNUSED = 3, 1, 5
_PRE = {"llama": "smollm", "qwen2": "qwen2", "qwen3": "qwen2"}


def byte_letters() -> list[str]:
    """The letter that stands for each byte in a byte-level vocabulary (GPT-2's mapping)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {byte: chr(byte) for byte in shown}
    hidden = [byte for byte in range(256) if byte not in letters]
    letters.update({byte: chr(256 + index) for index, byte in enumerate(hidden)})
    return [letters[byte] for byte in range(256)]


def tiny_vocabulary(size: int = VOCABULARY) -> tuple[list[str], list[int], list[str]]:
    """Tokens, token types and merges of a byte-level BPE vocabulary with `size` tokens."""
    letters = byte_letters()
    tokens = [*SPECIAL_TOKENS, *letters]
    merges: list[str] = []
    for word in WORDS:
        spelled = [letters[byte] for byte in word.encode()]
        left = spelled[0]
        for right in spelled[1:]:
            merge = f"{left} {right}"
            left += right
            if merge not in merges:
                merges.append(merge)
                tokens.append(left)
    if size < len(tokens):
        raise ValueError(f"a tiny vocabulary has at least {len(tokens)} tokens")
    types = [_CONTROL] * len(SPECIAL_TOKENS) + [_NORMAL] * (len(tokens) - len(SPECIAL_TOKENS))
    padding = size - len(tokens)
    tokens += [f"[PAD{index}]" for index in range(padding)]
    return tokens, types + [_UNUSED] * padding, merges


def tiny_llama(
    path: Path,
    *,
    arch: str = "llama",
    dim: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    ffn: int = 96,
    vocab: int = VOCABULARY,
    context: int = 256,
    block_type: str = "Q4_0",
    block_types: Mapping[str, str] | None = None,
    tied: bool = True,
    seed: int = 0,
    metadata_overrides: Mapping[str, MetaValue] | None = None,
    drop_keys: Collection[str] = (),
    tensor_overrides: Mapping[str, TensorData | np.ndarray] | None = None,
    drop_tensors: Collection[str] = (),
    alignment: int | None = None,
    version: int = 3,
) -> Path:
    """Write a tiny model of architecture "llama", "qwen2" or "qwen3"; returns `path`.

    Matrices are of `block_type`, or of the first entry of `block_types` whose key ends the tensor's
    name ({"attn_v.weight": "Q6_K"}), or Q8_0 or F32 where a row is no multiple of its block (the K
    formats need dim, ffn and heads * head_dim to be multiples of 256). Overrides replace or add
    keys ("llama.block_count": typed("u32", 3)) and tensors; drops come last.
    """
    metadata: dict[str, MetaValue] = {
        **_model_keys(arch, dim, layers, heads, kv_heads, head_dim, ffn, context, vocab),
        **_tokenizer_keys(arch, vocab),
        **(metadata_overrides or {}),
    }
    shapes = _shapes(arch, dim, layers, heads, kv_heads, head_dim, ffn, vocab, tied)
    rng = np.random.default_rng(seed)
    tensors: dict[str, TensorData | np.ndarray] = {}
    for name, shape in shapes.items():
        kind = _block_type(name, shape, block_type, block_types or {})
        tensors[name] = random_tensor(name, shape, kind, rng)
    tensors.update(tensor_overrides or {})
    write_gguf(
        path,
        {key: value for key, value in metadata.items() if key not in drop_keys},
        {name: tensor for name, tensor in tensors.items() if name not in drop_tensors},
        alignment=alignment,
        version=version,
    )
    return path


def random_tensor(
    name: str, shape: tuple[int, ...], block_type: str, rng: np.random.Generator
) -> TensorData:
    """A weight whose size suits its role, so that logits neither vanish nor saturate."""
    if len(shape) == 1:
        centre = 0.0 if name.endswith(".bias") else 1.0
        values = centre + 0.1 * rng.standard_normal(shape, np.float32)
        return TensorData("F32", shape, values.astype(np.float32))
    rows, cols = shape
    # Outputs of about the size of the inputs; a smaller embedding, so that the layers change it.
    rms = 0.3 if name.startswith(("token_embd", "output.")) else 1.5 / np.sqrt(cols)
    if block_type in ENCODABLE:
        values = rng.standard_normal(shape, np.float32) * np.float32(rms)
        return TensorData(block_type, shape, quantize(values, block_type))
    return TensorData(block_type, shape, random_blocks(block_type, rows, cols, rng, rms=rms))


def split_gguf(path: Path, parts: int, folder: Path | None = None) -> list[Path]:
    """Cut a file into `parts` shards as llama.cpp's splitter lays them out; returns their paths.

    All keys go to the first shard, the others have only the split.* keys.
    """
    folder = folder or path.parent
    shards = []
    with open_gguf(path) as source:
        tensors = list(copy_tensors(source).items())
        for number in range(parts):
            keys: dict[str, Any] = copy_metadata(source) if number == 0 else {}
            keys["split.no"] = typed("u16", number)
            keys["split.count"] = typed("u16", parts)
            keys["split.tensors.count"] = typed("i32", len(tensors))
            start, end = (len(tensors) * n // parts for n in (number, number + 1))
            shard = folder / f"{path.stem}-{number + 1:05}-of-{parts:05}.gguf"
            write_gguf(shard, keys, dict(tensors[start:end]))
            shards.append(shard)
    return shards


def _model_keys(
    arch: str,
    dim: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    ffn: int,
    context: int,
    vocab: int,
) -> dict[str, MetaValue]:
    own: dict[str, MetaValue] = {
        "vocab_size": vocab,
        "context_length": context,
        "embedding_length": dim,
        "block_count": layers,
        "feed_forward_length": ffn,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": typed("f32", 1e-5),
        "rope.dimension_count": head_dim,
        "rope.freq_base": typed("f32", 10000.0),
    }
    return {
        "general.architecture": arch,
        "general.name": f"tiny {arch}",
        **{f"{arch}.{key}": value for key, value in own.items()},
    }


def _tokenizer_keys(arch: str, vocab: int) -> dict[str, MetaValue]:
    tokens, types, merges = tiny_vocabulary(vocab)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": _PRE[arch],
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": typed("[i32]", types),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": IM_START,
        "tokenizer.ggml.eos_token_id": IM_END,
        "tokenizer.ggml.unknown_token_id": ENDOFTEXT,
        "tokenizer.ggml.padding_token_id": IM_END,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHATML,
    }


def _shapes(
    arch: str,
    dim: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    ffn: int,
    vocab: int,
    tied: bool,
) -> dict[str, tuple[int, ...]]:
    """Names and shapes (NumPy order) of all tensors, in the order converters write them."""
    q, kv = heads * head_dim, kv_heads * head_dim
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocab, dim)}
    for layer in range(layers):
        block: dict[str, tuple[int, ...]] = {
            "attn_norm.weight": (dim,),
            "attn_q.weight": (q, dim),
            "attn_k.weight": (kv, dim),
            "attn_v.weight": (kv, dim),
            "attn_output.weight": (dim, q),
            "ffn_norm.weight": (dim,),
            "ffn_gate.weight": (ffn, dim),
            "ffn_up.weight": (ffn, dim),
            "ffn_down.weight": (dim, ffn),
        }
        if arch == "qwen2":
            block.update({"attn_q.bias": (q,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)})
        if arch == "qwen3":
            block.update({"attn_q_norm.weight": (head_dim,), "attn_k_norm.weight": (head_dim,)})
        shapes.update({f"blk.{layer}.{name}": shape for name, shape in block.items()})
    shapes["output_norm.weight"] = (dim,)
    if not tied:
        shapes["output.weight"] = (vocab, dim)
    return shapes


def _block_type(
    name: str, shape: tuple[int, ...], default: str, by_suffix: Mapping[str, str]
) -> str:
    if len(shape) == 1:
        return "F32"
    chosen = next((kind for end, kind in by_suffix.items() if name.endswith(end)), default)
    for kind in (chosen, "Q8_0"):
        if shape[-1] % block_format(kind).elements == 0:
            return kind
    return "F32"
