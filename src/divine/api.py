"""Divine from Python: load a model file, generate text.

    with divine.load("model.gguf") as model:
        print(model.generate("Why is the sky blue?").text)
        for chunk in model.stream("Tell me more."):
            print(chunk.text, end="", flush=True)

Puts the parts together: file, program, backend, tokenizer, chat template, engine. Names of models
are resolved by the command line; here a model is the path of a GGUF file. A Model may be used from
several threads; what they generate runs in shared passes. All errors meant for users are
DivineErrors.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack, cast

from divine.backends import create_backend
from divine.backends.base import Executable, KvType
from divine.engine import Engine, FinishReason, Request, Statistics
from divine.engine import Sequence as EngineSequence
from divine.errors import FormatError, UsageError
from divine.gguf import GGUFFile, Metadata, open_gguf
from divine.models import build_program
from divine.sampling import SamplingParams, TokenLogprob, check_integer
from divine.text import ChatTemplate, Tokenizer, encode_chat

__all__ = [
    "Chunk",
    "Completion",
    "Message",
    "Model",
    "Options",
    "Prompt",
    "Statistics",
    "Stream",
    "TokenLogprob",
    "load",
]

DEFAULT_CONTEXT = 8192

Message = Mapping[str, Any]  # {"role": "user", "content": "..."} and what the template knows
Prompt = str | Sequence[Message] | Sequence[int]


class Options(TypedDict, total=False):
    """What may be given to generate(), stream() and generate_many().

    Sampling (ranges: divine.sampling.SamplingParams): temperature, top_k, top_p and min_p default
    to what the file recommends (general.sampling.*), else 0.8, 40, 0.95 and 0.05; penalties are
    off. A missing seed is drawn at random and reported.
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
    continue_final_message: bool  # the last message is the beginning of the answer
    logprobs: int | None  # n: the model's own log-probabilities, with the n best; None: none


