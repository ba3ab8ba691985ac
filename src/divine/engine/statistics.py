"""What one sequence cost: tokens, passes and the time of the steps it took part in.

A step's time counts for every sequence in it, as each of them waited for it; time between steps
(whoever reads the answer) counts for none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from divine.drafting import DraftCounts


@dataclass(frozen=True)
class Statistics:
    """Figures of one sequence; rates are None where nothing was measured."""

    tokens: int  # of the answer
    passes: int  # after the first token: one of them was chosen by the pass that ended the prompt
    prompt_tokens: int
    reused_tokens: int  # of the prompt, whose state came from an earlier sequence
    prefill_seconds: float  # steps up to the first token
    decode_seconds: float  # steps after it
    native_seconds: float  # of both, inside the backend's own code
    prefill_tok_s: float | None  # prompt tokens that were computed, per second
    decode_tok_s: float | None  # choices after the first, per second
    tokens_per_pass: float | None
    cut: int = 0  # tokens chosen in the last pass beyond what ended the answer
    draft_seconds: float = 0.0  # of decode_seconds: making the drafts
    verify_seconds: float = 0.0  # of decode_seconds: inside the backend's own code
    plain_seconds: float | None = None  # what plain decoding would have taken: an estimate
    drafts: Mapping[str, DraftCounts] = field(default_factory=dict)  # by drafter
    # Of all drafters: what several had proposed counts once.
    nodes: DraftCounts = field(default_factory=DraftCounts)

    @property
    def speedup(self) -> float | None:
        """Against plain decoding, by the estimate."""
        return _rate(self.plain_seconds or 0.0, self.decode_seconds)


class Meter:
    """Adds up the figures of one sequence while it runs."""

    __slots__ = (
        "choices",
        "cut",
        "decode_seconds",
        "draft_seconds",
        "native_seconds",
        "passes",
        "plain_seconds",
        "prefill_seconds",
        "reused_tokens",
        "verify_seconds",
    )

    def __init__(self) -> None:
        self.reused_tokens = 0
        self.passes = 0  # decoding passes
        self.choices = 0  # tokens that those chose, an end token included
        self.cut = 0
        self.prefill_seconds = 0.0
        self.decode_seconds = 0.0
        self.native_seconds = 0.0
        self.draft_seconds = 0.0
        self.verify_seconds = 0.0
        self.plain_seconds = 0.0

    def prefill(self, seconds: float, native: float) -> None:
        """A step up to the first token."""
        self.prefill_seconds += seconds
        self.native_seconds += native

    def decode(self, seconds: float, native: float, choices: int, plain: float) -> None:
        """A step after the first token; `plain`: the estimate for as many plain steps."""
        self.passes += 1
        self.choices += choices
        self.decode_seconds += seconds
        self.native_seconds += native
        self.verify_seconds += native
        self.plain_seconds += plain

    def report(self, tokens: int, prompt_tokens: int) -> Statistics:
        """The figures as they are now, but for what became of drafts."""
        computed = prompt_tokens - self.reused_tokens
        return Statistics(
            tokens=tokens,
            passes=self.passes,
            prompt_tokens=prompt_tokens,
            reused_tokens=self.reused_tokens,
            prefill_seconds=self.prefill_seconds,
            decode_seconds=self.decode_seconds,
            native_seconds=self.native_seconds,
            prefill_tok_s=_rate(computed, self.prefill_seconds),
            decode_tok_s=_rate(self.choices, self.decode_seconds),
            tokens_per_pass=_rate(self.choices, self.passes),
            cut=self.cut,
            draft_seconds=self.draft_seconds,
            verify_seconds=self.verify_seconds,
            plain_seconds=self.plain_seconds or None,
        )


def _rate(amount: float, per: float) -> float | None:
    return amount / per if amount > 0 and per > 0 else None
