"""Architecture "qwen3": Qwen3 dense.

Qwen2 without biases, with queries and keys normed per head before the rotary embedding. The size of
a head is its own key and usually not the width divided by the number of heads.
"""

from __future__ import annotations

from divine.models.blocks import plain_decoder
from divine.models.config import ModelConfig
from divine.models.weights import Weights
from divine.program import Program


def build(config: ModelConfig, weights: Weights) -> Program:
    """The program of a qwen3 file; raises FormatError, UnsupportedError."""
    return plain_decoder(config, weights, rope_style="half", head_norms=True)
