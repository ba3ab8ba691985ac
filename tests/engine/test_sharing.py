"""Several prompts at once: beginnings read once, rows that are shared, faults that are not."""

from __future__ import annotations

import threading

import pytest
from fake_model import END, ByteDecoder, FakeExecutable, greedy_tokens

from divine.engine import Engine, Request
from divine.engine.scheduler import ROWS_ALONE, _shares
from divine.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0)


def make_engine(model, **options):
    options = {"context": 512, "new_decoder": ByteDecoder, "end_ids": frozenset([END]), **options}
    return Engine(model, **options)


def finish(engine, *sequences):
    while not all(sequence.done for sequence in sequences):
        assert engine.step()


def test_prompts_that_begin_alike_are_read_once():
    model = FakeExecutable()
    engine = make_engine(model, max_sequences=4)
    shared = [7] * 100
    prompts = [[*shared, 1, 2], [*shared, 3], shared, [*shared[:90], 4], [5] * 30]
    sequences = [engine.add(Request(prompt, GREEDY, 6)) for prompt in prompts]
    finish(engine, *sequences)
    for prompt, sequence in zip(prompts, sequences, strict=True):
        assert sequence.output == greedy_tokens(prompt, 6)
    assert [s.statistics.reused_tokens for s in sequences] == [0, 100, 99, 90, 0]


def test_choices_wait_for_the_first_to_have_read_their_prompt():
    model = FakeExecutable(max_rows=16)
    engine = make_engine(model, max_sequences=3)
    prompt = list(range(80))
    choices = [
        engine.add(Request(prompt, SamplingParams(temperature=1, seed=3), 5, choice=choice))
        for choice in range(3)
    ]
    other = engine.add(Request([9, 9], GREEDY, 4))  # behind them, but it need not wait
    engine.step()
    assert other.state is not None
    finish(engine, *choices, other)
    assert [choice.statistics.reused_tokens for choice in choices] == [0, 79, 79]
    for number, choice in enumerate(choices):
        alone = make_engine(FakeExecutable())
        request = Request(prompt, SamplingParams(temperature=1, seed=3), 5, choice=number)
        again = alone.add(request)
        finish(alone, again)
        assert choice.output == again.output


def test_who_waits_for_a_reader_that_leaves_reads_itself():
    model = FakeExecutable(max_rows=8)
    engine = make_engine(model)
    prompt = list(range(80))
    reader = engine.add(Request(prompt, GREEDY, 5))
    waiting = engine.add(Request(prompt, GREEDY, 5))
    engine.step()
    assert waiting.state is None
    engine.abandon(reader)
    finish(engine, waiting)
    assert reader.finish_reason == "cancelled"
    assert waiting.output == greedy_tokens(prompt, 5)
    assert waiting.statistics.reused_tokens == 8


def test_a_prompt_can_be_read_anew():
    engine = make_engine(FakeExecutable())
    prompt = list(range(80))
    first = engine.add(Request(prompt, GREEDY, 5))
    finish(engine, first)
    anew = engine.add(Request(prompt, GREEDY, 5, cache_prompt=False))
    finish(engine, anew)
    assert anew.statistics.reused_tokens == 0
    assert anew.output == first.output


@pytest.mark.parametrize(
    ("pending", "room", "counts"),
    [
        ([100], 50, [50]),
        ([100, 10], 50, [40, 10]),
        ([10, 100], 50, [10, 40]),
        ([1000, 100, 30], 40, [10, 0, 30]),
        ([5, 5, 5], 100, [5, 5, 5]),
        ([5, 5], 1, [1, 0]),
        ([5, 5], 0, [0, 0]),
        ([], 10, []),
    ],
)
def test_the_shortest_prompt_comes_first_and_the_oldest_gets_a_share(pending, room, counts):
    assert _shares(pending, room) == counts


def test_a_prompt_alone_keeps_a_newcomer_waiting_no_longer_than_allowed():
    model = FakeExecutable(max_rows=512)
    for seconds, rows in ((None, ROWS_ALONE), (0.3, 30)):
        engine = make_engine(model, read_seconds=seconds)
        engine._scheduler._seconds_per_row = 0.010
        sequence = engine.add(Request([1] * 400, GREEDY, 1))
        model.passes.clear()
        engine.step()
        assert model.passes == [[rows]]
        engine.cancel(sequence)


def test_a_sequence_whose_own_code_breaks_breaks_alone():
    engine = make_engine(FakeExecutable())
    good = engine.add(Request([1, 2], GREEDY, 8))
    bad = engine.add(Request([3, 4], GREEDY, 8))

    def broken(token):
        raise RuntimeError("decoder")

    bad._decoder.push = broken
    finish(engine, good, bad)
    assert good.output == greedy_tokens([1, 2], 8)
    assert str(bad.error) == "decoder"
    assert engine.load == (0, 0)


def test_abandoned_sequences_are_gone_after_one_step():
    engine = make_engine(FakeExecutable())
    running = engine.add(Request([1], GREEDY, 100))
    engine.step()
    thread = threading.Thread(target=engine.abandon, args=(running,))
    thread.start()
    thread.join()
    assert not running.done  # nobody has stepped
    assert engine.step() is False
    assert running.finish_reason == "cancelled"
