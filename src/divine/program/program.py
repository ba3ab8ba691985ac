"""A program: operations in order, with the sizes that every backend needs, checked once.

check() verifies that values are written before they are read and that every weight has the shape
its use demands; str(program) prints one line per operation. It knows no backend and no file format.

Two kinds of fault are told apart: a program that is wrong in itself is our bug (ValueError),
weights that do not fit it are the file's (FormatError).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from divine.errors import FormatError
from divine.program.ops import (
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
    Op,
    Tap,
)

FINAL_TAP = "final"  # the normed input of the head; every program has it

Shape = Callable[[str], tuple[int, ...]]


@dataclass(frozen=True)
class Program:
    """A model as data."""

    architecture: str
    dim: int  # width of the residual stream
    vocabulary: int
    layers: int  # attention layers, numbered from 0
    context: int  # positions the model was trained for
    ops: tuple[Op, ...]

    def check(self, shape: Shape) -> None:
        """Check values and weights; shape(name) gives a tensor's shape in NumPy order.

        Raises FormatError for a weight that is missing (shape() raised KeyError or FormatError) or
        has another shape than its use demands, ValueError for a program that is wrong in itself.
        """
        check = _Check(self, shape)
        for op in self.ops:
            check.op(op)
        check.end()

    @property
    def tap_names(self) -> tuple[str, ...]:
        """Names a pass may ask hidden states for: those of Tap in order, then "final"."""
        return (*(op.name for op in self.ops if isinstance(op, Tap)), FINAL_TAP)

    @property
    def embed(self) -> Embed:
        """Its first operation of the kind: the rows of tokens."""
        return next(op for op in self.ops if isinstance(op, Embed))

    @property
    def head(self) -> Head:
        """Its last operation: the output matrix and the final norm."""
        return next(op for op in self.ops if isinstance(op, Head))

    def weights(self) -> tuple[str, ...]:
        """Names of all weights, each once, in order of first use."""
        names = (name for op in self.ops for name in _weights(op))
        return tuple(dict.fromkeys(names))

    def __str__(self) -> str:
        head = (
            f"{self.architecture}: width {self.dim}, vocabulary {self.vocabulary}, "
            f"{self.layers} layers, context {self.context}"
        )
        digits = len(str(len(self.ops)))
        return "\n".join([head, *(f"{i:{digits}}  {_line(op)}" for i, op in enumerate(self.ops))])


@dataclass
class _Value:
    """A value during the check: its width, and the weight and input width it was made with."""

    width: int
    weight: str | None = None
    width_in: int = 0


@dataclass
class _Check:
    """The state of one check, operation by operation."""

    program: Program
    shape: Shape
    values: dict[str, _Value] = field(default_factory=dict)
    layers: set[int] = field(default_factory=set)
    taps: set[str] = field(default_factory=lambda: {FINAL_TAP})
    done: bool = False

    def op(self, op: Op) -> None:
        _require(not self.done, "an operation follows the head")
        match op:
            case Embed():
                self.weight(op.table, self.program.vocabulary, self.program.dim)
                self.values[op.out] = _Value(self.program.dim)
            case Given():
                self.values[op.out] = _Value(self.program.dim)
            case Linear():
                self.linear(op)
            case Normalize() | Concat() | Add():
                self.elementwise(op)
            case Attention():
                self.attention(op)
            case GatedMlp():
                self.mlp(op)
            case Tap():
                _require(op.name not in self.taps, f'two taps are named "{op.name}"')
                self.taps.add(op.name)
                self.fits(op.x, self.program.dim)
            case Head():
                self.fits(op.x, self.program.dim)
                self.norm(op.norm, self.program.dim)
                self.weight(op.weight, self.program.vocabulary, self.program.dim)
                self.bias(op.bias, self.program.vocabulary)
                self.done = True

    def linear(self, op: Linear) -> None:
        width = self.read(op.x).width
        self.norm(op.norm, width)
        _require(bool(op.parts), "a linear operation has no parts")
        outs: dict[str, _Value] = {}
        for part in op.parts:
            out, _ = self.weight(part.weight, None, width)
            self.bias(part.bias, out)
            outs[part.out] = _Value(out, part.weight, width)
        _require(len(outs) == len(op.parts), "two parts of a linear operation write one value")
        if op.residual is not None:
            _require(len(op.parts) == 1, "a linear operation with a residual has one part")
            _require(op.activation is None, "a linear operation has a residual and an activation")
            wanted = self.read(op.residual).width
            (value,) = outs.values()
            self.match(value, wanted)
        self.values.update(outs)

    def elementwise(self, op: Normalize | Concat | Add) -> None:
        match op:
            case Normalize():
                width = self.read(op.x).width
                self.norm(op.norm, width)
            case Concat():
                _require(bool(op.xs), "a concatenation has no parts")
                width = sum(self.read(x).width for x in op.xs)
            case Add():
                width = self.read(op.x).width
                self.fits(op.y, width)
                self.bias(op.weight, width)
        self.values[op.out] = _Value(width)

    def attention(self, op: Attention) -> None:
        _require(
            op.kv_heads > 0 and op.heads > 0 and op.heads % op.kv_heads == 0,
            f"attention has {op.heads} heads, which is no multiple of {op.kv_heads} key heads",
        )
        _require(op.layer not in self.layers, f"two attention operations are of layer {op.layer}")
        _require(
            op.window is None or op.window > 0, f"the window of layer {op.layer} is not positive"
        )
        self.layers.add(op.layer)
        self.fits(op.q, op.heads * op.head_dim)
        self.fits(op.k, op.kv_heads * op.head_dim)
        self.fits(op.v, op.kv_heads * op.head_dim)
        self.norm(op.q_norm, op.head_dim)
        self.norm(op.k_norm, op.head_dim)
        if (rope := op.rope) is not None:
            _require(
                0 < rope.dims <= op.head_dim and rope.dims == 2 * len(rope.frequencies),
                f"rope turns {rope.dims} values of a head of {op.head_dim} "
                f"with {len(rope.frequencies)} frequencies",
            )
        self.values[op.out] = _Value(op.heads * op.head_dim)

    def mlp(self, op: GatedMlp) -> None:
        width = self.read(op.x).width
        self.norm(op.norm, width)
        ffn, _ = self.weight(op.gate, None, width)
        self.weight(op.up, ffn, width)
        self.values[op.out] = _Value(ffn)

    def end(self) -> None:
        _require(self.done, "the program has no head")
        _require(
            self.layers == set(range(self.program.layers)),
            f"attention layers are {sorted(self.layers)}, not 0 to {self.program.layers - 1}",
        )

    def read(self, name: str) -> _Value:
        _require(name in self.values, f'value "{name}" is read before it is written')
        return self.values[name]

    def fits(self, name: str, width: int) -> None:
        self.match(self.read(name), width)

    def match(self, value: _Value, width: int) -> None:
        """The value has this width; if not, the weight that made it is at fault, if one did."""
        if value.width == width:
            return
        _require(value.weight is not None, f"a value has {value.width} numbers, not {width}")
        assert value.weight is not None
        raise FormatError(
            _ill_shaped(value.weight, (value.width, value.width_in), (width, value.width_in))
        )

    def norm(self, norm: Norm | None, width: int) -> None:
        if norm is not None and norm.weight is not None:
            self.weight(norm.weight, width)

    def bias(self, name: str | None, width: int) -> None:
        if name is not None:
            self.weight(name, width)

    def weight(self, name: str, *expected: int | None) -> tuple[int, ...]:
        """The shape of a weight, checked; None in the expected shape allows any size."""
        return check_weight(self.shape, name, expected)


def check_weight(shape: Shape, name: str, expected: tuple[int | None, ...]) -> tuple[int, ...]:
    """The shape of a weight; None in `expected` allows any positive size.

    Raises FormatError when shape(name) knows no such weight (KeyError, FormatError) or it differs.
    """
    try:
        found = tuple(shape(name))
    except (KeyError, FormatError):
        raise FormatError(f'tensor "{name}" is missing; expected shape {_show(expected)}') from None
    same_rank = len(found) == len(expected)
    if not same_rank or any(
        f < 1 if e is None else f != e for f, e in zip(found, expected, strict=True)
    ):
        raise FormatError(_ill_shaped(name, found, expected))
    return found


def _ill_shaped(name: str, found: tuple[int, ...], expected: tuple[int | None, ...]) -> str:
    return f'tensor "{name}" has shape {_show(found)}; expected {_show(expected)}'


def _show(shape: tuple[int | None, ...]) -> str:
    return "[" + ", ".join("any" if size is None else str(size) for size in shape) + "]"


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(f"ill-formed program: {message}")


def _weights(op: Op) -> list[str]:
    """The weights of one operation, in the order in which it needs them."""
    names: list[str | None] = []
    match op:
        case Embed():
            names = [op.table]
        case Linear():
            names = [_norm_weight(op.norm)]
            for part in op.parts:
                names += [part.weight, part.bias]
        case Attention():
            names = [_norm_weight(op.q_norm), _norm_weight(op.k_norm)]
        case GatedMlp():
            names = [_norm_weight(op.norm), op.gate, op.up]
        case Normalize():
            names = [_norm_weight(op.norm)]
        case Add():
            names = [op.weight]
        case Head():
            names = [_norm_weight(op.norm), op.weight, op.bias]
        case Given() | Concat() | Tap():
            pass
    return [name for name in names if name is not None]


def _norm_weight(norm: Norm | None) -> str | None:
    return None if norm is None else norm.weight


def _line(op: Op) -> str:
    """One operation as an equation."""
    match op:
        case Embed():
            scale = "" if op.scale == 1 else f" * {op.scale:g}"
            return f"{op.out} = embed({op.table}){scale}"
        case Linear():
            outs = ", ".join(part.out for part in op.parts)
            residual = "" if op.residual is None else f"{op.residual} + "
            name = "linear" if op.activation is None else f"{op.activation} linear"
            parts = ", ".join(part.weight + _plus(part.bias) for part in op.parts)
            return f"{outs} = {residual}{name}({_normed(op.x, op.norm)}; {parts})"
        case Given() | Normalize() | Concat() | Add():
            return f"{op.out} = {_elementwise(op)}"
        case Attention():
            return f"{op.out} = attention({op.q}, {op.k}, {op.v}; {_attention_details(op)})"
        case GatedMlp():
            inner = f"{op.activation}(gate {op.gate}) * up {op.up}"
            return f"{op.out} = gated_mlp({_normed(op.x, op.norm)}; {inner})"
        case Tap():
            return f"tap {op.name} = {op.x}"
        case Head():
            return f"logits = head({_normed(op.x, op.norm)}; {op.weight}{_plus(op.bias)})"


def _elementwise(op: Given | Normalize | Concat | Add) -> str:
    match op:
        case Given():
            return "given"
        case Normalize():
            return _normed(op.x, op.norm)
        case Concat():
            return f"concat({', '.join(op.xs)})"
        case Add():
            left = op.x if op.weight is None else f"{op.weight} * {op.x}"
            return f"{left} + {op.y if op.scale == 1 else f'{op.scale:g} * {op.y}'}"


def _attention_details(op: Attention) -> str:
    details = [f"layer {op.layer}", f"{op.heads}/{op.kv_heads} heads of {op.head_dim}"]
    for name, norm in (("q", op.q_norm), ("k", op.k_norm)):
        if norm is not None:
            details.append(f"norm {name} by {norm.weight}")
    if op.rope is not None:
        details.append(f"rope {op.rope.style} {op.rope.dims}")
    details.append(f"scale {op.scale:.6g}")
    if op.window is not None:
        details.append(f"window {op.window}")
    if op.softcap is not None:
        details.append(f"softcap {op.softcap:g}")
    return ", ".join(details)


def _normed(x: str, norm: Norm | None) -> str:
    if norm is None:
        return x
    return f"norm({x})" if norm.weight is None else f"norm({x}; {norm.weight})"


def _plus(bias: str | None) -> str:
    return "" if bias is None else f" + {bias}"
