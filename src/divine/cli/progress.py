"""Bars for what takes minutes: on a terminal only, on standard error."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from divine.cli.console import note
from divine.store import pull

if TYPE_CHECKING:
    from divine.bench.prompts import BenchPrompt


def pull_with_progress(name: str) -> Path:
    """divine.store.pull with a bar; its errors pass through."""
    if not sys.stderr.isatty():
        return pull(name)
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                for task in tasks.values():
                    bars.remove_task(task)
                tasks.clear()
                tasks[what] = bars.add_task(what, total=total or None)
            bars.update(tasks[what], completed=done, total=total or None)

        return pull(name, show)


@contextlib.contextmanager
def prompt_progress() -> Iterator[Callable[[int, int, BenchPrompt], None]]:
    """What to call with prompts done, prompts and the next prompt: a bar, or a line for each class.

    The bar is gone when the block is left.
    """
    if not sys.stderr.isatty():
        seen: set[str] = set()

        def tell(done: int, total: int, prompt: BenchPrompt) -> None:
            if prompt.class_ not in seen:
                seen.add(prompt.class_)
                note(f"prompt {done + 1} of {total}, class {prompt.class_} ...")

        yield tell
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("loading", total=None)

        def show(done: int, total: int, prompt: BenchPrompt) -> None:
            bars.update(task, description=prompt.id, completed=done, total=total)

        yield show
