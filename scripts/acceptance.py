#!/usr/bin/env python3
"""How often a draft model's guesses are what the model says, by the noise that both use.

    python scripts/acceptance.py MODEL.gguf DRAFT.gguf --prompts FILE... [-n 96] [--json FILE]

The model answers each prompt, greedily and at temperature 1. Both models then read prompt and
answer, and at every position of the answer the draft's guesses are compared with the token that was
said: the first guess, and the first 2 and 4 (branches). At temperature 1 the draft guesses in the
order of its logits plus the very noise that the model used (shared), plus other noise
(independent), or in the order of its probabilities. This is acceptance at depth 1, free of trees
and of what is worth drafting.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import divine
from divine.backends import create_backend
from divine.backends.base import Executable, Rows, Want
from divine.gguf import open_gguf
from divine.models import build_program
from divine.sampling import Sampler, SamplingParams
from divine.text import encode_chat

GREEDY = SamplingParams(temperature=0)
SAMPLED = SamplingParams(temperature=1.0)
WIDTHS = (1, 2, 4)
LOGIT_ROWS = 32  # rows of logits in one pass: each is a vocabulary of floats


def logits_after(
    executable: Executable, tokens: list[int], first: int
) -> Iterator[NDArray[np.float32]]:
    """Logits [vocabulary] after tokens[first - 1], tokens[first], ..., all but the last."""
    state = executable.new_state(len(tokens))
    start, end = 0, first - 1
    while start < len(tokens) - 1:
        count = min(end - start, executable.max_rows) if start < end else LOGIT_ROWS
        rows = tokens[start : min(start + count, len(tokens) - 1)]
        wanted = range(len(rows)) if start >= end else ()
        result = executable.run([state], Rows.chain(rows), Want(logits=list(wanted)))
        state.commit(range(len(rows)))
        start += len(rows)
        yield from result.logits
    state.close()


def hits(draft: Executable, tokens: list[int], first: int, seed: int) -> Iterator[dict[str, int]]:
    """For each token of the answer: how -> the place of that token in the draft's order, from 0."""
    orders = {
        "probable": Sampler(GREEDY, draft.vocabulary),
        "shared": Sampler(replace(SAMPLED, seed=seed), draft.vocabulary),
        "independent": Sampler(replace(SAMPLED, seed=seed + 1_000_003), draft.vocabulary),
    }
    for position, logits in enumerate(logits_after(draft, tokens, first), first):
        places = {}
        for how, sampler in orders.items():
            ranked = [token for token, _ in sampler.rank((), logits, position, max(WIDTHS))]
            said = tokens[position]
            places[how] = ranked.index(said) if said in ranked else max(WIDTHS)
        yield places


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--prompts", type=Path, nargs="+", required=True)
    parser.add_argument("-n", "--tokens", type=int, default=96)
    parser.add_argument("--limit", type=int, help="prompts of each class")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    file = open_gguf(arguments.draft)
    draft = create_backend("cpu").compile(build_program(file), file)
    totals: dict[str, int] = defaultdict(int)
    shares: dict[tuple[str, str, int], int] = defaultdict(int)
    with divine.load(arguments.model, context=4096) as model:
        for path in arguments.prompts:
            lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
            for number, line in enumerate(lines[: arguments.limit]):
                if sys.stderr.isatty():
                    print(f"\r{path.name} {number + 1}/{len(lines)} ", end="", file=sys.stderr)
                prompt = [{"role": "user", "content": json.loads(line)["prompt"]}]
                for kind, temperature in (("greedy", 0.0), ("sampled", 1.0)):
                    answer = model.generate(
                        prompt, max_tokens=arguments.tokens, temperature=temperature,
                        top_k=0, top_p=1.0, min_p=0.0, seed=number,
                    )  # fmt: skip
                    text = [*encode_chat(model.tokenizer, model.template, prompt), *answer.tokens]
                    first = len(text) - len(answer.tokens)
                    for places in hits(draft, text, first, number):
                        totals[kind] += 1
                        for how, place in places.items():
                            for width in WIDTHS:
                                shares[kind, how, width] += place < width
    figures = {
        f"{kind}, {how}": {str(w): round(shares[kind, how, w] / totals[kind], 4) for w in WIDTHS}
        for kind, how in (
            ("greedy", "probable"),
            ("sampled", "shared"),
            ("sampled", "independent"),
            ("sampled", "probable"),
        )
    }
    print(f"\n{'said, draft in the order of':30}" + "".join(f"{f'first {w}':>10}" for w in WIDTHS))
    for name, row in figures.items():
        print(f"{name:30}" + "".join(f"{row[str(w)]:>10.3f}" for w in WIDTHS))
    print(f"{totals['greedy']} and {totals['sampled']} positions")
    if arguments.json:
        result = {
            "date": datetime.now(UTC).date().isoformat(),
            "model": arguments.model.name,
            "draft_model": arguments.draft.name,
            "positions": dict(totals),
            "acceptance": figures,
        }
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
