"""Tools and response formats, through the official clients, on a model that knows nothing.

What it says is nonsense, so whatever is valid here was enforced.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

import divine
from divine.drafting import CostTable

from .conftest import CHAT, HELLO, Running, running

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"enum": [1, 2, 3]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now", "description": "The time."}},
]
NAMED = {"type": "function", "function": {"name": "weather"}}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA}}


@pytest.fixture(scope="module")
def served(tiny: Path) -> Iterator[Running]:
    """With room for what the tools' description takes; drafts pay, however busy the machine is."""
    with divine.load(tiny, context=2048, max_sequences=4) as model:
        model._controller.costs = CostTable.frozen({1: 50.0, 64: 52.0})
        with running(model, tiny) as started:
            yield started


@pytest.fixture
def client(served: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=served.url + "/v1", api_key="none", max_retries=0) as made:
        yield made


def check(arguments: Any) -> None:
    assert set(arguments) == {"city", "days"}
    assert arguments["city"] in ("Paris", "Rome")
    assert arguments["days"] in (1, 2, 3)


def test_a_schema_is_kept(client: openai.OpenAI) -> None:
    texts = set()
    for seed in range(4):
        asked: Any = {"model": "tiny", "messages": HELLO, "response_format": FORMAT, "seed": seed}
        asked["temperature"] = 20
        answers = [
            client.chat.completions.create(**asked, extra_body={"draft": draft})
            for draft in ("auto", "none")
        ]
        assert answers[0].choices[0].message.content == answers[1].choices[0].message.content
        assert answers[0].choices[0].finish_reason == "stop"
        check(json.loads(answers[0].choices[0].message.content))
        texts.add(answers[0].choices[0].message.content)
        assert answers[0].usage.model_extra["divine"]["drafts"]["forced"]
    assert len(texts) > 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_named_tool_is_called(served: Running, stream: bool) -> None:
    body = {"messages": HELLO, "tools": TOOLS, "tool_choice": NAMED, "stream": stream, "seed": 1}
    response = served.post(CHAT, **body)
    if not stream:
        choice = response.json()["choices"][0]
        (call,) = choice["message"]["tool_calls"]
        assert choice["message"]["content"] is None
        assert call["type"] == "function"
        assert call["function"]["name"] == "weather"
        assert choice["finish_reason"] == "tool_calls"
        check(json.loads(call["function"]["arguments"]))
        return
    lines = [line.removeprefix("data: ") for line in response.text.split("\n") if line]
    choices = [json.loads(line)["choices"][0] for line in lines[:-1]]
    calls = [call for one in choices for call in one["delta"].get("tool_calls", [])]
    assert {call["index"] for call in calls} == {0}
    assert [call["function"]["name"] for call in calls if "name" in call["function"]] == ["weather"]
    assert len([call["id"] for call in calls if "id" in call]) == 1
    check(json.loads("".join(call["function"]["arguments"] for call in calls)))
    assert choices[-1]["finish_reason"] == "tool_calls"
    assert not "".join(one["delta"].get("content") or "" for one in choices)


def test_a_required_tool_is_called_by_the_client(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="tiny",
        messages=HELLO,
        tools=TOOLS,
        tool_choice="required",
        parallel_tool_calls=False,
        seed=3,
    ) as stream:
        message = stream.get_final_completion().choices[0].message
    (call,) = message.tool_calls
    assert call.function.name in ("weather", "now")
    json.loads(call.function.arguments)
    messages = [
        *HELLO,
        message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    for one in messages[1]["tool_calls"]:
        one["function"] = {k: one["function"][k] for k in ("name", "arguments")}
        one.pop("index", None)
    answer = client.chat.completions.create(
        model="tiny", messages=messages, tools=TOOLS, tool_choice="none", max_tokens=5
    )
    assert answer.choices[0].message.tool_calls is None


def test_anthropic_tools(served: Running) -> None:
    tools = [{"name": "weather", "description": "Rain or sun.", "input_schema": SCHEMA}]
    with anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0) as claude:
        asked: Any = {
            "model": "tiny",
            "max_tokens": 300,
            "messages": HELLO,
            "tools": tools,
            "tool_choice": {"type": "tool", "name": "weather"},
            "extra_body": {"seed": 5},
        }
        answer = claude.messages.create(**asked)
        with claude.messages.stream(**asked) as stream:
            streamed = stream.get_final_message()
        counted = claude.messages.count_tokens(model="tiny", messages=HELLO, tools=tools)
        for message in (answer, streamed):
            (block,) = message.content
            assert block.type == "tool_use"
            assert block.name == "weather"
            check(block.input)
            assert message.stop_reason == "tool_use"
        assert counted.input_tokens > 30
        follow_up = [
            *HELLO,
            {"role": "assistant", "content": [answer.content[0].model_dump(exclude_none=True)]},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": answer.content[0].id, "content": "sun"}
                ],
            },
        ]
        for block in follow_up[1]["content"]:
            for name in set(block) - {"type", "id", "name", "input"}:
                del block[name]
        assert (
            claude.messages.create(
                model="tiny", max_tokens=3, messages=follow_up, tools=tools
            ).usage.output_tokens
            <= 3
        )
        formatted = claude.messages.create(
            model="tiny",
            max_tokens=300,
            messages=HELLO,
            output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
        )
        check(json.loads(formatted.content[0].text))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 5}}}},
         "response_format.json_schema"),
        ({"response_format": FORMAT, "tools": TOOLS}, "response_format"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
         "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
    ],
)  # fmt: skip
def test_what_cannot_be_enforced_is_named(
    served: Running, fields: dict[str, Any], named: str
) -> None:
    response = served.chat(**fields)
    assert response.status_code == 400, response.text
    assert named in response.json()["error"]["message"]


def test_a_schema_that_is_too_complex_is_the_clients_mistake(served: Running) -> None:
    members = {f"o{number}": {"type": "boolean"} for number in range(600)}
    schema = {"type": "object", "properties": members, "required": ["o599"]}
    format = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for stream in (False, True):
        response = served.chat(response_format=format, max_tokens=40, stream=stream, draft="none")
        if not stream:
            assert response.status_code == 400, response.text
        assert "json_schema.schema became too complex" in response.text
        assert '"param":"response_format.json_schema.schema"' in response.text
    assert served.chat(max_tokens=1).status_code == 200
