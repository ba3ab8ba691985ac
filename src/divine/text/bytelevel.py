"""Byte-level BPE (GPT-2's way): text is cut into words, words into bytes, bytes merged into tokens.

Every byte is written as one printable character, so that tokens are strings (Radford et al. 2019).
Special tokens are cut out before; this module never sees them as text to encode.
"""

from __future__ import annotations

from divine.backends.cpu import _native
from divine.errors import FormatError
from divine.gguf import Metadata, keys
from divine.text.pretokenize import PreTokenizer
from divine.text.vocabulary import TokenType, Vocabulary

NO_TOKEN = -1


def _byte_characters() -> str:
    """The character of each byte: itself where it is printable Latin-1, else from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (chr(code) for code in range(0x100, 0x200))
    return "".join(chr(byte) if byte in printable else next(others) for byte in range(256))


BYTE_CHARACTERS = _byte_characters()
_TO_BYTES = {ord(character): byte for byte, character in enumerate(BYTE_CHARACTERS)}


class ByteLevelBPE:
    """tokenizer.ggml.model "gpt2"."""

    def __init__(
        self, metadata: Metadata, vocabulary: Vocabulary, pre_tokenizer: PreTokenizer
    ) -> None:
        """Raises FormatError if the merges are missing."""
        self._vocabulary = vocabulary
        self._pre_tokenizer = pre_tokenizer
        hidden = vocabulary.odd_of_type(TokenType.CONTROL, TokenType.UNUSED, TokenType.UNKNOWN)
        whole = pre_tokenizer.ignore_merges
        self._merger = _native.Merger(
            vocabulary.texts,
            merges=merges(metadata, vocabulary),
            ranks=[],
            barred=[*hidden],
            letters=[*BYTE_CHARACTERS],
            bytes=[],
            unknown=NO_TOKEN,
            wholes=[id_ for text, id_ in vocabulary.ids.items() if text not in hidden] * whole,
        )

    def encode(self, text: str, *, start: bool) -> list[int]:
        """Token ids of ordinary text; the start of a text is like any other place.

        Raises FormatError for a byte that the vocabulary has no token for.
        """
        ids, missing = self._merger.encode(self._pre_tokenizer.split(text))
        for letter in missing.decode():
            if letter not in self._vocabulary.ids:
                raise FormatError(
                    f"{self._vocabulary.file}: the text cannot be tokenized; the vocabulary has no "
                    f"token for the byte 0x{_TO_BYTES[ord(letter)]:02X}"
                )
        return ids

    def token_bytes(self, id_: int) -> bytes:
        """The bytes that a token which is not special stands for."""
        text = self._vocabulary.texts[id_]
        try:
            return text.translate(_TO_BYTES).encode("latin-1")
        except UnicodeEncodeError:  # not written in byte characters: the text as it is
            return text.encode()


def merges(metadata: Metadata, vocabulary: Vocabulary) -> bytes:
    """The merges "left right" in their order, packed. Raises FormatError if there are none."""
    found = metadata.strings_packed(keys.MERGES, default=None)
    if not found:
        raise FormatError(
            f"{vocabulary.file}: {keys.MERGES} is missing; a byte-pair tokenizer cannot work "
            "without its merges"
        )
    return found
