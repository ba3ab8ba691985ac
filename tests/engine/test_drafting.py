"""Drafting in the engine: whatever is guessed, the text, the logprobs and the end are the same."""

from __future__ import annotations

import random
import warnings

import pytest
from fake_model import END, VOCABULARY, ByteDecoder, FakeExecutable, greedy_tokens
from hypothesis import given, settings
from hypothesis import strategies as st

from divine.drafting import ROOT, Controller, CostTable, DraftTree
from divine.engine import Engine, Request
from divine.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0)
WARM = SamplingParams(
    temperature=0.8, top_p=0.95, min_p=0.01, repetition_penalty=1.2, presence_penalty=0.5, seed=11
)
FREE = CostTable.frozen({1: 10.0, 64: 10.0})  # rows cost nothing: everything proposed is run


class Guesser:
    """Proposes trees that hold the truth, as far as it is told, among random nodes."""

    free = True
    taps = ()

    def __init__(self, name="guesser", truth=(), skill=0.7, seed=0, nodes=8):
        self.name, self.truth, self.skill, self.nodes = name, truth, skill, nodes
        self.random = random.Random(seed)
        self.closed = 0

    def begin(self, task):
        return GuesserSession(self, task)

    def cancel(self):
        pass

    def forget(self):
        pass

    def close(self):
        pass


class GuesserSession:
    def __init__(self, drafter, task):
        self.drafter, self.task = drafter, task

    def cost_ms(self, depth):
        return 0.0

    def propose(self, histories, budget):
        drafter, tree = self.drafter, DraftTree()
        done = len(self.task.tokens) - self.task.prompt_length
        truth = list(drafter.truth[done : done + budget.depth])
        trunk = [ROOT]  # nodes that are right
        depth = {ROOT: 0}
        while len(tree) < min(budget.nodes, drafter.nodes):
            right = drafter.random.random() < drafter.skill and len(trunk) <= len(truth)
            parent = trunk[-1] if right else drafter.random.choice(list(depth))
            token = truth[len(trunk) - 1] if right else drafter.random.randrange(VOCABULARY)
            if depth[parent] >= budget.depth or tree.child(parent, token) is not None:
                if not right:
                    break
                continue
            node = tree.add(token, parent, drafter.random.random())
            depth[node] = depth[parent] + 1
            if right:
                trunk.append(node)
        return tree

    def observe(self, taps):
        pass

    def close(self):
        self.drafter.closed += 1


def make_engine(*drafters, model=None, costs=FREE, **options):
    model = model or FakeExecutable()
    table = {drafter.name: drafter for drafter in drafters}
    controller = Controller(costs, table, model.vocabulary, model.max_rows)
    options = {"context": 512, "new_decoder": ByteDecoder, "end_ids": frozenset([END]), **options}
    return Engine(model, controller=controller, **options)


def finish(engine, *sequences):
    while not all(sequence.done for sequence in sequences):
        assert engine.step()
    return sequences[0]


def generate(engine, prompt, max_tokens=12, params=GREEDY, **options):
    return finish(engine, engine.add(Request(prompt, params, max_tokens, **options)))


def plain(prompt, max_tokens, params=GREEDY, **options):
    engine = Engine(
        FakeExecutable(), context=512, new_decoder=ByteDecoder, end_ids=frozenset([END])
    )
    return generate(engine, prompt, max_tokens, params, **options)


def text_of(sequence):
    return "".join(piece.text for piece in sequence.take()[0])


def test_a_drafter_that_knows_the_answer_saves_passes():
    truth = greedy_tokens([5, 6], 40)
    sequence = generate(
        make_engine(Guesser(truth=truth, skill=1.0)),
        [5, 6],
        40,
        drafters=["guesser"],
        draft_nodes=4,
    )
    assert sequence.output == truth
    figures = sequence.statistics
    assert figures.tokens == 1 + figures.passes + accepted(figures) - figures.cut
    assert figures.tokens_per_pass > 4
    assert [origin > 0 for origin in sequence.origins].count(True) == accepted(figures)


def accepted(figures):
    return sum(sum(counts.accepted) for counts in figures.drafts.values())


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    skill=st.sampled_from([0.0, 0.5, 0.9]),
    nodes=st.sampled_from([None, 1, 3, 8, 16]),
    sequences=st.integers(1, 4),
    params=st.sampled_from([GREEDY, WARM]),
    logprobs=st.sampled_from([None, 2]),
)
def test_drafts_never_change_an_answer(seed, skill, nodes, sequences, params, logprobs):
    """Two drafters that merge, several sequences in shared passes, trees of any size."""
    chooser = random.Random(seed)
    prompts = [[chooser.randrange(250) for _ in range(chooser.randrange(1, 9))] for _ in range(4)]
    expected = [plain(p, 20, params, logprobs=logprobs) for p in prompts[:sequences]]
    drafters = [
        Guesser("one", expected[0].output, skill, seed),
        Guesser("two", expected[-1].output, skill, seed + 1),
    ]
    engine = make_engine(*drafters)
    running = [
        engine.add(
            Request(
                prompt, params, 20, logprobs=logprobs, drafters=["one", "two"], draft_nodes=nodes
            )
        )
        for prompt in prompts[:sequences]
    ]
    finish(engine, *running)
    for sequence, reference in zip(running, expected, strict=True):
        assert sequence.output == reference.output
        assert sequence.logprobs == reference.logprobs
        assert text_of(sequence) == text_of(reference)
        assert sequence.finish_reason == reference.finish_reason
        figures = sequence.statistics
        drafted_once = sum(origin > 0 for origin in sequence.origins)
        assert figures.tokens == 1 + figures.passes + drafted_once
        # What both had guessed counts once among all nodes, and for each of them.
        assert sum(figures.nodes.accepted) - figures.cut == drafted_once
        assert accepted(figures) >= sum(figures.nodes.accepted)
        for counts in (figures.nodes, *figures.drafts.values()):
            for drafted, *fates in zip(
                counts.drafted, counts.accepted, counts.rejected, counts.unreached, strict=True
            ):
                assert drafted == sum(fates)
    assert drafters[0].closed == sequences


