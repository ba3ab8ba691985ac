"""Tool calls: families, forced calls that are valid, and calls found in text however it comes."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import CONTROL, USER_DEFINED, byte_level, tokenizer

from divine.constraints import (
    Arguments,
    CallEnded,
    CallStarted,
    Text,
    tool_calls,
    tool_family,
)
from divine.constraints.tools.dialects import DIALECTS
from divine.errors import UsageError
from divine.text import ChatTemplate, check_messages

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "tells the weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 6},
                "unit": {"enum": ["C", "F"]},
            },
            "required": ["city"],
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, NOW]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
CITY = '{"city": "Z\u00fcrich \\"x\\" }]", "unit": "C"}'
ANSWERS = {
    "hermes": 'Well.\n<tool_call>\n{"name": "get_weather", "arguments": %s}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    "llama3": '{"name": "get_weather", "parameters": %s}; {"name": "now", "parameters": {}}',
    "mistral": 'Well.[TOOL_CALLS][{"name": "get_weather", "arguments": %s}, '
    '{"name": "now", "arguments": {}}]',
    "mistral-args": "Well.[TOOL_CALLS]get_weather[ARGS]%s[TOOL_CALLS]now[ARGS]{}",
    "generic": 'Well.\n<tool_call>\n{"name": "get_weather", "arguments": %s}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
}


def read(parser, pieces):
    """Text and calls as (id, name, arguments) of an answer in pieces; checks the events' order."""
    text, calls, open_call = "", [], None
    for events in [*map(parser.push, pieces), parser.finish()]:
        for event in events:
            match event:
                case Text(piece):
                    assert open_call is None
                    text += piece
                case CallStarted(index, id_, name):
                    assert (index, open_call) == (len(calls), None)
                    open_call = index
                    calls.append([id_, name, ""])
                case Arguments(index, piece):
                    assert index == open_call
                    calls[index][2] += piece
                case CallEnded(index):
                    assert index == open_call
                    open_call = None
    return text, calls, open_call


def cut(text, places):
    marks = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in pairwise(marks)]


@pytest.mark.parametrize("family", DIALECTS)
@given(places=st.lists(st.integers(0, 10**6), max_size=30))
@settings(max_examples=40, deadline=None)
def test_calls_are_found_however_the_answer_is_cut(family, places):
    answer = ANSWERS[family] % CITY
    text, calls, cut_off = read(tool_calls(TOOLS, "auto", family).parser(), cut(answer, places))
    assert text == ("" if family == "llama3" else "Well.")
    assert cut_off is None
    assert [(name, json.loads(arguments)) for _, name, arguments in calls] == [
        ("get_weather", json.loads(CITY)),
        ("now", {}),
    ]
    ids = [id_ for id_, _, _ in calls]
    assert len(set(ids)) == 2
    for id_ in ids:
        assert id_.isalnum() if "mistral" in family else id_.startswith("call_")
        assert len(id_) == (9 if "mistral" in family else 29)


BROKEN = [
    'a <tool_call>\n{"name": "get_weather", "arguments": {"city": }\n</tool_call> b',
    '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>',
    '<tool_call>\n{"name": 5, "arguments": {}}\n</tool_call>',
    '<tool_call>\n{"name": ["now"], "arguments": {}}\n</tool_call>',
    '<tool_call>\n{"name": "now", "arguments": 7}\n</tool_call>',
    '<tool_call>\n{"name": "now", "arguments": "{"}\n</tool_call>',
    '<tool_call>\n{"name": "now", "arguments": {"a": "b',
    "the mark <tool_call> is how calls begin",
    "<tool_call>",
    "<tool_cal",
    '<tool_call>[{"x": 1}]</tool_call>',
    '<tool_call>\n{"name": "now"' + "]" * 50 + "</tool_call>",
    '<tool_call>{"a":' * 30,
    "  leading space, trailing space \n\n",
    '{"name": "else", "arguments": {}}',
    "{" * 3000,
    "",
]


@pytest.mark.parametrize("answer", BROKEN)
@given(places=st.lists(st.integers(0, 10**6), max_size=20))
@settings(max_examples=15, deadline=None)
def test_what_is_no_call_is_text(answer, places):
    for family in ("hermes", "generic"):
        parser = tool_calls(TOOLS, "auto", family).parser()
        assert read(parser, cut(answer, places)) == (answer, [], None)


