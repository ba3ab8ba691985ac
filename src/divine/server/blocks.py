"""Anthropic's content blocks, tools and choices as the messages that templates know.

A pure translation: raises UsageError, naming the field, for blocks that are not supported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from divine.errors import UsageError

_HARMLESS = {"cache_control", "citations"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def to_conversation(
    system: str | Sequence[Mapping[str, Any]] | None, messages: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Messages in OpenAI's shape; tool results become messages of their own."""
    conversation: list[dict[str, Any]] = []
    if system:
        conversation.append({"role": "system", "content": _text(system, "system")})
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        unknown = message.keys() - {"role", "content"}
        if unknown:
            raise UsageError(f"{where}.{min(unknown)} is not supported; leave it out")
        role, content = message.get("role"), message.get("content")
        if role not in ("user", "assistant"):
            raise UsageError(f"{where}.role is {role!r}; allowed are user and assistant")
        if isinstance(content, str):
            conversation.append({"role": role, "content": content})
        elif not isinstance(content, list) or not content:
            raise UsageError(f"{where}.content must be text or a list of content blocks")
        elif role == "assistant":
            conversation.append(_assistant(content, f"{where}.content"))
        else:
            conversation += _user(content, f"{where}.content")
    return conversation


def to_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Tools in OpenAI's shape."""
    if not tools:
        return None
    found = []
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        if tool.get("type", "custom") != "custom":
            raise UsageError(f'{where}.type is {tool["type"]!r}; allowed is "custom"')
        name, schema = tool.get("name"), tool.get("input_schema")
        if not isinstance(name, str) or not name:
            raise UsageError(f"{where}.name is missing; it must be text")
        if not isinstance(schema, dict):
            raise UsageError(f"{where}.input_schema is missing; it must be a JSON schema")
        function = {
            "name": name,
            "description": tool.get("description", ""),
            "parameters": schema,
        }
        found.append({"type": "function", "function": function})
    return found


def to_tool_choice(choice: Mapping[str, Any] | None) -> tuple[Any, bool]:
    """The choice in OpenAI's shape, and whether several calls are allowed."""
    if choice is None:
        return None, True
    kind = choice.get("type")
    single = choice.get("disable_parallel_tool_use", False)
    if not isinstance(single, bool):
        raise UsageError("tool_choice.disable_parallel_tool_use must be true or false")
    unknown = choice.keys() - {"type", "name", "disable_parallel_tool_use"}
    if unknown:
        raise UsageError(f"tool_choice.{min(unknown)} is not supported; leave it out")
    parallel = not single
    if kind == "tool" and isinstance(choice.get("name"), str):
        return {"type": "function", "function": {"name": choice["name"]}}, parallel
    if kind not in _CHOICES:
        raise UsageError(
            f"tool_choice.type is {kind!r}; allowed are auto, any, none, and tool with a name"
        )
    return _CHOICES[kind], parallel


def to_response_format(config: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """output_config in OpenAI's shape."""
    if not config:
        return None
    unknown = config.keys() - {"format"}
    if unknown:
        raise UsageError(f"output_config.{min(unknown)} is not supported; leave it out")
    format = config["format"]
    if format is None:
        return None
    if not isinstance(format, Mapping) or format.get("type") != "json_schema":
        raise UsageError('output_config.format.type must be "json_schema"')
    if not isinstance(format.get("schema"), Mapping):
        raise UsageError("output_config.format.schema is missing; it must be an object")
    return {"type": "json_schema", "json_schema": {"schema": format["schema"]}}


def _assistant(blocks: Sequence[Any], where: str) -> dict[str, Any]:
    texts, calls = [], []
    for index, block in enumerate(blocks):
        kind = _kind(block, f"{where}[{index}]", ("text", "tool_use"))
        if kind == "text":
            texts.append(_block_text(block, f"{where}[{index}]"))
            continue
        name, arguments = block.get("name"), block.get("input", {})
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise UsageError(f"{where}[{index}] must have a name and an object as input")
        function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
        calls.append({"id": str(block.get("id", "")), "type": "function", "function": function})
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    return message | {"tool_calls": calls} if calls else message


def _user(blocks: Sequence[Any], where: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    texts: list[str] = []
    for index, block in enumerate(blocks):
        here = f"{where}[{index}]"
        if _kind(block, here, ("text", "tool_result")) == "text":
            texts.append(_block_text(block, here))
            continue
        content = block.get("content", "")
        result = content if isinstance(content, str) else _text(content, f"{here}.content")
        messages.append(
            {"role": "tool", "tool_call_id": str(block.get("tool_use_id", "")), "content": result}
        )
    if texts:
        messages.append({"role": "user", "content": "".join(texts)})
    return messages


def _text(value: str | Sequence[Any], where: str) -> str:
    """A text, or text blocks joined."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise UsageError(f"{where} must be text or a list of text blocks")
    texts = []
    for index, block in enumerate(value):
        _kind(block, f"{where}[{index}]", ("text",))
        texts.append(_block_text(block, f"{where}[{index}]"))
    return "".join(texts)


def _kind(block: Any, where: str, allowed: Sequence[str]) -> str:
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str) or kind not in allowed:
        raise UsageError(
            f"{where}.type is {str(kind)[:40]!r}, which is not supported here; allowed are "
            f"{', '.join(allowed)}"
        )
    known = {
        "text": {"type", "text"},
        "tool_use": {"type", "id", "name", "input"},
        "tool_result": {"type", "tool_use_id", "content", "is_error"},
    }[kind]
    unknown = block.keys() - known - _HARMLESS
    if unknown:
        raise UsageError(f"{where}.{min(unknown)} is not supported; leave it out")
    return kind


def _block_text(block: Mapping[str, Any], where: str) -> str:
    text = block.get("text")
    if not isinstance(text, str):
        raise UsageError(f"{where}.text is missing; it must be text")
    return text
