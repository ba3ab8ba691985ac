"""Model files: programs of tiny GGUFs compute what the equations say; bad files are refused.

The forward pass below follows each architecture's published equations in float64 over the decoded
tensors of the file, sharing nothing with divine.models but the names of tensors.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from divine.backends import create_backend
from divine.backends.base import Rows, Want
from divine.blocks import dequantize
from divine.errors import FormatError, UnsupportedError
from divine.gguf import GGUFFile, open_gguf, typed
from divine.models import ARCHITECTURES, ModelConfig, build_program
from divine.program import Attention, Embed, Head, Linear, Program, Rope
from tiny_models import tiny_llama

# Keys and values are rounded to f16 on both sides, from float32 here and from float64 there; a tie
# that falls differently moves one of them by 2^-11.
TOLERANCE = 4e-3

TOKENS = [1, 44, 300, 7, 7, 121, 0, 260, 19]


def program_of(path: Path) -> Program:
    with open_gguf(path) as gguf:
        return build_program(gguf)


def tiny(tmp_path: Path, **options: Any) -> Path:
    return tiny_llama(tmp_path / "tiny.gguf", block_type="F32", **options)


def only(program: Program, kind: type) -> list[Any]:
    return [op for op in program.ops if isinstance(op, kind)]


def rope_of(program: Program) -> Rope:
    ropes = {op.rope for op in only(program, Attention)}
    assert len(ropes) == 1
    return ropes.pop()


def dense_forward(gguf: GGUFFile, tokens: list[int], frequencies: Any) -> NDArray[np.float64]:
    """Logits [tokens, vocabulary] in float64, from the equations of the three architectures."""
    arch = gguf.metadata.str("general.architecture")

    def key(name: str) -> int:
        return gguf.metadata.int(f"{arch}.{name}")

    def weight(name: str) -> Any:
        raw = dequantize(gguf.raw(name), gguf.block_type(name), gguf.shape(name))
        return raw.astype(np.float64)

    def optional(name: str) -> Any:
        return weight(name) if name in gguf.tensors else 0.0

    heads, kv_heads = key("attention.head_count"), key("attention.head_count_kv")
    head_dim, n = key("attention.key_length"), len(tokens)
    at = np.arange(n)

    def norm(x: Any, name: str) -> Any:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + np.float32(1e-5)) * weight(name)

    def rope(x: Any) -> Any:
        turn = np.exp(1j * at[:, None] * frequencies)[:, None, :]
        if arch == "llama":
            z = (x[..., ::2] + 1j * x[..., 1::2]) * turn
            return np.stack([z.real, z.imag], -1).reshape(x.shape)
        z = (x[..., : head_dim // 2] + 1j * x[..., head_dim // 2 :]) * turn
        return np.concatenate([z.real, z.imag], -1)

    def project(x: Any, name: str, count: int) -> Any:
        out = x @ weight(f"{name}.weight").T + optional(f"{name}.bias")
        return out.reshape(n, count, head_dim)

    def f16(x: Any) -> Any:
        return x.astype(np.float16).astype(np.float64)

    x = weight("token_embd.weight")[tokens]
    for i in range(key("block_count")):
        h = norm(x, f"blk.{i}.attn_norm.weight")
        q = project(h, f"blk.{i}.attn_q", heads)
        k = project(h, f"blk.{i}.attn_k", kv_heads)
        v = project(h, f"blk.{i}.attn_v", kv_heads)
        if arch == "qwen3":
            q = norm(q, f"blk.{i}.attn_q_norm.weight")
            k = norm(k, f"blk.{i}.attn_k_norm.weight")
        q, k, v = rope(q), f16(rope(k)), f16(v)
        k, v = (np.repeat(side, heads // kv_heads, 1) for side in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(head_dim)
        weights = np.exp(np.where(at[:, None] >= at, scores, -np.inf))
        weights /= weights.sum(-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", weights, v).reshape(n, -1)
        x = x + mixed @ weight(f"blk.{i}.attn_output.weight").T
        x = x + optional(f"blk.{i}.attn_output.bias")
        h = norm(x, f"blk.{i}.ffn_norm.weight")
        gate = h @ weight(f"blk.{i}.ffn_gate.weight").T
        gate = gate / (1 + np.exp(-gate)) * (h @ weight(f"blk.{i}.ffn_up.weight").T)
        x = x + gate @ weight(f"blk.{i}.ffn_down.weight").T + optional(f"blk.{i}.ffn_down.bias")
    output = "output.weight" if "output.weight" in gguf.tensors else "token_embd.weight"
    logits = norm(x, "output_norm.weight") @ weight(output).T
    return logits + optional("output.bias")


def plain_frequencies(dims: int, base: float = 10_000.0) -> NDArray[np.float64]:
    return base ** (-np.arange(0, dims, 2) / dims)


def assert_logits_agree(path: Path, frequencies: NDArray[np.float64]) -> None:
    with open_gguf(path) as gguf:
        executable = create_backend("reference").compile(build_program(gguf), gguf)
        want = Want(logits=range(len(TOKENS)))
        found = executable.run([executable.new_state(16)], Rows.chain(TOKENS), want).logits
        expected = dense_forward(gguf, TOKENS, frequencies)
    assert np.std(expected) > 0.5  # else agreement would mean nothing
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("block_type", ["F32", "Q4_0", "Q8_0"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_logits_follow_the_equations(
    tmp_path: Path, arch: str, tied: bool, block_type: str
) -> None:
    # A head size other than dim / heads, so that it cannot be guessed.
    path = tiny_llama(
        tmp_path / "tiny.gguf", arch=arch, tied=tied, block_type=block_type, head_dim=24
    )
    assert_logits_agree(path, plain_frequencies(24))


def test_optional_biases_and_rope_factors_are_used(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    factors = np.linspace(1, 8, 8).astype(np.float32)
    extra = {
        "rope_freqs.weight": factors,
        "output.bias": rng.normal(size=320).astype(np.float32),
        "blk.0.attn_q.bias": rng.normal(size=64).astype(np.float32),
        "blk.1.attn_v.bias": rng.normal(size=32).astype(np.float32),
        "blk.1.attn_output.bias": rng.normal(size=64).astype(np.float32),
        "blk.0.ffn_down.bias": rng.normal(size=64).astype(np.float32),
    }
    path = tiny(tmp_path, tensor_overrides=extra)
    assert_logits_agree(path, plain_frequencies(16) / factors)


def test_shape_of_a_program(tmp_path: Path) -> None:
    program = program_of(tiny(tmp_path, arch="qwen2", layers=3, context=123))
    assert (program.architecture, program.dim, program.vocabulary) == ("qwen2", 64, 320)
    assert (program.layers, program.context) == (3, 123)
    assert program.tap_names == (*(f"layer.{i}.input" for i in range(3)), "final")
    assert only(program, Head)[0].weight == "token_embd.weight"
    assert [part.bias for part in only(program, Linear)[0].parts] == [
        f"blk.0.attn_{side}.bias" for side in "qkv"
    ]
    assert rope_of(program).style == "half"
    assert "x = embed(token_embd.weight)" in str(program)


def test_both_matrices_are_used_when_a_file_carries_both(tmp_path: Path) -> None:
    program = program_of(tiny(tmp_path, tied=False))
    assert only(program, Head)[0].weight == "output.weight"
    assert only(program, Embed)[0].table == "token_embd.weight"


def rope_with(tmp_path: Path, **keys: Any) -> Rope:
    overrides = {f"qwen2.rope.{key.replace('__', '.')}": value for key, value in keys.items()}
    return rope_of(program_of(tiny(tmp_path, arch="qwen2", metadata_overrides=overrides)))


def test_linear_scaling_stretches_positions(tmp_path: Path) -> None:
    expected = plain_frequencies(16, 5e5) / 4
    for keys in (
        {"scaling__type": "linear", "scaling__factor": typed("f32", 4.0)},
        {"scaling__factor": typed("f32", 4.0)},  # linear is the default
        {"scale_linear": typed("f32", 4.0)},  # the older key
    ):
        rope = rope_with(tmp_path, freq_base=typed("f32", 5e5), **keys)
        np.testing.assert_allclose(rope.frequencies, expected, rtol=1e-15)
        assert rope.magnitude == 1.0
    for keys in (
        {"scaling__type": "none", "scaling__factor": typed("f32", 4.0)},
        {"scaling__factor": typed("f32", 0.0)},
    ):
        rope = rope_with(tmp_path, **keys)
        np.testing.assert_allclose(rope.frequencies, plain_frequencies(16), rtol=1e-15)


def test_yarn_keeps_fast_pairs_and_stretches_slow_ones(tmp_path: Path) -> None:
    # 16 dims, base 10000, original context 4096: pairs turn 652, 206, 65.2, 20.6, 6.5, 2.06, 0.65
    # and 0.21 times. 32 turns lie at pair 2.62, one turn at pair 5.63: the ramp runs from 2 to 6.
    factor = 4.0
    rope = rope_with(
        tmp_path,
        scaling__type="yarn",
        scaling__factor=typed("f32", factor),
        scaling__original_context_length=4096,
    )
    kept = np.array([1, 1, 1, 0.75, 0.5, 0.25, 0, 0])
    expected = plain_frequencies(16) * (kept + (1 - kept) / factor)
    np.testing.assert_allclose(rope.frequencies, expected, rtol=1e-14)
    assert rope.magnitude == pytest.approx(1 + 0.1 * math.log(factor), rel=1e-15)
    rope = rope_with(
        tmp_path,
        scaling__type="yarn",
        scaling__factor=typed("f32", factor),
        scaling__original_context_length=4096,
        scaling__attn_factor=typed("f32", 0.5),
        scaling__yarn_log_multiplier=typed("f32", 0.5),
    )
    growth = (1 + 0.1 * math.log(factor)) / (1 + 0.05 * math.log(factor))
    assert rope.magnitude == pytest.approx(0.5 * growth, rel=1e-15)


def test_keys_may_be_arrays_of_one_value_or_have_other_types(tmp_path: Path) -> None:
    plain = program_of(tiny(tmp_path))
    arrays = {
        "llama.attention.head_count": typed("[i32]", [4, 4]),
        "llama.attention.head_count_kv": typed("[u32]", [2, 2]),
        "llama.feed_forward_length": typed("[i32]", [96, 96]),
        # The same number as the f32 in the plain file.
        "llama.attention.layer_norm_rms_epsilon": typed("f64", float(np.float32(1e-5))),
    }
    assert program_of(tiny(tmp_path, metadata_overrides=arrays)) == plain


def test_absent_keys_have_their_defaults(tmp_path: Path) -> None:
    plain = program_of(tiny(tmp_path))
    optional = [
        f"llama.{key}"
        for key in (
            "vocab_size",
            "attention.key_length",
            "attention.value_length",
            "rope.dimension_count",
            "rope.freq_base",
        )
    ]
    assert program_of(tiny(tmp_path, drop_keys=optional)) == plain
    every_head = program_of(tiny(tmp_path, kv_heads=4, drop_keys=["llama.attention.head_count_kv"]))
    assert only(every_head, Attention)[0].kv_heads == 4
    tokenless = program_of(tiny(tmp_path, drop_keys=["tokenizer.ggml.tokens"]))
    assert tokenless.vocabulary == 320


def test_trailing_prediction_blocks_do_not_run(tmp_path: Path) -> None:
    overrides = {"llama.nextn_predict_layers": 1}
    program = program_of(tiny(tmp_path, layers=3, metadata_overrides=overrides))
    assert program.layers == 2
    assert not any(name.startswith("blk.2.") for name in program.weights())


def refused(path: Path, kind: type[Exception]) -> str:
    with open_gguf(path) as gguf, pytest.raises(kind) as caught:
        build_program(gguf)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


HEAD_COUNT, HEAD_COUNT_KV = "llama.attention.head_count", "llama.attention.head_count_kv"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        (HEAD_COUNT, 0, "is 0; it must be integers at least 1 and at most 4096"),
        (HEAD_COUNT, "4", "is string '4'; it must be 2 integers, or one for all"),
        (HEAD_COUNT_KV, 0, "is 0; it must be integers at least 1"),
        (HEAD_COUNT_KV, 3, f"is 4; it must be a multiple of '{HEAD_COUNT_KV}', which is 3"),
        (HEAD_COUNT_KV, typed("[i32]", [2]), "is an array of 1 i32; it must be 2 integers"),
        (HEAD_COUNT_KV, typed("[i32]", [2, 2, 2]), "is an array of 3 i32; it must be 2 integers"),
        (HEAD_COUNT_KV, typed("[i32]", [2, -2]), "is -2; it must be integers at least 1"),
        ("llama.block_count", 0, "is 0; it must be an integer at least 1 and at most 4096"),
        ("llama.block_count", 100_000, "is 100000; it must be an integer at least 1"),
        ("llama.block_count", 2**32 - 1, "is 4294967295; it must be an integer"),
        ("llama.block_count", typed("[u32]", [2]), "is an array of 1 u32; it must be an integer"),
        ("llama.embedding_length", 0, "is 0; it must be an integer at least 1"),
        ("llama.attention.key_length", 0, "is 0; it must be an integer at least 1"),
        ("llama.attention.key_length", 2**31, "is 2147483648; it must be an integer"),
        ("llama.context_length", 0, "is 0; it must be an integer at least 1"),
        ("llama.context_length", typed("u64", 2**63), "is 9223372036854775808; it must be"),
        ("llama.feed_forward_length", 0, "is 0; it must be integers at least 1"),
        ("llama.rope.dimension_count", 7, "is 7; it must be even and at most the size of a head"),
        ("llama.rope.dimension_count", 18, "is 18; it must be even and at most"),
        ("llama.rope.dimension_count", 0, "is 0; it must be an integer at least 1"),
        ("llama.rope.freq_base", typed("f32", 0.0), "is 0.0; it must be a finite number at least"),
        ("llama.rope.freq_base", typed("f32", math.nan), "is nan; it must be a finite number"),
        ("llama.rope.scaling.factor", typed("f32", -2.0), "is -2.0; it must be a finite number"),
        ("llama.rope.scaling.attn_factor", typed("f32", 0.0), "is 0.0; it must be a finite"),
        ("llama.attention.layer_norm_rms_epsilon", typed("f32", math.nan), "is nan; it must be"),
        ("llama.attention.layer_norm_rms_epsilon", typed("f32", 0.0), "is 0.0; it must be"),
        ("llama.attention.layer_norm_rms_epsilon", typed("f32", -1e-5), "it must be a finite"),
        ("llama.nextn_predict_layers", 2, "is 2; it must be an integer at least 0 and at most 1"),
        ("tokenizer.ggml.eos_token_id", 320, "is 320; it must be an integer at least 0 and at"),
        ("tokenizer.ggml.eos_token_id", 2**32 - 1, "is 4294967295; it must be an integer"),
        ("tokenizer.ggml.bos_token_id", typed("i32", -1), "is -1; it must be an integer at least"),
        ("tokenizer.ggml.tokens", typed("[string]", []), "the vocabulary has 0 tokens"),
        ("tokenizer.ggml.tokens", "hello", "an array of strings"),
    ],
)
def test_contradictory_metadata_are_refused(
    tmp_path: Path, key: str, value: Any, expected: str
) -> None:
    message = refused(tiny(tmp_path, metadata_overrides={key: value}), FormatError)
    assert expected in message
    assert key in message or key == "tokenizer.ggml.tokens"


@pytest.mark.parametrize(
    "key",
    [
        "general.architecture",
        HEAD_COUNT,
        "llama.block_count",
        "llama.context_length",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.attention.layer_norm_rms_epsilon",
    ],
)
def test_missing_keys_are_named(tmp_path: Path, key: str) -> None:
    message = refused(tiny(tmp_path, drop_keys=[key]), FormatError)
    assert key in message
    assert "is missing" in message


def test_padding_ids_are_not_used_and_may_be_anything(tmp_path: Path) -> None:
    overrides = {"tokenizer.ggml.padding_token_id": typed("i32", -1)}
    assert program_of(tiny(tmp_path, metadata_overrides=overrides)).vocabulary == 320


def test_a_width_that_heads_do_not_divide(tmp_path: Path) -> None:
    overrides = {"llama.embedding_length": 33}
    path = tiny(tmp_path, metadata_overrides=overrides, drop_keys=["llama.attention.key_length"])
    message = refused(path, FormatError)
    assert "'llama.embedding_length' is 33" in message
    assert "'llama.attention.head_count', which is 4" in message
    message = refused(tiny(tmp_path, metadata_overrides=overrides), FormatError)
    assert message == 'tensor "token_embd.weight" has shape [320, 64]; expected [320, 33]'


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"llama.block_count": 3}, '"blk.2.attn_norm.weight" is missing; expected shape [64]'),
        (
            {"llama.feed_forward_length": 97},
            '"blk.0.ffn_gate.weight" has shape [96, 64]; expected [97, 64]',
        ),
        ({HEAD_COUNT: 8}, '"blk.0.attn_q.weight" has shape [64, 64]; expected [128, 64]'),
        ({HEAD_COUNT_KV: 1}, '"blk.0.attn_k.weight" has shape [32, 64]; expected [16, 64]'),
        (
            {"tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.eos_token_id": 0,
             "tokenizer.ggml.bos_token_id": 0},
            '"token_embd.weight" has shape [320, 64]; expected [1, 64]',
        ),
    ],
)  # fmt: skip
def test_tensors_that_metadata_do_not_fit_are_named(
    tmp_path: Path, overrides: dict[str, Any], expected: str
) -> None:
    message = refused(tiny(tmp_path, metadata_overrides=overrides), FormatError)
    assert message == f"tensor {expected}"


@pytest.mark.parametrize(
    "name",
    [
        "token_embd.weight",
        "output_norm.weight",
        "blk.1.attn_norm.weight",
        "blk.1.attn_k.weight",
        "blk.1.attn_q_norm.weight",
        "blk.1.ffn_down.weight",
    ],
)
def test_missing_and_ill_shaped_tensors_are_named(tmp_path: Path, name: str) -> None:
    message = refused(tiny(tmp_path, arch="qwen3", drop_tensors=[name]), FormatError)
    assert message.startswith(f'tensor "{name}" is missing; expected shape [')
    wrong = {name: np.zeros((3, 5, 7), np.float32)}
    message = refused(tiny(tmp_path, arch="qwen3", tensor_overrides=wrong), FormatError)
    assert message.startswith(f'tensor "{name}" has shape [3, 5, 7]; expected [')


def test_blocks_beyond_the_count_are_refused(tmp_path: Path) -> None:
    overrides = {"llama.block_count": 2}
    message = refused(tiny(tmp_path, layers=4, metadata_overrides=overrides), FormatError)
    assert message == (
        "the tensor 'blk.2.attn_norm.weight' belongs to block 2, but 'llama.block_count' is 2; "
        "the last block is 1"
    )
    overrides = {"llama.block_count": 2, "llama.nextn_predict_layers": 1}
    message = refused(tiny(tmp_path, layers=3, metadata_overrides=overrides), FormatError)
    assert "'blk.2.attn_norm.weight' belongs to block 2" in message


@pytest.mark.parametrize(
    ("arch", "name"),
    [
        ("llama", "blk.0.attn_q_norm.weight"),
        ("llama", "rope_factors_long.weight"),
        ("llama", "blk.00.attn_norm.weight"),
        ("llama", "blk.1"),
        ("llama", "cls.output.weight"),
        ("llama", "my.divine.weight"),
        ("qwen2", "rope_freqs.weight"),
        ("qwen3", "blk.1.post_attention_norm.weight"),
    ],
)
def test_tensors_without_a_use_are_refused(tmp_path: Path, arch: str, name: str) -> None:
    extra = {name: np.ones(8, np.float32)}
    message = refused(tiny(tmp_path, arch=arch, tensor_overrides=extra), FormatError)
    assert message == f"the tensor {name!r} has no use in architecture '{arch}'"


def test_tensors_that_cannot_matter_are_passed_over(tmp_path: Path) -> None:
    extra = {
        name: np.ones(8, np.float32)
        for name in ("divine.mtp.1.norm.weight", "blk.0.attn_rot_embd.weight")
    }
    plain = program_of(tiny(tmp_path))
    assert program_of(tiny(tmp_path, tensor_overrides=extra)) == plain
    beside = {"output.weight": np.ones((320, 64), np.float32)}
    assert program_of(tiny(tmp_path, tensor_overrides=beside)).weights()[-1] == "output.weight"


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_rope_factors_must_be_positive(tmp_path: Path, value: float) -> None:
    factors = np.array([1, 1, 1, value, 1, 1, 1, 1], np.float32)
    path = tiny(tmp_path, tensor_overrides={"rope_freqs.weight": factors})
    expected = f'tensor "rope_freqs.weight" holds {value}; positive numbers are needed'
    assert refused(path, FormatError) == expected


VECTOR = np.ones(96, np.float32)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"metadata_overrides": {"general.architecture": "gemma9"}},
            "architecture 'gemma9' is not supported; supported are llama, qwen2, qwen3",
        ),
        (
            {"metadata_overrides": {"llama.expert_count": 8}},
            "llama.expert_count is 8; mixtures of experts are not supported",
        ),
        (
            {"metadata_overrides": {"llama.attention.causal": False}},
            "llama.attention.causal is false",
        ),
        (
            {"metadata_overrides": {"llama.attention.value_length": 8}},
            "llama.attention.value_length is 8; only the size of a key, 16, is supported",
        ),
        (
            {"metadata_overrides": {"llama.rope.dimension_count": 8}},
            "llama.rope.dimension_count is 8; only the size of a key, 16, is supported",
        ),
        (
            {"metadata_overrides": {"llama.rope.scaling.type": "longrope"}},
            "'llama.rope.scaling.type' is 'longrope'; supported are none, linear, yarn",
        ),
        (
            {"metadata_overrides": {HEAD_COUNT_KV: typed("[u32]", [2, 4])}},
            f"{HEAD_COUNT_KV!r} differs between blocks (2 to 4)",
        ),
        (
            {"tensor_overrides": {"blk.1.ffn_up.bias": VECTOR}},
            'tensor "blk.1.ffn_up.bias" is present, but biases of a gated feed-forward layer are',
        ),
        (
            {"tensor_overrides": {"blk.0.attn_qkv.weight": np.ones((128, 64), np.float32)}},
            'tensor "blk.0.attn_qkv.weight" is present, but fused query, key and value',
        ),
        (
            {"tensor_overrides": {"blk.0.attn_q.scale": np.ones(1, np.float32)}},
            'tensor "blk.0.attn_q.scale" is present, but scales beside a matrix are not supported',
        ),
    ],
)
def test_what_the_operations_cannot_express_is_refused_by_name(
    tmp_path: Path, options: dict[str, Any], expected: str
) -> None:
    assert expected in refused(tiny(tmp_path, **options), UnsupportedError)


@pytest.mark.parametrize("key", ["general.architecture", "llama.rope.scaling.type"])
def test_long_values_are_shortened_in_messages(tmp_path: Path, key: str) -> None:
    path = tiny(tmp_path, metadata_overrides={key: "x" * 100_000})
    assert len(refused(path, UnsupportedError).replace(str(path), "")) < 300


def test_config_is_readable_by_itself(tmp_path: Path) -> None:
    with open_gguf(tiny(tmp_path, arch="qwen3")) as gguf:
        config = ModelConfig.from_metadata(gguf.metadata, rows=320)
    assert (config.dim, config.ffn, config.layers) == (64, 96, 2)
    assert (config.heads, config.kv_heads, config.head_dim) == (4, 2, 16)
    assert config.eps == np.float32(1e-5)
