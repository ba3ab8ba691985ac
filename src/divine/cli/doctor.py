"""`divine doctor`: what this computer offers, for a bug report or a slow answer.

Works when parts are missing or broken; that is when it is needed.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
from typing import Any

from divine import __version__
from divine.cli import options
from divine.cli.console import gigabytes, print_json, printable, write

_ROOF_BYTES = 1 << 30  # far beyond any cache; less where memory is short
_LIBRARIES = ("numpy", "tokenizers", "jinja2", "typer", "rich", "huggingface-hub")


def command(
    threads: options.Threads = None, json: options.Json = False, debug: options.Debug = False
) -> None:
    """Show processor, memory, measured read bandwidth, kernels in use, and versions."""
    report = _report(threads)
    if json:
        print_json(report)
        return
    for title, section in report.items():
        if not isinstance(section, dict):
            write(f"{title:10}{section}\n")
            continue
        for name, value in section.items():
            words = _words(name)
            write(f"{title:10}{words:22}{printable(_shown(name, value))}\n")
            title = ""


def _report(threads: int | None) -> dict[str, Any]:
    from divine.machine import default_threads, probe_cpu, probe_memory
    from divine.store import models_folder

    cpu, memory = probe_cpu(), probe_memory()
    threads = threads or default_threads(cpu)
    return {
        "divine": __version__,
        "cpu": {
            "name": cpu.name,
            "architecture": cpu.architecture,
            "threads": cpu.logical,
            "usable_threads": cpu.usable,
            "cores": cpu.cores,
            "quota": cpu.quota,
            "levels": list(cpu.levels),
        },
        "native": _native(threads, memory.available),
        "memory": {
            "total_bytes": memory.total,
            "available_bytes": memory.available,
            "limited_by_container": memory.limited,
            "huge_pages": memory.huge_pages,
        },
        "versions": {
            "python": platform.python_version(),
            "system": platform.platform(),
            **{name: _version(name) for name in _LIBRARIES},
        },
        "models": str(models_folder()),
    }


def _native(threads: int, available: int) -> dict[str, Any]:
    """What the compiled part says of itself, and the bandwidth it measures; or why it is absent."""
    try:
        native = importlib.import_module("divine.backends.cpu._native")
    except ImportError as error:
        return {"error": f"the native module cannot be loaded: {error}"}
    level, warning = native.best_level()
    nbytes = min(_ROOF_BYTES, available // 4)
    return {
        "levels": native.levels(),
        "level_in_use": level,
        "warning": warning or None,
        "threads": threads,
        "memory_roof_gb_s": round(native.read_bandwidth(nbytes, threads), 2),
    }


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _words(name: str) -> str:
    return name.removesuffix("_bytes").removesuffix("_gb_s").replace("_", " ")


def _shown(name: str, value: Any) -> str:
    if name.endswith("_bytes"):
        return gigabytes(value)
    if name.endswith("_gb_s"):
        return f"{value} GB/s"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "none" if value is None else str(value)