@pytest.mark.parametrize("stop", ["Q R", "R S T", "T"])
def test_a_stop_string_inside_a_draft_cuts_the_rest(stop):
    script = b"L M N O P Q R S T U V W"
    model = FakeExecutable(script)
    model.prompt_length = 1
    engine = make_engine(Guesser(truth=list(script), skill=1.0, nodes=7), model=model)
    sequence = generate(engine, [1], 100, stop=[stop], drafters=["guesser"], draft_nodes=7)
    text = script.decode()
    assert text_of(sequence) == text[: text.index(stop)]
    assert sequence.output == list(script[: text.index(stop) + len(stop)])
    assert sequence.finish_reason == "stop"
    figures = sequence.statistics
    assert figures.tokens == 1 + figures.passes + accepted(figures) - figures.cut
    # The state that is kept begins the same prompt anew, to the same text.
    again = generate(engine, [1, *script[:9]], 8, drafters=["guesser"])
    assert bytes(again.output) == script[9:17]


def test_an_end_token_inside_a_draft_ends_the_answer():
    script = b"abcdef"
    model = FakeExecutable(script)
    model.prompt_length = 1
    truth = [*script, END, 65, 66]
    engine = make_engine(Guesser(truth=truth, skill=1.0), model=model)
    sequence = generate(engine, [1], 100, drafters=["guesser"], draft_nodes=8)
    assert (bytes(sequence.output), sequence.finish_reason) == (script, "stop")


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_max_tokens_and_context_are_exact(limit):
    truth = greedy_tokens([7], 60)
    engine = make_engine(Guesser(truth=truth, skill=1.0), context=32)
    sequence = generate(engine, [7], limit, drafters=["guesser"], draft_nodes=8)
    assert (sequence.output, sequence.finish_reason) == (truth[:limit], "length")
    full = generate(engine, [7], None, drafters=["guesser"], draft_nodes=8)
    assert (full.output, full.finish_reason) == (truth[:31], "length")


class Faulty(Guesser):
    """Fails in one of its calls, or proposes what is no tree."""

    def __init__(self, fault):
        super().__init__("faulty")
        self.fault = fault

    def begin(self, task):
        if self.fault == "begin":
            raise RuntimeError("no memory for drafts")
        return FaultySession(self, task)


class FaultySession(GuesserSession):
    def propose(self, histories, budget):
        fault = self.drafter.fault
        if fault == "propose":
            raise RuntimeError("cannot guess")
        tree = DraftTree.chain([1, 2], [0.9, 0.9])
        if fault == "cycle":
            tree.parents[0] = 1
        elif fault == "token":
            tree.tokens[1] = VOCABULARY
        elif fault == "claim":
            tree.claims[0] = float("nan")
        elif fault == "type":
            return None
        return tree

    def observe(self, taps):
        if self.drafter.fault == "observe":
            raise RuntimeError("cannot look")


@pytest.mark.parametrize(
    "fault", ["begin", "propose", "observe", "cycle", "token", "claim", "type"]
)
def test_a_faulty_drafter_is_switched_off_with_one_warning(fault):
    engine = make_engine(Faulty(fault))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sequence = generate(engine, [5, 6], 20, drafters=["faulty"])
    assert sequence.output == greedy_tokens([5, 6], 20)
    assert [w.category for w in caught] == [RuntimeWarning]
    assert "faulty" in str(caught[0].message)


def test_a_guess_that_makes_the_model_fail_does_not_fail_the_answer():
    model = FakeExecutable()
    truth = greedy_tokens([5, 6], 20)
    model.poison = next(token for token in range(256) if token not in truth)
    engine = make_engine(Guesser(truth=[model.poison] * 30, skill=1.0), model=model)
    sequence = generate(engine, [5, 6], 20, drafters=["guesser"], draft_nodes=4)
    assert (sequence.error, sequence.output) == (None, truth)


def test_an_interruption_while_drafting_leaves_the_engine_usable():
    truth = greedy_tokens([5, 6], 30)
    guesser = Guesser(truth=truth, skill=1.0)
    engine = make_engine(guesser)
    sequence = engine.add(Request([5, 6], GREEDY, 30, drafters=["guesser"], draft_nodes=3))
    while len(sequence.output) < 5:
        engine.step()
    session_type, original = GuesserSession, GuesserSession.propose
    try:
        session_type.propose = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    finally:
        session_type.propose = original
    assert finish(engine, sequence).output == truth
