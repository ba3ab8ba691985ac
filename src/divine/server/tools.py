"""Tools and response formats: what constrains an answer, and what its text says of calls.

The one place that talks with divine.constraints, which needs a grammar library. Chat and messages
see events: text that was said, a call that began, a piece of its arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from divine.api import Model, Options
from divine.errors import UsageError
from divine.server.fields import ChatRequest


@dataclass(frozen=True, slots=True)
class Said:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool begins."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """A piece of the JSON text of a call's arguments."""

    index: int
    text: str


class Parser(Protocol):
    """Reads one answer as it comes."""

    called: bool  # it has met a call

    def push(self, text: str) -> list[Said | Call | Arguments]:
        """What the text adds."""

    def finish(self) -> list[Said | Call | Arguments]:
        """What was held back."""


class PlainParser:
    """An answer without tools is text."""

    called = False

    def push(self, text: str) -> list[Said | Call | Arguments]:
        """The text."""
        return [Said(text)] if text else []

    def finish(self) -> list[Said | Call | Arguments]:
        """Nothing is held back."""
        return []


@dataclass(frozen=True)
class Answers:
    """How the answers of one request are made and read."""

    options: Options = field(default_factory=Options)  # beside those of sampling
    parser: Callable[[], Parser] = PlainParser


def plan_answers(body: ChatRequest, model: Model) -> Answers:
    """What tools, tool_choice and response_format ask for. Raises UsageError."""
    for name in ("tools", "response_format"):
        value = getattr(body, name)
        if value and value != {"type": "text"}:
            raise UsageError(f"{name} is not supported yet; leave it out")
    return Answers()
