"""The parts of `divine tune` that need torch: training on captured answers, other checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from divine.cli.console import note
from divine.cli.progress import capture_progress, train_progress
from divine.cli.tuning import Plan, capture_settings, gather_prompts, going_on
from divine.tune.answers import AnswerStore
from divine.tune.base import Base
from divine.tune.tables import tables_of
from divine.tune.training import WEIGHTS, train
from divine.tune.workers import Workers

if TYPE_CHECKING:
    from divine.tune.training import TablesOf


def run_training(plan: Plan, base: Base) -> None:
    """Train heads for a GGUF base on the plan's answers."""
    _train(
        plan,
        lambda tokens, listed: tables_of(base, tokens, listed),
        base.fingerprint,
        sorted(base.tokenizer.end_ids),
        Workers(plan.device),
    )


def run_checkpoint(plan: Plan) -> None:
    """Capture and train for a Hugging Face checkpoint, in one process or several."""
    from divine.tune.huggingface import Checkpoint, capture_checkpoint

    workers = Workers(plan.device)
    checkpoint = Checkpoint(plan.model, workers)
    if plan.capture:
        settings = capture_settings(plan)
        prompts = gather_prompts(plan)
        with going_on(plan), capture_progress() as progress:
            state, skipped = capture_checkpoint(
                checkpoint,
                prompts.conversations,
                plan.answers,
                settings,
                source=prompts.description,
                workers=workers,
                progress=progress if workers.first else None,
            )
        left_out = f"; {skipped.sentence()}" if len(skipped) else ""
        note(f"{state.answers} answers, {state.tokens} tokens of process {workers.rank}{left_out}")
        workers.wait()
    if plan.train:
        fingerprint = checkpoint.fingerprint()
        _train(plan, checkpoint.tables, fingerprint, checkpoint.end_ids, workers)


def _train(
    plan: Plan,
    tables: TablesOf,
    fingerprint: str | None,
    end_ids: list[int],
    workers: Workers,
) -> None:
    if plan.threads is not None:
        torch.set_num_threads(plan.threads)
    store = AnswerStore(plan.answers)
    try:
        with going_on(plan), train_progress(workers.first) as progress:
            weights, accuracy = train(
                store,
                tables,
                plan.settings,
                plan.output,
                fingerprint=fingerprint,
                end_ids=end_ids,
                workers=workers,
                tell=progress,
            )
    finally:
        workers.close()
    if workers.first:
        acceptance = ", ".join(f"{value:.3f}" for value in accuracy.acceptance)
        note(
            f"{plan.output / WEIGHTS}: {weights.definition.parameters / 1e6:.2f} M parameters; on "
            f"held-out answers {acceptance} by depth, {accuracy.tokens_per_pass:.2f} tokens a pass "
            "as a chain"
        )
        if not accuracy.acceptance[0]:
            note("not one guess was right: these heads would never be used; see docs/training.md")
