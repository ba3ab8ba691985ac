"""Where a prompt comes from: an argument, a file or standard input; strictly UTF-8.

A byte order mark at the start is dropped (it marks the encoding and is no text); NUL and all other
characters are text. Line ends stay as they are.

Standard input is only read when it is asked for or nothing else is given: what a program inherits
may be a pipe that never ends, or the lines that a shell's loop is about to read.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import BinaryIO

from divine.cli.console import note
from divine.errors import UsageError

LIMIT = 64 << 20  # bytes; far above any context, far below memory: /dev/zero ends here
_BOM = b"\xef\xbb\xbf"


def read_prompt(argument: str | None, option: str | None, file: str | None) -> str:
    """The prompt; "-" stands for standard input, which is also read when nothing else is given.

    The text of a file beside a prompt follows it after an empty line. Raises UsageError when there
    is none, more than one prompt, or bytes that are not UTF-8.
    """
    if argument is not None and option is not None:
        raise UsageError("the prompt is given by PROMPT and by -p; give it once")
    text = argument if argument is not None else option
    if text is None or file is None:
        if text not in (None, "-") and _waits():
            note("divine: the text on standard input is not read; -f - puts it after the prompt")
        return _read(text, file)
    if text == file == "-":
        raise UsageError("standard input is given for the prompt and for -f; give it once")
    return _read(text, None) + "\n\n" + _read(None, file)


def _read(text: str | None, file: str | None) -> str:
    if text == "":  # such as "$UNSET" of a script
        raise UsageError("PROMPT is empty; give a text there, -f FILE, or text on standard input")
    if text is not None and text != "-":
        return _checked_argument(text)
    if file is not None and file != "-":
        return read_text(Path(file), "-f")
    asked_for = "-" in (text, file)
    if not asked_for and (sys.stdin is None or sys.stdin.isatty()):
        raise UsageError("no prompt; give PROMPT, -f FILE, or text on standard input")
    data = _limited(sys.stdin.buffer, "standard input")
    if not asked_for and not data:  # such as /dev/null of a script: nobody meant to ask nothing
        raise UsageError("standard input is empty; give PROMPT, -f FILE, or text there")
    return _decode(data, "standard input")


def _waits() -> bool:
    """Whether text is already there on standard input, as `cat FILE | divine run` sends it."""
    import fcntl
    import termios

    try:
        descriptor = sys.stdin.fileno()
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return False
        count = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))
    except (AttributeError, OSError, ValueError):  # no file at all
        return False
    return any(count)


def _checked_argument(text: str) -> str:
    # Bytes that are not UTF-8 arrive from the operating system as lone surrogates.
    try:
        text.encode()
    except UnicodeEncodeError as error:
        at = len(text[: error.start].encode())
        raise UsageError(f"the prompt is not UTF-8 at byte {at}") from error
    return text


def read_text(path: Path, option: str) -> str:
    """The text of a file that `option` named. Raises UsageError if it has none."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder; {option} takes a text file")
    try:
        with path.open("rb") as stream:
            return _decode(_limited(stream, str(path)), f"{path} ({option})")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{path} ({option}): {reason}") from error
    except ValueError as error:  # a NUL in the name
        raise UsageError(f"{str(path)!r} is not a file name") from error


def _limited(stream: BinaryIO, name: str) -> bytes:
    data = stream.read(LIMIT + 1)
    if len(data) > LIMIT:
        raise UsageError(f"{name} is longer than {LIMIT >> 20} MiB, which no context holds")
    return data


def _decode(data: bytes, name: str) -> str:
    skipped = len(_BOM) if data.startswith(_BOM) else 0
    try:
        return data[skipped:].decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8 at byte {error.start + skipped}") from error
