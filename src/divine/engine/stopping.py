"""Where an answer ends: stop strings that may span tokens, with hold-back.

Text that could still turn into a stop string is held back until it is decided; nothing of a stop
string leaks and nothing before it is lost. Knows characters only, no tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from divine.errors import UsageError


class StopStrings:
    """Watches the text of one sequence for the earliest of some strings."""

    def __init__(self, stops: Sequence[str] | str) -> None:
        """Raises UsageError for what is no string, empty, or could never be in a text."""
        given: Sequence[object] = (stops,) if isinstance(stops, str) else stops
        for stop in given:
            if not isinstance(stop, str) or not stop:
                raise UsageError(f"stop has {stop!r}; allowed are strings that are not empty")
            if any("\ud800" <= character <= "\udfff" for character in stop):
                raise UsageError(f"stop has {stop!r}, with a lone surrogate; no text has one")
        self._stops = tuple(str(stop) for stop in given)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.found: str | None = None  # the one that was completed

    def push(self, piece: str) -> tuple[str, bool]:
        """Text that may be shown now, and whether a stop string was completed.

        If several were completed by this piece, the text ends before the one that begins first.
        """
        if not self._stops or not piece:
            return piece, False
        text = self._held + piece
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self._held = ""
            start, self.found = min(found)
            return text[:start], True
        keep = self._possible_start(text)
        self._held = text[keep:]
        return text[:keep], False

    def finish(self) -> str:
        """What was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held

    def _possible_start(self, text: str) -> int:
        """Where the earliest unfinished stop string may begin; the length of text if nowhere."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            rest = text[start:]
            if any(stop.startswith(rest) for stop in self._stops):
                return start
        return len(text)
