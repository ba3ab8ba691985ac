"""The cost table: its prior, what it learns from noisy passes, and its file."""

from __future__ import annotations

import math
import random

import pytest

from divine.drafting import CostTable, prior_costs

TRUE = {1: 40.0, 2: 44.0, 3: 50.0, 4: 60.0, 5: 80.0, 8: 110.0, 16: 200.0, 64: 780.0}
CLOSE = 0.06  # of a learned figure, from passes with 5 % noise


def test_a_frozen_table_gives_its_figures_and_learns_nothing() -> None:
    costs = CostTable.frozen({1: 50.0, 2: 51.0, 4: 61.0})
    costs.observe(1, 0, 500.0)
    assert [costs.cost(n, 1000) for n in (1, 2, 3, 4, 5)] == [50.0, 51.0, 56.0, 61.0, 66.0]
    assert list(costs.curve(2, 2, 1000)) == [51.0, 56.0, 61.0]
    assert costs.weight(3) == math.inf


def test_steps_of_tiles_survive() -> None:
    steps = {n: 40.0 + 14.0 * ((n + 3) // 4) for n in range(1, 65)}
    costs = CostTable.frozen(steps)
    assert costs.cost(4, 0) == costs.cost(1, 0) < costs.cost(5, 0) == costs.cost(8, 0)


def test_the_prior_is_the_larger_plus_a_fifth_of_the_smaller() -> None:
    costs = prior_costs(1.6e9, 1e9, roof_bytes_s=16e9, mac_s=100e9)
    assert costs[1] == pytest.approx(100 + 2)
    assert costs[20] == pytest.approx(200 + 20)
    assert sorted(costs) == list(range(1, 65))


@pytest.mark.parametrize("table", [{}, {0: 5.0}, {1: 0.0}, {1: math.inf}, {1: math.nan}])
def test_impossible_tables_are_refused(table: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="cost table"):
        CostTable(table)


def learned(costs: CostTable, passes: int, rows: tuple[int, ...], seed: int = 0) -> CostTable:
    """After passes with 5 % noise, every 31st slowed down 2.5 times by other programs."""
    true, chance = CostTable.frozen(TRUE), random.Random(seed)
    for index in range(passes):
        n = rows[index % len(rows)]
        ms = true.cost(n, 0) * chance.lognormvariate(0, 0.05)
        costs.observe(n, 0, ms * (2.5 if index % 31 == 30 else 1.0))
    return costs


def test_one_scale_moves_what_was_never_seen() -> None:
    prior = {1: 10.0, 2: 11.0, 4: 14.0, 16: 50.0}
    costs = CostTable(prior)
    costs.observe(1, 0, 20.0)
    assert costs.cost(1, 0) == pytest.approx(20.0)
    assert costs.cost(16, 0) == pytest.approx(100.0)


def test_noisy_passes_teach_the_shape() -> None:
    costs = learned(CostTable({1: 100.0, 64: 110.0}), 600, (1, 3, 5, 1, 8))
    true = CostTable.frozen(TRUE)
    for n in (1, 3, 5, 8):
        assert costs.cost(n, 0) == pytest.approx(true.cost(n, 0), rel=CLOSE)
    assert true.cost(3, 0) < costs.cost(4, 0) < true.cost(5, 0)  # between its neighbours
    assert costs.cost(9, 0) >= costs.cost(8, 0)


def test_an_outlier_is_forgotten_and_a_slower_machine_is_not() -> None:
    costs = learned(CostTable(TRUE), 100, (1, 3))
    before = costs.cost(1, 0)
    costs.observe(1, 0, before * 4)
    assert costs.cost(1, 0) < before * 1.05
    for _ in range(12):
        costs.observe(1, 0, 80.0)
    assert costs.cost(1, 0) == pytest.approx(80.0, rel=0.1)
    assert costs.cost(3, 0) == pytest.approx(100.0, rel=0.1)


def test_never_falling() -> None:
    costs = CostTable(TRUE)
    for n, ms in ((1, 40.0), (2, 90.0), (3, 45.0), (4, 30.0)) * 5:
        costs.observe(n, 0, ms)
    figures = list(costs.curve(1, 80, 0))
    assert figures == sorted(figures)


@pytest.mark.parametrize("seed", range(8))
def test_luck_makes_no_row_free(seed: int) -> None:
    true = {n: 10.0 * max(1.0, n / 4) for n in range(1, 65)}
    prior = {n: 8.0 * max(1.0, n / 5) + 0.4 * n for n in range(1, 65)}
    costs, chance = CostTable(prior), random.Random(seed)
    slow = 0.0
    for _ in range(60):
        slow += 0.05 * chance.gauss(0, 1) - 0.1 * slow  # the machine's mood
        n = chance.choice((1, 6, 7, 8, 9, 11, 12, 13, 14, 16, 20, 34))
        costs.observe(n, 0, true[n] * math.exp(slow + 0.1 * chance.gauss(0, 1)))
    for n in range(6, 28):
        added, expected = costs.cost(n + 4, 0) - costs.cost(n, 0), true[n + 4] - true[n]
        assert 0.5 * expected < added < 1.7 * expected


def test_nonsense_is_not_observed() -> None:
    costs = CostTable(TRUE)
    for rows, ms in ((1, 0.0), (1, -1.0), (1, math.nan), (1, math.inf), (0, 5.0), (1000, 5.0)):
        costs.observe(rows, 0, ms)
    assert costs.cost(1, 0) == 40.0


def test_the_slope_of_the_context_is_learned() -> None:
    costs, chance = CostTable(TRUE), random.Random(0)
    slope = 0.004  # ms per row and position
    for _ in range(1000):
        n, context = chance.choice((1, 2, 4, 8)), chance.randrange(4000)
        costs.observe(n, context, CostTable.frozen(TRUE).cost(n, 0) + slope * n * context)
    for n, context in ((1, 0), (1, 4000), (8, 0), (8, 4000)):
        true = CostTable.frozen(TRUE).cost(n, 0) + slope * n * context
        assert costs.cost(n, context) == pytest.approx(true, rel=0.1)
