"""Random drafting heads for tiny models: no training, no downloads. Nothing here asserts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from divine.gguf import open_gguf
from divine.heads import (
    DRAFT_VOCAB,
    Definition,
    HeadsDefinition,
    HeadWeights,
    LayerDefinition,
)
from divine.heads.packaging import Packaging, heads_content, package
from tiny_models import VOCABULARY

FORMS = {
    "paper": HeadsDefinition.paper(3, 32, 64),
    "best": HeadsDefinition.best(3, 32, 64, draft_vocab=60),
    "shared": HeadsDefinition.best(4, 48, 64, shared=True, activation="gelu", scale=0.7),
    "published": HeadsDefinition.published(2, 16, 64),
    "mixed": HeadsDefinition(
        2, 32, 64, bias=False, embedding_norm=False, carry="sum", draft_vocab=200, eps=1e-3
    ),
}
LAYERS = {
    "layer": LayerDefinition.for_width(64, heads=2, head_dim=32, ffn=96),
    "narrow": LayerDefinition(64, 4, 2, 16, 32, depths=2, window=3, draft_vocab=60),
}


def random_heads(
    definition: Definition, seed: int = 0, vocabulary: int = VOCABULARY, **more: Any
) -> HeadWeights:
    """Heads that change the state by about its own size; `more`: fields of HeadWeights."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, NDArray[Any]] = {}
    for name, shape in definition.tensor_shapes().items():
        if name == DRAFT_VOCAB:
            ids = rng.choice(vocabulary, shape[0], replace=False)
            tensors[name] = np.sort(ids).astype(np.int32)
            continue
        values = rng.standard_normal(shape)
        if len(shape) == 2:
            values /= np.sqrt(shape[1])
        else:
            values = 0.1 * values + (0.0 if name.endswith("bias") else 0.8)
        tensors[name] = values.astype(np.float32)
    return HeadWeights(definition, tensors, **more)


def copying_heads(base: Path, definition: HeadsDefinition) -> HeadWeights:
    """Heads that hand the base's own state on: they guess what came after the token before."""
    weights = random_heads(definition)
    tensors = {
        name: np.zeros_like(data) if "proj" in name else np.ones_like(data)
        for name, data in weights.tensors.items()
    }
    with open_gguf(base) as file:
        gain = file.raw("output_norm.weight").view(np.float32).copy()
    for name in tensors:
        if name.endswith("norm.weight"):
            tensors[name] = gain
    if definition.draft_vocab:
        tensors[DRAFT_VOCAB] = weights.tensors[DRAFT_VOCAB]
    return HeadWeights(definition, tensors)


def pack(base: Path, weights: HeadWeights, path: Path, packaging: Packaging = "appended") -> Path:
    """Export; returns the path."""
    with open_gguf(base) as file:
        package(file, heads_content(weights, "f16"), path, packaging)
    return path
