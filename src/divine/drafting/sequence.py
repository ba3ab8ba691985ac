"""SequenceDraft: what drafting has been like for one sequence, and its figures.

Its recent rate of tokens says what time is worth to it, what was accepted lately how much a step
may risk, the model's confidence how predictable the text is. Decides nothing.
"""

from __future__ import annotations

from divine.drafting.base import DraftTask
from divine.drafting.counts import DepthCounts
from divine.drafting.member import Member
from divine.drafting.tree import DraftTree

_RATE_FADE = 0.96  # per pass: what time is worth looks back some 25 passes
_RATE_PRIOR = 8.0  # plain passes that a new sequence starts with
_FIRST_STAKE = 0.4  # of a plain pass: what a step may risk before anything was accepted
_FIRST_DEPTH = 4.0  # how deep a step may go before anything was accepted
_STAKE_FADE = 0.6  # per step: what was accepted may be risked again for a few steps
_CONFIDENCE_PRIOR = (1.0, 0.75)  # tokens, mean
_CONFIDENCE_FADE = 0.95  # per token
_CONFIDENCE_TOKENS = 5.0  # to be seen before a text counts as known


class SequenceDraft:
    """One sequence's drafters, figures and recent past; made by Controller.begin().

    counts    drafter -> what became of its nodes at depth 1, 2, ...
    draft_ms  time spent in planning and in its drafters
    """

    def __init__(
        self, task: DraftTask, members: list[Member], nodes: int | None, depth: int | None
    ) -> None:
        self.task = task
        self.members = members
        self.nodes = nodes
        self.depth = depth
        self.counts: dict[str, list[DepthCounts]] = {member.name: [] for member in members}
        self.draft_ms = 0.0
        self.planned: DraftTree | None = None
        self.limit = 0  # nodes that it may have in the planned pass
        self.pass_ms = 0.0  # what the last planned pass was expected to take, drafting included
        self.units = 1.0  # the same in plain passes
        self.row_units = 0.0  # of the planned pass, what each node added, in plain passes
        self._tokens = self._time = _RATE_PRIOR
        self._earned = 0.0
        self._confidence = self._confidence_weight = 0.0
        self._settled = False
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
    def answered(self) -> int:
        """Tokens of the answer so far."""
        return len(self.task.tokens) - self.task.prompt_length

    def note(self, accepted: int, chosen: int, confidence: float | None, plain: bool) -> None:
        """Take in how the planned pass went; `plain`: it had no nodes."""
        self._tokens = self._tokens * _RATE_FADE + chosen
        self._time = self._time * _RATE_FADE + self.units
        self._earned = max(self._earned * _STAKE_FADE, float(accepted))
        self._settled = True
        # After drafted rows the last choice is more often a surprise: it is where drafts ended.
        if plain and confidence is not None:
            self._confidence = self._confidence * _CONFIDENCE_FADE + confidence
            self._confidence_weight = self._confidence_weight * _CONFIDENCE_FADE + 1
