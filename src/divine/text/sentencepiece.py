"""SentencePiece BPE (Kudo and Richardson 2018) and its merge-list cousin of Gemma 4.

Spaces are written U+2581 and characters merged by the score of the piece they make, or by the rank
in a merge list; what is no piece falls back to tokens of single bytes, then to the unknown token.
Special tokens are cut out before.
"""

from __future__ import annotations

import re

from divine.backends.cpu import _native
from divine.errors import FormatError, UsageError
from divine.gguf import Metadata, keys
from divine.text.bytelevel import NO_TOKEN, merges
from divine.text.vocabulary import TokenType, Vocabulary

SPACE = "\u2581"
_BYTE_NAME = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# A word begins where spaces do; no piece reaches over its end (checked when a vocabulary is read).
_WORDS = re.compile(f"{SPACE}+[^{SPACE}]*|[^{SPACE}]+")
_LINES_AND_WORDS = re.compile(f"\n+|{SPACE}+[^{SPACE}\n]*|[^{SPACE}\n]+")
_LINES = re.compile("\n+|[^\n]+")


class SentencePieceBPE:
    """tokenizer.ggml.model "llama" (pieces with scores) and "gemma4" (a merge list)."""

    def __init__(self, metadata: Metadata, vocabulary: Vocabulary, *, scored: bool) -> None:
        """Raises FormatError if scores or merges are missing, or a byte token is wrong."""
        self._vocabulary = vocabulary
        bytes_ = _byte_tokens(vocabulary)
        self._byte_of = {id_: byte for byte, id_ in bytes_.items()}
        self._space_prefix = metadata.bool(keys.ADD_SPACE_PREFIX, scored)
        hidden = vocabulary.odd_of_type(
            TokenType.CONTROL, TokenType.UNUSED, TokenType.UNKNOWN, TokenType.BYTE
        )
        texts = ["" if text in hidden else text for text in vocabulary.texts]
        separate = not re.search(f"[^{SPACE}\0]{SPACE}", "\0".join(texts))
        if scored:
            self._words = _WORDS if separate else None
        else:
            self._words = _LINES_AND_WORDS if separate else _LINES
        unknown = vocabulary.unknown_id
        self._merger = _native.Merger(
            texts,
            merges=b"" if scored else merges(metadata, vocabulary),
            ranks=_score_ranks(metadata, vocabulary) if scored else [],
            barred=[*hidden],
            letters=[],
            bytes=[bytes_.get(byte, NO_TOKEN) for byte in range(256)],
            unknown=NO_TOKEN if unknown is None else unknown,
            wholes=[] if scored else [i for i, text in enumerate(texts) if text[:1] == "\n"],
        )

    @property
    def space_prefix(self) -> bool:
        """Whether the start of a text gets a space that is not in it."""
        return self._space_prefix

    def encode(self, text: str, *, start: bool) -> list[int]:
        """Token ids of ordinary text; `start` adds the file's dummy space, if it has one.

        Raises UsageError for a character that the vocabulary cannot write.
        """
        if start and self._space_prefix:
            text = " " + text
        text = text.replace(" ", SPACE)
        words = [text] if self._words is None else self._words.findall(text)
        ids, missing = self._merger.encode(words)
        if missing:
            piece = missing.decode()
            raise UsageError(
                f"{self._vocabulary.file}: the text cannot be tokenized; the vocabulary has "
                f"neither {piece!r} (U+{ord(piece[0]):04X}) nor byte tokens nor an unknown token"
            )
        return ids

    def token_bytes(self, id_: int) -> bytes:
        """The bytes that a token which is not special stands for."""
        byte = self._byte_of.get(id_)
        if byte is not None:
            return bytes([byte])
        return self._vocabulary.texts[id_].replace(SPACE, " ").encode()


def _byte_tokens(vocabulary: Vocabulary) -> dict[int, int]:
    """Byte to token id. Raises FormatError for a byte token that is none, or is there twice."""
    tokens: dict[int, int] = {}
    for id_, kind in enumerate(vocabulary.types):
        if kind != TokenType.BYTE:
            continue
        name = vocabulary.texts[id_]
        match = _BYTE_NAME.fullmatch(name)
        if match is None:
            raise FormatError(
                f"{vocabulary.file}: token {id_} is a byte token named {name[:40]!r}; "
                "such a name must be <0x00> to <0xFF>"
            )
        byte = int(match[1], 16)
        if byte in tokens:
            raise FormatError(
                f"{vocabulary.file}: tokens {tokens[byte]} and {id_} are both the byte token "
                f"{name}; there must be one for each byte"
            )
        tokens[byte] = id_
    return tokens


def _score_ranks(metadata: Metadata, vocabulary: Vocabulary) -> list[int]:
    """Rank of each token: 0 for the highest score, equal scores share a rank."""
    scores = metadata.floats(keys.TOKEN_SCORES)
    if len(scores) != len(vocabulary):
        raise FormatError(
            f"{vocabulary.file}: {keys.TOKEN_SCORES} has {len(scores)} entries; it must have one "
            f"for each of the {len(vocabulary)} tokens"
        )
    order = {score: rank for rank, score in enumerate(sorted(set(scores), reverse=True))}
    return [order[score] for score in scores]
