"""The server on a real model: prompts that begin the same, and readers beside each other."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import divine

from .conftest import CHAT, Running, running

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    path = Path(os.environ["DIVINE_MODELS"]) / NAME
    if not path.exists():
        pytest.skip(f"{NAME} is not here; `divine pull smollm2` fetches it")
    with (
        divine.load(path, context=1024, max_sequences=4, read_seconds=0.3) as model,
        running(model, path) as started,
    ):
        yield started


def test_choices_of_one_prompt_are_those_of_requests_alone(served: Running) -> None:
    body = {
        "messages": [{"role": "user", "content": "Name a colour and say why. " * 12}],
        "max_tokens": 12,
        "seed": 7,
        "temperature": 1,
    }
    together = served.post(CHAT, **body, n=3).json()
    assert together["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert len({one["message"]["content"] for one in together["choices"]}) == 3
    alone = served.post(CHAT, **body, cache_prompt=False, draft="none").json()
    again = served.post(CHAT, **body).json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 60
    for one in (alone, again):
        assert one["choices"][0]["message"] == together["choices"][0]["message"]


def test_a_short_request_is_answered_while_a_long_prompt_is_read(served: Running) -> None:
    """In passes, not in seconds: the short one ends while the long one still reads."""
    long = {
        "messages": [{"role": "user", "content": "one two three four five six " * 150}],
        "max_tokens": 1,
    }
    short = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "temperature": 0}
    with ThreadPoolExecutor(2) as pool:
        reading = pool.submit(served.post, CHAT, **long)
        while served.model.load_now[0] == 0:
            pass
        answer = served.post(CHAT, **short)
        assert answer.status_code == 200
        assert not reading.done()
        assert reading.result().json()["usage"]["prompt_tokens"] > 800


def test_a_schema_is_kept(served: Running) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"enum": [1, 2]}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    answer = served.post(
        CHAT,
        messages=[{"role": "user", "content": "Describe a person as JSON."}],
        response_format={"type": "json_schema", "json_schema": {"name": "p", "schema": schema}},
        seed=1,
        max_tokens=60,
    ).json()
    found = json.loads(answer["choices"][0]["message"]["content"])
    assert set(found) == {"name", "age"}
