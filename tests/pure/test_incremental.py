"""Incremental decoding: never half a character, and in sum what decoding at once gives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from divine.text import IncrementalDecoder

# Tokens of one to three bytes, cut without regard to characters.
PIECES = st.lists(st.binary(max_size=3))
TEXT_IN_PIECES = st.text().map(lambda text: text.encode("utf-8", "ignore"))


def decode(pieces: list[bytes], **options: bool) -> tuple[list[str], str]:
    decoder = IncrementalDecoder(pieces.__getitem__, **options)
    return [decoder.push(i) for i in range(len(pieces))], decoder.finish()


@given(PIECES)
def test_the_sum_is_decoding_at_once(pieces: list[bytes]) -> None:
    shown, rest = decode(pieces)
    assert "".join(shown) + rest == b"".join(pieces).decode("utf-8", "replace")
    assert rest in ("", "\ufffd")


@given(TEXT_IN_PIECES, st.integers(1, 3))
def test_valid_text_never_shows_a_replacement(data: bytes, size: int) -> None:
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    shown, rest = decode(pieces)
    assert "".join(shown) == data.decode()
    assert rest == ""


def test_a_bad_byte_does_not_stall_what_follows() -> None:
    shown, rest = decode([b"\xf0\x9f", b"x", b"\xa6", b"ok"])
    assert shown == ["", "\ufffdx", "\ufffd", "ok"]
    assert rest == ""


def test_only_the_very_first_space_is_dropped() -> None:
    assert decode([b"", b" a", b" b"], drop_space=True) == (["", "a", " b"], "")
    assert decode([b"  a"], drop_space=True) == ([" a"], "")
    assert decode([b"a", b" b"], drop_space=True) == (["a", " b"], "")
    assert decode([b" a"]) == ([" a"], "")


def test_finish_leaves_a_fresh_decoder() -> None:
    decoder = IncrementalDecoder([b"\xf0", b"a"].__getitem__)
    assert decoder.push(0) == ""
    assert decoder.finish() == "\ufffd"
    assert decoder.push(1) == "a"
    assert decoder.finish() == ""


def test_an_incomplete_character_is_told() -> None:
    decoder = IncrementalDecoder([b"\xc3", b"\xa9", b"a\xc3"].__getitem__)
    seen = [decoder.complete]
    for id_ in (0, 1, 2, 1):
        decoder.push(id_)
        seen.append(decoder.complete)
    assert seen == [True, False, True, False, True]
