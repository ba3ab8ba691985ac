"""Claims against what came true: over all sequences, and within one."""

from __future__ import annotations

import random

import pytest

from divine.drafting.control.calibration import Calibration, ClaimFilter, ClaimTable


def test_without_evidence_a_claim_is_believed() -> None:
    calibration = Calibration()
    for claim in (0.05, 0.3, 0.5, 0.8, 0.95):
        assert calibration.probability("ngram", 1, claim, False) == pytest.approx(claim)
    assert 0 < calibration.probability("ngram", 1, 0.0, False) < 0.01
    assert 0.99 < calibration.probability("ngram", 100, 1.0, False) < 1


def test_claims_depths_drafters_and_sampling_are_kept_apart() -> None:
    calibration, chance = Calibration(), random.Random(0)
    for _ in range(600):
        calibration.observe("ngram", 1, 0.9, False, chance.random() < 0.4)
        calibration.observe("ngram", 6, 0.9, False, chance.random() < 0.8)
        calibration.observe("ngram", 1, 0.3, False, chance.random() < 0.6)
    of = calibration.probability
    assert of("ngram", 1, 0.9, False) == pytest.approx(0.4, abs=0.08)
    assert of("ngram", 6, 0.9, False) == pytest.approx(0.8, abs=0.08)
    assert of("ngram", 1, 0.3, False) == pytest.approx(0.6, abs=0.08)
    assert 0.45 < of("ngram", 2, 0.9, False) < 0.75  # a depth never seen: what all depths say
    assert of("ngram", 1, 0.9, True) == pytest.approx(0.9)
    assert of("text", 1, 0.9, False) == pytest.approx(0.9)


def test_old_counts_fade() -> None:
    table = ClaimTable()
    for _ in range(2000):
        table.observe(1, 0.9, True)
    for _ in range(800):
        table.observe(1, 0.9, False)
    assert table.probability(1, 0.9) < 0.15


@pytest.mark.parametrize("rosy", [True, False])
def test_a_prompt_that_differs_is_recognised_within_a_few_tokens(rosy: bool) -> None:
    table = ClaimTable()
    for _ in range(300):
        table.observe(1, 0.8, rosy)
    here = ClaimFilter(table)
    for _ in range(8):
        here.observe(1, 0.8, not rosy)
    share = here.probability(1, 0.8)
    assert share < 0.5 if rosy else share > 0.5
    assert ClaimFilter(table).probability(1, 0.8) == table.probability(1, 0.8)  # the others keep it


def test_a_filter_settles_on_what_is_true_and_follows_a_change() -> None:
    here, chance = ClaimFilter(ClaimTable()), random.Random(3)
    for _ in range(300):
        here.observe(1, 0.7, chance.random() < 0.7)
    assert here.probability(1, 0.7) == pytest.approx(0.7, abs=0.12)
    for _ in range(15):
        here.observe(1, 0.7, chance.random() < 0.05)
    assert here.probability(1, 0.7) < 0.3


def test_extremes_stay_probabilities() -> None:
    here = ClaimFilter(ClaimTable())
    for _ in range(3000):
        here.observe(1, 1.0, True)
        assert 0 < here.probability(1, 1.0) < 1
    for _ in range(3000):
        here.observe(1, 0.0, False)
        assert 0 < here.probability(1, 0.0) < 1
    assert here.hopeful(1, 0.5, 1.0) > here.probability(1, 0.5)
