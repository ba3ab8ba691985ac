"""Checking the messages of a chat before a template sees them, in the shape of the OpenAI API.

Templates silently drop a role they do not know and fail in Python's own words on content that is
null or a list; so that is settled here, in sentences that name messages[i]. Content in parts is
joined, "developer" becomes "system", arguments of tool calls become objects, null beside tool calls
becomes "". Knows nothing about templates.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from divine.errors import UsageError

ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_DEPTH = 32

Message = dict[str, Any]


def check_messages(messages: object) -> list[Message]:
    """New messages that any template can take. Raises UsageError naming the field that is wrong."""
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
        raise UsageError(f"messages must be a list of messages, not {_kind(messages)}")
    if not messages:
        raise UsageError("messages is empty; a chat needs at least one message")
    return [_check_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def check_tools(tools: object) -> list[dict[str, Any]] | None:
    """New tools, or None for none. Raises UsageError."""
    if not tools:
        return None
    if isinstance(tools, str | bytes) or not isinstance(tools, Sequence):
        raise UsageError(f"tools must be a list of objects, not {_kind(tools)}")
    for i, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise UsageError(f"tools[{i}] must be an object, not {_kind(tool)}")
    copied: list[dict[str, Any]] = map_texts(list(tools), str, "tools")
    return copied


def map_texts(value: Any, change: Callable[[str], str], where: str, depth: int = 0) -> Any:
    """A copy of a JSON value with every text in it changed, keys included. Raises UsageError."""
    if isinstance(value, str):
        return change(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth >= MAX_DEPTH:
        raise UsageError(f"{where} is nested too deeply; {MAX_DEPTH} levels are allowed")
    if isinstance(value, Mapping):
        return {
            map_texts(key, change, where, depth + 1): map_texts(item, change, where, depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [map_texts(item, change, where, depth + 1) for item in value]
    raise UsageError(f"{where} holds {_kind(value)}; only JSON values are allowed")


def _check_message(message: Any, where: str) -> Message:
    if not isinstance(message, Mapping):
        raise UsageError(f"{where} must be an object with role and content, not {_kind(message)}")
    role = message.get("role")
    if role not in ROLES:
        found = f"is {str(role)[:40]!r}" if "role" in message else "is missing"
        raise UsageError(f"{where}.role {found}; it must be one of {', '.join(ROLES)}")
    checked: Message = map_texts(message, str, where)
    checked["role"] = "system" if role == "developer" else role
    calls = checked.get("tool_calls")
    if calls:
        checked["tool_calls"] = _check_calls(calls, f"{where}.tool_calls")
    elif "tool_calls" in checked:
        del checked["tool_calls"]
    silent = role == "assistant" and bool(calls)
    checked["content"] = _check_content(checked.get("content"), f"{where}.content", silent)
    return checked


def _check_content(content: Any, where: str, silent: bool) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        if silent:
            return ""
        raise UsageError(f"{where} is null or missing; it must be text or a list of text parts")
    if not isinstance(content, list) or not content:
        found = "an empty list" if content == [] else _kind(content)
        raise UsageError(f"{where} is {found}; it must be text or a list of text parts")
    return "".join(_part_text(part, f"{where}[{i}]") for i, part in enumerate(content))


def _part_text(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind != "text":
        found = f"of type {str(kind)[:40]!r}" if isinstance(part, dict) else _kind(part)
        raise UsageError(f'{where} is {found}, which is not supported; only "text" parts are')
    text = part.get("text")
    if not isinstance(text, str):
        raise UsageError(f"{where}.text must be text, not {_kind(text)}")
    return text


def _check_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise UsageError(f"{where} must be a list, not {_kind(calls)}")
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise UsageError(f"{where}[{i}] must be an object with a function that has a name")
        function["arguments"] = _arguments(
            function.get("arguments", {}), f"{where}[{i}].function.arguments"
        )
    return calls


def _arguments(arguments: Any, where: str) -> dict[str, Any]:
    """Templates want an object where the API has its JSON text."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            raise UsageError(f"{where} is not valid JSON; it must be an object") from None
    if not isinstance(arguments, dict):
        raise UsageError(f"{where} must be a JSON object, not {_kind(arguments)}")
    return arguments


def _kind(value: Any) -> str:
    names = {
        type(None): "null",
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "text",
        dict: "an object",
        list: "a list",
    }
    return names.get(type(value), f"a Python {type(value).__name__}")
