"""What a drafter may do wrong, what is counted, and what rejection sampling asks of the cut."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable

import numpy as np
import pytest
from draft_simulator import FLAT, REAL, FakeDrafter, FakeSession, Simulator, quality

from divine.drafting import (
    ROOT,
    Budget,
    Controller,
    CostTable,
    DraftTask,
    DraftTree,
    SequenceDraft,
    Walk,
)
from divine.drafting.control.selection import best_count, share_rows, worthy_levels
from divine.sampling import Histories, Sampler, SamplingParams

VOCABULARY = 100


class Scripted:
    """A free drafter whose methods are given; the session is itself."""

    free = True
    taps: tuple[str, ...] = ("last",)

    def __init__(self, propose: Callable[[Budget], object], name: str = "scripted") -> None:
        self.name = name
        self.proposes = propose
        self.seen: list[object] = []
        self.closed = 0

    def begin(self, task: DraftTask) -> Scripted:
        return self

    def cost_ms(self, depth: int) -> float:
        return 0.0 if self.free else 1.0 * depth

    def propose(self, histories: Histories, budget: Budget) -> object:
        return self.proposes(budget)

    def observe(self, taps: object) -> None:
        self.seen.append(taps)

    def close(self) -> None:
        self.closed += 1


def begun(
    *drafters: Scripted, nodes: int | None = None, rejection: bool = False
) -> tuple[Controller, SequenceDraft]:
    controller = Controller(
        CostTable.frozen(FLAT),
        {d.name: d for d in drafters},
        VOCABULARY,
        16,  # type: ignore[misc]
    )
    sampler = Sampler(SamplingParams(temperature=0.0), VOCABULARY)
    task = DraftTask([1, 2, 3], 3, sampler, 100, rejection=rejection)
    return controller, controller.begin(task, [d.name for d in drafters], nodes=nodes)


def step(controller: Controller, draft: SequenceDraft, said: list[int] | None = None) -> DraftTree:
    tree = controller.plan([(draft, (), 50)], 1, 3)[0]
    controller.settle(draft, tree, Walk([], [7] if said is None else said), {"last": np.zeros(1)})
    return tree


def chain(*tokens: int, claim: float = 0.9) -> DraftTree:
    return DraftTree.chain(tokens, [claim] * len(tokens))


def raising(budget: Budget) -> DraftTree:
    raise RuntimeError("out of ideas")


ILL_FORMED = {
    "token": lambda budget: chain(5, VOCABULARY),
    "claim": lambda budget: chain(5, claim=float("nan")),
    "parent": lambda budget: DraftTree([5], [3], [0.5], [1]),
    "lists": lambda budget: DraftTree([5, 6], [ROOT], [0.5], [1]),
    "nothing": lambda budget: None,
    "raises": raising,
}


@pytest.mark.parametrize("fault", ILL_FORMED)
def test_a_drafter_that_fails_is_left_out_with_one_warning(fault: str) -> None:
    bad, good = Scripted(ILL_FORMED[fault], "bad"), Scripted(lambda b: chain(7, 8), "good")
    controller, draft = begun(bad, good)
    with pytest.warns(RuntimeWarning, match="drafter 'bad' failed and is left out: ") as caught:
        tree = step(controller, draft)
    assert len(caught) == 1
    assert tree.tokens == [7, 8]
    assert set(tree.sources) == {2}
    assert bad.closed == 1
    assert len(bad.seen) == 0
    for _ in range(5):
        assert step(controller, draft).tokens == [7, 8]  # and no second warning: those are errors
    again = controller.begin(draft.task, ["bad", "good"])
    step(controller, again)  # tried again, said once


@pytest.mark.parametrize("method", ["begin", "cost_ms", "observe", "close"])
def test_any_call_may_fail(method: str) -> None:
    def fail(*arguments: object) -> None:
        raise ValueError("no")

    drafter = Scripted(lambda budget: chain(7))
    drafter.free = method != "cost_ms"
    setattr(drafter, method, fail)

    def life() -> SequenceDraft:
        controller, draft = begun(drafter)
        for _ in range(4):
            step(controller, draft)
        controller.close(draft)
        controller.close(draft)
        return draft

    with pytest.warns(RuntimeWarning, match="ValueError: no"):
        draft = life()
    assert draft.members[0].session is None


class Unsayable(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("error", "said"), [(Unsayable(), "Unsayable$"), (KeyError("a\nb"), "KeyError: 'a"),
                        (ValueError("one\ntwo"), "ValueError: one$")],
)  # fmt: skip
def test_a_warning_is_one_line_whatever_was_raised(error: Exception, said: str) -> None:
    def fail(budget: Budget) -> DraftTree:
        raise error

    controller, draft = begun(Scripted(fail))
    with pytest.warns(RuntimeWarning, match=said):
        step(controller, draft)


def test_the_first_fault_is_told_and_a_session_must_be_given() -> None:
    drafter = Scripted(lambda budget: chain(7))
    drafter.begin = lambda task: object()  # type: ignore[method-assign,assignment,return-value]
    controller, draft = begun(drafter)
    with pytest.warns(RuntimeWarning, match="no attribute 'propose'"):
        step(controller, draft)
    drafter.begin = lambda task: None  # type: ignore[method-assign,assignment,return-value]
    with pytest.warns(RuntimeWarning, match="gave no session"):
        begun(drafter)


@pytest.mark.parametrize("cost", [float("nan"), -1.0])
def test_an_impossible_price_is_a_fault(cost: float) -> None:
    drafter = Scripted(lambda budget: chain(7))
    drafter.free = False
    drafter.cost_ms = lambda depth: cost  # type: ignore[method-assign]
    controller, draft = begun(drafter)
    with pytest.warns(RuntimeWarning, match="its cost is"):
        assert step(controller, draft).tokens == []


def test_a_drafter_that_cannot_now_is_asked_again_later() -> None:
    drafter = Scripted(lambda budget: chain(7))
    drafter.free = False
    drafter.cost_ms = lambda depth: float("inf")  # type: ignore[method-assign]
    controller, draft = begun(drafter, nodes=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert step(controller, draft).tokens == []
        drafter.cost_ms = lambda depth: 1.0 * depth  # type: ignore[method-assign]
        assert step(controller, draft).tokens == [7]


def test_an_interruption_passes_and_the_next_step_is_whole() -> None:
    interrupted = [True]

    def propose(budget: Budget) -> DraftTree:
        if interrupted:
            interrupted.clear()
            raise KeyboardInterrupt
        return chain(7, 8)

    drafter = Scripted(propose)
    controller, draft = begun(drafter)
    with pytest.raises(KeyboardInterrupt):
        controller.plan([(draft, (), 50)], 1, 3)
    assert step(controller, draft).tokens == [7, 8]
    assert draft.counts["scripted"][0].drafted == 1


def test_a_plan_whose_pass_was_lost_is_not_counted() -> None:
    controller, draft = begun(Scripted(lambda budget: chain(7, 8)))
    lost = controller.plan([(draft, (), 50)], 1, 3)[0]
    tree = controller.plan([(draft, (), 50)], 1, 3)[0]
    controller.settle(draft, lost, Walk([], [5]), {"last": np.zeros(1)})
    assert draft.counts["scripted"] == []
    controller.settle(draft, tree, Walk([0, 1], [7, 8, 9]), {"last": np.zeros(1)})
    controller.settle(draft, tree, Walk([0, 1], [7, 8, 9]), {"last": np.zeros(1)})
    assert [c.accepted for c in draft.counts["scripted"]] == [1, 1]


def test_counts_by_drafter_and_depth() -> None:
    wide = DraftTree([7, 4, 8], [ROOT, ROOT, 0], [0.6, 0.3, 0.5], [1, 1, 1])
    first, second = Scripted(lambda b: wide, "first"), Scripted(lambda b: chain(7, 9, 1), "second")
    controller, draft = begun(first, second, nodes=8)
    tree = controller.plan([(draft, (), 50)], 1, 3)[0]
    assert len(tree) == 5
    assert tree.sources[tree.tokens.index(7)] == 3
    path = [tree.tokens.index(7), tree.tokens.index(8)]
    controller.settle(draft, tree, Walk(path, [7, 8, 2]), {"last": np.zeros(1)})

    def figures(name: str) -> list[tuple[int, int, int]]:
        return [(c.accepted, c.rejected, c.unreached) for c in draft.counts[name]]

    assert figures("first") == [(1, 1, 0), (1, 0, 0)]
    assert figures("second") == [(1, 0, 0), (0, 1, 0), (0, 0, 1)]
    assert draft.counts["second"][2].drafted == 1


def test_free_drafters_are_judged_by_what_they_would_have_said() -> None:
    said = [7]
    drafter = Scripted(lambda budget: chain(said[0], claim=0.02))
    controller = Controller(CostTable.frozen({1: 50, 2: 75}), {"s": drafter}, VOCABULARY, 16)  # type: ignore[dict-item]
    sampler = Sampler(SamplingParams(temperature=0.0), VOCABULARY)
    draft = controller.begin(DraftTask([1], 1, sampler, 100), ["s"])
    sizes = [len(step(controller, draft)) for _ in range(40)]
    assert sizes[0] == 0  # not worth a row at what it claims
    assert sizes[-1] == 1  # but it was right every time


def test_taps_are_those_the_drafter_asked_for() -> None:
    drafter = Scripted(lambda budget: DraftTree())
    controller, draft = begun(drafter)
    tree = controller.plan([(draft, (), 50)], 1, 3)[0]
    states = np.zeros((1, 4), dtype=np.float32)
    controller.settle(draft, tree, Walk([], [7]), {"last": states, "other": states})
    assert [list(taps) for taps in drafter.seen] == [["last"]]  # type: ignore[call-overload]


def test_no_drafters_no_trees() -> None:
    controller, draft = begun()
    assert step(controller, draft).tokens == []


def test_the_budget_says_how_much() -> None:
    budgets: list[Budget] = []

    def propose(budget: Budget) -> DraftTree:
        budgets.append(budget)
        return DraftTree()

    controller, draft = begun(Scripted(propose))
    controller.plan([(draft, (), 50)], 1, 3)
    controller.plan([(draft, (), 2)], 1, 3)
    assert controller.plan([(draft, (), 0)], 1, 3)[0].tokens == []
    assert [budget.nodes for budget in budgets] == [15, 2]  # rows of a pass, tokens to come
    assert budgets[0].calibrate(1, 0.9) == pytest.approx(0.9)
    assert budgets[0].time_price == pytest.approx(1 / 50)


def test_the_best_cut_looks_across_steps() -> None:
    curve = [50.0, 60.0, 60.0, 60.0, 60.0, 100.0]
    falling = [0.1, 0.09, 0.08, 0.07, 0.06]
    assert best_count(falling, curve, 1 / 50, 50.0)[0] == 4  # 0.34 tokens for 10 ms
    assert best_count(falling[:1], curve, 1 / 50, 50.0)[0] == 0  # 0.1 for 10 ms is not enough
    assert share_rows([[0.9, 0.8], [0.5, 0.1]], curve, 1 / 50, 50.0, 2) == [2, 2]


def test_what_the_next_pass_brings_as_cheaply_is_left_to_it() -> None:
    """On a long copy every row may be worth its price; but after the best rate come only risks."""
    curve = [50.0 + 2.0 * n + (10.0 * (n - 16) if n > 16 else 0.0) for n in range(65)]
    falling = [0.99**n for n in range(1, 65)]
    most = best_count(falling, curve, 1 / 50, 50.0)[0]
    rates = [(1 + sum(falling[:n])) / curve[n] for n in range(65)]
    assert most == max(range(65), key=rates.__getitem__) == 16
    # Where time has lately brought more than this pass can, rows must bring that.
    dear = best_count([0.5, 0.25], [50.0, 55.0, 60.0], 4 / 50, 50.0)[0]
    assert dear == 1


def drawn(claims: list[float]) -> DraftTree:
    tree = DraftTree.chain([5] * len(claims), claims)
    tree.draws = [np.full(VOCABULARY, 0.01) for _ in claims]
    return tree


def test_drawn_nodes_are_cut_by_the_claims_above_only() -> None:
    curve = [50.0 + 10 * n for n in range(9)]
    price = 1 / 50
    levels = worthy_levels(drawn([0.9, 0.5, 0.1, 1.0]), curve, price)
    assert levels == [0, 1]
    # What lies below a level must not decide on it: its claims depend on what the level drew.
    for below in ([0.0], [1.0], [1.0, 1.0]):
        assert worthy_levels(drawn([0.9, 0.5, 0.1, *below]), curve, price) == levels
    pair = DraftTree([5, 6, 7], [ROOT, ROOT, 0], [0.5, 0.4, 0.9], [1, 1, 1])
    assert worthy_levels(pair, curve[:2], price) == []  # a level goes whole or not at all


def test_rejection_uses_one_drafter_and_keeps_its_draws() -> None:
    first, second = Scripted(lambda b: drawn([0.9, 0.8]), "a"), Scripted(lambda b: chain(9), "b")
    controller, draft = begun(first, second, rejection=True)
    assert [member.name for member in draft.members] == ["a"]
    tree = controller.plan([(draft, (), 50)], 1, 3)[0]
    assert tree.tokens == [5, 5]
    assert tree.draws is not None
    assert len(tree.draws) == 2
    assert tree.claims == [0.9, 0.8]
    controller.settle(draft, tree, Walk([0], [5, 7]), {"last": np.zeros(1)})
    assert draft.counts["a"][0].accepted == 1
    assert draft.counts["a"][1].rejected == 1


def test_rejection_learns_from_trials_only() -> None:
    drafter = Scripted(lambda budget: drawn([0.9]))
    controller, draft = begun(drafter, rejection=True)
    claims = draft.members[0].claims
    for _ in range(12):
        tree = controller.plan([(draft, (), 50)], 1, 3)[0]
        accepted = [0] if tree.tokens else []
        controller.settle(draft, tree, Walk(accepted, [6] * (len(accepted) + 1)), {"last": 0})  # type: ignore[dict-item]
    assert claims.probability(1, 0.9) > 0.9  # the token chosen was never equal; the trial passed


def test_random_trees_never_break_it() -> None:
    chance = random.Random(0)

    def propose(budget: Budget) -> DraftTree:
        tree = DraftTree()
        taken = set()
        for _ in range(chance.randrange(20)):
            parent = chance.randrange(-1, len(tree))
            token = chance.randrange(6)
            if (parent, token) not in taken:
                taken.add((parent, token))
                tree.add(token, parent, chance.choice([0.0, 0.1, 0.5, 0.9, 1.0]))
        return tree

    drafters = [Scripted(propose, name) for name in ("a", "b")]
    controller, draft = begun(*drafters)
    for _ in range(300):
        tree = controller.plan([(draft, (), 50)], 1, 3)[0]
        tree.check(VOCABULARY)
        assert len(tree) <= 15
        tokens, nodes, node = [], [], ROOT
        while True:
            tokens.append(chance.randrange(6))
            child = tree.child(node, tokens[-1])
            if child is None:
                break
            nodes.append(child)
            node = child
        controller.settle(draft, tree, Walk(nodes, tokens), {"last": np.zeros(1)})
    assert sum(c.drafted for c in draft.counts["a"]) > 0


def test_a_session_that_costs_is_asked_within_its_budget() -> None:
    drafter = FakeDrafter(quality(0.9), level_ms=1.0)
    asked: list[Budget] = []

    class Watched(FakeSession):
        def propose(self, histories: Histories, budget: Budget) -> DraftTree:
            asked.append(budget)
            return super().propose(histories, budget)

    drafter.begin = lambda task: Watched(drafter, task)  # type: ignore[method-assign]
    Simulator([drafter], REAL).run(100)
    assert all(1 <= budget.depth <= 16 for budget in asked)
    assert all(budget.row_price > 0 for budget in asked)


def test_a_tap_that_there_is_not_leaves_the_drafter_out() -> None:
    drafter = Scripted(lambda budget: chain(7), "odd")
    drafter.taps = ("nowhere",)
    controller = Controller(
        CostTable.frozen({1: 50, 2: 50.1}), {"odd": drafter}, VOCABULARY, 16, taps=("final",)
    )
    task = DraftTask([1, 2, 3], 3, Sampler(SamplingParams(temperature=0.0), VOCABULARY), 100)
    with pytest.warns(RuntimeWarning, match="'odd' failed and is left out: ValueError: it asks"):
        draft = controller.begin(task, ["odd"])
    assert draft.taps == ()
    assert controller.plan([(draft, (), 50)], 1, 3)[0].tokens == []


@pytest.mark.parametrize("what", ["cancel", "forget", "release"])
def test_a_drafter_that_cannot_even_end_keeps_no_other_from_it(what: str) -> None:
    ended: list[str] = []
    drafters: dict[str, Scripted] = {}
    for name in ("first", "second"):
        drafters[name] = Scripted(lambda budget: chain(7), name)

        def fail(name: str = name) -> None:
            ended.append(name)
            raise OSError("gone")

        for method in ("cancel", "forget", "close"):
            setattr(drafters[name], method, fail)
    controller = Controller(CostTable.frozen({1: 50, 2: 75}), drafters, VOCABULARY, 16)  # type: ignore[arg-type]
    with pytest.warns(RuntimeWarning, match="failed to .* gone"):
        getattr(controller, what)()
    assert ended == ["first", "second"]
