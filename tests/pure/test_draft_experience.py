"""What drafting keeps on disk: whole, taken over as it was, ignored where it is damaged."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from divine.drafting import Calibration, CostTable, load_experience, save_experience

TRUE = {1: 40.0, 2: 41.0, 4: 50.0, 8: 90.0, 16: 170.0}


def learned_costs() -> CostTable:
    costs = CostTable(TRUE)
    for i in range(60):
        n = (1, 3, 5)[i % 3]
        costs.observe(n, 0, 1.3 * CostTable.frozen(TRUE).cost(n, 0))
    return costs


def learned_claims() -> Calibration:
    calibration, chance = Calibration(), random.Random(1)
    for _ in range(200):
        calibration.observe("ngram", 1, 0.9, False, chance.random() < 0.3)
        calibration.observe("model", 2, 0.5, True, chance.random() < 0.8)
    return calibration


def test_saved_and_loaded(tmp_path: Path) -> None:
    path = tmp_path / "new" / "experience.json"
    costs, claims = learned_costs(), learned_claims()
    save_experience(path, costs, claims)
    assert [p.name for p in path.parent.iterdir()] == ["experience.json"]
    assert path.stat().st_size < 20_000
    other, table = CostTable({1: 7.0, 64: 100.0}), Calibration()  # another prior
    assert load_experience(path, other, table)
    for n in (1, 3, 5):  # the figures count, not the corrections of a prior
        assert other.cost(n, 0) == pytest.approx(costs.cost(n, 0), rel=0.05)
    assert other.weight(1) > 1
    for drafter, depth, claim, sampled in (("ngram", 1, 0.9, False), ("model", 2, 0.5, True)):
        expected = claims.probability(drafter, depth, claim, sampled)
        assert abs(expected - claim) > 0.2
        assert table.probability(drafter, depth, claim, sampled) == pytest.approx(expected)
    assert table.probability("ngram", 1, 0.9, True) == pytest.approx(0.9)


def with_claims(change: str) -> str:
    data = {"format": "divine drafting 2", "costs": {"slope": 0, "rows": {"1": [5, 1]}}}
    claims = learned_claims().data()
    entry = claims["ngram"]
    if change == "fewer":
        entry["rights"] = entry["rights"][1:]
    elif change == "shorter":
        entry["totals"][0] = entry["totals"][0][1:]
    elif change == "negative":
        entry["totals"][0][0] = -1.0
    elif change == "word":
        entry["totals"][0][0] = "1"
    elif change == "more right than there were":
        entry["rights"][0] = [total + 1 for total in entry["totals"][0]]
    elif change == "nodes":
        entry["nodes"] = None
    elif change == "list":
        claims["ngram"] = []
    return json.dumps({**data, "claims": claims if change != "none" else None})


def with_costs(slope: str, rows: str, name: str = "divine drafting 2") -> str:
    return f'{{"format": "{name}", "costs": {{"slope": {slope}, "rows": {rows}}}, "claims": {{}}}}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": "divine drafting 2"}',
        with_costs("0", "{}"),
        with_costs("NaN", '{"1": [5, 1]}'),
        with_costs("0", '{"x": [5, 1]}'),
        with_costs("0", '{"1": [0, 1]}'),
        with_costs("0", '{"1": [Infinity, 1]}'),
        with_costs("0", '{"1": ["5", 1]}'),
        with_costs("0", '{"99999": [5, 1]}'),
        with_costs("0", '{"1": [5, 1]}', "something else"),
        *map(with_claims, ("none", "list", "fewer", "shorter", "negative", "word", "nodes")),
        with_claims("more right than there were"),
        "[" * 100_000,
    ],
)
def test_damaged_and_foreign_files_are_ignored(tmp_path: Path, text: str) -> None:
    path = tmp_path / "experience.json"
    path.write_text(text)
    costs, claims = CostTable(TRUE), Calibration()
    assert not load_experience(path, costs, claims)
    assert costs.cost(1, 0) == 40.0
    assert not claims.data()


def test_the_files_of_these_tests_differ_from_a_good_one_in_one_place(tmp_path: Path) -> None:
    path = tmp_path / "experience.json"
    for text in (with_claims("nothing"), with_costs("0", '{"1": [5, 1]}')):
        path.write_text(text)
        assert load_experience(path, CostTable(TRUE), Calibration())


def test_files_that_cannot_be_read_or_written_are_nobodys_problem(tmp_path: Path) -> None:
    costs, claims = learned_costs(), learned_claims()
    assert not load_experience(tmp_path / "none.json", costs, claims)
    (tmp_path / "file").write_text("")
    save_experience(tmp_path / "file" / "experience.json", costs, claims)  # a folder is a file
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    assert not load_experience(tmp_path / "bytes.json", costs, claims)
