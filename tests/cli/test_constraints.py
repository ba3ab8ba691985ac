"""-j, -jf, --grammar and --grammar-file of `divine run`."""

from __future__ import annotations

import json

import pytest

from .conftest import assert_one_sentence

SCHEMA = '{"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}'
ASKED = ("--temp", "0", "-n", "40", "--draft", "none")


def test_answers_follow_what_is_given(divine, tiny, tmp_path):
    closed = SCHEMA[:-1] + ', "additionalProperties": false}'
    (tmp_path / "schema").write_text(closed)
    (tmp_path / "grammar").write_text('root ::= "yes" | "no"')
    for way in (("-j", closed), ("-jf", tmp_path / "schema"), ("--json-schema", closed)):
        result = divine("run", tiny, "hello", *ASKED, *way)
        assert json.loads(result.out)["a"] in (True, False), result
    for way in (("--grammar", 'start: "yes" | "no"'), ("--grammar-file", tmp_path / "grammar")):
        assert divine("run", tiny, "hello", *ASKED, *way).out in ("yes\n", "no\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-j", "{"), ("--json-schema is not valid JSON",)),
        (("-j", "[1]"), ("--json-schema must be a JSON object",)),
        (("-j", '{"type": "x"}'), ("--json-schema cannot be enforced", "x")),
        (("-j", "[" * 100_000), ("--json-schema is not valid JSON",)),
        (("-jf", "/nowhere"), ("/nowhere", "no such file")),
        (("--grammar", "("), ("--grammar cannot be enforced",)),
        (("-j", "{}", "--grammar", "x"), ("--json-schema and --grammar are given",)),
    ],
)
def test_mistakes(divine, tiny, arguments, words):
    result = divine("run", tiny, "hello", *arguments)
    assert result.code == 2
    assert_one_sentence(result, *words)


def test_a_prefix_cache(divine, tiny, tmp_path):
    asked = ("run", tiny, "hello " * 60, "--temp", "0", "-n", "4", "--prefix-cache", tmp_path / "d")
    first = divine(*asked, "--prefix-cache-size", "1.5M")
    assert first.code == 0, first.err
    assert list((tmp_path / "d").glob("*.kv"))
    assert divine(*asked).out == first.out
    for size, words in (("x", "such as 500M or 2G"), ("5", "--prefix-cache-size is 5")):
        assert_one_sentence(divine(*asked, "--prefix-cache-size", size), words)
    result = divine("run", tiny, "hello", "--prefix-cache-size", "2G")
    assert_one_sentence(result, "give one with --prefix-cache")
