"""The usage blocks: OpenAI's, Anthropic's, and Divine's own beside them.

Counts come from the engine's statistics; nothing is counted here. Several answers to one prompt
count the prompt once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from divine.api import Completion, DraftCounts


def openai_usage(prompts: Sequence[Sequence[Completion]]) -> dict[str, Any]:
    """`usage` of answers grouped by their prompt."""
    answers = [completion for group in prompts for completion in group]
    prompt = sum(group[0].prompt_tokens for group in prompts)
    completion = sum(len(answer.tokens) for answer in answers)
    guessed = [
        answer.statistics.drafts["text"] for answer in answers if "text" in answer.statistics.drafts
    ]
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {
            "cached_tokens": sum(group[0].statistics.reused_tokens for group in prompts)
        },
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "accepted_prediction_tokens": sum(sum(counts.accepted) for counts in guessed),
            "rejected_prediction_tokens": sum(
                sum(counts.rejected) + sum(counts.unreached) for counts in guessed
            ),
        },
        "divine": divine_block(answers),
    }


def anthropic_usage(completion: Completion) -> dict[str, Any]:
    """`usage` of one message; its input_tokens are those that were not reused."""
    reused = completion.statistics.reused_tokens
    return {
        "input_tokens": completion.prompt_tokens - reused,
        "output_tokens": len(completion.tokens),
        "cache_read_input_tokens": reused,
        "cache_creation_input_tokens": 0,
        "divine": divine_block([completion]),
    }


def divine_block(answers: Sequence[Completion]) -> dict[str, Any]:
    """What the answers cost and what drafts brought; figures that are unknown are null."""
    of = [answer.statistics for answer in answers]
    passes = sum(one.passes for one in of)
    chosen = sum((one.tokens_per_pass or 0.0) * one.passes for one in of)
    decode = max(one.decode_seconds for one in of)
    own = sum(one.decode_seconds for one in of)
    plain = sum(one.plain_seconds or 0.0 for one in of)
    names = dict.fromkeys(name for one in of for name in one.drafts)
    return {
        "tokens": sum(one.tokens for one in of),
        "passes": passes,
        "tokens_per_pass": chosen / passes if passes else None,
        "tokens_per_second": chosen / decode if chosen and decode else None,
        "speedup": plain / own if plain and own else None,
        "prefill_seconds": max(one.prefill_seconds for one in of),
        "reused_tokens": of[0].reused_tokens,
        "seed": answers[0].seed,
        "drafts": {
            name: by_depth([one.drafts[name] for one in of if name in one.drafts]) for name in names
        },
    }


def by_depth(counts: Sequence[DraftCounts]) -> list[dict[str, int]]:
    """What became of one drafter's tokens, summed over answers; entry 0 is depth 1."""
    total = asdict(sum(counts, DraftCounts()))
    return [dict(zip(total, depth, strict=True)) for depth in zip(*total.values(), strict=True)]
