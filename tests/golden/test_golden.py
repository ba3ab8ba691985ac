"""SmolLM2 answers as it always has, at every CPU level, alone and with others.

`python tests/golden/update.py` writes the answers anew.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from golden_cases import CASES, MODEL, PREFIX, TOKENS, Case, answer, digest, read_golden

import divine.api.loading
from divine.api import Model
from divine.backends.cpu import _native
from divine.backends.cpu.backend import CpuBackend
from divine.errors import DownloadError
from divine.store import resolve

pytestmark = pytest.mark.model

LEVELS = _native.levels()
# The plainest level runs a hundred times slower: it gets two short prompts and a few tokens.
SLOW_CASES = ("greedy code", "sampled story")


def load_at(level: str) -> Model:
    try:
        path = resolve(MODEL)
    except DownloadError as error:
        pytest.skip(str(error))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(divine.api.loading, "create_backend", lambda name: CpuBackend(level))
        return divine.api.load(path)


@pytest.fixture(scope="module", params=LEVELS[1:] or LEVELS)
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    with load_at(request.param) as loaded:
        yield loaded


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_answers(model: Model, case: Case) -> None:
    assert answer(model, case) == read_golden()[case.name]


def test_answers_together(model: Model) -> None:
    """All at once, in shared passes: the same answers."""
    streams = [model.stream(case.prompt, max_tokens=TOKENS, **case.options) for case in CASES]
    golden = read_golden()
    for case, stream in zip(CASES, streams, strict=True):
        assert digest(stream.finish().tokens) == golden[case.name]["sha256"], case.name


def test_scalar_level_begins_alike() -> None:
    golden = read_golden()
    with load_at("scalar") as model:
        for case in CASES:
            if case.name in SLOW_CASES:
                found = answer(model, case, PREFIX)
                assert found["sha256"] == golden[case.name][f"first_{PREFIX}_sha256"], case.name
