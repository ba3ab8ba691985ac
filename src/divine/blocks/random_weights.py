"""Random tensors in every supported format, for tests and for benchmarks of real shapes.

Codes and sub-block scales are uniformly random bytes, so every value they can have occurs; only the
float scales are chosen, such that the decoded values have a mean near 0 and a given size. Speed
does not depend on values, so such tensors time like a real model's.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from divine.blocks.formats import row_nbytes
from divine.blocks.reference import FORMATS, quantize

# Root mean square of what the codes (and sub-block scales) decode to when d is 1, and how many
# times d the minimum must be so that the mean is 0; for uniformly random bytes.
_CODE_SIZE: dict[str, float] = {
    "Q4_0": 4.64,
    "Q4_1": 4.61,
    "Q5_0": 9.25,
    "Q5_1": 9.23,
    "Q8_0": 73.9,
    "Q2_K": 13.1,
    "Q3_K": 43.3,
    "Q4_K": 258.0,
    "Q5_K": 525.0,
    "Q6_K": 1366.0,
    "IQ4_NL": 71.4,
    "IQ4_XS": 1320.0,
}
_CENTRE: dict[str, float] = {"Q4_1": -7.5, "Q5_1": -15.5, "Q2_K": 1.5, "Q4_K": 7.5, "Q5_K": 15.5}


def random_blocks(
    block_type: str, rows: int, cols: int, rng: np.random.Generator, *, rms: float = 0.05
) -> NDArray[np.uint8]:
    """The bytes of a random matrix [rows, cols], uint8 [nbytes], whose values have about that RMS.

    Scales vary by a factor of up to 3 between blocks and are negative now and then, as in real
    files. Raises UnsupportedError for unsupported types and for cols that do not fill blocks.
    """
    nbytes = rows * row_nbytes(block_type, cols)
    if block_type in ("F32", "F16", "BF16"):
        return quantize((rng.standard_normal((rows, cols), np.float32) * rms), block_type)
    raw = np.frombuffer(rng.bytes(nbytes), np.uint8).copy()
    blocks = raw.view(FORMATS[block_type].block)
    if block_type == "MXFP4":
        # Codes have an RMS of 5.2; the scale is 2^(e - 128).
        middle = 128 + round(float(np.log2(rms / 5.2)))
        blocks["e"] = rng.integers(middle - 1, middle + 1, len(blocks), endpoint=True)
        return raw
    scale = rms / _CODE_SIZE[block_type] * rng.uniform(0.5, 1.5, len(blocks))
    centre = _CENTRE.get(block_type)
    if centre is None:
        scale *= rng.choice([-1.0, 1.0], len(blocks))
    else:
        blocks["m" if block_type.endswith("_1") else "dmin"] = scale * centre
    blocks["d"] = scale
    return raw
