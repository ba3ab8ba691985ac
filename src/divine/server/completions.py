"""POST /v1/completions: texts that are continued as they are, without a chat template."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from divine.api import Completion, Options
from divine.errors import UsageError
from divine.server import logprobs
from divine.server.answering import answer
from divine.server.bodies import read_body
from divine.server.context import Server, server_of
from divine.server.fields import (
    MAX_CHOICES,
    MAX_TOKENS_COMPLETION,
    CompletionRequest,
    guess_text,
    refuse_unsupported,
    sampling_options,
    with_seed,
)
from divine.server.formats import Frame
from divine.server.jobs import Ended, Piece
from divine.server.refusals import Refusal
from divine.server.usage import openai_usage
from divine.server.worker import Answer

_MAX_LOGPROBS = 5


async def completions(request: Request) -> Response:
    """Continue one text or several."""
    server = server_of(request)
    body = await read_body(request, CompletionRequest, server.settings)
    name = server.check_model(body.model)
    refuse_unsupported(body)
    prompts = split_prompts(body.prompt, "prompt")
    choices = body.n or 1
    if len(prompts) * choices > MAX_CHOICES:
        raise UsageError(
            f"prompt has {len(prompts)} texts and n is {choices}; allowed are {MAX_CHOICES} "
            "answers in all"
        )
    options = _options(body, server)
    job = await server.worker.submit(lambda: _answers(prompts, choices, server, options))
    shape = CompletionFormat(body, prompts, name, server)
    return await answer(request.receive, job, shape, bool(body.stream), server.metrics)


def split_prompts(
    value: str | list[str] | list[int] | list[list[int]], name: str
) -> list[str | list[int]]:
    """The texts or token lists in one field. Raises UsageError for an empty one."""
    several: Any = value
    if isinstance(value, str) or (value and isinstance(value[0], int)):
        several = [value]
    prompts: list[str | list[int]] = list(several)
    if not prompts or not all(prompts):
        raise UsageError(f"{name} is empty; allowed are texts or token ids, at least one of them")
    return prompts


def _options(body: CompletionRequest, server: Server) -> Options:
    options = with_seed(sampling_options(body, server.defaults, server.model.drafters))
    limit = body.max_tokens
    options["max_tokens"] = MAX_TOKENS_COMPLETION if limit is None else limit
    options["draft_text"] = guess_text(body.prediction)
    options["raw"] = True
    if body.logprobs is not None:
        if not 0 <= body.logprobs <= _MAX_LOGPROBS:
            raise Refusal(
                400,
                f"logprobs is {body.logprobs}; allowed is an integer from 0 to {_MAX_LOGPROBS}",
                param="logprobs",
            )
        if body.echo:
            raise Refusal(400, "echo together with logprobs is not supported", param="echo")
        options["logprobs"] = body.logprobs
    return options


def _answers(
    prompts: Sequence[str | list[int]], choices: int, server: Server, options: Options
) -> list[Answer]:
    """Choices of the first prompt, then of the second, and so on."""
    answers: list[Answer] = []
    for prompt in prompts:
        tokens = server.model.encode(prompt, **options)
        answers += [(tokens, {**options, "choice": choice}) for choice in range(choices)]
    return answers


class CompletionFormat:
    """text_completion objects; streamed ones have the same shape."""

    end = b"data: [DONE]\n\n"

    def __init__(
        self,
        body: CompletionRequest,
        prompts: Sequence[str | list[int]],
        name: str,
        server: Server,
    ) -> None:
        self._head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": name,
            "system_fingerprint": None,
        }
        self._choices = body.n or 1
        self._logprobs = body.logprobs is not None
        self._tokenizer = server.model.tokenizer
        self._spans = bool(body.divine and body.divine.spans)
        self._usage = bool(body.stream_options and body.stream_options.include_usage)
        self._echoes = [""] * len(prompts)
        if body.echo:
            self._echoes = [
                prompt if isinstance(prompt, str) else self._tokenizer.decode(prompt, special=True)
                for prompt in prompts
            ]
        self._offsets = [0] * (len(prompts) * self._choices)  # characters said so far

    def opening(self) -> list[Frame]:
        """The prompts, if they are to be repeated."""
        return [
            self._chunk(number * self._choices + choice, text)
            for number, text in enumerate(self._echoes)
            if text
            for choice in range(self._choices)
        ]

    def piece(self, piece: Piece) -> list[Frame]:
        """Text as it comes."""
        chunk = piece.chunk
        extra: dict[str, Any] = {}
        if self._logprobs:
            offset = self._offsets[piece.index]
            found = logprobs.completion(chunk.logprobs, self._tokenizer, offset)
            self._offsets[piece.index] += sum(map(len, found["tokens"]))
            extra["logprobs"] = found
        if self._spans:
            spans = [
                {"text": span.text, "drafted_by": list(span.drafted_by)} for span in chunk.spans
            ]
            extra["divine"] = {"spans": spans, "tokens": piece.tokens, "passes": piece.passes}
        if not chunk.text and not extra:
            return []
        return [self._chunk(piece.index, chunk.text, **extra)]

    def ended(self, ended: Ended) -> list[Frame]:
        """Why it ended."""
        return [self._chunk(ended.index, "", ended.completion.finish_reason)]

    def closing(self, completions: Sequence[Completion]) -> list[Frame]:
        """The usage, if it was asked for."""
        if not self._usage:
            return []
        return [(None, {**self._head, "choices": [], "usage": self._usage_of(completions)})]

    def failed(self, refusal: Refusal) -> Frame:
        """An error object."""
        return None, refusal.openai()

    def whole(self, completions: Sequence[Completion]) -> Mapping[str, Any]:
        """The text_completion."""
        choices = []
        for index, completion in enumerate(completions):
            found = None
            if completion.logprobs is not None:
                found = logprobs.completion(completion.logprobs, self._tokenizer, 0)
            choices.append({
                "index": index,
                "text": self._echoes[index // self._choices] + completion.text,
                "logprobs": found,
                "finish_reason": completion.finish_reason,
            })  # fmt: skip
        return {**self._head, "choices": choices, "usage": self._usage_of(completions)}

    def _usage_of(self, completions: Sequence[Completion]) -> dict[str, Any]:
        n = self._choices
        return openai_usage([completions[at : at + n] for at in range(0, len(completions), n)])

    def _chunk(self, index: int, text: str, reason: str | None = None, **extra: Any) -> Frame:
        choice = {"index": index, "text": text, "logprobs": None, "finish_reason": reason}
        value: dict[str, Any] = {**self._head, "choices": [choice | extra]}
        if self._usage:
            value["usage"] = None
        return None, value
