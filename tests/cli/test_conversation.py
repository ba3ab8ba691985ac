"""The messages of a chat, kept and loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from divine.cli import prompts
from divine.cli.conversation import Conversation
from divine.errors import UsageError


def test_turns():
    talk = Conversation(system="Be brief.")
    talk.ask("one?")
    talk.answer("1", cut=False)
    talk.ask("two?")
    talk.answer("2 is", cut=True)
    assert [m["role"] for m in talk.messages()] == ["system", *["user", "assistant"] * 2]
    assert all(set(m) == {"role", "content"} for m in talk.messages())  # the mark is ours
    assert talk.turns[-1] == {"role": "assistant", "content": "2 is", "cut": True}
    assert talk.reopen()
    assert talk.messages()[-1] == {"role": "user", "content": "two?"}
    talk.withdraw()
    assert talk.messages()[-1] == {"role": "assistant", "content": "1"}
    talk.withdraw()  # nothing to withdraw
    assert len(talk.turns) == 2
    assert not Conversation().reopen()


def test_round_trip(tmp_path):
    talk = Conversation("sys")
    talk.ask("ü\n\0")
    talk.answer("", cut=True)
    talk.save(tmp_path / "talk.json")
    assert Conversation.load(tmp_path / "talk.json") == talk
    assert [path.name for path in tmp_path.iterdir()] == ["talk.json"]


def test_a_question_without_an_answer_is_dropped(tmp_path):
    talk = Conversation()
    talk.ask("hello?")
    talk.save(tmp_path / "talk.json")
    assert Conversation.load(tmp_path / "talk.json").turns == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot be read"),
        ("[1", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ("\udcff", "is not UTF-8 at byte 0"),
        ("[]", "messages"),
        ('{"messages": 5}', "messages"),
        ('{"messages": [], "system": 5}', '"system" is not text'),
        ('{"messages": [{"role": "assistant", "content": "x"}]}', r"messages\[0\].*user"),
        ('{"messages": [{"role": "user", "content": null}]}', r"messages\[0\]\.content"),
        ('{"messages": [5]}', r"messages\[0\]"),
    ],
)
def test_files_that_are_no_conversation(tmp_path, text, words):
    path = tmp_path / "talk.json"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(UsageError, match=rf"talk\.json.*{words}"):
        Conversation.load(path)


def test_an_endless_file(monkeypatch):
    monkeypatch.setattr(prompts, "LIMIT", 1 << 20)
    with pytest.raises(UsageError, match="/dev/zero is longer than 1 MiB"):
        Conversation.load(Path("/dev/zero"))


def test_saving_fails_whole(tmp_path):
    talk = Conversation()
    talk.save(tmp_path / "talk.json")
    with pytest.raises(UsageError, match="cannot be written"):
        talk.save(tmp_path / "none" / "talk.json")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        talk.save(tmp_path / "folder")
    assert json.loads((tmp_path / "talk.json").read_text()) == {"system": None, "messages": []}
