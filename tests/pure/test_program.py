"""Programs: shape checks name the tensor at fault, ill-formed programs are our bug, printing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from divine.errors import FormatError
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
    Op,
    Part,
    Program,
    Rope,
    Tap,
)

DIM, FFN, VOCABULARY, HEADS, KV_HEADS, HEAD_DIM = 12, 20, 7, 4, 2, 6
ROPE = Rope("half", HEAD_DIM, (1.0, 0.1, 0.01))

SHAPES: dict[str, tuple[int, ...]] = {
    "table": (VOCABULARY, DIM),
    "norm": (DIM,),
    "wq": (HEADS * HEAD_DIM, DIM),
    "bq": (HEADS * HEAD_DIM,),
    "wk": (KV_HEADS * HEAD_DIM, DIM),
    "wv": (KV_HEADS * HEAD_DIM, DIM),
    "head_norm": (HEAD_DIM,),
    "wo": (DIM, HEADS * HEAD_DIM),
    "gate": (FFN, DIM),
    "up": (FFN, DIM),
    "down": (DIM, FFN),
    "output": (VOCABULARY, DIM),
    "output_bias": (VOCABULARY,),
}
NORM = Norm("norm", 1e-5)
ATTENTION = Attention(
    out="a",
    q="q",
    k="k",
    v="v",
    layer=0,
    heads=HEADS,
    kv_heads=KV_HEADS,
    head_dim=HEAD_DIM,
    scale=0.5,
    rope=ROPE,
    q_norm=Norm("head_norm", 1e-5),
    window=9,
    softcap=30.0,
)
OPS: tuple[Op, ...] = (
    Embed("x", "table", scale=2.0),
    Tap("layer.0.input", "x"),
    Linear("x", (Part("q", "wq", "bq"), Part("k", "wk"), Part("v", "wv")), NORM),
    ATTENTION,
    Linear("a", (Part("x", "wo"),), residual="x"),
    GatedMlp("m", "x", "gate", "up", "silu", NORM),
    Linear("m", (Part("x", "down"),), residual="x"),
    Head("x", "output", NORM, "output_bias"),
)
PROGRAM = Program("toy", DIM, VOCABULARY, 1, 64, OPS)


def with_op(index: int, **changes: Any) -> Program:
    op = replace(OPS[index], **changes)
    return replace(PROGRAM, ops=(*OPS[:index], op, *OPS[index + 1 :]))


def shape_of(changes: dict[str, tuple[int, ...] | None] | None = None) -> Any:
    shapes = SHAPES | (changes or {})

    def shape(name: str) -> tuple[int, ...]:
        found = shapes[name]
        if found is None:
            raise FormatError(f"{name} is not here")
        return found

    return shape


def test_a_right_program_passes() -> None:
    PROGRAM.check(shape_of())


@pytest.mark.parametrize(
    ("name", "found", "expected"),
    [
        ("table", (VOCABULARY + 1, DIM), f"[{VOCABULARY}, {DIM}]"),
        ("norm", (DIM, 1), f"[{DIM}]"),
        ("wq", (HEADS * HEAD_DIM + 6, DIM), f"[{HEADS * HEAD_DIM}, {DIM}]"),
        ("bq", (DIM,), f"[{HEADS * HEAD_DIM}]"),
        ("wk", (HEADS * HEAD_DIM, DIM), f"[{KV_HEADS * HEAD_DIM}, {DIM}]"),
        ("wv", (KV_HEADS * HEAD_DIM, DIM + 1), f"[any, {DIM}]"),
        ("head_norm", (HEAD_DIM - 1,), f"[{HEAD_DIM}]"),
        ("wo", (DIM + 1, HEADS * HEAD_DIM), f"[{DIM}, {HEADS * HEAD_DIM}]"),
        ("gate", (0, DIM), f"[any, {DIM}]"),
        ("up", (FFN + 1, DIM), f"[{FFN}, {DIM}]"),
        ("down", (DIM, FFN - 1), f"[any, {FFN}]"),
        ("output", (VOCABULARY, DIM, 1), f"[{VOCABULARY}, {DIM}]"),
        ("output_bias", (), f"[{VOCABULARY}]"),
    ],
)
def test_an_ill_shaped_weight_is_named_with_both_shapes(
    name: str, found: tuple[int, ...], expected: str
) -> None:
    changed = {"bq": found[:1]} if name == "wq" else {}  # so that the matrix is found wrong
    with pytest.raises(FormatError) as caught:
        PROGRAM.check(shape_of({name: found, **changed}))
    assert str(caught.value) == (f'tensor "{name}" has shape {list(found)}; expected {expected}')


@pytest.mark.parametrize("name", SHAPES)
def test_a_missing_weight_is_named_with_its_shape(name: str) -> None:
    shapes = {key: shape for key, shape in SHAPES.items() if key != name}
    with pytest.raises(FormatError, match=f'tensor "{name}" is missing; expected shape '):
        PROGRAM.check(shapes.__getitem__)
    with pytest.raises(FormatError, match=f'tensor "{name}" is missing; expected shape '):
        PROGRAM.check(shape_of({name: None}))


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (with_op(1, x="y"), 'value "y" is read before it is written'),
        (with_op(3, k="y"), 'value "y" is read before it is written'),
        (with_op(4, residual="y"), 'value "y" is read before it is written'),
        (with_op(1, name="final"), 'two taps are named "final"'),
        (with_op(2, parts=()), "has no parts"),
        (with_op(2, parts=(Part("q", "wq"), Part("q", "wk"))), "write one value"),
        (with_op(2, residual="x"), "with a residual has one part"),
        (with_op(3, kv_heads=3), "4 heads, which is no multiple of 3"),
        (with_op(3, kv_heads=0), "4 heads, which is no multiple of 0"),
        (with_op(3, layer=1), r"attention layers are \[1\], not 0 to 0"),
        (with_op(3, window=0), "window of layer 0 is not positive"),
        (with_op(3, rope=replace(ROPE, dims=8)), "rope turns 8 values of a head of 6"),
        (with_op(3, rope=replace(ROPE, frequencies=(1.0,))), "with 1 frequencies"),
        (with_op(3, q="x"), "has 12 numbers, not 24"),
        (replace(PROGRAM, ops=OPS[:-1]), "has no head"),
        (replace(PROGRAM, ops=(*OPS, OPS[1])), "an operation follows the head"),
        (replace(PROGRAM, ops=(*OPS[:4], *OPS[3:])), "two attention operations are of layer 0"),
        (replace(PROGRAM, layers=2), r"attention layers are \[0\], not 0 to 1"),
    ],
)
def test_an_ill_formed_program_is_our_bug(program: Program, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        program.check(shape_of())


def test_weights_are_listed_once_in_order_of_use() -> None:
    assert PROGRAM.weights() == tuple(SHAPES)


def test_taps_end_with_the_final_one() -> None:
    assert PROGRAM.tap_names == ("layer.0.input", "final")


def test_printing_gives_one_line_per_operation() -> None:
    assert str(PROGRAM).splitlines() == [
        "toy: width 12, vocabulary 7, 1 layers, context 64",
        "0  x = embed(table) * 2",
        "1  tap layer.0.input = x",
        "2  q, k, v = linear(norm(x; norm); wq + bq, wk, wv)",
        "3  a = attention(q, k, v; layer 0, 4/2 heads of 6, norm q by head_norm, rope half 6, "
        "scale 0.5, window 9, softcap 30)",
        "4  x = x + linear(a; wo)",
        "5  m = gated_mlp(norm(x; norm); silu(gate gate) * up up)",
        "6  x = x + linear(m; down)",
        "7  logits = head(norm(x; norm); output + output_bias)",
    ]


# ---- what heads are made of ----

SIDE = {"side": (FFN, 2 * DIM), "side_bias": (FFN,), "back": (DIM, FFN), "kept": (DIM,)}
SIDE_OPS: tuple[Op, ...] = (
    Embed("e", "table"),
    Given("z"),
    Normalize("e", "e", Norm(None, 1e-5)),
    Concat("c", ("z", "e")),
    Linear("c", (Part("i", "side", "side_bias"),), activation="gelu"),
    Linear("i", (Part("u", "back"),)),
    Add("s", "z", "u", "kept", 1.5),
    Head("s", "output", NORM),
)
SIDE_PROGRAM = Program("toy", DIM, VOCABULARY, 0, 1, SIDE_OPS)


def with_side(index: int, op: Op) -> Program:
    return replace(SIDE_PROGRAM, ops=(*SIDE_OPS[:index], op, *SIDE_OPS[index + 1 :]))


def test_a_program_of_rows_with_vectors_passes_and_prints() -> None:
    SIDE_PROGRAM.check(shape_of({**SIDE}))
    lines = str(SIDE_PROGRAM).splitlines()[1:]
    assert [line.split("  ", 1)[1] for line in lines] == [
        "e = embed(table)",
        "z = given",
        "e = norm(e)",
        "c = concat(z, e)",
        "i = gelu linear(c; side + side_bias)",
        "u = linear(i; back)",
        "s = kept * z + 1.5 * u",
        "logits = head(norm(s; norm); output)",
    ]
    assert SIDE_PROGRAM.weights() == (
        "table",
        "side",
        "side_bias",
        "back",
        "kept",
        "norm",
        "output",
    )


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (with_side(3, Concat("c", ())), "a concatenation has no parts"),
        (with_side(3, Concat("c", ("z", "y"))), 'value "y" is read before'),
        (with_side(6, Add("s", "z", "c")), "a value has 24 numbers, not 12"),
        (with_side(5, Linear("i", (Part("z", "back"),), residual="z", activation="silu")),
         "a residual and an activation"),
        (with_side(2, Normalize("e", "n", NORM)), 'value "n" is read before'),
    ],
)  # fmt: skip
def test_ill_formed_elementwise_operations(program: Program, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        program.check(shape_of({**SIDE}))


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("side", (FFN, DIM), r'"side" has shape \[20, 12\]; expected \[any, 24\]'),
        ("kept", (FFN,), r'"kept" has shape \[20\]; expected \[12\]'),
        ("back", (FFN, FFN), r'"back" has shape \[20, 20\]; expected \[12, 20\]'),
    ],
)
def test_ill_shaped_weights_of_heads(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        SIDE_PROGRAM.check(shape_of({**SIDE, name: shape}))
