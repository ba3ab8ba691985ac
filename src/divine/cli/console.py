"""Writing for people and for programs: sentences, figures, JSON, and text of unknown origin.

Standard library only, since every command needs it and help must be instant.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Mapping
from typing import Any

# Control characters could move the cursor or retitle the window; shown as their Unicode pictures.
_CONTROLS = {code: 0x2400 + code for code in range(32) if code not in (9, 10)}
_CONTROLS |= {127: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def complain(sentence: str) -> None:
    """One line on standard error, from `divine:`."""
    note(f"divine: {printable(sentence)}")


def note(line: str) -> None:
    """A line on standard error; a closed standard error is nobody's problem."""
    if sys.stderr is None:  # print would take standard output
        return
    try:
        print(line.encode("utf-8", "backslashreplace").decode(), file=sys.stderr, flush=True)  # noqa: T201
    except (OSError, UnicodeEncodeError):
        return


def prepare_output() -> None:
    """Make standard output take any text: answers are UTF-8 whatever the locale says."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is None:
            continue
        if stream.isatty():
            reconfigure(errors="replace")  # the terminal's own encoding
        else:
            reconfigure(encoding="utf-8", errors="replace")


def write(text: str, style: str = "") -> None:
    """Text to standard output at once; control characters are made visible on a terminal.

    `style`: parameters of the escape sequence that colours it ("" for none), for terminals only.
    """
    if sys.stdout.isatty():
        text = text.translate(_CONTROLS)
    sys.stdout.write(f"\x1b[{style}m{text}\x1b[0m" if style and text else text)
    sys.stdout.flush()


def printable(text: str) -> str:
    """`text` in one line, with everything that a terminal could obey or not show escaped."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def print_json(value: Any) -> None:
    """One JSON document on standard output, valid whatever strings and numbers it holds."""
    sys.stdout.write(json.dumps(jsonable(value), ensure_ascii=False, allow_nan=False) + "\n")


def jsonable(value: Any) -> Any:
    """`value` with NaN and infinities as strings, lone surrogates escaped, bytes as text."""
    if isinstance(value, Mapping):
        return {jsonable(str(key)): jsonable(item) for key, item in value.items()}
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if hasattr(value, "tolist"):  # NumPy's numbers and arrays
        return jsonable(value.tolist())
    return value


def columns_left(taken: int) -> int | None:
    """What a terminal's line has left before it wraps; None if the output is no terminal."""
    if not sys.stdout.isatty():
        return None
    return max(20, shutil.get_terminal_size().columns - taken)


def gigabytes(nbytes: float) -> str:
    """A size in the decimal units that disks and memory bandwidth are given in."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.{2 if unit == 'GB' else 1}f} {unit}"
    return f"{nbytes:.0f} B"
