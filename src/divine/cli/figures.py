"""The lines of figures after an answer, and the same as data; counted by the engine, not here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from divine.api import Completion, DraftCounts, Statistics

COLUMNS = 80


def figures(
    completion: Completion,
    load_seconds: float | None,
    *,
    drawn_seed: bool,
    max_tokens: int | None = None,
) -> str:
    """Tokens and speed, prompt and speed, load time, and the seed if it was drawn.

    One or two more lines say what came of drafts, if there were any. `max_tokens`: what was asked
    for, to tell it from a full context where an answer is cut.
    """
    statistics = completion.statistics
    parts = [
        f"{_tokens(len(completion.tokens))}{_rate(statistics.decode_tok_s)}",
        f"prompt {_tokens(completion.prompt_tokens)}{_rate(statistics.prefill_tok_s)}",
    ]
    if load_seconds is not None:
        parts.append(f"loaded in {load_seconds:.2f} s")
    if drawn_seed:
        parts.append(f"seed {completion.seed}")
    if completion.finish_reason == "length":
        asked = max_tokens is not None and len(completion.tokens) >= max_tokens
        parts.append(f"cut at -n {max_tokens}" if asked else "cut: the context is full")
    return "\n".join([_line(parts), *_drafting(statistics)])


def _line(parts: list[str]) -> str:
    return "[" + " | ".join(parts) + "]"


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def _rate(tok_s: float | None) -> str:
    return f", {tok_s:.1f} tok/s" if tok_s else ""


def _drafting(statistics: Statistics) -> list[str]:
    """Passes, speed-up, and accepted/judged by drafter and depth; [] if nobody was to draft."""
    if not statistics.drafts or not statistics.tokens_per_pass:
        return []
    accepted = _accepted(statistics.drafts)
    parts = [f"{statistics.passes} passes, {statistics.tokens_per_pass:.2f} tokens each"]
    if not accepted:
        return [_line([*parts, "nothing drafted: it would not have paid"])]
    if statistics.speedup:
        parts.append(f"about {statistics.speedup:.1f}x plain (estimate)")
    idle = [name for name in statistics.drafts if name not in accepted]
    rest = [f"not used: {', '.join(idle)}"] if idle else []
    most = max(map(len, accepted.values()))
    line = _line([*parts, *_shares(accepted, most), *rest])
    if len(line) <= COLUMNS:
        return [line]
    lines = (_line([*_shares(accepted, depth), *rest]) for depth in range(most, 0, -1))
    shortest = _line([*_shares(accepted, 1), *rest])
    return [_line(parts), next((line for line in lines if len(line) <= COLUMNS), shortest)]


def _shares(accepted: Mapping[str, list[str]], depth: int) -> list[str]:
    """As text, down to `depth` at most."""
    return [
        " ".join([name, *shares[:depth], *([".."] if len(shares) > depth else [])])
        for name, shares in accepted.items()
    ]


def _accepted(drafts: Mapping[str, DraftCounts]) -> dict[str, list[str]]:
    """Drafter -> "accepted/judged" at depth 1, 2, ... as far as its drafts were ever reached."""
    shares = {
        name: [
            f"{yes}/{yes + no}"
            for yes, no in zip(counts.accepted, counts.rejected, strict=True)
            if yes + no
        ]
        for name, counts in drafts.items()
    }
    return {name: of_drafter for name, of_drafter in shares.items() if of_drafter}


def as_data(completion: Completion, load_seconds: float) -> dict[str, Any]:
    """What --json prints."""
    statistics = completion.statistics
    return {
        "text": completion.text,
        "tokens": list(completion.tokens),
        "drafted_by": completion.drafted_by,
        "prompt_tokens": completion.prompt_tokens,
        "completion_tokens": len(completion.tokens),
        "finish_reason": completion.finish_reason,
        "seed": completion.seed,
        "load_s": load_seconds,
        "statistics": dataclasses.asdict(statistics) | {"speedup": statistics.speedup},
    }
