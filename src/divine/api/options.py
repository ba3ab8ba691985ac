"""What a caller may ask for, and how it becomes a request to the engine.

Knows prompts in their three forms, the options and their checks; runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Literal, TypedDict, cast

from divine.checks import check_integer
from divine.constraints import Constraint
from divine.drafting import CHAIN, ChainDrafter, Drafter, SyntheticDrafter
from divine.engine import Request
from divine.errors import UsageError
from divine.sampling import SamplingParams, TokenConstraint
from divine.text import ChatTemplate, IncrementalDecoder, Tokenizer, encode_chat

Message = Mapping[str, Any]  # {"role": "user", "content": "..."} and what the template knows
Prompt = str | Sequence[Message] | Sequence[int]
MAX_DRAFT_TREE = 64
MAX_CHOICES = 1024


class Options(TypedDict, total=False):
    """What may be given to generate(), stream() and generate_many().

    Sampling (ranges: divine.sampling.SamplingParams): temperature, top_k, top_p and min_p default
    to what the file recommends (general.sampling.*), else 0.8, 40, 0.95 and 0.05; penalties are
    off. A missing seed is drawn at random and reported. Drafting changes how long an answer takes
    and nothing of its text, unless accept is "rejection".
    """

    max_tokens: int | None  # None: until the model ends or the context is full; 0: an empty answer
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int | None
    stop: Sequence[str] | str | None  # the text ends just before the earliest of these
    repetition_penalty: float | None  # counts prompt and answer
    frequency_penalty: float | None  # counts the answer
    presence_penalty: float | None  # counts the answer
    logit_bias: Mapping[int, float] | None  # token id -> what is added to its logit
    raw: bool  # a str is continued as it is (special tokens in it are parsed), not as a chat
    tools: Sequence[Mapping[str, Any]] | None  # functions that the chat template describes
    template_variables: Mapping[str, Any] | None  # what the template knows, as enable_thinking
    continue_final_message: bool  # the last message is the beginning of the answer
    logprobs: int | None  # n: the model's own log-probabilities, with the n best; None: none
    cache_prompt: bool  # False: read the prompt anew, whatever is kept of earlier ones
    choice: int  # number of this answer among several to one prompt with one seed; 0
    draft: str | Sequence[str] | None  # "auto" (all that is there), "none", or names of drafters
    draft_text: str | None  # the caller's own guess at the answer
    draft_tree: int | None  # nodes of each tree; None: as many as are worth their time
    accept: Literal["shared", "rejection"] | None  # "rejection" keeps the distribution only
    show_tokens: Sequence[int] | None  # control tokens that are shown in the text all the same
    constraint: Constraint | None  # what the answer must look like; see divine.constraints


def make_request(
    prompt: Sequence[int],
    options: Options,
    *,
    defaults: SamplingParams,
    drafters: MutableMapping[str, Drafter],
    guess: Sequence[int],
    constraint: TokenConstraint | None = None,
    new_decoder: Callable[[], IncrementalDecoder] | None = None,
) -> Request:
    """Check the options; raises UsageError. `guess`: tokens of draft_text, () if there is none;
    `constraint`: that of the options, compiled; `new_decoder`: None for the model's.

    A drafter "synthetic:P" is made when it is first asked for.
    """
    given = {name: value for name, value in options.items() if value is not None}
    unknown = sorted(given.keys() - Options.__annotations__.keys())
    if unknown:
        allowed = ", ".join(Options.__annotations__)
        raise UsageError(f"option {unknown[0]!r} is unknown; allowed are {allowed}")
    fields = SamplingParams.__annotations__
    sampling = {name: getattr(defaults, name) for name in fields}
    sampling.update((name, value) for name, value in given.items() if name in fields)
    accept = given.get("accept", "shared")
    if accept not in ("shared", "rejection"):
        raise UsageError(f'accept is {accept!r}; allowed are "shared" and "rejection"')
    names = _choose_drafters(
        given.get("draft", "auto"), drafters, bool(guess), constraint is not None
    )
    if accept == "rejection" and len(names) > 1:
        if given.get("draft", "auto") != "auto":
            raise UsageError(
                f'accept is "rejection" and draft names {len(names)} drafters; allowed is one'
            )
        names = names[-1:]
    if "draft_tree" in given:
        check_integer("draft_tree", given["draft_tree"], 1, MAX_DRAFT_TREE)
    return Request(
        prompt=prompt,
        params=SamplingParams(**sampling),
        max_tokens=options.get("max_tokens"),
        stop=_stop_strings(options.get("stop")),
        logprobs=options.get("logprobs"),
        drafters=names,
        guess=guess,
        draft_nodes=options.get("draft_tree"),
        accept=accept,
        choice=_choice(given.get("choice", 0)),
        cache_prompt=bool(given.get("cache_prompt", True)),
        constraint=constraint,
        new_decoder=new_decoder,
    )


def _choose_drafters(
    asked: object, drafters: MutableMapping[str, Drafter], has_guess: bool, constrained: bool
) -> tuple[str, ...]:
    """The names that `draft` means, in the order in which they are asked."""
    if asked == "none":
        return ()
    if asked == "auto":
        idle = {*(() if has_guess else ("text",)), *(() if constrained else ("forced",))}
        return tuple(name for name in drafters if ":" not in name and name not in idle)
    names = asked.split(",") if isinstance(asked, str) else asked
    if not isinstance(names, Sequence) or isinstance(names, bytes):
        raise UsageError(f"draft is {asked!r}; allowed is a text, or a list of drafters' names")
    chosen: dict[str, None] = {}
    for name in names:
        if not isinstance(name, str):
            raise UsageError(f"draft names {name!r}; allowed are drafters' names as texts")
        clean = name.strip()
        if clean.startswith("synthetic:") and clean not in drafters:
            drafters[clean] = SyntheticDrafter.from_name(clean)
        elif clean.startswith(CHAIN) and clean not in drafters:
            inner = drafters.get(clean.removeprefix(CHAIN))
            if inner is None:
                raise UsageError(_unknown_drafter(clean.removeprefix(CHAIN), drafters))
            drafters[clean] = ChainDrafter(inner)
        if clean not in drafters:
            raise UsageError(_unknown_drafter(clean, drafters))
        if clean == "text" and not has_guess:
            raise UsageError('draft "text" needs the guess itself: give it as draft_text')
        if clean == "forced" and not constrained:
            raise UsageError(
                'draft "forced" needs a constraint, such as a JSON schema or a grammar'
            )
        chosen[clean] = None
    return tuple(chosen)


def _unknown_drafter(name: object, drafters: Iterable[str]) -> str:
    if name == "mtp":
        return (
            'draft "mtp" needs drafting heads: a model file that has them, or a file of heads '
            "beside it"
        )
    if name == "table":
        return 'draft "table" needs a table: a model file that has one, or a file beside it'
    if name == "model":
        return 'draft "model" needs a draft model: give its file with the model'
    known = ", ".join(n for n in drafters if ":" not in n)
    return f"draft names {name!r}; allowed are none, auto, synthetic:P, or some of {known}"


def encode_prompt(
    prompt: Prompt, options: Options, tokenizer: Tokenizer, template: Callable[[], ChatTemplate]
) -> list[int]:
    """Token ids of a prompt in any of its forms; the template is asked for if it is needed."""
    tools = options.get("tools")
    if isinstance(prompt, str):
        if options.get("raw"):
            if tools:
                raise UsageError("tools need the chat template, which raw leaves out")
            return tokenizer.encode(prompt, special=True)
        prompt = [{"role": "user", "content": prompt}]
    if isinstance(prompt, bytes) or not isinstance(prompt, Sequence):
        raise UsageError(
            f"the prompt is a Python {type(prompt).__name__}; allowed are a text, a list of "
            "messages or a list of token ids"
        )
    if len(prompt) > 0 and isinstance(prompt[0], int):
        return token_ids("prompt token", prompt)
    if options.get("raw"):
        raise UsageError("raw leaves out the chat template, which messages need; give a text")
    going_on = bool(options.get("continue_final_message"))
    return encode_chat(
        tokenizer,
        template(),
        cast("Sequence[Message]", prompt),
        tools=tools,
        add_generation_prompt=not going_on,
        continue_final_message=going_on,
        extra=options.get("template_variables"),
    )


def _choice(value: object) -> int:
    check_integer("choice", value, 0, MAX_CHOICES - 1)
    return int(cast("int", value))


def _stop_strings(stop: object) -> Sequence[str]:
    if stop is None:
        return ()
    if isinstance(stop, str):
        return (stop,)
    if not isinstance(stop, Sequence):
        raise UsageError(f"stop is {stop!r}; allowed are a string or a list of strings")
    return stop


def token_ids(what: str, tokens: object) -> list[int]:
    """Ids of tokens, checked to be such; `what` names one of them. Raises UsageError."""
    if isinstance(tokens, str | bytes) or not isinstance(tokens, Iterable):
        kind = type(tokens).__name__
        raise UsageError(f"the {what}s are a Python {kind}; allowed is a list of token ids")
    ids = list(tokens)
    for index, token in enumerate(ids):
        check_integer(f"{what} {index}", token, 0, None)
    return [int(token) for token in ids]
