"""Options whose values have a form of their own."""

from __future__ import annotations

import math

import pytest

from divine.cli import options
from divine.errors import UsageError


def test_max_tokens():
    assert options.max_tokens(None) is None
    assert options.max_tokens(-1) is None
    assert options.max_tokens(0) == 0
    with pytest.raises(UsageError, match="-n is -2"):
        options.max_tokens(-2)


def test_logit_bias():
    assert options.logit_bias(None) is None
    items = ["15=-2.5", "7-inf", "8+1", "9:0.5", "10=1e-2"]
    expected = {15: -2.5, 7: -math.inf, 8: 1.0, 9: 0.5, 10: 0.01}
    assert options.logit_bias(items) == expected


@pytest.mark.parametrize("item", ["", "5", "=1", "a=1", "-5=1", "5=x", "5=nan", "5=+inf", "5=1=2"])
def test_wrong_logit_bias(item):
    with pytest.raises(UsageError, match="--logit-bias is"):
        options.logit_bias([item])


def test_only_what_was_given_is_passed_on():
    assert options.given(a=None, b=0, c=False, d="") == {"b": 0, "c": False, "d": ""}


def test_draft_names_are_no_number():
    assert options.draft(None) is None
    assert options.draft("ngram, model", "small.gguf") == "ngram, model"
    assert options.draft("synthetic:0.5") == "synthetic:0.5"
    for number in ("16", " 5 ", "-1", "+8"):
        with pytest.raises(UsageError, match=r"--draft is .*--draft-max"):
            options.draft(number)


def test_limits_of_a_draft_model_need_one(tiny):
    assert options.draft_loading(None, None, None) == {}
    assert options.draft_loading(str(tiny), 8, None) == {"draft_model": tiny, "draft_max": 8}
    with pytest.raises(UsageError, match="--draft-max is for a draft model"):
        options.draft_loading(None, 8, None)
    with pytest.raises(UsageError, match="--draft-min is for a draft model"):
        options.draft_loading(None, None, 0)
