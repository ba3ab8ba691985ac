"""One sequence: its tokens, what has been committed of them, how it chooses and when it ends.

A sequence always has at least one token that is not committed; those are the rows of its next pass.
With one pending token it decodes, with more it is still reading its prompt: there are no phases.
Knows its own state and text; nothing of other sequences, passes or scheduling.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from divine.backends.base import State
from divine.drafting import DraftCounts, SequenceDraft
from divine.engine.statistics import Meter, Statistics
from divine.engine.stopping import StopStrings
from divine.sampling import Sampler, SamplingParams, TokenConstraint, TokenLogprob

FinishReason = Literal["stop", "length", "cancelled"]
AcceptRule = Literal["shared", "rejection"]
OWN = 0  # sources of a token that the model chose without a draft


class Piece(NamedTuple):
    """Text that one token completed, and the sources of that token in the tree, or OWN."""

    text: str
    sources: int


class Decoder(Protocol):
    """Token ids in, text out, never half a character; text.IncrementalDecoder is one."""

    def push(self, id_: int) -> str:
        """The text that this token completes."""

    def finish(self) -> str:
        """What an incomplete tail becomes."""


@dataclass(frozen=True)
class Request:
    """What to generate; the engine checks it when it is added."""

    prompt: SequenceOf[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None  # None: until the context is full; 0: an empty answer, "length"
    stop: SequenceOf[str] = ()
    logprobs: int | None = None  # None: none; n: of each token and of the n most probable
    cache_prompt: bool = True  # take over the state of a prompt that begins the same
    choice: int = 0  # index among several answers to one prompt with one seed
    drafters: SequenceOf[str] = ()  # names of those that may draft
    guess: SequenceOf[int] = ()  # the caller's own guess at the answer, for the drafter "text"
    draft_nodes: int | None = None  # the size of each tree; None: what is worth it
    accept: AcceptRule = "shared"
    constraint: TokenConstraint | None = None  # what the answer must look like
    new_decoder: Callable[[], Decoder] | None = None  # None: the engine's


class Sequence:
    """A request in progress; made by Engine.add().

    `output` holds the chosen tokens, the one that completed a stop string included; an end token is
    not part of it. Text is in `pieces` until take() fetches it.
    """

    def __init__(
        self,
        request: Request,
        sampler: Sampler,
        decoder: Decoder,
        end_ids: frozenset[int],
        limit: int,
    ) -> None:
        """`limit`: the most tokens the answer may have."""
        self.request = request
        self.tokens = list(request.prompt)
        self.prompt_length = len(self.tokens)
        self.sampler = sampler
        self.histories = sampler.start(self.tokens)
        self.top_logprobs = request.logprobs
        self.wants_logits = sampler.wants_logits or request.logprobs is not None
        self.rejection = request.accept == "rejection" and not sampler.params.greedy
        self.draft: SequenceDraft | None = None  # while it drafts, and for its counts
        self.state: State | None = None  # while it is running
        self.committed = 0  # the state's length
        self.meter = Meter()
        self.cancelled = False  # set from any thread
        self.finish_reason: FinishReason | None = None
        self.error: Exception | None = None  # why it could not go on
        self.end_token: int | None = None  # the token that ended it, which is not in the output
        self.logprobs: list[TokenLogprob] = []
        self.origins: list[int] = []  # of each token of the output: its sources in the tree, or OWN
        self._decoder = decoder
        self._stops = StopStrings(request.stop)
        self._end_ids = end_ids
        self._end = self.prompt_length + limit
        self._pieces: deque[Piece] = deque()
        self._taken = self.prompt_length
        if limit == 0:
            self.finish("length")

    @property
    def pending(self) -> int:
        """Tokens that are not committed yet: the rows it needs to run."""
        return len(self.tokens) - self.committed

    @cached_property
    def prompt_ids(self) -> NDArray[np.int32]:
        """The prompt as an array."""
        return np.array(self.tokens[: self.prompt_length], np.int32)

    @property
    def room(self) -> int:
        """How many drafted tokens the next pass could use: the one that it chooses comes last."""
        return self._end - len(self.tokens) - 1

    @property
    def output(self) -> list[int]:
        """The tokens chosen so far."""
        return self.tokens[self.prompt_length :]

    @property
    def done(self) -> bool:
        """It has finished or failed."""
        return self.finish_reason is not None or self.error is not None

    @property
    def decoding(self) -> bool:
        """It has chosen a token."""
        return len(self.tokens) > self.prompt_length

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the answer, if one did."""
        return self._stops.found

    @property
    def statistics(self) -> Statistics:
        """Figures so far."""
        statistics = self.meter.report(len(self.output), self.prompt_length)
        if self.draft is None:
            return statistics
        counts = self.draft.counts.items()
        return replace(
            statistics,
            drafts={name: DraftCounts.of(depths) for name, depths in counts},
            nodes=DraftCounts.of(self.draft.nodes_counted),
        )

    def append(self, token: int, logprob: TokenLogprob | None, sources: int = OWN) -> None:
        """Take a chosen token: the sequence may finish by it. `sources`: who had drafted it."""
        if token in self._end_ids:
            self.end_token = token
            self.finish("stop")
            return
        self.tokens.append(token)
        self.origins.append(sources)
        self.histories = self.sampler.advance(self.histories, token)
        if logprob is not None:
            self.logprobs.append(logprob)
        text, stopped = self._stops.push(self._decoder.push(token))
        if text:
            self._pieces.append(Piece(text, sources))
        if stopped:
            self.finish_reason = "stop"
        elif self.sampler.complete(self.histories):
            self.finish("stop")  # as the end token would, without a pass for it
        elif len(self.tokens) >= self._end:
            self.finish("length")

    def finish(self, reason: FinishReason) -> None:
        """End here: release what was held back."""
        tail, stopped = self._stops.push(self._decoder.finish())
        if not stopped:
            tail += self._stops.finish()
        if tail:
            self._pieces.append(Piece(tail, self.origins[-1] if self.origins else OWN))
        self.finish_reason = reason

    def fail(self, error: Exception) -> None:
        """End with an error that the reader of the sequence will get."""
        self.error = error

    def has_news(self) -> bool:
        """take() has something, or never will again."""
        return bool(self._pieces) or self.done

    def take(self) -> tuple[list[Piece], list[int]]:
        """Text and tokens since the last call; tokens whose text is held back come with it.

        One thread may take while another steps the engine.
        """
        done = self.done  # before the pieces: then nothing can be missing at the end
        pieces = []
        while self._pieces:
            pieces.append(self._pieces.popleft())
        if not pieces and not done:
            return [], []
        tokens = self.tokens[self._taken :]
        self._taken += len(tokens)
        return pieces, tokens

    def rewind(self) -> None:
        """After an interruption between commit and append: leave one token pending again.

        Row invariance makes the repeated pass give the same numbers.
        """
        if self.state is not None:
            self.committed = min(self.state.length, len(self.tokens) - 1)
            self.state.truncate(self.committed)
            self.histories = self.sampler.start(self.tokens[: self.prompt_length])
            for token in self.output:
                self.histories = self.sampler.advance(self.histories, token)
