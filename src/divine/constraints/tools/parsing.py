"""Tool calls in an answer that comes in pieces: text and calls, told apart as early as is safe.

What looks like a call but is broken, or names no known tool, is text. So a call that the model was
free to write is told of when it is whole; one that a constraint guarantees, piece by piece.
"""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, TypeAlias

from divine.constraints.tools.dialects import NAME_END, Dialect
from divine.constraints.tools.scanner import ObjectScanner

MAX_NAME = 64
_ALPHABET = string.ascii_letters + string.digits
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_HEADER = re.compile(r'\s*\{\s*"name"\s*:\s*"([A-Za-z0-9_.-]+)"\s*,\s*"\w+"\s*:\s*(?=\{)')
_SEPARATORS = " \t\r\n,;"


@dataclass(frozen=True)
class Text:
    """A piece of the answer that is no call."""

    text: str


@dataclass(frozen=True)
class CallStarted:
    """A call begins; `index` counts the calls of the answer."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class Arguments:
    """A piece of a call's arguments; the pieces joined are a JSON object."""

    index: int
    text: str


@dataclass(frozen=True)
class CallEnded:
    """The call is whole."""

    index: int


Event: TypeAlias = Text | CallStarted | Arguments | CallEnded


class ToolParser:
    """Feed it an answer with push() and finish(); both return what is known by then."""

    def __init__(self, dialect: Dialect, names: Collection[str], *, certain: bool) -> None:
        """`names`: of the tools, none: all is text. `certain`: a constraint guarantees calls."""
        self._dialect = dialect
        self._names = names
        self._certain = certain
        self._marks = tuple(mark for mark in dialect.begin if mark)
        self._buffer = ""  # not decided yet
        self._events: list[Event] = []
        self._calls = 0
        self._state = self._start if "" in dialect.begin else self._text
        if not names:
            self._state = self._plain
        self._raw = ""  # of the call at hand, in case that it is none
        self._name = ""
        self._listed = False  # its list has a bracket that will be closed
        self._scanner = ObjectScanner()
        self._scanned = 0  # characters of the buffer that the scanner has seen

    def push(self, text: str) -> list[Event]:
        """More of the answer."""
        self._buffer += text
        return self._run()

    def finish(self) -> list[Event]:
        """The answer has ended: what was held back is text, or a call that was not closed.

        Of a certain call that was cut before its name was known there is nothing to tell.
        """
        self._run()
        rest, self._buffer = self._raw + self._buffer, ""
        within = self._state in (self._after, self._streaming, self._tail)
        cut = self._certain and self._state is not self._text  # a call without its name yet
        if not within and not cut and (rest.strip() or not self._calls):
            self._emit_text(rest)
        self._state = self._plain
        return self._take()

    def _run(self) -> list[Event]:
        while self._state():
            pass
        return self._take()

    def _take(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _emit_text(self, text: str) -> None:
        if text:
            if self._events and isinstance(self._events[-1], Text):
                text = self._events.pop().text + text  # type: ignore[union-attr]
            self._events.append(Text(text))

    # Each state looks at the buffer; True: something changed, look again.

    def _plain(self) -> bool:
        """No call can follow."""
        text, self._buffer = self._buffer, ""
        self._emit_text(text)
        return False

    def _start(self) -> bool:
        """At the beginning of an answer that may be a call as a whole."""
        stripped = self._buffer.lstrip()
        if not stripped:
            return False
        if any(mark.startswith(stripped) and mark != stripped for mark in self._marks):
            return False
        if stripped[0] in "{[":
            self._begin(len(self._buffer) - len(stripped))
        else:
            self._state = self._text
        return True

    def _text(self) -> bool:
        """Text until a mark; space before a mark is part of it."""
        places = [(at, mark) for mark in self._marks if (at := self._buffer.find(mark)) >= 0]
        if places:
            at, mark = min(places)
            self._emit_text(self._buffer[:at].rstrip())
            self._buffer = self._buffer[len(self._buffer[:at].rstrip()) :]
            self._begin(self._buffer.index(mark) + len(mark))
            return True
        keep = self._undecided()
        self._emit_text(self._buffer[:keep])
        self._buffer = self._buffer[keep:]
        return False

    def _undecided(self) -> int:
        """Where text begins that a mark may still follow, or be."""
        text = self._buffer
        longest = max(map(len, self._marks), default=1) - 1
        cut = len(text)
        for start in range(max(0, len(text) - longest), len(text)):
            if any(mark.startswith(text[start:]) for mark in self._marks):
                cut = start
                break
        return len(text[:cut].rstrip())

    def _begin(self, skipped: int) -> None:
        """A call may begin behind so much of the buffer."""
        self._raw, self._buffer = self._buffer[:skipped], self._buffer[skipped:]
        self._scanner, self._scanned = ObjectScanner(), 0
        self._state = self._naming if self._dialect.named else self._opening

    def _opening(self) -> bool:
        """Space and the bracket of a list, then the object."""
        bare = self._buffer.lstrip()
        self._listed = bare.startswith("[")
        if self._listed:
            bare = bare[1:].lstrip()
        if not bare:
            return False
        skipped = len(self._buffer) - len(bare)
        self._raw += self._buffer[:skipped]
        self._buffer = bare
        if bare[0] != "{":
            return self._broken()
        self._state = self._header if self._certain else self._object
        return True

    def _naming(self) -> bool:
        """NAME[ARGS], then the object of arguments."""
        at = self._buffer.find(NAME_END)
        if at < 0:
            too_long = len(self._buffer) > 2 * MAX_NAME
            return self._broken() if too_long else False
        name = self._buffer[:at].strip().split("[CALL_ID]")[0]
        rest = self._buffer[at + len(NAME_END) :]
        if name not in self._names or not _NAME.fullmatch(name):
            return self._broken()
        if not rest.strip():
            return False
        if rest.lstrip()[0] != "{":
            return self._broken()
        self._name = name
        self._raw += self._buffer[: len(self._buffer) - len(rest.lstrip())]
        self._buffer = rest.lstrip()
        if self._certain:
            self._call(name)
            self._state = self._streaming
        else:
            self._state = self._object
        return True

    def _header(self) -> bool:
        """A certain call up to its arguments."""
        found = _HEADER.match(self._buffer)
        if found is None:
            return False
        self._call(found[1])
        self._raw, self._buffer = "", self._buffer[found.end() :]
        self._state = self._streaming
        return True

    def _streaming(self) -> bool:
        """The arguments of a certain call, as they come."""
        end = self._scanner.feed(self._buffer)
        piece = self._buffer if end is None else self._buffer[:end]
        if piece:
            self._events.append(Arguments(self._calls - 1, piece))
        self._buffer = self._buffer[len(piece) :]
        if end is None:
            return False
        self._events.append(CallEnded(self._calls - 1))
        self._raw = ""
        self._state = self._after if self._dialect.named else self._tail
        return True

    def _tail(self) -> bool:
        """The brace that closes a certain call."""
        at = self._buffer.find("}")
        if at < 0:
            return False
        self._buffer = self._buffer[at + 1 :]
        self._state = self._after
        return True

    def _object(self) -> bool:
        """A call, or arguments alone, until the object is whole."""
        end = self._scanner.feed(self._buffer[self._scanned :])
        if end is None:
            self._scanned = len(self._buffer)
            return False
        end += self._scanned
        call = self._read(self._buffer[:end])
        if call is None:
            return self._broken()
        name, arguments = call
        self._call(name)
        self._events.append(Arguments(self._calls - 1, arguments))
        self._events.append(CallEnded(self._calls - 1))
        self._raw, self._buffer = "", self._buffer[end:]
        self._state = self._after
        return True

    def _after(self) -> bool:
        """Behind a call: separators, its closing mark, and another call of the same list."""
        rest = self._buffer.lstrip(_SEPARATORS)
        closing = "]" if self._listed else self._dialect.closing.strip()
        if not rest or (closing.startswith(rest) and rest != closing):
            return False  # what follows may be the mark, or another call
        if closing and rest.startswith(closing):
            self._buffer = rest[len(closing) :]
            if self._listed and self._dialect.each:
                self._listed = False  # and the mark may follow
            else:
                self._state = self._text
            return True
        if rest[0] == "{" and not self._dialect.named:
            listed = self._listed
            self._begin(len(self._buffer) - len(rest))
            self._opening()
            self._listed = listed
            return True
        self._buffer = rest
        self._state = self._text
        return True

    def _broken(self) -> bool:
        """It is no call: what was taken for one is text, up to where the next mark may be."""
        self._emit_text(self._raw)
        self._raw = ""
        self._state = self._text
        return True

    def _call(self, name: str) -> None:
        self._events.append(CallStarted(self._calls, new_id(self._dialect), name))
        self._calls += 1

    def _read(self, text: str) -> tuple[str, str] | None:
        """Name and arguments of a whole call; None if it is none."""
        try:
            call: Any = json.loads(text)
        except (ValueError, RecursionError):
            return None
        name: Any
        if self._dialect.named:
            name, arguments = self._name, call
        else:
            name = call.get("name")
            arguments = call.get("arguments", call.get("parameters", {}))
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except (ValueError, RecursionError):
                return None
        if not isinstance(name, str) or name not in self._names:
            return None
        if not isinstance(arguments, dict):
            return None
        return name, json.dumps(arguments, ensure_ascii=False)


def new_id(dialect: Dialect) -> str:
    """An id for a call, in the form that the family's templates accept back."""
    if dialect.id_size:
        return "".join(secrets.choice(_ALPHABET) for _ in range(dialect.id_size))
    return "call_" + "".join(secrets.choice(_ALPHABET) for _ in range(24))
