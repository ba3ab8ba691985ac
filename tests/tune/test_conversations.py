"""Conversations in three shapes, broken ones counted, prompts for measuring left out."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from divine.errors import UsageError
from divine.tune.conversations import Skipped, load_conversations
from divine.tune.generated import CLASSES, generated
from divine.tune.sources import GENERATED, Source, gather

GOOD = [
    {"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"},
                  {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Bye"}]},
    {"conversations": [{"from": "gpt", "value": "early"}, {"from": "human", "value": " Why? "},
                       {"from": "gpt", "value": "So."}]},
    {"instruction": "Add", "input": "1 2", "output": "3"},
    {"prompt": "Write", "class": "code"},
]  # fmt: skip
BAD: list[object] = [
    {"messages": []}, {"messages": [{"role": "user", "content": ""}]}, {"messages": "no"},
    {"messages": [{"role": "wizard", "content": "x"}]}, {"conversations": [{"from": "human"}]},
    {"instruction": 3}, {"else": 1}, [], 7, None,
]  # fmt: skip


def lines(path: Path, records: list[object]) -> Path:
    path.write_text("\n".join(map(json.dumps, records)) + "\n\n{broken\n", "utf-8")
    return path


def test_three_shapes_are_read_and_broken_ones_counted(tmp_path: Path) -> None:
    skipped = Skipped()
    found = load_conversations(lines(tmp_path / "talks.jsonl", [*GOOD, *BAD]), skipped)
    assert [[m["role"][0] + m["content"] for m in c.messages] for c in found] == [
        ["sBe kind.", "uHi", "aHello", "uBye"],
        ["uWhy?", "aSo."],
        ["uAdd\n\n1 2", "a3"],
        ["uWrite"],
    ]
    assert [c.class_ for c in found] == ["talks"] * 3 + ["code"]
    assert len(skipped) == len(BAD) + 1
    assert "1 no JSON" in skipped.sentence()
    prompts = [c.first_prompt for c in found]
    assert [p.text for p in prompts if p] == ["Hi", "Why?", "Add\n\n1 2", "Write"]


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
def test_an_array_that_is_cut_off_gives_its_whole_records(
    tmp_path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("divine.tune.conversations._CHUNK", chunk)
    path = tmp_path / "talks.json"
    text = json.dumps(GOOD, indent=1)
    path.write_text(text[: text.index('"Write"')])
    skipped = Skipped()
    assert len(load_conversations(path, skipped)) == 3
    assert skipped.sentence() == "1 left out: 1 cut off"
    path.write_text(text)
    assert len(load_conversations(path, Skipped())) == 4


@pytest.mark.parametrize("text", ["", "[]", "{}\n", "[{}]"])
def test_files_without_conversations_are_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"empty\.jsonl holds no conversations"):
        load_conversations(path, Skipped())
    with pytest.raises(UsageError, match="no such file"):
        load_conversations(tmp_path / "none.jsonl", Skipped())


def test_generated_prompts_are_many_different_and_a_function_of_the_seed() -> None:
    some = list(islice(generated(0), 4000))
    assert len({p.text for p in some}) == 4000
    assert {p.class_ for p in some} == set(CLASSES)
    assert some == list(islice(generated(0), 4000))
    assert some[:50] != list(islice(generated(1), 50))
    code = list(islice(generated(0, ("code",)), 900))
    assert code == [p for p in some if p.class_ == "code"][:900]
    assert not any("{" in p.text.replace("{{name}}", "") for p in some if p.class_ != "code")


def test_sources_are_mixed_without_repeats_and_without_what_is_measured(tmp_path: Path) -> None:
    kept = "Write a Rust function that counts the words of a long text and explain it"
    own = [{"prompt": f"question number {n} about the world"} for n in range(6)]
    own += [own[0], {"prompt": kept + " well."}]
    path = lines(tmp_path / "own.jsonl", list(own))
    measured = tmp_path / "measured.jsonl"
    measured.write_text(json.dumps({"prompt": kept}))
    sources = [Source("own", path), Source(GENERATED)]
    prompts = gather(sources, seed=0, exclude=[measured], limit=40)
    texts = [c.text for c in prompts.conversations]
    assert len(texts) == len(set(texts))
    assert not any(kept in text for text in texts)
    assert sum(text.startswith("question") for text in texts[:14]) == 6  # in turn
    assert prompts.skipped.reasons["repeated"] == 1
    assert prompts.skipped.reasons["kept for measuring"] == 1
    again = gather(sources, seed=0, exclude=[measured], limit=40)
    assert again.description == prompts.description
    assert gather(sources, seed=1, limit=40).description != prompts.description
    only = gather([Source("own", path, share=0.5)], seed=0)
    assert len(only) == 4
    code = gather([Source(GENERATED)], seed=0, classes=["code"], limit=30)
    assert {c.class_ for c in code.conversations} == {"code"}
    with pytest.raises(UsageError, match="no prompt is left of own"):
        gather([Source("own", path)], seed=0, classes=["nothing"])
