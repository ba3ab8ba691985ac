"""What a server gives to several clients at once: throughput and latency, drafting on and off.

Starts `divine serve` as a process of its own, or measures one that runs. Each level of concurrency
is measured with and without drafts in turn, and the texts of both are compared. Prints nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from divine.bench.circumstances import today
from divine.bench.client import ChatClient, Timed
from divine.checks import check_integer, check_number
from divine.errors import DivineError, UsageError

DRAFTS = ("none", "auto")
_SUBJECTS = (
    "gravity", "a rainbow", "the tides", "bread", "a compass", "photosynthesis", "a bicycle",
    "the moon", "volcanoes", "a violin", "clouds", "an earthquake", "salt", "coffee",
    "a lighthouse", "electricity",
)  # fmt: skip
_TASKS = (
    "Explain {} to a child.",
    "Write a Python class that models {}, with three methods and docstrings.",
    "List ten facts about {}, numbered, one sentence each.",
    "Repeat this twice, then shorten it: {} is a thing that people have wondered about for long.",
)
_READY_SECONDS = 300.0

Progress = Callable[[str], None]


@dataclass(frozen=True)
class ServingSettings:
    """How to load the server. Raises UsageError.

    levels      requests at once
    requests    for each client, in one queue for all
    max_tokens  of each answer
    rounds      times that all levels are measured; figures are medians of throughput over rounds
    """

    levels: tuple[int, ...] = (1, 2, 4, 8)
    requests: int = 4
    max_tokens: int = 96
    rounds: int = 2
    temperature: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for level in self.levels:
            check_integer("--levels", level, 1, 256)
        if not self.levels:
            raise UsageError("--levels is empty; allowed are numbers with commas, as 1,2,4,8")
        check_integer("--requests", self.requests, 1, 1000)
        check_integer("--max-tokens", self.max_tokens, 1, 1 << 20)
        check_integer("--rounds", self.rounds, 1, 100)
        check_number("--temp", self.temperature, 0, 100)


def bench_serving(
    url: str,
    settings: ServingSettings,
    *,
    key: str | None = None,
    progress: Progress = lambda line: None,
) -> dict[str, Any]:
    """Figures of a server that runs. Raises DivineError if a request fails."""
    client = ChatClient(url, key)
    models = client.get("/v1/models")["data"]
    for draft in DRAFTS:
        _measure(client, settings, 1, draft, turn=-1)  # to warm up
    runs: dict[tuple[int, str], list[_Run]] = {}
    for round_ in range(settings.rounds):
        for number, level in enumerate(settings.levels):
            order = DRAFTS if (round_ + number) % 2 == 0 else DRAFTS[::-1]
            for draft in order:
                progress(f"round {round_ + 1} of {settings.rounds}: {level} at once, {draft}")
                run = _measure(client, settings, level, draft, turn=round_)
                runs.setdefault((level, draft), []).append(run)
    return {
        "model": models[0]["id"],
        "date": today(),
        "settings": {
            "levels": list(settings.levels),
            "requests": settings.requests,
            "max_tokens": settings.max_tokens,
            "rounds": settings.rounds,
            "temperature": settings.temperature,
        },
        "serving": [_figures(level, draft, found) for (level, draft), found in runs.items()],
        "differences": _differences(runs),
        "comparisons": sum(
            len(run.answers) for (_, draft), of in runs.items() if draft != "none" for run in of
        ),
    }


@contextlib.contextmanager
def started(model: str, parallel: int, options: Sequence[str] = ()) -> Iterator[tuple[str, int]]:
    """`divine serve` as a process: its address and process id. Raises DivineError."""
    command = [sys.executable, "-m", "divine", "serve", model, "--port", "0"]
    command += ["--parallel", str(parallel), *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    assert process.stderr is not None
    timer = threading.Timer(_READY_SECONDS, process.kill)
    timer.start()
    try:
        lines = []
        for line in process.stderr:
            lines.append(line.strip())
            if " at http" in line:
                break
        else:
            raise DivineError(lines[-1].removeprefix("divine: ") if lines else "no server came")
        timer.cancel()
        draining = threading.Thread(target=process.stderr.read, daemon=True)
        draining.start()
        yield lines[-1].split(" at ")[1].split()[0], process.pid
    finally:
        timer.cancel()
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        process.stderr.close()


@dataclass(frozen=True)
class _Run:
    answers: list[Timed]
    seconds: float


def _measure(
    client: ChatClient, settings: ServingSettings, level: int, draft: str, turn: int
) -> _Run:
    """`level` clients take requests from one queue, so that as many are at work until its end."""

    def ask(number: int) -> Timed:
        return client.chat(_body(number, settings, draft, turn))

    began = time.perf_counter()
    with ThreadPoolExecutor(level) as pool:
        answers = list(pool.map(ask, range(level * settings.requests)))
    return _Run(answers, time.perf_counter() - began)


def _body(number: int, settings: ServingSettings, draft: str, turn: int) -> dict[str, Any]:
    subject = _SUBJECTS[number % len(_SUBJECTS)]
    task = _TASKS[number % len(_TASKS)].format(subject)
    return {
        "messages": [{"role": "user", "content": f"({turn + 2}.{number}) {task}"}],
        "max_tokens": settings.max_tokens,
        "temperature": settings.temperature,
        "seed": settings.seed,
        "draft": draft,
        "cache_prompt": False,  # the same prompt comes with and without drafts
    }


def _figures(level: int, draft: str, runs: Sequence[_Run]) -> dict[str, Any]:
    firsts = [answer.first for run in runs for answer in run.answers if answer.first is not None]
    gaps = [gap for run in runs for answer in run.answers for gap in answer.gaps]
    rates = [sum(answer.tokens for answer in run.answers) / run.seconds for run in runs]
    return {
        "concurrent": level,
        "draft": draft,
        "tok_s": round(statistics.median(rates), 2),
        "first_token_ms": _percentiles(firsts),
        "between_tokens_ms": _percentiles(gaps),
        "tokens": sum(answer.tokens for run in runs for answer in run.answers),
    }


def _percentiles(seconds: Sequence[float]) -> Mapping[str, float | None]:
    if not seconds:
        return {"p50": None, "p95": None}
    ordered = sorted(seconds)
    at = {name: ordered[min(len(ordered) - 1, int(share * len(ordered)))]
          for name, share in (("p50", 0.5), ("p95", 0.95))}  # fmt: skip
    return {name: round(1e3 * value, 2) for name, value in at.items()}


def _differences(runs: Mapping[tuple[int, str], Sequence[_Run]]) -> list[dict[str, Any]]:
    """Answers whose text is not that of the same request without drafts."""
    found = []
    for (level, draft), drafted in runs.items():
        if draft == "none":
            continue
        for round_, (with_drafts, plain) in enumerate(
            zip(drafted, runs[level, "none"], strict=True)
        ):
            pairs = zip(with_drafts.answers, plain.answers, strict=True)
            found += [
                {"concurrent": level, "round": round_, "request": number}
                for number, (ours, theirs) in enumerate(pairs)
                if ours.text != theirs.text
            ]
    return found
