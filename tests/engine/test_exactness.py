"""The exactness matrix on a real model: drafted answers are the plain ones, token by token."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import divine
from divine.errors import DownloadError
from divine.store import resolve

PROMPTS = [
    ("code", "Write a Python function that reverses a string, with a docstring."),
    ("edit", "Repeat this twice: for i in range(10): print(i, i * i, i * i * i)"),
    ("chat", "Why is the sky blue?"),
    ("unpredictable", "List ten unrelated words."),
]
TOKENS = 24


@pytest.fixture(scope="module")
def exactness() -> Iterator[ModuleType]:
    """The script, as a module."""
    path = Path(__file__).parents[2] / "scripts" / "exactness.py"
    spec = importlib.util.spec_from_file_location("exactness", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["exactness"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["exactness"]


@pytest.mark.timeout(900)  # beside other work on two cores it takes minutes
@pytest.mark.model
def test_the_matrix(exactness: ModuleType) -> None:
    """The model drafts for itself too: right nearly always, by another way through the code."""
    try:
        smollm2 = resolve("smollm2")
    except DownloadError as error:
        pytest.skip(str(error))
    with divine.load(smollm2, draft_model=smollm2, context=1024) as model:
        choices = exactness.drafter_choices(model.drafters)
        results = list(exactness.compare(model, PROMPTS, TOKENS))
    different = [result for result in results if not result[-1]]
    assert not different
    assert len(results) == len(PROMPTS) * len(exactness.SETTINGS) * len(choices)
