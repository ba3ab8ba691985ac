"""From logits to a token, for one sequence.

A Sampler holds a sequence's parameters, seed and processors. Its choice at a position depends on
the logits, the history and (seed, choice index, position) only: never on what else runs, nor on
how the token was proposed. Drafters ask the same Sampler, with their own logits and histories. A
constraint is the last processor: what it forbids no bias brings back, and filters see only what is
allowed.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from divine.backends.cpu import _native
from divine.errors import ConstraintError, DivineError, NumericError
from divine.sampling.params import SamplingParams
from divine.sampling.processors import TokenConstraint, processors_of

Histories = tuple[Any, ...]  # one state per processor


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The model's own log-probability of a token: temperature 1, no penalties, no filters."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # the most probable tokens, descending


class Sampler:
    """Chooses the tokens of one sequence.

    `choice` numbers several answers to one prompt with one seed. `seed` is drawn at random (32
    bits, so that people can type it again) if params has none.
    """

    def __init__(
        self,
        params: SamplingParams,
        vocabulary: int,
        choice: int = 0,
        constraint: TokenConstraint | None = None,
    ) -> None:
        """Raises UsageError for a logit_bias outside the vocabulary."""
        self.params = params
        self.seed = secrets.randbits(32) if params.seed is None else params.seed
        self.choice = choice
        self.vocabulary = vocabulary
        self.constraint = constraint
        self._processors = processors_of(params, vocabulary)
        if constraint is not None:
            self._processors += (constraint,)
        self._settings = (
            params.temperature,
            min(max(params.top_k, 0), vocabulary),
            params.top_p,
            params.min_p,
            self.seed,
            choice,
        )

    @property
    def wants_logits(self) -> bool:
        """The plain argmax of the model is not enough."""
        return bool(self._processors) or not self.params.greedy

    def start(self, prompt: Sequence[int]) -> Histories:
        """The history after the prompt."""
        return tuple(processor.start(prompt) for processor in self._processors)

    def advance(self, histories: Histories, token: int) -> Histories:
        """The history after one more token; the old one stays valid."""
        if not histories:
            return histories
        pairs = zip(self._processors, histories, strict=True)
        return tuple(processor.advance(state, token) for processor, state in pairs)

    def choose(self, histories: Histories, logits: NDArray[np.float32], position: int) -> int:
        """The token at `position` of the sequence; logits float32 [vocabulary] stay as they are.

        Raises NumericError if a logit is NaN or +infinity, or none is finite, ConstraintError if
        the processors leave no token.
        """
        token: int = _native.sample(self._processed(histories, logits), *self._settings, position)
        if token < 0:
            raise self._nothing(logits, position)
        return token

    def rank(
        self, histories: Histories, logits: NDArray[np.float32], position: int, k: int
    ) -> list[tuple[int, float]]:
        """The k tokens that choose() would take first, with their scores; its choice is the first.

        A score is the processed logit relative to the largest, over the temperature, plus the
        noise; greedy: the processed logit relative to the largest. Fewer than k if fewer are kept.
        Raises NumericError as choose() does.
        """
        row = self._processed(histories, logits)
        ranked = _native.rank(row, *self._settings, position, k)
        if not ranked:
            raise self._nothing(logits, position)
        return ranked

    def distribution(
        self, histories: Histories, logits: NDArray[np.float32], position: int
    ) -> NDArray[np.float64]:
        """The probabilities float64 [vocabulary] with which choose() takes each token, over all
        seeds: after processors, temperature and filters; exactly 0 where filtered.

        Probabilities below 2**-41 of the largest are 0 too. Raises NumericError as choose() does.
        """
        row = self._processed(histories, logits)
        probabilities = _native.distribution(row, *self._settings[:4])
        if probabilities is None:
            raise self._nothing(logits, position)
        return probabilities

    def complete(self, histories: Histories) -> bool:
        """The constraint allows nothing any more but the end of the answer."""
        return self.constraint is not None and self.constraint.complete(histories[-1])

    def _nothing(self, logits: NDArray[np.float32], position: int) -> DivineError:
        """Why there is no token to choose."""
        if not self._processors or not np.isfinite(logits).any() or np.isnan(logits).any():
            return _not_finite(position)
        forbidding = ["logit_bias"] if self.params.logit_bias else []
        if self.constraint is not None:
            forbidding.append("the constraint")
        return ConstraintError(
            f"no token is left at position {position}: {' and '.join(forbidding)} forbid every "
            "one that the model can say"
        )

    def _processed(self, histories: Histories, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        if not self._processors:
            return logits
        logits = logits.copy()
        for processor, state in zip(self._processors, histories, strict=True):
            processor.apply(state, logits)
        return logits


def log_probabilities(
    logits: NDArray[np.float32], chosen: int, top: int, position: int
) -> TokenLogprob:
    """Log-softmax of raw logits float32 [vocabulary]: of `chosen` and of the `top` best.

    Raises NumericError as Sampler.choose does.
    """
    entries: list[tuple[int, float]] = _native.log_probabilities(logits, chosen, top)
    if not entries:
        raise _not_finite(position)
    return TokenLogprob(chosen, entries[0][1], tuple(entries[1:]))


def _not_finite(position: int) -> NumericError:
    return NumericError(
        f"the model produced NaN or infinity at position {position}; its file may be damaged"
    )
