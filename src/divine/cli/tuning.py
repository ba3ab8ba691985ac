"""What `divine tune` does, in order: capture, train, make the table; told as it goes."""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from divine.checks import check_integer
from divine.cli.console import note
from divine.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from divine.tune.base import Base
    from divine.tune.capture import CaptureSettings
    from divine.tune.options import TrainSettings
    from divine.tune.sources import Prompts, Source

SELF = "self"
TABLE = "table.gguf"
_SHAREGPT_SHARE = 0.8  # of the records; the rest is for measuring
OWN_TOKENS = 1_000_000  # of the model's own answers, by default


@dataclass(frozen=True)
class Plan:
    """The command's options, in order of use."""

    model: str
    output: Path
    answers: Path
    dataset: str
    prompts: Sequence[str]
    exclude: Sequence[Path]
    classes: Sequence[str] | None
    tokens: int | None
    captured: dict[str, Any]  # fields of CaptureSettings
    states: bool
    capture: bool
    train: bool
    settings: TrainSettings
    table: bool
    table_entries: int | None
    device: str | None
    threads: int | None


def run(plan: Plan) -> None:
    """Carry the plan out. Raises what its parts raise."""
    if plan.train and importlib.util.find_spec("torch") is None:
        raise UnsupportedError(
            "training needs torch, which is not installed; `pip install 'divine-llm[tune]'` brings "
            "it, and --capture-only works without"
        )
    if plan.dataset != SELF and plan.prompts:
        raise UsageError("--prompts are for --dataset self; conversations have theirs")
    if is_checkpoint(plan.model):
        from divine.cli.tuning_torch import run_checkpoint

        run_checkpoint(plan)
        return
    from divine.store import resolve
    from divine.tune.base import Base

    with Base(resolve(plan.model), threads=plan.threads) as base:
        if plan.train:
            _check_training(plan, base)
        if plan.capture:
            _capture(plan, base)
    if not plan.train:
        return
    from divine.cli.tuning_torch import run_training

    with Base(resolve(plan.model), threads=plan.threads) as base:  # without what has run it
        run_training(plan, base)
        if plan.table:
            make_table(plan, base)


def _check_training(plan: Plan, base: Base) -> None:
    """Raise now what training would raise after an hour of capturing."""
    table = base.program.embed.table
    vocabulary, dim = base.file.shape(table)
    check_integer("draft_vocab", plan.settings.draft_vocab, 0, vocabulary)
    plan.settings.definition(dim, 1e-5, plan.settings.draft_vocab)
    if plan.device is not None:
        from divine.tune.workers import usable_device

        usable_device(plan.device)


def is_checkpoint(name: str) -> bool:
    """A Hugging Face checkpoint: a folder with config.json, or a repository that is not here."""
    path = Path(name)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UsageError(f"{name} is a folder without config.json; a GGUF file has a name")
        return True
    from divine.store import CATALOGUE, parse_hub, stored

    if path.exists() or name in CATALOGUE or name.endswith(".gguf"):
        return False
    known = any(name in (one.name, str(one.path)) for one in stored())
    return not known and not name.startswith("hf:") and parse_hub(f"hf:{name}") is not None


@contextlib.contextmanager
def going_on(plan: Plan) -> Iterator[None]:
    """Whoever stops the block is told that nothing is lost; SIGTERM stops it as Ctrl-C does."""
    before = None
    if threading.current_thread() is threading.main_thread():
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        note(f"stopped; the same command goes on from what is in {plan.output}")
        raise
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def gather_prompts(plan: Plan) -> Prompts:
    """The conversations that the plan names, told in a line."""
    from divine.tune.sources import gather

    given = plan.dataset != SELF
    names = [plan.dataset] if given else list(plan.prompts or ["generated"])
    prompts = gather(
        [source_of(name) for name in names],
        seed=plan.settings.seed,
        answers=given,
        exclude=plan.exclude,
        classes=plan.classes,
    )
    left_out = f"; {prompts.skipped.sentence()}" if len(prompts.skipped) else ""
    note(f"{len(prompts)} prompts from {', '.join(names)}{left_out}")
    return prompts


def source_of(name: str) -> Source:
    """A file if there is one of that name, else what the name means."""
    from divine.store import DATASETS, pull_dataset
    from divine.tune.sources import GENERATED, Source

    path = Path(name)
    if path.exists():
        return Source(name, path)
    if name in DATASETS:
        from divine.cli.progress import pull_with_progress

        return Source(name, pull_with_progress(name, pull_dataset), _SHAREGPT_SHARE)
    if name != GENERATED and path.suffix in (".json", ".jsonl"):
        raise UsageError(f"{name}: there is no such file")
    return Source(name)


def capture_settings(plan: Plan) -> CaptureSettings:
    """How the plan's answers are captured. Raises UsageError."""
    from divine.tune.capture import CaptureSettings

    given = plan.dataset != SELF
    tokens = plan.tokens if given or plan.tokens is not None else OWN_TOKENS
    return CaptureSettings(tokens=tokens, states=plan.states, given=given, **plan.captured)


def _capture(plan: Plan, base: Base) -> None:
    from divine.cli.progress import capture_progress
    from divine.tune.capture import capture

    settings = capture_settings(plan)
    prompts = gather_prompts(plan)
    began = time.perf_counter()
    with going_on(plan), capture_progress() as progress:
        state, skipped = capture(
            base,
            prompts.conversations,
            plan.answers,
            settings,
            source=prompts.description,
            progress=progress,
        )
    seconds = time.perf_counter() - began
    left_out = f"; {skipped.sentence()}" if len(skipped) else ""
    note(
        f"{state.answers} answers, {state.tokens} tokens in {plan.answers}; {state.run_tokens} "
        f"tokens in this run, {state.run_tokens / seconds:.0f} tokens/s{left_out}"
    )
    if state.wanted is not None and state.tokens < state.wanted:
        note(f"all prompts are used up; {state.wanted} tokens were asked for")


def make_table(plan: Plan, base: Base) -> None:
    """The n-gram table of the training answers, as a sidecar that export packs with heads."""
    from divine.cli.console import gigabytes
    from divine.heads.packaging import package
    from divine.tune.answers import AnswerStore
    from divine.tune.batches import split
    from divine.tune.table import ENTRIES, make_table, table_content

    store = AnswerStore(plan.answers)
    chosen, _ = split(store, plan.settings.held_out, plan.settings.tokens)
    answers = (store[int(index)] for index in chosen)
    texts = ((answer.tokens, answer.prompt) for answer in answers)
    table = make_table(texts, entries=plan.table_entries or ENTRIES)
    path = plan.output / TABLE
    package(base.file, table_content(table), path, "sidecar")
    note(f"{path}: {len(table)} entries, {gigabytes(path.stat().st_size)}")
