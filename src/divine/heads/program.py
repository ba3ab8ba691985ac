"""Drafting heads as programs: the operations of one level, on the base's own embeddings and output.

reference.py is the specification. A row of such a program is a token and the state z that belongs
to it; it returns the logits of the token after it, and the next z as a tap. Knows the definition
and the base's program; no weights and no backend.
"""

from __future__ import annotations

from divine.errors import FormatError
from divine.heads.architectures import Definition
from divine.heads.definition import HeadsDefinition, tensor_name
from divine.program import (
    Add,
    Concat,
    Embed,
    Given,
    Head,
    Linear,
    Norm,
    Normalize,
    Op,
    Part,
    Program,
    Tap,
)
from divine.program.program import FINAL_TAP

_STATE = "state"


def level_program(definition: HeadsDefinition, number: int, base: Program) -> Program:
    """The program of the set of tensors `number`, from 0.

    Raises FormatError if the heads are of another width than the base.
    """
    check_base(definition, base)
    head = base.head
    eps = definition.eps

    def tensor(part: str) -> str:
        return tensor_name(number, part)

    ops: list[Op] = [Embed("e", base.embed.table), Given("z")]
    if definition.embedding_norm:
        ops.append(Normalize("e", "e", Norm(None, eps)))
    bias = tensor("proj_down.bias") if definition.bias else None
    activation = None if definition.activation == "none" else definition.activation
    residual = tensor("residual.weight") if definition.residual_weight else None
    ops += [
        Concat("c", ("z", "e")),
        Linear("c", (Part("i", tensor("proj_down.weight"), bias),), activation=activation),
        Linear("i", (Part("u", tensor("proj_up.weight")),)),
        Add("s", "z", "u", residual, definition.scale),
    ]
    if definition.carry == "sum":
        ops.append(Tap(_STATE, "s"))
    elif definition.carry == "unit":
        ops += [Normalize("n", "s", Norm(None, eps)), Tap(_STATE, "n")]
    ops.append(Head("s", head.weight, Norm(tensor("norm.weight"), eps), head.bias))
    return Program(
        architecture=definition.architecture,
        dim=base.dim,
        vocabulary=base.vocabulary,
        layers=0,
        context=1,
        ops=tuple(ops),
    )


def state_tap(definition: HeadsDefinition) -> str:
    """The tap that gives the next z."""
    return FINAL_TAP if definition.carry == "gained" else _STATE


def check_base(definition: Definition, base: Program) -> None:
    """Raises FormatError if the heads are of another width than the base."""
    if definition.dim != base.dim:
        raise FormatError(
            f"the drafting heads are for models of width {definition.dim}; this one's is {base.dim}"
        )
