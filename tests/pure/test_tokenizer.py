"""Small vocabularies written here: special tokens, BOS, the dummy space, damaged files."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import (
    BYTE,
    CONTROL,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    byte_level,
    sentencepiece,
    tokenizer,
)

from divine.errors import DivineError, FormatError, UnsupportedError, UsageError
from divine.gguf import typed
from divine.text import Tokenizer
from divine.text.pretokenize import PRE_TOKENIZERS

MERGES = ["h e", "he l", "hel l", "\u0120 h"]
SPECIAL = {
    "<s>": CONTROL,
    "<|end|>": CONTROL,
    "<|end|>!": CONTROL,
    "<think>": USER_DEFINED,
    "[PAD264]": USER_DEFINED,
    "<unused>": UNUSED,
}
BOS, END, LONGER, THINK = 260, 261, 262, 263


def chatty(folder: Path, **extra: object) -> Tokenizer:
    keys = byte_level(MERGES, SPECIAL, bos_token_id=BOS, eos_token_id=END, **extra)
    return tokenizer(folder, {**keys, "tokenizer.chat_template": "<think>"})


def test_special_tokens_are_parsed_only_when_asked_for(tmp_path: Path) -> None:
    found = chatty(tmp_path)
    text = "hell<|end|>!<s><think>[PAD264]<unused>"
    plain = found.encode(text)
    assert not {BOS, END, LONGER, THINK} & set(plain)
    assert found.decode(plain) == text
    ids = found.encode(text, special=True)
    assert ids[1:4] == [LONGER, BOS, THINK]
    assert not {264, 265} & set(ids), "unused tokens are never parsed"
    assert found.decode(ids) == "hell<think>[PAD264]<unused>"
    assert found.decode(ids, special=True) == text


def test_ordinary_user_defined_tokens_are_always_parsed(tmp_path: Path) -> None:
    keys = byte_level(MERGES, {"    ": USER_DEFINED, "<td>": USER_DEFINED})
    found = tokenizer(tmp_path, keys)
    assert found.encode("h    <td>h") == [ord("h"), 260, 261, ord("h")]


def test_one_bos(tmp_path: Path) -> None:
    found = chatty(tmp_path, add_bos_token=True)
    assert found.encode("h")[0] == BOS
    assert found.encode("<s>h", special=True).count(BOS) == 1
    assert found.encode("h", bos=False).count(BOS) == 0
    assert found.encode("h", continuation=True).count(BOS) == 0
    silent = chatty(tmp_path)
    assert BOS not in silent.encode("h")
    assert silent.encode("h", bos=True)[0] == BOS


@pytest.mark.parametrize(("pre", "expected"), [("llama-bpe", True), ("qwen2", False)])
def test_defaults_of_the_pre_tokenizer(tmp_path: Path, pre: str, expected: bool) -> None:
    keys = byte_level([*MERGES, "a b"], {"<s>": CONTROL}, pre=pre, bos_token_id=261)
    keys["tokenizer.ggml.tokens"].append("xyz")
    keys["tokenizer.ggml.token_type"] = typed("[i32]", [NORMAL] * 261 + [CONTROL, NORMAL])
    found = tokenizer(tmp_path, keys)
    assert found.adds_bos is expected
    whole = found.encode("xyz", bos=False)
    assert whole == ([262] if expected else [ord(c) for c in "xyz"])


def test_end_ids(tmp_path: Path) -> None:
    special = {"<|im_end|>": CONTROL, "<end_of_turn>": NORMAL, "</s>": NORMAL, "stop": CONTROL}
    keys = byte_level(MERGES, special, eos_token_id=260, eot_token_id=263)
    found = tokenizer(tmp_path, keys)
    assert found.end_ids == {260, 261, 263}  # "</s>" as a piece of HTML is not an end
    assert found.is_special(260)
    assert not found.is_special(0)


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS))
@given(st.text(st.sampled_from("aZ's09 \t\n\r!/_$<\x0b\x1c\x00"), max_size=40))
@settings(max_examples=30, deadline=None)
def test_both_regex_engines_cut_alike(pre: str, text: str) -> None:
    table = PRE_TOKENIZERS[pre]
    words = table.split(text)
    assert "".join(words) == text
    assert words == [word for word, _ in table._unicode.pre_tokenize_str(text)]


@cache
def any_text_tokenizer(folder: Path) -> Tokenizer:
    return tokenizer(folder, byte_level(MERGES))


@given(st.text())
@settings(max_examples=100, deadline=None)
def test_any_text_survives(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    found = any_text_tokenizer(tmp_path_factory.getbasetemp())
    try:
        text.encode()
    except UnicodeEncodeError:
        with pytest.raises(UsageError, match="lone surrogate"):
            found.encode(text)
        return
    assert found.decode(found.encode(text)) == text


PIECES = {"\u2581": -1.0, "a": -2.0, "b": -3.0, "\u2581a": -4.0, "ab": -5.0, "\u2581\u2581": -6.0}
FIRST = 3 + 256


def test_the_dummy_space(tmp_path: Path) -> None:
    found = tokenizer(tmp_path, sentencepiece(PIECES))
    space_a, spaces = FIRST + 3, FIRST + 5
    assert found.encode("") == [1]
    assert found.encode("a") == [1, space_a]
    assert found.encode("<s>a", special=True) == [1, space_a]
    assert found.encode("<s> a", special=True) == [1, FIRST, space_a]
    assert found.encode(" ", bos=False) == [spaces]
    assert found.decode([1, space_a]) == "a"
    assert found.decode([space_a], continuation=True) == " a"
    turns = found.encode("a b") + found.encode(" a", continuation=True)
    assert turns == found.encode("a b a")
    without = tokenizer(tmp_path, sentencepiece(PIECES, add_space_prefix=False))
    assert without.encode("a", bos=False) == [FIRST + 1]
    assert without.decode([space_a]) == " a"


def test_of_equal_tokens_the_first_encodes_and_all_decode(tmp_path: Path) -> None:
    found = tokenizer(tmp_path, byte_level([*MERGES, "h e"], {"h": NORMAL}))
    assert found.encode("hex") == [256, ord("x")]
    assert found.encode("h") == [ord("h")]
    assert [found.decode([id_]) for id_ in (256, 260, 261)] == ["he", "he", "h"]
    keys = byte_level(MERGES, {"<s>": CONTROL, "<t>": CONTROL})
    keys["tokenizer.ggml.tokens"][261] = "<s>"
    assert tokenizer(tmp_path, keys).encode("<s>", special=True) == [260]


def test_byte_fallback_and_unknown(tmp_path: Path) -> None:
    found = tokenizer(tmp_path, sentencepiece(PIECES, add_space_prefix=False))
    assert found.encode("\u00e9", bos=False) == [3 + 0xC3, 3 + 0xA9]
    assert found.decode([3 + 0xC3, 3 + 0xA9]) == "\u00e9"
    unknown = tokenizer(tmp_path, sentencepiece(PIECES, byte_tokens=False))
    assert unknown.encode("\u00e9", bos=False, continuation=True) == [0]
    nothing = tokenizer(tmp_path, sentencepiece(PIECES, byte_tokens=False, unknown=False))
    with pytest.raises(UsageError, match=r"U\+00E9"):
        nothing.encode("\u00e9", continuation=True)


@pytest.mark.parametrize("name", ["<0x-1>", "<0xZZ>", "<0x1>", "<0x0A>"])
def test_wrong_byte_tokens_are_refused(tmp_path: Path, name: str) -> None:
    keys = sentencepiece(PIECES)
    keys["tokenizer.ggml.tokens"][-1] = name
    types = [CONTROL] * 3 + [BYTE] * 256 + [NORMAL] * (len(PIECES) - 1) + [BYTE]
    keys["tokenizer.ggml.token_type"] = typed("[i32]", types)
    with pytest.raises(FormatError, match=rf"\b{FIRST + len(PIECES) - 1}\b.*{re.escape(name)}"):
        tokenizer(tmp_path, keys)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"model": "bert"}, UnsupportedError, "'bert'.*known are gpt2, llama"),
        ({"model": None}, FormatError, "tokenizer.ggml.model"),
        ({"pre": "nonsense"}, UnsupportedError, "'nonsense'.*qwen2, qwen35"),
        ({"merges": None}, FormatError, "merges is missing"),
        ({"merges": typed("[string]", [])}, FormatError, "merges is missing"),
        ({"tokens": None}, FormatError, "tokenizer.ggml.tokens"),
        ({"tokens": typed("[string]", [])}, FormatError, "tokens"),
        ({"token_type": typed("[i32]", [1, 1])}, FormatError, "2 entries.*260 tokens"),
        ({"token_type": typed("[i32]", [9] * 260)}, FormatError, "token 0 has the type 9"),
        ({"bos_token_id": 260}, FormatError, "bos_token_id.*at most 259"),
        ({"eot_token_id": -1}, FormatError, "eot_token_id"),
        ({"merges": 5}, FormatError, "merges"),
        ({"add_bos_token": True}, FormatError, "add_bos_token is true, but .*bos_token_id is miss"),
    ],
)
def test_damaged_keys(tmp_path: Path, change: dict, kind: type[DivineError], message: str) -> None:
    keys = byte_level(MERGES)
    for name, value in change.items():
        keys[f"tokenizer.ggml.{name}"] = value
    keys = {name: value for name, value in keys.items() if value is not None}
    with pytest.raises(kind, match=message) as caught:
        tokenizer(tmp_path, keys)
    assert "\n" not in str(caught.value)


def test_scores_are_needed(tmp_path: Path) -> None:
    keys = sentencepiece(PIECES)
    keys["tokenizer.ggml.scores"] = typed("[f32]", [0.0])
    with pytest.raises(FormatError, match="scores has 1 entries"):
        tokenizer(tmp_path, keys)
    del keys["tokenizer.ggml.scores"]
    with pytest.raises(FormatError, match="scores"):
        tokenizer(tmp_path, keys)


def test_odd_tokens_do_not_stop_a_file(tmp_path: Path) -> None:
    keys = byte_level([*MERGES, "q qq", "nospace"], {"": NORMAL})
    keys["tokenizer.ggml.tokens"] += ["x" * 100_000, b"\xff\xfe"]
    del keys["tokenizer.ggml.token_type"]
    found = tokenizer(tmp_path, keys)
    assert found.decode(found.encode("hello qqq")) == "hello qqq"
    assert found.token_bytes(found.vocabulary - 1) == b"\xff\xfe"


def test_ids_outside_the_vocabulary(tmp_path: Path) -> None:
    found = chatty(tmp_path)
    for id_ in (-1, found.vocabulary):
        with pytest.raises(UsageError, match=f"ids are 0 to {found.vocabulary - 1}"):
            found.decode([id_])
