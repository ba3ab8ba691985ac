"""What drafting is worth: plain decoding and each choice of drafters in turn, prompt by prompt.

All runs of a prompt follow each other in one process, in an order that changes from prompt to
prompt, and each is compared with the plain run of its own round: a machine whose speed drifts
moves both. Nothing is kept from one run to the next, so a draft model reads every prompt anew, in
time that counts. The tokens of every run are compared with the plain ones. Prints nothing.
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from divine.api import Completion, DraftCounts, Model, Options, load
from divine.bench.circumstances import describe_machine, today
from divine.bench.prompts import BenchPrompt, load_prompts
from divine.checks import check_integer
from divine.errors import DivineError, UsageError

MAX_ROUNDS = 100
WARM_UP = 8  # tokens before anything is measured
PLAIN = "none"
_DIGITS = {"tok_s": 2, "plain_tok_s": 2}  # 4 elsewhere

Progress = Callable[[int, int, BenchPrompt], None]  # prompts done, of how many, the next one


@dataclass(frozen=True)
class Settings:
    """What is generated, and with which drafters."""

    drafts: tuple[str, ...] = ()  # values of `draft`; () is each drafter alone, and auto
    max_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    rounds: int = 1
    draft_tree: int | None = None

    def __post_init__(self) -> None:
        check_integer("max_tokens", self.max_tokens, 2, None)
        check_integer("rounds", self.rounds, 1, MAX_ROUNDS)


class _Pair(NamedTuple):
    """A drafted run and the plain one of the same prompt and round."""

    prompt: BenchPrompt
    draft: str
    plain: Completion
    drafted: Completion


def speculate(
    target: Path,
    prompt_files: Iterable[Path],
    settings: Settings,
    *,
    draft_model: Path | None = None,
    heads: str | Path | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure a model file on all prompts of the files.

    Returns {"machine", "model", "draft_model", "date", "settings", "comparisons", "differences",
    "speculation", "by_prompt"}: see docs/benchmarks.md. Raises what divine.load() and generate()
    raise, UsageError for prompt files and settings, before anything is measured if possible.
    """
    prompts = load_prompts(prompt_files)
    with load(target, threads=threads, draft_model=draft_model, heads=heads) as model:
        choices = _choices(model, prompts, settings)
        _check(model, prompts, choices, settings)
        pairs = _measure(model, prompts, choices, settings, progress)
        machine = describe_machine(model.level, model.threads)
    return {
        "machine": machine,
        "model": target.name,
        "draft_model": draft_model.name if draft_model else None,
        "date": today(),
        "settings": {
            "max_tokens": settings.max_tokens,
            "temperature": settings.temperature,
            "seed": settings.seed,
            "rounds": settings.rounds,
            "draft_tree": settings.draft_tree,
        },
        **report(pairs),
    }


def _choices(model: Model, prompts: Sequence[BenchPrompt], settings: Settings) -> list[str]:
    """The values of `draft` beside plain decoding."""
    guesses = any(prompt.guess for prompt in prompts)
    if not settings.drafts:
        single = [n for n in model.drafters if n != "forced" and (n != "text" or guesses)]
        return [*single, "auto"]
    choices = [draft for draft in dict.fromkeys(settings.drafts) if draft != PLAIN]
    if not choices:
        raise UsageError("plain decoding is measured anyway; name something to compare with it")
    for draft in choices:
        if _needs_guess(draft) and not guesses:
            raise UsageError(
                f'draft is {draft!r}, and no prompt has a "draft_text" or is of the class edit'
            )
    return choices


def _needs_guess(draft: str) -> bool:
    return "text" in (name.strip() for name in draft.split(","))


def _variants(prompt: BenchPrompt, choices: Sequence[str], turn: int) -> list[str]:
    """What to run for a prompt, plain decoding too, in an order that depends on `turn`."""
    usable = [draft for draft in choices if prompt.guess or not _needs_guess(draft)]
    variants = [PLAIN, *usable]
    first = turn % len(variants)
    variants = variants[first:] + variants[:first]
    return variants[::-1] if turn // len(variants) % 2 else variants


def _check(
    model: Model, prompts: Sequence[BenchPrompt], choices: Sequence[str], settings: Settings
) -> None:
    """Raise now what a run would raise later, after minutes; then warm up."""
    for prompt in prompts:
        for draft in _variants(prompt, choices, 0):
            try:
                _generate(model, prompt, draft, settings, 0)
            except UsageError:  # of the settings, not of the prompt
                raise
            except DivineError as error:
                raise type(error)(f"prompt {prompt.id}: {error}") from error
    for draft in _variants(prompts[0], choices, 0):
        _generate(model, prompts[0], draft, settings, WARM_UP)


def _measure(
    model: Model,
    prompts: Sequence[BenchPrompt],
    choices: Sequence[str],
    settings: Settings,
    progress: Progress | None,
) -> list[_Pair]:
    pairs = []
    for number, prompt in enumerate(prompts):
        if progress is not None:
            progress(number, len(prompts), prompt)
        for round_ in range(settings.rounds):
            runs = {
                draft: _generate(model, prompt, draft, settings, settings.max_tokens)
                for draft in _variants(prompt, choices, number + round_)
            }
            plain = runs.pop(PLAIN)
            pairs += [_Pair(prompt, draft, plain, drafted) for draft, drafted in runs.items()]
    return pairs


