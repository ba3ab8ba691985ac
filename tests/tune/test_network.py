"""The network in torch computes what the heads' specification says; the loss is cross-entropy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from divine.heads import HeadsDefinition
from divine.heads.reference import level, start_state
from divine.tune.losses import cross_entropy, expectations
from divine.tune.network import HeadsNetwork

DIM, RANK = 24, 10
CLOSE = 1e-5  # float32 against float64, relative to values of about 1
FORMS: dict[str, HeadsDefinition] = {
    "best": HeadsDefinition.best(3, RANK, DIM),
    "paper": HeadsDefinition.paper(3, RANK, DIM),
    "published": HeadsDefinition.published(3, RANK, DIM),
    "shared": HeadsDefinition.best(3, RANK, DIM, shared=True, activation="gelu", carry="gained"),
    "bare": HeadsDefinition.best(
        2, RANK, DIM, bias=False, residual_weight=False, embedding_norm=False, carry="sum",
        start="hidden",
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_level_is_that_of_the_specification(form: str) -> None:
    definition, random = FORMS[form], np.random.default_rng(3)
    gain = random.uniform(0.2, 2.0, DIM).astype(np.float32)
    gain[4] = 0.0
    tensors = {
        name: (random.standard_normal(shape) * shape[-1] ** -0.5).astype(np.float32)
        for name, shape in definition.tensor_shapes().items()
    }
    network = HeadsNetwork(definition, gain)
    network.load(tensors)
    hidden = random.standard_normal((2, 5, DIM)).astype(np.float32)
    embedding = random.standard_normal((2, 9, DIM)).astype(np.float32)
    outputs = network(torch.from_numpy(hidden), network.embed(torch.from_numpy(embedding)))
    state = start_state(definition, hidden.reshape(-1, DIM), gain)
    for depth in range(1, definition.num_heads + 1):
        taken = embedding[:, depth - 1 : depth + 4].reshape(-1, DIM)
        state, expected = level(definition, tensors, depth, state, taken)
        found = outputs[depth - 1].detach().numpy().reshape(-1, DIM)
        assert np.abs(found - expected).max() <= CLOSE * max(1.0, np.abs(expected).max())
    given = network.arrays()
    assert all(np.array_equal(given[name], tensors[name]) for name in tensors)


def test_heads_begin_by_seed_as_the_state_itself() -> None:
    definition, gain = FORMS["best"], np.full(DIM, 2.0, np.float32)
    first, second, other = (HeadsNetwork(definition, gain) for _ in range(3))
    for network, seed in ((first, 1), (second, 1), (other, 2)):
        network.initialize(seed, gain, 1.0)
    assert all(
        torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True)
    )
    assert not torch.equal(first.tensors["divine/mtp/0/proj_down/weight"],
                           other.tensors["divine/mtp/0/proj_down/weight"])  # fmt: skip
    hidden = torch.randn(1, 3, DIM)
    outputs = first(hidden, torch.randn(1, 6, DIM))
    direction = functional.cosine_similarity(outputs[0], hidden, dim=-1)
    assert torch.allclose(direction, torch.ones(1, 3), atol=1e-4)


@pytest.mark.parametrize("hard", [1.0, 0.0, 0.5])
@pytest.mark.parametrize("piece", [1, 50, 10_000])
def test_the_loss_and_its_gradient_are_those_of_autograd(
    hard: float, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("divine.tune.losses._PIECE", piece)
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Any:
        return torch.randn(shape, generator=generator, dtype=torch.float64).float()

    outputs, matrix, bias = random(11, DIM), random(17, DIM), random(17)
    labels = torch.randint(0, 17, (11,), generator=generator)
    weights = random(11).abs()
    hidden = random(6, DIM)
    rows = torch.randint(0, 6, (11,), generator=generator)
    soft = expectations(hidden, matrix, bias)
    shares = torch.softmax(hidden @ matrix.T + bias, dim=-1)
    mine, theirs = (outputs.clone().requires_grad_() for _ in range(2))
    loss = cross_entropy(mine, matrix, bias, labels, weights, hard=hard, soft=soft, soft_rows=rows)
    target = hard * functional.one_hot(labels, 17) + (1 - hard) * shares[rows]
    expected = -(weights * (target * torch.log_softmax(theirs @ matrix.T + bias, -1)).sum(-1)).sum()
    (loss * 0.7).backward()
    (expected * 0.7).backward()
    assert mine.grad is not None
    assert theirs.grad is not None
    assert torch.allclose(loss, expected, rtol=1e-5)
    assert torch.allclose(mine.grad, theirs.grad, atol=1e-5)
