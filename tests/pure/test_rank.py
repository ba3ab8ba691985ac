"""Sampler.rank and Sampler.distribution: the order and the odds of what choose() takes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divine.errors import NumericError
from divine.sampling import Sampler, SamplingParams

VOCABULARY = 50

some_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    top_k=st.sampled_from([0, 1, 10]),
    top_p=st.sampled_from([1.0, 0.9, 0.3]),
    min_p=st.sampled_from([0.0, 0.1]),
    repetition_penalty=st.sampled_from([1.0, 1.5]),
    frequency_penalty=st.sampled_from([0.0, 1.0]),
    presence_penalty=st.sampled_from([0.0, -2.0]),
    logit_bias=st.sampled_from([{}, {3: 5.0, 4: -np.inf}]),
    seed=st.integers(0, 2**64 - 1),
)
some_logits = st.lists(
    st.one_of(st.floats(-20, 20, width=32), st.just(-np.inf)),
    min_size=VOCABULARY, max_size=VOCABULARY,
).filter(lambda row: max(row[5:]) > -np.inf)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(
    params=some_params, row=some_logits, output=st.lists(st.integers(0, 49), max_size=8),
    position=st.integers(0, 2**20), k=st.integers(1, 60),
)  # fmt: skip
def test_the_first_of_the_order_is_the_choice(
    params: SamplingParams, row: list[float], output: list[int], position: int, k: int
) -> None:
    sampler = Sampler(params, VOCABULARY, choice=2)
    logits = np.array(row, np.float32)
    before = logits.tobytes()
    histories = sampler.start([1, 2, 3])
    for token in output:
        histories = sampler.advance(histories, token)
    ranked = sampler.rank(histories, logits, position, k)
    odds = sampler.distribution(histories, logits, position)
    tokens = [token for token, _ in ranked]
    scores = [score for _, score in ranked]
    assert tokens[0] == sampler.choose(histories, logits, position)
    assert len(set(tokens)) == len(tokens) <= k
    assert scores == sorted(scores, reverse=True)
    assert all(logits[token] > -np.inf for token in tokens)
    assert odds.sum() == pytest.approx(1, abs=1e-9)
    assert odds[tokens[0]] > 0 or scores[0] > 0  # noise alone can lift what rounds to nothing
    assert logits.tobytes() == before


def test_the_order_goes_on_without_its_first() -> None:
    """Forbidding the best token makes the second the choice: the scores do not depend on it."""
    logits = np.random.default_rng(1).standard_normal(VOCABULARY).astype(np.float32) * 3
    sampler = Sampler(SamplingParams(seed=5), VOCABULARY)
    for position in range(50):
        ranked = sampler.rank((), logits, position, 4)
        barred = logits.copy()
        for token, _ in ranked[:3]:
            barred[token] = -np.inf
        assert sampler.choose((), barred, position) == ranked[3][0]


def test_distribution_is_that_of_choose() -> None:
    logits = np.random.default_rng(3).standard_normal(VOCABULARY).astype(np.float32)
    sampler = Sampler(SamplingParams(temperature=0.8, top_k=12, top_p=0.9, seed=1), VOCABULARY)
    draws = 20_000
    counts = np.zeros(VOCABULARY)
    for position in range(draws):
        counts[sampler.choose((), logits, position)] += 1
    odds = sampler.distribution((), logits, 0)
    kept = odds > 0
    assert kept.sum() > 5
    assert counts[~kept].sum() == 0
    chi_square = float(((counts - draws * odds)[kept] ** 2 / (draws * odds[kept])).sum())
    degrees = int(kept.sum()) - 1
    assert chi_square < degrees + 4 * np.sqrt(2 * degrees)  # four deviations; the seed is fixed


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_not_finite_is_reported(temperature: float) -> None:
    sampler = Sampler(SamplingParams(temperature=temperature), VOCABULARY)
    logits = np.full(VOCABULARY, np.nan, np.float32)
    with pytest.raises(NumericError, match="position 9"):
        sampler.rank((), logits, 9, 2)
    with pytest.raises(NumericError, match="position 9"):
        sampler.distribution((), logits, 9)
