"""Without torch, which the core does not need, tests of training are left out and it is said."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator

import pytest

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

_WITH_TORCH = ("alignment", "checkpoint_base", "compare", "layer_network", "network", "training")
collect_ignore: list[str] = []

if importlib.util.find_spec("torch") is None:
    collect_ignore = [f"test_{name}.py" for name in _WITH_TORCH]
else:
    import torch

    torch.set_num_threads(1)  # several processes of tests share the machine


def pytest_report_header() -> list[str]:
    """Say what is not tested."""
    if not collect_ignore:
        return []
    return ["tests of training are left out: torch is not installed (the extra `tune`)"]


@pytest.fixture(autouse=True)
def _subnormals_kept() -> Iterator[None]:
    """Training flushes them in its process; tests that share the process must not notice."""
    yield
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_flush_denormal(False)
