"""Text of unknown origin on its way to a terminal or a program."""

from __future__ import annotations

import json
import math

import numpy as np

from divine.cli import console


def test_printable_is_one_harmless_line():
    assert console.printable("a\n\x1b[2J\u202e\x07é日") == "a\\n\\x1b[2J\\u202e\\x07é日"


def test_json_is_valid_for_anything(capsys):
    value = {
        "nan": math.nan,
        "inf": [math.inf, -math.inf],
        "surrogate\udcff": "x\udcff",
        "bytes": b"\xff\xfeok",
        "numpy": np.float32(0.5),
        "array": np.arange(3),
        "deep": ({"nan": np.float64("nan")},),
    }
    console.print_json(value)

    def no_constants(name: str) -> None:
        raise AssertionError(name)

    document = json.loads(capsys.readouterr().out, parse_constant=no_constants)
    assert document["nan"] == "nan"
    assert document["inf"] == ["inf", "-inf"]
    assert document["surrogate\\udcff"] == "x\\udcff"
    assert document["bytes"] == "\\xff\\xfeok"
    assert document["numpy"] == 0.5
    assert document["array"] == [0, 1, 2]
    assert document["deep"] == [{"nan": "nan"}]


def test_answers_cannot_command_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    console.write("ok\tü\n\x1b]0;title\x07\x9b")
    assert capsys.readouterr().out == "ok\tü\n\u241b]0;title\u2407\ufffd"


def test_bytes_to_a_pipe_are_not_touched(capsys):
    console.write("\x1b[1m\0")
    assert capsys.readouterr().out == "\x1b[1m\0"


def test_sizes():
    assert console.gigabytes(1_117_320_768) == "1.12 GB"
    assert console.gigabytes(98_362_432) == "98.4 MB"
    assert console.gigabytes(999) == "999 B"
