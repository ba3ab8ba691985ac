"""Weights for tests that need no file."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from divine.gguf import TensorData


class MemoryWeights:
    """A WeightSource over tensors in memory."""

    def __init__(self, tensors: Mapping[str, TensorData]) -> None:
        self.tensors = dict(tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name].shape

    def block_type(self, name: str) -> str:
        return self.tensors[name].block_type

    def raw(self, name: str) -> NDArray[np.uint8]:
        data = self.tensors[name].data
        assert isinstance(data, np.ndarray)
        return np.ascontiguousarray(data).view(np.uint8).reshape(-1)

    def release(self, name: str) -> None:
        pass

    def poke(self, name: str, index: int, value: float) -> None:
        """Replace one value of an F32 tensor."""
        tensor = self.tensors[name]
        values = self.raw(name).view(np.float32).copy()
        values[index] = value
        self.tensors[name] = TensorData(tensor.block_type, tensor.shape, values)
