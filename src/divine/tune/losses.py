"""Losses: cross-entropy over a draft vocabulary, through a frozen output matrix.

The matrix is not trained, so the gradient of its inputs is known as soon as the logits are: both
are computed piece by piece in the forward pass, and only a piece of logits ever lies in memory.
Knows tensors; nothing of heads or data.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

Loss: TypeAlias = Literal["hard", "soft", "mixed"]
LOSSES: tuple[Loss, ...] = ("hard", "soft", "mixed")
HARD_SHARE: dict[Loss, float] = {"hard": 1.0, "soft": 0.0, "mixed": 0.5}
_PIECE = 1 << 22  # logits at a time: more would leave the cache, fewer repeat the packing


class _CrossEntropy(torch.autograd.Function):
    """sum_i weight_i * (log-sum-exp(W o_i + b) - target_i . (W o_i + b)); see cross_entropy()."""

    @staticmethod
    def forward(
        ctx: Any,
        outputs: Tensor,
        matrix: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        weights: Tensor,
        soft: Tensor | None,
        soft_rows: Tensor | None,
        hard: float,
    ) -> Tensor:
        count, size = len(outputs), len(matrix)
        total = torch.zeros((), dtype=torch.float32, device=outputs.device)
        gradient = torch.empty_like(outputs)
        piece = max(1, min(count, _PIECE // size))
        # Used for every piece, and changed in place: new memory would cost more than arithmetic.
        logits_of = outputs.new_empty((piece, size), dtype=matrix.dtype)
        target_of = None if soft is None else soft.new_empty((piece, size))
        for start in range(0, count, piece):
            part = slice(start, min(start + piece, count))
            rows = part.stop - start
            inputs, chosen, weight = (
                outputs[part].to(matrix.dtype),
                labels[part, None],
                weights[part],
            )
            logits = torch.mm(inputs, matrix.T, out=logits_of[:rows])
            if bias is not None:
                logits += bias
            logits = logits.float()  # a copy only if they were not
            expected = hard * logits.gather(1, chosen)[:, 0]
            target = None
            if soft is not None and target_of is not None and soft_rows is not None:
                target = torch.index_select(soft, 0, soft_rows[part], out=target_of[:rows])
                expected += (1 - hard) * torch.bmm(target[:, None], logits[:, :, None])[:, 0, 0]
            largest = logits.amax(dim=-1, keepdim=True)
            shares = logits.sub_(largest).exp_()
            sums = shares.sum(dim=-1, keepdim=True)
            total += (weight * ((largest + sums.log())[:, 0] - expected)).sum()
            # The gradient of the logits: probabilities less the target.
            difference = shares.mul_(weight[:, None] / sums)
            if target is not None:
                difference -= target.mul_((1 - hard) * weight[:, None])
            difference.scatter_add_(1, chosen, -hard * weight[:, None])
            gradient[part] = (difference.to(matrix.dtype) @ matrix).to(gradient.dtype)
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (gradient,) = ctx.saved_tensors
        return (gradient * grads[0].to(gradient.dtype), *[None] * 7)


def cross_entropy(
    outputs: Tensor,
    matrix: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    weights: Tensor,
    *,
    hard: float = 1.0,
    soft: Tensor | None = None,
    soft_rows: Tensor | None = None,
) -> Tensor:
    """The weighted sum of cross-entropies, float32 scalar; only `outputs` get a gradient.

    outputs [n, d], matrix [s, d], bias [s] or None, labels int64 [n] in 0..s-1, weights [n].
    hard       the share of the one-hot target; the rest is the base's own distribution
    soft       [m, s] distributions, and soft_rows int64 [n]: which one belongs to each output
    """
    result: Tensor = _CrossEntropy.apply(  # type: ignore[no-untyped-call]
        outputs, matrix, bias, labels, weights, soft, soft_rows, hard
    )
    return result


def distributions(hidden: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """The base's own over the draft vocabulary, [m, s], of hidden states [m, d]."""
    logits = hidden.to(matrix.dtype) @ matrix.T
    if bias is not None:
        logits = logits + bias
    return torch.softmax(logits.float(), dim=-1)
