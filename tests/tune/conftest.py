"""These tests need torch, which only training does."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
pytest.importorskip("torch", reason="training needs torch: the extra `tune`")

import torch

torch.set_num_threads(1)  # several processes of tests share the machine
