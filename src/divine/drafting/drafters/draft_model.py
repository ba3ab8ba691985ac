"""The drafter "model": a second, smaller model whose token ids mean what the target's do.

Its sessions read prompt and answer lazily, when something is to be proposed, so a draft model that
does not pay costs nothing. The head is computed for a draft vocabulary only: the most frequent
tokens, the special ones, and whatever the text has used.

Knows its own model and the tokens and sampler it is given; nothing of the target's passes. A model
with another vocabulary is bridged.py's business, opening files is loading.py's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from divine.backends.base import Cancelled, Executable, KvType, Shortlist, Want
from divine.backends.prefixes import Prefixes
from divine.drafting.base import Budget, DraftSession, DraftTask
from divine.drafting.drafters.growth import Growth
from divine.drafting.drafters.guesses import guesser_for
from divine.drafting.drafters.reader import PassTimes, Reader
from divine.drafting.tree import ROOT, DraftTree
from divine.sampling import Histories

DRAFT_MAX = 16
WIDTH = 4
EXPECTED_CLAIM = 0.7  # before anything is known of a text
NEWS = 0.1  # weight of a new claim in what is expected


class DraftModel:
    """What the sessions of one draft model share: the executable, kept states, measured times."""

    def __init__(
        self,
        executable: Executable,
        context: int,
        prior: Mapping[int, float],
        *,
        draft_max: int = DRAFT_MAX,
        draft_min: int = 0,
        width: int = WIDTH,
        kv_type: KvType = "f16",
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        """`context`: the most tokens the model can read; `prior`: rows -> a first estimate of the
        milliseconds of a pass.

        At most draft_max tokens are proposed, and none if they would be fewer than draft_min;
        `width` is the most guesses at one place, 1 makes chains.
        """
        self.executable = executable
        self.context = context
        self.draft_max = draft_max
        self.draft_min = draft_min
        self.width = width
        self.times = PassTimes(prior)
        self._kv_type: KvType = kv_type
        self._prefixes = Prefixes()
        self._on_close = on_close

    def reader(self) -> Reader:
        """The reader of a new sequence."""
        return Reader(self.executable, self._prefixes, self.times, self.context, self._kv_type)

    def forget(self) -> None:
        """Drop kept states."""
        self._prefixes.clear()

    def close(self) -> None:
        """Free kept states and weights; may be called twice."""
        self.forget()
        self.executable.close()
        self._on_close()
        self._on_close = lambda: None


class DraftVocabulary:
    """The draft vocabulary of one sequence: what is always in it, and what its text has used."""

    def __init__(
        self, executable: Executable, always: NDArray[np.bool_], packed: Shortlist | None = None
    ) -> None:
        """`always` bool [vocabulary]; shared, never changed here. `packed`: just those tokens."""
        self._executable = executable
        self._listed = always
        self._packed = packed
        self._met = 0  # tokens of the text that have been looked at
        self._shortlist: Shortlist | None = None
        self._whole = len(always) == executable.vocabulary and bool(always.all())

    def of(self, tokens: Sequence[int]) -> Shortlist | None:
        """The shortlist once the text has come so far; None: all tokens of the model."""
        if self._whole:
            return None
        news = np.array(tokens[self._met :], np.int64)
        self._met = len(tokens)
        news = news[news < len(self._listed)]
        if self._shortlist is None or not self._listed[news].all():
            self._listed = self._listed.copy()
            self._listed[news] = True
            ids = np.flatnonzero(self._listed).astype(np.int32)
            self._shortlist = self._executable.new_shortlist(ids, self._packed)
        return self._shortlist


class DrafterWithModel:
    """What drafters with a model have in common."""

    name = "model"
    free = False
    taps: tuple[str, ...] = ()

    def __init__(self, model: DraftModel) -> None:
        self.model = model

    def cancel(self) -> None:
        """Cut a pass of the draft model short, from any thread: its proposal is empty then."""
        self.model.executable.cancel()

    def forget(self) -> None:
        """Drop the states that are kept for texts that begin the same."""
        self.model.forget()

    def close(self) -> None:
        """Free the model."""
        self.model.close()


class ModelDrafter(DrafterWithModel):
    """Drafts with a model that shares the target's vocabulary."""

    def __init__(
        self, model: DraftModel, always: NDArray[np.bool_], ends: frozenset[int] = frozenset()
    ) -> None:
        """`always` bool [tokens that both models have]: those always in the draft vocabulary.

        `ends`: tokens that end an answer of the target.
        """
        super().__init__(model)
        self.always = always
        self.ends = ends

    def begin(self, task: DraftTask) -> DraftSession:
        """A session; nothing is read before it is asked to propose."""
        return ModelSession(self, task)


