"""What an endpoint makes of a job's events: the seam between answering and the APIs' shapes.

A Format is made for one request. Frames are (event name or None, JSON object); how they travel is
answering.py's business.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from divine.api import Completion
from divine.server.jobs import Ended, Piece
from divine.server.refusals import Refusal

Frame = tuple[str | None, Mapping[str, Any]]
# JSON leaves these as they are, but readers of event streams take them for line ends.
_LINE_ENDS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}


class Format(Protocol):
    """The shape of one request's answer."""

    end: bytes  # what follows the last frame

    def opening(self) -> list[Frame]:
        """Before any text."""

    def piece(self, piece: Piece) -> list[Frame]:
        """More of an answer."""

    def ended(self, ended: Ended) -> list[Frame]:
        """The end of an answer."""

    def closing(self, completions: Sequence[Completion]) -> list[Frame]:
        """After all answers, which are in order."""

    def failed(self, refusal: Refusal) -> Frame:
        """It broke in the middle."""

    def whole(self, completions: Sequence[Completion]) -> Mapping[str, Any]:
        """All answers at once, for who does not stream."""


def encode_json(value: Mapping[str, Any]) -> bytes:
    """One line of UTF-8, whatever the texts hold; lone surrogates stay escaped."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(_LINE_ENDS).encode("utf-8", "backslashreplace")


def encode_frame(frame: Frame) -> bytes:
    """An event of an event stream."""
    name, value = frame
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + encode_json(value) + b"\n\n"
