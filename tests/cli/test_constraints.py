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
