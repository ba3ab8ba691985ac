"""Byte-level BPE (GPT-2's way): text is cut into words, words into bytes, bytes merged into tokens.

Every byte is written as one printable character, so that tokens are strings (Radford et al. 2019).
Special tokens are cut out before; this module never sees them as text to encode.
"""

from __future__ import annotations

from divine.errors import FormatError
from divine.gguf import Metadata, keys
from divine.text.merge import PairMerger
from divine.text.pretokenize import PreTokenizer
from divine.text.vocabulary import TokenType, Vocabulary


def _byte_characters() -> str:
    """The character of each byte: itself where it is printable Latin-1, else from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (chr(code) for code in range(0x100, 0x200))
    return "".join(chr(byte) if byte in printable else next(others) for byte in range(256))


BYTE_CHARACTERS = _byte_characters()
_TO_CHARACTERS = {byte: ord(character) for byte, character in enumerate(BYTE_CHARACTERS)}
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
        self._ids = vocabulary.ids
        self._merger = PairMerger(
            self._ids,
            merge_ranks(metadata, vocabulary, hidden),
            " ",
            self._spell,
            to_characters,
            (lambda word: word not in hidden) if pre_tokenizer.ignore_merges else never,
        )

    def encode(self, text: str, *, start: bool) -> list[int]:
        """Token ids of ordinary text; the start of a text is like any other place."""
        return self._merger.encode(self._pre_tokenizer.split(text))

    def token_bytes(self, id_: int) -> bytes:
        """The bytes that a token which is not special stands for."""
        text = self._vocabulary.texts[id_]
        try:
            return text.translate(_TO_BYTES).encode("latin-1")
        except UnicodeEncodeError:  # not written in byte characters: the text as it is
            return text.encode()

    def _spell(self, piece: str) -> list[int]:
        """A merged piece that is no token: byte by byte."""
        try:
            return [self._ids[character] for character in piece]
        except KeyError as error:
            byte = _TO_BYTES[ord(error.args[0])]
            raise FormatError(
                f"{self._vocabulary.file}: the text cannot be tokenized; the vocabulary has no "
                f"token for the byte 0x{byte:02X}"
            ) from None


def to_characters(word: str) -> str:
    """The bytes of the word, each as its character."""
    return word.encode().decode("latin-1").translate(_TO_CHARACTERS)


def never(word: str) -> bool:
    """No word is taken whole."""
    return False


def merge_ranks(
    metadata: Metadata, vocabulary: Vocabulary, hidden: dict[str, int]
) -> dict[str, int]:
    """The merges in their order, without those that would make a hidden token out of plain text."""
    merges = metadata.strings(keys.MERGES, default=None)
    if not merges:
        raise FormatError(
            f"{vocabulary.file}: {keys.MERGES} is missing; a byte-pair tokenizer cannot work "
            "without its merges"
        )
    ranks = dict(zip(merges, range(len(merges)), strict=True))
    if len(ranks) != len(merges):  # of equal merges the first one counts
        ranks = dict(zip(reversed(merges), range(len(merges) - 1, -1, -1), strict=True))
    for text in hidden:
        for cut in range(1, len(text)) if len(text) < 200 else ():
            ranks.pop(f"{text[:cut]} {text[cut:]}", None)
    return ranks
