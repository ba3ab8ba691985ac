"""Constraint: what an answer must look like, before any model is known.

json_schema(), json_object(), regex() and grammar() check what they are given, so that a caller
hears of a mistake before an answer begins. compile() makes a logit processor of it for one
tokenizer. JSON is written on one line, with a space after commas and colons: whitespace that means
nothing could otherwise go on for ever, and forced text is drafted for nothing.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from divine.constraints.library import library, limits, vocabulary_table
from divine.constraints.matcher import GrammarProcessor
from divine.errors import ConstraintError, UsageError
from divine.text import Tokenizer

MAX_SIZE = 1 << 18  # characters of a schema or grammar
KEPT = 32  # compiled grammars of a tokenizer
JSON_OPTIONS = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
    "lenient": False,
}

_EXCERPT = re.compile(r"\s*(\d+ \||\^)|    ")  # of the grammar, and the mark below it

_Compiled = OrderedDict[str, GrammarProcessor]
_compiled: WeakKeyDictionary[Tokenizer, _Compiled] = WeakKeyDictionary()
_lock = threading.Lock()


@dataclass(frozen=True)
class Constraint:
    """A grammar in the library's terms; `what` names it in messages, such as "json_schema".

    `marks` are texts of which the grammar means the control tokens, in vocabularies that have them.
    """

    what: str
    text: str
    marks: tuple[str, ...] = ()

    def compile(self, tokenizer: Tokenizer) -> GrammarProcessor:
        """The processor for this vocabulary; may be shared by sequences.

        Takes about a second for the first constraint of a large vocabulary, then milliseconds.
        Raises UsageError for a grammar that the vocabulary cannot begin.
        """
        with _lock:
            kept = _compiled.setdefault(tokenizer, OrderedDict())
            found = kept.get(self.text)
            if found is not None:
                kept.move_to_end(self.text)
                return found
        made = self._make(tokenizer, kept)
        with _lock:
            kept[self.text] = made
            while len(kept) > KEPT:
                kept.popitem(last=False)
        return made

    def _make(self, tokenizer: Tokenizer, kept: _Compiled) -> GrammarProcessor:
        table, text = vocabulary_table(tokenizer), self.text
        for mark in self.marks:
            id_ = tokenizer.special_id(mark)
            if id_ is not None and tokenizer.is_special(id_):
                text = text.replace(json.dumps(mark), f"<[{id_}]>")
        compiled = library().LLMatcher.grammar_from_lark(text) if self.marks else text
        matcher = library().LLMatcher(table, compiled, log_level=0, limits=limits())
        if matcher.is_error():
            raise UsageError(_wrong(self.what, matcher.get_error()))
        made = GrammarProcessor(matcher, tokenizer, self.what, lambda: _drop(kept, self.text))
        try:
            made.allowed(made.start(()))
        except ConstraintError as error:
            raise UsageError(f"{self.what} allows no text at all: {error}") from None
        return made


def _drop(kept: _Compiled, text: str) -> None:
    with _lock:
        kept.pop(text, None)


def json_schema(schema: Mapping[str, Any], what: str = "json_schema") -> Constraint:
    """JSON that a schema describes; `what` is how messages call it.

    Members come in the order of `properties`. Raises UsageError for a schema that is wrong,
    unsatisfiable, too large, or uses a keyword that cannot be enforced; UnsupportedError if the
    grammar library is missing.
    """
    if not isinstance(schema, Mapping):
        raise UsageError(f"{what} must be a JSON object, not {type(schema).__name__}")
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError) as error:
        raise UsageError(f"{what} is no JSON: {' '.join(str(error).split())[:200]}") from None
    except RecursionError:
        raise UsageError(f"{what} is nested too deeply") from None
    _check_size(what, text)
    try:
        compiled = library().LLMatcher.grammar_from_json_schema(text, overrides=JSON_OPTIONS)
    except ValueError as error:
        raise UsageError(_wrong(what, str(error))) from None
    return _checked(what, compiled)


def json_object(what: str = "json_object") -> Constraint:
    """Any JSON object."""
    return json_schema({"type": "object"}, what)


def regex(pattern: str, what: str = "regex") -> Constraint:
    """A text that a regular expression (Rust's syntax, no look-around) matches as a whole."""
    _check_text(what, pattern)
    return _checked(what, library().LLMatcher.grammar_from_regex(pattern))


def grammar(text: str, what: str = "grammar") -> Constraint:
    """A context-free grammar: Lark's notation as llguidance reads it, or llama.cpp's GBNF."""
    _check_text(what, text)
    try:
        compiled = library().grammar_from("grammar", text)
    except Exception as error:  # noqa: BLE001 - the converter of GBNF raises what comes
        raise UsageError(_wrong(what, str(error))) from None
    return _checked(what, compiled)


def lark(text: str, what: str, *, marks: tuple[str, ...] = ()) -> Constraint:
    """A grammar of our own making, in Lark's notation; quoted `marks` in it mean control tokens."""
    _check_size(what, text)
    checked = _checked(what, library().LLMatcher.grammar_from_lark(text))
    return Constraint(what, text, marks) if marks else checked


def _check_text(what: str, text: object) -> None:
    if not isinstance(text, str) or not text:
        raise UsageError(f"{what} must be a text that is not empty")
    _check_size(what, text)


def _check_size(what: str, text: str) -> None:
    if len(text) > MAX_SIZE:
        raise UsageError(f"{what} has {len(text)} characters; at most {MAX_SIZE} are allowed")


def _checked(what: str, compiled: str) -> Constraint:
    found = library().LLMatcher.validate_grammar(compiled, None, limits=limits())
    if found and not found.startswith("WARNING"):
        raise UsageError(_wrong(what, found))
    return Constraint(what, compiled)


def _wrong(what: str, reason: str) -> str:
    """One sentence of what the library says, which may go on for lines with an excerpt."""
    lines = [line for line in reason.splitlines() if not _EXCERPT.match(line)]
    return f"{what} cannot be enforced: {' '.join(' '.join(lines).split())[:300]}"
