"""Constrained answers through the whole library: the same text however it is drafted or batched."""

from __future__ import annotations

import json
import math

import jsonschema
import pytest

import divine
from divine.constraints import grammar, json_object, json_schema, regex
from divine.errors import CapacityError, UsageError
from tiny_models import tiny_llama

AB = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "yy"]}},
    "required": ["a"],
    "additionalProperties": False,
}
ITEM = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 5},
        "description of it": {"type": "string", "maxLength": 5},
        "size": {"enum": [1, 2, 12]},
        "parts": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["title", "description of it", "size", "parts"],
    "additionalProperties": False,
}
SETTINGS = [
    {"temperature": 0},
    {"temperature": 1.5, "seed": 3},
    {"temperature": 0.9, "seed": 4, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.3},
    {"temperature": 1.0, "seed": 5, "min_p": 0.05, "frequency_penalty": 0.8},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The model drafts for itself, so that drafts cross all borders of the grammar."""
    path = tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf", seed=1, context=512)
    with divine.load(path, threads=1, draft_model=path) as loaded:
        yield loaded


def drafted(statistics, name):
    counts = statistics.drafts.get(name)
    return 0 if counts is None else sum(counts.accepted) + sum(counts.rejected)


@pytest.mark.parametrize("settings", SETTINGS)
def test_drafts_change_nothing(model, settings):
    constraint = json_schema(ITEM)
    plain = model.generate("hello", constraint=constraint, draft="none", **settings)
    jsonschema.validate(json.loads(plain.text), ITEM)
    assert plain.finish_reason == "stop"
    guess = plain.text[:20] + plain.text[24:]
    for extra in (
        {"draft": "forced"},
        {"draft": "auto"},
        {"draft": "auto", "draft_text": guess},
        {"draft": "forced,ngram,model", "draft_tree": 8},
        {"draft": "text", "draft_text": plain.text, "draft_tree": 16},
        {"draft": "model", "draft_tree": 5},
        {"draft": "ngram,text", "draft_text": guess + '}, {"a": "x"}', "draft_tree": 8},
        {"draft": "synthetic:0.7", "draft_tree": 8},
    ):
        answer = model.generate("hello", constraint=constraint, **settings, **extra)
        assert answer.tokens == plain.tokens, extra
        assert answer.text == plain.text
        assert answer.finish_reason == "stop"


def test_many_seeds_end_at_the_brace(model):
    constraint = json_schema(AB)
    seen = set()
    for seed in range(40):
        options = {"temperature": 10, "seed": seed, "constraint": constraint}
        plain = model.generate("hello", draft="none", **options)
        jsonschema.validate(json.loads(plain.text), AB)
        assert plain.text in ('{"a": "x"}', '{"a": "yy"}')
        for draft in ("forced", "model"):
            answer = model.generate("hello", draft=draft, draft_tree=8, **options)
            assert answer.tokens == plain.tokens
        seen.add(plain.text)
    assert len(seen) == 2


def test_answers_in_shared_passes_are_those_alone(model):
    asked = [
        {"constraint": json_schema(ITEM), "temperature": 0},
        {"constraint": json_schema(AB), "temperature": 1.0, "seed": 1},
        {"temperature": 1.0, "seed": 2},
        {"constraint": regex("[0-9]{4}-[0-9]{2}"), "temperature": 1.0, "seed": 3},
        {"constraint": grammar('start: "yes" | "no"'), "temperature": 0},
        {"constraint": json_schema(ITEM), "temperature": 1.0, "seed": 9},
    ]
    alone = [model.generate("hello", max_tokens=60, **options) for options in asked]
    streams = [model.stream("hello", max_tokens=60, **options) for options in asked]
    together = [stream.finish() for stream in streams]
    assert [a.tokens for a in alone] == [t.tokens for t in together]
    many = model.generate_many(["hello", "the user"], temperature=0, constraint=json_schema(AB))
    assert [json.loads(one.text).keys() for one in many] == [{"a"}, {"a"}]


def test_forced_text_costs_no_passes_of_its_own(model):
    options = {"constraint": json_schema(ITEM), "temperature": 0, "draft_tree": 16}
    plain = model.generate("hello", draft="none", **{**options, "draft_tree": None})
    forced = model.generate("hello", draft="forced", **options)
    assert forced.tokens == plain.tokens
    assert forced.statistics.passes < 0.6 * plain.statistics.passes
    assert sum(forced.statistics.drafts["forced"].accepted) > 20


def test_what_the_grammar_forbids_gets_no_rows(model):
    options = {"constraint": json_schema(AB), "temperature": 0, "draft": "text", "draft_tree": 16}
    answer = model.generate("hello", draft_text="hello the world model and user", **options)
    assert drafted(answer.statistics, "text") == 0
    assert answer.text


def test_it_ends_by_itself_and_where_it_is_told(model):
    constraint = json_schema(AB)
    whole = model.generate("hello", temperature=0, constraint=constraint)
    count = len(whole.tokens)
    exact = model.generate("hello", temperature=0, constraint=constraint, max_tokens=count)
    assert (exact.text, exact.finish_reason) == (whole.text, "stop")
    short = model.generate("hello", temperature=0, constraint=constraint, max_tokens=count - 1)
    assert (short.tokens, short.finish_reason) == (whole.tokens[:-1], "length")
    cut = model.generate("hello", temperature=0, constraint=constraint, stop='"a"')
    assert (cut.text, cut.finish_reason) == ("{", "stop")


def test_logprobs_are_the_models_own(model):
    """They tell what the model would have said: the mask is no part of them."""
    options = {"temperature": 0, "constraint": json_schema(AB), "logprobs": 3}
    plain = model.generate("hello", draft="none", **options)
    drafted = model.generate("hello", draft="forced", draft_tree=8, **options)
    assert plain.logprobs == drafted.logprobs
    assert plain.logprobs is not None
    free = model.generate("hello", temperature=0, logprobs=3, max_tokens=1, draft="none")
    assert free.logprobs is not None
    assert plain.logprobs[0].top == free.logprobs[0].top
    brace = plain.tokens[0]
    assert plain.logprobs[0].token == brace != free.tokens[0]
    assert plain.logprobs[0].logprob < free.logprobs[0].logprob < 0


def test_rejection_sampling_keeps_to_the_grammar(model):
    for seed in range(8):
        for draft in ("forced", "model", "ngram"):
            answer = model.generate(
                "hello", temperature=1.2, seed=seed, constraint=json_schema(AB), draft=draft,
                accept="rejection", draft_tree=4,
            )  # fmt: skip
            jsonschema.validate(json.loads(answer.text), AB)


def test_a_bias_cannot_bring_back_what_is_forbidden(model):
    letter = model.tokenize("q")[0]
    options = {"temperature": 0, "constraint": json_schema(AB), "logit_bias": {letter: 100.0}}
    assert "q" not in model.generate("hello", **options).text


def test_a_bias_and_a_constraint_that_leave_nothing(model):
    brace = model.tokenize("{")[0]
    options = {"temperature": 0, "constraint": json_object(), "logit_bias": {brace: -math.inf}}
    steady = model.stream("the world", temperature=0, max_tokens=20)
    words = "logit_bias and the constraint forbid every one"
    with pytest.raises(CapacityError, match=words):
        model.generate("hello", **options)
    alone = model.generate("the world", temperature=0, max_tokens=20, draft="none")
    assert steady.finish().tokens == alone.tokens


def test_wrong_options(model):
    with pytest.raises(UsageError, match=r"constraint is \{\}; allowed is one of"):
        model.generate("hello", constraint={})
    with pytest.raises(UsageError, match='draft "forced" needs a constraint'):
        model.generate("hello", draft="forced")


def test_without_a_constraint_nothing_is_forced(model):
    answer = model.generate("hello", temperature=0, max_tokens=5)
    assert "forced" not in answer.statistics.drafts
