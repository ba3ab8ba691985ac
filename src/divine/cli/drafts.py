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

# Readable on light and on dark.
_HUES = {
    "ngram": "32", "text": "36", "table": "33", "mtp": "35", "model": "34", "forced": "31",
}  # fmt: skip
_OTHER = "32"  # of drafters for experiments
_AGREED = ";4"  # underlined: several drafters had proposed it


class DraftColours:
    """Writes chunks of an answer; remembers which drafters it has met, for the legend."""

    def __init__(self, *, wanted: bool = True) -> None:
        self._coloured = wanted and _takes_colours(sys.stdout)
        self._met: dict[str, None] = {}  # drafters whose colour was used, in the order met
        self._agreed = False  # a token with several drafters was met
        self._explained: tuple[int, bool] = (0, False)  # of these

    def write(self, chunk: Chunk) -> None:
        """The chunk's text to standard output."""
        if not self._coloured:
            write(chunk.text)
            return
        for drafters, spans in groupby(chunk.spans, key=lambda span: span.drafted_by):
            write("".join(span.text for span in spans), self._style(drafters))

    def legend(self) -> None:
        """Say on standard error what the colours mean, if there are new ones."""
        known = (len(self._met), self._agreed)
        if known == self._explained:
            return
        self._explained = known
        coloured = _takes_colours(sys.stderr)
        names = [
            f"\x1b[{self._style([name])}m{name}\x1b[0m" if coloured else name for name in self._met
        ]
        agreed = ", underlined if others had guessed it, too" if self._agreed else ""
        note(f"[drafted by {', '.join(names)}{agreed}; the rest by nobody]")

    def _style(self, drafters: Sequence[str]) -> str:
        """Parameters of the escape sequence; "" for tokens that nobody had drafted."""
        if not drafters:
            return ""
        self._met.setdefault(drafters[0])
        self._agreed = self._agreed or len(drafters) > 1
        return _HUES.get(drafters[0], _OTHER) + (_AGREED if len(drafters) > 1 else "")


def _takes_colours(stream: TextIO | None) -> bool:
    if stream is None or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()
