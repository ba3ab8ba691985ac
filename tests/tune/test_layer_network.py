"""The layer in torch computes what its specification says, row by row as a draft goes on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional

from divine.heads import LayerDefinition
from divine.heads.layer_reference import RowMemory, layer_row, layer_start
from divine.tune.layer_network import LayerNetwork

DIM = 24
CLOSE = 1e-5  # float32 against float64, relative to values of about 1
FORMS: dict[str, LayerDefinition] = {
    "usual": LayerDefinition.for_width(DIM, depths=3, head_dim=8),
    "grouped": LayerDefinition(DIM, 4, 2, 8, 20, depths=4, eps=1e-3, rope_theta=100.0),
    "narrow": LayerDefinition(DIM, 3, 1, 6, 40, depths=3, window=3),
    "fused": LayerDefinition(DIM, 2, 2, 12, 30, taps=("layer.2.input", "layer.7.input", "final")),
}


def random_tensors(
    definition: LayerDefinition, random: np.random.Generator
) -> dict[str, NDArray[np.float32]]:
    return {
        name: (random.standard_normal(shape) * shape[-1] ** -0.5).astype(np.float32)
        if len(shape) == 2
        else random.uniform(0.5, 1.5, shape).astype(np.float32)
        for name, shape in definition.tensor_shapes().items()
    }


@pytest.mark.parametrize("form", FORMS)
def test_every_row_is_that_of_the_specification(form: str) -> None:
    definition, random = FORMS[form], np.random.default_rng(3)
    gain = random.uniform(0.2, 2.0, DIM).astype(np.float32)
    gain[4] = 0.0
    tensors = random_tensors(definition, random)
    network = LayerNetwork(definition, gain)
    network.load(tensors)
    length, depths = 7, definition.depths
    width = len(definition.taps) * DIM
    hidden = random.standard_normal((2, length, width)).astype(np.float32)
    embedding = random.standard_normal((2, length + depths, DIM)).astype(np.float32)
    outputs = network(torch.from_numpy(hidden), network.embed(torch.from_numpy(embedding)))
    for answer in range(2):
        committed: list[RowMemory] = []
        starts = layer_start(definition, tensors, hidden[answer], gain)
        for place in range(length):
            state, drafted = starts[place], []
            for depth in range(depths):
                state, expected, own = layer_row(
                    definition, tensors, state, embedding[answer, place + depth], place + depth,
                    [*committed, *drafted],
                )  # fmt: skip
                drafted.append(own)
                found = outputs[depth][answer, place].detach().numpy()
                assert np.abs(found - expected).max() <= CLOSE * max(1.0, np.abs(expected).max())
            committed.append(drafted[0])  # what is drafted is forgotten, its first row is real
    given = network.arrays()
    assert all(np.array_equal(given[name], tensors[name]) for name in tensors)


def test_it_begins_by_seed_as_the_state_itself() -> None:
    definition, gain = FORMS["usual"], np.full(DIM, 2.0, np.float32)
    first, second, other = (LayerNetwork(definition, gain) for _ in range(3))
    for network, seed in ((first, 1), (second, 1), (other, 2)):
        network.initialize(seed, gain, 1.0)
    assert all(
        torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True)
    )
    assert not torch.equal(first.tensors["divine/mtp/layer/fuse/weight"],
                           other.tensors["divine/mtp/layer/fuse/weight"])  # fmt: skip
    hidden, tokens = torch.randn(1, 5, DIM), torch.randn(1, 8, DIM)
    direction = functional.cosine_similarity(first(hidden, tokens)[0], hidden, dim=-1)
    assert torch.allclose(direction, torch.ones(1, 5), atol=1e-4)


def test_padding_changes_nothing_before_it() -> None:
    definition, random = FORMS["grouped"], np.random.default_rng(1)
    network = LayerNetwork(definition, np.ones(DIM, np.float32))
    network.load(random_tensors(definition, random))
    generator = torch.Generator().manual_seed(2)
    hidden, embedded = (torch.randn(1, n, DIM, generator=generator) for n in (9, 13))
    short = network(hidden[:, :5], embedded[:, :9])
    for one, whole in zip(short, network(hidden, embedded), strict=True):
        assert torch.allclose(one, whole[:, :5], atol=1e-5)