SHARDS = [
    "<tool_call>", "</tool_call>", "<tool", "[TOOL_CALLS]", "[ARGS]", "[", "]", "{", "}", '"', "\\",
    '{"name": "now", "arguments": {}}', '{"name": "now", "parameters": {"a": 1}}', "now", ", ",
    '"name"', ": ", "\n", "<|python_tag|>", "x y", "; ", "</", "\u00fc",
]  # fmt: skip


@pytest.mark.parametrize("family", DIALECTS)
@given(shards=st.lists(st.sampled_from(SHARDS), max_size=25), places=st.lists(st.integers(0, 500)))
@settings(max_examples=40, deadline=None)
def test_any_text_is_read_the_same_however_it_is_cut(family, shards, places):
    answer = "".join(shards)
    made = tool_calls(TOOLS, "auto", family)
    text, calls, open_call = read(made.parser(), [answer])
    assert open_call is None
    pieces, same_calls, _ = read(made.parser(), cut(answer, places))
    assert [call[1:] for call in calls] == [call[1:] for call in same_calls]
    assert pieces == text
    if not calls:
        assert text == answer
    for _, name, arguments in calls:
        assert name in ("now", "get_weather")
        json.loads(arguments)


def test_other_forms_of_the_same_call():
    for answer in (
        '<tool_call>{"arguments":{"city":"X"},"name":"get_weather"}',  # no closing, other order
        '<tool_call>\n\n{ "name" : "get_weather" , "parameters" : { "city" : "X" } }</tool_call>',
        '<tool_call>[{"name": "get_weather", "arguments": "{\\"city\\": \\"X\\"}"}]',
        '<|tool_call|>{"name": "get_weather", "arguments": {"city": "X"}}',
        '\n{"name": "get_weather", "parameters": {"city": "X"}}',
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "X"}}',
    ):
        text, calls, _ = read(tool_calls(TOOLS).parser(), answer)
        assert text == ""
        assert [(name, json.loads(arguments)) for _, name, arguments in calls] == [
            ("get_weather", {"city": "X"})
        ], answer


def test_text_after_calls_goes_on():
    answer = (
        '<tool_call>{"name": "now"}</tool_call>\n\nDone. <tool_call>{"name": "now"}</tool_call>'
    )
    text, calls, _ = read(tool_calls(TOOLS, "auto", "hermes").parser(), answer)
    assert text.strip() == "Done."
    assert [name for _, name, _ in calls] == ["now", "now"]


def test_text_is_not_held_longer_than_needed():
    parser = tool_calls(TOOLS, "auto", "hermes").parser()
    assert parser.push("Hello") == [Text("Hello")]
    assert parser.push(" wor<") == [Text(" wor")]
    assert parser.push("b>") == [Text("<b>")]
    assert parser.push(" \n") == []
    assert parser.push("x") == [Text(" \nx")]


def test_none_of_the_tools_may_be_called():
    for answer in [*BROKEN, ANSWERS["hermes"] % CITY]:
        made = tool_calls(TOOLS, "none", "hermes")
        assert made.constraint is None
        assert read(made.parser(), [answer])[:2] == (answer, [])
        assert made.prepare([{"role": "user", "content": "x"}])[1] is None


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    special = {
        "<end>": CONTROL,
        "<tool_call>": USER_DEFINED,
        "</tool_call>": USER_DEFINED,
        "[TOOL_CALLS]": CONTROL,
        "[ARGS]": CONTROL,
    }
    merges = ['" :', '{ "', "n a", "m e", "na me", "g e", "ge t"]
    keys = byte_level(merges, special, eos_token_id=256 + len(merges))
    return tokenizer(tmp_path_factory.mktemp("tools"), keys)


def forced_answer(tokens, made, seed):
    """A random answer under the constraint, decoded as the request's options say, in pieces."""
    processor = made.constraint.compile(tokens)
    decoder = tokens.decoder(continuation=True, shown=made.show_tokens(tokens))
    rng = random.Random(seed)
    state, pieces = processor.start(()), []
    while not processor.complete(state):
        allowed = np.flatnonzero(processor.allowed(state)).tolist()
        ends = [token for token in allowed if token in tokens.end_ids]
        if ends and rng.random() < 0.7:
            break
        closing = [t for t in allowed if set(tokens.token_bytes(t)) & set(b'"]}')]
        choices = [t for t in allowed if t not in ends]
        token = rng.choice(closing if closing and rng.random() < 0.6 else choices)
        pieces.append(decoder.push(token))
        state = processor.advance(state, token)
    return [*pieces, decoder.finish()]


