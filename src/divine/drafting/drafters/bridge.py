"""Text between two vocabularies: the draft model's tokens of a text that the target's tokens tell.

Follows the target's tokens as bytes and keeps the draft's tokens up to a place where cutting cannot
matter; only what comes after is encoded again. Turns drafted tokens back into the target's. How the
seams fall can change how good a draft is, and never a text. Knows tokenizers, no models.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from itertools import takewhile

import numpy as np

from divine.errors import FormatError, UsageError
from divine.text import Tokenizer

TAIL = 256  # characters that may be encoded again for each proposal
KEPT_BACK = 64  # of them stay open when the rest is settled
_WORD_BREAK = re.compile(r"(?<=[^\W_]) (?=[^\W_])")  # no pre-tokenizer joins across it
_PROBE = 'Text 42 (x, y): "naïve" → 漢字\n\tif a[0] != {b}:\n\n        return 3.14\n'


def check_bridge(target: Tokenizer, draft: Tokenizer, target_file: str, draft_file: str) -> None:
    """Raise UsageError unless both tokenizers can write any text."""
    for tokenizer, file in ((target, target_file), (draft, draft_file)):
        try:
            able = tokenizer.decode(tokenizer.encode(_PROBE, bos=False)) == _PROBE
        except FormatError:  # a byte without a token
            able = False
        if not able:
            raise UsageError(
                f"{draft_file} cannot draft for {target_file}: their vocabularies differ, and "
                f"{file} cannot write every text, which drafting across vocabularies needs"
            )


class TextBridge:
    """One text in both vocabularies."""

    def __init__(self, target: Tokenizer, draft: Tokenizer) -> None:
        self._target = target
        self._draft = draft
        self._decoder = target.decoder(special=True)
        self._read = 0  # tokens of the target that have become text
        self._tail = ""  # text that is not settled
        self._begun = False  # something was settled
        self.settled: list[int] = []  # draft tokens that will not change any more

    def follow(self, tokens: Sequence[int]) -> list[int] | None:
        """Draft tokens of the target's text; None while it ends within a character.

        The tokens may only grow from call to call. The first len(self.settled) stay.
        """
        for index in range(self._read, len(tokens)):
            token = tokens[index]
            if index == 0 and token == self._target.bos_id and not self._known(token):
                continue  # the draft begins texts in its own way
            self._tail += self._decoder.push(token)
        self._read = len(tokens)
        if not self._decoder.complete:
            return None
        while len(self._tail) > TAIL and self._settle():
            pass
        return self.settled + self._encode(self._tail)

    def draft_of(
        self, guesses: Sequence[int], claims: Sequence[float]
    ) -> tuple[list[int], list[float]]:
        """The target's tokens of drafted tokens, with claims, as far as they are text.

        A guess counts for the token in which its first byte lies. The last token is left out since
        it could be the beginning of a longer one.
        """
        parts = [self._draft.token_bytes(guess) for guess in guesses]
        utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        pieces = takewhile(lambda piece: "\ufffd" not in piece, map(utf8.decode, parts))
        written = "".join(pieces)
        ids = self._target.encode(written, continuation=True)
        lengths = [len(self._target.token_bytes(id_)) for id_ in ids]
        if sum(lengths) != len(written.encode()):  # a tokenizer that changes text
            return [], []
        found = [1.0] * len(ids)
        ends = np.cumsum(lengths)
        start = 0
        for part, claim in zip(parts, claims, strict=True):
            index = int(np.searchsorted(ends, start, side="right"))
            if index < len(ids):
                found[index] *= claim
            start += len(part)
        return ids[:-1], found[:-1]

    def _known(self, token: int) -> bool:
        """The draft has a special token of that text too."""
        return self._target.token_text(token) in self._draft.specials.texts

    def _encode(self, text: str) -> list[int]:
        # Special texts are parsed: both models may have the same chat markers.
        return self._draft.encode(text, special=True, continuation=self._begun)

    def _settle(self) -> bool:
        """Settle the tail up to its last safe cut; False if it has none."""
        cut = -1
        for match in _WORD_BREAK.finditer(self._tail, 1, len(self._tail) - KEPT_BACK):
            cut = match.start()
        if cut < 0:
            cut = self._tail.rfind("\n", 1, len(self._tail) - KEPT_BACK)
        if cut < 0:
            return False
        self.settled += self._encode(self._tail[:cut])
        self._begun = True
        self._tail = self._tail[cut:]
        return True
