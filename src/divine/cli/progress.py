"""A bar for transfers: on a terminal only, on standard error."""

from __future__ import annotations

import sys
from pathlib import Path

from divine.store import pull


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
