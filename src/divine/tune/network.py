"""Drafting heads in torch: what both architectures share, and HeadsNetwork.

Parameters bear the names of the container's tensors, so weights go to and fro without a table.
Outputs are the vectors o_k that the base's output matrix is multiplied with; that product belongs
to the loss. HeadsNetwork follows HeadsDefinition word for word, layer_network.py the other one.
Knows no data and no optimizer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from divine.heads import DRAFT_VOCAB, Definition, HeadsDefinition, tensor_name
from divine.heads.reference import inverse_gain

_RESIDUAL = 0.5  # where a learned residual begins


class DraftNetwork(nn.Module, ABC):
    """Parameters by their names in the container, and how states and tokens come in."""

    definition: Definition

    def __init__(self, definition: Definition, final_gain: NDArray[np.float32]) -> None:
        """`final_gain` float32 [d]: the weight of the base's final norm. Weights are empty."""
        super().__init__()
        self.definition = definition
        self.tensors = nn.ParameterDict()  # keys: names with "/" for ".", which torch forbids
        for name, shape in definition.tensor_shapes().items():
            if name != DRAFT_VOCAB:
                self.tensors[_key(name)] = nn.Parameter(torch.zeros(shape))
        inverse = torch.from_numpy(inverse_gain(final_gain))
        self.register_buffer("inverse_gain", inverse, persistent=False)

    @abstractmethod
    def initialize(self, seed: int, final_gain: NDArray[np.float32], typical: float) -> None:
        """Random matrices, by seed.

        `typical`: root mean square of the base's hidden states.
        """

    @abstractmethod
    def embed(self, embedding: Tensor) -> Tensor:
        """e [..., d] of rows of the base's table."""

    @abstractmethod
    def forward(self, hidden: Tensor, embedded: Tensor) -> list[Tensor]:
        """o_1 ... o_M, each [n, length, d].

        hidden [n, length, d]; embedded [n, length + M, d]: e of the tokens that begin with those
        that the hidden states chose. o_k at position j has gone on from the hidden state there, as
        a draft of k tokens does.
        """

    def load(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Take weights under their container's names."""
        with torch.no_grad():
            for name, values in tensors.items():
                if name != DRAFT_VOCAB:
                    self.tensor(name).copy_(torch.from_numpy(np.asarray(values, np.float32)))

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """The weights under their container's names, float32."""
        return {
            key.replace("/", "."): values.detach().float().cpu().numpy().copy()
            for key, values in self.tensors.items()
        }

    def tensor(self, name: str) -> nn.Parameter:
        """The parameter of a name of the container."""
        parameter: nn.Parameter = self.tensors[_key(name)]
        return parameter

    def ungained(self, hidden: Tensor) -> Tensor:
        """Hidden states after the final norm, without its gain."""
        inverse: Tensor = self.inverse_gain  # type: ignore[assignment]
        return hidden * inverse

    def rms(self, x: Tensor) -> Tensor:
        """x / sqrt(mean(x^2) + eps) over the last axis, computed in float32."""
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.definition.eps)
        return scaled.to(x.dtype)


class HeadsNetwork(DraftNetwork):
    """All heads of a definition."""

    definition: HeadsDefinition

    def initialize(self, seed: int, final_gain: NDArray[np.float32], typical: float) -> None:
        """Heads that begin as the base's own state, a token too old; see DraftNetwork."""
        random = torch.Generator().manual_seed(seed)
        gain = torch.from_numpy(final_gain.astype(np.float32))
        dim = self.definition.dim
        with torch.no_grad():
            for number in range(self.definition.sets):
                down = self._of(number, "proj_down.weight")
                down.copy_(torch.randn(down.shape, generator=random) * (2 * dim) ** -0.5)
                if self.definition.residual_weight:
                    self._of(number, "residual.weight").fill_(_RESIDUAL)
                norm = self._of(number, "norm.weight")
                if self.definition.start == "unit":
                    norm.copy_(gain)
                else:
                    norm.fill_(typical)

    def start(self, hidden: Tensor) -> Tensor:
        """z_0 [..., d] of hidden states after the final norm."""
        return hidden if self.definition.start == "hidden" else self.ungained(hidden)

    def embed(self, embedding: Tensor) -> Tensor:
        """e [..., d] of rows of the base's table."""
        return self.rms(embedding) if self.definition.embedding_norm else embedding

    def level(self, depth: int, state: Tensor, embedded: Tensor) -> tuple[Tensor, Tensor]:
        """(z_k, o_k) of depth k from 1, of z_{k-1} and e, each [..., d]."""
        definition, number = self.definition, self.definition.set_of(depth)
        bias = self._of(number, "proj_down.bias") if definition.bias else None
        down = self._of(number, "proj_down.weight")
        inner = functional.linear(torch.cat([state, embedded], dim=-1), down, bias)
        if definition.activation == "silu":
            inner = functional.silu(inner)
        elif definition.activation == "gelu":
            inner = functional.gelu(inner, approximate="tanh")
        update = functional.linear(inner, self._of(number, "proj_up.weight"))
        residual = state
        if definition.residual_weight:
            residual = state * self._of(number, "residual.weight")
        total = residual + definition.scale * update
        unit = self.rms(total)
        output = unit * self._of(number, "norm.weight")
        carried = {"sum": total, "unit": unit, "gained": output}[definition.carry]
        return carried, output

    def forward(self, hidden: Tensor, embedded: Tensor) -> list[Tensor]:
        """o_1 ... o_M, each [n, length, d]; see DraftNetwork."""
        length = hidden.shape[1]
        state = self.start(hidden)
        outputs = []
        for depth in range(1, self.definition.num_heads + 1):
            state, output = self.level(depth, state, embedded[:, depth - 1 : depth - 1 + length])
            outputs.append(output)
        return outputs

    def _of(self, number: int, part: str) -> nn.Parameter:
        return self.tensor(tensor_name(number, part))


def _key(name: str) -> str:
    return name.replace(".", "/")
