"""The official Python clients of OpenAI and Anthropic against the real server."""

from __future__ import annotations

from collections.abc import Iterator

import anthropic
import openai
import pytest
from tests.server.conftest import BANNED, HELLO, Running

from divine.api import Model

EXTRA = {"extra_body": {"draft": "auto"}}
GREEDY = {"extra_body": {"temperature": 0}}  # newer clients of Anthropic know no temperature


@pytest.fixture
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
def claude(server: Running) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as made:
        yield made


def test_openai_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=HELLO,
        max_completion_tokens=8,
        temperature=0,
        seed=1,
        logit_bias=BANNED,
        logprobs=True,
        top_logprobs=2,
        n=2,
        **EXTRA,
    )
    assert len(answer.choices) == 2
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length"
    assert len(answer.choices[0].logprobs.content) == 8
    assert answer.usage.completion_tokens == 16
    assert answer.usage.model_extra["divine"]["tokens"] == 16


def test_openai_stream(client: openai.OpenAI) -> None:
    asked = {
        "model": "tiny",
        "messages": HELLO,
        "max_tokens": 8,
        "temperature": 0,
        "logit_bias": BANNED,
    }
    whole = client.chat.completions.create(**asked)
    chunks = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == 8


def test_openai_stream_closed_early(client: openai.OpenAI, server: Running) -> None:
    stream = client.chat.completions.create(
        model="tiny", messages=HELLO, stream=True, logit_bias=BANNED
    )
    next(iter(stream))
    stream.close()
    assert client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=1).choices


def test_openai_prediction(client: openai.OpenAI) -> None:
    asked = {"model": "tiny", "messages": HELLO, "max_tokens": 30, "temperature": 0}
    plain = client.chat.completions.create(**asked, logit_bias=BANNED)
    text = plain.choices[0].message.content
    guessed = client.chat.completions.create(
        **asked, logit_bias=BANNED, prediction={"type": "content", "content": text}
    )
    assert guessed.choices[0].message.content == text
    assert guessed.usage.completion_tokens_details.accepted_prediction_tokens > 0


def test_openai_completions_embeddings_models(client: openai.OpenAI, model: Model) -> None:
    answer = client.completions.create(model="tiny", prompt="hello", max_tokens=3, logprobs=1)
    assert answer.choices[0].finish_reason in ("length", "stop")
    vectors = client.embeddings.create(model="tiny", input=["hello", "world"])  # asks for base64
    *_, expected = model.embedding(model.encode("world", raw=True))
    assert vectors.data[1].embedding == expected.tolist()
    assert [one.id for one in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"


def test_openai_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="tiny"):
        client.chat.completions.create(model="other", messages=HELLO)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=HELLO, temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError, match="chat/completions"):
        client.responses.create(model="tiny", input="hello")


def test_anthropic_message(claude: anthropic.Anthropic, model: Model) -> None:
    answer = claude.messages.create(
        model="tiny",
        max_tokens=8,
        system="the model",
        messages=[{"role": "user", "content": [{"type": "text", "text": "hello world"}]}],
        **GREEDY,
    )
    expected = model.generate(
        [{"role": "system", "content": "the model"}, *HELLO], temperature=0, max_tokens=8
    )
    assert answer.content[0].text == expected.text
    assert answer.stop_reason == ("max_tokens" if len(expected.tokens) == 8 else "end_turn")
    usage = answer.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == expected.prompt_tokens
    assert usage.output_tokens == len(expected.tokens)


def test_anthropic_stream(claude: anthropic.Anthropic) -> None:
    asked = {"model": "tiny", "max_tokens": 12, "messages": HELLO, **GREEDY}
    whole = claude.messages.create(**asked)
    with claude.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == "".join(block.text for block in whole.content)
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_anthropic_stop_sequence_and_prefill(claude: anthropic.Anthropic, model: Model) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "the world"}]
    plain = model.generate(messages, continue_final_message=True, temperature=0, max_tokens=12)
    stop = plain.text[3:6]
    answer = claude.messages.create(
        model="tiny", max_tokens=12, messages=messages, stop_sequences=[stop], **GREEDY
    )
    assert answer.content[0].text == plain.text[: plain.text.index(stop)]
    assert answer.stop_reason == "stop_sequence"
    assert answer.stop_sequence == stop
    count = claude.messages.count_tokens(model="tiny", messages=messages)
    assert count.input_tokens == plain.prompt_tokens


def test_anthropic_errors(claude: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(model="other", max_tokens=1, messages=HELLO)
    with pytest.raises(anthropic.BadRequestError, match="top_p"):
        claude.messages.create(model="tiny", max_tokens=1, messages=HELLO, extra_body={"top_p": 2})
    assert [one.id for one in claude.models.list()] == ["tiny"]
