"""`divine chat`: turns, commands, and Ctrl-C, which stops an answer and not the program."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Result


@pytest.fixture
def chat(divine: Callable[..., Result], tiny: Path) -> Callable[..., Result]:
    """A chat whose lines come from a file, with short greedy answers."""

    def run(*lines: str) -> Result:
        return divine("chat", tiny, "--temp", "0", "-n", "6", stdin="\n".join(lines).encode())

    return run


def saved(path: Path) -> dict[str, object]:
    return json.loads(path.read_text())


def test_turns_and_end_of_input(chat, tmp_path):
    result = chat("hello", "", "hello again", f"/save {tmp_path / 'talk.json'}")
    assert result.code == 0, result.err
    turns = saved(tmp_path / "talk.json")["messages"]
    assert [turn["role"] for turn in turns] == ["user", "assistant"] * 2
    assert turns[2]["content"] == "hello again"
    assert not any("cut" in turn for turn in turns)
    assert result.out == "".join(turn["content"] + "\n" for turn in turns[1::2])


def test_an_answer_is_that_of_the_whole_conversation(chat, tmp_path):
    """Reuse of what was read before must not change it."""
    target = tmp_path / "talk.json"
    chat("hello", "and now?", f"/save {target}")
    once = saved(target)
    shorter = {"system": None, "messages": once["messages"][:2]}
    target.write_text(json.dumps(shorter))
    chat(f"/load {target}", "and now?", f"/save {target}")
    assert saved(target) == once


def test_commands(chat, tmp_path):
    target = tmp_path / "talk.json"
    result = chat(
        "/help",
        "/system Be brief.",
        "first",
        "/clear",
        "second",
        "/params max_tokens=3 top_k= temp=",
        "/regenerate",
        f"/save {target}",
        "/quit",
        "never said",
    )
    assert result.code == 0
    for name in ("help", "clear", "system", "regenerate", "params", "save", "load", "quit"):
        assert f"/{name}" in result.err
    assert "max_tokens=3" in result.err
    assert "Be brief." in result.err
    conversation = saved(target)
    assert conversation["system"] == "Be brief."
    assert [turn["role"] for turn in conversation["messages"]] == ["user", "assistant"]
    assert conversation["messages"][0]["content"] == "second"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/nope", "/nope is not known"),
        ("/regenerate", "no answer to regenerate"),
        ("/params banana=1", "'banana' is no parameter"),
        ("/params top_k=many", "top_k is 'many'"),
        ("/params temp=500", "temperature is 500.0"),
        ("/params max_tokens=-5", "max_tokens is -5"),
        ("/load", "needs the name of a file"),
        ("/load /none/talk.json", "/none/talk.json (--load): no such file"),
        ("/save /none/talk.json", "/none/talk.json cannot be written"),
        ("x" * 30_000, "/clear starts afresh"),
    ],
)
def test_a_failed_turn_does_not_end_the_chat(chat, tmp_path, line, words):
    target = tmp_path / "talk.json"
    result = chat(line, "hello", f"/save {target}")
    assert result.code == 0
    complaints = [text for text in result.err.splitlines() if text.startswith("divine: ")]
    assert len(complaints) == 1
    assert words in complaints[0]
    assert saved(target)["messages"][0]["content"] == "hello"


def test_drafted_text_is_coloured_and_explained_once(divine, tiny, monkeypatch):
    monkeypatch.setattr("divine.cli.drafts._takes_colours", lambda stream: True)
    monkeypatch.setattr("divine.api.answers.Stream._names", lambda self, sources: ("ngram",))
    arguments = ("chat", tiny, "--temp", "0", "-n", "4", "--draft", "ngram", "--show-drafts")
    result = divine(*arguments, stdin=b"hello\nagain")
    assert result.code == 0, result.err
    assert result.out.count("\x1b[32m") >= 2
    assert result.err.count("drafted by") == 1


def test_params_are_set_all_or_none(chat):
    result = chat("/params top_k=3 banana=1", "/params", "/params top_k=3 min_p=2", "/params")
    assert "top_k=3" not in result.err


@pytest.mark.parametrize("leave", ["/quit", "/exit", "/bye"])
def test_known_words_to_leave(chat, leave):
    result = chat("/?", leave, "never said")
    assert (result.code, result.out) == (0, "")
    assert "/regenerate" in result.err


def test_lines_pasted_together_are_one_message(endless, tmp_path):
    target = tmp_path / "talk.json"
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "divine", "chat", *endless, "-n", "2"]
    terminal = {**os.environ, "TERM": "xterm", "XDG_STATE_HOME": str(tmp_path)}
    with subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=terminal
    ) as running:
        os.close(slave)
        screen = Screen(master)
        screen.wait_for("> ")
        screen.type("\x1b[200~one\ntwo\x1b[201~\n")
        screen.wait_for("tokens")
        screen.type(f"/save {target}\n")
        screen.wait_for("saved")
        screen.type("/quit\n")
        screen.drain()
        assert running.wait(30) == 0
    os.close(master)
    assert saved(target)["messages"][0]["content"] == "one\ntwo"


def test_a_line_goes_on_after_a_backslash(chat, tmp_path):
    chat("one\\", "two", f"/save {tmp_path / 'talk.json'}")
    assert saved(tmp_path / "talk.json")["messages"][0]["content"] == "one\ntwo"


def test_ctrl_c_stops_the_answer_and_keeps_it_as_cut(endless, tmp_path):
    target = tmp_path / "talk.json"
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "divine", "chat", *endless]
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave) as running:
        os.close(slave)
        screen = Screen(master)
        screen.wait_for("> ")
        screen.type("hello\n")
        screen.wait_for("hello\r\n")
        time.sleep(0.5)
        running.send_signal(signal.SIGINT)
        screen.wait_for("[stopped")
        screen.type(f"/save {target}\n")
        screen.wait_for("saved")
        screen.type("/quit\n")
        screen.drain()
        assert running.wait(30) == 0
    os.close(master)
    turns = saved(target)["messages"]
    assert [turn["role"] for turn in turns] == ["user", "assistant"]
    assert turns[1]["cut"] is True
    assert turns[1]["content"]


class Screen:
    """The other end of a pseudo-terminal."""

    def __init__(self, master: int) -> None:
        self._master = master
        self._seen = b""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, text: str) -> None:
        """Read until `text` has come; the test's own time limit ends a wait in vain."""
        while text.encode() not in self._seen:
            self._seen += os.read(self._master, 65536)
        self._seen = self._seen.split(text.encode(), 1)[1]

    def drain(self) -> None:
        try:
            while os.read(self._master, 65536):
                pass
        except OSError:  # its last writer is gone
            return
