"""The engine on a fake model: whatever shares a pass, is reused or cut, the text is the same.

The fake model's logits depend on the whole history of a row, so a wrong commit shows at once.
"""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from fake_model import END, ByteDecoder, FakeExecutable, greedy_tokens
from hypothesis import given, settings
from hypothesis import strategies as st

from divine.backends.prefixes import Prefixes
from divine.engine import Engine, Request
from divine.errors import CapacityError, NumericError, UsageError
from divine.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0)


def make_engine(model=None, **options):
    options = {"context": 512, "new_decoder": ByteDecoder, "end_ids": frozenset([END]), **options}
    return Engine(model or FakeExecutable(), **options)


def finish(engine, *sequences):
    while not all(sequence.done for sequence in sequences):
        assert engine.step()
    return sequences[0]


def generate(engine, prompt, max_tokens=12, params=GREEDY, **options):
    return finish(engine, engine.add(Request(prompt, params, max_tokens, **options)))


def text_of(sequence):
    return "".join(piece.text for piece in sequence.take()[0])


def scripted(script, prompt=(1,), **options):
    model = FakeExecutable(script)
    model.prompt_length = len(prompt)
    return make_engine(model, **options)


def test_greedy_follows_the_model():
    assert generate(make_engine(), [5, 6, 7], 20).output == greedy_tokens([5, 6, 7], 20)


def test_end_token_is_not_part_of_the_answer():
    sequence = generate(scripted("Hi"), [1], None)
    assert (text_of(sequence), sequence.finish_reason) == ("Hi", "stop")
    assert sequence.output == list(b"Hi")
    assert sequence.statistics.tokens == 2


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_max_tokens_is_exact(count):
    model = FakeExecutable()
    sequence = generate(make_engine(model), [3, 4], count)
    assert (len(sequence.output), sequence.finish_reason) == (count, "length")
    assert len(model.passes) == count


@pytest.mark.parametrize("value", [-1, 2.5, "5", True])
def test_wrong_max_tokens_are_refused(value):
    with pytest.raises(UsageError, match="max_tokens"):
        make_engine().add(Request([1], max_tokens=value))


def test_the_context_is_filled_to_the_last_token_and_never_beyond():
    for length in (1, 62, 63):
        sequence = generate(make_engine(context=64), list(range(length)), 10**12)
        assert sequence.finish_reason == "length"
        assert sequence.output == greedy_tokens(range(length), 64 - length)
    for length in (64, 65, 1000):
        with pytest.raises(CapacityError, match=f"{length} tokens exceeds the context of 64"):
            make_engine(context=64).add(Request([1] * length))


def test_wrong_prompts_are_refused():
    with pytest.raises(UsageError, match="empty"):
        make_engine().add(Request([]))
    for token in (-1, 257, 2**40):
        with pytest.raises(UsageError, match="prompt token 1 is"):
            make_engine().add(Request([0, token]))
    with pytest.raises(UsageError, match="logprobs"):
        make_engine().add(Request([0], logprobs=21))


def test_half_a_character_becomes_one_replacement_at_the_end():
    sequence = generate(scripted("a🦙"), [1], 3)
    assert text_of(sequence) == "a�"
    assert text_of(generate(scripted("a🦙"), [1], 5)) == "a🦙"
    assert text_of(generate(scripted(b"a\xf0b"), [1], 5)) == "a�b"


def test_stop_strings_span_tokens_and_hold_text_back():
    engine = scripted("L M N O P Q R")
    sequence = engine.add(Request([1], GREEDY, stop=["O P Q"]))
    shown = []
    while not sequence.done:
        engine.step()
        pieces, tokens = sequence.take()
        text = "".join(piece.text for piece in pieces)
        assert text or not tokens or sequence.done
        shown.append(text)
        assert "O" not in text
    assert ("".join(shown), sequence.finish_reason) == ("L M N ", "stop")
    assert sequence.output == list(b"L M N O P Q")


def test_held_back_text_is_released_at_the_limit():
    sequence = generate(scripted("on Mars we"), [1], 8, stop=["Mars X"])
    assert (text_of(sequence), sequence.finish_reason) == ("on Mars ", "length")


