"""Rotary frequencies with every scaling already applied, so that backends know one kind only.

Plain, linear (Chen et al. 2023), yarn (Peng et al. 2023) and the per-pair factors of Llama 3, which
come as a tensor. All in float64; nothing here reads files. Longrope is missing: its frequencies
depend on the length of the context.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from divine.models.config import RopeConfig
from divine.program import Rope

# Turns within the original context above which yarn keeps a pair, and below which it stretches it.
BETA_FAST = 32.0
BETA_SLOW = 1.0


def make_rope(
    config: RopeConfig,
    style: Literal["interleaved", "half"],
    factors: Sequence[float] | None = None,
) -> Rope:
    """Frequencies base^(-2i/dims) / factors[i], scaled; factors [dims / 2] or None for ones."""
    pairs = config.dims // 2
    divisors = factors if factors is not None else [1.0] * pairs
    plain = [config.base ** (-2.0 * i / config.dims) / divisors[i] for i in range(pairs)]
    stretched = 1.0 / config.factor
    magnitude = config.magnitude
    if config.scaling == "none":
        frequencies = plain
    elif config.scaling == "linear":
        frequencies = [frequency * stretched for frequency in plain]
    else:
        keep = _yarn_keep(config)
        frequencies = [
            frequency * (stretched * (1.0 - kept) + kept)
            for frequency, kept in zip(plain, keep, strict=True)
        ]
        magnitude *= _yarn_magnitude(config)
    return Rope(style, config.dims, tuple(frequencies), magnitude)


def _yarn_keep(config: RopeConfig) -> list[float]:
    """For each pair, how much of its own frequency it keeps: 1 for fast pairs, 0 for slow ones."""

    def pair_with_turns(turns: float) -> float:
        ratio = config.original_context / (2.0 * math.pi * turns)
        return config.dims * math.log(ratio) / (2.0 * math.log(config.base))

    low = max(0, math.floor(pair_with_turns(BETA_FAST)))
    high = min(config.dims - 1, math.ceil(pair_with_turns(BETA_SLOW)))
    span = max(0.001, high - low)
    return [1.0 - min(1.0, max(0.0, (i - low) / span)) for i in range(config.dims // 2)]


def _yarn_magnitude(config: RopeConfig) -> float:
    def growth(multiplier: float) -> float:
        return 1.0 + 0.1 * multiplier * math.log(config.factor)

    if config.yarn_log_multiplier is None:
        return growth(1.0)
    return growth(1.0) / growth(config.yarn_log_multiplier)
