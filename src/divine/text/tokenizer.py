"""Text to token ids and back, as the metadata of a GGUF file says.

Decides which model and pre-tokenizer is meant, where special tokens are parsed, and where one BOS
goes. Does not know chat templates (template.py) nor which tokens may follow.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Protocol

from divine.errors import FormatError, UnsupportedError, UsageError
from divine.gguf import Metadata, keys
from divine.text.bytelevel import ByteLevelBPE
from divine.text.incremental import IncrementalDecoder
from divine.text.pretokenize import pre_tokenizer
from divine.text.sentencepiece import SentencePieceBPE
from divine.text.special import SpecialSplitter
from divine.text.vocabulary import TokenType, Vocabulary

MODELS = ("gpt2", "llama", "gemma4")


class _Model(Protocol):
    def encode(self, text: str, *, start: bool) -> list[int]: ...

    def token_bytes(self, id_: int) -> bytes: ...


class Tokenizer:
    """One vocabulary with its way of cutting and merging. Safe to share between threads."""

    def __init__(
        self, vocabulary: Vocabulary, model: _Model, *, add_bos: bool, space_prefix: bool
    ) -> None:
        self._vocabulary = vocabulary
        self._model = model
        self._space_prefix = space_prefix
        self.adds_bos = add_bos and vocabulary.bos_id is not None
        self._plain = SpecialSplitter({vocabulary.texts[id_]: id_ for id_ in vocabulary.kept_whole})

    @classmethod
    def from_metadata(cls, metadata: Metadata, file: str = "the model file") -> Tokenizer:
        """Raises FormatError for damaged keys, UnsupportedError for an unknown tokenizer."""
        found = cls._read(metadata, file)
        if metadata.bool(keys.ADD_BOS, False) and found.bos_id is None:
            raise FormatError(f"{file}: {keys.ADD_BOS} is true, but {keys.BOS_ID} is missing")
        return found

    @classmethod
    def _read(cls, metadata: Metadata, file: str) -> Tokenizer:
        name = metadata.str(keys.TOKENIZER_MODEL)
        if name == "gpt2":
            pre = pre_tokenizer(metadata.str(keys.TOKENIZER_PRE, "default"), file)
            vocabulary = Vocabulary.read(metadata, file, sentencepiece=False)
            model: _Model = ByteLevelBPE(metadata, vocabulary, pre)
            add_bos = metadata.bool(keys.ADD_BOS, pre.add_bos)
            return cls(vocabulary, model, add_bos=add_bos, space_prefix=False)
        if name in MODELS:
            vocabulary = Vocabulary.read(metadata, file, sentencepiece=name == "llama")
            pieces = SentencePieceBPE(metadata, vocabulary, scored=name == "llama")
            # Gemma 4 is never without BOS, whatever early files say.
            add_bos = name == "gemma4" or metadata.bool(keys.ADD_BOS, True)
            return cls(vocabulary, pieces, add_bos=add_bos, space_prefix=pieces.space_prefix)
        raise UnsupportedError(
            f"{file}: the tokenizer model {name[:80]!r} (tokenizer.ggml.model) is not supported; "
            f"known are {', '.join(MODELS)}"
        )

    @property
    def vocabulary(self) -> int:
        """Number of tokens; ids are below it."""
        return len(self._vocabulary)

    @property
    def bos_id(self) -> int | None:
        """The token that begins a text."""
        return self._vocabulary.bos_id

    @property
    def eos_id(self) -> int | None:
        """The token that ends a text, as the file says; see end_ids."""
        return self._vocabulary.eos_id

    @property
    def end_ids(self) -> frozenset[int]:
        """All tokens that end a generation: eos, end of turn, and what is known by its text."""
        return self._vocabulary.end_ids

    def is_special(self, id_: int) -> bool:
        """Whether the token is a control, unknown or unused one: no part of the text."""
        self._check(id_)
        kind = self._vocabulary.types[id_]
        return kind in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.UNUSED)

    def special_id(self, text: str) -> int | None:
        """The control or user-defined token of this text; None if there is none."""
        return self._parsed.get(text)

    def shared_ids(self, other: Tokenizer) -> int | None:
        """How many ids, from 0 on, mean the same token in both; None if the vocabularies differ.

        They may differ in length by tokens that are no part of a text, and in how unused ids are
        called. Types are not compared: files disagree about them for the same model family.
        """
        mine, theirs = self._vocabulary, other._vocabulary
        shared = min(len(mine), len(theirs))
        longer = self if len(mine) > shared else other
        if not all(longer.is_special(id_) for id_ in range(shared, longer.vocabulary)):
            return None
        if mine.texts[:shared] == theirs.texts[:shared]:
            return shared
        unused = TokenType.UNUSED
        for id_ in range(shared):
            if mine.texts[id_] != theirs.texts[id_] and not (
                mine.types[id_] == unused or theirs.types[id_] == unused
            ):
                return None
        return shared

    def encode(
        self,
        text: str,
        *,
        special: bool = False,
        bos: bool | None = None,
        continuation: bool = False,
    ) -> list[int]:
        """The ids of the text.

        `special` parses the texts of control and user-defined tokens; without it they are ordinary
        text, but for user-defined tokens that are ordinary (runs of spaces, HTML tags: those that
        neither the chat template uses nor end a generation). Unused tokens are never parsed.
        `bos` None is what the file says; a text that begins with a parsed BOS gets no second one.
        `continuation` says that other text comes before: no BOS, no dummy space at the start.
        No EOS is ever added. Raises UsageError for lone surrogates.
        """
        check_unicode(text)
        parts = (self.specials if special else self._plain).split(text)
        return self._join(parts, bos, continuation)

    def encode_parts(self, parts: Iterable[str | int], *, bos: bool | None = None) -> list[int]:
        """The ids of a text given as ordinary text and tokens in turn; see encode()."""
        pieces: list[str | int] = []
        for part in parts:
            if isinstance(part, int):
                pieces.append(part)
            else:
                check_unicode(part)
                pieces += self._plain.split(part)
        return self._join(pieces, bos, False)

    def encode_answer(self, text: str) -> list[int]:
        """The ids of a text as a model writes it after other text: user-defined tokens are tokens,
        control tokens are not."""
        ids: list[int] = []
        for part in self._user_defined.split(text):
            ids += [part] if isinstance(part, int) else self.encode(part, continuation=True)
        return ids

    def _join(self, parts: Iterable[str | int], bos: bool | None, continuation: bool) -> list[int]:
        ids: list[int] = []
        after_token = not continuation  # as at the start, a dummy space follows every special token
        for part in parts:
            if isinstance(part, int):
                ids.append(part)
                after_token = True
            else:
                ids += self._model.encode(part, start=after_token)
                after_token = False
        wants_bos = (self.adds_bos if bos is None else bos) and not continuation
        if wants_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def decode(
        self, ids: Iterable[int], *, special: bool = False, continuation: bool = False
    ) -> str:
        """The text of the ids; bytes that are no UTF-8 become U+FFFD.

        `special` shows control tokens too. `continuation`: the ids follow other text, as a model's
        answer does, so a space at the start is its own and not the tokenizer's dummy.
        """
        decoder = self.decoder(special=special, continuation=continuation)
        return "".join([*map(decoder.push, ids), decoder.finish()])

    def decoder(
        self, *, special: bool = False, continuation: bool = False, shown: Iterable[int] = ()
    ) -> IncrementalDecoder:
        """Decodes one id at a time; the pieces joined are what decode() gives.

        `shown`: control tokens that are shown although the others are not.
        """
        visible = frozenset(shown)

        def some(id_: int) -> bytes:
            return self._shown(id_) if id_ in visible else self.token_bytes(id_)

        return IncrementalDecoder(
            self._shown if special else some if visible else self.token_bytes,
            drop_space=self._space_prefix and not continuation,
        )

    def token_bytes(self, id_: int) -> bytes:
        """The bytes of the token in the text; b"" for one that is special.

        Raises UsageError for an id outside the vocabulary.
        """
        return b"" if self.is_special(id_) else self._shown(id_)

    def token_text(self, id_: int) -> str:
        """The token as the file writes it, for showing."""
        self._check(id_)
        return self._vocabulary.texts[id_]

    @cached_property
    def specials(self) -> SpecialSplitter:
        """All tokens that special=True finds in text."""
        return SpecialSplitter(self._parsed)

    @cached_property
    def markers(self) -> SpecialSplitter:
        """Those of them that text is never parsed for without special=True."""
        kept = self._vocabulary.kept_whole
        return SpecialSplitter({text: id_ for text, id_ in self._parsed.items() if id_ not in kept})

    @cached_property
    def controls(self) -> SpecialSplitter:
        """The markers that no text may make: control tokens, and what ends a generation."""
        types, ends = self._vocabulary.types, self.end_ids
        return SpecialSplitter(
            {
                text: id_
                for text, id_ in self._parsed.items()
                if types[id_] == TokenType.CONTROL or id_ in ends
            }
        )

    @cached_property
    def _user_defined(self) -> SpecialSplitter:
        """Those that a model may write as part of its text, such as <tool_call>."""
        controls = set(self.controls.ids)
        return SpecialSplitter(
            {text: id_ for text, id_ in self._parsed.items() if id_ not in controls}
        )

    @cached_property
    def _parsed(self) -> dict[str, int]:
        return self._vocabulary.odd_of_type(TokenType.CONTROL, TokenType.USER_DEFINED)

    def _shown(self, id_: int) -> bytes:
        self._check(id_)
        if id_ in self._vocabulary.raw:
            return self._vocabulary.raw[id_]
        if self._vocabulary.types[id_] in (TokenType.CONTROL, TokenType.USER_DEFINED):
            return self._vocabulary.texts[id_].encode()
        return self._model.token_bytes(id_)

    def _check(self, id_: int) -> None:
        if not 0 <= id_ < len(self._vocabulary):
            raise UsageError(
                f"the token id {id_} is outside the vocabulary; ids are 0 to "
                f"{len(self._vocabulary) - 1}"
            )


def check_unicode(text: str) -> None:
    """Raise UsageError for what is no text, or has lone surrogates, which no encoding can write."""
    if not isinstance(text, str):
        raise UsageError(f"the text is a Python {type(text).__name__}; allowed is a str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"the text has the lone surrogate U+{ord(text[error.start]):04X} at character "
            f"{error.start}; text must be valid Unicode"
        ) from None
