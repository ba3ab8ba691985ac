"""Constraints on small vocabularies: what is allowed, that answers parse, that trees may branch."""

from __future__ import annotations

import json
import random
import sys

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import CONTROL, USER_DEFINED, byte_level, sentencepiece, tokenizer

from divine.constraints import Constraint, grammar, json_object, json_schema, regex
from divine.errors import ConstraintError, UnsupportedError, UsageError

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["red", "green", "blue é"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["name", "age", "kind", "tags"],
    "additionalProperties": False,
}
MERGES = ['" :', '{ "', "n a", "na m", "nam e", '" ,', "t a", "g s", "t r", "1 2", "} }", "r e"]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    special = {"<end>": CONTROL, "<other>": CONTROL, "<tool>": USER_DEFINED}
    keys = byte_level(MERGES, special, eos_token_id=256 + len(MERGES))
    return tokenizer(tmp_path_factory.mktemp("small"), keys)


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    words = {"\u2581the": -1.0, '{"': -2.0, "\u2581": -3.0, '":': -4.0, "true": -5.0, "a": -6.0}
    keys = sentencepiece(words, eos_token_id=2, bos_token_id=1)
    return tokenizer(tmp_path_factory.mktemp("pieces"), keys)


def ids_at(processor, state):
    return np.flatnonzero(processor.allowed(state)).tolist()


def place(processor, tokens):
    state = processor.start(())
    for token in tokens:
        state = processor.advance(state, token)
    return state


def random_answer(tokens, constraint, seed, most=400):
    """Token ids of an answer that takes any allowed token, ends where it must, and its places."""
    processor = constraint.compile(tokens)
    rng = random.Random(seed)
    state, ids, states = processor.start(()), [], []
    while not processor.complete(state) and len(ids) < most:
        allowed = ids_at(processor, state)
        assert allowed
        states.append(state)
        ends = [token for token in allowed if token in tokens.end_ids]
        # Letters lead nowhere: what ends a string or a list is preferred.
        closing = [t for t in allowed if set(tokens.token_bytes(t)) & set(b'"]}')]
        token = rng.choice(closing if closing and rng.random() < 0.5 else allowed)
        if ends and rng.random() < 0.3:
            token = ends[0]
        assert processor.accepts(state, token)
        if token in tokens.end_ids:
            break
        ids.append(token)
        state = processor.advance(state, token)
    return processor, ids, states, state


SCHEMAS = st.recursive(
    st.sampled_from(
        [
            {"type": "integer"},
            {"type": "number"},
            {"type": "boolean"},
            {"type": "null"},
            {"type": "string", "maxLength": 6},
            {"enum": ["a", "ab", 3, None]},
            {"const": {"x": [1, "é"]}},
            {"type": "string", "pattern": "^[a-c]{2,3}$"},
            {"type": "integer", "minimum": -3, "maximum": 12},
        ]
    ),
    lambda inner: st.one_of(
        inner.map(lambda item: {"type": "array", "items": item, "maxItems": 3}),
        st.lists(inner, min_size=1, max_size=3).map(lambda items: {"anyOf": items}),
        st.dictionaries(st.sampled_from(["a", "name", 'q"\\']), inner, max_size=3).map(
            lambda members: {
                "type": "object",
                "properties": members,
                "required": sorted(members)[:1],
                "additionalProperties": False,
            }
        ),
    ),
    max_leaves=5,
)


@given(schema=SCHEMAS, seed=st.integers(0, 2**32))
@settings(max_examples=80, deadline=None)
def test_whatever_is_allowed_the_answer_follows_the_schema(small, schema, seed):
    processor, ids, _, state = random_answer(small, json_schema(schema), seed)
    text = small.decode(ids, continuation=True)
    if processor.complete(state) or set(ids_at(processor, state)) & small.end_ids:
        jsonschema.validate(json.loads(text), schema)
    else:
        assert len(ids) == 400


@given(seed=st.integers(0, 2**32), data=st.data())
@settings(max_examples=15, deadline=None)
def test_places_may_be_asked_about_in_any_order(small, seed, data):
    """Back, forward and to side branches: always as a processor that was never elsewhere."""
    constraint = json_schema(PERSON)
    processor, ids, states, _ = random_answer(small, constraint, seed)
    for _ in range(12):
        index = data.draw(st.integers(0, len(states) - 1))
        state, taken = states[index], list(ids[:index])
        for _ in range(data.draw(st.integers(0, 3))):  # into a side branch
            token = data.draw(st.sampled_from(ids_at(processor, state)))
            state = processor.advance(state, token)
            taken.append(token)
            if token in small.end_ids:
                break
        if taken and taken[-1] in small.end_ids:
            assert processor.accepts(state.parent, taken[-1])
            assert not any(processor.accepts(state, token) for token in range(small.vocabulary))
            assert set(ids_at(processor, state)) == small.end_ids
            continue
        fresh = place(processor, taken)
        assert ids_at(processor, state) == ids_at(processor, fresh)
        assert processor.forced(state) == processor.forced(fresh)
        assert processor.complete(state) == processor.complete(fresh)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_forced_tokens_are_what_may_follow_and_nothing_else(small, seed):
    processor, _, states, _ = random_answer(small, json_schema(PERSON), seed)
    met = 0
    for state in states:
        tokens, text = processor.forced(state)
        assert text.startswith(b"".join(map(small.token_bytes, tokens)))
        for token in tokens:
            assert ids_at(processor, state) == [token]
            state = processor.advance(state, token)
            met += 1
    assert met > 5


