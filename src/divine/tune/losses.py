"""Losses: cross-entropy over a draft vocabulary, through a frozen output matrix.

The matrix is not trained, so the gradient of its inputs is known as soon as the logits are: both
are computed piece by piece in the forward pass, and only a piece of logits ever lies in memory.
Knows tensors; nothing of heads or data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

Loss: TypeAlias = Literal["hard", "soft", "mixed"]
LOSSES: tuple[Loss, ...] = ("hard", "soft", "mixed")
HARD_SHARE: dict[Loss, float] = {"hard": 1.0, "soft": 0.0, "mixed": 0.5}
_PIECE = 1 << 22  # logits at a time: more would leave the cache, fewer repeat the packing


class _LogPartition(torch.autograd.Function):
    """sum_i weight_i * log-sum-exp(W o_i + b); gradients are weight_i * E[W] under the softmax."""

    @staticmethod
    def forward(
        ctx: Any, outputs: Tensor, matrix: Tensor, bias: Tensor | None, weights: Tensor
    ) -> Tensor:
        total = torch.zeros((), dtype=torch.float32, device=outputs.device)
        gradient = torch.empty_like(outputs)
        for part, logits in _pieces(outputs, matrix, bias):
            largest, shares, sums = _exponentials(logits)
            weight = weights[part, None]
            total += (weight * (largest + sums.log())).sum()
            mean = (shares.to(matrix.dtype) @ matrix).to(gradient.dtype)
            gradient[part] = mean.mul_((weight / sums).to(gradient.dtype))
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (gradient,) = ctx.saved_tensors
        return gradient * grads[0].to(gradient.dtype), None, None, None


@dataclass(frozen=True)
class Expectation:
    """What a distribution over the draft vocabulary makes of the output matrix W and its bias b.

    That is all that a cross-entropy needs to know of its target: for logits W o + b and a target p
    it is log-sum-exp(W o + b) - (E_p[W] . o + E_p[b]).

    rows    [m, d]: E_p[W]
    biases  [m], or None without a bias: E_p[b]
    """

    rows: Tensor
    biases: Tensor | None


def expectations(hidden: Tensor, matrix: Tensor, bias: Tensor | None) -> Expectation:
    """Those under the base's own distributions, of hidden states [m, d]."""
    rows = torch.empty_like(hidden)
    biases = None if bias is None else hidden.new_empty(len(hidden), dtype=torch.float32)
    for part, logits in _pieces(hidden, matrix, bias):
        _, shares, sums = _exponentials(logits)
        shares = shares.to(matrix.dtype)
        rows[part] = (shares @ matrix).to(rows.dtype) / sums.to(rows.dtype)
        if bias is not None and biases is not None:
            biases[part] = (shares @ bias).float() / sums[:, 0]
    return Expectation(rows, biases)


def cross_entropy(
    outputs: Tensor,
    matrix: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    weights: Tensor,
    *,
    hard: float = 1.0,
    soft: Expectation | None = None,
    soft_rows: Tensor | None = None,
) -> Tensor:
    """The weighted sum of cross-entropies, float32 scalar; only `outputs` get a gradient.

    outputs [n, d], matrix [s, d], bias [s] or None, labels int64 [n] in 0..s-1, weights [n].
    hard       the share of the one-hot target; the rest is the base's own distribution
    soft       m of those, and soft_rows int64 [n]: which one belongs to each output
    """
    partition: Tensor = _LogPartition.apply(  # type: ignore[no-untyped-call]
        outputs, matrix, bias, weights
    )
    target = matrix[labels].to(outputs.dtype)
    constant = None if bias is None else bias[labels].float()
    if soft is not None and soft_rows is not None:
        target = target.mul_(hard).add_(soft.rows[soft_rows], alpha=1 - hard)
        if constant is not None and soft.biases is not None:
            constant = hard * constant + (1 - hard) * soft.biases[soft_rows]
    expected = (outputs * target).sum(dim=-1, dtype=torch.float32)
    if constant is not None:
        expected = expected + constant
    return partition - (weights * expected).sum()


def _pieces(outputs: Tensor, matrix: Tensor, bias: Tensor | None) -> Iterator[tuple[slice, Tensor]]:
    """Logits of some outputs at a time, float32; the next ones overwrite them."""
    piece = max(1, min(len(outputs), _PIECE // len(matrix)))
    # Used for every piece: new memory would cost more than arithmetic.
    memory = outputs.new_empty((piece, len(matrix)), dtype=matrix.dtype)
    for start in range(0, len(outputs), piece):
        part = slice(start, min(start + piece, len(outputs)))
        inputs = outputs[part].to(matrix.dtype)
        logits = torch.mm(inputs, matrix.T, out=memory[: len(inputs)])
        if bias is not None:
            logits += bias
        yield part, logits.float()  # a copy only if they were not


def _exponentials(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The largest of each row [n, 1], exp(logits - largest) [n, s] in place, their sums [n, 1]."""
    largest = logits.amax(dim=-1, keepdim=True)
    shares = logits.sub_(largest).exp_()
    return largest, shares, shares.sum(dim=-1, keepdim=True)
