"""From what a draft model says at one place to guesses there: the best few tokens with claims.

Three ways: greedy takes the most probable tokens, sampling the first in the order of the target's
own noise, rejection sampling draws. All know the target's sampler; none knows trees or passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from divine.backends.base import PassResult, Shortlist, Want
from divine.drafting.acceptance import draw
from divine.errors import ConstraintError
from divine.sampling import Histories, Purpose, Sampler, stream

DRAWN_WIDTH = 2  # siblings that are drawn, at most, since each keeps a distribution
# Draft and target differ in logit / temperature by noise of about this size. Measured with
# Qwen2.5-Coder 0.5B for 1.5B, chat at temperature 1: claims around .4, .6, .8, .93, .99 came true
# in .36, .51, .75, .91 and .97 of 225 cases.
ORDER_SCALE = 1.0
RIVALS = 4  # so many of the first tokens share a claim of 1


class Guess(NamedTuple):
    """A token, the estimate that it is right, and what it was drawn from (DraftTree.draws)."""

    token: int
    claim: float
    draw: NDArray[np.float64] | None = None


class Guesser(Protocol):
    """Asks a pass for what it needs and makes guesses of it."""

    def want(self, rows: Sequence[int], shortlist: Shortlist | None) -> Want:
        """What a pass must return of the rows."""

    def guess(
        self, result: PassResult, line: int, histories: Histories, position: int
    ) -> list[Guess]:
        """Guesses for `position` from the wanted row number `line`, best first."""


class TopGuesser:
    """The most probable tokens; a claim is the draft model's own probability."""

    def __init__(self, vocabulary: int, width: int) -> None:
        self._vocabulary = vocabulary
        self._width = width

    def want(self, rows: Sequence[int], shortlist: Shortlist | None) -> Want:
        """The top few."""
        choices = self._vocabulary if shortlist is None else len(shortlist.ids)
        return Want(top=(rows, min(self._width, choices)), shortlist=shortlist)

    def guess(
        self, result: PassResult, line: int, histories: Histories, position: int
    ) -> list[Guess]:
        """In descending probability."""
        claims = np.exp(result.top_logits[line] - result.top_log_sum_exp[line])
        ids: list[int] = result.top_ids[line].tolist()
        return [
            Guess(token, min(1.0, claim)) for token, claim in zip(ids, claims.tolist(), strict=True)
        ]


class _LogitsGuesser:
    """Asks for whole rows of logits, fitted to the sampler's vocabulary."""

    def __init__(self, sampler: Sampler, width: int) -> None:
        self._sampler = sampler
        self._width = width

    def want(self, rows: Sequence[int], shortlist: Shortlist | None) -> Want:
        """All logits."""
        return Want(logits=rows, shortlist=shortlist)

    def _logits(self, result: PassResult, line: int) -> NDArray[np.float32]:
        """A row as the sampler wants it: padding that only one vocabulary has is no choice."""
        row: NDArray[np.float32] = result.logits[line]
        size = self._sampler.vocabulary
        if len(row) >= size:
            return row[:size]
        padded = np.full(size, -np.inf, np.float32)
        padded[: len(row)] = row
        return padded


class OrderGuesser(_LogitsGuesser):
    """The first tokens in the sampler's order, with its processors, filters and noise.

    With the noise the target will use, the draft's first is the target's more often than the most
    probable token is (Daliri, Musco, Suresh 2024). A claim is the softmax of the scores.
    """

    def guess(
        self, result: PassResult, line: int, histories: Histories, position: int
    ) -> list[Guess]:
        """In the perturbed order."""
        logits = self._logits(result, line)
        try:
            ranked = self._sampler.rank(histories, logits, position, max(self._width, RIVALS))
        except ConstraintError:  # the shortlist has none of the tokens that are allowed
            return []
        scores = np.array([score for _, score in ranked])
        weights = np.exp((scores - scores[0]) / ORDER_SCALE)
        claims: list[float] = (weights / weights.sum()).tolist()
        guesses = [Guess(token, claim) for (token, _), claim in zip(ranked, claims, strict=True)]
        return guesses[: self._width]


class DrawGuesser(_LogitsGuesser):
    """Draws tokens, each without those before it, from a stream of their own.

    A claim must not depend on a draw, its own or a sibling's, since nodes are kept by their claims
    and the kept ones would be biased: it is the probability that two draws agree, and for later
    siblings the same share of what is left.
    """

    def __init__(self, sampler: Sampler, width: int) -> None:
        super().__init__(sampler, min(width, DRAWN_WIDTH))
        self._number = 0  # of the draw: branches at one position must not share one

    def guess(
        self, result: PassResult, line: int, histories: Histories, position: int
    ) -> list[Guess]:
        """In the order in which they were drawn."""
        try:
            odds = self._sampler.distribution(histories, self._logits(result, line), position)
        except ConstraintError:  # the shortlist has none of the tokens that are allowed
            return []
        guesses: list[Guess] = []
        agreement, left = float(odds @ odds), 1.0
        for _ in range(self._width):
            token = self._draw(odds, position)
            claim = left * agreement
            guesses.append(Guess(token, claim, odds))
            left -= claim
            rest = odds.copy()
            rest[token] = 0.0
            total = float(rest.sum())
            if total <= 0.0:
                break
            odds = rest / total
        return guesses

    def _draw(self, odds: NDArray[np.float64], position: int) -> int:
        sampler = self._sampler
        self._number += 1
        uniform = stream(sampler.seed, sampler.choice, position, Purpose.DRAFT, self._number)
        return draw(odds, uniform)


def guesser_for(sampler: Sampler, rejection: bool, vocabulary: int, width: int) -> Guesser:
    """The way that suits a sampler; `vocabulary` is the draft model's, `width` the most guesses."""
    if rejection and not sampler.params.greedy:
        return DrawGuesser(sampler, width)
    if sampler.wants_logits:
        return OrderGuesser(sampler, width)
    return TopGuesser(vocabulary, width)
