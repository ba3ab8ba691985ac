#!/usr/bin/env python3
"""Compare Divine with llama.cpp on one model file: decoding, passes of n rows, prefill.

    python scripts/compare.py MODEL.gguf [--threads 2] [--rounds 3] [--json FILE]

Both sides run in processes of their own, in turn, several rounds in one run, and medians are
compared: on a shared machine only such ratios mean anything. llama.cpp comes as the PyPI wheel
xllamacpp, put into an environment of its own in the user's cache. Nothing else should run
meanwhile.

A pass of n rows: llama.cpp's is the evaluation of a prompt of n tokens (one row of logits);
Divine's stands on 256 committed positions and returns the argmax of every row.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

WHEEL = "xllamacpp==2026.10.11549"
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 512)
DECODED = 96
PROMPT = "Write a Python class for a least-recently-used cache with get and put, and explain it."


def llama_cpp(model: str, threads: int) -> dict[str, float]:
    """tokens/s of decoding and milliseconds of passes, by llama.cpp's own clocks."""
    import xllamacpp

    settings = xllamacpp.CommonParams()
    settings.model.path = model
    settings.n_ctx, settings.n_parallel, settings.verbosity = 2048, 1, -1
    settings.use_jinja = True
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(settings)
    plain = {"temperature": 0, "cache_prompt": False}
    figures: dict[str, float] = {}
    question = [{"role": "user", "content": PROMPT}]
    answer = server.handle_chat_completions({"messages": question, "max_tokens": DECODED, **plain})
    figures["decode"] = answer["timings"]["predicted_per_second"]
    for rows in ROWS:
        times = []
        for attempt in range(3 if rows <= 64 else 1):
            prompt = [300 + (37 * i + 1009 * attempt) % 20000 for i in range(rows)]
            answer = server.handle_completions({"prompt": prompt, "n_predict": 1, **plain})
            times.append(answer["timings"]["prompt_ms"])
        figures[f"pass {rows}"] = statistics.median(times)
    return figures


def divine(model: str, threads: int) -> dict[str, float]:
    """The same by Divine, through the executable that everything else uses."""
    import numpy as np

    from divine.api import load
    from divine.backends.base import Rows, Want
    from divine.backends.cpu.backend import CpuBackend
    from divine.gguf import open_gguf
    from divine.models import build_program

    figures: dict[str, float] = {}
    with load(model, threads=threads, heads="none") as loaded:
        done = loaded.generate(PROMPT, temperature=0, max_tokens=DECODED, draft="none")
        figures["decode"] = done.statistics.decode_tok_s or 0.0
    with open_gguf(model) as file:
        executable = CpuBackend().compile(build_program(file), file, threads=threads)
    # One state for all, as the other side keeps its cache; awake, as while a text is written.
    state = executable.new_state(1024)
    state.native.fill(256)
    executable.run([state], Rows.chain([1]), Want(best=[0]))
    for rows in ROWS:
        times = []
        base = 256 if rows <= 64 else 0
        for attempt in range(3 if rows <= 64 else 1):
            state.truncate(base)
            tokens = np.array([300 + (37 * i + 1009 * attempt) % 20000 for i in range(rows)])
            start = time.perf_counter()
            for first in range(0, rows, executable.max_rows):
                part = tokens[first : first + executable.max_rows].astype(np.int32)
                wanted = range(len(part)) if rows <= 64 else [len(part) - 1]
                executable.run([state], Rows.chain(part), Want(best=list(wanted)))
                state.commit(range(len(part)))
            times.append(1e3 * (time.perf_counter() - start))
        figures[f"pass {rows}"] = statistics.median(times)
    return figures


def peer_python() -> Path:
    """An environment of its own with llama.cpp's wheel."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "divine" / "oracles"
    python = cache / WHEEL.replace("==", "-") / "bin" / "python"
    if not python.exists():
        print(f"installing {WHEEL} into {python.parent.parent} ...", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(python.parent.parent)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", WHEEL], check=True)
    return python


def ask(python: Path, worker: str, model: Path, threads: int) -> dict[str, float]:
    """One side's figures, measured in a process of its own."""
    command = [str(python), __file__, str(model), "--worker", worker, "--threads", str(threads)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(out.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", choices=("llama_cpp", "divine"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        side = llama_cpp if args.worker == "llama_cpp" else divine
        print(json.dumps(side(str(args.model), args.threads)), flush=True)
        os._exit(0)  # llama.cpp's server threads would keep the process alive
    sides = {"llama_cpp": peer_python(), "divine": Path(sys.executable)}
    samples: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in sides}
    for number in range(args.rounds):
        for name, python in sides.items():
            print(f"round {number + 1} of {args.rounds}: {name}", file=sys.stderr)
            for key, value in ask(python, name, args.model, args.threads).items():
                samples[name][key].append(value)
    report(samples, args.json)


def report(samples: dict[str, dict[str, list[float]]], path: Path | None) -> None:
    """Print medians and their ratios; above 1 means that Divine is faster."""
    rows: dict[str, dict[str, Any]] = {}
    print(f"{'':12}{'llama.cpp':>12}{'Divine':>12}{'ratio':>8}")
    for key in samples["divine"]:
        theirs, ours = (statistics.median(samples[side][key]) for side in ("llama_cpp", "divine"))
        ratio = ours / theirs if key == "decode" else theirs / ours
        unit = "tok/s" if key == "decode" else "ms"
        print(f"{key:12}{theirs:12.1f}{ours:12.1f}{ratio:8.2f}  ({unit})")
        rows[key] = {"llama_cpp": theirs, "divine": ours, "ratio": ratio, "unit": unit}
    if path:
        path.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
