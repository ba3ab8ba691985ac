"""What every report says beside its figures: the machine and the day."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from typing import Any

from divine import __version__
from divine.machine import probe_cpu, probe_memory


def describe_machine(level: str, threads: int) -> dict[str, Any]:
    """The machine, and the instruction set and threads that computed."""
    cpu, memory = probe_cpu(), probe_memory()
    return {
        "cpu": cpu.name,
        "level": level,
        "threads": threads,
        "memory_gb": round(memory.total / 1e9, 1),
        "huge_pages": memory.huge_pages,
        "system": platform.platform(),
        "divine": __version__,
    }


def today() -> str:
    """The date, in UTC."""
    return datetime.now(UTC).date().isoformat()
