"""Training as a whole: from a folder of answers and a base to a file of heads, with its provenance.

Puts together the split, the draft vocabulary, the tables, the trainer and what is written at the
end. Knows how the parts fit; the work is theirs.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from divine import __version__
from divine.errors import CapacityError, UsageError
from divine.heads import DRAFT_VOCAB, HeadWeights
from divine.tune.answers import AnswerStore
from divine.tune.batches import split
from divine.tune.options import TrainSettings
from divine.tune.record import draw, read_log
from divine.tune.step import Accuracy
from divine.tune.tables import Tables, count_tokens, draft_vocabulary
from divine.tune.trainer import Progress, Trainer
from divine.tune.workers import Workers

WEIGHTS = "heads.safetensors"

TablesOf = Callable[[NDArray[np.int32], NDArray[np.int32]], Tables]


def train(
    store: AnswerStore,
    tables_of: TablesOf,
    settings: TrainSettings,
    folder: Path,
    *,
    fingerprint: str | None,
    end_ids: Sequence[int],
    workers: Workers,
    tell: Callable[[Progress], None] | None = None,
) -> tuple[HeadWeights, Accuracy]:
    """Train heads on `store` into `folder`; the weights, and what held-out answers say of them.

    `tables_of`: tokens and draft vocabulary, both ascending -> the base's tables. `fingerprint`: of
    the base. Raises UsageError, CapacityError, NumericError; checkpoints in the folder stay.
    """
    if not store.has_states:
        raise UsageError(f"{store.folder} was captured without states, which heads are trained on")
    found = store.settings.get("fingerprint")
    if found != fingerprint:
        raise UsageError(
            f"{store.folder} holds answers of the base with fingerprint {found}, and this base has "
            f"{fingerprint}; give the file that wrote them"
        )
    chosen, held_out = split(store, settings.held_out, settings.tokens)
    counts = count_tokens(store, chosen)
    vocabulary = draft_vocabulary(counts, settings.draft_vocab, end_ids)
    everywhere = count_tokens(store, np.arange(len(store))) + counts
    tables = tables_of(np.flatnonzero(everywhere).astype(np.int32), vocabulary)
    listed = 0 if len(vocabulary) == tables.vocabulary else len(vocabulary)
    definition = settings.definition(tables.dim, tables.eps, listed)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CapacityError(f"{folder} cannot be made: {error.strerror or error}") from error
    trainer = Trainer(store, chosen, held_out, tables, definition, settings, folder, workers)
    accuracy = trainer.run(tell)
    tensors: dict[str, NDArray[Any]] = dict(trainer.network.arrays())
    if listed:
        tensors[DRAFT_VOCAB] = vocabulary
    weights = HeadWeights(
        definition,
        tensors,
        fingerprint,
        _provenance(store, chosen, settings, trainer, accuracy),
    )
    if workers.first:
        weights.save(folder / WEIGHTS)
        title = f"{store.settings.get('base', 'heads')}, {definition.summary}"
        draw(folder, read_log(folder), title)
    workers.wait()
    return weights, accuracy


def _command(arguments: Sequence[str]) -> list[str]:
    """A command line without the folders of this machine."""
    program = Path(arguments[0])
    name = program.parent.name if program.name == "__main__.py" else program.name
    return [name, *map(_without_folder, arguments[1:])]


def _without_folder(given: str) -> str:
    is_path = os.path.exists(given)  # noqa: PTH110 - Path's raises for what is too long for one
    return (Path(given).name or given) if is_path else given


def _provenance(
    store: AnswerStore,
    chosen: NDArray[np.int64],
    settings: TrainSettings,
    trainer: Trainer,
    accuracy: Accuracy,
) -> dict[str, Any]:
    """What made the weights; no times and no places, so equal runs leave equal files."""
    return {
        "command": _command(sys.argv),
        "versions": {
            "divine": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "base": store.settings.get("base"),
        "data": {
            "answers": len(chosen),
            "tokens": int(store.lengths[chosen].sum()),
            "capture": {key: store.settings.get(key) for key in ("source", "temperature", "seed")},
        },
        "settings": {name: getattr(settings, name) for name in settings.__annotations__},
        "steps": trainer.steps,
        "held_out": {
            "acceptance": [round(value, 4) for value in accuracy.acceptance],
            "tokens_per_pass": round(accuracy.tokens_per_pass, 4),
        },
    }
