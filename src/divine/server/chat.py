"""POST /v1/chat/completions."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from divine.api import Completion, Options
from divine.constraints import Arguments, CallStarted, Event, Text
from divine.server import logprobs
from divine.server.answering import answer
from divine.server.bodies import read_body
from divine.server.context import Server, server_of
from divine.server.fields import (
    ChatRequest,
    guess_text,
    refuse_unsupported,
    sampling_options,
    token_limit,
    with_seed,
)
from divine.server.formats import Frame
from divine.server.jobs import Ended, Piece
from divine.server.refusals import Refusal
from divine.server.tools import Plan, joined, plan_answers
from divine.server.usage import openai_usage
from divine.server.worker import Answer

_MAX_TOP_LOGPROBS = 20


async def chat(request: Request) -> Response:
    """Answer a conversation."""
    server = server_of(request)
    body = await read_body(request, ChatRequest, server.settings)
    name = server.check_model(body.model)
    refuse_unsupported(body)
    options = _options(body, server)
    plan = await server.worker.prepare(
        lambda: plan_answers(
            server.model,
            body.messages,
            tools=body.tools,
            choice=body.tool_choice,
            parallel=body.parallel_tool_calls is not False,
            response_format=body.response_format,
        )
    )
    job = await server.worker.submit(lambda: _answers(body, server, options, plan))
    shape = ChatFormat(body, name, server, plan)
    return await answer(request.receive, job, shape, bool(body.stream), server.metrics)


def _options(body: ChatRequest, server: Server) -> Options:
    options = with_seed(sampling_options(body, server.defaults, server.model.drafters))
    options["max_tokens"] = token_limit(body)
    options["draft_text"] = guess_text(body.prediction)
    options["continue_final_message"] = bool(body.continue_final_message)
    options["template_variables"] = body.chat_template_kwargs
    if body.top_logprobs is not None and not body.logprobs:
        raise Refusal(400, "top_logprobs needs logprobs to be true", param="top_logprobs")
    if body.add_generation_prompt is False and not body.continue_final_message:
        raise Refusal(
            400,
            "add_generation_prompt is false, which is only supported together with "
            "continue_final_message",
            param="add_generation_prompt",
        )
    if body.logprobs:
        top = body.top_logprobs or 0
        if not 0 <= top <= _MAX_TOP_LOGPROBS:
            raise Refusal(
                400,
                f"top_logprobs is {top}; allowed is an integer from 0 to {_MAX_TOP_LOGPROBS}",
                param="top_logprobs",
            )
        options["logprobs"] = top
    return options


def _answers(body: ChatRequest, server: Server, options: Options, plan: Plan) -> list[Answer]:
    """The prompt, tokenized once, and the options of each choice."""
    options = {**options, **plan.options}
    tokens = server.model.encode(plan.messages, **options)
    return [(tokens, {**options, "choice": choice}) for choice in range(body.n or 1)]


class ChatFormat:
    """chat.completion and chat.completion.chunk objects."""

    end = b"data: [DONE]\n\n"

    def __init__(self, body: ChatRequest, name: str, server: Server, plan: Plan) -> None:
        self._choices = body.n or 1
        self._name = name
        self._id = f"chatcmpl-{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._logprobs = bool(body.logprobs)
        self._tokenizer = server.model.tokenizer
        self._spans = bool(body.divine and body.divine.spans)
        self._usage = bool(body.stream_options and body.stream_options.include_usage)
        self._plan = plan
        self._parsers = [plan.parser() for _ in range(self._choices)]

    def opening(self) -> list[Frame]:
        """The role of each choice."""
        return [
            self._chunk(index, {"role": "assistant", "content": ""})
            for index in range(self._choices)
        ]

    def piece(self, piece: Piece) -> list[Frame]:
        """Text and calls as they come."""
        chunk = piece.chunk
        deltas = _deltas(self._parsers[piece.index].push(chunk.text))
        extra: dict[str, Any] = {}
        if self._logprobs:
            extra["logprobs"] = {
                "content": logprobs.chat(chunk.logprobs, self._tokenizer),
                "refusal": None,
            }
        if self._spans:
            spans = [
                {"text": span.text, "drafted_by": list(span.drafted_by)} for span in chunk.spans
            ]
            extra["divine"] = {"spans": spans, "tokens": piece.tokens, "passes": piece.passes}
        if extra and not deltas:
            deltas = [{}]
        return [
            self._chunk(piece.index, delta, **(extra if at == 0 else {}))
            for at, delta in enumerate(deltas)
        ]

    def ended(self, ended: Ended) -> list[Frame]:
        """What was held back, and why it ended."""
        parser = self._parsers[ended.index]
        frames = [self._chunk(ended.index, delta) for delta in _deltas(parser.finish())]
        reason = _finish_reason(ended.completion, parser.called)
        return [*frames, self._chunk(ended.index, {}, reason)]

    def closing(self, completions: Sequence[Completion]) -> list[Frame]:
        """The usage, if it was asked for."""
        if not self._usage:
            return []
        return [(None, self._envelope([], usage=openai_usage([completions])))]

    def failed(self, refusal: Refusal) -> Frame:
        """An error object."""
        return None, refusal.openai()

    def whole(self, completions: Sequence[Completion]) -> Mapping[str, Any]:
        """The chat.completion."""
        choices = [self._choice(index, one) for index, one in enumerate(completions)]
        return {
            **self._head("chat.completion"),
            "choices": choices,
            "usage": openai_usage([completions]),
        }

    def _choice(self, index: int, completion: Completion) -> dict[str, Any]:
        parser = self._plan.parser()
        text, calls = _message([*parser.push(completion.text), *parser.finish()])
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if calls:
            message |= {"content": text or None, "tool_calls": calls}
        tokens = None
        if completion.logprobs is not None:
            content = logprobs.chat(completion.logprobs, self._tokenizer)
            tokens = {"content": content, "refusal": None}
        choice: dict[str, Any] = {
            "index": index,
            "message": message,
            "logprobs": tokens,
            "finish_reason": _finish_reason(completion, parser.called),
        }
        if self._spans:
            choice["divine"] = {
                "tokens": len(completion.tokens),
                "passes": completion.statistics.passes,
                "drafted_by": [list(names) for names in completion.drafted_by],
            }
        return choice

    def _chunk(
        self, index: int, delta: Mapping[str, Any], reason: str | None = None, **extra: Any
    ) -> Frame:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        return None, self._envelope([choice | extra])

    def _envelope(
        self, choices: list[dict[str, Any]], usage: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        value = {**self._head("chat.completion.chunk"), "choices": choices}
        if self._usage:
            value["usage"] = usage
        return value

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._name,
            "system_fingerprint": None,
        }


def _finish_reason(completion: Completion, called: bool) -> str:
    if completion.finish_reason == "stop" and called:
        return "tool_calls"
    return completion.finish_reason


def _deltas(events: Sequence[Event]) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = []
    for event in events:
        if isinstance(event, Text):
            deltas.append({"content": event.text})
        elif isinstance(event, CallStarted):
            call = {"index": event.index, **_call(event, "")}
            deltas.append({"tool_calls": [call]})
        elif isinstance(event, Arguments):
            piece = {"index": event.index, "function": {"arguments": event.text}}
            deltas.append({"tool_calls": [piece]})
    return deltas


def _message(events: Sequence[Event]) -> tuple[str, list[dict[str, Any]]]:
    """The text and the calls of a whole answer."""
    parts = joined(events)
    text = "".join(part for part in parts if isinstance(part, str))
    return text, [_call(*part) for part in parts if isinstance(part, tuple)]


def _call(started: CallStarted, arguments: str) -> dict[str, Any]:
    function = {"name": started.name, "arguments": arguments}
    return {"id": started.id, "type": "function", "function": function}
