"""Architecture "qwen2": Qwen1.5, Qwen2, Qwen2.5 and their Coder and R1-distilled kin, dense.

Llama with biases on queries, keys and values and rotary pairs (i, i + half). Key biases reach
hundreds, so a cache of few bits hurts these models more than others. Small ones share the
embedding table with the head, though a file may carry both in different formats: then both are
used. The table has more rows than there are real tokens.
"""

from __future__ import annotations

from divine.models.blocks import plain_decoder
from divine.models.config import ModelConfig
from divine.models.weights import Weights
from divine.program import Program


def build(config: ModelConfig, weights: Weights) -> Program:
    """The program of a qwen2 file; raises FormatError, UnsupportedError."""
    return plain_decoder(config, weights, rope_style="half")
