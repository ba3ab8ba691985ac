"""What comes back: pieces of an answer as it comes, and the whole of it.

Knows the engine's sequences; nothing of prompts and options.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from divine.engine import Engine, FinishReason, Statistics
from divine.engine import Sequence as EngineSequence
from divine.errors import UsageError
from divine.sampling import TokenLogprob


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
    drafted_by: list[tuple[str, ...]] = field(default_factory=list)  # of each token; () is nobody
    stop_string: str | None = None  # the one that ended it, if one did


class Span(NamedTuple):
    """Text that one token completed, and who had drafted that token; () is nobody."""

    text: str
    drafted_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of an answer. Text never ends within a character; it may be empty at the end."""

    text: str
    tokens: list[int]  # since the chunk before
    spans: list[Span]  # the same text, token by token
    logprobs: list[TokenLogprob] = field(default_factory=list)  # one for each of tokens, if asked


class Stream(Iterator[Chunk]):
    """An answer as it comes; close() or leaving `with` cancels what is left."""

    def __init__(self, engine: Engine, sequence: EngineSequence) -> None:
        self._engine = engine
        self._sequence = sequence
        self._texts: list[str] = []
        self._taken = 0  # tokens

    def __next__(self) -> Chunk:
        """The next piece; raises the error that ended this answer, if one did."""
        try:
            self._engine.advance(self._sequence)
        except BaseException:
            self.close()
            raise
        chunk = self.poll()
        if chunk is not None:
            return chunk
        if self._sequence.error is not None:
            raise self._sequence.error
        raise StopIteration

    def poll(self) -> Chunk | None:
        """What has come since the last call, without running anything; None if nothing has.

        For whoever calls Model.step(): not to be mixed with iteration in another thread.
        """
        pieces, tokens = self._sequence.take()
        if not pieces and not tokens:
            return None
        spans = [Span(piece.text, self._names(piece.sources)) for piece in pieces]
        logprobs = self._sequence.logprobs[self._taken : self._taken + len(tokens)]
        self._taken += len(tokens)
        chunk = Chunk("".join(span.text for span in spans), tokens, spans, logprobs)
        self._texts.append(chunk.text)
        return chunk

    @property
    def done(self) -> bool:
        """It has ended, or failed: then `completion` raises what it failed with."""
        return self._sequence.done

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return self._sequence.prompt_length

    @property
    def progress(self) -> tuple[int, int]:
        """Tokens of the answer and passes after its first token, so far."""
        sequence = self._sequence
        return len(sequence.tokens) - sequence.prompt_length, sequence.meter.passes

    def abandon(self) -> None:
        """Like close(), at once and from any thread: the next step ends it."""
        if not self._sequence.done:
            self._engine.abandon(self._sequence)

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
        self._texts += [piece.text for piece in sequence.take()[0]]
        return Completion(
            text="".join(self._texts),
            tokens=sequence.output,
            prompt_tokens=sequence.prompt_length,
            finish_reason=sequence.finish_reason,
            seed=sequence.sampler.seed,
            statistics=sequence.statistics,
            logprobs=None if sequence.top_logprobs is None else list(sequence.logprobs),
            drafted_by=[self._names(sources) for sources in sequence.origins],
            stop_string=sequence.stop_string,
        )

    def close(self) -> None:
        """Cancel what is left; what was said stays in `completion`."""
        if not self._sequence.done:
            self._engine.cancel(self._sequence)

    def _names(self, sources: int) -> tuple[str, ...]:
        """The drafters of a bit set."""
        names = self._sequence.request.drafters
        return tuple(name for bit, name in enumerate(names) if sources >> bit & 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        # An abandoned stream must not go on using rows of shared passes. Garbage is collected at
        # any moment, within a step too, so this takes no lock: the next step finds the mark.
        self._sequence.cancelled = True
