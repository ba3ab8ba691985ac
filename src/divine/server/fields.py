"""The fields of requests: what each endpoint knows, and which of it only neutrally.

Types are checked here and unknown fields refused; ranges are checked by the sampler and the engine.
A field that would change the text and is not supported may only have its neutral value; a field
that cannot change the text is accepted and ignored, and listed in docs/server.md.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from divine.api import Options
from divine.checks import check_number
from divine.errors import UsageError
from divine.sampling import PENALTY_RANGE

MAX_CHOICES = 128
MAX_STOPS = 16
MAX_STOP_LENGTH = 1000
MAX_TOKENS_COMPLETION = 16  # what OpenAI's /v1/completions does without max_tokens


class Strict(BaseModel):
    """No conversions, no unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)


class StreamOptions(Strict):
    """stream_options."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # nothing is obfuscated


class DivineOptions(Strict):
    """Divine's own: what to tell beside the text."""

    spans: bool | None = None


class Prediction(Strict):
    """The caller's guess at the answer."""

    type: Literal["content"]
    content: str | list[dict[str, Any]]


class SamplingFields(Strict):
    """How tokens are chosen, in the spellings that are in use."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repeat_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    draft: str | list[str] | None = None
    draft_tree: int | None = None
    cache_prompt: bool | None = None


class OpenAIFields(SamplingFields):
    """What chat and plain completions share."""

    model: str | None = None
    max_tokens: int | None = None
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    prediction: Prediction | None = None
    divine: DivineOptions | None = None
    # Cannot change the text:
    user: str | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    timings_per_token: bool | None = None


class ChatRequest(OpenAIFields):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    # Only with a neutral value:
    functions: list[Any] | None = None
    function_call: Any = None
    modalities: list[str] | None = None
    audio: Any = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    web_search_options: Any = None


class CompletionRequest(OpenAIFields):
    """POST /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    # Only with a neutral value:
    suffix: str | None = None
    best_of: int | None = None


class EmbeddingRequest(Strict):
    """POST /v1/embeddings."""

    input: str | list[str] | list[int] | list[list[int]]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None


class MessagesRequest(Strict):
    """POST /v1/messages."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_tokens: int
    model: str | None = None
    system: str | list[dict[str, Any]] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    seed: int | None = None
    draft: str | list[str] | None = None
    output_config: dict[str, Any] | None = None
    # Cannot change the text:
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    cache_control: dict[str, Any] | None = None
    inference_geo: str | None = None
    user_profile_id: str | None = None
    workspace_id: str | None = None
    diagnostics: dict[str, Any] | None = None
    speed: str | None = None
    # Only with a neutral value:
    thinking: dict[str, Any] | None = None
    mcp_servers: list[Any] | None = None
    container: Any = None
    context_management: Any = None


class CountRequest(Strict):
    """POST /v1/messages/count_tokens."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    model: str | None = None
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None


_NEUTRAL: dict[str, tuple[object, ...]] = {
    "functions": (None, []),
    "function_call": (None, "none"),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "reasoning_effort": (None, "none"),
    "verbosity": (None, "medium"),
    "web_search_options": (None,),
    "suffix": (None, ""),
    "best_of": (None, 1),
    "thinking": (None, {"type": "disabled"}),
    "mcp_servers": (None, []),
    "container": (None,),
    "context_management": (None,),
    "dimensions": (None,),
}
_INSTEAD = {
    "functions": "; use tools",
    "function_call": "; use tool_choice",
    "reasoning_effort": "; what the template knows goes into chat_template_kwargs",
}


def refuse_unsupported(body: BaseModel) -> None:
    """Raise UsageError for a field that would change the text in a way that is not supported."""
    for name in body.model_fields_set:
        value = getattr(body, name)
        if name in _NEUTRAL and value not in _NEUTRAL[name]:
            neutral = " or ".join(json.dumps(item) for item in _NEUTRAL[name] if item is not None)
            allowed = f"allowed is {neutral}, or leave it out" if neutral else "leave it out"
            raise UsageError(f"{name} is not supported; {allowed}{_INSTEAD.get(name, '')}")


