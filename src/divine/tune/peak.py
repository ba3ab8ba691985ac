"""How fast a step of training is, beside what torch's own matrix product reaches on this machine.

    python -m divine.tune.peak [--dim 576] [--rank 256] [--draft-vocab 8192] [--threads 2]

Times whole steps (batch, heads, loss, gradients, AdamW) on random data of a base's shapes and
counts the multiplications that they cannot do without. Steps and products take turns, and the
share is the median of those of neighbours. For measuring; nothing else imports it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from divine.tune.answers import Answer, AnswerStore, AnswerWriter, Finish
from divine.tune.options import TrainSettings
from divine.tune.tables import Tables
from divine.tune.trainer import Trainer
from divine.tune.workers import Workers

_SIZE = 1536  # of the square matrices that say what a product can reach
_PRODUCTS = 7  # about as long as a step
_ROUNDS = 15
_SPREAD = 3.0  # standard deviation of the logits


def peak(device: torch.device) -> float:
    """Operations per second of large products, the median of some."""
    a, b = (torch.randn(_SIZE, _SIZE, device=device) for _ in range(2))
    seconds = []
    for _ in range(_PRODUCTS):
        began = time.perf_counter()
        (a @ b).sum().item()
        seconds.append(time.perf_counter() - began)
    return 2 * _SIZE**3 / float(np.median(seconds))


def operations(settings: TrainSettings, dim: int, listed: int, states: int) -> float:
    """Of the products of one step: heads and logits, forward and back, and the base's own logits.

    A product with a trained matrix has two in its gradient, one with a frozen matrix a single one.
    """
    positions = settings.length * settings.stretches * settings.num_heads
    heads = 2 * positions * 3 * dim * settings.rank * 3
    logits = 2 * positions * dim * listed * 2
    own = 0 if settings.loss == "hard" else 2 * states * dim * listed
    return float(heads + logits + own)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    for name, default in (("dim", 576), ("rank", 256), ("draft-vocab", 8192), ("threads", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    chosen = parser.parse_args()
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    workers = Workers()
    settings = TrainSettings(rank=chosen.rank, draft_vocab=chosen.draft_vocab, steps=1 << 20)
    with tempfile.TemporaryDirectory() as folder:
        store = _random_store(Path(folder) / "answers", chosen.dim, chosen.draft_vocab)
        trainer = _trainer(store, settings, chosen.dim, Path(folder), workers)
        trainer.steps = 1 << 20
        trainer._one_step()
        peak(workers.device)
        steps, peaks = [], []
        for _ in range(_ROUNDS):
            began = time.perf_counter()
            trainer._one_step()
            steps.append(time.perf_counter() - began)
            peaks.append(peak(workers.device))
    states = (settings.length + settings.num_heads) * settings.stretches
    needed = operations(settings, chosen.dim, chosen.draft_vocab, states)
    step = float(np.median(steps))
    share = float(np.median(needed / np.array(steps) / np.array(peaks)))
    sys.stdout.write(
        f"step {1e3 * step:.0f} ms, {needed / step / 1e9:.1f} of {np.median(peaks) / 1e9:.1f} "
        f"billion operations/s: {100 * share:.0f} % (median of {_ROUNDS} pairs); "
        f"{settings.length * settings.stretches / step:.0f} positions/s\n"
    )


def _random_store(folder: Path, dim: int, vocabulary: int) -> AnswerStore:
    random = np.random.default_rng(0)
    settings = {"dim": dim, "vocabulary": vocabulary, "states": True, "fingerprint": None}
    with AnswerWriter(folder, settings) as writer:
        for number in range(40):
            tokens = random.integers(0, vocabulary, 201).astype(np.int32)
            states = random.standard_normal((200, dim)).astype(np.float16)
            writer.append(Answer(number, tokens, 1, states, Finish.LENGTH))
    return AnswerStore(folder)


def _trainer(
    store: AnswerStore, settings: TrainSettings, dim: int, folder: Path, workers: Workers
) -> Trainer:
    random = np.random.default_rng(1)
    every = np.arange(settings.draft_vocab, dtype=np.int32)
    embedding, output = (
        random.standard_normal((len(every), dim)).astype(np.float32) for _ in range(2)
    )
    output *= _SPREAD / np.sqrt(np.float32(dim))  # logits as wide as those of a real base
    gain = np.ones(dim, np.float32)
    tables = Tables(every, embedding, every, output, None, gain, 1e-5, len(every))
    chosen = np.arange(len(store))
    definition = settings.definition(dim, 1e-5, 0)
    return Trainer(store, chosen, chosen[:0], tables, definition, settings, folder, workers)


if __name__ == "__main__":
    main()
