"""The controller: how much to draft, for whom and with which drafter, zero included.

It knows what a pass costs (CostTable), how often claims come true (Calibration) and what time is
worth: the tokens per millisecond that the sequences really get, never less than plain decoding
gives. A node is worth its row while its path's probability is at least that rate times what the row
adds to the pass. Knows no model, no backend and no text; it can change speed and nothing else.
"""

from __future__ import annotations

import time
import warnings
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from divine.drafting.acceptance import Walk
from divine.drafting.base import Budget, Drafter, DraftTask
from divine.drafting.control.calibration import Calibration
from divine.drafting.control.costs import CostCurve, CostTable
from divine.drafting.control.counts import count_nodes
from divine.drafting.control.member import Asking, Member, Quote, Record, Taps
from divine.drafting.control.selection import (
    best_count,
    path_probabilities,
    ranked,
    share_rows,
    worthy_levels,
)
from divine.drafting.control.sequence import OpenShare, SequenceDraft
from divine.drafting.tree import DraftTree, merge
from divine.sampling import Histories

Wanting = Sequence[tuple[SequenceDraft, Histories, int]]

MOST_NODES = 64  # of a pass
MOST_LEVELS = 16  # that a costly drafter is asked for
_MEASURED = 1.5  # passes of plain decoding that must stand behind its cost before drafts get rows
_CHEAP = 0.1  # of a plain pass: rows that cost no more together need no caution
_ROW_PRICE = 0.5  # of the mean row, as a drafter's threshold: costs have steps, some rows are cheap
_HORIZON = 128  # tokens that are taken to come at least (if allowed), else as many as there were
# Open passes come singly where a free drafter has most of the text. So an investment waits, as who
# rents before he buys, until such passes have taken this share of its price.
_RENT = 0.7
_SMALL_INVESTMENT = 0.25  # of a plain pass: made without knowing how predictable the text is
_CAUTION_NEW, _CAUTION_KNOWN = 1.5, 1.1  # what an investment must promise, in times its price
_EXPERIENCE = 50  # nodes after which a drafter is known
_PROMISE = 0.15  # tokens a step that a drafter not at work, or in debt, must promise to gain
_HOPELESS = 0.05  # a path's probability below which no deeper level is looked at


@dataclass(slots=True)
class _Pass:
    """What planning one pass needs to know."""

    curve: CostCurve  # milliseconds by number of nodes
    plain: float  # milliseconds of a pass of the wanting sequences' roots alone
    price: float  # tokens per millisecond
    row_price: float  # a drafter's threshold for the probability of a path
    shared: bool  # several sequences take part
    measuring: bool  # plain decoding must be measured first: nothing gets a row


