"""A killed and resumed run gives the weights of an unbroken one; its files say what it was."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from synthetic import TOKENS, synthetic_store, synthetic_tables

from divine.errors import (
    CapacityError,
    FormatError,
    NumericError,
    UnsupportedError,
    UsageError,
)
from divine.heads import DRAFT_VOCAB, HeadWeights, LayerDefinition
from divine.tune import checkpoint, pieces, trainer, training
from divine.tune.answers import AnswerStore
from divine.tune.architectures import batches_of
from divine.tune.batches import NONE, Batches, split
from divine.tune.options import TrainSettings
from divine.tune.pieces import Pieces
from divine.tune.record import CURVES, read_log
from divine.tune.tables import draft_vocabulary
from divine.tune.training import WEIGHTS, train
from divine.tune.workers import Workers

HERE = Path(__file__).parent
SETTINGS = TrainSettings(num_heads=2, rank=16, steps=24, stretches=4, draft_vocab=0, held_out=0.1)


def of(architecture: str) -> TrainSettings:
    """The settings, for one of the architectures."""
    ffn = 16 if architecture == "layer" else None
    return replace(SETTINGS, architecture=architecture, ffn=ffn)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> AnswerStore:
    return synthetic_store(tmp_path_factory.mktemp("language"), answers=40)


def run(store: AnswerStore, folder: Path, settings: TrainSettings = SETTINGS) -> HeadWeights:
    tables = synthetic_tables()

    def tables_of(tokens: object, listed: np.ndarray) -> object:  # type: ignore[type-arg]
        return replace(tables, draft_vocab=listed, output=tables.output[listed])

    weights, _ = train(
        store, tables_of, settings, folder,  # type: ignore[arg-type]
        fingerprint="synthetic", end_ids=[2], workers=Workers("cpu"),
    )  # fmt: skip
    return weights


def test_a_run_leaves_weights_log_curves_and_provenance(store: AnswerStore, tmp_path: Path) -> None:
    weights = run(store, tmp_path)
    read = HeadWeights.load(tmp_path / WEIGHTS)
    assert all(
        np.array_equal(read.tensors[name], weights.tensors[name]) for name in weights.tensors
    )
    assert read.fingerprint == "synthetic"
    assert read.provenance["steps"] == 24
    trained, _ = split(store, SETTINGS.held_out)
    assert read.provenance["data"] | {"capture": None} == {
        "answers": len(trained),
        "tokens": int(store.lengths[trained].sum()),
        "capture": None,
    }
    assert len(read.provenance["held_out"]["acceptance"]) == 2
    log = read_log(tmp_path)
    assert [entry["step"] for entry in log][-1] == 24
    assert log[-1]["held_out_loss"] < log[0]["held_out_loss"]
    assert (tmp_path / CURVES).read_bytes().startswith(b"\x89PNG")
    assert list((tmp_path / "tensorboard").glob("events*"))


_KILLED = """
import sys
from pathlib import Path
import torch
sys.path.insert(0, sys.argv[3])
torch.set_num_threads(1)
from divine.tune import trainer
trainer._SAVE_SECONDS = 0.0  # after each step
import test_training as t
t.run(t.AnswerStore(Path(sys.argv[1])), Path(sys.argv[2]), t.of(sys.argv[4]))
"""


@pytest.mark.parametrize("architecture", ["mtp", "layer"])
def test_a_killed_run_resumes_to_the_same_weights(
    store: AnswerStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str
) -> None:
    settings = of(architecture)
    expected = run(store, tmp_path / "whole", settings)
    folder = tmp_path / "killed"
    folder.mkdir()
    command = [sys.executable, "-c", _KILLED, str(store.folder), str(folder), str(HERE)]
    command.append(architecture)
    path = folder / checkpoint.NAME
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None and not path.exists():
            time.sleep(0.002)
        time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    state = checkpoint.load(folder)
    assert state is not None
    assert state["step"] > 0

    # Further ends without a farewell, some steps after the last checkpoint.
    class Killed(BaseException):
        pass

    monkeypatch.setattr(trainer, "_SAVE_SECONDS", 0.0)
    real = trainer.Trainer.save
    chance = random.Random(3)

    def seldom(self: trainer.Trainer) -> None:
        if self.step == self.steps or chance.random() < 0.4:
            real(self)

    def dies(self: trainer.Trainer) -> tuple[float, int]:
        if chance.random() < 0.15:
            raise Killed
        return one_step(self)

    one_step = trainer.Trainer._one_step
    monkeypatch.setattr(trainer.Trainer, "save", seldom)
    monkeypatch.setattr(trainer.Trainer, "_one_step", dies)
    for _ in range(40):
        try:
            weights = run(store, folder, settings)
            break
        except Killed:
            continue
    for name in expected.tensors:
        assert np.array_equal(weights.tensors[name], expected.tensors[name]), name
    assert read_log(folder) == read_log(tmp_path / "whole")


def test_the_command_is_kept_without_the_folders_of_a_machine(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.touch()
    given = [str(model), "-o", str(tmp_path), "--prompts", "owner/data:train", "--rate", "0.001"]
    kept = ["tune", "model.gguf", "-o", tmp_path.name, *given[3:]]
    assert training._command(["/usr/bin/divine", "tune", *given]) == ["divine", *kept]
    assert training._command(["/x/divine/__main__.py", "tune", *given]) == ["divine", *kept]


def test_fewer_tokens_leave_what_is_measured_as_it_is(store: AnswerStore, tmp_path: Path) -> None:
    everything, held_out = split(store, 0.1)
    some = int(store.lengths[everything[:7]].sum())
    for tokens, answers in ((some, 7), (some - 1, 6), (1, 1), (10**9, len(everything))):
        chosen, measured = split(store, 0.1, tokens)
        assert np.array_equal(chosen, everything[:answers])
        assert np.array_equal(measured, held_out)
    weights = run(store, tmp_path, replace(SETTINGS, tokens=some))
    assert weights.provenance["data"]["answers"] == 7
    assert weights.provenance["data"]["tokens"] == some
    with pytest.raises(UsageError, match="tokens is 0"):
        replace(SETTINGS, tokens=0)


def test_an_interruption_saves_and_minutes_are_settled_once(
    store: AnswerStore, tmp_path: Path
) -> None:
    settings = replace(SETTINGS, steps=None, minutes=0.02)
    stopped = 0

    def stop(progress: trainer.Progress) -> None:
        nonlocal stopped
        stopped = progress.steps
        raise KeyboardInterrupt

    chosen, held_out = split(store, 0.1)
    tables = synthetic_tables()
    definition = settings.definition(tables.dim, tables.eps, 0)
    arguments = (store, chosen, held_out, tables, definition, settings, tmp_path, Workers("cpu"))
    with pytest.raises(KeyboardInterrupt):
        trainer.Trainer(*arguments).run(stop)
    again = trainer.Trainer(*arguments)
    assert (again.step, again.steps) == (1, stopped)


def test_a_loss_that_is_no_number_stops_with_the_step(
    store: AnswerStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "_SAVE_SECONDS", 0.0)
    real = Batches.batch

    def poisoned(self: Batches, step: int, rank: int = 0, ranks: int = 1):  # type: ignore[no-untyped-def]
        batch = real(self, step, rank, ranks)
        if step == 5:
            batch.states[:] = np.nan
        return batch

    monkeypatch.setattr(Batches, "batch", poisoned)
    with pytest.raises(NumericError, match="loss of step 6 is nan"):
        run(store, tmp_path)
    state = checkpoint.load(tmp_path)
    assert state is not None
    assert state["step"] == 5
    assert all(np.isfinite(values.numpy()).all() for values in state["network"].values())


def test_other_settings_and_damaged_checkpoints_are_refused(
    store: AnswerStore, tmp_path: Path
) -> None:
    run(store, tmp_path)
    with pytest.raises(UsageError, match="was made with rate"):
        run(store, tmp_path, replace(SETTINGS, rate=1e-4))
    (tmp_path / checkpoint.NAME).write_bytes(b"nothing")
    with pytest.raises(FormatError, match=r"checkpoint\.pt is damaged"):
        run(store, tmp_path)


def test_a_full_disk_keeps_the_checkpoint_before(
    store: AnswerStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save(tmp_path, {"step": 1})

    def full(path: Path, data: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(CapacityError, match="checkpoint before it is kept"):
        checkpoint.save(tmp_path, {"step": 2})
    assert checkpoint.load(tmp_path) == {"step": 1}


def test_another_base_is_refused(store: AnswerStore, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="fingerprint synthetic"):
        train(
            store, lambda *_: synthetic_tables(), SETTINGS, tmp_path,
            fingerprint="another", end_ids=[], workers=Workers("cpu"),
        )  # fmt: skip


def test_a_shortlist_is_learned_and_kept(store: AnswerStore, tmp_path: Path) -> None:
    weights = run(store, tmp_path, replace(SETTINGS, draft_vocab=6, steps=3))
    listed = weights.tensors[DRAFT_VOCAB]
    assert len(listed) == 6
    assert 2 in listed
    assert weights.definition.draft_vocab == 6
    counts = np.array([5, 0, 9, 9, 1], np.int64)
    assert draft_vocabulary(counts, 2, []).tolist() == [2, 3]
    assert draft_vocabulary(counts, 2, [1]).tolist() == [1, 2]
    assert draft_vocabulary(counts, 0, []).tolist() == [0, 1, 2, 3, 4]


def test_batches_show_each_position_once_an_epoch(store: AnswerStore) -> None:
    batches = Batches(store, np.arange(len(store)), depth=2, length=8, stretches=3, seed=1)
    order = batches._shuffle(0)
    seen = np.concatenate(
        [batches._gather(order[i : i + 1]).tokens[:, :8] for i in range(len(order))]
    )
    # The last position of an answer has no next token; a stretch may show it or not.
    assert batches.positions <= (seen != NONE).sum() <= store.lengths.sum()
    first = batches.batch(0)
    assert np.array_equal(first.tokens, batches.batch(0).tokens)
    halves = [batches.batch(0, rank, 2).tokens for rank in range(2)]
    assert np.array_equal(np.sort(np.concatenate(halves), axis=0), np.sort(first.tokens, axis=0))
    assert seen.max() < TOKENS


def pieces_of(store: AnswerStore, chosen: np.ndarray, **more: int) -> Pieces:  # type: ignore[type-arg]
    return Pieces(store, chosen, **{"depth": 2, "longest": 16, "positions": 100, "seed": 1, **more})


def test_pieces_show_each_position_once_an_epoch(store: AnswerStore) -> None:
    found = pieces_of(store, np.arange(len(store)))
    assert found.positions == (store.lengths - 1).sum()
    for epoch in (0, 1):
        steps = range(epoch * found.steps_per_epoch, (epoch + 1) * found.steps_per_epoch)
        batches = [found.batch(step) for step in steps]
        assert all(batch.tokens.shape[1] <= 18 for batch in batches)
        cut = found._pieces[np.lexsort((found._pieces[:, 1], found._pieces[:, 0]))]
        for index in range(len(store)):  # without gaps, from the first to the last but one
            own = cut[cut[:, 0] == index]
            ends = own[:, 1] + own[:, 2]
            assert (own[0, 1], ends[-1]) == (0, store.lengths[index] - 1)
            assert (own[1:, 1] == ends[:-1]).all()
            assert own[:, 2].max() <= 16
        shown = sum(len(batch.tokens) for batch in batches)
        assert shown == len(cut)
    assert np.array_equal(found.batch(0).tokens, found.batch(0).tokens)
    together = found.batch(1).tokens
    halves = [found.batch(1, rank, 2).tokens for rank in range(2)]
    assert np.array_equal(np.sort(np.concatenate(halves), axis=0), np.sort(together, axis=0))


def test_pieces_are_padded_and_measured_whole(
    store: AnswerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = store[0].answer  # 40, of which 39 have a next one
    (whole,) = pieces_of(store, np.arange(1)).all(64)
    assert np.array_equal(whole.tokens[0], [*tokens, NONE])
    assert sum(len(batch.tokens) for batch in pieces_of(store, np.arange(9)).all(3 * 39)) == 3
    monkeypatch.setattr(pieces, "LONGEST", 16)
    (batch,) = pieces_of(store, np.arange(1)).all(64)
    assert batch.tokens.shape == (3, 18)
    assert np.array_equal(batch.tokens[0], tokens[:18])
    assert np.array_equal(batch.tokens[1], tokens[16:34])
    assert np.array_equal(batch.tokens[2], [*tokens[32:], *[NONE] * 10])
    assert np.array_equal(batch.states[2, :8], store[0].states[32:].astype(np.float32))


def test_tiny_answers_make_batches_too(store: AnswerStore) -> None:
    few = pieces_of(store, np.arange(2), longest=64, positions=1)
    assert few.steps_per_epoch == 78
    assert all(len(few.batch(step).tokens) >= 1 for step in range(78))


def test_key_heads_are_checked_against_the_real_width() -> None:
    settings = replace(SETTINGS, architecture="layer", kv_heads=3)
    assert settings.definition(576, 1e-5, 0).to_dict()["heads"] == 9
    with pytest.raises(UsageError, match="kv_heads is 3; a divisor of heads, 8"):
        settings.definition(512, 1e-5, 0)


def test_a_layer_on_other_states_is_refused(store: AnswerStore) -> None:
    definition = LayerDefinition.for_width(store.dim, taps=("layer.1.input", "final"))
    with pytest.raises(UnsupportedError, match=r"layer\.1\.input, final; answers are captured"):
        batches_of(store, np.arange(2), definition, SETTINGS)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"loss": "sharp"}, "loss is 'sharp'"),
        ({"num_heads": 0}, "num_heads is 0"),
        ({"rank": 0}, "rank is 0"),
        ({"gamma": 0.0}, "discount_gamma"),
        ({"steps": 3, "minutes": 1.0}, "is given, too"),
        ({"rate": -1.0}, "rate is -1.0"),
        ({"stretches": 0}, "stretches is 0"),
        ({"architecture": "tree"}, "architecture is 'tree'"),
        ({"ffn": 64}, "ffn is a setting of the architecture layer only"),
        ({"architecture": "layer", "kv_heads": 0}, "kv_heads is 0"),
    ],
)
def test_settings_are_checked(change: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        replace(TrainSettings(), **change)  # type: ignore[arg-type]


def test_a_store_without_states_is_refused(store: AnswerStore, tmp_path: Path) -> None:
    settings = json.loads((store.folder / "capture.json").read_text())
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "capture.json").write_text(json.dumps({**settings, "states": False}))
    with pytest.raises(UsageError, match="without states"):
        run(AnswerStore(folder), tmp_path / "b")
