"""What this computer is: one probe that every other part asks.

Knows processors, memory and huge pages, through the operating system only. It does not know which
kernels exist (the cpu backend decides that) and measures nothing.
"""

from divine.machine.cpu import Cpu, default_threads, probe_cpu
from divine.machine.folders import cache_folder
from divine.machine.memory import Memory, peak_rss_bytes, probe_memory

__all__ = [
    "Cpu",
    "Memory",
    "cache_folder",
    "default_threads",
    "peak_rss_bytes",
    "probe_cpu",
    "probe_memory",
]
