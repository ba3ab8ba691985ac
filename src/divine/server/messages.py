"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API.

A trailing assistant message is the beginning of the answer, as there. Beside its fields, seed and
draft are Divine's own.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from divine.api import Completion, Options
from divine.constraints import Arguments, CallStarted, Event, Text
from divine.server.answering import JsonResponse, answer
from divine.server.blocks import (
    to_conversation,
    to_response_format,
    to_tool_choice,
    to_tools,
)
from divine.server.bodies import read_body
from divine.server.context import Server, server_of
from divine.server.fields import (
    CountRequest,
    MessagesRequest,
    SamplingFields,
    refuse_unsupported,
    sampling_options,
    stop_strings,
    with_seed,
)
from divine.server.formats import Frame
from divine.server.jobs import Ended, Piece
from divine.server.refusals import Refusal
from divine.server.tools import Plan, joined, plan_answers
from divine.server.usage import anthropic_usage
from divine.server.worker import Answer

_REASONS = {"stop": "end_turn", "length": "max_tokens", "cancelled": "end_turn"}


async def messages(request: Request) -> Response:
    """Answer a conversation."""
    server = server_of(request)
    body = await read_body(request, MessagesRequest, server.settings)
    name = server.check_model(body.model)
    refuse_unsupported(body)
    conversation = to_conversation(body.system, body.messages)
    tools = to_tools(body.tools)
    choice, parallel = to_tool_choice(body.tool_choice)
    options = _options(body, server)
    options["continue_final_message"] = conversation[-1]["role"] == "assistant"
    plan = await server.worker.prepare(
        lambda: plan_answers(
            server.model,
            conversation,
            tools=tools,
            choice=choice,
            parallel=parallel,
            response_format=to_response_format(body.output_config),
        )
    )

    def answers() -> list[Answer]:
        chosen: Options = {**options, **plan.options}
        return [(server.model.encode(plan.messages, **chosen), chosen)]

    job = await server.worker.submit(answers)
    shape = MessageFormat(name, plan, job.streams[0].prompt_tokens)
    return await answer(request.receive, job, shape, bool(body.stream), server.metrics)


async def count_tokens(request: Request) -> Response:
    """How many tokens the prompt would have."""
    server = server_of(request)
    body = await read_body(request, CountRequest, server.settings)
    server.check_model(body.model)
    refuse_unsupported(body)
    conversation = to_conversation(body.system, body.messages)
    going_on = conversation[-1]["role"] == "assistant"
    tools = to_tools(body.tools)

    def encode() -> list[int]:
        plan = plan_answers(server.model, conversation, tools=tools)
        chosen: Options = {**plan.options, "continue_final_message": going_on}
        return server.model.encode(plan.messages, **chosen)

    tokens = await server.worker.prepare(encode)
    return JsonResponse({"input_tokens": len(tokens)})


def _options(body: MessagesRequest, server: Server) -> Options:
    fields = SamplingFields(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        seed=body.seed,
        draft=body.draft,
    )
    options = with_seed(sampling_options(fields, server.defaults, server.model.drafters))
    options["stop"] = stop_strings("stop_sequences", body.stop_sequences)
    if body.max_tokens < 1:
        raise Refusal(
            400,
            f"max_tokens is {body.max_tokens}; allowed is an integer of at least 1",
            param="max_tokens",
        )
    options["max_tokens"] = body.max_tokens
    return options


class MessageFormat:
    """A message object, or the events that make one."""

    end = b""

    def __init__(self, name: str, plan: Plan, prompt_tokens: int) -> None:
        self._name = name
        self._plan = plan
        self._prompt_tokens = prompt_tokens
        self._id = f"msg_{secrets.token_hex(12)}"
        self._parser = plan.parser()
        self._block = -1  # number of the content block that is open, or was last
        self._open: str | None = None  # its type

    def opening(self) -> list[Frame]:
        """An empty message."""
        usage = {"input_tokens": self._prompt_tokens, "output_tokens": 0}
        start = self._message([], None, None, usage)
        return [_frame("message_start", message=start), _frame("ping")]

    def piece(self, piece: Piece) -> list[Frame]:
        """Text and calls as they come."""
        return self._frames(self._parser.push(piece.chunk.text))

    def ended(self, ended: Ended) -> list[Frame]:
        """The rest, the reason, the usage."""
        completion = ended.completion
        frames = self._frames(self._parser.finish())
        frames += self._close()
        delta = {
            "stop_reason": _reason(completion, self._parser.called),
            "stop_sequence": completion.stop_string,
        }
        usage = anthropic_usage(completion)
        return [
            *frames,
            _frame("message_delta", delta=delta, usage=usage),
            _frame("message_stop"),
        ]

    def closing(self, completions: Sequence[Completion]) -> list[Frame]:
        """There is only one answer, and it has ended."""
        return []

    def failed(self, refusal: Refusal) -> Frame:
        """An error event."""
        return "error", refusal.anthropic()

    def whole(self, completions: Sequence[Completion]) -> Mapping[str, Any]:
        """The message."""
        completion = completions[0]
        parser = self._plan.parser()
        content: list[dict[str, Any]] = []
        for part in joined([*parser.push(completion.text), *parser.finish()]):
            if isinstance(part, str):
                content.append({"type": "text", "text": part})
            else:
                call = {"type": "tool_use", "id": part[0].id, "name": part[0].name}
                content.append({**call, "input": _input(part[1])})
        reason = _reason(completion, parser.called)
        return self._message(content, reason, completion.stop_string, anthropic_usage(completion))

    def _frames(self, events: Sequence[Event]) -> list[Frame]:
        frames: list[Frame] = []
        for event in events:
            if isinstance(event, Text):
                if self._open != "text":
                    frames += self._start("text", {"type": "text", "text": ""})
                delta = {"type": "text_delta", "text": event.text}
            elif isinstance(event, CallStarted):
                block = {"type": "tool_use", "id": event.id, "name": event.name, "input": {}}
                frames += self._start("tool_use", block)
                continue
            elif isinstance(event, Arguments):
                delta = {"type": "input_json_delta", "partial_json": event.text}
            else:
                continue
            frames.append(_frame("content_block_delta", index=self._block, delta=delta))
        return frames

    def _start(self, kind: str, block: Mapping[str, Any]) -> list[Frame]:
        frames = self._close()
        self._block += 1
        self._open = kind
        return [*frames, _frame("content_block_start", index=self._block, content_block=block)]

    def _close(self) -> list[Frame]:
        if self._open is None:
            return []
        self._open = None
        return [_frame("content_block_stop", index=self._block)]

    def _message(
        self,
        content: list[dict[str, Any]],
        reason: str | None,
        stop: str | None,
        usage: Mapping[str, Any],
    ) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._name,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": stop,
            "usage": usage,
        }


def _input(arguments: str) -> Any:
    """An object, also where max_tokens cut it."""
    try:
        return json.loads(arguments)
    except ValueError:
        return {}


def _reason(completion: Completion, called: bool) -> str:
    if called and completion.finish_reason == "stop":
        return "tool_use"
    if completion.stop_string is not None:
        return "stop_sequence"
    return _REASONS[completion.finish_reason]


def _frame(kind: str, **values: Any) -> Frame:
    return kind, {"type": kind, **values}