@settings(max_examples=25, deadline=None)
@given(
    prompts=st.lists(
        st.lists(st.integers(0, 255), min_size=1, max_size=90), min_size=2, max_size=5
    ),
    arrivals=st.lists(st.integers(0, 6), min_size=5, max_size=5),
    rows=st.sampled_from([2, 5, 64]),
    temperature=st.sampled_from([0.0, 1.0]),
)
def test_neighbours_arrivals_and_chunks_do_not_change_an_answer(
    prompts, arrivals, rows, temperature
):
    params = SamplingParams(temperature=temperature, presence_penalty=temperature, seed=3)
    engine = make_engine(FakeExecutable(max_rows=rows), max_sequences=3)
    sequences = []
    for prompt, wait in zip(prompts, arrivals, strict=False):
        for _ in range(wait):
            engine.step()
        sequences.append(engine.add(Request(prompt, params, 6)))
    finish(engine, *sequences)
    for prompt, sequence in zip(prompts, sequences, strict=True):
        alone = generate(make_engine(prefixes=Prefixes(0)), prompt, 6, params)
        assert sequence.output == alone.output


def test_more_decoding_sequences_than_rows_take_turns():
    engine = make_engine(FakeExecutable(max_rows=2))
    sequences = [engine.add(Request([i], GREEDY, 5)) for i in range(5)]
    finish(engine, *sequences)
    for i, sequence in enumerate(sequences):
        assert sequence.output == greedy_tokens([i], 5)


def test_a_prompt_beside_decoding_sequences_comes_in_small_chunks():
    model = FakeExecutable(max_rows=64)
    model.on_run = lambda: time.sleep(0.001 * sum(model.passes[-1]))  # a millisecond a row
    engine = make_engine(model, context=2000)
    first = engine.add(Request([1] * 60, GREEDY, 60))
    engine.step()
    assert model.passes[0] == [60]
    engine._scheduler._seconds_per_row = 0.010
    second = engine.add(Request([2] * 200, GREEDY, 3))
    finish(engine, first, second)
    beside = [rows for rows in model.passes[1:] if len(rows) == 2]
    assert beside[0] == [1, 11]  # 120 ms at 10 ms a row, one of them the decoding sequence's
    assert second.output == greedy_tokens([2] * 200, 3)
    assert first.output == greedy_tokens([1] * 60, 60)


def test_seeds_choices_and_reported_seeds():
    engine = make_engine()
    sampled = SamplingParams(temperature=1.0)
    drawn = generate(engine, [9], 20, sampled)
    again = generate(engine, [9], 20, SamplingParams(temperature=1.0, seed=drawn.sampler.seed))
    assert drawn.output == again.output
    other = generate(
        engine, [9], 20, SamplingParams(temperature=1.0, seed=drawn.sampler.seed), choice=1
    )
    assert other.output != drawn.output


def test_penalties_apply_at_temperature_zero():
    def always_seven(history):
        row = np.zeros(257, dtype=np.float32)
        row[7], row[8], row[9] = 1.0, 0.9, 0.8
        return row

    model = FakeExecutable()
    model.logits = always_seven
    params = SamplingParams(temperature=0, presence_penalty=0.5)
    assert generate(make_engine(model), [7], 4, params).output == [7, 8, 9, 7]
    params = SamplingParams(temperature=0, repetition_penalty=2.0)  # the prompt counts here
    assert generate(make_engine(model), [7], 4, params).output == [8, 9, 7, 7]
    params = SamplingParams(temperature=0, logit_bias={40: 100.0})
    assert generate(make_engine(model), [7], 2, params).output == [40, 40]


def test_logprobs_are_the_models_own_whatever_is_sampled():
    model = FakeExecutable()
    plain = generate(make_engine(model), [4], 5, GREEDY, logprobs=3)
    assert len(plain.logprobs) == len(plain.output) == 5
    history = [4]
    for entry, token in zip(plain.logprobs, plain.output, strict=True):
        logits = model.logits(history).astype(np.float64)
        exact = logits - np.log(np.exp(logits).sum())
        assert entry.token == token
        assert entry.logprob == pytest.approx(exact[token], abs=2e-6)
        assert [t for t, _ in entry.top] == list(np.argsort(-exact)[:3])
        history.append(token)
    odd = SamplingParams(temperature=5, top_k=1, presence_penalty=0.0, seed=1)
    same = generate(make_engine(model), [4], 5, odd, logprobs=3)
    assert same.logprobs == plain.logprobs
    ended = generate(scripted("ab"), [1], 9, GREEDY, logprobs=0)
    assert len(ended.logprobs) == 2


