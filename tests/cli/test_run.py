"""`divine run` on a tiny model: what reaches standard output and what standard error."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time

import pytest

from .conftest import assert_one_sentence, process

GREEDY = ("--temp", "0", "-n", "12")


def test_text_and_figures(divine, tiny):
    result = divine("run", tiny, "hello", *GREEDY)
    assert result.code == 0, result.err
    assert result.out.endswith("\n")
    assert result.err.startswith("[")
    for word in ("tokens", "tok/s", "prompt", "loaded in"):
        assert word in result.err
    assert "seed" not in result.err  # greedy: none was used


def test_json_is_the_same_answer(divine, tiny):
    plain = divine("run", tiny, "hello", *GREEDY)
    result = divine("run", tiny, "hello", *GREEDY, "--json")
    assert result.err == ""
    answer = json.loads(result.out)
    assert answer["text"].rstrip("\n") == plain.out.rstrip("\n")
    assert answer["completion_tokens"] == len(answer["tokens"]) <= 12
    assert answer["finish_reason"] in ("stop", "length")
    assert answer["prompt_tokens"] > 1
    assert answer["statistics"]["tokens"] == answer["completion_tokens"]


def test_the_same_prompt_by_every_way(divine, tiny, tmp_path):
    (tmp_path / "prompt").write_bytes(b"\xef\xbb\xbfhello")
    expected = divine("run", tiny, "hello", *GREEDY).out
    assert divine("run", tiny, "-p", "hello", *GREEDY).out == expected
    assert divine("run", "-m", tiny, "hello", *GREEDY).out == expected
    assert divine("run", tiny, "-f", tmp_path / "prompt", *GREEDY).out == expected
    assert divine("run", tiny, *GREEDY, stdin=b"hello").out == expected
    assert divine("run", tiny, "-", *GREEDY, stdin=b"hello").out == expected


def test_standard_input_beside_a_prompt(divine, tiny):
    """Text that waits there is told of but not read; an open pipe without any is no matter."""
    expected = divine("run", tiny, "hello", *GREEDY).out
    command = [sys.executable, "-m", "divine", "run", str(tiny), "hello", *GREEDY]
    reader, writer = os.pipe()
    for text, told in ((b"", False), (b"the world", True)):
        os.write(writer, text)
        done = subprocess.run(command, stdin=reader, capture_output=True, timeout=60)
        assert done.stdout.decode() == expected
        assert (b"-f - puts it after the prompt" in done.stderr) is told
    os.close(writer)
    os.close(reader)
    asked = [*command, "-f", "-"]
    done = subprocess.run(asked, input=b"the world", capture_output=True, timeout=60)
    assert done.stdout.decode() == divine("run", tiny, "hello\n\nthe world", *GREEDY).out
    assert b"-f -" not in done.stderr


def test_both_backends_take_it(divine, tiny):
    for backend in ("cpu", "reference"):
        result = divine("run", tiny, "hello", *GREEDY, "--backend", backend)
        assert result.code == 0, result.err


def test_a_drawn_seed_is_told_and_repeats_the_text(divine, tiny):
    first = divine("run", tiny, "hello", "--temp", "1.5", "-n", "12")
    seed = first.err.rsplit("seed ", 1)[1].split("]")[0].split(" ")[0]
    again = divine("run", tiny, "hello", "--temp", "1.5", "-n", "12", "--seed", seed)
    assert again.out == first.out
    assert "seed" not in again.err


def test_seed_minus_one_draws_one(divine, tiny):
    assert "seed " in divine("run", tiny, "hello", "-n", "2", "--seed", "-1").err


def test_an_empty_standard_input_is_no_prompt(divine, tiny):
    result = divine("run", tiny)
    assert result.code == 2
    assert_one_sentence(result, "standard input is empty")
    assert divine("run", tiny, "-", "-n", "0").code == 0  # asked for


def test_raw_and_system(divine, tiny):
    counts = [
        json.loads(divine("run", tiny, "hello", "-n", "0", "--json", *more).out)["prompt_tokens"]
        for more in (["--raw"], [], ["-sys", "hello"])
    ]
    assert counts[0] < counts[1] < counts[2]
    result = divine("run", tiny, "hello", "--raw", "-sys", "x")
    assert result.code == 2
    assert_one_sentence(result, "--system", "--raw")


def test_no_tokens_wanted(divine, tiny):
    result = divine("run", tiny, "hello", "-n", "0", "--json")
    assert json.loads(result.out)["text"] == ""
    assert json.loads(result.out)["finish_reason"] == "length"


def test_stop(divine, tiny):
    whole = json.loads(divine("run", tiny, "hello", *GREEDY, "--json").out)["text"]
    middle = whole[len(whole) // 2]
    result = divine("run", tiny, "hello", *GREEDY, "--json", "-r", middle, "--stop", "never seen")
    answer = json.loads(result.out)
    assert answer["text"] == whole[: whole.index(middle)]
    assert answer["finish_reason"] == "stop"


def test_bias_bans_a_token(divine, tiny):
    first = json.loads(divine("run", tiny, "hello", *GREEDY, "--json").out)["tokens"][0]
    banned = divine("run", tiny, "hello", *GREEDY, "--json", "--logit-bias", f"{first}-inf")
    assert first not in json.loads(banned.out)["tokens"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--temp", "-1"], 2, ["--temp is"]),
        (["--top-p", "1.5"], 2, ["--top-p is"]),
        (["--min-p", "nan"], 2, ["--min-p is"]),
        (["--seed", "-2"], 2, ["--seed is"]),
        (["-t", "0"], 2, ["-t is"]),
        (["-c", "-1"], 2, ["-c is"]),
        (["-c", "4"], 1, ["4"]),
        (["--logit-bias", "999999=1"], 2, ["--logit-bias", "999999"]),
        (["-n", "-5"], 2, ["-n"]),
    ],
)
def test_values_out_of_range(divine, tiny, arguments, code, words):
    result = divine("run", tiny, "hello", *arguments)
    assert result.code == code, result.err
    assert result.out == ""
    assert_one_sentence(result, *words)


def test_a_prompt_that_is_not_utf8(divine, tiny):
    result = divine("run", tiny, stdin=b"ok \xff")
    assert result.code == 2
    assert_one_sentence(result, "standard input is not UTF-8 at byte 3")


def test_answers_are_utf8_in_any_locale(tiny):
    arguments = ("run", tiny, "hello", "--temp", "2", "--seed", "7", "-n", "60")
    result = process(*arguments, LC_ALL="C", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert result.code == 0, result.err
    assert result.out == process(*arguments).out
    assert not result.out.isascii()


def test_ctrl_c_exits_130(endless):
    """An answer without end, on a terminal, interrupted after its first bytes."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "divine", "run", *endless, "-p", "hello"]
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=subprocess.PIPE) as running:
        os.close(slave)
        assert os.read(master, 1)
        time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        while True:  # a terminal's reader: keep it from filling up
            try:
                if not os.read(master, 65536):
                    break
            except OSError:  # its last writer is gone
                break
        assert running.stderr is not None
        errors = running.stderr.read()
        assert running.wait(30) == 130
    os.close(master)
    assert b"Traceback" not in errors


