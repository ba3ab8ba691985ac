"""Architectures are compared after the same steps, on the same held-out positions."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from synthetic import DIM, remembered_store, synthetic_store, synthetic_tables

from divine.errors import UsageError
from divine.tune import compare
from divine.tune.answers import AnswerStore
from divine.tune.compare import Contender, difference, table
from divine.tune.options import TrainSettings
from divine.tune.step import Accuracy
from divine.tune.trainer import Progress
from divine.tune.workers import Workers

HEADS = TrainSettings(
    num_heads=3, rank=24, steps=60, stretches=8, draft_vocab=0, loss="hard", held_out=0.1, rate=1e-2
)
LAYER = replace(HEADS, architecture="layer", attention_heads=2, kv_heads=1, ffn=48)


def compared(store: AnswerStore, folder: Path, **more: object) -> list[Contender]:
    return compare.compare(
        store, lambda *_: synthetic_tables(), [HEADS, LAYER], folder,
        fingerprint="synthetic", end_ids=[], workers=Workers("cpu"), **more,  # type: ignore[arg-type]
    )  # fmt: skip


def test_both_are_trained_and_measured_alike(tmp_path: Path) -> None:
    store = remembered_store(tmp_path / "answers", length=32)
    told: set[str] = set()

    def tell(architecture: str, progress: Progress) -> None:
        told.add(architecture)

    heads, layer = compared(store, tmp_path / "out", tell=tell)
    assert told == {"mtp", "layer"}
    assert heads.steps == layer.steps == 60
    assert np.array_equal(heads.accuracy.judged, layer.accuracy.judged)
    assert len(heads.parts) == len(layer.parts) > 1
    assert len(heads.curve) == 20
    more, error = difference(heads, layer)
    assert more == pytest.approx(layer.accuracy.chain(3) - heads.accuracy.chain(3))
    assert more > 3 * error > 0  # states say nothing there, so memory is worth a lot
    one, other = (replace(found, parts=found.parts[:1]) for found in (heads, layer))
    assert np.isnan(difference(one, other)[1])  # a single batch says nothing of its error
    text = table([heads, layer])
    assert "layer: a layer of 2/1 heads, ffn 48" in text
    assert f"{layer.accuracy.by_depth[2]:.3f}" in text
    assert json.loads(json.dumps(layer.to_dict()))["architecture"] == "layer"
    with pytest.raises(UsageError, match="has a training run already"):
        compared(store, tmp_path / "out")


def test_chains_may_be_shorter_than_what_was_trained() -> None:
    ten = np.full(4, 10, np.int64)
    kept = np.array([8, 4, 2, 1], np.int64)
    accuracy = Accuracy(kept, ten, ten, kept)
    assert accuracy.chain(2) == pytest.approx(2.2)
    assert accuracy.tokens_per_pass == pytest.approx(2.5)
    assert (accuracy + accuracy).chain(3) == pytest.approx(2.4)


def test_nothing_held_out_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = synthetic_store(tmp_path / "answers", answers=2)
    monkeypatch.setattr(compare, "split", lambda *_: (np.arange(2), np.arange(0)))
    with pytest.raises(UsageError, match="no answer to hold out"):
        compared(store, tmp_path / "out")
    assert store.dim == DIM


def test_errors_of_the_command_are_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["compare", str(tmp_path / "no.gguf"), "--answers", "a"])
    with pytest.raises(SystemExit) as caught:
        compare.main()
    assert caught.value.code == UsageError.exit_code
    told = capsys.readouterr().err
    assert told.startswith("compare: ")
    assert "no.gguf" in told