def _generate(
    model: Model, prompt: BenchPrompt, draft: str, settings: Settings, max_tokens: int
) -> Completion:
    options = Options(
        draft=draft,
        max_tokens=max_tokens,
        temperature=settings.temperature,
        seed=settings.seed,
        draft_tree=settings.draft_tree,
        draft_text=prompt.guess if draft == "auto" or _needs_guess(draft) else None,
    )
    model.forget()
    return model.generate(prompt.text, **options)


def report(pairs: Sequence[_Pair]) -> dict[str, Any]:
    """Figures of the runs: medians over the prompts of a class, counts summed."""
    differences = [
        {"id": pair.prompt.id, "draft": pair.draft, "token": _first_difference(pair)}
        for pair in pairs
        if pair.plain.tokens != pair.drafted.tokens
    ]
    # Answers of one token have nothing that drafting could hasten.
    timed = [p for p in pairs if p.plain.statistics.passes and p.drafted.statistics.passes]
    of_prompt: dict[tuple[BenchPrompt, str], list[_Pair]] = defaultdict(list)
    for pair in timed:
        of_prompt[pair.prompt, pair.draft].append(pair)
    medians = {key: _median([_figures(pair) for pair in of]) for key, of in of_prompt.items()}
    classes = dict.fromkeys(prompt.class_ for prompt, _ in of_prompt)
    drafts = dict.fromkeys(draft for _, draft in of_prompt)
    speculation = []
    for class_, draft in itertools.product(classes, drafts):
        keys = [key for key in of_prompt if key[0].class_ == class_ and key[1] == draft]
        if not keys:
            continue
        speculation.append({
            "draft": draft,
            "class": class_,
            "prompts": len(keys),
            **_rounded(_median([medians[key] for key in keys])),
            **_acceptance(pair for key in keys for pair in of_prompt[key]),
        })  # fmt: skip
    by_prompt = []
    for (prompt, draft), of in of_prompt.items():
        by_prompt.append({
            "id": prompt.id,
            "class": prompt.class_,
            "draft": draft,
            "tokens": len(of[0].drafted.tokens),
            "finish_reason": of[0].drafted.finish_reason,
            **_rounded(medians[prompt, draft]),
            **_acceptance(of),
        })  # fmt: skip
    return {
        "comparisons": len(pairs),
        "differences": differences,
        "speculation": speculation,
        "by_prompt": by_prompt,
    }


def _first_difference(pair: _Pair) -> int:
    ours, theirs = pair.drafted.tokens, pair.plain.tokens
    same = (a == b for a, b in zip(ours, theirs, strict=False))
    return next((i for i, equal in enumerate(same) if not equal), min(len(ours), len(theirs)))


def _figures(pair: _Pair) -> dict[str, float]:
    plain, drafted = pair.plain.statistics, pair.drafted.statistics
    # A synthetic drafter has just had the plain answer made: its prompt is known by then.
    prefill = plain.prefill_seconds if drafted.reused_tokens else drafted.prefill_seconds
    whole = prefill + drafted.decode_seconds
    plain_whole = plain.prefill_seconds + plain.decode_seconds
    other = drafted.decode_seconds - drafted.draft_seconds - drafted.verify_seconds
    tok_s, plain_tok_s = drafted.decode_tok_s or 0.0, plain.decode_tok_s or 0.0
    per_pass = 1e3 / drafted.passes
    return {
        "tok_s": tok_s,
        "plain_tok_s": plain_tok_s,
        "ratio": tok_s / plain_tok_s,
        "tokens_per_pass": drafted.tokens_per_pass or 0.0,
        "draft_ms_per_pass": per_pass * drafted.draft_seconds,
        "verify_ms_per_pass": per_pass * drafted.verify_seconds,
        "other_ms_per_pass": per_pass * other,
        "end_to_end_s": whole,
        "plain_end_to_end_s": plain_whole,
        "end_to_end_ratio": plain_whole / whole,
    }


def _median(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: statistics.median(of[name] for of in figures) for name in figures[0]}


def _rounded(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, _DIGITS.get(name, 4)) for name, value in figures.items()}


def rounded_acceptance(counts: DraftCounts) -> list[float | None]:
    """By depth, for JSON; None where no node was reached."""
    return [None if share is None else round(share, 4) for share in counts.acceptance]


def _acceptance(pairs: Iterable[_Pair]) -> dict[str, Any]:
    """Acceptance by depth, what became of all nodes, and of each drafter's."""
    nodes = DraftCounts()
    drafts: dict[str, DraftCounts] = {}
    for pair in pairs:
        statistics = pair.drafted.statistics
        nodes += statistics.nodes
        for name, counts in statistics.drafts.items():
            drafts[name] = drafts.get(name, DraftCounts()) + counts
    return {
        "acceptance": rounded_acceptance(nodes),
        "nodes": asdict(nodes),
        "drafts": {name: asdict(counts) for name, counts in drafts.items()},
    }