class Controller:
    """Plans the drafts of a model's sequences."""

    def __init__(
        self,
        costs: CostTable,
        drafters: Mapping[str, Drafter],
        vocabulary: int,
        max_rows: int,
        clock: Callable[[], float] = time.perf_counter,
        calibration: Calibration | None = None,
        taps: Collection[str] | None = None,
    ) -> None:
        """`max_rows`: of a pass; `clock` gives seconds; `calibration`: what is known already;
        `taps`: those that drafters may ask for, None for any.
        """
        self._taps = taps
        self.costs = costs
        self.calibration = Calibration() if calibration is None else calibration
        self._drafters = drafters
        self._vocabulary = vocabulary
        self._max_rows = max_rows
        self._clock = clock
        self._open_share = OpenShare()
        self._records: dict[str, Record] = {}

    def begin(
        self,
        task: DraftTask,
        names: Sequence[str],
        *,
        nodes: int | None = None,
        depth: int | None = None,
    ) -> SequenceDraft:
        """Start drafting for a sequence, before its prompt is read.

        `names`: the drafters it may use; names[i] is bit i of its nodes' sources. With rejection
        sampling only the first is used. `nodes`: draft exactly so many whenever so many are
        proposed, worth it or not (for experiments); None: as many as are worth it. `depth`: the
        greatest that drafters are asked for.
        """
        used = names[:1] if task.rejection else names
        members = [
            Member(
                self._drafters[name],
                task,
                self.calibration,
                self._records.setdefault(name, Record()),
                self._taps,
            )
            for name in used
        ]
        return SequenceDraft(task, members, nodes, depth, self._open_share)

    def plan(self, wanting: Wanting, other_rows: int, context: int) -> list[DraftTree]:
        """The tree of each sequence that is about to decode; often an empty one.

        `wanting`: sequence, its histories at the root, the most nodes it may have. `other_rows`:
        rows that the pass has anyway, the sequences' roots included. `context`: mean positions of a
        row.
        """
        began = self._clock()
        nothing = DraftTree()
        trees = [nothing] * len(wanting)
        drafting = False
        for draft, _, _ in wanting:
            draft.planned, draft.units = nothing, 1.0
            drafting = drafting or bool(draft.members)
        if not drafting:
            return trees
        room = min(self._max_rows - other_rows, MOST_NODES)
        here = self._situation(wanting, other_rows, max(room, 0), context)
        proposals = [
            self._propose(draft, histories, most, here) for draft, histories, most in wanting
        ]
        if any(proposals):
            self._cut(wanting, proposals, here, trees)
        took = (self._clock() - began) * 1e3
        nodes = sum(map(len, trees))
        added = here.curve[nodes] - here.curve[0]
        pass_ms = here.plain + added + took
        units, row_units = pass_ms / here.plain, added / here.plain / max(nodes, 1)
        for (draft, _, _), tree in zip(wanting, trees, strict=True):
            draft.planned = tree
            draft.pass_ms, draft.units, draft.row_units = pass_ms, units, row_units
        return trees

    def settle(
        self,
        draft: SequenceDraft,
        tree: DraftTree,
        walk: Walk,
        taps: Taps,
        confidence: float | None = None,
    ) -> None:
        """A planned pass was run and its walk's tokens are appended: count, learn, tell drafters.

        `confidence`: the model's own probability of the token it chose last, if known.
        """
        if draft.planned is tree:  # each pass counts once
            draft.planned = None
            if tree.tokens:
                count_nodes(tree, walk.nodes, draft.nodes_counted, draft.counts.values())
            draft.note(tree, walk, confidence)
            for bit, member in enumerate(draft.members):
                member.learn(walk.tokens, tree, walk.nodes)
                if not member.free:
                    member.account(tree, walk.nodes, 1 << bit, draft.row_units)
        for member in draft.members:
            member.observe(taps)

    def observe_pass(self, rows: int, context: int, ms: float) -> None:
        """A pass took `ms`; planning and drafters are not part of it."""
        self.costs.observe(rows, context, ms)

    def cancel(self) -> None:
        """Cut short what a drafter is doing, from any thread."""
        self._tell_drafters("cancel")

    def forget(self) -> None:
        """Drop what drafters keep for sequences to come."""
        self._tell_drafters("forget")

    def release(self) -> None:
        """Close the drafters: nothing is drafted any more."""
        self._tell_drafters("close")

    def close(self, draft: SequenceDraft) -> None:
        """The sequence has ended."""
        for member in draft.members:
            member.close()

    def _tell_drafters(self, what: Literal["cancel", "forget", "close"]) -> None:
        for drafter in list(self._drafters.values()):
            try:
                getattr(drafter, what)()
            except Exception as error:  # noqa: BLE001 - one drafter's fault is no other's
                warnings.warn(
                    f"drafter {drafter.name!r} failed to {what}: {type(error).__name__}: {error}",
                    RuntimeWarning,
                    stacklevel=3,
                )

    def _situation(self, wanting: Wanting, other_rows: int, room: int, context: int) -> _Pass:
        costs, roots = self.costs, len(wanting)
        curve = costs.curve(other_rows, room, context)
        # Prompts in this pass have to be read anyway: time is worth what decoding makes of it.
        plain = curve[0] if other_rows == roots else costs.cost(roots, context)
        price = sum(draft.rate for draft, _, _ in wanting) / plain
        span = min(room, 8)
        row = (curve[span] - curve[0]) / span if span else 0.0
        measuring = other_rows == 1 and costs.weight(1) < _MEASURED
        return _Pass(curve, plain, price, _ROW_PRICE * price * row, roots > 1, measuring)

    def _propose(
        self, draft: SequenceDraft, histories: Histories, most: int, here: _Pass
    ) -> DraftTree | None:
        """What its drafters propose, merged, claims calibrated; None if nothing.

        Free drafters are asked even if nothing may get a row: what they say is scored all the same.
        """
        for member in draft.members:
            member.offer = None
        if here.shared and draft.nodes is None and draft.rests():
            for member in draft.members:
                if not member.free:
                    member.slept(draft.pass_ms)
            return None
        curve = here.curve
        if draft.nodes is not None:
            limit = draft.nodes
        else:
            limit = max(1, bisect_right(curve, curve[0] + draft.stake * here.plain) - 1)
        draft.limit = limit = min(limit, most, len(curve) - 1)
        if limit <= 0:
            return None
        depth = limit if draft.depth is None else min(draft.depth, limit)
        if draft.nodes is None and draft.deepest < depth:
            cheap = bisect_right(curve, curve[0] + _CHEAP * here.plain) - 1
            depth = min(depth, max(draft.deepest, cheap))
        trees: list[DraftTree] = []
        for bit, member in enumerate(draft.members):
            if member.free and member.session is not None:
                budget = _budget(draft, member, depth, here)
                _collect(trees, member, bit, member.propose(histories, budget, self._vocabulary))
        for bit, member in enumerate(draft.members):
            if not member.free and member.session is not None:
                tree = self._ask(draft, member, histories, most, depth, here, trees)
                _collect(trees, member, bit, tree)
        return merge(trees) if trees else None

    def _ask(
        self,
        draft: SequenceDraft,
        member: Member,
        histories: Histories,
        most: int,
        depth: int,
        here: _Pass,
        others: Sequence[DraftTree],
    ) -> DraftTree | None:
        """Ask a drafter that takes time, if that promises to pay beyond what others propose."""
        quote = member.quote()
        if quote is None:
            return None
        promising = True
        if draft.nodes is None:
            depth = 0 if here.measuring else _worthy_depth(draft, member, quote, most, here, others)
            promising = depth > 0
            probe = quote.invest + quote.step(1) + here.curve[1] - here.curve[0]
            if not promising and member.may_probe(probe):
                depth = 1
            if not depth:
                member.slept(draft.pass_ms)
                return None
        circumstances = Asking(draft.confidence, promising, here.plain)
        began = self._clock()
        budget = _budget(draft, member, depth, here)
        tree = member.propose(histories, budget, self._vocabulary)
        member.asked(quote, tree, (self._clock() - began) * 1e3, circumstances)
        return tree

    def _cut(
        self,
        wanting: Wanting,
        proposals: Sequence[DraftTree | None],
        here: _Pass,
        trees: list[DraftTree],
    ) -> None:
        """Choose the nodes that get rows; all sequences share one budget."""
        taken = 0
        contest: list[tuple[int, DraftTree, list[int], list[float]]] = []
        for index, ((draft, _, _), proposal) in enumerate(zip(wanting, proposals, strict=True)):
            if proposal is None or (here.measuring and draft.nodes is None):
                continue
            limit = min(draft.limit, len(here.curve) - 1 - taken)
            if draft.task.rejection:
                curve = here.curve.after(taken, limit)
                price = here.price if draft.nodes is None else 0.0
                offer = draft.members[0].offer
                assert offer is not None
                trees[index] = offer.keep(worthy_levels(proposal, curve, price))
                taken += len(trees[index])
                continue
            paths = path_probabilities(proposal)
            order = ranked(paths, limit)
            if draft.nodes is not None:
                trees[index] = proposal.keep(order)
                taken += len(order)
            else:
                contest.append((index, proposal, order, [paths[node] for node in order]))
        if contest:
            shares = share_rows(
                [entry[3] for entry in contest],
                here.curve.after(taken, MOST_NODES),
                here.price,
                here.plain,
                len(wanting),
            )
            for (index, proposal, order, _), share in zip(contest, shares, strict=True):
                if share == len(proposal):
                    trees[index] = proposal
                elif share:
                    trees[index] = proposal.keep(order[:share])


