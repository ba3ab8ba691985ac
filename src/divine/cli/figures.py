"""The line of figures after an answer, and the same as data; counted by the engine, not here."""

from __future__ import annotations

import dataclasses
from typing import Any

from divine.api import Completion


def figures(completion: Completion, load_seconds: float | None, *, drawn_seed: bool) -> str:
    """One line: tokens and speed, prompt and speed, load time, and the seed if it was drawn."""
    statistics = completion.statistics
    parts = [
        f"{len(completion.tokens)} tokens{_rate(statistics.decode_tok_s)}",
        f"prompt {completion.prompt_tokens} tokens{_rate(statistics.prefill_tok_s)}",
    ]
    if load_seconds is not None:
        parts.append(f"loaded in {load_seconds:.2f} s")
    if drawn_seed:
        parts.append(f"seed {completion.seed}")
    if completion.finish_reason == "length":
        parts.append("ended at the limit of tokens or context")
    return "[" + " | ".join(parts) + "]"


def _rate(tok_s: float | None) -> str:
    return f", {tok_s:.1f} tok/s" if tok_s else ""


def as_data(completion: Completion, load_seconds: float) -> dict[str, Any]:
    """What --json prints."""
    return {
        "text": completion.text,
        "tokens": list(completion.tokens),
        "prompt_tokens": completion.prompt_tokens,
        "completion_tokens": len(completion.tokens),
        "finish_reason": completion.finish_reason,
        "seed": completion.seed,
        "load_s": load_seconds,
        "statistics": dataclasses.asdict(completion.statistics),
    }