def sampling_options(
    body: SamplingFields, defaults: Mapping[str, Any], drafters: Collection[str]
) -> Options:
    """The sampling fields as the model's options. Raises UsageError for contradictions.

    `drafters`: the names that `draft` may have, beside none and auto.
    """
    if body.repeat_penalty is not None:  # here, under the name that the client knows
        check_number("repeat_penalty", body.repeat_penalty, *PENALTY_RANGE)
    penalty = _agreed(
        "repeat_penalty", body.repeat_penalty, "repetition_penalty", body.repetition_penalty
    )
    options: dict[str, Any] = {
        "temperature": body.temperature,
        "top_k": body.top_k,
        "top_p": body.top_p,
        "min_p": body.min_p,
        "repetition_penalty": penalty,
        "frequency_penalty": body.frequency_penalty,
        "presence_penalty": body.presence_penalty,
        "logit_bias": _biases(body.logit_bias),
        "seed": body.seed,
        "stop": stop_strings("stop", body.stop),
        "draft": draft_names(body, drafters),
        "draft_tree": body.draft_tree,
        "cache_prompt": body.cache_prompt,
    }
    given = {name: value for name, value in options.items() if value is not None}
    return Options(**{**defaults, **given})  # type: ignore[typeddict-item]


def draft_names(body: SamplingFields, drafters: Collection[str]) -> str | list[str] | None:
    """`draft`, without those that are for measuring only. Raises UsageError."""
    draft = body.draft
    if draft in (None, "none", "auto"):
        return draft
    names = [name.strip() for name in (draft.split(",") if isinstance(draft, str) else draft or ())]
    for name in names:
        if name.startswith("synthetic"):
            raise UsageError("draft names a synthetic drafter; those are for `divine bench` only")
        if name not in drafters:
            raise UsageError(
                f"draft names {name[:80]!r}; this server has none, auto, or some of "
                f"{', '.join(drafters)}"
            )
    if "text" in names and not guess_text(getattr(body, "prediction", None)):
        raise UsageError("draft names text, which needs a guess at the answer in prediction")
    return draft


def with_seed(options: Options) -> Options:
    """With a seed, drawn here if none is given, so that all choices share it."""
    if options.get("seed") is None:
        return {**options, "seed": secrets.randbits(32)}
    return options


def guess_text(prediction: Prediction | None) -> str | None:
    """The text of `prediction`. Raises UsageError for parts that are not text."""
    if prediction is None:
        return None
    if isinstance(prediction.content, str):
        return prediction.content
    texts = []
    for index, part in enumerate(prediction.content):
        text = part.get("text")
        if part.get("type") != "text" or not isinstance(text, str):
            raise UsageError(
                f'prediction.content[{index}] is no text part; allowed is {{"type": "text", '
                '"text": ...}'
            )
        texts.append(text)
    return "".join(texts)


def stop_strings(name: str, stop: str | list[str] | None) -> list[str] | None:
    """Stop strings within limits. Raises UsageError."""
    stops = [stop] if isinstance(stop, str) else stop
    if not stops:
        return None
    if len(stops) > MAX_STOPS:
        raise UsageError(f"{name} has {len(stops)} strings; allowed are {MAX_STOPS} at most")
    for text in stops:
        if not text:
            raise UsageError(f"{name} has an empty string; allowed are strings with characters")
        if len(text) > MAX_STOP_LENGTH:
            raise UsageError(
                f"{name} has a string of {len(text)} characters; {MAX_STOP_LENGTH} are allowed"
            )
    return stops


def token_limit(body: ChatRequest) -> int | None:
    """max_completion_tokens, or max_tokens, its older name. Raises UsageError."""
    limit: int | None = _agreed(
        "max_tokens", body.max_tokens, "max_completion_tokens", body.max_completion_tokens
    )
    return limit


def _agreed(old: str, a: Any, new: str, b: Any) -> Any:
    if a is not None and b is not None and a != b:
        raise UsageError(f"{old} is {a} and {new} is {b}; they are one setting, give one of them")
    return a if b is None else b


def _biases(biases: Mapping[str, float] | None) -> dict[int, float] | None:
    if not biases:
        return None
    found = {}
    for token, bias in biases.items():
        if not token.isdecimal() or not token.isascii() or len(token) > 9:
            raise UsageError(
                f'logit_bias names token {token[:40]!r}; allowed are token ids, such as "15"'
            )
        found[int(token)] = bias
    return found
