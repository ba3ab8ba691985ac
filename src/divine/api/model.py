"""A loaded model: generate, stream, tokenize, close."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Self, Unpack

import numpy as np
from numpy.typing import NDArray

from divine.api.answers import Completion, Stream
from divine.api.options import Options, Prompt, encode_prompt, make_request, token_ids
from divine.backends.base import Executable, KvType
from divine.backends.prefixes import Prefixes
from divine.checks import check_integer
from divine.constraints import Constraint
from divine.drafting import Controller, Drafter, save_experience
from divine.engine import Engine, Request
from divine.errors import UsageError
from divine.gguf import GGUFFile, Metadata
from divine.sampling import Sampler, SamplingParams
from divine.text import ChatTemplate, IncrementalDecoder, Tokenizer


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
        drafters: dict[str, Drafter],
        controller: Controller,
        experience: Path,
        prefixes: Prefixes,
        max_sequences: int,
        read_seconds: float | None,
    ) -> None:
        self.context = context
        self.tokenizer = tokenizer
        self.defaults = defaults
        self._file = file
        self._executable = executable
        self._drafters = drafters
        self._controller = controller
        self._experience = experience  # the file
        self._engine = Engine(
            executable,
            context=context,
            new_decoder=lambda: tokenizer.decoder(continuation=True),
            end_ids=tokenizer.end_ids,
            kv_type=kv_type,
            max_sequences=max_sequences,
            prefixes=prefixes,
            controller=controller,
            read_seconds=read_seconds,
        )
        self._closed = False

    def __repr__(self) -> str:
        return (
            f"<Model {self._file.path.name}: context {self.context}, {self.threads} threads, "
            f"{self.level}>"
        )

    @property
    def metadata(self) -> Metadata:
        """What the file says about itself."""
        return self._file.metadata

    @property
    def drafters(self) -> tuple[str, ...]:
        """The names that `draft` may choose from, beside "synthetic:P"."""
        return tuple(name for name in self._drafters if ":" not in name)

    @property
    def threads(self) -> int:
        """How many threads compute."""
        return self._executable.threads

    @property
    def level(self) -> str:
        """The instruction set that is used, or another word for what computes."""
        return self._executable.level

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
        return Stream(self._engine, self._engine.add(self._request(prompt, options)))

    def encode(self, prompt: Prompt, **options: Unpack[Options]) -> list[int]:
        """The token ids that generate() would read. Raises UsageError and TemplateError."""
        return encode_prompt(prompt, options, self.tokenizer, lambda: self.template)

    def step(self) -> bool:
        """Run one pass over all streams that are open; False if none has anything left to run.

        For a program that serves many streams from one thread, with Stream.poll(); whoever reads a
        stream as an iterator needs no steps.
        """
        return self._engine.step()

    def embedding(self, tokens: Sequence[int]) -> Iterator[NDArray[np.float32] | None]:
        """Mean of the final hidden states of token ids, float32 [dim], after the last norm.

        An iterator: each step runs one chunk of rows beside whatever else is running, and gives
        None until the last one gives the vector. Raises UsageError and CapacityError here.
        """
        if self._closed:
            raise UsageError("the model is closed")
        return self._engine.embedding(token_ids("token", tokens))

    @property
    def load_now(self) -> tuple[int, int]:
        """How many sequences run in shared passes, and how many wait for room."""
        return self._engine.load

    def generate_many(
        self, prompts: Sequence[Prompt], **options: Unpack[Options]
    ) -> list[Completion]:
        """Answers to several prompts, in shared passes; each is what generate() would give."""
        if isinstance(prompts, str | bytes) or not isinstance(prompts, Sequence):
            raise UsageError(
                f"prompts is a Python {type(prompts).__name__}; allowed is a list of prompts"
            )
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
        return self.tokenizer.decode(token_ids("token", tokens), special=special)

    def forget(self) -> None:
        """Drop what was kept of earlier prompts, by drafters too; a prefix cache on disk stays."""
        self._engine.forget()

    def close(self) -> None:
        """Cancel what is running and free the memory; may be called twice."""
        if not self._closed:
            self._closed = True
            self._engine.close()
            controller = self._controller
            controller.release()
            save_experience(self._experience, controller.costs, controller.calibration)
            self._executable.close()
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _request(self, prompt: Prompt, options: Options) -> Request:
        text = options.get("draft_text")
        if text is not None and not isinstance(text, str):
            raise UsageError(f"draft_text is {text!r}; allowed is a text")
        constraint = options.get("constraint")
        if constraint is not None and not isinstance(constraint, Constraint):
            raise UsageError(
                f"constraint is {constraint!r}; allowed is one of divine.constraints, such as "
                "json_schema(...)"
            )
        request = make_request(
            encode_prompt(prompt, options, self.tokenizer, lambda: self.template),
            options,
            defaults=self.defaults,
            drafters=self._drafters,
            guess=self.tokenizer.encode(text, special=False, bos=False) if text else (),
            constraint=None if constraint is None else constraint.compile(self.tokenizer),
            new_decoder=self._decoder(options.get("show_tokens")),
        )
        if any(name.startswith("synthetic:") for name in request.drafters):
            request = self._with_truth(request)
        return request

    def _decoder(self, shown: Sequence[int] | None) -> Callable[[], IncrementalDecoder] | None:
        if shown is None:
            return None
        if isinstance(shown, str | bytes) or not isinstance(shown, Sequence):
            raise UsageError(f"show_tokens is {shown!r}; allowed is a list of token ids")
        for token in shown:
            check_integer("show_tokens", token, 0, self.tokenizer.vocabulary - 1)
        return lambda: self.tokenizer.decoder(continuation=True, shown=shown)

    def _with_truth(self, request: Request) -> Request:
        """The request with its own plain answer as the guess, for a synthetic drafter to spoil."""
        seed = Sampler(request.params, self._executable.vocabulary, request.choice).seed
        seeded = replace(request, params=replace(request.params, seed=seed))
        plain = replace(seeded, drafters=(), accept="shared", logprobs=None)
        answer = Stream(self._engine, self._engine.add(plain)).finish()
        return replace(seeded, guess=answer.tokens)
