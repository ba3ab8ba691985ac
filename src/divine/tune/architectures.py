"""What training chooses by the architecture of a definition: the network, the shape of batches."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from divine.errors import UnsupportedError
from divine.heads import Definition, LayerDefinition
from divine.tune.answers import AnswerStore
from divine.tune.batches import Batches
from divine.tune.layer_network import LayerNetwork
from divine.tune.network import DraftNetwork, HeadsNetwork
from divine.tune.options import TrainSettings
from divine.tune.pieces import Pieces


def network_of(definition: Definition, final_gain: NDArray[np.float32]) -> DraftNetwork:
    """The network of a definition, its weights empty; see DraftNetwork."""
    if isinstance(definition, LayerDefinition):
        return LayerNetwork(definition, final_gain)
    return HeadsNetwork(definition, final_gain)


def batches_of(
    store: AnswerStore,
    chosen: NDArray[np.int64],
    definition: Definition,
    settings: TrainSettings,
) -> Batches | Pieces:
    """Stretches for heads, which see a state and nothing before it; pieces for a layer.

    Raises UnsupportedError for a layer on other states than answers are captured with.
    """
    if isinstance(definition, LayerDefinition):
        if definition.fused:
            raise UnsupportedError(
                f"the layer is to see the base's states {', '.join(definition.taps)}; answers are "
                "captured with the final one alone"
            )
        positions = settings.length * settings.stretches
        return Pieces(
            store,
            chosen,
            depth=definition.depths,
            longest=definition.window,
            positions=positions,
            seed=settings.seed,
        )
    return Batches(
        store,
        chosen,
        depth=definition.depths,
        length=settings.length,
        stretches=settings.stretches,
        seed=settings.seed,
    )
