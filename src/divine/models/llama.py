"""Architecture "llama": Llama 1 to 3, Mistral, SmolLM, TinyLlama.

Rotary pairs are neighbours (2i, 2i+1): converters permute the rows of the query and key matrices
for it. Llama 3.1 and later carry their long-context scaling as a tensor of per-pair factors. A
sliding window in the metadata (Mistral 7B v0.1) is not used, as elsewhere. Mixtures of experts
(Mixtral) are refused.
"""

from __future__ import annotations

from divine.models.blocks import plain_decoder
from divine.models.config import ModelConfig
from divine.models.weights import Weights
from divine.program import Program


def build(config: ModelConfig, weights: Weights) -> Program:
    """The program of a llama file; raises FormatError, UnsupportedError."""
    return plain_decoder(
        config, weights, rope_style="interleaved", rope_factors="rope_freqs.weight"
    )
