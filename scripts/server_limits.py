"""What a server does beside its answers: start, idling, prompts read once, others' long prompts.

    python scripts/server_limits.py MODEL [--rounds 5]

Prints medians over the rounds: seconds from the start of the process to the first good /health; the
share of one core it takes while nobody asks; the time to the first token of a prompt of some 1,000
tokens, and of a second one with the same beginning, answered from memory and, after a restart, from
disk; the longest gap in one answer while another client's long prompt is read. Ends with code 1 if
a text differs from that of the same request without reuse.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from divine.bench import started
from divine.bench.client import ChatClient, Timed

PREFIX_WORDS = 970  # some 1,000 tokens
IDLE_SECONDS = 10.0
_WORDS = (
    "river", "stone", "light", "winter", "engine", "letter", "garden", "window", "paper", "silver",
    "music", "bridge", "harbour", "signal", "forest", "kitchen", "planet", "number", "story",
)  # fmt: skip


def prefix(seed: int, words: int = PREFIX_WORDS) -> str:
    """A text that no other seed begins with."""
    chance = random.Random(seed)
    return f"Text {seed}: " + " ".join(chance.choices(_WORDS, k=words))


def body(text: str, question: str, **more: Any) -> dict[str, Any]:
    """A request about a text."""
    messages = [{"role": "user", "content": f"{text}\n\n{question}"}]
    return {"messages": messages, "max_tokens": 24, "temperature": 0, "draft": "none", **more}


def cpu_seconds(pid: int) -> float:
    """Time that a process has taken, of all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ready(model: str) -> float:
    """Seconds until the server says that it is healthy."""
    began = time.perf_counter()
    with started(model, 4) as (url, _):
        ChatClient(url).get("/health")
        return time.perf_counter() - began


def idle(client: ChatClient, pid: int) -> float:
    """Share of a core, after a first answer."""
    client.chat(body("Hello.", "Who are you?"))
    time.sleep(1.0)
    before = cpu_seconds(pid)
    time.sleep(IDLE_SECONDS)
    return (cpu_seconds(pid) - before) / IDLE_SECONDS


def first(answer: Timed) -> float:
    """Seconds to the first token."""
    assert answer.first is not None
    return answer.first


class Reuse:
    """Prompts with a common beginning: what the second costs of the first."""

    def __init__(self) -> None:
        self.cold: list[float] = []
        self.memory: list[float] = []
        self.disk: list[float] = []
        self.tokens: list[int] = []
        self.differences = 0

    def measure(self, model: str, rounds: int) -> None:
        """In one process; then from the files that another one has left."""
        with started(model, 4) as (url, _):
            client = ChatClient(url)
            client.chat(body("Hello.", "Who are you?"))
            for seed in range(rounds):
                answer = client.chat(body(prefix(seed), "Which word is the first?"))
                self.cold.append(first(answer))
                self.tokens.append(answer.usage["prompt_tokens"])
                self._second(client, seed, "How many words are there?", self.memory)
        with tempfile.TemporaryDirectory() as folder:
            options = ("--prefix-cache", folder)
            with started(model, 4, options) as (url, _):
                for seed in range(rounds):
                    ChatClient(url).chat(body(prefix(seed), "Which word is the first?"))
            with started(model, 4, options) as (url, _):
                client = ChatClient(url)
                client.chat(body("Hello.", "Who are you?"))
                for seed in range(rounds):
                    self._second(client, seed, "Which word is the last?", self.disk)

    def _second(self, client: ChatClient, seed: int, question: str, times: list[float]) -> None:
        asked = body(prefix(seed), question)
        answer = client.chat(asked)
        times.append(first(answer))
        self.differences += answer.text != client.chat({**asked, "cache_prompt": False}).text


def longest_gap(client: ChatClient, seed: int) -> float:
    """Seconds, in an answer beside which a long prompt is read."""
    answers: list[Timed] = []
    story = body("Hello.", "Tell me a long story about the sea.", max_tokens=200)
    reader = threading.Thread(target=lambda: answers.append(client.chat(story)))
    reader.start()
    time.sleep(0.5)
    client.chat(body(prefix(1000 + seed), "Which word is the first?"))
    reader.join()
    return max(answers[0].gaps)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    args = parser.parse_args()
    starts = [ready(args.model) for _ in range(args.rounds)]
    with started(args.model, 4) as (url, pid):
        client = ChatClient(url)
        rest = idle(client, pid)
        gaps = [longest_gap(client, seed) for seed in range(args.rounds)]
    reuse = Reuse()
    reuse.measure(args.model, args.rounds)
    cold = statistics.median(reuse.cold)
    figures = {
        "ready_s": statistics.median(starts),
        "ready_worst_s": max(starts),
        "idle_share": rest,
        "prompt_tokens": statistics.median(reuse.tokens),
        "first_token_s": cold,
        "from_memory": statistics.median(reuse.memory) / cold,
        "from_disk": statistics.median(reuse.disk) / cold,
        "differences": reuse.differences,
        "longest_gap_ms": 1e3 * statistics.median(gaps),
        "longest_gap_worst_ms": 1e3 * max(gaps),
    }
    for name, value in figures.items():
        print(f"{name:22} {value:.4g}")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 1 if reuse.differences else 0


if __name__ == "__main__":
    sys.exit(main())
