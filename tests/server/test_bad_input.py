"""Every mistake of a client is told with its status and its field; the server lives on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import divine
from tiny_models import tiny_llama

from .conftest import BANNED, CHAT, HELLO, Running, running


def error(response: Any, status: int) -> dict[str, Any]:
    """The error object, in OpenAI's shape."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    found: dict[str, Any] = response.json()["error"]
    assert set(found) == {"message", "type", "param", "code"}
    assert found["message"]
    assert "\n" not in found["message"]
    assert "Traceback" not in found["message"]
    return found


@pytest.fixture(autouse=True, scope="module")
def _lives_on(server: Running) -> Any:
    yield
    assert server.chat(max_tokens=1).status_code == 200


JSON_SCHEMA = {"type": "json_schema"}  # without the schema
FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"tempratur": 1}, "tempratur"),
    ({"chat_template": "{{ 1 }}"}, "chat_template"),
    ({"temperature": "0.7"}, "temperature"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": 1e6}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 1.0001}, "top_p"),
    ({"top_p": -0.1}, "top_p"),
    ({"min_p": 1.5}, "min_p"),
    ({"top_k": 2.5}, "top_k"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"repeat_penalty": 0}, "repeat_penalty is"),
    ({"frequency_penalty": 3}, "frequency_penalty"),
    ({"repeat_penalty": 1.1, "repetition_penalty": 1.2}, "repeat_penalty"),
    ({"seed": -1}, "seed"),
    ({"seed": 2**64}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"stop": ""}, "stop"),
    ({"stop": [""]}, "stop"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stop": "x" * 10000}, "stop"),
    ({"stop": [1]}, "stop[0]"),
    ({"metadata": []}, "metadata"),
    ({"stop": {"a": 1}}, "stop"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": "2"}, "n"),
    ({"stream": "yes"}, "stream"),
    ({"user": 5}, "user"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": 2.5}, "max_tokens"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
    ({"logit_bias": {"a": 1}}, "logit_bias"),
    ({"logit_bias": {"5": "x"}}, "logit_bias.5"),
    ({"logit_bias": {"5": 101}}, "logit_bias[5]"),
    ({"logit_bias": {"100000": 1}}, "logit_bias"),
    ({"logprobs": 5}, "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"draft": "nonsense"}, "draft"),
    ({"draft": "model"}, "draft"),
    ({"draft": "ngram,none"}, "draft"),
    ({"draft": "text"}, "draft names text, which needs a guess at the answer in prediction"),
    ({"draft": "synthetic:0.5"}, "draft"),
    ({"draft_tree": 0}, "draft_tree"),
    ({"prediction": "text"}, "prediction"),
    ({"prediction": {"type": "content", "content": [{"type": "image_url"}]}}, "prediction"),
    ({"divine": {"span": True}}, "divine.span"),
    ({"stream_options": {"usage": True}}, "stream_options.usage"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"add_generation_prompt": False}, "add_generation_prompt"),
    ({"messages": []}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": [1]}, "messages[0]"),
    ({"messages": [{"role": "banana", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ({"messages": [*HELLO, {"role": "user", "content": [{"type": "image_url"}]}]}, "messages[1]"),
    ({"continue_final_message": True}, "continue_final_message"),
]


@pytest.mark.parametrize(("fields", "named"), FIELDS)
def test_wrong_fields_are_named(server: Running, fields: dict[str, Any], named: str) -> None:
    stream = len(named) % 2 == 0  # refused before a stream begins, all the same
    found = error(server.post(CHAT, **{"messages": HELLO, "stream": stream, **fields}), 400)
    assert named in found["message"], found
    assert found["type"] == "invalid_request_error"
    if found["param"] is not None:
        assert found["param"] in named or named in found["param"]


def test_a_missing_field_is_named(server: Running) -> None:
    found = error(server.post(CHAT, max_tokens=3), 400)
    assert found["param"] == "messages"
    assert "missing" in found["message"]


def test_null_is_absent(server: Running) -> None:
    names = "temperature top_p seed stop n stream user max_tokens logit_bias tools draft model"
    body = {"messages": HELLO, **dict.fromkeys(names.split()), "max_completion_tokens": 2}
    assert server.post(CHAT, **body).status_code == 200


def test_harmless_fields_are_accepted(server: Running) -> None:
    response = server.chat(
        user="me",
        store=True,
        metadata={"a": "b"},
        service_tier="auto",
        safety_identifier="x",
        prompt_cache_key="k",
        parallel_tool_calls=True,
        modalities=["text"],
        response_format={"type": "text"},
        verbosity="medium",
    )
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"messages": [],}', "not valid JSON"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": Infinity}', "Infinity"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b"[1]", "a list"),
        (b"null", "null"),
        (b'"x"', "object"),
        (b'{"messages": "\xff"}', "UTF-8"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested"),
        (b'{"a":' + b"9" * 5000 + b"}", "not valid JSON"),
    ],
)
def test_bodies_that_are_no_json_object(server: Running, body: bytes, words: str) -> None:
    response = server.client.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert words in error(response, 400)["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (b'"messages": [{"role": "user", "content": "\\ud800"}]', "messages[0].content"),
        (b'"messages": [{"role": "user", "content": "x"}], "\\ud800": 1', None),
        (b'"messages": [{"role": "user", "content": "x"}], "stop": ["a", "\\uDC00x"]', "stop[1]"),
    ],
)
def test_lone_surrogates_are_refused(server: Running, fields: bytes, param: str | None) -> None:
    headers = {"content-type": "application/json"}
    response = server.client.post(CHAT, content=b"{" + fields + b"}", headers=headers)
    found = error(response, 400)
    assert "lone surrogate U+D" in found["message"]
    assert param is None or found["param"] == param


def test_escaped_pairs_of_surrogates_are_text(server: Running) -> None:
    body = b'{"messages": [{"role": "user", "content": "\\ud83d\\ude00"}], "max_tokens": 1}'
    response = server.client.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 200, response.text


def test_other_kinds_of_body_are_refused(server: Running) -> None:
    for headers in (
        {"content-type": "text/plain"},
        {"content-type": "application/json", "content-encoding": "gzip"},
        {},
    ):
        error(server.client.post(CHAT, content=b"{}", headers=headers), 415)


def test_a_body_of_ten_megabytes_is_refused(server: Running) -> None:
    for content in (b" " * 10_000_000, iter([b" " * 1_000_000] * 10)):
        response = server.client.post(
            CHAT, content=content, headers={"content-type": "application/json"}
        )
        assert "larger" in error(response, 413)["message"]


def test_a_prompt_beyond_the_context(server: Running) -> None:
    found = error(server.chat(messages=[{"role": "user", "content": "x y " * 300}]), 400)
    assert found["code"] == "context_length_exceeded"
    assert found["param"] == "messages"
    assert "256" in found["message"]
    assert error(server.post("/v1/embeddings", input="x y " * 300), 400)["param"] == "input"
    assert error(server.post("/v1/completions", prompt="x y " * 300), 400)["param"] == "prompt"


def test_unknown_models(server: Running) -> None:
    for name in ("other", "", "tiny/../tiny"):
        found = error(server.chat(model=name), 404)
        assert found["code"] == "model_not_found"
        assert "tiny" in found["message"]
    assert server.chat(model=None).status_code == 200


@pytest.mark.parametrize(
    "prompt",
    [{}, [-1], [320], [2**32 + 5], [1.0], [True], [], [[]], "", None, 5, [["a"]], ["a", 1]],
)
def test_prompts_that_are_none(server: Running, prompt: object) -> None:
    found = error(server.post("/v1/completions", prompt=prompt), 400)
    assert "prompt" in found["message"]
    assert found["param"] is None or "list" not in found["param"]


def test_several_prompts_in_tokens(server: Running) -> None:
    answer = server.post("/v1/completions", prompt=[[10, 11], [12]], max_tokens=1)
    assert len(answer.json()["choices"]) == 2


def test_completions_without_a_limit_have_sixteen_tokens(server: Running) -> None:
    for fields in ({}, {"max_tokens": None}):
        body = {"prompt": "hello", "logit_bias": BANNED, **fields}
        assert server.post("/v1/completions", **body).json()["usage"]["completion_tokens"] == 16


def test_fields_of_completions(server: Running) -> None:
    for fields in ({"suffix": "x"}, {"best_of": 2}, {"logprobs": 6}, {"echo": True, "logprobs": 1}):
        error(server.post("/v1/completions", prompt="hello", **fields), 400)


def test_fields_of_embeddings(server: Running) -> None:
    for fields in ({"input": []}, {"input": [""]}, {"input": "x", "dimensions": 5}, {}):
        error(server.post("/v1/embeddings", **fields), 400)


def test_other_apis_are_pointed_here(server: Running) -> None:
    found = error(server.post("/v1/responses", input="x"), 404)
    assert "/v1/chat/completions" in found["message"]
    found = error(server.post("/api/generate", prompt="x"), 404)
    assert "/v1/completions" in found["message"]
    assert "/v1/models" in error(server.client.get("/api/tags"), 404)["message"]


def test_paths_and_methods(server: Running) -> None:
    assert "/v1" in error(server.client.get("/nothing"), 404)["message"]
    assert "POST" in error(server.client.get(CHAT), 405)["message"]
    for path, allowed in (("/v1/models", "GET"), ("/v1/models/x", "GET"), ("/", "GET")):
        assert allowed in error(server.client.post(path), 405)["message"]
    for path in ("/chat/completions", "/v1/audio/speech", "/v1/chat"):  # a base URL without /v1
        assert "/v1" in error(server.client.post(path, json={}), 404)["message"]
    error(server.client.get("/../../etc/passwd"), 404)
    error(server.client.get("/%2e%2e/%2e%2e/etc/passwd"), 404)
    for path in ("/health", "/v1/models", "/v1/models/"):
        head, get = server.client.head(path), server.client.get(path)
        assert head.status_code == get.status_code == 200
        assert head.content == b""


def test_a_template_that_refuses(tmp_path: Path) -> None:
    template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
        "{{ messages[0].content }}"
    )
    path = tiny_llama(
        tmp_path / "strict.gguf", metadata_overrides={"tokenizer.chat_template": template}
    )
    with divine.load(path) as strict, running(strict, path) as server:
        messages = [{"role": "system", "content": "x"}, *HELLO]
        for stream in (False, True):
            found = error(server.chat(messages=messages, stream=stream), 400)
            assert "no system here" in found["message"]
        assert server.chat().status_code == 200


def test_errors_of_messages_have_their_own_shape(server: Running) -> None:
    for fields, named in (
        ({"messages": HELLO}, "max_tokens"),
        ({"messages": HELLO, "max_tokens": 0}, "max_tokens"),
        ({"messages": [{"role": "system", "content": "x"}], "max_tokens": 3}, "role"),
        ({"messages": HELLO, "max_tokens": 3, "thinking": {"type": "enabled"}}, "thinking"),
        ({"messages": HELLO, "max_tokens": 3, "system": [{"type": "image"}]}, "system[0]"),
        ({"messages": HELLO, "max_tokens": 3, "stop": ["x"]}, "stop"),
        (
            {"messages": HELLO, "max_tokens": 3, "output_config": {"format": JSON_SCHEMA}},
            "output_config.format.schema",
        ),
        (
            {"messages": HELLO, "max_tokens": 3, "tool_choice": {"type": "any", "x": 1}},
            "tool_choice.x",
        ),
        (
            {
                "messages": HELLO,
                "max_tokens": 3,
                "tool_choice": {"type": "any", "disable_parallel_tool_use": "no"},
            },
            "tool_choice.disable_parallel_tool_use",
        ),
    ):
        response = server.post("/v1/messages", **fields)
        assert response.status_code == 400, response.text
        body = response.json()
        assert body["type"] == "error"
        assert body["error"]["type"] == "invalid_request_error"
        assert named in body["error"]["message"]