@dataclass(frozen=True)
class Completion:
    """A whole answer."""

    text: str
    tokens: list[int]  # with those of a stop string, without the token that ended the answer
    prompt_tokens: int
    finish_reason: FinishReason  # "stop", "length" (max_tokens or context) or "cancelled"
    seed: int
    statistics: Statistics
    logprobs: list[TokenLogprob] | None = None  # one for each of tokens


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of an answer. Text never ends within a character; it may be empty at the end."""

    text: str
    tokens: list[int]  # since the chunk before


class Stream(Iterator[Chunk]):
    """An answer as it comes; close() or leaving `with` cancels what is left."""

    def __init__(self, engine: Engine, sequence: EngineSequence, with_logprobs: bool) -> None:
        self._engine = engine
        self._sequence = sequence
        self._with_logprobs = with_logprobs
        self._texts: list[str] = []

    def __next__(self) -> Chunk:
        """The next piece; raises the error that ended this answer, if one did."""
        try:
            self._engine.advance(self._sequence)
        except BaseException:
            self.close()
            raise
        text, tokens = self._sequence.take()
        if text or tokens:
            self._texts.append(text)
            return Chunk(text, tokens)
        if self._sequence.error is not None:
            raise self._sequence.error
        raise StopIteration

    def finish(self) -> Completion:
        """Run to the end."""
        for _ in self:
            pass
        return self.completion

    @property
    def completion(self) -> Completion:
        """The answer, once it has ended or was closed; raises UsageError before."""
        sequence = self._sequence
        if sequence.error is not None:
            raise sequence.error
        if sequence.finish_reason is None:
            raise UsageError("the answer has not ended; read the stream to its end or close it")
        self._texts.append(sequence.take()[0])
        return Completion(
            text="".join(self._texts),
            tokens=sequence.output,
            prompt_tokens=sequence.prompt_length,
            finish_reason=sequence.finish_reason,
            seed=sequence.sampler.seed,
            statistics=sequence.statistics,
            logprobs=list(sequence.logprobs) if self._with_logprobs else None,
        )

    def close(self) -> None:
        """Cancel what is left; what was said stays in `completion`."""
        if not self._sequence.done:
            self._engine.cancel(self._sequence)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # An abandoned stream must not go on using rows of shared passes. Garbage is collected at
        # any moment, within a step too, so this takes no lock: the next step finds the mark.
        self._sequence.cancelled = True


class Model:
    """A loaded model; made by load()."""

    def __init__(
        self,
        file: GGUFFile,
        tokenizer: Tokenizer,
        executable: Executable,
        defaults: SamplingParams,
        context: int,
        kv_type: KvType,
    ) -> None:
        self.context = context
        self.tokenizer = tokenizer
        self.defaults = defaults
        self._file = file
        self._executable = executable
        self._engine = Engine(
            executable,
            context=context,
            new_decoder=lambda: tokenizer.decoder(continuation=True),
            end_ids=tokenizer.end_ids,
            kv_type=kv_type,
        )
        self._closed = False

    @property
    def metadata(self) -> Metadata:
        """What the file says about itself."""
        return self._file.metadata

    @cached_property
    def template(self) -> ChatTemplate:
        """The chat template; raises TemplateError if the file has none or a wrong one."""
        return ChatTemplate.from_metadata(self.metadata, str(self._file.path))

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Completion:
        """The answer to a prompt.

        A str is one user message through the chat template, or with raw=True a text to be
        continued; a sequence of messages is a conversation; a sequence of ints is token ids, taken
        as they are.

        Raises UsageError for options out of range, CapacityError for a prompt that does not fit the
        context, TemplateError for messages that the template refuses, NumericError if the model
        produces NaN. A KeyboardInterrupt passes through and leaves the model usable.
        """
        with self.stream(prompt, **options) as stream:
            return stream.finish()

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> Stream:
        """The same as it comes. Raises like generate(), here or while it is read."""
        if self._closed:
            raise UsageError("the model is closed")
        request = self._request(prompt, **options)
        return Stream(self._engine, self._engine.add(request), request.logprobs is not None)

    def generate_many(
        self, prompts: Sequence[Prompt], **options: Unpack[Options]
    ) -> list[Completion]:
        """Answers to several prompts, in shared passes; each is what generate() would give."""
        streams: list[Stream] = []
        try:
            for prompt in prompts:
                streams.append(self.stream(prompt, **options))
            return [stream.finish() for stream in streams]
        finally:
            for stream in streams:
                stream.close()

    def tokenize(self, text: str, *, special: bool = True, bos: bool | None = False) -> list[int]:
        """Token ids; `special` parses special tokens, `bos` None adds a BOS if the file says so."""
        return self.tokenizer.encode(text, special=special, bos=bos)

    def detokenize(self, tokens: Sequence[int], *, special: bool = True) -> str:
        """The text of token ids; `special` shows special tokens."""
        return self.tokenizer.decode(tokens, special=special)

    def close(self) -> None:
        """Cancel what is running and free the memory; may be called twice."""
        if not self._closed:
            self._closed = True
            self._engine.close()
            self._executable.close()
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _request(self, prompt: Prompt, **options: Unpack[Options]) -> Request:
        given = {name: value for name, value in options.items() if value is not None}
        unknown = sorted(given.keys() - Options.__annotations__.keys())
        if unknown:
            allowed = ", ".join(Options.__annotations__)
            raise UsageError(f"option {unknown[0]!r} is unknown; allowed are {allowed}")
        sampling = {name: given[name] for name in SamplingParams.__annotations__ if name in given}
        params = SamplingParams(**{**_sampling_fields(self.defaults), **cast("Any", sampling)})
        return Request(
            prompt=self._encode(prompt, options),
            params=params,
            max_tokens=options.get("max_tokens"),
            stop=_stop_strings(options.get("stop")),
            logprobs=options.get("logprobs"),
        )

    def _encode(self, prompt: Prompt, options: Options) -> list[int]:
        """Token ids of a prompt in any of its forms."""
        tools = options.get("tools")
        if isinstance(prompt, str):
            if options.get("raw"):
                if tools:
                    raise UsageError("tools need the chat template, which raw leaves out")
                return self.tokenizer.encode(prompt, special=True)
            prompt = [{"role": "user", "content": prompt}]
        if isinstance(prompt, bytes) or not isinstance(prompt, Sequence):
            raise UsageError(
                f"the prompt is a Python {type(prompt).__name__}; allowed are a text, a list of "
                "messages or a list of token ids"
            )
        if len(prompt) > 0 and isinstance(prompt[0], int):
            return _token_ids(cast("Sequence[object]", prompt))
        going_on = bool(options.get("continue_final_message"))
        return encode_chat(
            self.tokenizer,
            self.template,
            cast("Sequence[Message]", prompt),
            tools=tools,
            add_generation_prompt=not going_on,
            continue_final_message=going_on,
        )


def load(
    model: str | os.PathLike[str],
    *,
    context: int | None = None,
    threads: int | None = None,
    kv_type: str = "f16",
    backend: str = "cpu",
) -> Model:
    """Load a GGUF file.

    `context`: the most tokens of prompt and answer together; by default the model's own, 8,192 at
    most; 0 is the model's own, however long. `threads` None: as many as the machine has cores.
    `kv_type`: "f16", or "q8_0" for half the memory. `backend`: "cpu", or "reference" (NumPy, slow).

    Raises FormatError for a damaged file, UnsupportedError for what Divine cannot run, UsageError
    for arguments out of range, CapacityError if the memory does not suffice.
    """
    if kv_type not in ("f16", "q8_0"):
        raise UsageError(f'kv_type is {kv_type!r}; allowed are "f16" and "q8_0"')
    if threads is not None:
        check_integer("threads", threads, 1, 256)
    chosen = create_backend(backend)
    file = open_gguf(model)
    try:
        program = build_program(file)
        context = _context(context, program.context)
        tokenizer = Tokenizer.from_metadata(file.metadata, str(file.path))
        if tokenizer.vocabulary != program.vocabulary:
            raise FormatError(
                f"{file.path}: the tokenizer has {tokenizer.vocabulary} tokens, the model "
                f"{program.vocabulary}; they must be the same"
            )
        defaults = _file_defaults(file)
        executable = chosen.compile(program, file, threads=threads)
    except BaseException:
        file.close()
        raise
    return Model(file, tokenizer, executable, defaults, context, cast("KvType", kv_type))


def _context(asked: int | None, trained: int) -> int:
    if asked is None:
        return min(trained, DEFAULT_CONTEXT)
    if asked == 0:  # as elsewhere: all that the model was trained for
        return trained
    check_integer("context", asked, 0, None)
    if asked > trained:
        raise UsageError(f"context is {asked}; the model was trained for {trained} at most")
    return asked


def _file_defaults(file: GGUFFile) -> SamplingParams:
    """What the file recommends, else what users of GGUF files are used to."""
    metadata = file.metadata
    try:
        return SamplingParams(
            temperature=metadata.float("general.sampling.temp", 0.8),
            top_k=metadata.int("general.sampling.top_k", 40),
            top_p=metadata.float("general.sampling.top_p", 0.95),
            min_p=metadata.float("general.sampling.min_p", 0.05),
        )
    except UsageError as error:
        raise FormatError(f"{file.path}: general.sampling: {error}") from None


def _sampling_fields(params: SamplingParams) -> dict[str, Any]:
    return {name: getattr(params, name) for name in SamplingParams.__annotations__}


def _stop_strings(stop: object) -> Sequence[str]:
    if stop is None:
        return ()
    if isinstance(stop, str):
        return (stop,)
    if not isinstance(stop, Sequence):
        raise UsageError(f"stop is {stop!r}; allowed are a string or a list of strings")
    return stop


def _token_ids(prompt: Sequence[object]) -> list[int]:
    for index, token in enumerate(prompt):
        check_integer(f"prompt token {index}", token, 0, None)
    return [int(cast("int", token)) for token in prompt]
