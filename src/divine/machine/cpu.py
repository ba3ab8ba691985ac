"""The processor: its name, its cores, what it can do, and how many threads are worth starting.

Linux tells all of it in /proc and /sys; elsewhere the standard library tells name and count, and
the rest stays empty. It does not decide which kernels run: the native module asks the CPU itself.
"""

from __future__ import annotations

import math
import os
import platform
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc/cpuinfo")
_CGROUP = Path("/sys/fs/cgroup")

# The instruction sets that matter to integer dot products, as /proc/cpuinfo spells them.
_LEVELS = {
    "avx2": {"avx2", "fma", "f16c"},
    "avx-vnni": {"avx2", "fma", "f16c", "avx_vnni"},
    "avx512-vnni": {"avx512f", "avx512bw", "avx512vl", "avx512_vnni"},
}


@dataclass(frozen=True)
class Cpu:
    """One computer's processors, as this process may use them."""

    name: str
    architecture: str  # "x86_64", "aarch64", ...
    logical: int  # hardware threads of the machine
    usable: int  # hardware threads this process may run on
    cores: int  # physical cores behind the usable threads
    quota: float | None  # processors a container grants, or None without a limit
    flags: frozenset[str]

    @property
    def levels(self) -> tuple[str, ...]:
        """Instruction-set levels that the flags allow, lowest first."""
        return ("scalar", *(name for name, need in _LEVELS.items() if need <= self.flags))


def probe_cpu(proc: Path = _PROC, cgroup: Path = _CGROUP) -> Cpu:
    """Ask the operating system; never fails, unknown parts are empty or 1."""
    usable = _usable_threads()
    text = _read(proc)
    blocks = [_fields(block) for block in text.split("\n\n") if block.strip()]
    first = blocks[0] if blocks else {}
    flags = first.get("flags") or first.get("Features") or ""
    return Cpu(
        name=first.get("model name") or platform.processor() or platform.machine() or "unknown",
        architecture=platform.machine(),
        logical=os.cpu_count() or 1,
        usable=len(usable),
        cores=_physical_cores(blocks, usable) or len(usable),
        quota=_quota(cgroup),
        flags=frozenset(flags.split()),
    )


def default_threads(cpu: Cpu | None = None) -> int:
    """One thread for each physical core that may be used: weights are read from memory, so the
    second hardware thread of a core adds nothing but contention. A container's quota is a ceiling.
    """
    cpu = cpu or probe_cpu()
    limit = math.ceil(cpu.quota) if cpu.quota else cpu.cores
    return max(1, min(cpu.cores, limit))


def _usable_threads() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _physical_cores(blocks: list[dict[str, str]], usable: set[int]) -> int:
    """Distinct (package, core) pairs among usable threads; 0 when the file does not say."""
    seen = {
        (block.get("physical id", "0"), block["core id"])
        for block in blocks
        if "core id" in block and int(block.get("processor", "-1")) in usable
    }
    return len(seen)


def _quota(cgroup: Path) -> float | None:
    """Processors granted by the container's cgroup (version 2, then 1)."""
    parts = _read(cgroup / "cpu.max").split()
    if len(parts) != 2:
        parts = [
            _read(cgroup / "cpu" / "cpu.cfs_quota_us").strip(),
            _read(cgroup / "cpu" / "cpu.cfs_period_us").strip(),
        ]
    try:
        quota, period = (float(part) for part in parts)
    except ValueError:  # "max", or no such file
        return None
    return quota / period if quota > 0 and period > 0 else None


def _fields(block: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in block.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
