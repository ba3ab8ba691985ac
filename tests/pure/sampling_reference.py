"""The sampler's specification in NumPy and Python: slow, obvious, equal to the native bits."""

from __future__ import annotations

import math

import numpy as np

MASK = 0xFFFFFFFF
LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")
LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")


def philox(counter, key):
    """Philox4x32-10 (Salmon et al. 2011), one block."""
    x0, x1, x2, x3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * x0, 0xCD9E8D57 * x2
        x0, x1, x2, x3 = (p1 >> 32) ^ x1 ^ k0, p1 & MASK, (p0 >> 32) ^ x3 ^ k1, p0 & MASK
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return x0, x1, x2, x3


def log(x):
    """The sampler's own logarithm, in the same operations."""
    m, exponent = math.frexp(x)
    if m < float.fromhex("0x1.6a09e667f3bcdp-1"):
        m, exponent = m * 2.0, exponent - 1
    f = m - 1.0
    s = f / (2.0 + f)
    s2 = s * s
    series = 1.0 / 21.0
    for odd in range(19, 0, -2):
        series = series * s2 + 1.0 / odd
    return exponent * LN2_HIGH + (2.0 * s * series + exponent * LN2_LOW)


def gumbel(seed, choice, position, token):
    words = philox((token // 4, position, choice, 0), (seed & MASK, seed >> 32))
    return -log(-log((words[token % 4] + 0.5) * 2.0**-32))


def weights(logits, largest, inverse_temperature):
    """Integers: round(2^40 exp(z)), z in float32."""
    f = np.float32
    with np.errstate(over="ignore"):
        z = (logits - f(largest)) * f(inverse_temperature)
    z = np.where(z > f(-30), z, f(-30))
    k = (z * f(float.fromhex("0x1.715476p+0")) + f(1.5 * 2**23)) - f(1.5 * 2**23)
    r = (z - k * f(float.fromhex("0x1.63p-1"))) - k * f(float.fromhex("-0x1.bd0106p-13"))
    p = r * (f(1) / f(720)) + f(1) / f(120)
    for coefficient in (f(1) / f(24), f(1) / f(6), f(0.5), f(1), f(1)):
        p = p * r + coefficient
    exact = np.ldexp(p.astype(np.float64), k.astype(np.int64) + 40)
    return [int(value) for value in np.rint(exact)]


def candidates(logits, temperature, top_k, top_p, min_p):
    """Kept tokens with their z, best first."""
    largest = float(np.max(logits))
    inverse = 1.0 / temperature
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if top_k > 0:
        order = order[:top_k]
    if top_p < 1:
        weight = weights(logits[order], largest, inverse)
        target, mass, kept = top_p * float(sum(weight)), 0, 0
        for value in weight:
            mass, kept = mass + value, kept + 1
            if float(mass) >= target:
                break
        order = order[:kept]
    z = {i: (float(logits[i]) - largest) * inverse for i in order}
    least = log(min_p) if min_p > 0 else -math.inf
    return {i: value for i, value in z.items() if value >= least and value > -math.inf}


def sample(logits, temperature, top_k, top_p, min_p, seed, choice, position):
    if not np.all(logits <= np.finfo(np.float32).max) or np.max(logits) == -np.inf:
        return -1
    if temperature == 0:
        return int(np.argmax(logits))
    return rank(logits, temperature, top_k, top_p, min_p, seed, choice, position, 1)[0][0]


def rank(logits, temperature, top_k, top_p, min_p, seed, choice, position, k):
    """The k best tokens with their scores, in the order in which sample() would take them."""
    if temperature == 0:
        scores = candidates(logits, 1.0, k, 1.0, 0.0)
        # By the logits themselves: scores are rounded, and may be equal where logits are not.
        order = sorted(scores, key=lambda i: (-float(logits[i]), i))
    else:
        z = candidates(logits, temperature, top_k, top_p, min_p)
        scores = {i: value + gumbel(seed, choice, position, i) for i, value in z.items()}
        order = sorted(scores, key=lambda i: (-scores[i], i))
    return [(i, scores[i]) for i in order[:k]]


def distribution(logits, temperature, top_k, top_p, min_p):
    """The probability of each token, as integers over their sum."""
    if temperature == 0:
        return [float(i == int(np.argmax(logits))) for i in range(len(logits))]
    kept = candidates(logits, temperature, top_k, top_p, min_p)
    weight = weights(logits, float(np.max(logits)), 1.0 / temperature)
    total = sum(weight[i] for i in kept)
    return [weight[i] / total if i in kept else 0.0 for i in range(len(logits))]
