"""Trainer: the loop. Steps, schedule, checkpoints, measurements; the same weights however often it
was stopped and taken up again.

Everything a step depends on is a function of settings, data and the step's number, and all that
carries over is in the checkpoint. Knows no base model and no command line.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from divine.errors import NumericError
from divine.heads import Definition
from divine.tune import checkpoint
from divine.tune.answers import AnswerStore
from divine.tune.architectures import batches_of, network_of
from divine.tune.network import DraftNetwork
from divine.tune.options import TrainSettings
from divine.tune.record import Record
from divine.tune.sameness import check_same
from divine.tune.step import Accuracy, DeviceTables, measure, prepare, weighted_loss
from divine.tune.tables import Tables
from divine.tune.workers import Workers

_MEASURED_POSITIONS = 4096
_SAVE_SECONDS = 60.0
_TIMED_STEPS = 3  # before the length of a run in minutes is settled, or more:
_TIMED_SHARE = 0.01  # of the minutes
_LAST_RATE = 0.02  # of the highest learning rate, at the end


@dataclass
class Progress:
    """How far a run has come."""

    step: int
    steps: int
    loss: float
    positions: int  # looked at in this run, of this process
    seconds: float  # of this run
    accuracy: Accuracy | None  # of the last measurement
    stepping: float = 0.0  # of the seconds, those of steps alone

    @property
    def seconds_left(self) -> float:
        """At the present rate."""
        return self.seconds / max(1, self.done) * (self.steps - self.step)

    done: int = 0  # steps of this run


class Trainer:
    """Trains the network of one definition on one store."""

    def __init__(
        self,
        store: AnswerStore,
        chosen: np.ndarray[Any, np.dtype[np.int64]],
        held_out: np.ndarray[Any, np.dtype[np.int64]],
        tables: Tables,
        definition: Definition,
        settings: TrainSettings,
        folder: Path,
        workers: Workers,
    ) -> None:
        """`chosen` and `held_out`: indices of answers to train on and to measure with.

        A checkpoint in `folder` is gone on from; raises UsageError if it is of other settings.
        """
        torch.set_flush_denormal(True)  # vanishing probabilities would be a hundred times slower
        self.settings, self.folder, self.workers = settings, folder, workers
        self.definition = definition
        self._batches = batches_of(store, chosen, definition, settings)
        self._measured = []
        if len(held_out):
            some = batches_of(store, held_out, definition, settings)
            self._measured = some.all(_MEASURED_POSITIONS)
        self._tables = DeviceTables(tables, workers.device, workers.half)
        self.network = network_of(definition, tables.final_gain)
        self.network.initialize(settings.seed, tables.final_gain, _typical(store))
        self.network.to(workers.device)
        self._optimizer = _optimizer(self.network, settings)
        self.step = 0
        self.steps = 0
        self.seconds = 0.0  # of all runs
        self._identity = {"definition": definition.to_dict(), **_lasting(settings)}
        self._resume()

    @property
    def positions(self) -> int:
        """Positions of answers in an epoch."""
        return self._batches.positions

    def run(self, tell: Callable[[Progress], None] | None = None) -> Accuracy:
        """Train to the end; what held-out answers say of the heads.

        Raises NumericError naming the step whose loss is no number; the last checkpoint is kept.
        """
        if not self.steps:
            self.steps = self._planned()
        record = Record(self.folder, self.step) if self.workers.first else None
        progress = Progress(self.step, self.steps, math.nan, 0, 0.0, None)
        began = saved = time.perf_counter()
        every = max(1, self.steps // self.settings.measurements)
        accuracy = Accuracy.none(self.definition.depths)
        try:
            while self.step < self.steps:
                before = time.perf_counter()
                progress.loss, positions = self._one_step()
                progress.stepping += time.perf_counter() - before
                progress.step, progress.done = self.step, progress.done + 1
                progress.positions += positions
                last = self.step == self.steps
                if self.step % every == 0 or last:
                    accuracy = progress.accuracy = self._measure(record, progress.loss)
                now = time.perf_counter()
                progress.seconds = now - began
                if last or now - saved >= _SAVE_SECONDS:
                    self.save()
                    saved = time.perf_counter()
                if tell is not None and self.workers.first:
                    tell(progress)
            if not progress.done:  # it had ended already
                accuracy = measure(self.network, self._measured, self._tables)
        except KeyboardInterrupt:
            self.save()
            raise
        finally:
            self.seconds += time.perf_counter() - began
            if record is not None:
                record.close()
        return accuracy

    def save(self) -> None:
        """Write a checkpoint; see checkpoint.save()."""
        if self.workers.first:
            checkpoint.save(
                self.folder,
                {
                    "identity": self._identity,
                    "step": self.step,
                    "steps": self.steps,
                    "network": self.network.state_dict(),
                    "optimizer": self._optimizer.state_dict(),
                },
            )

    def _resume(self) -> None:
        state = checkpoint.load(self.folder)
        if state is None:
            return
        check_same(self.folder / checkpoint.NAME, state.get("identity", {}), self._identity)
        self.network.load_state_dict(state["network"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.step, self.steps = state["step"], state["steps"]

    def _planned(self) -> int:
        """How many steps the run has; in minutes: by the time that a few steps take on a copy."""
        settings = self.settings
        if settings.steps is not None:
            return settings.steps
        if settings.minutes is None:
            return max(1, round(settings.epochs * self._batches.steps_per_epoch))
        kept = copy.deepcopy(self.network.state_dict())
        self.steps = 1 << 30
        self._one_step()  # the first is slower
        began = time.perf_counter()
        enough = began + 60 * settings.minutes * _TIMED_SHARE
        steps = 0
        while steps < _TIMED_STEPS or time.perf_counter() < enough:
            self._one_step()
            steps += 1
        seconds = torch.tensor((time.perf_counter() - began) / steps)
        seconds = self.workers.sum(seconds.to(self.workers.device)) / self.workers.ranks
        self.step = 0
        self.network.load_state_dict(kept)
        self._optimizer = _optimizer(self.network, settings)
        return max(1, int(60 * settings.minutes / float(seconds)))

    def _one_step(self) -> tuple[float, int]:
        """Train on the next batch; its loss, and the positions this process has looked at."""
        workers, settings = self.workers, self.settings
        batch = self._batches.batch(self.step, workers.rank, workers.ranks)
        prepared = prepare(batch, self._tables, self.definition.depths)
        self.network.train()
        self._optimizer.zero_grad()
        with self._precision():
            total, weight = weighted_loss(self.network, prepared, self._tables, settings.loss)
        shares = workers.sum(torch.stack([total.detach(), weight]))
        whole = float(shares[1])
        if whole > 0:
            (total / whole).backward()  # type: ignore[no-untyped-call]
            workers.sum_gradients(self.network.parameters())
        loss = float(shares[0]) / whole if whole else 0.0
        norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), settings.clip)
        if not math.isfinite(loss) or not torch.isfinite(norm):
            raise NumericError(
                f"the loss of step {self.step + 1} is {loss}, its gradient {float(norm)}; training "
                f"has stopped and {self.folder / checkpoint.NAME} keeps the last good weights; "
                "a lower --rate may help"
            )
        factor = rate_at(self.step, self.steps, settings.warmup)
        for group in self._optimizer.param_groups:
            group["lr"] = group["highest"] * factor
        if whole > 0:
            self._optimizer.step()
        self.step += 1
        return loss, int(prepared.there[0].sum())

    def _precision(self) -> AbstractContextManager[Any]:
        half = self.workers.half
        return torch.autocast(self.workers.device.type, half, enabled=half is not None)

    def _measure(self, record: Record | None, loss: float) -> Accuracy:
        self.network.eval()
        with self._precision():
            accuracy = measure(self.network, self._measured, self._tables)
            held_out = self._held_out_loss()
        if record is not None:
            record.add({
                "step": self.step,
                "loss": loss,
                "held_out_loss": held_out,
                "accuracy": accuracy.by_depth,
                "acceptance": accuracy.acceptance,
                "tokens_per_pass": accuracy.tokens_per_pass,
            })  # fmt: skip
        return accuracy

    @torch.no_grad()
    def _held_out_loss(self) -> float:
        total, weights = 0.0, 0.0
        for batch in self._measured:
            prepared = prepare(batch, self._tables, self.definition.depths)
            loss, weight = weighted_loss(self.network, prepared, self._tables, self.settings.loss)
            total += float(loss)
            weights += float(weight)
        return total / weights if weights else 0.0


def rate_at(step: int, steps: int, warmup: int) -> float:
    """The learning rate of a step, from 0, as a share of the highest: warm-up, then a cosine."""
    warm = min(warmup, steps // 2)
    if step < warm:
        return (step + 1) / warm
    done = (step - warm) / max(1, steps - warm)
    return _LAST_RATE + (1 - _LAST_RATE) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


def _optimizer(network: DraftNetwork, settings: TrainSettings) -> torch.optim.Optimizer:
    """AdamW: matrices decay, vectors do not, gains learn half as fast."""
    matrices, vectors, gains = [], [], []
    for name, parameter in network.named_parameters():
        if parameter.dim() > 1:
            matrices.append(parameter)
        elif name.endswith("norm/weight"):
            gains.append(parameter)
        else:
            vectors.append(parameter)
    groups = [
        {"params": matrices, "highest": settings.rate, "weight_decay": settings.decay},
        {"params": vectors, "highest": settings.rate, "weight_decay": 0.0},
        {"params": gains, "highest": settings.rate / 2, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [g for g in groups if g["params"]], lr=settings.rate, betas=(0.9, 0.95)
    )


def _lasting(settings: TrainSettings) -> dict[str, Any]:
    """The settings that a checkpoint's continuation must share."""
    names = [
        "loss", "gamma", "length", "stretches", "steps", "minutes", "epochs", "rate", "warmup",
        "decay", "clip", "seed", "held_out",
    ]  # fmt: skip
    return {name: getattr(settings, name) for name in names}


def _typical(store: AnswerStore) -> float:
    """Root mean square of hidden states, of the first answer that has some."""
    for answer in store:
        if len(answer.states):
            return float(np.sqrt(np.square(answer.states.astype(np.float64)).mean()))
    return 1.0
