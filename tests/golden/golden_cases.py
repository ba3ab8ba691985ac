"""The golden answers: which questions SmolLM2 is asked, and how answers become hashes.

Every machine must give these answers, token by token: the numbers of a pass do not depend on
instruction set, threads or chunking, nor does the sampler's noise. Kept are hashes, and a little
text for whoever has to find out what changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from divine.api import Model

MODEL = "smollm2"  # of the catalogue
TOKENS = 64
PREFIX = 8  # tokens of an answer that a slow level is asked for
GOLDEN = Path(__file__).with_name(f"{MODEL}.json")

CODE = "def fibonacci(n):\n    if"


@dataclass(frozen=True)
class Case:
    """A prompt and how it is answered."""

    name: str
    prompt: str
    options: dict[str, Any]


CASES = (
    Case("greedy chat", "Name three animals and say what they eat.", {"temperature": 0.0}),
    Case("greedy code", CODE, {"temperature": 0.0, "raw": True}),
    Case("greedy science", "The three laws of motion are", {"temperature": 0.0, "raw": True}),
    Case("sampled chat", "Write a short poem about the sea.", {"temperature": 0.8, "seed": 1}),
    Case(
        "sampled code", CODE,
        {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.02, "seed": 2, "raw": True},
    ),
    Case(
        "sampled story", "Once upon a time",
        {
            "temperature": 1.2, "top_k": 0, "top_p": 1.0, "min_p": 0.05, "seed": 2**64 - 1,
            "repetition_penalty": 1.1, "raw": True,
        },
    ),
)  # fmt: skip


def answer(model: Model, case: Case, tokens: int = TOKENS) -> dict[str, Any]:
    """What is kept of one answer."""
    found = model.generate(case.prompt, max_tokens=tokens, **case.options)
    return {
        "text": found.text[:60],
        "tokens": len(found.tokens),
        "sha256": digest(found.tokens),
        f"first_{PREFIX}_sha256": digest(found.tokens[:PREFIX]),
    }


def digest(tokens: Iterable[int]) -> str:
    """SHA-256 of token ids as little-endian int32."""
    return hashlib.sha256(np.array(list(tokens), "<i4").tobytes()).hexdigest()


def read_golden() -> dict[str, dict[str, Any]]:
    return json.loads(GOLDEN.read_text(encoding="utf-8"))  # type: ignore[no-any-return]
