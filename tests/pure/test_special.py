"""Finding special tokens: against the definition, and with vocabularies made to be slow."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vocabularies import CONTROL, USER_DEFINED, byte_level, tokenizer

from divine.errors import FormatError
from divine.text import ChatTemplate, encode_chat
from divine.text.special import SpecialSplitter

SECONDS = 6.0  # far less is needed; the rest is for slow, shared machines
USER = [{"role": "user", "content": "<c7>" + "a" * 5000}]
MARK = "\ufdd1"

texts = st.text(st.sampled_from("ab<|]^-\\"), max_size=12)


def by_definition(ids: dict[str, int], text: str) -> list[str | int]:
    parts: list[str | int] = []
    plain = ""
    while text:
        found = max((t for t in ids if text.startswith(t)), key=len, default="")
        if found:
            parts += [plain, ids[found]] if plain else [ids[found]]
            plain = ""
        else:
            plain += text[0]
        text = text[len(found) or 1 :]
    return [*parts, plain] if plain else parts


@given(st.sets(texts.filter(bool), max_size=8), texts)
def test_leftmost_and_longest_first(tokens: set[str], text: str) -> None:
    ids = {token: id_ for id_, token in enumerate(sorted(tokens))}
    assert list(SpecialSplitter(ids).split(text)) == by_definition(ids, text)


@given(st.sets(texts.filter(lambda text: len(text) > 2), max_size=8), texts, texts)
def test_protected_texts_hold_no_token_even_when_joined(
    tokens: set[str], one: str, other: str
) -> None:
    splitter = SpecialSplitter(dict.fromkeys(tokens, 0))
    joined = splitter.protect(one, MARK) + splitter.protect(other, MARK)
    assert joined.replace(MARK, "") == one + other
    assert not any(token in joined for token in tokens)


@pytest.mark.parametrize(
    "special",
    [
        [f"<c{number}>" for number in range(100_000)],
        ["a" * length for length in range(2, 1024)],
        ["q" * 1000 + str(number) for number in range(1000)],
        [chr(0x4E00 + number) + chr(0x5E00 + number) for number in range(4000)],
    ],
    ids=["many", "prefixes", "long", "unlike"],
)
@pytest.mark.parametrize("kind", [CONTROL, USER_DEFINED])
def test_odd_vocabularies_take_no_time(tmp_path: Path, special: list[str], kind: int) -> None:
    keys = byte_level(["a b"], dict.fromkeys(special, kind))
    started = time.monotonic()
    found = tokenizer(tmp_path, keys)
    ids = encode_chat(found, ChatTemplate({"default": "{{ messages[0].content }}"}), USER)
    assert time.monotonic() - started < SECONDS
    assert found.decode(ids, special=True) == USER[0]["content"]


def test_tokens_of_absurd_length_are_refused(tmp_path: Path) -> None:
    keys = byte_level(["a b"], {"ab" * 50_000: CONTROL})
    with pytest.raises(FormatError, match="token 257 is a special one of 100000 characters"):
        tokenizer(tmp_path, keys)


def test_a_token_may_hold_what_protects(tmp_path: Path) -> None:
    found = tokenizer(tmp_path, byte_level(["a b"], {"xy": CONTROL, f"x{MARK}": CONTROL}))
    said = [{"role": "user", "content": "xy"}]
    ids = encode_chat(found, ChatTemplate({"default": "{{ messages[0].content }}"}), said)
    assert ids == [found.encode(letter)[0] for letter in "xy"]


def test_roles_stay_whole_where_their_letters_are_control_tokens(tmp_path: Path) -> None:
    found = tokenizer(tmp_path, byte_level(["a b"], {"use": CONTROL, "r": CONTROL}))
    template = ChatTemplate({"default": "{% if messages[0].role == 'user' %}a{% endif %}"})
    assert encode_chat(found, template, [{"role": "user", "content": "user"}]) == found.encode("a")
