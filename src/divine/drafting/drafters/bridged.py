"""The drafter "model" when the draft model has another vocabulary than the target.

It drafts text: a chain of the draft model's most probable tokens, which become the target's tokens
through text (bridge.py). The noise of sampling belongs to the target's token ids and cannot be
shared, so drafts are the same at every temperature.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from divine.backends.base import Cancelled, Want
from divine.drafting.base import Budget, DraftSession, DraftTask
from divine.drafting.drafters.bridge import TextBridge
from divine.drafting.drafters.draft_model import (
    EXPECTED_CLAIM,
    NEWS,
    DrafterWithModel,
    DraftModel,
    DraftVocabulary,
)
from divine.drafting.drafters.guesses import TopGuesser
from divine.drafting.tree import DraftTree
from divine.sampling import Histories
from divine.text import Tokenizer

MORE_TOKENS = 2  # of the draft for the same depth: one is lost at the end, some are shorter


class BridgedDrafter(DrafterWithModel):
    """Drafts text with a model of another vocabulary."""

    def __init__(
        self, model: DraftModel, always: NDArray[np.bool_], target: Tokenizer, draft: Tokenizer
    ) -> None:
        """`always` bool [vocabulary of the draft]: those always in the draft vocabulary."""
        super().__init__(model)
        self.always = always
        self.target = target
        self.draft = draft

    def begin(self, task: DraftTask) -> DraftSession:
        """A session; nothing is read before it is asked to propose."""
        return BridgedSession(self, task)


class BridgedSession:
    """The drafter at work on one sequence."""

    def __init__(self, drafter: BridgedDrafter, task: DraftTask) -> None:
        self._model = drafter.model
        self._draft = drafter.draft
        self._task = task
        self._reader = drafter.model.reader()
        self._guesser = TopGuesser(drafter.model.executable.vocabulary, 1)
        self._vocabulary = DraftVocabulary(drafter.model.executable, drafter.always)
        self._bridge = TextBridge(drafter.target, drafter.draft)
        self._text: list[int] = []  # the draft's tokens of the sequence, as far as known
        self._expected = EXPECTED_CLAIM

    def cost_ms(self, depth: int) -> float:
        """Milliseconds of reading what is missing and drafting so deep; infinite if it cannot."""
        text = self._follow()
        if not text or self._model.context < len(text):
            return math.inf
        missing = self._reader.missing(text, len(self._bridge.settled))
        times = self._model.times
        return times.estimate(missing) + max(0, depth + MORE_TOKENS - 1) * times.estimate(1)

    def propose(self, histories: Histories, budget: Budget) -> DraftTree:
        """A chain; empty if cancelled, at the end of the context or within a character.

        Raises NumericError if the draft model produces NaN.
        """
        count = len(self._task.tokens)
        most = min(budget.nodes, budget.depth, self._model.draft_max, self._task.context - count)
        text = self._follow()
        if most < max(1, self._model.draft_min) or not text:
            return DraftTree()
        depth = min(most + MORE_TOKENS, self._model.context - len(text) + 1)
        try:
            guesses, claims = self._chain(text, depth, budget)
        except Cancelled:
            return DraftTree()
        tokens, found = self._bridge.draft_of(guesses, claims)
        chance, kept = 1.0, 0
        for level, claim in enumerate(found[:most], start=1):
            chance *= budget.calibrate(level, claim)
            if chance < budget.row_price:
                break
            kept = level
        if kept < self._model.draft_min:
            return DraftTree()
        return DraftTree.chain(tokens[:kept], found[:kept])

    def _chain(
        self, text: Sequence[int], depth: int, budget: Budget
    ) -> tuple[list[int], list[float]]:
        """Draft tokens with their probabilities, as long as going on is worth its time."""
        settled = len(self._bridge.settled)
        shortlist = self._vocabulary.of(text)
        guesses: list[int] = []
        claims: list[float] = []
        chance = 1.0

        def want(rows: Sequence[int]) -> Want:
            return self._guesser.want(rows, shortlist)

        while len(guesses) < depth:
            if guesses:
                gain = chance * self._expected
                level = self._model.times.estimate(1)
                if gain < budget.row_price or gain < budget.time_price * level:
                    break
                args = (len(text), guesses[:-1], [guesses[-1:]])
            else:
                args = (len(text) - 1, [], [list(text[-1:])])
            result = self._reader.read(text, *args, want, settled)
            token, claim, _ = self._guesser.guess(result, 0, (), 0)[0]
            likely = min(1.0, max(0.0, budget.calibrate(len(guesses) + 1, claim)))
            self._expected += NEWS * (likely - self._expected)
            chance *= likely
            if self._draft.is_special(token):
                break
            guesses.append(token)
            claims.append(claim)
        return guesses, claims

    def _follow(self) -> list[int] | None:
        """The draft's tokens of the text so far; opens the reader."""
        text = self._bridge.follow(self._task.tokens)
        if text:
            self._text = text
            self._reader.open(text)
        return text

    def observe(self, taps: Mapping[str, NDArray[np.float32]]) -> None:
        """The task's tokens tell all."""

    def close(self) -> None:
        """Keep what was read for sequences that begin the same."""
        self._reader.close(self._text, len(self._bridge.settled))
