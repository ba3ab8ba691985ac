#!/usr/bin/env python3
"""Time from the start of a process to its first token, and the most memory it took.

    python scripts/first_token.py MODEL.gguf [--starts 5] [--json FILE]

Starts `divine run` anew each time and waits for the first byte of the answer. The file is read once
before, so that it lies in the page cache. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

PROMPT = "Explain in two sentences why the sky is blue during the day and red at sunset."
READ_AT_ONCE = 1 << 24


def start(model: str) -> tuple[float, float]:
    """Seconds to the first byte of an answer, and megabytes of memory at most."""
    command = [sys.executable, "-m", "divine", "run", model, PROMPT, "-n", "1", "--temp", "0"]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.read(1)
        seconds = time.perf_counter() - began
        if not first:
            sys.exit(process.stderr.read().decode())
        process.stdout.read()
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
    return seconds, usage.ru_maxrss / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model")
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    with Path(arguments.model).open("rb") as file:
        while file.read(READ_AT_ONCE):
            pass
    runs = [start(arguments.model) for _ in range(arguments.starts)]
    seconds, memory = sorted(run[0] for run in runs), max(run[1] for run in runs)
    median = statistics.median(seconds)
    print(f"to the first token: median {median:.2f} s, {seconds[0]:.2f} to {seconds[-1]:.2f} s")
    size = Path(arguments.model).stat().st_size / 1e6
    print(f"memory: {memory:.0f} MB at most; the file has {size:.0f}")
    if arguments.json:
        figures = {"seconds": seconds, "median": median, "peak_mb": memory}
        Path(arguments.json).write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