def _budget(draft: SequenceDraft, member: Member, depth: int, here: _Pass) -> Budget:
    if draft.nodes is not None:
        return Budget(draft.limit, depth)
    return Budget(draft.limit, depth, here.row_price, here.price, member.claims.probability)


def _collect(trees: list[DraftTree], member: Member, bit: int, tree: DraftTree | None) -> None:
    """Add a proposal with calibrated claims and the drafter's bit as source."""
    if tree is not None:
        probability = member.claims.probability
        claims = list(map(probability, tree.depths(), tree.claims))
        trees.append(DraftTree(tree.tokens, tree.parents, claims, [1 << bit] * len(tree)))


def _worthy_depth(
    draft: SequenceDraft,
    member: Member,
    quote: Quote,
    most: int,
    here: _Pass,
    others: Sequence[DraftTree],
) -> int:
    """How deep to ask a drafter that takes time; 0: not now."""
    curve, price, confidence = here.curve, here.price, draft.confidence
    deepest = min(MOST_LEVELS, most, len(curve) - 1, draft.depth or MOST_LEVELS)
    reach, tokens = 1.0, 0.0
    gain, best, expected = 0.0, 0, 0.0
    for depth in range(1, deepest + 1):
        reach *= member.acceptance(depth, confidence)
        tokens += reach
        net = tokens - price * (quote.step(depth) + curve[depth] - curve[0])
        if net > gain:
            gain, best, expected = net, depth, tokens
        if reach < _HOPELESS:
            break
    if best and others:
        paths = path_probabilities(merge(others))
        gain -= best_count(sorted(paths, reverse=True)[: draft.limit], curve, price, here.plain)[1]
    if gain > (0.0 if member.allowance > 0 else _PROMISE) and _repays(
        draft, member, quote, most, gain, expected, here
    ):
        depth, stake = best, draft.stake
        if member.allowance > 0:
            # One level more: the drafter stops by itself where its claims are low.
            depth, stake = min(best + 1, deepest), min(stake, member.allowance)
        stake *= here.plain
        while depth > 1 and quote.step(depth) + curve[depth] - curve[0] > stake:
            depth -= 1
        return depth
    return 0


def _repays(
    draft: SequenceDraft,
    member: Member,
    quote: Quote,
    most: int,
    gain: float,
    expected: float,
    here: _Pass,
) -> bool:
    """Whether an investment comes back in the tokens still to come."""
    new = member.experience < _EXPERIENCE
    if new and quote.invest > _SMALL_INVESTMENT * here.plain and not draft.knows_the_text:
        return False
    if draft.open_passes * here.plain < _RENT * quote.invest:
        return False
    horizon = min(most + 1, max(_HORIZON, draft.answered)) * draft.open_share
    caution = _CAUTION_NEW if new else _CAUTION_KNOWN
    return gain * horizon / (1 + expected) > caution * here.price * quote.invest
