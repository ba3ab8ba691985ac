"""Between the engine's steps and the controller: who drafts, which walk accepts, what is counted.

Knows slices and sequences; what is worth drafting is the controller's business (drafting/).
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from divine.backends.base import PassResult
from divine.drafting import Controller, DraftTask, Walk, walk, walk_by_rejection
from divine.engine.passes import Choices
from divine.engine.scheduler import Slice
from divine.engine.sequence import Sequence
from divine.sampling import Purpose, stream


class Speculation:
    """Drafts for the sequences of one engine."""

    def __init__(self, controller: Controller, context: int) -> None:
        self.controller = controller
        self._context = context
        self._drafting: SequenceOf[Sequence] = ()  # those that drafters are busy with

    def begin(self, sequence: Sequence) -> None:
        """The sequence has got a state: drafters that it allows may look at its prompt."""
        request = sequence.request
        if not request.drafters:
            return
        task = DraftTask(
            tokens=sequence.tokens,
            prompt_length=sequence.prompt_length,
            sampler=sequence.sampler,
            context=self._context,
            guess=request.guess,
            rejection=sequence.rejection,
        )
        sequence.draft = self.controller.begin(task, request.drafters, nodes=request.draft_nodes)

    def draft(self, slices: SequenceOf[Slice]) -> None:
        """Hang trees below the slices that decode."""
        wanting = [
            part
            for part in slices
            if part.chooses and part.sequence.decoding and part.sequence.draft is not None
        ]
        if not wanting:
            return
        self._drafting = [part.sequence for part in wanting]
        began = perf_counter()
        asked = [
            (part.sequence.draft, part.sequence.histories, part.sequence.room)
            for part in wanting
            if part.sequence.draft is not None
        ]
        rows, context = _extent(slices)
        try:
            trees = self.controller.plan(asked, rows, context)
        finally:
            self._drafting = []
        for part, tree in zip(wanting, trees, strict=True):
            part.tree = tree
        seconds = perf_counter() - began
        for part in wanting:
            part.sequence.meter.draft_seconds += seconds

    def cancel(self, sequence: Sequence) -> None:
        """The sequence will be ended, from any thread: drafters need not go on with it."""
        if sequence in self._drafting:
            self.controller.cancel()

    def settle(self, part: Slice, walked: Walk, choices: Choices, result: PassResult) -> None:
        """Tell the drafters of a sequence what became of their guesses, and show them its rows."""
        draft = part.sequence.draft
        if draft is None:
            return
        taps: dict[str, NDArray[np.float32]] = {}
        if draft.taps:
            committed = [*range(part.count), *(part.count + node for node in walked.nodes)]
            taps = {
                name: result.taps[name][[part.tapped[name] + row for row in committed]]
                for name in draft.taps
            }
        confidence = choices.confidence() if part.chooses and draft.wants_confidence else None
        self.controller.settle(draft, part.tree, walked, taps, confidence)

    def end(self, sequence: Sequence) -> None:
        """The sequence has ended; its counts stay with it."""
        if sequence.draft is not None:
            self.controller.close(sequence.draft)

    def observe(self, slices: SequenceOf[Slice], seconds: float) -> None:
        """What a pass cost, from the end of drafting to what was chosen being taken in."""
        rows, context = _extent(slices)
        self.controller.observe_pass(rows, context, 1e3 * seconds)

    def plain_seconds(self, context: int) -> float:
        """What a pass of one row would have taken: an estimate."""
        return 1e-3 * self.controller.costs.cost(1, context)


def _extent(slices: SequenceOf[Slice]) -> tuple[int, int]:
    """Rows of a pass, drafted ones included, and the mean number of positions before a row."""
    rows = sum(part.rows for part in slices)
    return rows, sum(part.rows * part.sequence.committed for part in slices) // rows


def accept(part: Slice, choices: Choices) -> Walk:
    """The walk over a slice's tree by the rule that its sequence asked for."""
    sequence = part.sequence
    if not sequence.rejection:
        return walk(part.tree, choices)

    def random(position: int) -> np.random.Generator:
        sampler = sequence.sampler
        return stream(sampler.seed, sampler.choice, position, Purpose.ACCEPT)

    return walk_by_rejection(part.tree, choices, random)
