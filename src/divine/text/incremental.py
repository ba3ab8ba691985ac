"""Decoding token by token: text comes out as soon as its characters are complete.

Never shows half a character; what cannot become one any more is U+FFFD at once, an incomplete tail
is one U+FFFD at the end. The pieces joined are what decoding all ids at once gives.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable


class IncrementalDecoder:
    """Ids in, text out; made by Tokenizer.decoder()."""

    def __init__(self, token_bytes: Callable[[int], bytes], *, drop_space: bool = False) -> None:
        """`drop_space`: the first space is the tokenizer's own, if it is the very first byte."""
        self._token_bytes = token_bytes
        self._drop_space = drop_space
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id_: int) -> str:
        """The text that this token completes, often "". Raises UsageError for an unknown id."""
        data = self._token_bytes(id_)
        if data and self._drop_space:
            data = data.removeprefix(b" ")
            self._drop_space = False
        return self._utf8.decode(data)

    @property
    def complete(self) -> bool:
        """No character is half read."""
        return not self._utf8.getstate()[0]

    def finish(self) -> str:
        """U+FFFD if a character was left incomplete, else ""."""
        text = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return text
