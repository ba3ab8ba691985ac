"""Tools and response formats: what constrains an answer, and what its text says of calls.

The one place where the server meets divine.constraints. Chat and messages see events: text, a call
that began, a piece of its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from divine.api import Model, Options
from divine.constraints import (
    Arguments,
    CallStarted,
    Constraint,
    Event,
    Text,
    ToolFormat,
    json_object,
    json_schema,
    tool_calls,
    tool_family,
)
from divine.errors import UsageError

Messages = Sequence[Mapping[str, Any]]


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
        return [Text(text)] if text else []

    def finish(self) -> list[Event]:
        """Nothing is held back."""
        return []


class CallParser:
    """An answer with tools; without `parallel` the first call is the only one."""

    def __init__(self, format: ToolFormat, parallel: bool) -> None:
        self._parser = format.parser()
        self._parallel = parallel
        self.called = False

    def push(self, text: str) -> list[Event]:
        """What the text adds."""
        return self._checked(self._parser.push(text))

    def finish(self) -> list[Event]:
        """What was held back."""
        return self._checked(self._parser.finish())

    def _checked(self, events: list[Event]) -> list[Event]:
        kept = [e for e in events if self._parallel or isinstance(e, Text) or e.index == 0]
        self.called = self.called or any(isinstance(event, CallStarted) for event in kept)
        return kept


@dataclass(frozen=True)
class Plan:
    """How the answers of one request are made and read."""

    messages: Messages
    options: Options = field(default_factory=Options)  # beside those of sampling
    parser: Callable[[], Parser] = PlainParser


def plan_answers(
    model: Model,
    messages: Messages,
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    choice: Any = None,
    parallel: bool = True,
    response_format: Mapping[str, Any] | None = None,
) -> Plan:
    """What tools, tool_choice and response_format ask for. Raises UsageError."""
    constraint = response_constraint(response_format)
    if not tools:
        if choice not in (None, "none", "auto"):
            raise UsageError("tool_choice needs tools, of which there are none")
        return Plan(messages, Options(constraint=constraint) if constraint else Options())
    format = tool_calls(tools, choice, tool_family(model.template), parallel=parallel)
    if constraint is not None and format.names:
        raise UsageError(
            'response_format cannot be used together with tools, unless tool_choice is "none"'
        )
    shown, described = format.prepare(messages)
    options = Options(
        constraint=format.constraint or constraint,
        tools=described,
        show_tokens=format.show_tokens(model.tokenizer),
    )
    return Plan(shown, options, lambda: CallParser(format, parallel))


def response_constraint(format: Mapping[str, Any] | None) -> Constraint | None:
    """What response_format asks for; None for text. Raises UsageError."""
    if format is None:
        return None
    kind = format.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return json_object("response_format")
    if kind != "json_schema":
        raise UsageError(
            f"response_format.type is {str(kind)[:40]!r}; allowed are text, json_object and "
            "json_schema"
        )
    described = format.get("json_schema")
    schema = described.get("schema") if isinstance(described, Mapping) else None
    if not isinstance(schema, Mapping):
        raise UsageError("response_format.json_schema.schema is missing; it must be an object")
    return json_schema(schema, "response_format.json_schema.schema")


def joined(events: Sequence[Event]) -> list[str | tuple[CallStarted, str]]:
    """A whole answer: texts, and calls with all of their arguments, in order."""
    parts: list[str | tuple[CallStarted, str]] = []
    for event in events:
        last = parts[-1] if parts else None
        if isinstance(event, Text):
            if isinstance(last, str):
                parts[-1] = last + event.text
            else:
                parts.append(event.text)
        elif isinstance(event, CallStarted):
            parts.append((event, ""))
        elif isinstance(event, Arguments) and isinstance(last, tuple):
            parts[-1] = (last[0], last[1] + event.text)
    return parts
