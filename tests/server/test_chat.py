"""/v1/chat/completions and /v1/completions: their shapes, and that they say what the model says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from divine.api import Model

from .conftest import BANNED, CHAT, HELLO, Running

GREEDY = {"temperature": 0, "logit_bias": BANNED}


def events(text: str) -> list[Any]:
    """The JSON objects of an event stream that ends as it should."""
    lines = [line for line in text.split("\n") if line]
    assert all(line.startswith("data: ") for line in lines), text
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_answer_is_that_of_the_library(server: Running, model: Model) -> None:
    answer = server.chat(**GREEDY, max_tokens=12).json()
    expected = model.generate(
        HELLO, temperature=0, max_tokens=12, logit_bias={0: -100.0, 2: -100.0}
    )
    assert answer["choices"][0]["message"]["content"] == expected.text
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["prompt_tokens"] == expected.prompt_tokens
    assert answer["usage"]["completion_tokens"] == 12
    assert answer["usage"]["total_tokens"] == expected.prompt_tokens + 12
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "tiny"
    assert isinstance(answer["created"], int)


def test_stream_has_the_shape_that_clients_expect(server: Running) -> None:
    response = server.chat(**GREEDY, stream=True, stream_options={"include_usage": True}, n=2)
    assert response.headers["content-type"].startswith("text/event-stream")
    chunks = events(response.text)
    whole = server.chat(**GREEDY, n=2).json()
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert chunks[-1]["choices"] == []
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert chunks[-1]["usage"][name] == whole["usage"][name]
    for index in range(2):
        mine = [c["choices"][0] for c in chunks[:-1] if c["choices"][0]["index"] == index]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert [choice["finish_reason"] for choice in mine[:-1]] == [None] * (len(mine) - 1)
        assert mine[-1]["finish_reason"] == "length"
        text = "".join(choice["delta"].get("content", "") for choice in mine)
        assert text == whole["choices"][index]["message"]["content"]


def test_no_usage_unless_it_is_asked_for(server: Running) -> None:
    for chunk in events(server.chat(**GREEDY, stream=True).text):
        assert "usage" not in chunk
        assert len(chunk["choices"]) == 1


def test_choices_share_a_seed_and_differ(server: Running) -> None:
    asked = {"n": 3, "temperature": 1, "seed": 5, "max_tokens": 16, "logit_bias": BANNED}
    first, again = (server.chat(**asked).json() for _ in range(2))
    texts = [choice["message"]["content"] for choice in first["choices"]]
    assert [choice["index"] for choice in first["choices"]] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert texts == [choice["message"]["content"] for choice in again["choices"]]
    assert server.chat(**{**asked, "n": 1}).json()["choices"][0]["message"]["content"] == texts[0]
    one = server.chat(**{**asked, "n": 1}).json()["usage"]
    assert first["usage"]["prompt_tokens"] == one["prompt_tokens"]
    assert first["usage"]["completion_tokens"] == 48


def test_choices_of_a_long_prompt_read_it_once(server: Running) -> None:
    server.model.forget()
    before = server.metric("divine_prompt_tokens_reused_total")
    messages = [{"role": "user", "content": "x y z " * 20}]
    usage = server.chat(messages=messages, n=4, max_tokens=2).json()["usage"]
    reused = server.metric("divine_prompt_tokens_reused_total") - before
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert reused == 3 * (usage["prompt_tokens"] - 1)


def test_logprobs_are_the_models_own(server: Running, model: Model) -> None:
    answer = server.chat(**GREEDY, logprobs=True, top_logprobs=3).json()["choices"][0]
    expected = model.generate(
        HELLO, temperature=0, max_tokens=8, logprobs=3, logit_bias={0: -100.0, 2: -100.0}
    ).logprobs
    assert expected is not None
    content = answer["logprobs"]["content"]
    assert len(content) == 8
    for entry, own in zip(content, expected, strict=True):
        assert entry["logprob"] == own.logprob
        assert [top["logprob"] for top in entry["top_logprobs"]] == [p for _, p in own.top]
        assert bytes(entry["bytes"]).decode("utf-8", "replace") == entry["token"]
    chunks = events(server.chat(**GREEDY, logprobs=True, top_logprobs=3, stream=True).text)
    streamed = [
        entry
        for chunk in chunks
        if chunk["choices"][0]["logprobs"]
        for entry in chunk["choices"][0]["logprobs"]["content"]
    ]
    assert streamed == content


def test_stop_strings_end_before_themselves(server: Running) -> None:
    text = server.chat(**GREEDY, max_tokens=20).json()["choices"][0]["message"]["content"]
    stop = text[8:11]
    for stream in (False, True):
        response = server.chat(**GREEDY, max_tokens=20, stop=[stop, "never there"], stream=stream)
        if stream:
            chunks = [chunk["choices"][0] for chunk in events(response.text)]
            found = "".join(choice["delta"].get("content", "") for choice in chunks)
            reason = chunks[-1]["finish_reason"]
        else:
            found = response.json()["choices"][0]["message"]["content"]
            reason = response.json()["choices"][0]["finish_reason"]
        assert found == text[: text.index(stop)]
        assert reason == "stop"


def test_spans_say_who_drafted(server: Running) -> None:
    guess = server.chat(**GREEDY, max_tokens=24).json()["choices"][0]["message"]["content"]
    response = server.chat(
        **GREEDY,
        max_tokens=24,
        stream=True,
        stream_options={"include_usage": True},
        divine={"spans": True},
        prediction={"type": "content", "content": guess},
        draft="text",
    )
    chunks = events(response.text)
    told = [c["choices"][0]["divine"] for c in chunks[:-1] if "divine" in c["choices"][0]]
    spans = [span for one in told for span in one["spans"]]
    assert "".join(span["text"] for span in spans) == guess
    drafted = [span for span in spans if span["drafted_by"]]
    assert {name for span in drafted for name in span["drafted_by"]} <= {"text"}
    assert told[-1]["tokens"] == 24
    usage = chunks[-1]["usage"]
    accepted = usage["completion_tokens_details"]["accepted_prediction_tokens"]
    assert accepted >= len(drafted) > 0  # a token that completes no character has no span
    block = usage["divine"]
    assert block["tokens"] == 24
    assert block["passes"] == told[-1]["passes"]
    for depth in block["drafts"]["text"]:
        assert depth["drafted"] == depth["accepted"] + depth["rejected"] + depth["unreached"]
    assert sum(depth["accepted"] for depth in block["drafts"]["text"]) == accepted


def test_drafting_changes_no_text(server: Running) -> None:
    asked = {"temperature": 1, "seed": 3, "max_tokens": 40, "logit_bias": BANNED}
    texts = {
        server.chat(**asked, draft=draft).json()["choices"][0]["message"]["content"]
        for draft in ("none", "auto", "ngram", ["ngram"])
    }
    assert len(texts) == 1


def test_penalties_and_bias_reach_the_sampler(server: Running, model: Model) -> None:
    asked = {"temperature": 0, "max_tokens": 20, "logit_bias": {**BANNED, "40": 3}}
    given = {"frequency_penalty": 1.5, "presence_penalty": 0.5, "repeat_penalty": 1.2}
    expected = model.generate(
        HELLO,
        temperature=0,
        max_tokens=20,
        logit_bias={0: -100.0, 2: -100.0, 40: 3.0},
        frequency_penalty=1.5,
        presence_penalty=0.5,
        repetition_penalty=1.2,
    )
    answer = server.chat(**asked, **given).json()["choices"][0]["message"]["content"]
    assert answer == expected.text


def test_an_answer_can_be_continued(server: Running, model: Model) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "the world is"}]
    answer = server.chat(messages=messages, continue_final_message=True, **GREEDY).json()
    tokens = model.encode(messages, continue_final_message=True)
    assert answer["usage"]["prompt_tokens"] == len(tokens)
    assert model.detokenize(tokens).endswith("the world is")


@pytest.mark.parametrize(("given", "tokens"), [(0, 0), (1, 1), (3, 3), (10**12, None)])
def test_limits_are_exact(server: Running, given: int, tokens: int | None) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        body = {"messages": HELLO, name: given, **GREEDY}
        answer = server.post(CHAT, **body).json()
        assert answer["choices"][0]["finish_reason"] == "length"
        expected = tokens if tokens is not None else 256 - answer["usage"]["prompt_tokens"]
        assert answer["usage"]["completion_tokens"] == expected


def test_completions_take_texts_and_tokens(server: Running, model: Model) -> None:
    ids = model.tokenize("hello world")
    body = {"max_tokens": 6, **GREEDY}
    by_text, by_ids = (
        server.post("/v1/completions", prompt=prompt, **body).json()
        for prompt in ("hello world", ids)
    )
    assert by_text["choices"] == by_ids["choices"]
    assert by_text["object"] == "text_completion"
    several = server.post("/v1/completions", prompt=["hello world", " is"], n=2, **body).json()
    assert [choice["index"] for choice in several["choices"]] == [0, 1, 2, 3]
    assert several["choices"][0]["text"] == by_text["choices"][0]["text"]
    assert several["usage"]["completion_tokens"] == 24
    echoed = server.post("/v1/completions", prompt="hello world", echo=True, **body).json()
    assert echoed["choices"][0]["text"] == "hello world" + by_text["choices"][0]["text"]
    default = server.post("/v1/completions", prompt=ids, **GREEDY).json()
    assert default["usage"]["completion_tokens"] == 16


def test_completions_stream_and_tell_logprobs(server: Running) -> None:
    body = {"prompt": "hello", "max_tokens": 6, "logprobs": 2, **GREEDY}
    whole = server.post("/v1/completions", **body).json()["choices"][0]
    chunks = events(server.post("/v1/completions", stream=True, echo=False, **body).text)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["text"]
    for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
        streamed = [
            item
            for chunk in chunks
            if chunk["choices"][0]["logprobs"]
            for item in chunk["choices"][0]["logprobs"][name]
        ]
        assert streamed == whole["logprobs"][name]
    assert len(whole["logprobs"]["tokens"]) == 6
    tells = whole["logprobs"]
    for said, value, top in zip(
        tells["tokens"], tells["token_logprobs"], tells["top_logprobs"], strict=True
    ):
        assert top[said] >= value


def test_embeddings_are_means_of_final_states(server: Running, model: Model) -> None:
    texts = ["hello world", "the model is and is and " * 8]
    answer = server.post("/v1/embeddings", input=texts).json()
    assert [item["index"] for item in answer["data"]] == [0, 1]
    for item, text in zip(answer["data"], texts, strict=True):
        *_, expected = model.embedding(model.encode(text, raw=True))
        assert expected is not None
        assert item["embedding"] == expected.tolist()
        assert len(item["embedding"]) == 64
    assert answer["usage"]["prompt_tokens"] == sum(
        len(model.encode(text, raw=True)) for text in texts
    )


def test_models_are_listed_by_every_name(server: Running) -> None:
    listed = server.client.get("/v1/models").json()
    assert listed["data"][0]["id"] == "tiny"
    for name in ("tiny", "tiny.gguf"):
        assert server.client.get(f"/v1/models/{name}").json()["object"] == "model"
        assert server.chat(model=name, max_tokens=1).json()["model"] == name
    assert server.client.get("/v1/models/other").status_code == 404


def test_metrics_count_what_happened(server: Running) -> None:
    names = ("divine_tokens_total", "divine_prompt_tokens_total", "divine_passes_total")
    before = [server.metric(name) for name in names]
    usage = server.chat(**GREEDY, max_tokens=5, draft="none").json()["usage"]
    after = [server.metric(name) for name in names]
    gained = [b - a for a, b in zip(before, after, strict=True)]
    assert gained[0] == 5
    assert gained[1] == usage["prompt_tokens"]
    assert gained[2] >= 5
    text = server.client.get("/metrics").text
    for name in ("divine_time_to_first_token_seconds_bucket", "divine_sequences_running 0.0"):
        assert name in text


def test_lines_of_an_event_never_break(server: Running, model: Model) -> None:
    """Readers of event streams end lines at U+2028 and U+0085 too."""
    ids = [*model.tokenize("a\u2028b\u0085c\r\n\n")]
    bias = {str(id_): 100 for id_ in ids}
    response = server.chat(stream=True, temperature=1, logit_bias=bias | BANNED, max_tokens=60)
    said = "".join(
        chunk["choices"][0]["delta"].get("content", "") for chunk in events(response.text)
    )
    assert {"\n", "\r"} & set(said)
    assert not set("\u2028\u0085\u2029") & set(response.text)
