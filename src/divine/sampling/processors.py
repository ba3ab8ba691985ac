"""Logit processors: penalties and bias, with history that can branch.

A processor's state is persistent: advance() gives a new state and leaves the old one valid,
because the rows of a tree continue one history in several ways. Penalties keep one table of counts
and walk it between the states that are asked for (Baker's trick), so plain decoding costs one step
per token.

This module changes logits; it chooses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from divine.errors import UsageError
from divine.sampling.params import SamplingParams


class LogitProcessor(Protocol):
    """Changes logits in a way that may depend on the tokens so far."""

    def start(self, prompt: Sequence[int]) -> Any:
        """The state after the prompt, before any output."""

    def advance(self, state: Any, token: int) -> Any:
        """The state after one more token of output; `state` stays valid."""

    def apply(self, state: Any, logits: NDArray[np.float32]) -> None:
        """Change logits float32 [vocabulary] in place."""


class TokenConstraint(LogitProcessor, Protocol):
    """A LogitProcessor that forbids tokens and leaves all others as they are."""

    def accepts(self, state: Any, token: int) -> bool:
        """Whether the token may follow; it may be True for a token that `apply` forbids."""

    def forced(self, state: Any) -> tuple[list[int], bytes]:
        """The tokens that must follow, and all bytes that must: the tokens' own and more."""

    def complete(self, state: Any) -> bool:
        """Nothing may follow but the end of the answer."""


class LogitBias:
    """Adds a constant to the logits of some tokens."""

    def __init__(self, bias: Mapping[int, float], vocabulary: int) -> None:
        """Raises UsageError for a token that the vocabulary does not have."""
        for token in bias:
            if token >= vocabulary:
                raise UsageError(
                    f"logit_bias names token {token}; the vocabulary has tokens 0 to "
                    f"{vocabulary - 1}"
                )
        self._tokens = np.array(list(bias), dtype=np.intp)
        self._values = np.array(list(bias.values()), dtype=np.float32)

    def start(self, prompt: Sequence[int]) -> None:
        """Nothing to remember."""

    def advance(self, state: None, token: int) -> None:
        """Nothing to remember."""

    def apply(self, state: None, logits: NDArray[np.float32]) -> None:
        """Add the bias."""
        logits[self._tokens] += self._values


@dataclass(eq=False, slots=True)
class History:
    """One token of output and the history before it; the root is the prompt."""

    parent: History | None
    token: int
    length: int
    counts: _Counts


class _Counts:
    """How often each token occurs, at one History at a time."""

    def __init__(self, prompt: Sequence[int]) -> None:
        unique = list(dict.fromkeys(prompt))
        room = max(64, 2 * len(unique))
        self.ids = np.zeros(room, dtype=np.intp)  # tokens met so far, in order of appearance
        self.output = np.zeros(room, dtype=np.int64)  # count in the output
        self.in_prompt = np.zeros(room, dtype=np.bool_)
        self.size = len(unique)
        self.ids[: self.size] = unique
        self.in_prompt[: self.size] = True
        self._index = {token: i for i, token in enumerate(unique)}
        self.here = History(None, -1, 0, self)

    def move(self, target: History) -> None:
        """Make the counts those of `target`."""
        here, forward = self.here, []
        there: History = target
        while here is not there:
            if there.length > here.length:
                forward.append(there.token)
                assert there.parent is not None
                there = there.parent
            else:
                self.output[self._index[here.token]] -= 1
                assert here.parent is not None
                here = here.parent
        for token in reversed(forward):
            self._add(token)
        self.here = target

    def _add(self, token: int) -> None:
        index = self._index.get(token)
        if index is None:
            index = self._index[token] = self.size
            if index == len(self.ids):
                self.ids = np.concatenate([self.ids, np.zeros_like(self.ids)])
                self.output = np.concatenate([self.output, np.zeros_like(self.output)])
                self.in_prompt = np.concatenate([self.in_prompt, np.zeros_like(self.in_prompt)])
            self.ids[index] = token
            self.size += 1
        self.output[index] += 1


class Penalties:
    """Repetition penalty over prompt and output, then frequency and presence over the output."""

    def __init__(self, repetition: float, frequency: float, presence: float) -> None:
        self._repetition = np.float32(repetition)
        self._frequency = np.float32(frequency)
        self._presence = np.float32(presence)

    def start(self, prompt: Sequence[int]) -> History:
        """Counts of the prompt's tokens."""
        return _Counts(prompt).here

    def advance(self, state: History, token: int) -> History:
        """One more token of output."""
        return History(state, token, state.length + 1, state.counts)

    def apply(self, state: History, logits: NDArray[np.float32]) -> None:
        """Penalize in float32, in the order of the class's name line."""
        counts = state.counts
        counts.move(state)
        size = counts.size
        ids, output = counts.ids[:size], counts.output[:size]
        values = logits[ids]
        if self._repetition != 1:
            seen = counts.in_prompt[:size] | (output > 0)
            lowered = np.where(values > 0, values / self._repetition, values * self._repetition)
            values = np.where(seen, lowered, values)
        values -= self._frequency * output.astype(np.float32)
        values -= self._presence * (output > 0).astype(np.float32)
        logits[ids] = values


def processors_of(params: SamplingParams, vocabulary: int) -> tuple[LogitProcessor, ...]:
    """The processors that params asks for, in order: penalties, bias."""
    chosen: list[LogitProcessor] = []
    if params.penalizes:
        chosen.append(
            Penalties(params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
        )
    if params.logit_bias:
        chosen.append(LogitBias(params.logit_bias, vocabulary))
    return tuple(chosen)
