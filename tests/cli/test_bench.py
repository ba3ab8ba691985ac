"""`divine bench`: what is done with the figures; measuring is tested where it is done."""

from __future__ import annotations

import json

import pytest

FIGURES = {
    "machine": {"cpu": "Toy", "threads": 2},
    "model": "toy.gguf",
    "memory_roof_gb_s": 20.0,
    "in_cache_gmac_s": {"Q4_K": 141.0},
    "plain": {"tok_s": 18.0, "roof_share": 0.875},
    "cost_ms": {"1": 50.0, "2": 55.0},
    "efficiency": {"1": 0.9},
    "prefill": {"tokens": 512, "tok_s": 60.0},
    "long_context": {"tokens": 8192, "tok_s": 15.0, "roof_share": 0.8},
    "load_s": 1.5,
    "peak_rss_mb": 1234.5,
}


@pytest.fixture
def measured(monkeypatch) -> list[object]:
    """What divine.bench.run was asked to measure; it answers FIGURES at once."""
    asked: list[object] = []

    def run(target, *, threads=None, progress=None):
        asked.append(target)
        progress("round 1 of 1 ...")
        return FIGURES

    monkeypatch.setattr("divine.bench.run", run)
    return asked


def test_tables_and_file(divine, tiny, tmp_path, measured):
    result = divine("bench", tiny, "--json", tmp_path / "figures.json")
    assert result.code == 0, result.err
    assert measured == [tiny]
    for text in ("20.0 GB/s", "141.0 G", "18.0 tok/s, 88 % of the roof", "1.10", "0.90", "1.50 s"):
        assert text in result.out
    assert result.err == "round 1 of 1 ...\n"
    assert json.loads((tmp_path / "figures.json").read_text()) == FIGURES


def test_json_to_standard_output(divine, measured):
    result = divine("bench", "--shape", "llama-3.1-8b:Q4_K_M", "--json", "-")
    assert json.loads(result.out) == FIGURES
    assert measured == ["llama-3.1-8b:Q4_K_M"]


def test_a_file_that_cannot_be_written_is_told_before(divine, tiny, measured):
    result = divine("bench", tiny, "--json", "/none/figures.json")
    assert result.code == 2
    assert "divine: /none/figures.json cannot be written" in result.err
    assert measured == []


def test_an_unknown_shape(divine):
    result = divine("bench", "--shape", "banana:Q4_K_M", "--json", "-")
    assert result.code == 2
    complaint = result.err.splitlines()[-1]  # after what it was doing
    assert complaint.startswith("divine: ")
    assert "banana" in complaint
