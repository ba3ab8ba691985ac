"""Load on a server: many clients, mixed lengths, a third of them going away in the middle.

    python scripts/load.py MODEL [--clients 32] [--requests 500] [--parallel 8]
    python scripts/load.py http://127.0.0.1:8080 [--pid PID]

Checks, and ends with code 1 if one fails: no request failed; the server's memory stays flat after
the first fifth of the requests (within 5 %); each finished answer is byte for byte that of the same
request run alone.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from divine.bench import started
from divine.bench.client import ChatClient
from divine.errors import DivineError

WARM_UP = 0.2  # of the requests
MEMORY_TOLERANCE = 0.05
_WORDS = [
    "time",
    "river",
    "stone",
    "light",
    "winter",
    "engine",
    "letter",
    "garden",
    "window",
    "paper",
    "silver",
    "music",
    "bridge",
    "harbour",
    "signal",
    "forest",
    "kitchen",
    "planet",
    "number",
    "story",
]


def bodies(count: int, rng: random.Random) -> list[dict[str, Any]]:
    """Different requests: prompts of a few to some hundred words, answers of up to 64 tokens."""
    made = []
    for number in range(count):
        words = " ".join(rng.choices(_WORDS, k=rng.choice((3, 20, 80, 250))))
        body = {
            "messages": [{"role": "user", "content": f"Write a story about: {words}."}],
            "max_tokens": rng.choice((4, 16, 32, 64)),
            "temperature": rng.choice((0, 0.7, 1)),
            "seed": number,
            "draft": rng.choice(("auto", "none")),
        }
        if rng.random() < 0.3:
            body |= {"frequency_penalty": 0.5, "stop": ["\n\n"]}
        made.append(body)
    return made


@contextmanager
def target(args: argparse.Namespace) -> Iterator[tuple[str, int | None]]:
    """The server's address and its process, if that is known."""
    if args.model.startswith("http"):
        yield args.model, args.pid
    else:
        with started(args.model, args.parallel, args.options) as found:
            yield found


def memory(pid: int | None) -> int | None:
    """Resident bytes."""
    if pid is None:
        return None
    return 4096 * int(Path(f"/proc/{pid}/statm").read_text().split()[1])


class Load:
    """The requests of one run and what became of them."""

    def __init__(self, client: ChatClient, args: argparse.Namespace, pid: int | None) -> None:
        rng = random.Random(args.seed)
        self.client = client
        self.pid = pid
        self.bodies = bodies(args.distinct, rng)
        # (which body, pieces after which the client leaves, or None)
        self.plan = [
            (rng.randrange(args.distinct), rng.randint(0, 10) if rng.random() < 1 / 3 else None)
            for _ in range(args.requests)
        ]
        self.finished: dict[int, set[str]] = {}
        self.failures: list[str] = []
        self.cancelled = 0
        self.done = 0
        self.memory: list[tuple[int, int]] = []  # (requests done, bytes)
        self._lock = threading.Lock()

    def run(self, clients: int) -> None:
        """All requests."""
        with ThreadPoolExecutor(clients) as pool:
            list(pool.map(self._one, self.plan))

    def _one(self, planned: tuple[int, int | None]) -> None:
        which, leave = planned
        try:
            answer = self.client.chat(self.bodies[which], leave_after=leave)
        except DivineError as error:
            with self._lock:
                self.failures.append(f"request {which}: {error}")
            return
        with self._lock:
            self.done += 1
            if answer.finish_reason is None:
                self.cancelled += 1
            else:
                self.finished.setdefault(which, set()).add(answer.text)
            used = memory(self.pid)
            if used is not None:
                self.memory.append((self.done, used))

    def differences(self) -> list[int]:
        """Bodies that have had another text than they have alone."""
        wrong = []
        for which, texts in sorted(self.finished.items()):
            alone = self.client.chat({**self.bodies[which], "cache_prompt": False}).text
            if texts != {alone}:
                wrong.append(which)
        return wrong


def main() -> int:
    """Run the load and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model", help="a GGUF file to serve, or the address of a server")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--distinct", type=int, default=60, help="different requests among them")
    parser.add_argument("--parallel", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--key")
    parser.add_argument("--pid", type=int, help="the server's process, to watch its memory")
    parser.add_argument("options", nargs="*", help="more options of `divine serve`, behind --")
    args = parser.parse_args()
    with target(args) as (url, pid):
        load = Load(ChatClient(url, args.key), args, pid)
        began = time.perf_counter()
        load.run(args.clients)
        seconds = time.perf_counter() - began
        wrong = load.differences()
    print(f"{load.done} requests in {seconds:.1f} s, {load.cancelled} of them cancelled midway")
    grown = growth(load.memory, args.requests)
    for failure in load.failures[:10]:
        print(failure)
    print(f"failed: {len(load.failures)}")
    print(f"texts that differ from those alone: {len(wrong)} of {len(load.finished)}")
    if grown is not None:
        print(f"memory after warm-up: {100 * grown:+.1f} %")
    flat = grown is None or grown <= MEMORY_TOLERANCE
    return 0 if not load.failures and not wrong and flat else 1


def growth(samples: list[tuple[int, int]], requests: int) -> float | None:
    """How much the end is above the end of the warm-up, as a share."""
    warm = [used for done, used in samples if done <= WARM_UP * requests]
    if not warm:
        return None
    return max(used for _, used in samples[-20:]) / max(warm) - 1


if __name__ == "__main__":
    sys.exit(main())