def test_the_end_is_allowed_exactly_where_the_text_is_complete(small):
    processor = regex("ab*").compile(small)
    assert not set(ids_at(processor, place(processor, []))) & small.end_ids
    after = place(processor, small.encode("ab"))
    assert set(small.end_ids) <= set(ids_at(processor, after))
    assert not processor.complete(after)
    whole = json_schema(PERSON).compile(small)
    text = '{"name": "x", "age": 12, "kind": "blue é", "tags": [true, false]}'
    ids = small.encode(text)
    for cut in range(len(ids)):
        state = place(whole, ids[:cut])
        assert whole.accepts(state, ids[cut])
        assert not whole.complete(state)
        assert not set(ids_at(whole, state)) & small.end_ids
    end = place(whole, ids)
    assert whole.complete(end)
    assert set(ids_at(whole, end)) == small.end_ids
    assert whole.forced(end) == ([], b"")


def test_control_tokens_are_never_text_and_user_defined_ones_are(small):
    processor = regex("(?s:.*)").compile(small)
    allowed = set(ids_at(processor, processor.start(())))
    texts = {small.token_text(token): token for token in range(small.vocabulary)}
    assert texts["<tool>"] in allowed
    assert texts["<other>"] not in allowed
    assert texts["<end>"] in allowed  # it ends the answer
    forced, _ = regex("<tool>x").compile(small).forced(regex("<tool>x").compile(small).start(()))
    assert forced[0] == texts["<tool>"]


def test_logits_are_only_masked(small):
    processor = json_schema(PERSON).compile(small)
    state = processor.start(())
    logits = np.random.default_rng(0).standard_normal(small.vocabulary).astype(np.float32)
    masked = logits.copy()
    processor.apply(state, masked)
    allowed = processor.allowed(state)
    assert (masked[allowed] == logits[allowed]).all()
    assert np.isneginf(masked[~allowed]).all()


def test_a_sentencepiece_vocabulary(pieces):
    ended = 0
    for seed in range(10):
        processor, ids, _, state = random_answer(pieces, json_schema(PERSON), seed)
        if processor.complete(state):
            jsonschema.validate(json.loads(pieces.decode(ids, continuation=True)), PERSON)
            ended += 1
    assert ended > 5


def test_a_vocabulary_that_cannot_write_what_is_asked_for(tmp_path):
    words = {"\u2581a": -1.0, "a": -2.0, "b": -3.0}
    poor = tokenizer(tmp_path, sentencepiece(words, byte_tokens=False, eos_token_id=2))
    with pytest.raises(UsageError, match="allows no text"):
        regex("x+").compile(poor)
    processor = regex("a(é|b)é").compile(poor)
    state = place(processor, poor.encode("a", continuation=True, bos=False)[-1:])
    assert not processor.complete(state)
    state = processor.advance(state, poor.encode("ab", continuation=True, bos=False)[-1])
    assert not processor.complete(state)
    with pytest.raises(ConstraintError, match="regex has no way to go on after 2 tokens"):
        processor.allowed(state)


def test_what_is_not_allowed_leads_nowhere(small):
    processor = json_schema(PERSON).compile(small)
    wrong = place(processor, small.encode("[1]"))
    assert not processor.accepts(wrong, 5)
    assert processor.forced(wrong) == ([], b"")
    assert not processor.complete(wrong)
    with pytest.raises(ConstraintError, match="json_schema has no way to go on after"):
        processor.allowed(wrong)
    again = place(processor, small.encode('{"'))  # another answer is not harmed
    assert ids_at(processor, again)
    state = again.run.here
    assert processor.accepts(again, small.encode("n")[0])
    assert state is again


def test_a_sequence_is_not_harmed_by_a_branch_that_is_not_allowed(small):
    processor = json_schema(PERSON).compile(small)
    good = place(processor, small.encode('{"nam'))
    before = ids_at(processor, good)
    bad = good
    for token in small.encode("[[["):
        bad = processor.advance(bad, token)
    assert not processor.complete(bad)
    assert processor.forced(bad) == ([], b"")
    assert ids_at(processor, good) == before


def test_compiled_once_for_each_vocabulary(small, pieces):
    constraint = json_schema(PERSON)
    assert constraint.compile(small) is json_schema(dict(PERSON)).compile(small)
    assert constraint.compile(small) is not constraint.compile(pieces)


def test_json_object_is_an_object(small):
    processor = json_object().compile(small)
    state = processor.start(())
    assert all(small.token_bytes(t)[:1] == b"{" for t in ids_at(processor, state))