@pytest.mark.parametrize("family", DIALECTS)
def test_forced_calls_are_valid(vocabulary, family):
    closed = {**WEATHER["function"]["parameters"], "additionalProperties": False}
    counts = set()
    for seed in range(12):
        made = tool_calls(TOOLS, "required", family)
        pieces = forced_answer(vocabulary, made, seed)
        text, calls, cut_off = read(made.parser(), pieces)
        assert (text, cut_off) == ("", None), "".join(pieces)
        assert calls
        for _, name, arguments in calls:
            if name == "get_weather":
                jsonschema.validate(json.loads(arguments), closed)
            else:
                assert (name, arguments) == ("now", "{}")
        counts.add(len(calls))
        free = read(tool_calls(TOOLS, "auto", family).parser(), ["".join(pieces)])
        assert [[c[1], json.loads(c[2])] for c in free[1]] == [
            [c[1], json.loads(c[2])] for c in calls
        ]
    assert len(counts) > 1


@pytest.mark.parametrize("family", DIALECTS)
def test_a_named_function_is_called_once(vocabulary, family):
    made = tool_calls(TOOLS, NAMED, family)
    for seed in range(4):
        _, calls, _ = read(made.parser(), forced_answer(vocabulary, made, seed))
        assert [name for _, name, _ in calls] == ["get_weather"]
    single = tool_calls(TOOLS, "required", family, parallel=False)
    for seed in range(6):
        assert len(read(single.parser(), forced_answer(vocabulary, single, seed))[1]) == 1


def test_arguments_stream_where_a_call_is_certain(vocabulary):
    made = tool_calls(TOOLS, NAMED, "hermes")
    parser = made.parser()
    assert parser.push('<tool_call>\n{"name": "get_wea') == []
    started = parser.push('ther", "arguments": {"ci')
    assert [type(event) for event in started] == [CallStarted, Arguments]
    assert parser.push('ty": "}') == [Arguments(0, 'ty": "}')]
    assert parser.push('"}') == [Arguments(0, '"}'), CallEnded(0)]
    assert parser.push("}\n</tool_call>") == []
    assert parser.finish() == []


def test_a_certain_call_that_is_cut_has_no_end():
    parser = tool_calls(TOOLS, NAMED, "hermes").parser()
    text, calls, open_call = read(
        parser, ['<tool_call>\n{"name": "get_weather", "arguments": {"city": "X']
    )
    assert (text, open_call) == ("", 0)
    assert calls[0][1:] == ["get_weather", '{"city": "X']


@pytest.mark.parametrize("family", ["hermes", "llama3", "mistral", "mistral-args"])
def test_a_certain_call_that_is_cut_before_its_name_is_no_text(vocabulary, family):
    whole = "".join(forced_answer(vocabulary, tool_calls(TOOLS, "required", family), 1))
    for size in range(whole.index("get_weather") if "get_weather" in whole else 3):
        parser = tool_calls(TOOLS, "required", family).parser()
        assert parser.push(whole[:size]) == []
        assert parser.finish() == []


def test_marks_that_are_control_tokens(vocabulary):
    made = tool_calls(TOOLS, "required", "mistral-args")
    processor = made.constraint.compile(vocabulary)
    first = np.flatnonzero(processor.allowed(processor.start(()))).tolist()
    assert first == [vocabulary.special_id("[TOOL_CALLS]")]
    assert set(made.show_tokens(vocabulary)) == {
        vocabulary.special_id("[TOOL_CALLS]"),
        vocabulary.special_id("[ARGS]"),
    }
    assert tool_calls(TOOLS, "none", "mistral").show_tokens(vocabulary) == []


