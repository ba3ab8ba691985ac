"""`divine doctor`: every line filled, and useful when the native module is broken."""

from __future__ import annotations

import json
import sys


def test_report(divine):
    result = divine("doctor", "--json", "-t", "1")
    assert result.code == 0, result.err
    report = json.loads(result.out)
    assert report["native"]["level_in_use"] in report["native"]["levels"]
    assert report["native"]["memory_roof_gb_s"] > 0.1
    assert report["native"]["threads"] == 1
    assert report["memory"]["total_bytes"] > report["memory"]["available_bytes"] > 0
    assert report["versions"]["numpy"]


def test_threads_out_of_range(divine):
    result = divine("doctor", "-t", "-1")
    assert (result.code, result.out) == (2, "")
    assert "-1; allowed is an integer from 1 to 256" in result.err


def test_lines_for_people(divine):
    lines = divine("doctor", "-t", "1").out.splitlines()
    assert any("memory roof" in line and line.endswith(" GB/s") for line in lines)
    assert not any(word in line for line in lines[:-1] for word in ("_bytes", "True", "False"))


def test_a_broken_native_module_is_part_of_the_report(divine, monkeypatch):
    monkeypatch.setitem(sys.modules, "divine.backends.cpu._native", None)  # importing it fails
    result = divine("doctor")
    assert result.code == 0, result.err
    assert "the native module cannot be loaded" in result.out