class ModelSession:
    """The drafter at work on one sequence."""

    def __init__(self, drafter: ModelDrafter, task: DraftTask) -> None:
        model = self._model = drafter.model
        self._ends = drafter.ends
        self._task = task
        self._reader = model.reader()
        self._guesser = guesser_for(
            task.sampler, task.rejection, model.executable.vocabulary, model.width
        )
        self._vocabulary = DraftVocabulary(model.executable, drafter.always)
        self._readable = 0  # so many of the tokens are known to be tokens of the draft model too
        self._expected = EXPECTED_CLAIM

    def cost_ms(self, depth: int) -> float:
        """Milliseconds of reading what is missing and drafting so deep; infinite if it cannot."""
        tokens = self._task.tokens
        if self._room() < 1:
            return math.inf
        self._reader.open(tokens)
        missing = self._reader.missing(tokens, len(tokens))
        times = self._model.times
        return times.estimate(missing) + max(0, depth - 1) * times.estimate(1)

    def propose(self, histories: Histories, budget: Budget) -> DraftTree:
        """A tree of the draft model's guesses; empty if cancelled or at the end of the context.

        Raises NumericError if the draft model produces NaN.
        """
        nodes = min(budget.nodes, self._model.draft_max)
        depth = min(budget.depth, nodes, self._room())
        if depth < 1 or nodes < self._model.draft_min:  # the model is not run in vain
            return DraftTree()
        growth = Growth(budget, nodes, depth, self._ends, self._expected)
        try:
            self._grow(growth, histories)
        except Cancelled:
            return DraftTree()
        tree = growth.finish()
        return tree if len(tree) >= self._model.draft_min else DraftTree()

    def _grow(self, growth: Growth, histories: Histories) -> None:
        task, reader, tree = self._task, self._reader, growth.tree
        tokens = task.tokens
        count = len(tokens)
        reader.open(tokens)
        shortlist = self._vocabulary.of(tokens)
        at = {ROOT: histories}  # histories after a node

        def want(rows: Sequence[int]) -> Want:
            return self._guesser.want(rows, shortlist)

        result = reader.read(tokens, count - 1, (), [tokens[-1:]], want, count)
        self._expect(growth, growth.sprout(ROOT, self._guesser.guess(result, 0, histories, count)))
        while (level := growth.next_level(self._model.times.estimate)) is not None:
            shared = [tree.tokens[node] for node in level.shared]
            branches = [[tree.tokens[node] for node in branch] for branch in level.branches]
            result = reader.read(tokens, count, shared, branches, want, count)
            for line, leaf in enumerate(level.leaves):
                above = at[tree.parents[leaf]]
                at[leaf] = task.sampler.advance(above, tree.tokens[leaf])
                position = count + growth.depth_of(leaf)
                guesses = self._guesser.guess(result, line, at[leaf], position)
                self._expect(growth, growth.sprout(leaf, guesses))

    def _expect(self, growth: Growth, likely: float) -> None:
        self._expected += NEWS * (likely - self._expected)
        growth.expected = self._expected

    def _room(self) -> int:
        """The greatest depth that context and draft model allow."""
        tokens = self._task.tokens
        vocabulary = self._model.executable.vocabulary
        while self._readable < len(tokens):
            if tokens[self._readable] >= vocabulary:
                return 0
            self._readable += 1
        count = len(tokens)
        return min(self._task.context - count, self._model.context - count + 1)

    def observe(self, taps: Mapping[str, NDArray[np.float32]]) -> None:
        """The task's tokens tell all."""

    def close(self) -> None:
        """Keep what was read for sequences that begin the same."""
        self._reader.close(self._task.tokens, len(self._task.tokens))
