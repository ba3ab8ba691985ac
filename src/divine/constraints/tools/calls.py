"""ToolFormat: tools, what the model may do with them, and how this family of models writes calls.

Makes the constraint under which an answer is a valid call, the parser that finds calls in an
answer, and the messages for templates that know no tools. Runs no tools and no models.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from divine.constraints.constraint import JSON_OPTIONS, Constraint, json_schema, lark
from divine.constraints.tools.dialects import DIALECTS, NAME_END, Dialect
from divine.constraints.tools.parsing import ToolParser
from divine.constraints.tools.prompt import describe_tools
from divine.errors import UsageError
from divine.text import Tokenizer

MAX_TOOLS = 128
MAX_CALLS = 8  # that are forced in one answer: small models would go on to the end of the context
CHOICES = ("none", "auto", "required")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")

Message = Mapping[str, Any]


@dataclass(frozen=True)
class ToolFormat:
    """Made by tool_calls().

    tools       as the request gave them
    names       those that may be called
    constraint  None where the model may say what it likes
    certain     the answer is nothing but calls, by the constraint
    """

    family: str
    dialect: Dialect
    tools: tuple[Mapping[str, Any], ...]
    names: tuple[str, ...]
    constraint: Constraint | None

    @property
    def certain(self) -> bool:
        """The constraint guarantees calls."""
        return self.constraint is not None

    def parser(self) -> ToolParser:
        """A parser for one answer."""
        return ToolParser(self.dialect, frozenset(self.names), certain=self.certain)

    def prepare(
        self, messages: Sequence[Message]
    ) -> tuple[Sequence[Message], Sequence[Mapping[str, Any]] | None]:
        """Messages and tools as encode_chat() and Model.stream() are to be given them.

        Where the template takes tools they are as they were; where it does not, the tools are
        described in the system message, and calls and results written out as text.
        """
        if self.family != "generic":
            return messages, (self.tools if self.names else None)
        return describe_tools(messages, self.tools if self.names else ()), None

    def show_tokens(self, tokenizer: Tokenizer) -> list[int]:
        """Control tokens whose text the parser must see: the option show_tokens of a request."""
        if not self.names:
            return []
        found = (tokenizer.special_id(mark) for mark in self.dialect.controls)
        return [id_ for id_ in found if id_ is not None]


def tool_calls(
    tools: object, choice: object = "auto", family: str = "generic", *, parallel: bool = True
) -> ToolFormat:
    """The format for a request's `tools` and `tool_choice`, in the shape of the OpenAI API.

    `choice`: "auto" (or None), "none", "required", or {"type": "function", "function": {"name":
    ...}}. With "required" the answer is one call or several (one, if not `parallel`), with a name
    it is one call of that function; the arguments then follow the schema, and have no members that
    it does not name unless it says additionalProperties. Raises UsageError naming the field.
    """
    known = _check_tools(tools)
    if family not in DIALECTS:
        raise UsageError(f"family is {family!r}; allowed are {', '.join(DIALECTS)}")
    dialect = DIALECTS[family]
    wanted = _check_choice(choice, known)
    if wanted == "none":
        return ToolFormat(family, dialect, tuple(known.values()), (), None)
    constraint = None
    if wanted == "required":
        constraint = _constraint(dialect, known, parallel)
    elif wanted != "auto":
        constraint = _constraint(dialect, {wanted[1]: known[wanted[1]]}, False)
    return ToolFormat(family, dialect, tuple(known.values()), tuple(known), constraint)


def _check_tools(tools: object) -> dict[str, Mapping[str, Any]]:
    """The tools by name."""
    if isinstance(tools, str) or not isinstance(tools, Sequence) or not tools:
        raise UsageError("tools must be a list of functions that is not empty")
    if len(tools) > MAX_TOOLS:
        raise UsageError(f"tools has {len(tools)} entries; at most {MAX_TOOLS} are allowed")
    known: dict[str, Mapping[str, Any]] = {}
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        if not isinstance(tool, Mapping) or tool.get("type") != "function":
            raise UsageError(f'{where} must be an object whose type is "function"')
        function = tool.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UsageError(
                f"{where}.function.name is {str(name)[:80]!r}; allowed are 1 to 64 letters, "
                "digits, dots, dashes and underscores"
            )
        if name in known:
            raise UsageError(f"{where}.function.name is {name!r}, which an earlier tool has")
        parameters = function.get("parameters")
        if parameters is not None and not isinstance(parameters, Mapping):
            raise UsageError(f"{where}.function.parameters must be a JSON schema, an object")
        known[name] = tool
    return known


def _check_choice(choice: object, known: Mapping[str, Any]) -> str | tuple[str, str]:
    """One of CHOICES, or ("function", name)."""
    if choice is None:
        return "auto"
    if isinstance(choice, str):
        if choice in CHOICES:
            return choice
    elif isinstance(choice, Mapping) and choice.get("type") == "function":
        function = choice.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or name not in known:
            raise UsageError(
                f"tool_choice names the function {str(name)[:80]!r}; tools has {', '.join(known)}"
            )
        return "function", name
    raise UsageError(
        f"tool_choice is {str(choice)[:80]!r}; allowed are none, auto, required, or a function: "
        '{"type": "function", "function": {"name": ...}}'
    )


def _constraint(
    dialect: Dialect, tools: Mapping[str, Mapping[str, Any]], parallel: bool
) -> Constraint:
    """The grammar of one call or several, and of nothing else."""
    rules = []
    for index, (name, tool) in enumerate(tools.items()):
        schema = _parameters(tool["function"], f"the parameters of the function {name!r}")
        arguments = f"%json {json.dumps(schema)}"
        if dialect.named:
            body = f"{_literal(name)} {_literal(NAME_END)} {arguments}"
        else:
            head = f'{{"name": {json.dumps(name)}, "{dialect.arguments}": '
            body = f'{_literal(head)} {arguments} "}}"'
        rules.append(f"call_{index}: {body}")
    begin, opening = dialect.begin[0], dialect.opening
    start = _sequence(begin, opening)
    closing, more = _literal(dialect.closing), f"{{0,{MAX_CALLS - 1}}}"
    call = "(" + " | ".join(f"call_{index}" for index in range(len(rules))) + ")"
    if dialect.each:
        one = f"{start} {call} {closing}"
        whole = f"one ({_literal(dialect.between)} one){more}" if parallel else "one"
        rules.append(f"one: {one}")
    else:
        others = f"({_literal(dialect.between)} {call}){more}" if parallel else ""
        whole = f"{start} {call} {others} {closing}"
    return lark("\n".join([f"start: {whole}", *rules]), "tools", marks=dialect.controls)


def _sequence(*texts: str) -> str:
    return " ".join(_literal(text) for text in texts if text)


def _literal(text: str) -> str:
    """A text in Lark's notation; nothing for an empty one."""
    return json.dumps(text) if text else ""


def _parameters(function: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The schema of a function's arguments, closed unless it says otherwise; raises UsageError."""
    given = function.get("parameters") or {"properties": {}}
    schema = {"type": "object", "additionalProperties": False, **given}
    if schema["type"] != "object":
        raise UsageError(f"{what} are of type {schema['type']!r}; allowed is object")
    if not {"properties", "patternProperties", "additionalProperties"} & given.keys():
        del schema["additionalProperties"]  # it may be a $ref, or any object
    json_schema(schema, what)
    return {**schema, "x-guidance": JSON_OPTIONS}
