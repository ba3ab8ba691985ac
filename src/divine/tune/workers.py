"""Workers: the processes that train together, and the device of this one.

One process without torchrun or accelerate; otherwise theirs, on CPUs or GPUs. What is summed over
workers is all they share. Knows no heads.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from divine.errors import UnsupportedError, UsageError


def usable_device(name: str | None) -> torch.device:
    """That device, or a GPU if there is one. Raises UsageError if it cannot be used."""
    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"device is {name!r}, which cannot be used here: {reason}") from None
    return device


class Workers:
    """This process among those that train together."""

    def __init__(self, device: str | None = None) -> None:
        """`device`: such as "cpu" or "cuda"; None: a GPU if there is one."""
        self.rank, self.ranks = 0, 1
        self._accelerator: Any = None
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            try:
                from accelerate import Accelerator
            except ImportError:
                raise UnsupportedError(
                    "training in several processes needs the package accelerate: "
                    "pip install 'divine-llm[tune]'"
                ) from None
            self._accelerator = Accelerator(cpu=device == "cpu" or not torch.cuda.is_available())
            self.rank = self._accelerator.process_index
            self.ranks = self._accelerator.num_processes
            self.device = self._accelerator.device
            return
        self.device = usable_device(device)

    @property
    def first(self) -> bool:
        """This is the process that writes."""
        return self.rank == 0

    @property
    def half(self) -> torch.dtype | None:
        """bfloat16 where the device computes with it faster; None: nothing but float32."""
        if self.device.type == "cuda" and torch.cuda.is_bf16_supported():
            return torch.bfloat16
        return None

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes, the same in each."""
        if self._accelerator is None:
            return values
        summed: Tensor = self._accelerator.reduce(values, reduction="sum")
        return summed

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace gradients by their sums over all processes."""
        if self._accelerator is None:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = self.sum(torch.cat([gradient.reshape(-1) for gradient in gradients]))
        at = 0
        for gradient in gradients:
            gradient.copy_(flat[at : at + gradient.numel()].reshape(gradient.shape))
            at += gradient.numel()

    def wait(self) -> None:
        """Until all processes have come here."""
        if self._accelerator is not None:
            self._accelerator.wait_for_everyone()

    def close(self) -> None:
        """Leave the group."""
        if self._accelerator is not None:
            self._accelerator.end_training()
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()
