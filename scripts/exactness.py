#!/usr/bin/env python3
"""Compare drafted answers with plain ones, token by token: they must be identical.

    python scripts/exactness.py MODEL.gguf --prompts FILE... [--draft-model M.gguf] [-n 40]
                                [--least 2000] [--json FILE]

Every prompt is answered plainly under each setting of the sampler (greedy, temperatures, filters,
penalties, several seeds), then again with each choice of drafters and size of tree, one to four
answers at a time in shared passes. A comparison is one answer against its plain twin. The guess of
the drafter "text" is the plain answer with words dropped, doubled and changed. Ends with 1 if any
answer differs, or if fewer than --least were compared.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import divine

SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "greedy, penalties": {
        "temperature": 0, "repetition_penalty": 1.15, "frequency_penalty": 0.3,
    },
    "0.7, top-p": {"temperature": 0.7, "top_p": 0.9, "top_k": 0, "min_p": 0, "seed": 1},
    "0.7, min-p, penalties": {
        "temperature": 0.7, "min_p": 0.05, "top_p": 1, "top_k": 50, "presence_penalty": 0.5,
        "seed": 2,
    },
    "1.0": {"temperature": 1.0, "top_p": 1, "top_k": 0, "min_p": 0, "seed": 3},
    "1.0, top-p, min-p": {"temperature": 1.0, "top_p": 0.95, "min_p": 0.02, "top_k": 0, "seed": 4},
}  # fmt: skip
TREES: tuple[int | None, ...] = (None, 1, 3, 8, 16)
SHOWN = 10  # differences


def drafter_choices(drafters: Collection[str]) -> list[str]:
    """What --draft may be, one drafter at a time and several in one tree."""
    choices = ["ngram", "text", "text,ngram", "synthetic:0.7", "synthetic:0", "auto"]
    choices += [name for name in ("table", "mtp", "model") if name in drafters]
    return [*choices, "ngram,model"] if "model" in drafters else choices


def read_prompts(files: list[Path]) -> list[tuple[str, str]]:
    """(class, prompt) of every record of JSONL files."""
    records = [
        json.loads(line) for f in files for line in f.read_text("utf-8").splitlines() if line
    ]
    return [(record.get("class", "prompts"), record["prompt"]) for record in records]


def spoil(text: str, rng: random.Random) -> str:
    """The text with about one word in eight dropped, doubled or changed."""
    words = []
    for word in text.split(" "):
        fate = rng.random()
        if fate > 0.04:
            words.append("other" if fate > 0.96 else word)
        if 0.88 < fate < 0.92:
            words.append(word)
    return " ".join(words)


def compare(
    model: divine.Model, prompts: list[tuple[str, str]], tokens: int
) -> Iterator[tuple[str, str, int | None, str, bool]]:
    """Yields drafters, setting, tree, class and whether the tokens were the same."""
    rng = random.Random(0)
    choices = drafter_choices(model.drafters)
    turn = start = size = 0
    while start < len(prompts):
        size = size % 4 + 1
        group = prompts[start : start + size]
        start += len(group)
        for setting, options in SETTINGS.items():
            questions = [[{"role": "user", "content": prompt}] for _, prompt in group]
            options = {**options, "max_tokens": tokens}
            plain = [model.generate(q, draft="none", **options) for q in questions]
            for draft in choices:
                turn += 1
                tree = TREES[turn % len(TREES)]
                extra: dict[str, Any] = {"draft": draft, "draft_tree": tree}
                if "text" in draft or draft == "auto":
                    extra["draft_text"] = spoil(rng.choice(plain).text, rng) or "nothing"
                answers = model.generate_many(questions, **options, **extra)
                for (kind, _), answer, reference in zip(group, answers, plain, strict=True):
                    same = answer.tokens == reference.tokens and answer.text == reference.text
                    yield draft, setting, tree, kind, same


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompts", type=Path, nargs="+", required=True)
    parser.add_argument("--draft-model", type=Path)
    parser.add_argument("-n", "--tokens", type=int, default=40)
    parser.add_argument("--least", type=int, default=2000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    prompts = read_prompts(arguments.prompts)
    compared: Counter[tuple[str, str]] = Counter()
    different: list[tuple[str, str, int | None, str]] = []
    with divine.load(arguments.model, draft_model=arguments.draft_model, context=4096) as model:
        for draft, setting, tree, kind, same in compare(model, prompts, arguments.tokens):
            compared[draft, setting] += 1
            if not same:
                different.append((draft, setting, tree, kind))
            if sys.stderr.isatty():
                print(
                    f"\r{compared.total()} compared, {len(different)} differ",
                    end="",
                    file=sys.stderr,
                )
    drafts = sorted({draft for draft, _ in compared})
    width = max(map(len, SETTINGS))
    print(f"\n{'':{width}}  " + "  ".join(drafts))
    for setting in SETTINGS:
        cells = (f"{compared[draft, setting]:>{len(draft)}}" for draft in drafts)
        print(f"{setting:{width}}  " + "  ".join(cells))
    print(f"{compared.total()} answers compared, {len(different)} differ")
    for case in different[:SHOWN]:
        print("different: draft {}, {}, tree {}, {}".format(*case))
    if arguments.json:
        figures = {
            "date": datetime.now(UTC).date().isoformat(),
            "model": arguments.model.name,
            "draft_model": arguments.draft_model.name if arguments.draft_model else None,
            "compared": compared.total(),
            "different": len(different),
            "by_choice": [
                {"draft": d, "setting": s, "compared": n} for (d, s), n in compared.items()
            ],
        }
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
    return 1 if different or compared.total() < arguments.least else 0


if __name__ == "__main__":
    sys.exit(main())