@pytest.mark.parametrize("temperature", ["0", "1"])
def test_drafting_never_changes_the_text(divine, tiny, tmp_path, temperature):
    common = ("run", tiny, "hello the world", "--temp", temperature, "--seed", "3", "-n", "24")
    plain = json.loads(divine(*common, "--json", "--draft", "none").out)
    guess = tmp_path / "guess.txt"
    guess.write_text(plain["text"])
    for more in (
        [],
        ["--draft", "ngram"],
        ["--draft", "ngram, text", "--draft-text", guess],
        ["--draft", "synthetic:0.5", "--draft-tree", "3"],
        ["-md", tiny, "--draft-max", "4", "--draft-min", "1", "--accept", "shared"],
    ):
        result = divine(*common, "--json", *more)
        assert result.code == 0, result.err
        answer = json.loads(result.out)
        assert answer["tokens"] == plain["tokens"], more
        shown = divine(*common, *more, "--show-drafts").out
        assert shown.rstrip("\n") == plain["text"].rstrip("\n")


def test_drafted_text_is_coloured_on_request(divine, tiny, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("divine.cli.drafts._takes_colours", lambda stream: True)
    monkeypatch.setattr("divine.api.answers.Stream._names", lambda self, sources: ("ngram",))
    plain = divine("run", tiny, "hello", *GREEDY)
    assert "\x1b" not in plain.out + plain.err
    result = divine("run", tiny, "hello", *GREEDY, "--show-drafts")
    assert result.out.startswith("\x1b[32m")
    assert result.err.splitlines()[-1].startswith("[drafted by \x1b[32mngram\x1b[0m;")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--draft", "16"], ["--draft is 16", "--draft-max"]),
        (["--draft", "banana"], ["banana", "ngram"]),
        (["--draft", "model"], ["draft model"]),
        (["--draft", "text"], ["--draft-text"]),
        (["--draft-tree", "0"], ["--draft-tree is 0"]),
        (["--draft-tree", "999"], ["--draft-tree is 999"]),
        (["--draft-max", "4"], ["--draft-max", "-md"]),
        (["--draft-min", "4"], ["--draft-min", "-md"]),
        (["--draft-text", "/none/x"], ["/none/x", "no such file"]),
        (["--draft-text", "/"], ["--draft-text takes a text file"]),
        (["--accept", "banana"], ["banana"]),
    ],
)
def test_wrong_draft_options(divine, tiny, arguments, words):
    result = divine("run", tiny, "hello", "-n", "2", *arguments)
    assert result.code == 2, result.err
    assert result.out == ""
    assert_one_sentence(result, *words)


def test_a_draft_model_that_is_not_there(divine, tiny):
    result = divine("run", tiny, "hello", "-md", "/none/draft.gguf")
    assert result.code == 1
    assert_one_sentence(result, "/none/draft.gguf", "no such file")
