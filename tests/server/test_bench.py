"""`divine bench serve` on a server that runs: its figures, its table and its mistakes."""

from __future__ import annotations

import json

import pytest

from divine.bench import ServingSettings, bench_serving
from divine.bench.client import ChatClient
from divine.cli.main import execute
from divine.errors import DivineError, UsageError

from .conftest import HELLO, Running


def test_figures_of_a_running_server(server: Running) -> None:
    settings = ServingSettings(levels=(1, 3), requests=2, max_tokens=6, rounds=1)
    result = bench_serving(server.url, settings)
    assert [(entry["concurrent"], entry["draft"]) for entry in result["serving"]] == [
        (1, "none"),
        (1, "auto"),
        (3, "auto"),
        (3, "none"),
    ]
    for entry in result["serving"]:
        assert 0 < entry["tokens"] <= 6 * 2 * entry["concurrent"]
        assert entry["tok_s"] > 0
        assert entry["first_token_ms"]["p50"] <= entry["first_token_ms"]["p95"]
    assert result["differences"] == []
    assert result["comparisons"] == 8
    assert result["model"] == "tiny"


def test_the_command_prints_a_table(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--levels", "1", "--requests", "1", "--rounds", "1", "-n", "3"]
    assert execute(["bench", "serve", server.url, *options]) == 0
    assert "0 differ" in capsys.readouterr().out
    assert execute(["bench", "serve", server.url, *options, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["comparisons"] == 1


def test_mistakes_are_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    for options, words in (
        ([], "MODEL"),
        (["http://127.0.0.1:1"], "does not answer"),
        (["http://"], "http://HOST:PORT"),
        (["http://127.0.0.1:1", "--levels", "a"], "--levels"),
        (["http://127.0.0.1:1", "--rounds", "0"], "--rounds"),
    ):
        assert execute(["bench", "serve", *options]) in (1, 2)
        (line,) = capsys.readouterr().err.splitlines()
        assert words in line


def test_the_client_tells_what_the_server_says(server: Running) -> None:
    client = ChatClient(server.url)
    with pytest.raises(DivineError, match=r"400.*temperature"):
        client.chat({"messages": HELLO, "temperature": -1})
    with pytest.raises(UsageError):
        ChatClient("ftp://x")
    left = client.chat({"messages": HELLO}, leave_after=0)
    assert left.finish_reason is None
