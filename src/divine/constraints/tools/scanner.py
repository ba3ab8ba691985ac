"""Where a JSON object that comes in pieces ends, without reading it twice.

Counts brackets outside strings; whether the object is valid JSON is for a parser to say.
"""

from __future__ import annotations

import re

# What matters next: outside a string brackets and quotes, in a string its end and escapes.
_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')


class ObjectScanner:
    """Feed it the text from the object's brace on."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> int | None:
        """Just behind the object's end in this piece; None if it goes on."""
        at = 0
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            found = (_INSIDE if self._in_string else _OUTSIDE).search(text, at)
            if found is None:
                return None
            at = found.end()
            mark = found.group()
            if mark == "\\":
                self._escaped = True
            elif mark == '"':
                self._in_string = not self._in_string
            else:
                self._depth += 1 if mark in "{[" else -1
                if self._depth <= 0:
                    return at
        return None
