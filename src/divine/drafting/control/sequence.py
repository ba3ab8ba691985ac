"""SequenceDraft: what drafting has been like for one sequence, and its figures.

Its recent rate of tokens says what time is worth to it, what was accepted lately how much a step
may risk, the model's confidence how predictable the text is. Decides nothing.
"""

from __future__ import annotations

import math

from divine.drafting.acceptance import Walk
from divine.drafting.base import DraftTask
from divine.drafting.control.counts import DepthCounts
from divine.drafting.control.member import Member
from divine.drafting.tree import DraftTree

_RATE_FADE = 0.96  # per pass: what time is worth looks back some 25 passes
_RATE_PRIOR = 8.0  # plain passes that a new sequence starts with
_FIRST_STAKE = 0.4  # of a plain pass: what a step may risk before anything was accepted
_FIRST_DEPTH = 4.0  # how deep a step may go before anything was accepted
_STAKE_FADE = 0.6  # per step: what was accepted may be risked again for a few steps
_CONFIDENCE_PRIOR = (1.0, 0.75)  # tokens, mean
_CONFIDENCE_FADE = 0.95  # per token
_CONFIDENCE_TOKENS = 5.0  # to be seen before a text counts as known


# In passes with other sequences: after so many fruitless askings in a row every second one is left
# out, after twice as many all but every fourth.
_FRUITLESS = 4
_MOST_REST = 2  # twofold


_OPEN_PRIOR = (32.0, 0.8)  # tokens, share: of all sequences, before any was seen
_OPEN_FADE = 0.999  # per token
_OPEN_TOKENS = 24.0  # of a sequence that all sequences together are worth


class OpenShare:
    """The share of tokens, over all sequences, that no free drafter had proposed.

    Only these can be hastened by a drafter that takes time.
    """

    def __init__(self) -> None:
        weight, share = _OPEN_PRIOR
        self._open, self._all = weight * share, weight

    @property
    def value(self) -> float:
        """0 to 1."""
        return self._open / self._all

    def observe(self, chosen: int, left_open: bool) -> None:
        """A pass chose so many tokens."""
        fade = _OPEN_FADE**chosen
        self._open = self._open * fade + (chosen if left_open else 0)
        self._all = self._all * fade + chosen


class SequenceDraft:
    """One sequence's drafters, figures and recent past; made by Controller.begin().

    counts         drafter -> what became of its nodes at depth 1, 2, ...
    nodes_counted  the same of all nodes, whoever proposed them
    """

    def __init__(
        self,
        task: DraftTask,
        members: list[Member],
        nodes: int | None,
        depth: int | None,
        open_share: OpenShare,
    ) -> None:
        self.task = task
        self.members = members
        self.nodes = nodes
        self.depth = depth
        self.counts: dict[str, list[DepthCounts]] = {member.name: [] for member in members}
        self.nodes_counted: list[DepthCounts] = []
        self.planned: DraftTree | None = None
        self.limit = 0  # nodes that it may have in the planned pass
        self.pass_ms = 0.0  # what the last planned pass was expected to take, drafting included
        self.units = 1.0  # the same in plain passes
        self.row_units = 0.0  # of the planned pass, what each node added, in plain passes
        self._tokens = self._time = _RATE_PRIOR
        self._earned = 0.0
        self._confidence = self._confidence_weight = 0.0
        self._settled = False
        self._all_sequences = open_share
        self._open = self._chosen = 0.0
        self._open_passes = 0
        self._fruitless = 0  # askings in a row of which nothing came true
        self._rested = 0  # passes since it was last asked
        self._free = sum(1 << bit for bit, member in enumerate(members) if member.free)
        self.taps = tuple(dict.fromkeys(tap for member in members for tap in member.taps))
        self.wants_confidence = not all(member.free for member in members)

    @property
    def rate(self) -> float:
        """Tokens in the time of a plain pass, lately; at least 1."""
        return max(self._tokens / self._time, 1.0)

    @property
    def stake(self) -> float:
        """How much time a step may risk, in plain passes."""
        return _FIRST_STAKE + self._earned

    @property
    def deepest(self) -> int:
        """How deep a step may go: twice what came true lately, and some."""
        return int(_FIRST_DEPTH + 2 * self._earned)

    @property
    def confidence(self) -> float:
        """The model's own probability of what it chose: the mean over recent plain passes."""
        weight, mean = _CONFIDENCE_PRIOR
        return (weight * mean + self._confidence) / (weight + self._confidence_weight)

    @property
    def knows_the_text(self) -> bool:
        """Enough was seen to say how predictable this text is, or nobody tells."""
        weight = self._confidence_weight
        return weight >= _CONFIDENCE_TOKENS or (self._settled and weight == 0)

    @property
    def open_share(self) -> float:
        """The share of its tokens that a drafter which takes time could hasten."""
        if not self._free:
            return 1.0
        known = _OPEN_TOKENS * self._all_sequences.value
        return (known + self._open) / (_OPEN_TOKENS + self._chosen)

    @property
    def open_passes(self) -> float:
        """Passes in which no free drafter had been right; infinite if there is none."""
        return self._open_passes if self._free else math.inf

    @property
    def answered(self) -> int:
        """Tokens of the answer so far."""
        return len(self.task.tokens) - self.task.prompt_length

    def rests(self) -> bool:
        """Asking its drafters is left out this time: it has brought nothing lately.

        Where sequences share passes, the time that asking takes is all sequences' time, while a
        copy that begins a few tokens late is one's loss.
        """
        self._rested += 1
        if self._rested < 1 << min(self._fruitless // _FRUITLESS, _MOST_REST):
            return True
        self._rested = 0
        return False

    def note(self, tree: DraftTree, walk: Walk, confidence: float | None) -> None:
        """Take in how the planned pass went."""
        accepted, chosen, plain = len(walk.nodes), len(walk.tokens), not tree.tokens
        left_open = not any(tree.sources[node] & self._free for node in walk.nodes)
        self._open += chosen if left_open else 0
        self._open_passes += left_open
        self._chosen += chosen
        self._all_sequences.observe(chosen, left_open)
        self._tokens = self._tokens * _RATE_FADE + chosen
        self._time = self._time * _RATE_FADE + self.units
        self._fruitless = 0 if accepted else self._fruitless + (self._rested == 0)
        self._earned = max(self._earned * _STAKE_FADE, float(accepted))
        self._settled = True
        # After drafted rows the last choice is more often a surprise: it is where drafts ended.
        if plain and confidence is not None:
            self._confidence = self._confidence * _CONFIDENCE_FADE + confidence
            self._confidence_weight = self._confidence_weight * _CONFIDENCE_FADE + 1
