"""Memory: how much there is, how much a model may take now, and whether huge pages can be had.

A container's limit counts as the machine's size. It allocates nothing and does not measure speed:
the bandwidth is measured by the native module, which has the threads and the instructions for it.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/")


@dataclass(frozen=True)
class Memory:
    """Sizes in bytes; 0 where the operating system does not say."""

    total: int
    available: int
    limited: bool  # a container's limit is below the machine's memory
    huge_pages: str  # transparent huge pages: "always", "madvise", "never" or "unknown"


def probe_memory(root: Path = _ROOT) -> Memory:
    """Ask the operating system; never fails. `root` is where /proc and /sys are looked for."""
    info = _meminfo(root)
    total = info.get("MemTotal") or _sysconf_total()
    available = info.get("MemAvailable", total)
    limit, used = _cgroup(root)
    limited = bool(limit) and limit < total
    if limited:
        available = min(available, max(0, limit - used))
        total = limit
    return Memory(total, available, limited, _huge_pages(root))


def peak_rss_bytes() -> int:
    """The most memory this process has had resident, or 0 where that is not told."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _meminfo(root: Path) -> dict[str, int]:
    matches = re.findall(r"^(\w+):\s+(\d+) kB$", _read(root / "proc/meminfo"), re.MULTILINE)
    return {name: int(kib) * 1024 for name, kib in matches}


def _sysconf_total() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def _cgroup(root: Path) -> tuple[int, int]:
    """(limit, used without page cache that can be dropped), or (0, 0) without a limit."""
    base = root / "sys/fs/cgroup"
    for limit_file, used_file, cache_key in (
        (base / "memory.max", base / "memory.current", "inactive_file"),
        (
            base / "memory/memory.limit_in_bytes",
            base / "memory/memory.usage_in_bytes",
            "total_inactive_file",
        ),
    ):
        limit, used = _read(limit_file).strip(), _read(used_file).strip()
        if limit.isdigit() and used.isdigit():
            stat = _read(limit_file.parent / "memory.stat")
            match = re.search(rf"^{cache_key} (\d+)$", stat, re.MULTILINE)
            return int(limit), int(used) - (int(match[1]) if match else 0)
    return 0, 0


def _huge_pages(root: Path) -> str:
    match = re.search(r"\[(\w+)\]", _read(root / "sys/kernel/mm/transparent_hugepage/enabled"))
    return match[1] if match else "unknown"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
