"""Independent random streams for rejection sampling, addressed by counters.

A stream is a function of seed, choice index, position and purpose, so that an answer can be
repeated. The shared noise of the sampler is another generator and has nothing to do with these.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What a stream is for; different purposes never share numbers."""

    DRAFT = 1  # drawing candidates
    ACCEPT = 2  # accepting them, and drawing what remains


def stream(
    seed: int, choice: int, position: int, purpose: Purpose, number: int = 0
) -> np.random.Generator:
    """Philox4x64 (Salmon et al. 2011) with the purpose in its key and the place in its counter.

    `number` tells streams of one place apart, such as those of branches.
    """
    bits = np.random.Philox(
        key=np.array([seed, purpose], dtype=np.uint64),
        counter=np.array([0, number, choice, position], dtype=np.uint64),
    )
    return np.random.Generator(bits)
