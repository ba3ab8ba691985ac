"""Levels: drafting heads compiled onto a base's executable, ready to be asked level by level.

Embeddings and output matrix are the base's, where they lie. A call runs all nodes of one depth in
one pass of the backend. Knows executables and rows; nothing of trees, claims or sampling.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from divine.backends.base import COMMITTED, Executable, PassResult, Rows, Shortlist, Want
from divine.backends.base import WeightSource as Source
from divine.blocks import dequantize
from divine.errors import FormatError
from divine.heads.architectures import Definition
from divine.heads.definition import HeadsDefinition
from divine.heads.program import check_base, level_program, state_tap
from divine.heads.reference import inverse_gain
from divine.program import Program

MAX_NODES = 16  # of one call; buffers are made for so many


class OnBase(ABC):
    """What all heads on a base have in common: their start and their draft vocabulary."""

    def __init__(
        self,
        definition: Definition,
        base: Program,
        executable: Executable,
        base_weights: Source,
        draft_vocab: NDArray[np.int32] | None,
    ) -> None:
        """Raises FormatError if width or vocabulary are not the base's."""
        check_base(definition, base)
        if draft_vocab is not None and int(draft_vocab[-1]) >= base.vocabulary:
            raise FormatError(
                f"the heads' draft vocabulary has token {int(draft_vocab[-1])}; the model has "
                f"tokens 0 to {base.vocabulary - 1}"
            )
        self.base = executable
        self.packed: Shortlist | None = None
        if draft_vocab is not None:
            self.packed = executable.pack_shortlist(draft_vocab)
        self._inverse: NDArray[np.float32] | None = None
        norm = base.head.norm
        if definition.start == "unit" and norm is not None and norm.weight is not None:
            name = norm.weight
            gain = dequantize(
                base_weights.raw(name), base_weights.block_type(name), base_weights.shape(name)
            )
            self._inverse = inverse_gain(gain)

    def start(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        """z_0 float32 [..., dim] of hidden states after the base's final norm."""
        return hidden if self._inverse is None else hidden * self._inverse

    @abstractmethod
    def close(self) -> None:
        """Free what was compiled."""


class Levels(OnBase):
    """The heads of one base; closed before the base's executable is."""

    def __init__(
        self,
        definition: HeadsDefinition,
        weights: Source,
        base: Program,
        executable: Executable,
        base_weights: Source,
        draft_vocab: NDArray[np.int32] | None = None,
    ) -> None:
        """Compile; `weights`: the heads' tensors, `base_weights` the base's.

        draft_vocab int32 [tokens], ascending: the tokens that are always drafted; None: all.
        Raises FormatError if width or vocabulary are not the base's.
        """
        super().__init__(definition, base, executable, base_weights, draft_vocab)
        self.definition = definition
        self._tap = state_tap(definition)
        both = Both(weights, base_weights)
        self._sets: list[Executable] = []
        try:
            for number in range(definition.sets):
                program = level_program(definition, number, base)
                self._sets.append(executable.extend(program, both, max_rows=MAX_NODES))
        except BaseException:
            self.close()
            raise
        self._states = [one.new_state(MAX_NODES) for one in self._sets]
        self._roots = np.full(MAX_NODES, COMMITTED, np.int32)
        self._zeros = np.zeros(MAX_NODES, np.int32)

    def set_of(self, depth: int) -> int:
        """Which depths may share a call: those of one set."""
        return self.definition.set_of(depth)

    def run(
        self, number: int, states: NDArray[np.float32], tokens: NDArray[np.int32], want: Want
    ) -> tuple[PassResult, NDArray[np.float32]]:
        """Run one set of tensors: what is wanted, and the next z float32 [n, dim] of all n nodes.

        states float32 [n, dim]: z of each node's parent; tokens int32 [n]: the node's own.
        Raises NumericError if numbers are not finite.
        """
        n = len(tokens)
        rows = Rows(tokens, self._roots[:n], self._zeros[:n], states)
        result = self._sets[number].run(
            [self._states[number]], rows, replace(want, taps={self._tap: range(n)})
        )
        return result, result.taps[self._tap]

    def close(self) -> None:
        """Free the heads; may be called twice."""
        for one in self._sets:
            one.close()
        self._sets = []


class Both:
    """The heads' tensors, and the base's where they have none."""

    def __init__(self, heads: Source, base: Source) -> None:
        self._heads = heads
        self._base = base

    def _of(self, name: str) -> Source:
        return self._heads if name.startswith("divine.") else self._base

    def shape(self, name: str) -> tuple[int, ...]:
        return self._of(name).shape(name)

    def block_type(self, name: str) -> str:
        return self._of(name).block_type(name)

    def raw(self, name: str) -> NDArray[np.uint8]:
        return self._of(name).raw(name)

    def release(self, name: str) -> None:
        self._of(name).release(name)
