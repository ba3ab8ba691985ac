"""What a user may ask of sampling, with its ranges.

Order: penalties and bias, temperature, top-k, top-p, min-p, then the argmax of logit / temperature
plus the shared noise. This module checks numbers; it knows no logits and no defaults of a file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from divine.checks import check_integer, check_number
from divine.errors import UsageError

_NO_BIAS: Mapping[int, float] = MappingProxyType({})
MAX_SEED = 2**64 - 1
PENALTY_RANGE = (0.01, 100)  # of repetition_penalty


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen; the neutral value of each field is its default.

    temperature         0 to 100; 0 takes the largest logit, whatever else is set
    top_k               keep the k largest logits; 0 or less is off
    top_p               0 to 1: keep the shortest run of best tokens with that much probability, at
                        least one; measured on what top_k kept; 1 is off
    min_p               0 to 1: keep tokens at least that probable relative to the best; 0 is off
    repetition_penalty  0.01 to 100: logits of tokens in prompt or output are divided by it where
                        positive, multiplied where negative (Keskar et al. 2019); 1 is off
    frequency_penalty   -2 to 2, times a token's count in the output, subtracted from its logit
    presence_penalty    -2 to 2, subtracted from the logit of each token in the output
    logit_bias          token id -> -100 to 100, or -infinity to forbid the token
    seed                0 to 2**64 - 1; None is drawn at random when generation begins

    Raises UsageError naming the field, the value and what is allowed.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: _NO_BIAS)
    seed: int | None = None

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, 0, 100)
        if 0 < self.temperature < 1e-6:
            # So small a temperature is greedy; dividing by it could overflow.
            object.__setattr__(self, "temperature", 1e-6)
        check_integer("top_k", self.top_k, None, None)
        check_number("top_p", self.top_p, 0, 1)
        check_number("min_p", self.min_p, 0, 1)
        check_number("repetition_penalty", self.repetition_penalty, *PENALTY_RANGE)
        check_number("frequency_penalty", self.frequency_penalty, -2, 2)
        check_number("presence_penalty", self.presence_penalty, -2, 2)
        if not isinstance(self.logit_bias, Mapping):
            raise UsageError(
                f"logit_bias is {self.logit_bias!r}; allowed is a mapping of token id to bias"
            )
        for token, bias in self.logit_bias.items():
            check_integer("logit_bias token", token, 0, None)
            if bias != -math.inf:
                check_number(f"logit_bias[{token}]", bias, -100, 100)
        if self.seed is not None:
            check_integer("seed", self.seed, 0, MAX_SEED)

    @property
    def greedy(self) -> bool:
        """No noise: the largest processed logit."""
        return self.temperature == 0

    @property
    def penalizes(self) -> bool:
        """Some penalty depends on the tokens so far."""
        return (
            self.repetition_penalty != 1
            or self.frequency_penalty != 0
            or self.presence_penalty != 0
        )
