"""LayerNetwork: the drafting layer in torch, following LayerDefinition word for word.

Training unrolls what drafting does, as EAGLE-3's training-time test does: at depth 1 every position
of an answer is a row on the base's own state and sees the rows before it; at depth k each position
goes on from its own row of depth k - 1, and sees the rows of depth 1 up to where it began and its
own since. Knows no data and no optimizer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from divine.heads import LayerDefinition
from divine.heads.layer import layer_tensor
from divine.heads.layer_reference import rope_frequencies
from divine.tune.network import DraftNetwork

_RESIDUAL = 0.5  # where the learned residual begins


@dataclass(frozen=True)
class _Memory:
    """Keys and values of the rows of one depth, [n, kv_heads, 1, length, head_dim]."""

    key: Tensor
    value: Tensor


class LayerNetwork(DraftNetwork):
    """The layer of a definition."""

    definition: LayerDefinition

    def initialize(self, seed: int, final_gain: NDArray[np.float32], typical: float) -> None:
        """A layer that begins as the base's own state, a token too old, as heads do."""
        random = torch.Generator().manual_seed(seed)
        silent = ("attn_output", "ffn_down")  # attention and MLP begin with nothing to say
        with torch.no_grad():
            for name in self.definition.tensor_shapes():
                part = name.removesuffix(".weight").rpartition(".")[2]
                if part == "draft_vocab" or part in silent:
                    continue
                tensor = self.tensor(name)
                if tensor.dim() == 2:
                    drawn = torch.randn(tensor.shape, generator=random)
                    tensor.copy_(drawn * tensor.shape[1] ** -0.5)
                else:
                    tensor.fill_(_RESIDUAL if part == "residual" else 1.0)
            gain = torch.from_numpy(final_gain.astype(np.float32))
            self._of("norm").copy_(gain)

    def start(self, hidden: Tensor) -> Tensor:
        """z [..., d] of what the taps gave, [..., taps * d]."""
        if not self.definition.fused:
            return self.ungained(hidden)
        parts = self.rms(hidden.view(*hidden.shape[:-1], len(self.definition.taps), -1))
        return self.rms(functional.linear(parts.flatten(-2), self._of("taps")))

    def embed(self, embedding: Tensor) -> Tensor:
        """e [..., d] of rows of the base's table."""
        return self.rms(embedding)

    def forward(self, hidden: Tensor, embedded: Tensor) -> list[Tensor]:
        """o_1 ... o_M, each [n, length, d]; see DraftNetwork."""
        length = hidden.shape[1]
        state = self.start(hidden)
        memories: list[_Memory] = []
        outputs = []
        for depth in range(1, self.definition.depths + 1):
            tokens = embedded[:, depth - 1 : depth - 1 + length]
            state, output = self._level(state, tokens, memories)
            outputs.append(output)
        return outputs

    def _level(
        self, state: Tensor, embedded: Tensor, memories: list[_Memory]
    ) -> tuple[Tensor, Tensor]:
        """(n, o), each [n, length, d], of the depth after those in `memories`; it joins them."""
        x = self._product("fuse", torch.cat([state, embedded], -1))
        inner = self.rms(x) * self._of("attn_norm")
        first = len(memories)  # how far these rows are from where they began
        query = self._turn(self._heads("attn_q", inner), first)
        memories.append(
            _Memory(self._turn(self._heads("attn_k", inner), first), self._heads("attn_v", inner))
        )
        added = self._product("attn_output", self._attend(query, memories))
        m = self.rms(x + added) * self._of("ffn_norm")
        gated = functional.silu(self._product("ffn_gate", m)) * self._product("ffn_up", m)
        total = state * self._of("residual") + added + self._product("ffn_down", gated)
        unit = self.rms(total)
        return unit, unit * self._of("norm")

    def _attend(self, query: Tensor, memories: list[_Memory]) -> Tensor:
        """[n, length, heads * head_dim] of queries [n, kv_heads, group, length, head_dim]."""
        definition, whole = self.definition, memories[0]
        length, ahead = query.shape[3], len(memories) - 1
        query = query * definition.head_dim**-0.5
        places = torch.arange(length, device=query.device)
        before = places[:, None] - places[None, :]
        seen = (before >= 0) & (before + ahead < definition.window)
        scores = query @ whole.key.transpose(-1, -2)
        scores = scores.masked_fill(~seen, -torch.inf)
        own = [(query * memory.key).sum(dim=-1, keepdim=True) for memory in memories[1:]]
        weights = torch.softmax(torch.cat([scores, *own], dim=-1).float(), dim=-1).to(query.dtype)
        out = weights[..., :length] @ whole.value
        for number, memory in enumerate(memories[1:]):
            place = length + number
            out = out + weights[..., place : place + 1] * memory.value
        return out.flatten(1, 2).transpose(1, 2).flatten(2)

    def _heads(self, part: str, x: Tensor) -> Tensor:
        """[n, kv_heads, group or 1, length, head_dim] of x [n, length, d]."""
        definition = self.definition
        count, length = x.shape[:2]
        flat = self._product(part, x)
        divided = flat.view(count, length, definition.kv_heads, -1, definition.head_dim)
        return divided.permute(0, 2, 3, 1, 4)

    def _turn(self, x: Tensor, first: int) -> Tensor:
        """x [..., length, head_dim] turned to positions from `first` on."""
        positions = torch.arange(first, first + x.shape[-2], dtype=torch.float64)
        angles = torch.outer(positions, torch.from_numpy(rope_frequencies(self.definition)))
        cos, sin = (turned.to(x.device, x.dtype) for turned in (angles.cos(), angles.sin()))
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)

    def _of(self, part: str) -> Tensor:
        return self.tensor(layer_tensor(f"{part}.weight"))

    def _product(self, part: str, x: Tensor) -> Tensor:
        return functional.linear(x, self._of(part))
