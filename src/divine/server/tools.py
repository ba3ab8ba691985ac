"""Tools and response formats: what constrains an answer, and what its text says of calls.

The one place that talks with divine.constraints, which needs a grammar library. Chat and messages
see events: text that was said, a call that began, a piece of its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from divine.api import Model, Options
from divine.errors import UsageError


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


Event = Said | Call | Arguments


class Parser(Protocol):
    """Reads one answer as it comes."""

    called: bool  # it has met a call

    def push(self, text: str) -> list[Event]:
        """What the text adds."""

    def finish(self) -> list[Event]:
        """What was held back."""


class PlainParser:
    """An answer without tools is text."""

    called = False

    def push(self, text: str) -> list[Event]:
        """The text."""
        return [Said(text)] if text else []

    def finish(self) -> list[Event]:
        """Nothing is held back."""
        return []


@dataclass(frozen=True)
class Answers:
    """How the answers of one request are made and read."""

    options: Options = field(default_factory=Options)  # beside those of sampling
    parser: Callable[[], Parser] = PlainParser


def plan_answers(
    model: Model,
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    choice: Any = None,
    parallel: bool = True,
    response_format: Mapping[str, Any] | None = None,
) -> Answers:
    """What tools, tool_choice and response_format ask for. Raises UsageError."""
    if tools:
        raise UsageError("tools is not supported yet; leave it out")
    if response_format and response_format != {"type": "text"}:
        raise UsageError("response_format is not supported yet; leave it out")
    return Answers()