@pytest.mark.parametrize(
    ("source", "family"),
    [
        ("{{ messages }}", "generic"),
        ("{% if tools %}<tool_call>{% endif %}", "hermes"),
        ("{% if tools %}<tool_call><function=x>{% endif %}", "generic"),
        ("{% if tools %}[TOOL_CALLS]{% endif %}", "mistral"),
        ("{% if tools %}[TOOL_CALLS]x[ARGS]{% endif %}", "mistral-args"),
        ("{% if tools %}<|python_tag|>{% endif %}", "llama3"),
        ("{% if tools %}something else{% endif %}", "generic"),
        ("<tool_call> without looking at them", "generic"),
    ],
)
def test_families(source, family):
    assert tool_family(ChatTemplate({"default": source})) == family
    assert tool_family(ChatTemplate({"default": "{{ messages }}", "tool_use": source})) == family


def test_no_template():
    assert tool_family(ChatTemplate({})) == "generic"


def test_tools_for_a_template_that_takes_none():
    made = tool_calls(TOOLS, "auto", "generic")
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Z\u00fcrich"}'},
    }
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    prepared, tools = made.prepare(messages)
    assert tools is None
    checked = check_messages(prepared)
    assert [message["role"] for message in checked] == ["system", "user", "assistant", "user"]
    assert '{"name": "get_weather", "description": "tells the weather"' in checked[0]["content"]
    expected = (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Z\u00fcrich"}}\n</tool_call>'
    )
    assert checked[2] == {"role": "assistant", "content": expected}
    assert checked[3]["content"] == "<tool_response>\nsunny\n</tool_response>"
    for content in ("Be brief.", [{"type": "text", "text": "Be brief."}]):
        system = [{"role": "system", "content": content}, *messages]
        first = check_messages(made.prepare(system)[0])[0]
        assert first["content"].startswith("Be brief.\n\nYou can call functions")
    hermes = tool_calls(TOOLS, "auto", "hermes")
    assert hermes.prepare(messages) == (messages, tuple(TOOLS))


@pytest.mark.parametrize(
    ("tools", "choice", "names"),
    [
        (None, "auto", "tools must be a list of functions"),
        ([], "auto", "tools must be a list of functions"),
        ("x", "auto", "tools must be a list of functions"),
        ([5], "auto", r"tools\[0\] must be an object"),
        ([{"type": "retrieval"}], "auto", r"tools\[0\] must be an object whose type"),
        ([{"type": "function"}], "auto", r"tools\[0\].function.name is 'None'"),
        ([NOW, {"type": "function", "function": {"name": "a b"}}], "auto", r"tools\[1\].*'a b'"),
        ([NOW, NOW], "auto", r"tools\[1\].function.name is 'now', which an earlier"),
        ([NOW] * 200, "auto", "tools has 200 entries; at most 128"),
        (
            [{"type": "function", "function": {"name": "f", "parameters": []}}],
            "auto",
            r"tools\[0\].function.parameters must be a JSON schema",
        ),
        (
            [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}],
            "required",
            "the parameters of the function 'f' are of type 'array'",
        ),
        (
            [{"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}],
            "required",
            "the parameters of the function 'f' cannot be enforced.*not",
        ),
        (TOOLS, "sometimes", "tool_choice is 'sometimes'; allowed are none, auto, required"),
        (TOOLS, 5, "tool_choice is '5'"),
        (TOOLS, {"type": "function"}, "names the function 'None'; tools has get_weather, now"),
        (TOOLS, {"type": "function", "function": {"name": "x"}}, "names the function 'x'"),
        (TOOLS, {"type": "function", "function": {"name": ["x"]}}, "names the function"),
    ],
)
def test_mistakes(tools, choice, names):
    with pytest.raises(UsageError, match=names):
        tool_calls(tools, choice, "hermes")


def test_an_unknown_family():
    with pytest.raises(UsageError, match="family is 'gpt'; allowed are hermes"):
        tool_calls(TOOLS, "auto", "gpt")


def test_schemas_with_references_and_without_members(vocabulary):
    parameters = {"$ref": "#/$defs/point", "$defs": {"point": {"properties": {"x": {"const": 1}}}}}
    points = {"type": "function", "function": {"name": "point", "parameters": parameters}}
    whatever = {"type": "function", "function": {"name": "any", "parameters": {"type": "object"}}}
    for tool in (points, whatever):
        made = tool_calls([tool, NOW], "required", "hermes")
        assert made.constraint is not None
        made.constraint.compile(vocabulary)
