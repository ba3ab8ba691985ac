"""What the machine says of itself, from the files of made-up machines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from divine.machine import cpu, memory, peak_rss_bytes
from divine.machine.cpu import Cpu, default_threads, probe_cpu
from divine.machine.memory import probe_memory


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def hyperthreaded(root: Path) -> Path:
    """Four hardware threads on two cores."""
    blocks = [
        f"processor\t: {i}\nmodel name\t: Toy CPU @ 1GHz\nphysical id\t: 0\ncore id\t\t: {i % 2}\n"
        "flags\t\t: fpu avx2 fma f16c avx_vnni\n"
        for i in range(4)
    ]
    path = root / "cpuinfo"
    path.write_text("\n".join(blocks))
    return path


@pytest.fixture
def four_threads(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})


def test_cores_and_levels(tmp_path, four_threads):
    found = probe_cpu(hyperthreaded(tmp_path), tmp_path)
    assert (found.name, found.usable, found.cores) == ("Toy CPU @ 1GHz", 4, 2)
    assert found.levels == ("scalar", "avx2", "avx-vnni")
    assert default_threads(found) == 2


def test_affinity_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2})  # one core's two threads
    found = probe_cpu(hyperthreaded(tmp_path), tmp_path)
    assert (found.usable, found.cores) == (2, 1)


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu__cpu.cfs_quota_us": "50000\n", "cpu__cpu.cfs_period_us": "100000\n"}, 0.5),
        ({"cpu__cpu.cfs_quota_us": "-1\n", "cpu__cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu.max": "garbage"}, None),
    ],
)
def test_a_container_limits_threads(tmp_path, four_threads, files, quota):
    found = probe_cpu(hyperthreaded(tmp_path), write(tmp_path / "cgroup", **files))
    assert found.quota == quota
    assert default_threads(found) == (2 if quota is None or quota > 1 else 1)


def test_without_proc_everything_has_a_value(tmp_path):
    found = probe_cpu(tmp_path / "none", tmp_path)
    assert found.name
    assert found.cores == found.usable >= 1
    assert found.levels == ("scalar",)
    assert default_threads(Cpu("x", "y", 1, 1, 1, 0.01, frozenset())) == 1


MEMINFO = "MemTotal:       16000000 kB\nMemFree:  1 kB\nMemAvailable:    8000000 kB\n"
KIB = 1024


def test_memory(tmp_path):
    write(
        tmp_path,
        proc__meminfo=MEMINFO,
        sys__kernel__mm__transparent_hugepage__enabled="always [madvise] never\n",
    )
    found = probe_memory(tmp_path)
    assert (found.total, found.available) == (16_000_000 * KIB, 8_000_000 * KIB)
    assert (found.limited, found.huge_pages) == (False, "madvise")


def test_a_container_limits_memory(tmp_path):
    gib = 1 << 30
    group = {
        "sys__fs__cgroup__memory.max": f"{4 * gib}\n",
        "sys__fs__cgroup__memory.current": f"{3 * gib}\n",
        "sys__fs__cgroup__memory.stat": f"anon 5\ninactive_file {gib}\n",
    }
    write(tmp_path, proc__meminfo=MEMINFO, **group)
    found = probe_memory(tmp_path)
    assert (found.total, found.available, found.limited) == (4 * gib, 2 * gib, True)
    write(tmp_path, **{"sys__fs__cgroup__memory.max": "max\n"})
    assert not probe_memory(tmp_path).limited


def test_this_machine():
    assert probe_memory().total >= probe_memory().available > 0
    assert peak_rss_bytes() > 1 << 20
    assert cpu.probe_cpu().usable >= 1
    assert memory.probe_memory().huge_pages in ("always", "madvise", "never", "unknown")
