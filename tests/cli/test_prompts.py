"""Where prompts come from, and what is not UTF-8 (case T09)."""

from __future__ import annotations

import io
import os
import sys

import pytest

from divine.cli import prompts
from divine.errors import UsageError


class _Stdin:
    def __init__(self, data: bytes, terminal: bool = False) -> None:
        self.buffer = io.BytesIO(data)
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def test_argument_option_and_dash(monkeypatch):
    assert prompts.read_prompt("hi", None, None) == "hi"
    assert prompts.read_prompt(None, "hi", None) == "hi"
    for place in range(3):
        monkeypatch.setattr(sys, "stdin", _Stdin("ü\r\n".encode()))
        sources = [None, None, None]
        sources[place] = "-"
        assert prompts.read_prompt(*sources) == "ü\r\n"


def test_standard_input_when_nothing_is_given(monkeypatch):
    monkeypatch.setattr(sys, "stdin", _Stdin(b"text"))
    assert prompts.read_prompt(None, None, None) == "text"


def test_nothing_given_on_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stdin", _Stdin(b"", terminal=True))
    with pytest.raises(UsageError, match="no prompt; give PROMPT, -f FILE"):
        prompts.read_prompt(None, None, None)


def test_given_twice():
    with pytest.raises(UsageError, match="given by PROMPT and by -p"):
        prompts.read_prompt("hi", "ho", None)
    with pytest.raises(UsageError, match="standard input is given for the prompt and for -f"):
        prompts.read_prompt(None, "-", "-")


def test_a_file_follows_the_prompt(tmp_path, monkeypatch):
    (tmp_path / "text").write_bytes(b"\xef\xbb\xbfline\n")
    assert prompts.read_prompt("sum up:", None, str(tmp_path / "text")) == "sum up:\n\nline\n"
    for sources in (("sum up:", None, "-"), (None, "sum up:", "-")):
        monkeypatch.setattr(sys, "stdin", _Stdin(b"piped"))
        assert prompts.read_prompt(*sources) == "sum up:\n\npiped"
    monkeypatch.setattr(sys, "stdin", _Stdin(b"piped"))
    assert prompts.read_prompt("-", None, str(tmp_path / "text")) == "piped\n\nline\n"


@pytest.mark.parametrize(
    ("data", "at"),
    [
        (b"\xff\xfe\x41", 0),
        (b"\xc3\x28", 0),
        (b"ab\xed\xa0\x80", 2),  # a surrogate
        (b"\xff" * (1 << 20), 0),
        (b"\xef\xbb\xbfok \xe2\x82", 6),  # counted with the byte order mark, as an editor does
        ("é".encode() + b"\x80", 2),
    ],
)
def test_not_utf8(tmp_path, data, at):
    path = tmp_path / "prompt.txt"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=rf"prompt\.txt \(-f\) is not UTF-8 at byte {at}$"):
        prompts.read_prompt(None, None, str(path))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xef\xbb\xbfhi", "hi"),  # the mark is no text
        (b"\xef\xbb\xbf\xef\xbb\xbfhi", "\ufeffhi"),  # a second one is
        (b"a\0b", "a\0b"),
        (b"line\r\nline\r", "line\r\nline\r"),
        (b"", ""),
    ],
)
def test_what_is_text(tmp_path, data, text):
    path = tmp_path / "prompt.txt"
    path.write_bytes(data)
    assert prompts.read_prompt(None, None, str(path)) == text


def test_an_argument_that_is_not_utf8():
    argument = os.fsdecode("aé".encode() + b"\xff")
    with pytest.raises(UsageError, match="the prompt is not UTF-8 at byte 3"):
        prompts.read_prompt(argument, None, None)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UsageError, match="is a folder"):
        prompts.read_prompt(None, None, str(tmp_path))
    with pytest.raises(UsageError, match="no such file"):
        prompts.read_prompt(None, None, str(tmp_path / "none"))


def test_an_empty_argument_is_no_prompt():
    for given in (("", None), (None, "")):
        with pytest.raises(UsageError, match="PROMPT is empty"):
            prompts.read_prompt(*given, None)


def test_an_endless_file(monkeypatch):
    monkeypatch.setattr(prompts, "LIMIT", 1 << 20)
    with pytest.raises(UsageError, match="/dev/zero is longer than 1 MiB"):
        prompts.read_prompt(None, None, "/dev/zero")