def test_one_bad_sequence_fails_alone():
    model = FakeExecutable()
    model.poison = 200
    engine = make_engine(model)
    good = engine.add(Request([1, 2], GREEDY, 6))
    bad = engine.add(Request([200, 3], GREEDY, 6))
    also_good = engine.add(Request([3, 4], SamplingParams(seed=1), 6))
    finish(engine, good, bad, also_good)
    assert isinstance(bad.error, NumericError)
    assert bad.finish_reason is None
    assert good.output == greedy_tokens([1, 2], 6)
    assert len(also_good.output) == 6
    sampled = engine.add(Request([200], SamplingParams(seed=1), 6))
    finish(engine, sampled)
    assert isinstance(sampled.error, NumericError)


def test_no_memory_for_a_state_fails_that_sequence_only():
    model = FakeExecutable()
    engine = make_engine(model)
    first = engine.add(Request([1], GREEDY, 5))
    engine.step()

    def no_memory(capacity, kv_type):
        raise CapacityError("no memory")

    model.new_state = no_memory
    second = engine.add(Request([2], GREEDY, 5))
    finish(engine, first, second)
    assert isinstance(second.error, CapacityError)
    assert first.output == greedy_tokens([1], 5)


def test_cancelling_keeps_what_was_said_and_frees_the_rows():
    model = FakeExecutable()
    engine = make_engine(model)
    cut, other = (engine.add(Request([i], GREEDY, 30)) for i in (1, 2))
    for _ in range(4):
        engine.step()
    engine.cancel(cut)
    assert cut.finish_reason == "cancelled"
    assert cut.output == greedy_tokens([1], 4)
    engine.step()
    assert model.passes[-1] == [1]
    engine.cancel(cut)  # again: nothing happens
    waiting = make_engine(model, max_sequences=0).add(Request([1], GREEDY, 3))
    assert finish(engine, other).output == greedy_tokens([2], 30)
    assert not waiting.done
    assert not engine.step()


def test_a_waiting_sequence_can_be_cancelled():
    engine = make_engine(max_sequences=1)
    first, second = (engine.add(Request([i], GREEDY, 5)) for i in (1, 2))
    engine.step()
    engine.cancel(second)
    assert (second.finish_reason, second.output) == ("cancelled", [])
    assert finish(engine, first).output == greedy_tokens([1], 5)


def test_cancelling_from_another_thread_stops_a_long_pass():
    model = FakeExecutable()
    engine = make_engine(model)
    started = threading.Event()

    def until_cancelled():
        if sum(model.passes[-1]) > 16:
            started.set()
            assert model._cancel.wait(10)

    model.on_run = until_cancelled
    sequence = engine.add(Request([1] * 40, GREEDY, 5))
    thread = threading.Thread(target=lambda: (started.wait(10), engine.cancel(sequence)))
    thread.start()
    while engine.step():
        pass
    thread.join()
    assert sequence.finish_reason == "cancelled"
    model.on_run = lambda: None
    assert generate(engine, [1] * 40, 5).output == greedy_tokens([1] * 40, 5)


def test_an_interruption_at_any_moment_leaves_the_engine_usable():
    """KeyboardInterrupt at the n-th call into the state or model; then the others go on."""
    for moment in range(1, 12):
        model = FakeExecutable()
        engine = make_engine(model)
        params = SamplingParams(temperature=0, presence_penalty=0.5)
        plain = generate(make_engine(), [3] * 20, 8, params).output
        sequences = [engine.add(Request([3] * 20, params, 8)), engine.add(Request([4], GREEDY, 8))]
        calls = 0

        def interrupt(moment=moment):
            nonlocal calls
            calls += 1
            if calls == moment:
                raise KeyboardInterrupt

        engine.step()
        model.on_run = interrupt
        for state in model.states:
            commit = state.commit

            def interrupted_commit(path, commit=commit):
                commit(path)
                interrupt()

            state.commit = interrupted_commit
        interrupted = 0
        while not all(sequence.done for sequence in sequences):
            try:
                assert engine.step()
            except KeyboardInterrupt:
                interrupted += 1
        assert interrupted == 1
        assert sequences[0].output == plain
        assert sequences[1].output == greedy_tokens([4], 8)


def test_long_passes_run_in_the_calling_thread():
    """In another one they would go on, their states in use, when Ctrl-C comes as it starts."""
    model = FakeExecutable()
    threads = set()
    model.on_run = lambda: threads.add(threading.current_thread())
    generate(make_engine(model), [1] * 60)
    assert threads == {threading.current_thread()}


