"""Drafting heads: their definition, weights, container, and the program that computes them."""

from __future__ import annotations

from divine.heads.definition import DRAFT_VOCAB, HeadsDefinition, tensor_name
from divine.heads.fingerprint import base_fingerprint
from divine.heads.weights import HeadWeights

__all__ = [
    "DRAFT_VOCAB",
    "HeadWeights",
    "HeadsDefinition",
    "base_fingerprint",
    "tensor_name",
]
