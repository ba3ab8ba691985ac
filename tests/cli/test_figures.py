"""The lines after an answer: what they say, and that they fit."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from divine.api import Completion, Statistics
from divine.cli.figures import as_data, figures


def counts(*depths: tuple[int, int]) -> SimpleNamespace:
    """By depth: accepted, rejected."""
    accepted, rejected = [list(of) for of in zip(*depths, strict=True)] if depths else ([], [])
    return SimpleNamespace(accepted=accepted, rejected=rejected)


def completion(*, plain_seconds: float | None = 9.0, **drafts: object) -> Completion:
    statistics = Statistics(
        tokens=101,
        passes=40,
        prompt_tokens=30,
        reused_tokens=0,
        prefill_seconds=0.3,
        decode_seconds=5.0,
        native_seconds=5.0,
        prefill_tok_s=100.0,
        decode_tok_s=20.0,
        tokens_per_pass=2.5,
        plain_seconds=plain_seconds,
        drafts=drafts,
    )
    return Completion("text", list(range(101)), 30, "stop", 7, statistics)


def test_without_drafts_there_is_one_line():
    expected = "[101 tokens, 20.0 tok/s | prompt 30 tokens, 100.0 tok/s | loaded in 1.50 s]"
    assert figures(completion(), 1.5, drawn_seed=False) == expected
    nothing_ran = completion(ngram=counts(), text=counts((0, 0), (0, 0)))
    assert figures(nothing_ran, 1.5, drawn_seed=False).splitlines() == [
        expected,
        "[40 passes, 2.50 tokens each | nothing drafted: it would not have paid]",
    ]


def test_drafts_have_lines_of_their_own():
    ngram, text = counts((3, 1), (2, 1), (0, 0)), counts()
    lines = figures(completion(ngram=ngram), None, drawn_seed=True).splitlines()
    assert lines == [
        "[101 tokens, 20.0 tok/s | prompt 30 tokens, 100.0 tok/s | seed 7]",
        "[40 passes, 2.50 tokens each | about 1.8x plain (estimate) | ngram 3/4 2/3]",
    ]
    one_idle = figures(completion(ngram=ngram, text=text), None, drawn_seed=True).splitlines()
    assert one_idle[1:] == [
        "[40 passes, 2.50 tokens each | about 1.8x plain (estimate)]",
        "[ngram 3/4 2/3 | not used: text]",
    ]
    both = completion(ngram=ngram, model=counts((5, 0), (0, 5)))
    assert figures(both, None, drawn_seed=True).splitlines()[1:] == [
        "[40 passes, 2.50 tokens each | about 1.8x plain (estimate)]",
        "[ngram 3/4 2/3 | model 5/5 0/5]",
    ]


def test_without_an_estimate_no_speed_up_is_claimed():
    line = figures(completion(plain_seconds=None, ngram=counts((3, 1))), None, drawn_seed=False)
    assert line.splitlines()[1] == "[40 passes, 2.50 tokens each | ngram 3/4]"


@pytest.mark.parametrize("depth", [1, 3, 10, 11, 64])
def test_many_depths_are_cut_to_80_columns(depth):
    deep = counts(*[(100 - d, d) for d in range(depth)])
    lines = figures(completion(model=deep), None, drawn_seed=False).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert "model 100/100" in lines[-1]
    assert lines[-1].endswith(" ..]") == (depth > 10)
    wide = figures(completion(a=deep, b=deep, c=deep, d=deep, e=deep), None, drawn_seed=False)
    assert all(f"{name} 100/100" in wide for name in "abcde")  # at least one depth of each


def test_json_has_it_all(divine, tiny):
    result = divine("run", tiny, "hello", "--temp", "0", "-n", "12", "--json")
    answer = json.loads(result.out)
    statistics = answer["statistics"]
    assert len(answer["drafted_by"]) == len(answer["tokens"])
    assert {"passes", "tokens_per_pass", "plain_seconds", "speedup", "drafts", "cut"} <= set(
        statistics
    )
    assert as_data(completion(), 1.5)["statistics"]["speedup"] == 1.8
