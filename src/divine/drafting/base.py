"""The seam between drafting and whatever guesses: Drafter, its session, and what they are given.

A drafter belongs to a model and is shared by its sequences; a session belongs to one sequence. What
a session proposes can change the speed of an answer and never its text. Knows no engine and no
costs: prices come with each call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from divine.drafting.tree import DraftTree
from divine.sampling import Histories, Sampler


@dataclass(frozen=True, slots=True)
class DraftTask:
    """The sequence that a session drafts for.

    tokens         prompt and answer so far; the engine's own list, which grows: never change it.
                   The last token is the root of what is proposed and not committed yet
    prompt_length  how many of them are the prompt
    sampler        parameters and shared noise; the child of the root is at position len(tokens)
    context        the most tokens the sequence may have
    guess          token ids of the caller's own guess at the answer; () if there is none
    rejection      nodes must be drawn (DraftTree.draws) and claims must not depend on the draw
    """

    tokens: Sequence[int]
    prompt_length: int
    sampler: Sampler
    context: int
    guess: Sequence[int] = ()
    rejection: bool = False


@dataclass(frozen=True, slots=True)
class Budget:
    """How much to propose, and what it must be worth.

    nodes       the most nodes
    depth       the greatest depth
    row_price   a node is worth its row in the pass if its path's probability is at least this
    time_price  tokens per millisecond: a further level that takes t ms must be expected to bring
                t * time_price accepted tokens
    calibrate   (depth, claim) -> the probability that such a claim has turned out to deserve
    """

    nodes: int
    depth: int
    row_price: float = 0.0
    time_price: float = 0.0
    calibrate: Callable[[int, float], float] = lambda depth, claim: claim


class DraftSession(Protocol):
    """Drafts for one sequence. Any call may raise: the drafter is then left out from there on."""

    def cost_ms(self, depth: int) -> float:
        """Milliseconds that proposing this deep would take now, catching up included.

        0 if it is free, infinite if nothing can be proposed now.
        """

    def propose(self, histories: Histories, budget: Budget) -> DraftTree:
        """A tree below the last token, best guesses first among siblings; empty if it has none.

        `histories` are the sampler's at the root. Nodes have sources 1; the caller renumbers.
        """

    def observe(self, taps: Mapping[str, NDArray[np.float32]]) -> None:
        """Rows were committed: taps name -> float32 [rows, dim] of the drafter's `taps`, in order.

        Called after every pass with rows of the sequence, its prompt's included. The task's tokens
        already contain what was chosen.
        """

    def close(self) -> None:
        """The sequence has ended: free what the session holds."""


class Drafter(Protocol):
    """Makes sessions; one for each name of `--draft`."""

    name: str
    free: bool  # takes microseconds: it may propose in every step, run or not, and be judged by it
    taps: tuple[str, ...]  # hidden states that observe() must be given; () for none

    def begin(self, task: DraftTask) -> DraftSession:
        """A session for one sequence; called before its prompt is read."""

    def cancel(self) -> None:
        """Cut short what a session is proposing, from any thread; its tree is empty then."""

    def forget(self) -> None:
        """Drop what is kept for sequences to come."""

    def close(self) -> None:
        """Free what the drafter holds."""


class FreeDrafter:
    """What drafters have in common that take microseconds and hold nothing."""

    free = True
    taps: tuple[str, ...] = ()

    def cancel(self) -> None:
        """Nothing takes long."""

    def forget(self) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is held."""
