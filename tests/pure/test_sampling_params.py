"""Ranges of sampling parameters, and processors whose history branches."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divine.errors import NumericError, UsageError
from divine.sampling import LogitBias, Penalties, Sampler, SamplingParams, log_probabilities


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1), ("temperature", 1e6), ("temperature", math.nan),
        ("temperature", math.inf), ("temperature", "0.7"), ("temperature", True),
        ("top_k", 2.5), ("top_k", None), ("top_k", True),
        ("top_p", 1.0001), ("top_p", -0.1), ("top_p", math.nan),
        ("min_p", 1.5), ("min_p", -0.01),
        ("repetition_penalty", 0), ("repetition_penalty", -1), ("repetition_penalty", math.inf),
        ("frequency_penalty", 2.1), ("presence_penalty", -2.1),
        ("seed", -1), ("seed", 2**64), ("seed", 1.0),
        ("logit_bias", [1]), ("logit_bias", {-1: 1.0}), ("logit_bias", {"1": 1.0}),
        ("logit_bias", {1: math.nan}), ("logit_bias", {1: math.inf}), ("logit_bias", {1: 101}),
    ],
)  # fmt: skip
def test_values_out_of_range_are_refused_by_name(field, value):
    with pytest.raises(UsageError, match=rf"^{field}.* allowed is "):
        SamplingParams(**{field: value})


def test_extreme_values_in_range_are_taken():
    SamplingParams(temperature=0, top_k=-1, top_p=0, min_p=1, seed=2**64 - 1)
    SamplingParams(temperature=100, top_k=10**9, logit_bias={0: -math.inf, 5: 100})
    assert SamplingParams(temperature=1e-300).temperature == 1e-6


logits_of_64 = np.random.default_rng(3).standard_normal(64).astype(np.float32)


@pytest.mark.parametrize("top_k", [0, -1, 1, 10**9])
def test_temperature_zero_is_greedy_whatever_else(top_k):
    sampler = Sampler(SamplingParams(temperature=0, top_k=top_k, top_p=0.1, seed=4), 64)
    assert not sampler.wants_logits
    assert sampler.choose((), logits_of_64, 9) == int(np.argmax(logits_of_64))


def test_tiny_temperature_top_k_1_and_top_p_0_give_the_greedy_token():
    best = int(np.argmax(logits_of_64))
    for params in (
        SamplingParams(temperature=1e-6, seed=1),
        SamplingParams(temperature=5, top_k=1, seed=1),
        SamplingParams(temperature=5, top_p=0, seed=1),
        SamplingParams(temperature=5, min_p=1, seed=1),
    ):
        sampler = Sampler(params, 64)
        assert {sampler.choose((), logits_of_64, i) for i in range(50)} == {best}


def test_a_seed_is_drawn_and_reported_once():
    sampler = Sampler(SamplingParams(), 64)
    again = Sampler(SamplingParams(seed=sampler.seed), 64)
    draws = [sampler.choose((), logits_of_64, i) for i in range(40)]
    assert draws == [again.choose((), logits_of_64, i) for i in range(40)]
    assert len(set(draws)) > 5
    assert sampler.seed != Sampler(SamplingParams(), 64).seed


def test_choices_of_one_seed_differ():
    params = SamplingParams(seed=7)
    a, b = Sampler(params, 64, choice=0), Sampler(params, 64, choice=1)
    same = sum(a.choose((), logits_of_64, i) == b.choose((), logits_of_64, i) for i in range(100))
    assert same < 50


@given(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 11)), max_size=60))
def test_penalties_see_the_history_of_their_own_branch(steps):
    """Grow a random tree of histories, ask for every node in a random-ish order."""
    penalties = Penalties(1.5, 0.25, 0.5)
    prompt = [1, 2, 2, 3]
    nodes = [(penalties.start(prompt), ())]
    for parent, token in steps:
        state, path = nodes[parent % len(nodes)]
        nodes.append((penalties.advance(state, token), (*path, token)))
    row = np.linspace(-2, 2, 12, dtype=np.float32)
    for state, path in nodes[::2] + nodes[1::2]:
        logits = row.copy()
        penalties.apply(state, logits)
        counts = Counter(path)
        for token in range(12):
            expected = row[token]
            if token in counts or token in prompt:
                expected = (
                    expected / np.float32(1.5) if expected > 0 else expected * np.float32(1.5)
                )
            expected -= np.float32(0.25) * np.float32(counts[token])
            expected -= np.float32(0.5) * np.float32(token in counts)
            assert logits[token] == expected


def test_many_different_tokens_are_all_penalized():
    penalties = Penalties(1.0, 0.0, 2.0)
    state = penalties.start([])
    for token in range(500):
        state = penalties.advance(state, token)
    logits = np.zeros(600, dtype=np.float32)
    penalties.apply(state, logits)
    assert np.all(logits[:500] == -2)
    assert np.all(logits[500:] == 0)


def test_penalties_and_bias_work_at_temperature_zero_and_leave_the_row_alone():
    sampler = Sampler(SamplingParams(temperature=0, presence_penalty=2, logit_bias={5: 100.0}), 64)
    assert sampler.wants_logits
    before = logits_of_64.copy()
    assert sampler.choose(sampler.start([1]), logits_of_64, 1) == 5
    assert np.array_equal(before, logits_of_64)
    banned = Sampler(SamplingParams(temperature=0, logit_bias={5: -math.inf}), 64)
    row = np.zeros(64, dtype=np.float32)
    row[5] = 9
    assert banned.choose(banned.start([]), row, 1) == 0


def test_bias_outside_the_vocabulary_is_refused():
    with pytest.raises(UsageError, match="token 64; the vocabulary has tokens 0 to 63"):
        Sampler(SamplingParams(logit_bias={64: 1.0}), 64)
    assert LogitBias({63: 1.0}, 64).start([]) is None


def test_nan_names_the_position():
    row = np.full(8, np.nan, dtype=np.float32)
    with pytest.raises(NumericError, match="position 12"):
        Sampler(SamplingParams(seed=1), 8).choose((), row, 12)
    with pytest.raises(NumericError, match="position 3"):
        log_probabilities(row, 0, 1, 3)
