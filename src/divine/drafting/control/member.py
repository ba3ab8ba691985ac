"""Member: one drafter at work for one sequence. It asks, checks, scores and, on a fault, drops it.

Holds what the controller knows of the drafter here: how right its claims are, what asking it would
bring and take, how long it has been asleep. Decides nothing about rows.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from divine.drafting.base import Budget, Drafter, DraftSession, DraftTask
from divine.drafting.control.calibration import Calibration, ClaimFilter
from divine.drafting.tree import ROOT, DraftTree
from divine.sampling import Histories, Sampler

Taps = Mapping[str, NDArray[np.float32]]

_PREDICTED = 1.3  # prior of a draft model's acceptance: the model's own confidence to this power
_DEEPER = 0.985  # prior factor of acceptance for each further level
_UNOBSERVED = 0.98  # of what is known about a sequence, kept per pass that shows nothing
_PROBE_SHARE = 0.01  # of the time since a drafter was last asked that asking again may take
_MOST_FAILURES = 6
_HOPE = 0.8  # standard deviations that the benefit of the doubt is worth to a drafter at work,
_ALLOWANCE = 2.0  # until it has lost the time of so many plain passes
_MOST_CREDIT = 1.0  # plain passes: old gains do not pay for new losses
_TIME_GAIN = 0.1  # of the newest figure, in what all sequences learn of a drafter's time
_NO_TAPS: Taps = {}


@dataclass(slots=True)
class Record:
    """What all sequences learn together about one drafter."""

    time_ratio: float = 1.0  # time taken over time announced
    catch_up: float = 0.0  # announced milliseconds, if it was asked in the step before
    warned: bool = False


@dataclass(frozen=True, slots=True)
class Quote:
    """What asking takes now, in milliseconds."""

    level: float  # each level of depth
    once: float  # every time, whatever the depth
    invest: float  # once for a long time: a prompt to read, a gap to fill

    def step(self, depth: int) -> float:
        """Of one step at this depth, the investment left out."""
        return self.once + depth * self.level


@dataclass(frozen=True, slots=True)
class Asking:
    """The circumstances in which a drafter that takes time is asked."""

    confidence: float  # of the model, lately
    promising: bool  # it is expected to pay; else a probe
    plain_ms: float  # of a plain pass


class Member:
    """A drafter's session and its record; `session` is None once it has failed or ended."""

    def __init__(
        self,
        drafter: Drafter,
        task: DraftTask,
        calibration: Calibration,
        record: Record,
        taps: Collection[str] | None = None,
    ) -> None:
        """`taps`: those that there are, None if that need not be checked."""
        self.name = drafter.name
        self.free = drafter.free
        self.offer: DraftTree | None = None  # of this step, with the drafter's own claims
        self.claims = ClaimFilter(calibration.table(self.name, not task.sampler.params.greedy))
        # Acceptance by depth, with the model's confidence in the place of a claim.
        self._level_table = calibration.table(
            f"{self.name} by confidence", not task.sampler.params.greedy
        )
        self.levels = ClaimFilter(self._level_table)
        self.idle_ms = 0.0  # since it was last asked
        self._steps = -1  # since it was last asked; -1: never
        self._engaged = False  # asked because it promised to pay, not as a probe
        self._balance = 0.0  # plain passes gained since it was engaged, what was invested left out
        self._owed = 0.0  # of this step, to be set against what is accepted
        self._failures = 0  # askings in a row without a right node
        self._confidence = 0.0  # when it was last asked
        self._rejection = task.rejection
        self._sampler = task.sampler
        self.taps = drafter.taps
        self._record = record
        self.session: DraftSession | None = None
        try:
            unknown = [] if taps is None else [tap for tap in drafter.taps if tap not in taps]
            if unknown:
                self.taps = ()
                raise ValueError(f"it asks for the tap {unknown[0]!r}, which there is not")
            self.session = drafter.begin(task)
            if self.session is None:
                raise ValueError("begin() gave no session")
        except Exception as error:  # noqa: BLE001 - whatever a drafter does, the text goes on
            self._fail(error)

    @property
    def experience(self) -> int:
        """Nodes of this drafter whose fate is known, in all sequences."""
        return self._level_table.nodes

    @property
    def allowance(self) -> float:
        """Plain passes that it may still lose here before only its record counts."""
        return max(_ALLOWANCE + self._balance, 0.0) if self._engaged else 0.0

    def acceptance(self, depth: int, confidence: float) -> float:
        """The expected share of right nodes at this depth, below right ones.

        For a drafter at work that has not lost much: the share it may well turn out to have, so
        that a few unlucky nodes do not stop a good one.
        """
        claim = _predicted(confidence, depth)
        if self.allowance > 0:
            return self.levels.hopeful(depth, claim, _HOPE)
        return self.levels.probability(depth, claim)

    def quote(self) -> Quote | None:
        """What asking takes now; None if it cannot be asked now."""
        if self.session is None:
            return None
        try:
            one, two = float(self.session.cost_ms(1)), float(self.session.cost_ms(2))
            if not (one >= 0 and two >= 0):
                raise ValueError(f"its cost is {one} ms, {two} ms")
        except Exception as error:  # noqa: BLE001
            self._fail(error)
            return None
        if max(one, two) == math.inf:
            return None
        ratio = self._record.time_ratio
        level = max(two - one, 0.0)
        fill = max(one - level, 0.0)
        once = fill if self._steps == 0 else min(fill, self._record.catch_up)
        return Quote(level * ratio, once * ratio, (fill - once) * ratio)

    def propose(self, histories: Histories, budget: Budget, vocabulary: int) -> DraftTree | None:
        """Its tree, well-formed and kept as the offer of this step; None if there is none."""
        if self.session is None:
            return None
        try:
            tree = self.session.propose(histories, budget)
            if not tree.tokens:
                return None
            tree.check(vocabulary)
            tree = _allowed(tree, self._sampler, histories)
            if not tree.tokens:
                return None
        except Exception as error:  # noqa: BLE001
            self._fail(error)
            return None
        self.offer = tree
        return tree

    def asked(self, quote: Quote, tree: DraftTree | None, took_ms: float, here: Asking) -> None:
        """Note an asking that costs time, and learn what it costs."""
        record = self._record
        if self._steps == 0:
            catch_up = quote.once / record.time_ratio
            record.catch_up += _TIME_GAIN * (catch_up - record.catch_up)
        self.idle_ms, self._steps = 0.0, 0
        self._confidence = here.confidence
        self._engaged = self._engaged or here.promising
        self._owed = max(took_ms - quote.invest, 0.0) / here.plain_ms
        announced = quote.invest + quote.step(max(tree.depths()) if tree is not None else 1)
        if announced > 0.5:
            ratio = min(max(took_ms / announced, 0.5), 2.0)
            record.time_ratio *= 1 + _TIME_GAIN * (ratio - 1)
            record.time_ratio = min(max(record.time_ratio, 0.25), 4.0)

    def may_probe(self, cost_ms: float) -> bool:
        """Asking although it does not promise to pay: rarely, and more rarely after failures."""
        return self.idle_ms * _PROBE_SHARE >= cost_ms * (1 << self._failures)

    def slept(self, ms: float) -> None:
        """A step in which it was not asked."""
        self.idle_ms += ms
        self._steps += self._steps >= 0
        self.levels.rest(1.0)

    def account(self, tree: DraftTree, accepted: Sequence[int], source: int, row: float) -> None:
        """Set what only this drafter brought against its time and rows (`row`: plain passes)."""
        if self._steps or not self._engaged:
            return
        nodes = tree.sources.count(source)
        gained = sum(tree.sources[node] == source for node in accepted)
        balance = self._balance + gained - nodes * row - self._owed
        self._balance = min(balance, _MOST_CREDIT)
        self._owed = 0.0

    def learn(self, chosen: Sequence[int], tree: DraftTree, accepted: Sequence[int]) -> None:
        """Score its offer against the tokens the model chose, whether it got rows or not."""
        offer, self.offer = self.offer, None
        if self._rejection:
            self._learn_rows(tree, accepted)
            return
        if offer is None:
            return
        path = {ROOT: 0}
        reached: dict[int, bool] = {}  # depth with nodes below the path -> one of them is right
        for node, (token, parent, claim) in enumerate(
            zip(offer.tokens, offer.parents, offer.claims, strict=True)
        ):
            depth = path.get(parent, -1) + 1
            if not 0 < depth <= len(chosen):
                continue
            right = token == chosen[depth - 1]
            self.claims.observe(depth, claim, right)
            reached[depth] = reached.get(depth, False) or right
            if right:
                path[node] = depth
        if self.free:
            return
        for depth, right in reached.items():
            self.levels.observe(depth, _predicted(self._confidence, depth), right)
        self._failures = 0 if reached[1] else min(self._failures + 1, _MOST_FAILURES)

    def observe(self, taps: Taps) -> None:
        """Tell the session what was committed."""
        if self.session is None:
            return
        try:
            self.session.observe(
                {name: taps[name] for name in self.taps} if self.taps else _NO_TAPS
            )
        except Exception as error:  # noqa: BLE001
            self._fail(error)

    def close(self) -> None:
        """End the session; twice is fine."""
        session, self.session, self.offer = self.session, None, None
        if session is None:
            return
        try:
            session.close()
        except Exception as error:  # noqa: BLE001
            self._warn(error)

    def _learn_rows(self, tree: DraftTree, accepted: Sequence[int]) -> None:
        """Rejection sampling: only a node's own trial tells; comparing tokens would not."""
        if not tree.tokens:
            self.claims.rest(_UNOBSERVED)
            self.levels.rest(_UNOBSERVED)
            return
        parent = ROOT
        for depth, right in enumerate([*accepted, None], 1):
            tried = False
            for node in range(parent + 1, len(tree)):
                if tree.parents[node] == parent:
                    tried = True
                    self.claims.observe(depth, tree.claims[node], node == right)
                    if node == right:
                        break  # its later siblings were not tried
            if tried and not self.free:
                self.levels.observe(depth, _predicted(self._confidence, depth), right is not None)
            parent = ROOT if right is None else right

    def _fail(self, error: Exception) -> None:
        self._warn(error)  # first, so that a fault in closing does not hide it
        self.close()

    def _warn(self, error: Exception) -> None:
        if not self._record.warned:
            self._record.warned = True
            reason = type(error).__name__
            with contextlib.suppress(Exception):  # whatever its text is made by
                said = str(error).strip().partition("\n")[0]
                reason += f": {said}" if said else ""
            warnings.warn(
                f"drafter {self.name!r} failed and is left out: {reason}",
                RuntimeWarning,
                stacklevel=2,
            )


def _allowed(tree: DraftTree, sampler: Sampler, histories: Histories) -> DraftTree:
    """The tree without what the sampler's constraint forbids: it would never be chosen.

    Drawn nodes stay: rejecting them is part of the rule that keeps the distribution.
    """
    constraint = sampler.constraint
    if constraint is None or tree.draws is not None:
        return tree
    states = {ROOT: histories[-1]}
    for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
        if parent in states and constraint.accepts(states[parent], token):
            states[node] = constraint.advance(states[parent], token)
    del states[ROOT]
    return tree if len(states) == len(tree) else tree.keep(states)


def _predicted(confidence: float, depth: int) -> float:
    """The acceptance to expect of a draft model at this depth before it was ever tried."""
    return float(confidence**_PREDICTED * _DEEPER ** (depth - 1))
