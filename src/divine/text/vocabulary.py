"""The vocabulary of a GGUF file: token texts, their types, scores and the ids with a meaning.

Reads and checks the keys tokenizer.ggml.*; everything wrong there is found here, when the model is
loaded. How text is cut and merged into tokens is in bytelevel.py and sentencepiece.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from divine.errors import FormatError
from divine.gguf import Metadata, keys

# Texts that end a generation wherever they are a token, whatever the keys say; the last two lines
# are fill-in-the-middle's padding, repository and file separators.
_END_TEXTS = """
    <|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <end_of_turn> <|endoftext|> </s> <|eom_id|>
    <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response>
    <\uff5cend\u2581of\u2581sentence\uff5c> [e~[
    <|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD] <|fim_repo|> <|repo_name|> <fim-repo> <REPO>
    <reponame> <|file_sep|>
"""
END_TEXTS = frozenset(_END_TEXTS.split())
MAX_SPECIAL = 1 << 10  # characters of a token that text is searched for; real ones have up to 100
_PADDING_NAME = re.compile(r"\[PAD(\d+)\]")


class TokenType(IntEnum):
    """tokenizer.ggml.token_type."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_SEARCHED = (TokenType.CONTROL, TokenType.USER_DEFINED)


@dataclass(frozen=True)
class Vocabulary:
    """Token texts and types by id, and the special ids."""

    file: str
    texts: list[str]
    ids: dict[str, int]  # by text; of equal texts the first one counts
    raw: dict[int, bytes]  # bytes of the tokens whose text is not UTF-8
    types: list[int]
    odd: list[int]  # the tokens that are not NORMAL
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    end_ids: frozenset[int]
    kept_whole: frozenset[int]  # user-defined tokens that ordinary text is parsed for

    @classmethod
    def read(cls, metadata: Metadata, file: str, *, sentencepiece: bool) -> Vocabulary:
        """Raises FormatError naming the key, or the token's id, that is wrong."""
        texts = metadata.strings(keys.TOKENS)
        if not texts:
            raise FormatError(f"{file}: {keys.TOKENS} is empty; a vocabulary needs tokens")
        types = _types(metadata, file, texts)
        has_unknown = types[0] == TokenType.UNKNOWN
        defaults = (1, 2, 0 if has_unknown else None) if sentencepiece else (None, None, None)
        bos, eos, unknown = (
            _token_id(metadata, key, len(texts), default)
            for key, default in zip(
                (keys.BOS_ID, keys.EOS_ID, keys.UNKNOWN_ID), defaults, strict=True
            )
        )
        turn_ends = (
            _token_id(metadata, key, len(texts), None) for key in (keys.EOT_ID, keys.EOM_ID)
        )
        numbers = _numbers(texts)
        by_text = {numbers[text] for text in END_TEXTS if text in numbers}
        # A byte-level vocabulary may hold "</s>" as the HTML that it is; its own end is another.
        tag = numbers.get("</s>")
        if tag is not None and types[tag] == TokenType.NORMAL and eos is not None:
            by_text.discard(tag)
        ends = frozenset(by_text | {id_ for id_ in (eos, *turn_ends) if id_ is not None})
        template = metadata.str(keys.CHAT_TEMPLATE, "")
        odd: list[int] = np.flatnonzero(np.array(types) != TokenType.NORMAL).tolist()
        whole = frozenset(
            id_
            for id_ in odd
            if types[id_] == TokenType.USER_DEFINED
            and id_ not in ends
            and (not (text := texts[id_]).strip(" \t\r\n\u2581") or text not in template)
        )
        raw = _not_utf8(metadata, texts)
        return cls(file, texts, numbers, raw, types, odd, bos, eos, unknown, ends, whole)

    def __len__(self) -> int:
        return len(self.texts)

    def odd_of_type(self, *types: TokenType) -> dict[str, int]:
        """Text to first id of the tokens of these types, none of them NORMAL."""
        return {
            self.texts[id_]: id_
            for id_ in reversed(self.odd)
            if self.types[id_] in types and self.texts[id_] and id_ not in self.raw
        }


def _numbers(texts: list[str]) -> dict[str, int]:
    """The id of each text, the first one of equal texts."""
    ids = dict(zip(texts, range(len(texts)), strict=True))
    if len(ids) != len(texts):
        ids = dict(zip(reversed(texts), range(len(texts) - 1, -1, -1), strict=True))
    return ids


def _types(metadata: Metadata, file: str, texts: list[str]) -> list[int]:
    types = metadata.ints(keys.TOKEN_TYPES, default=None)
    if types is None:
        return [TokenType.NORMAL] * len(texts)
    if len(types) != len(texts):
        raise FormatError(
            f"{file}: {keys.TOKEN_TYPES} has {len(types)} entries; it must have one for each of "
            f"the {len(texts)} tokens"
        )
    if not set(types) <= set(TokenType):
        id_ = next(i for i, kind in enumerate(types) if kind not in set(TokenType))
        raise FormatError(
            f"{file}: token {id_} has the type {types[id_]} in {keys.TOKEN_TYPES}; types are 0 to 6"
        )
    for id_, kind in enumerate(types):
        if kind in _SEARCHED and len(texts[id_]) > MAX_SPECIAL:
            raise FormatError(
                f"{file}: token {id_} is a special one of {len(texts[id_])} characters; at most "
                f"{MAX_SPECIAL} are allowed"
            )
        # Older converters call the padding of the vocabulary user-defined; no text ever means it.
        if kind == 4 and (padding := _PADDING_NAME.fullmatch(texts[id_])):
            types[id_] = TokenType.UNUSED if padding[1] == str(id_) else kind
    return types


def _token_id(metadata: Metadata, key: str, size: int, default: int | None) -> int | None:
    if key not in metadata:
        return default if default is not None and default < size else None
    return metadata.int(key, minimum=0, maximum=size - 1)


def _not_utf8(metadata: Metadata, texts: list[str]) -> dict[int, bytes]:
    if "\ufffd" not in "".join(texts):
        return {}
    exact = metadata.strings_bytes(keys.TOKENS)
    return {
        id_: exact[id_]
        for id_, text in enumerate(texts)
        if "\ufffd" in text and exact[id_] != text.encode()
    }
