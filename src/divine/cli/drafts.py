"""Text coloured by who had drafted it, for --show-drafts.

On a terminal that may be coloured (no NO_COLOR in the environment); elsewhere text stays plain.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import groupby
from typing import TextIO

from divine.api import Chunk
from divine.cli.console import note, write

_HUES = ("32", "36", "35", "34", "31", "33")  # readable on light and on dark
_AGREED = ";4"  # underlined: several drafters had proposed it


class DraftColours:
    """Writes chunks of an answer; remembers which drafters it has met, for the legend."""

    def __init__(self, *, wanted: bool = True) -> None:
        self._coloured = wanted and _takes_colours(sys.stdout)
        self._hues: dict[str, str] = {}  # drafter -> colour, in the order met
        self._met: dict[tuple[str, ...], None] = {}
        self._explained = 0  # of those met

    def write(self, chunk: Chunk) -> None:
        """The chunk's text to standard output."""
        if not self._coloured:
            write(chunk.text)
            return
        for drafters, spans in groupby(chunk.spans, key=lambda span: span.drafted_by):
            write("".join(span.text for span in spans), self._style(drafters))

    def legend(self) -> None:
        """Say on standard error what the colours mean, if there are new ones."""
        if len(self._met) == self._explained:
            return
        self._explained = len(self._met)
        coloured = _takes_colours(sys.stderr)
        names = []
        for drafters in self._met:
            name = "+".join(drafters)
            names.append(f"\x1b[{self._style(drafters)}m{name}\x1b[0m" if coloured else name)
        note("[drafted by " + ", ".join(names) + "; the rest by nobody]")

    def _style(self, drafters: Sequence[str]) -> str:
        """Parameters of the escape sequence; "" for tokens that nobody had drafted."""
        if not drafters:
            return ""
        self._met.setdefault(tuple(drafters))
        for name in drafters:
            self._hues.setdefault(name, _HUES[len(self._hues) % len(_HUES)])
        return self._hues[drafters[0]] + (_AGREED if len(drafters) > 1 else "")


def _takes_colours(stream: TextIO | None) -> bool:
    if stream is None or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()
