"""Parameters, logit processors and the shared-noise sampler."""

from divine.sampling.params import PENALTY_RANGE, SamplingParams
from divine.sampling.processors import (
    LogitBias,
    LogitProcessor,
    Penalties,
    TokenConstraint,
)
from divine.sampling.sampler import Histories, Sampler, TokenLogprob, log_probabilities
from divine.sampling.streams import Purpose, stream

__all__ = [
    "PENALTY_RANGE",
    "Histories",
    "LogitBias",
    "LogitProcessor",
    "Penalties",
    "Purpose",
    "Sampler",
    "SamplingParams",
    "TokenConstraint",
    "TokenLogprob",
    "log_probabilities",
    "stream",
]