def test_grammars_in_both_notations(small):
    for text in ('start: "yes" | "no"', 'root ::= "yes" | "no"'):
        processor = grammar(text).compile(small)
        assert processor.complete(place(processor, small.encode("yes")))
        assert not processor.accepts(processor.start(()), small.encode("x")[0])


@pytest.mark.parametrize(
    ("schema", "names"),
    [
        ({"type": "banana"}, "banana"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "string", "pattern": "("}, "unclosed group"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ({"$ref": "https://example.org/x"}, "example.org"),
        ({"$ref": "#/definitions/none"}, "/definitions/none"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum"),
        ({"enum": []}, "empty"),
        ({"type": "object", "required": ["z"], "additionalProperties": False}, "'z'"),
        ({"type": "string", "format": "banana"}, "banana"),
        ({"type": "number", "minimum": float("nan")}, "no JSON"),
        ({"description": "x" * 300_000}, "300019 characters; at most 262144"),
        ({"type": "string", "title": "\ud800"}, "no JSON"),
        ({"x-guidance": {"lenient": True}, "not": {}}, "not"),
        ([], "must be a JSON object, not list"),
        ("{}", "must be a JSON object, not str"),
        (None, "must be a JSON object, not NoneType"),
    ],
)
def test_schemas_that_cannot_be_enforced(schema, names):
    with pytest.raises(UsageError) as error:
        json_schema(schema, "response_format.json_schema.schema")
    message = str(error.value)
    assert message.startswith("response_format.json_schema.schema")
    assert names in message
    assert "\n" not in message
    assert len(message) < 400


def test_schemas_too_large_or_too_deep():
    deep: object = {"type": "string"}
    for _ in range(5000):
        deep = {"type": "array", "items": deep}
    with pytest.raises(UsageError, match="nested too deeply"):
        json_schema(deep)  # type: ignore[arg-type]
    values = {f"p{i}": {"enum": [f"v{j}" for j in range(50)]} for i in range(400)}
    wide = {"type": "object", "properties": values, "additionalProperties": False}
    cross = {"allOf": [{"anyOf": [{"required": [f"k{j}{i}"]} for i in range(9)]} for j in range(8)]}
    for schema in (wide, cross):
        try:
            json_schema(schema)
        except UsageError as error:
            assert "too" in str(error)  # noqa: PT017 - either is right, a traceback is not


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: regex("("), "unclosed group"),
        (lambda: regex("(" * 100_000), "regex cannot be enforced"),
        (lambda: regex(""), "regex must be a text"),
        (lambda: regex(5), "regex must be a text"),  # type: ignore[arg-type]
        (lambda: grammar("start: b"), 'unknown name: "b"'),
        (lambda: grammar("start: " + "(" * 50_000), "too deeply nested"),
        (lambda: grammar('root ::= "a" ('), "grammar cannot be enforced"),
        (lambda: grammar('start: <[1]> "x" %import /etc/passwd'), "grammar cannot be enforced"),
        (lambda: grammar("x" * 300_000), "300000 characters"),
    ],
)
def test_grammars_that_cannot_be_read(make, names):
    with pytest.raises(UsageError) as error:
        make()
    assert names in str(error.value)
    assert "\n" not in str(error.value)


def test_a_grammar_without_any_text(small):
    for constraint in (json_schema({"$ref": "#"}), grammar("start: start")):
        with pytest.raises(UsageError, match="allows no text"):
            constraint.compile(small)


def test_a_grammar_that_grows_too_complex_ends_its_own_answer_only(small):
    rules = range(1500)
    ways = " | ".join(f"r{i}" for i in rules)
    text = f'start: "x" ("y" | "z" ({ways}))\n' + "\n".join(f'r{i}: "x" "{i}"' for i in rules)
    hard = grammar(text)
    processor = hard.compile(small)
    x, y, z = (small.encode(letter)[0] for letter in "xyz")
    begun = place(processor, [x])
    side = processor.advance(begun, z)
    assert ids_at(processor, begun) == sorted([y, z])
    with pytest.raises(ConstraintError, match="grammar became too complex after 2 tokens"):
        processor.allowed(side)
    assert ids_at(processor, processor.advance(begun, y)) == sorted(small.end_ids)
    with pytest.raises(ConstraintError):
        processor.allowed(side)
    assert hard.compile(small) is not processor
    whole = place(hard.compile(small), [x, y])
    assert hard.compile(small).complete(whole)


def test_a_vocabulary_without_an_end(tmp_path):
    endless = tokenizer(tmp_path, byte_level(["a b"]))
    with pytest.raises(UnsupportedError, match="a token that ends an answer"):
        json_object().compile(endless)


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'divine-llm\[json\]'"):
        json_schema(PERSON)


def test_a_constraint_is_plain_data():
    assert json_schema(PERSON) == json_schema(PERSON)
    assert isinstance(hash(json_schema(PERSON)), int)
    assert json_schema(PERSON) != Constraint("x", "y")
