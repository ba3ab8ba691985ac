"""Tools for models whose template knows none: described in the system message, as text.

Calls and results of earlier turns are written out in the same form. Knows messages in the shape of
the OpenAI API; which template will see them is none of its business.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]

_INTRODUCTION = """You can call functions where they help to answer. A call is written like this:
<tool_call>
{"name": NAME, "arguments": OBJECT}
</tool_call>
Its result comes in the next message, within <tool_response> and </tool_response>. These are the \
functions:"""


def describe_tools(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """New messages without anything that is about tools but text.

    What is not in the shape of a call or a result is left for the check of messages to refuse.
    """
    written = [_written(message) for message in messages]
    if not tools:
        return written
    lines = [_INTRODUCTION, *(json.dumps(t["function"], ensure_ascii=False) for t in tools)]
    text = "\n".join(lines)
    if written and written[0].get("role") in ("system", "developer"):
        content = written[0].get("content")
        if isinstance(content, list):
            content = [*content, {"type": "text", "text": "\n\n" + text}]
        else:
            content = f"{content}\n\n{text}"
        return [{**written[0], "content": content}, *written[1:]]
    return [{"role": "system", "content": text}, *written]


def _written(message: Message) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        return message
    role = message.get("role")
    if role == "tool" and isinstance(message.get("content"), str):
        content = f"<tool_response>\n{message['content']}\n</tool_response>"
        return {"role": "user", "content": content}
    calls = message.get("tool_calls")
    if role != "assistant" or not isinstance(calls, list) or not calls:
        return dict(message)
    blocks = [message["content"]] if message.get("content") else []
    try:
        for call in calls:
            function = call["function"]
            arguments = function.get("arguments") or {}
            if isinstance(arguments, str):
                arguments = json.loads(arguments)
            body = json.dumps(
                {"name": function["name"], "arguments": arguments}, ensure_ascii=False
            )
            blocks.append(f"<tool_call>\n{body}\n</tool_call>")
        content = "\n".join(blocks)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return dict(message)
    return {"role": "assistant", "content": content}
