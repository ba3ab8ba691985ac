"""Bars for what takes minutes: on a terminal only, on standard error."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from divine.cli.console import note
from divine.store import Progress as Report
from divine.store import pull, silent

if TYPE_CHECKING:
    from divine.bench.prompts import BenchPrompt
    from divine.tune.capture import Captured
    from divine.tune.trainer import Progress as TrainState

_TELL_EVERY = 30.0  # seconds between two lines where there is no terminal
_STEPS_BEFORE_ESTIMATE = 8


def pull_with_progress(name: str, fetch: Callable[[str, Report], Path] = pull) -> Path:
    """divine.store.pull (or another that fetches) with a bar; its errors pass through."""
    if not sys.stderr.isatty():
        return fetch(name, silent)
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

        return fetch(name, show)


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


@contextlib.contextmanager
def capture_progress() -> Iterator[Callable[[Captured], None]]:
    """What to call with the state of a capture: a bar, or a line every half minute."""
    began = time.perf_counter()
    if not sys.stderr.isatty():
        told = began

        def tell(state: Captured) -> None:
            nonlocal told
            now = time.perf_counter()
            if now - told >= _TELL_EVERY:
                told = now
                note(_capture_line(state, now - began))

        yield tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("reading prompts", total=None)

        def show(state: Captured) -> None:
            line = _capture_line(state, time.perf_counter() - began)
            done, total = state.tokens, state.wanted
            if total is None:
                done, total = state.prompts, state.of
            bars.update(task, description=line, completed=done, total=total)

        yield show


def _capture_line(state: Captured, seconds: float) -> str:
    rate = state.run_tokens / seconds if seconds else 0.0
    wanted = "" if state.wanted is None else f" of {state.wanted}"
    return f"{state.tokens} tokens{wanted}, {state.answers} answers, {rate:.0f} tokens/s"


@contextlib.contextmanager
def train_progress(shown: bool) -> Iterator[Callable[[TrainState], None]]:
    """What to call with the state of training: a bar, or lines; how long it takes is said early."""
    told = 0.0
    announced = False

    def announce(state: TrainState) -> None:
        nonlocal announced
        if not announced and state.done >= _STEPS_BEFORE_ESTIMATE:
            announced = True
            rate = state.positions / state.seconds
            note(
                f"{state.steps} steps, about {_duration(state.seconds_left)} more at {rate:.0f} "
                "positions/s"
            )

    if not shown or not sys.stderr.isatty():

        def tell(state: TrainState) -> None:
            nonlocal told
            announce(state)
            if state.seconds - told >= _TELL_EVERY or state.step == state.steps:
                told = state.seconds
                note(f"step {state.step} of {state.steps}, {_train_line(state)}")

        yield tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("training", total=None)

        def show(state: TrainState) -> None:
            announce(state)
            line = f"loss {state.loss:.3f}"
            if state.accuracy is not None:
                line += f", {state.accuracy.tokens_per_pass:.2f} tokens a pass"
            bars.update(task, description=line, completed=state.step, total=state.steps)

        yield show


def _train_line(state: TrainState) -> str:
    line = f"loss {state.loss:.3f}"
    if state.accuracy is not None:
        depths = " ".join(f"{value:.3f}" for value in state.accuracy.acceptance)
        line += f", held out {depths}, {state.accuracy.tokens_per_pass:.2f} tokens a pass"
    return f"{line}, {_duration(state.seconds_left)} left"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