def test_a_finished_prefix_is_reused_and_changes_nothing():
    model = FakeExecutable()
    engine = make_engine(model)
    prompt = list(range(100, 140))
    first = generate(engine, prompt, 8)
    assert first.statistics.reused_tokens == 0
    longer = prompt + first.output + [1, 2, 3]
    second = generate(engine, longer, 8)
    # The last token of the first answer was chosen, never run.
    assert second.statistics.reused_tokens == len(prompt) + 7
    assert second.output == greedy_tokens(longer, 8)
    assert len(model.states) == 1
    same = generate(engine, longer, 8)
    assert same.statistics.reused_tokens == len(longer) - 1
    assert same.output == second.output


def test_interleaved_conversations_keep_their_states():
    engine = make_engine()
    system = list(range(80))
    talks = {"a": [*system, 1, *range(20, 60)], "b": [*system, 2, *range(30, 70)]}
    reused = []
    for _ in range(3):
        for name, talk in talks.items():
            sequence = generate(engine, talk, 6)
            assert sequence.output == greedy_tokens(talk, 6)
            reused.append(sequence.statistics.reused_tokens)
            talks[name] = talk + sequence.output + [7]
    assert reused[0] == 0
    assert reused[1] == len(system)
    assert all(count > 120 for count in reused[2:])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.sampled_from([1, 2]), min_size=1, max_size=12), min_size=2, max_size=6))
def test_any_edit_of_the_history_gives_what_a_cold_run_gives(edits):
    engine = make_engine(prefixes=Prefixes(kept_states=2))
    base = [9] * 70
    for edit in edits:
        prompt = base[: 70 - 5 * len(edit)] + edit + base
        assert generate(engine, prompt, 3).output == greedy_tokens(prompt, 3)


def test_kept_states_are_bounded_and_closed():
    model = FakeExecutable()
    engine = make_engine(model, prefixes=Prefixes(kept_states=3))
    for i in range(20):
        generate(engine, [i] * 5, 2)
    assert sum(not state.closed for state in model.states) <= 4
    assert len(model.states) <= 4  # the oldest is emptied and used again
    engine.close()
    assert all(state.closed for state in model.states)


def test_statistics_count_what_happened():
    model = FakeExecutable()
    sequence = generate(make_engine(model), [1] * 100, 10)
    figures = sequence.statistics
    assert figures.prompt_tokens == 100
    assert (figures.tokens, figures.passes) == (10, 9)
    assert figures.tokens_per_pass == 1.0
    assert figures.native_seconds == pytest.approx(1e-6 * len(model.passes))
    assert figures.prefill_tok_s > 0
    assert figures.decode_tok_s > 0
    one = generate(make_engine(), [1], 1).statistics
    assert (one.passes, one.decode_tok_s, one.tokens_per_pass) == (0, None, None)


def test_python_costs_little_per_token():
    """Under 100 microseconds a token where it was written; the bound allows for busy machines."""
    model = FakeExecutable()
    fixed = model.run([model.new_state(4)], _one_row(), _want_best())

    def run(states, rows, want):
        states[0].pending = {0: (-1, 0)}
        return fixed

    model.run = run
    engine = make_engine(model, context=2000)
    sequence = engine.add(Request([1], GREEDY, 1500, stop=["never"]))
    while not sequence.decoding:
        engine.step()
    began = time.perf_counter()
    for _ in range(1000):
        engine.step()
        sequence.take()
    assert (time.perf_counter() - began) / 1000 < 500e-6


def _one_row():
    from divine.backends.base import Rows

    return Rows.chain([1])


def _want_best():
    from divine.backends.base import Want

    return Want(best=[0])


def test_cancelling_at_random_moments_never_disturbs_the_others():
    model = FakeExecutable()
    engine = make_engine(model)
    rng = np.random.default_rng(1)
    prompts = [[i] * int(rng.integers(1, 60)) for i in range(60)]
    steady = engine.add(Request([250], GREEDY, 100))
    cutters = []
    for prompt in prompts:
        sequence = engine.add(Request(prompt, GREEDY, 10))
        delay = float(rng.uniform(0, 0.003))
        cutter = threading.Timer(delay, engine.cancel, [sequence])
        cutter.start()
        cutters.append((cutter, prompt, sequence))
        engine.step()
    finish(engine, steady, *(sequence for _, _, sequence in cutters))
    for cutter, prompt, sequence in cutters:
        cutter.join()
        assert sequence.finish_reason in ("cancelled", "length")
        assert sequence.output == greedy_tokens(prompt, 10)[: len(sequence.output)]
    assert steady.output == greedy_tokens([250], 100)
    assert generate(engine, prompts[7], 10).output == greedy_tokens(prompts[7], 10)
