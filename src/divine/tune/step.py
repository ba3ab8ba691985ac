"""One step of training, and what heads are worth on text that they were not trained on.

Turns batches of NumPy arrays into tensors, masks what may not be learned from, weighs depths. Knows
no files, no schedule and no processes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from divine.tune.batches import NONE, Batch
from divine.tune.losses import HARD_SHARE, Loss, cross_entropy, expectations
from divine.tune.network import DraftNetwork
from divine.tune.tables import Tables


class DeviceTables:
    """The tables of a base on a device."""

    def __init__(self, tables: Tables, device: torch.device, half: torch.dtype | None) -> None:
        self.host = tables
        self.device = device
        self.embedding = torch.from_numpy(tables.embedding).to(device)
        self.output = torch.from_numpy(tables.output).to(device, half or torch.float32)
        self.bias = None
        if tables.bias is not None:
            self.bias = torch.from_numpy(tables.bias).to(device, half or torch.float32)


@dataclass(frozen=True)
class Prepared:
    """A batch on the device.

    hidden    [n, length + M, d]
    embedded  [n, length + M, d]: rows of the base's table for its tokens
    labels    int64 [M, n, length]: rows of the draft vocabulary, -1 where nothing may be learned
    there     bool [M, n, length]: a head has a token before it and one to predict, listed or not
    """

    hidden: Tensor
    embedded: Tensor
    labels: Tensor
    there: Tensor


def prepare(batch: Batch, tables: DeviceTables, depths: int) -> Prepared:
    """A batch as tensors."""
    host, device = tables.host, tables.device
    length = batch.tokens.shape[1] - depths
    labels = host.labels(batch.tokens)
    begun = batch.tokens[:, :length] != NONE
    windows = [slice(depth, depth + length) for depth in range(1, depths + 1)]
    there = np.stack([begun & (batch.tokens[:, window] != NONE) for window in windows])
    chosen = np.stack([labels[:, window] for window in windows])
    chosen[~there] = -1
    places = torch.from_numpy(host.places(batch.tokens)).to(device)
    return Prepared(
        torch.from_numpy(batch.states).to(device),
        tables.embedding[places],
        torch.from_numpy(chosen).to(device),
        torch.from_numpy(there).to(device),
    )


def weighted_loss(
    network: DraftNetwork, prepared: Prepared, tables: DeviceTables, loss: Loss
) -> tuple[Tensor, Tensor]:
    """The sum of gamma^(k-1) x cross-entropy over all heads and positions, and of the weights."""
    definition = network.definition
    depths = definition.depths
    count, span, dim = prepared.hidden.shape
    length = span - depths
    outputs = network(prepared.hidden[:, :length], network.embed(prepared.embedded))
    labels = prepared.labels.reshape(-1)
    used = labels >= 0
    gamma = torch.tensor([definition.discount_gamma**k for k in range(depths)])
    weights = gamma.to(labels.device).repeat_interleave(count * length)[used]
    hard = HARD_SHARE[loss]
    soft = rows = None
    if hard < 1:
        with torch.no_grad():
            soft = expectations(prepared.hidden.reshape(-1, dim), tables.output, tables.bias)
        # The state at position j + k has chosen the token that head k predicts at position j.
        place = torch.arange(count, device=labels.device)[None, :, None] * span
        ahead = torch.arange(1, depths + 1, device=labels.device)[:, None, None]
        steps = torch.arange(length, device=labels.device)[None, None, :]
        rows = (place + ahead + steps).reshape(-1)[used]
    total = cross_entropy(
        torch.stack(outputs).reshape(-1, dim)[used],
        tables.output,
        tables.bias,
        labels[used],
        weights,
        hard=hard,
        soft=soft,
        soft_rows=rows,
    )
    return total, weights.sum()


@dataclass
class Accuracy:
    """How often greedy heads are right, summed over batches.

    right, judged   int64 [M]: at each depth, whatever came before
    reached, kept   int64 [M]: of chains whose earlier guesses were right
    """

    right: NDArray[np.int64]
    judged: NDArray[np.int64]
    reached: NDArray[np.int64]
    kept: NDArray[np.int64]

    @classmethod
    def none(cls, depths: int) -> Accuracy:
        """Nothing judged yet."""
        return cls(*(np.zeros(depths, np.int64) for _ in range(4)))

    @property
    def by_depth(self) -> list[float]:
        """Share of right guesses at each depth."""
        return _share(self.right, self.judged)

    @property
    def acceptance(self) -> list[float]:
        """Share of right guesses at each depth where all before it were right."""
        return _share(self.kept, self.reached)

    @property
    def tokens_per_pass(self) -> float:
        """1 plus the mean length of the right part of a chain, over all positions."""
        return self.chain(len(self.kept))

    def chain(self, length: int) -> float:
        """The same for chains of at most so many guesses."""
        if not self.judged[0]:
            return 1.0
        return 1.0 + float(self.kept[:length].sum()) / float(self.judged[0])

    def __add__(self, other: Accuracy) -> Accuracy:
        """Of both together."""
        return Accuracy(
            self.right + other.right,
            self.judged + other.judged,
            self.reached + other.reached,
            self.kept + other.kept,
        )


@torch.no_grad()
def measure(network: DraftNetwork, batches: list[Batch], tables: DeviceTables) -> Accuracy:
    """Chains of greedy guesses against what the base wrote."""
    depths = network.definition.depths
    accuracy = Accuracy.none(depths)
    for batch in batches:
        prepared = prepare(batch, tables, depths)
        length = prepared.hidden.shape[1] - depths
        outputs = network(prepared.hidden[:, :length], network.embed(prepared.embedded))
        alive = torch.ones_like(prepared.there[0])
        for depth, output in enumerate(outputs):
            logits = output.to(tables.output.dtype) @ tables.output.T
            if tables.bias is not None:
                logits = logits + tables.bias
            there = prepared.there[depth]
            right = there & (logits.argmax(dim=-1) == prepared.labels[depth])
            alive = alive & there
            accuracy.judged[depth] += int(there.sum())
            accuracy.right[depth] += int(right.sum())
            accuracy.reached[depth] += int(alive.sum())
            alive = alive & right
            accuracy.kept[depth] += int(alive.sum())
    return accuracy


def _share(part: NDArray[np.int64], whole: NDArray[np.int64]) -> list[float]:
    return [float(a) / float(b) if b else 0.0 for a, b in zip(part, whole, strict=True)]
