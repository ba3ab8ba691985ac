"""The drafting layer as a program, and compiled onto a base's executable.

layer_reference.py is the specification. A row of the program is a token and the state z behind it;
it returns the logits of the token after it, and its own state as a tap. Earlier rows are in a State
of the layer's own. Knows executables and rows; nothing of trees, claims or sampling.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from divine.backends.base import Executable, PassResult, Rows, State, Want
from divine.backends.base import WeightSource as Source
from divine.errors import UnsupportedError
from divine.heads.layer import LayerDefinition, layer_tensor
from divine.heads.layer_reference import rope_frequencies
from divine.heads.levels import Both, OnBase
from divine.heads.program import check_base
from divine.program import (
    Add,
    Attention,
    Concat,
    Embed,
    GatedMlp,
    Given,
    Head,
    Linear,
    Norm,
    Normalize,
    Part,
    Program,
    Rope,
    Tap,
)

MAX_ROWS = 64  # of one call
_STATE = "state"


def layer_program(definition: LayerDefinition, base: Program) -> Program:
    """The program of a layer on the base's own embeddings and output.

    Raises FormatError if it is of another width than the base, UnsupportedError for a layer on
    other states than the base's final one.
    """
    check_base(definition, base)
    if definition.fused:
        raise UnsupportedError(
            f"the drafting layer is on the base's states {', '.join(definition.taps)}; only the "
            "final one is supported"
        )
    head, eps = base.head, definition.eps

    def tensor(part: str) -> str:
        return layer_tensor(f"{part}.weight")

    frequencies = tuple(rope_frequencies(definition).tolist())
    attention = Attention(
        "a", "q", "k", "v", 0, definition.heads, definition.kv_heads, definition.head_dim,
        definition.head_dim**-0.5, Rope("half", definition.head_dim, frequencies),
        window=definition.window,
    )  # fmt: skip
    inner = tuple(Part(name, tensor(f"attn_{name}")) for name in ("q", "k", "v"))
    return Program(
        architecture=definition.architecture,
        dim=base.dim,
        vocabulary=base.vocabulary,
        layers=1,
        context=base.context,
        ops=(
            Embed("e", base.embed.table),
            Given("z"),
            Normalize("e", "e", Norm(None, eps)),
            Concat("c", ("z", "e")),
            Linear("c", (Part("x", tensor("fuse")),)),
            Linear("x", inner, norm=Norm(tensor("attn_norm"), eps)),
            attention,
            Linear("a", (Part("b", tensor("attn_output")),)),
            Add("m", "x", "b"),
            GatedMlp(
                "g", "m", tensor("ffn_gate"), tensor("ffn_up"), "silu",
                Norm(tensor("ffn_norm"), eps),
            ),
            Add("r", "z", "b", tensor("residual")),
            Linear("g", (Part("s", tensor("ffn_down")),), residual="r"),
            Normalize("n", "s", Norm(None, eps)),
            Tap(_STATE, "n"),
            Head("s", head.weight, Norm(tensor("norm"), eps), head.bias),
        ),
    )  # fmt: skip


class LayerLevels(OnBase):
    """The layer of one base; closed before the base's executable is."""

    def __init__(
        self,
        definition: LayerDefinition,
        weights: Source,
        base: Program,
        executable: Executable,
        base_weights: Source,
        draft_vocab: NDArray[np.int32] | None = None,
    ) -> None:
        """Compile; arguments and errors as for Levels."""
        super().__init__(definition, base, executable, base_weights, draft_vocab)
        self.definition = definition
        both = Both(weights, base_weights)
        self._layer = executable.extend(layer_program(definition, base), both, max_rows=MAX_ROWS)

    def new_state(self, capacity: int) -> State:
        """What one sequence will remember."""
        return self._layer.new_state(capacity)

    def run(
        self,
        state: State,
        tokens: NDArray[np.int32],
        parents: NDArray[np.int32],
        vectors: NDArray[np.float32],
        want: Want,
    ) -> tuple[PassResult, NDArray[np.float32]]:
        """What is wanted, and the layer's own states float32 [n, dim] of all n rows.

        tokens, parents int32 [n] as in Rows; vectors float32 [n, dim]: z of each row. The rows are
        left pending in the state. Raises NumericError if numbers are not finite.
        """
        n = len(tokens)
        rows = Rows(tokens, parents, np.zeros(n, np.int32), vectors)
        result = self._layer.run([state], rows, replace(want, taps={_STATE: range(n)}))
        return result, result.taps[_STATE]

    def close(self) -> None:
        """Free the layer; may be called twice."""
        self._layer.close()
