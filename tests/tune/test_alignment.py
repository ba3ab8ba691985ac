"""Heads learn what they are to predict from what they will be given, and nothing else does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from synthetic import remembered_store, synthetic_store, synthetic_tables

from divine.tune.answers import AnswerStore
from divine.tune.batches import Batch, Batches, split
from divine.tune.options import TrainSettings
from divine.tune.step import Accuracy, measure
from divine.tune.trainer import Trainer
from divine.tune.workers import Workers

SETTINGS = TrainSettings(num_heads=3, rank=96, steps=160, rate=1e-2, draft_vocab=0, loss="hard")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> AnswerStore:
    return synthetic_store(tmp_path_factory.mktemp("language"))


def trained(store: AnswerStore, folder: Path, settings: TrainSettings) -> Trainer:
    chosen, held_out = split(store, 0.1)
    tables = synthetic_tables()
    definition = settings.definition(tables.dim, tables.eps, 0)
    return Trainer(store, chosen, held_out, tables, definition, settings, folder, Workers("cpu"))


@pytest.mark.parametrize("form", ["best", "paper"])
def test_heads_learn_the_language_at_every_depth(
    store: AnswerStore, tmp_path: Path, form: str
) -> None:
    activation = "gelu" if form == "paper" else None
    settings = replace(SETTINGS, form=form, activation=activation)  # type: ignore[arg-type]
    accuracy = trained(store, tmp_path, settings).run()
    assert min(accuracy.acceptance) > 0.99, accuracy
    assert accuracy.tokens_per_pass > 3.9 * 0.97  # the ends of answers allow shorter chains only


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_a_layer_learns_the_language_at_every_depth(
    store: AnswerStore, tmp_path: Path, kv_heads: int
) -> None:
    settings = replace(
        SETTINGS, architecture="layer", attention_heads=2, kv_heads=kv_heads, ffn=96, steps=200
    )
    accuracy = trained(store, tmp_path, settings).run()
    assert min(accuracy.acceptance) > 0.99, accuracy
    assert accuracy.tokens_per_pass > 3.9 * 0.97


def test_a_layer_remembers_what_heads_cannot(tmp_path: Path) -> None:
    """Where states say nothing, only what stands rows before tells which token comes."""
    store, blind = remembered_store(tmp_path / "answers"), synthetic_tables()
    chosen, held_out = split(store, 0.1)

    def depth_one(name: str, settings: TrainSettings) -> float:
        definition = settings.definition(blind.dim, blind.eps, 0)
        folder = tmp_path / name
        folder.mkdir()
        trainer = Trainer(
            store, chosen, held_out, blind, definition, settings, folder, Workers("cpu")
        )
        return trainer.run().by_depth[0]

    heads = replace(SETTINGS, num_heads=1, steps=120)
    layer = replace(heads, architecture="layer", attention_heads=2, kv_heads=1, ffn=48)
    assert depth_one("heads", heads) < 0.5
    assert depth_one("layer", layer) > 0.8  # 19 of 23 tokens are repetitions


def test_the_published_alignment_does_not(
    store: AnswerStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Head 1 given the token at t to predict t + 1, as divine-mtp 0.1.0 trains, drafts wrongly."""
    aligned = Batches.batch

    def early(self: Batches, step: int, rank: int = 0, ranks: int = 1) -> Batch:
        batch = aligned(self, step, rank, ranks)
        states, tokens = np.roll(batch.states, -1, axis=1), batch.tokens
        return Batch(states, tokens)  # the state at t beside the token at t

    monkeypatch.setattr(Batches, "batch", early)
    trainer = trained(store, tmp_path, SETTINGS)
    trainer.run()
    # It has learned its own task...
    own = Batches(store, split(store, 0.1)[1], depth=3, length=16, stretches=32, seed=0)
    batches = [early(own, 0)]
    own_accuracy: Accuracy = measure(trainer.network, batches, trainer._tables)
    assert own_accuracy.by_depth[0] > 0.9
    # ... which is not the one that a draft asks for.
    real = measure(trainer.network, trainer._measured, trainer._tables)
    assert real.by_depth[0] < 0.5
