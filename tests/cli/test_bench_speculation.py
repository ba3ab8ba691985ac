"""`divine bench --prompts`: files of prompts, figures of runs, tables, file, plot and exit code."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from divine.api import Completion, DraftCounts, Model, Statistics
from divine.bench.prompts import BenchPrompt, load_prompts
from divine.bench.speculation import _Pair, _variants, report
from divine.errors import UsageError

from .conftest import assert_one_sentence

EDIT = "Rename it.\n\n```python\ndef hello():\n    return 1\n```\nThank you."


def write_prompts(folder: Path, name: str, *records: object) -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture
def prompts(tmp_path) -> tuple[Path, Path]:
    """Two files: the classes are chat and edit."""
    chat = write_prompts(tmp_path, "chat.jsonl", {"prompt": "hello"}, {"prompt": "hello the world"})
    edit = write_prompts(tmp_path, "e.jsonl", {"id": "edit/0", "class": "edit", "prompt": EDIT})
    return chat, edit


# Prompt files


def test_prompts_have_classes_ids_and_guesses(tmp_path):
    path = write_prompts(
        tmp_path,
        "mine.jsonl",
        {"prompt": "a"},
        {"prompt": "b", "id": "b!", "class": "other", "draft_text": "b b"},
        {"prompt": EDIT, "class": "edit"},
        {"prompt": EDIT, "class": "edit", "draft_text": "known better"},
        {"prompt": EDIT, "class": "code"},
    )
    a, b, edit, better, code = load_prompts([path])
    assert a == BenchPrompt("mine/1", "mine", "a", None)
    assert b == BenchPrompt("b!", "other", "b", "b b")
    assert edit.guess == "def hello():\n    return 1\n"
    assert better.guess == "known better"
    assert code.guess is None


def test_files_may_have_a_mark_empty_lines_and_odd_line_ends(tmp_path):
    (tmp_path / "p.jsonl").write_bytes(
        b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n{"prompt": "b\xe2\x80\xa8c"}'
    )
    assert [prompt.text for prompt in load_prompts([tmp_path / "p.jsonl"])] == ["a", "b\u2028c"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "has no prompts"),
        (b"\n\n", "has no prompts"),
        (b'{"prompt": "a"}\n{"prompt": ', "line 2 is not JSON"),
        (b"[" * 100_000, "line 1 is not JSON"),
        (b'["a"]', "line 1 is no object"),
        (b'{"text": "a"}', "line 1 has no prompt"),
        (b'{"prompt": ""}', "line 1 has no prompt"),
        (b'{"prompt": 5}', "line 1 has prompt 5"),
        (b'{"prompt": "a", "class": []}', re.escape("line 1 has class []")),
        (b'{"prompt": "\xff"}', "is not UTF-8 at byte 12"),
    ],
)
def test_wrong_prompt_files(tmp_path, content, words):
    path = tmp_path / "p.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=words):
        load_prompts([path])


def test_missing_prompt_files(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        load_prompts([tmp_path / "none.jsonl"])
    with pytest.raises(UsageError, match="is a directory"):
        load_prompts([tmp_path])


# Figures


def completion(tokens: list[int], seconds: float, passes: int, **drafts: object) -> Completion:
    choices = len(tokens) - 1
    statistics = Statistics(
        tokens=len(tokens),
        passes=passes,
        prompt_tokens=10,
        reused_tokens=0,
        prefill_seconds=1.0,
        decode_seconds=seconds,
        native_seconds=1.0 + 0.8 * seconds,
        prefill_tok_s=10.0,
        decode_tok_s=choices / seconds if choices else None,
        tokens_per_pass=choices / passes if passes else None,
        draft_seconds=0.15 * seconds,
        verify_seconds=0.8 * seconds,
        drafts=drafts,
        nodes=sum(drafts.values(), DraftCounts()),
    )
    return Completion("", tokens, 10, "length", 0, statistics)


def counts(accepted: list[int], rejected: list[int], unreached: list[int]) -> DraftCounts:
    drafted = [sum(parts) for parts in zip(accepted, rejected, unreached, strict=True)]
    return DraftCounts(*map(tuple, (drafted, accepted, rejected, unreached)))


def pair(id_: str, plain_seconds: float, seconds: float, **drafts: object) -> _Pair:
    tokens = list(range(11))
    plain, drafted = completion(tokens, plain_seconds, 10), completion(tokens, seconds, 5, **drafts)
    return _Pair(BenchPrompt(id_, "code", id_), "auto", plain, drafted)


def test_medians_over_prompts_and_sums_of_counts():
    result = report([
        pair("a", 2.0, 1.0, ngram=counts([3, 1], [1, 1], [0, 2])),
        pair("b", 4.0, 1.0, ngram=counts([1], [1], [0]), model=counts([2], [0], [0])),
        pair("c", 3.0, 3.0),
    ])  # fmt: skip
    assert result["comparisons"] == 3
    assert result["differences"] == []
    (entry,) = result["speculation"]
    assert entry["draft"] == "auto"
    assert entry["class"] == "code"
    assert entry["prompts"] == 3
    assert entry["ratio"] == 2.0  # of 2, 4 and 1; not the ratio of the medians, 3
    assert entry["tok_s"] == 10.0
    assert entry["plain_tok_s"] == 3.33
    assert entry["tokens_per_pass"] == 2.0
    assert entry["draft_ms_per_pass"] == 30.0
    assert entry["verify_ms_per_pass"] == 160.0
    assert entry["other_ms_per_pass"] == 10.0
    assert entry["end_to_end_ratio"] == 1.5
    assert entry["acceptance"] == [0.75, 0.5]  # 6 of 8, 1 of 2
    assert entry["drafts"]["ngram"] == {
        "drafted": (6, 4), "accepted": (4, 1), "rejected": (2, 1), "unreached": (0, 2)
    }  # fmt: skip
    assert [row["id"] for row in result["by_prompt"]] == ["a", "b", "c"]
    assert [row["ratio"] for row in result["by_prompt"]] == [2.0, 4.0, 1.0]


def test_rounds_of_a_prompt_are_its_median():
    result = report([pair("a", 2.0, seconds) for seconds in (1.0, 2.0, 0.5)] + [pair("b", 2, 2)])
    assert result["comparisons"] == 4
    assert result["speculation"][0]["prompts"] == 2
    assert result["speculation"][0]["ratio"] == 1.5  # of 2 and 1
    assert len(result["by_prompt"]) == 2


def test_a_depth_that_was_never_reached_has_no_acceptance():
    (entry,) = report([pair("a", 2, 1, text=counts([0, 0], [4, 0], [0, 4]))])["speculation"]
    assert entry["acceptance"] == [0.0, None]


def test_differences_are_told_and_answers_of_one_token_not_timed():
    prompt = BenchPrompt("x", "chat", "x")
    one = completion([7], 0.0, 0)
    assert report([_Pair(prompt, "auto", one, one)])["speculation"] == []
    plain = completion([1, 2, 3], 1, 2)
    for tokens, first in (([1, 5, 3], 1), ([1, 2], 2), ([1, 2, 3, 4], 3)):
        wrong = _Pair(prompt, "ngram", plain, completion(tokens, 1, 2))
        assert report([wrong])["differences"] == [{"id": "x", "draft": "ngram", "token": first}]


def test_every_choice_comes_first_and_plain_is_always_there():
    prompt = BenchPrompt("x", "chat", "x")
    orders = [_variants(prompt, ["ngram", "text", "ngram, text", "auto"], n) for n in range(6)]
    assert {order[0] for order in orders} == {"none", "ngram", "auto"}
    assert all(sorted(order) == ["auto", "ngram", "none"] for order in orders)  # no guess: no text
    with_guess = BenchPrompt("x", "edit", "x", "guess")
    assert "text" in _variants(with_guess, ["text"], 0)


# The command


def test_tables_file_and_plot(divine, tiny, tmp_path, prompts):
    pytest.importorskip("matplotlib")
    figures, picture = tmp_path / "f.json", tmp_path / "f.png"
    result = divine(
        "bench", tiny, "--prompts", *prompts, "-n", "6", "--json", figures, "--plot", picture
    )
    assert result.code == 0, result.err
    written = json.loads(figures.read_text())
    assert list(written) == [
        "machine", "model", "draft_model", "date", "settings", "comparisons", "differences",
        "speculation", "by_prompt",
    ]  # fmt: skip
    entries = {(entry["class"], entry["draft"]) for entry in written["speculation"]}
    assert entries == {
        ("chat", "ngram"), ("chat", "auto"), ("edit", "text"), ("edit", "ngram"), ("edit", "auto")
    }  # fmt: skip
    assert written["comparisons"] == 2 * 2 + 3
    assert "7 answers compared with plain decoding: 0 differ" in result.out
    for entry in written["speculation"]:
        assert entry["tok_s"] > 0
        assert entry["plain_tok_s"] > 0
        assert entry["tokens_per_pass"] >= 1
        parts = [entry[f"{part}_ms_per_pass"] for part in ("draft", "verify", "other")]
        assert min(parts) >= 0
    assert max(map(len, result.out.splitlines())) <= 80
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.glob("*.partial")) == []
    assert result.err.splitlines() == [
        "prompt 1 of 3, class chat ...",
        "prompt 3 of 3, class edit ...",
    ]


def test_json_to_standard_output_with_chosen_drafts(divine, tiny, prompts):
    result = divine(
        "bench", "-m", tiny, "--prompts", *prompts, "-n", "4", "--json", "-", "--rounds", "2",
        "--draft", "ngram,text", "--draft", "none", "--draft", "synthetic:0.5", "--temp", "1",
        "--seed", "7", "--draft-tree", "3",
    )  # fmt: skip
    assert result.code == 0, result.err
    written = json.loads(result.out)
    assert {(row["id"], row["draft"]) for row in written["by_prompt"]} == {
        ("chat/1", "synthetic:0.5"), ("chat/2", "synthetic:0.5"),
        ("edit/0", "synthetic:0.5"), ("edit/0", "ngram,text"),
    }  # fmt: skip
    assert written["comparisons"] == 8
    assert written["settings"] == {
        "max_tokens": 4, "temperature": 1.0, "seed": 7, "rounds": 2, "draft_tree": 3
    }  # fmt: skip


def test_every_prompt_is_read_anew(divine, tiny, prompts, monkeypatch):
    seen = []
    generate = Model.generate

    def spy(self, prompt, **options):
        seen.append(generate(self, prompt, **options))
        return seen[-1]

    monkeypatch.setattr(Model, "generate", spy)
    assert divine("bench", tiny, "--prompts", *prompts, "-n", "4").code == 0
    assert len(seen) > 7
    assert {answer.statistics.reused_tokens for answer in seen} == {0}


def test_answers_that_differ_are_an_error(divine, tiny, tmp_path, prompts, monkeypatch):
    generate = Model.generate

    def wrong(self, prompt, **options):
        answer = generate(self, prompt, **options)
        if options["draft"] == "ngram" and options["max_tokens"] == 6:
            answer.tokens[2] += 1
        return answer

    monkeypatch.setattr(Model, "generate", wrong)
    result = divine("bench", tiny, "--prompts", prompts[0], "-n", "6", "--json", tmp_path / "f")
    assert result.code == 1
    assert "2 differ" in result.out
    complaint = result.err.splitlines()[-1]
    assert complaint.startswith("divine: 2 of 4 answers differ from plain decoding")
    assert "chat/1 with draft ngram at token 2" in complaint
    assert len(json.loads((tmp_path / "f").read_text())["differences"]) == 2


def test_an_interruption_leaves_nothing_half(divine, tiny, tmp_path, prompts, monkeypatch):
    generate, calls = Model.generate, []

    def interrupted(self, prompt, **options):
        calls.append(options)
        if len([call for call in calls if call["max_tokens"] == 6]) == 4:
            raise KeyboardInterrupt
        return generate(self, prompt, **options)

    monkeypatch.setattr(Model, "generate", interrupted)
    result = divine("bench", tiny, "--prompts", prompts[0], "-n", "6", "--json", tmp_path / "f")
    assert result.code == 130
    assert result.out == ""
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--draft", "banana"], ["banana", "ngram", "--draft"]),
        (["--draft", "model"], ["draft model"]),
        (["--draft", "none"], ["plain"]),
        (["--draft", "text"], ["draft_text"]),
        (["-n", "1"], ["-n is 1"]),
        (["--rounds", "0"], ["rounds is 0"]),
        (["--temp", "-1"], ["--temp is -1"]),
        (["--draft-tree", "0"], ["--draft-tree is 0"]),
        (["--shape", "llama-3.1-8b:Q4_K_M"], ["--shape"]),
        (["--json", "/none/f.json"], ["/none/f.json"]),
        (["--plot", "/none/f.png"], ["/none/f.png"]),
        (["none.jsonl"], ["none.jsonl"]),
    ],
)
def test_what_is_refused(divine, tiny, prompts, arguments, words):
    result = divine("bench", tiny, "--prompts", prompts[0], *arguments)
    assert result.code == 2, result.err
    assert_one_sentence(result, *words)
    assert result.out == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--draft", "ngram"], ["-md", "x.gguf"], ["--plot", "x.png"], ["--rounds", "2"],
        ["-n", "5"], ["--temp", "0"], ["--seed", "0"], ["--draft-tree", "2"], ["more.jsonl"],
    ],
)  # fmt: skip
def test_what_needs_prompts(divine, tiny, arguments):
    result = divine("bench", tiny, *arguments)
    assert result.code == 2
    assert_one_sentence(result, "--prompts")


def test_a_prompt_that_does_not_fit_is_named_before_anything_is_measured(divine, tiny, tmp_path):
    path = write_prompts(tmp_path, "p.jsonl", {"prompt": "a"}, {"prompt": "hello " * 20_000})
    result = divine("bench", tiny, "--prompts", path)
    assert result.code == 1
    assert_one_sentence(result, "prompt p/2: ", "exceeds the context")


def test_a_plot_without_matplotlib(divine, tiny, tmp_path, prompts, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = divine("bench", tiny, "--prompts", prompts[0], "--plot", tmp_path / "f.png")
    assert result.code == 1
    assert_one_sentence(result, "matplotlib", "divine-llm[plot]")
