"""The reference backend against an independent dense forward, and its own contract of rows.

The dense forward below is written from the equations: float64, whole sequences, masks; it shares no
code with the backend. Everything else is compared bit by bit.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from divine.backends import BACKENDS, create_backend
from divine.backends.base import COMMITTED, Cancelled, Rows, Want
from divine.backends.reference.arithmetic import round_to_cache
from divine.backends.reference.backend import ReferenceBackend, ReferenceExecutable
from divine.errors import CapacityError, NumericError, UnsupportedError, UsageError
from divine.program import (
    Attention,
    Embed,
    GatedMlp,
    Head,
    Linear,
    Norm,
    Op,
    Part,
    Program,
    Rope,
    Tap,
)

DIM, FFN, VOCABULARY, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 24, 40, 31, 2, 4, 2, 32
EPS, SCALE, WINDOW, SOFTCAP, EMBED_SCALE = 1e-5, HEAD_DIM**-0.5, 3, 5.0, 1.5
FREQUENCIES = tuple(10.0 ** (-i / 5) for i in range(HEAD_DIM // 2))
MAGNITUDE = 1.1

# Both sides round keys and values to f16; where float32 and float64 fall on different sides of a
# tie, one of them moves by 2^-11, which the layers pass on about undiminished.
DENSE_TOLERANCE = 2e-3
# Sums of at most 64 float32 products in another order.
BATCHED_TOLERANCE = 1e-4


class ArrayWeights:
    """A WeightSource over arrays in memory."""

    def __init__(self, arrays: dict[str, NDArray[np.float32]]) -> None:
        self.arrays = arrays

    def shape(self, name: str) -> tuple[int, ...]:
        return self.arrays[name].shape

    def block_type(self, name: str) -> str:
        return "F32"

    def raw(self, name: str) -> NDArray[np.uint8]:
        return np.frombuffer(self.arrays[name].tobytes(), np.uint8)

    def release(self, name: str) -> None:
        pass


def make_program(style: Any = "half", activation: Any = "silu") -> Program:
    """A program with everything the operations offer; layer 1 has a window and a softcap."""
    ops: list[Op] = [Embed("x", "table", EMBED_SCALE)]
    for i in range(LAYERS):
        ops += [
            Tap(f"layer.{i}.input", "x"),
            Linear(
                "x",
                (Part("q", f"{i}.q", f"{i}.qb"), Part("k", f"{i}.k"), Part("v", f"{i}.v")),
                Norm(f"{i}.n1", EPS),
            ),
            Attention(
                out="a",
                q="q",
                k="k",
                v="v",
                layer=i,
                heads=HEADS,
                kv_heads=KV_HEADS,
                head_dim=HEAD_DIM,
                scale=SCALE,
                rope=Rope(style, HEAD_DIM, FREQUENCIES, MAGNITUDE),
                q_norm=Norm(f"{i}.qn", EPS),
                k_norm=None,
                window=WINDOW if i else None,
                softcap=SOFTCAP if i else None,
            ),
            Linear("a", (Part("x", f"{i}.o"),), residual="x"),
            GatedMlp("m", "x", f"{i}.gate", f"{i}.up", activation, Norm(f"{i}.n2", EPS)),
            Linear("m", (Part("x", f"{i}.down", f"{i}.db"),), residual="x"),
        ]
    ops.append(Head("x", "output", Norm("n", EPS), "ob"))
    return Program("toy", DIM, VOCABULARY, LAYERS, 64, tuple(ops))


def make_arrays(seed: int = 1) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    q_width, kv_width = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {
        "table": (VOCABULARY, DIM),
        "output": (VOCABULARY, DIM),
        "ob": (VOCABULARY,),
        "n": (DIM,),
    }
    for i in range(LAYERS):
        layer = {
            "n1": (DIM,),
            "n2": (DIM,),
            "q": (q_width, DIM),
            "qb": (q_width,),
            "qn": (HEAD_DIM,),
            "k": (kv_width, DIM),
            "v": (kv_width, DIM),
            "o": (DIM, q_width),
            "gate": (FFN, DIM),
            "up": (FFN, DIM),
            "down": (DIM, FFN),
            "db": (DIM,),
        }
        shapes |= {f"{i}.{name}": shape for name, shape in layer.items()}
    return {
        name: (rng.normal(size=shape) / (shape[-1] ** 0.5 if len(shape) > 1 else 1)).astype(
            np.float32
        )
        for name, shape in shapes.items()
    }


def compiled(**program: Any) -> ReferenceExecutable:
    return ReferenceBackend().compile(make_program(**program), ArrayWeights(make_arrays()))


@pytest.fixture(scope="module")
def executable() -> ReferenceExecutable:
    return compiled()


def dense_forward(tokens: list[int], style: str, activation: str) -> NDArray[np.float64]:
    """Logits [tokens, vocabulary] in float64, from the equations."""
    w = {name: array.astype(np.float64) for name, array in make_arrays().items()}
    n = len(tokens)
    at = np.arange(n)

    def norm(x: Any, weight: Any) -> Any:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * weight

    def rope(x: Any) -> Any:  # complex numbers: a turn is a product
        turn = MAGNITUDE * np.exp(1j * at[:, None] * np.array(FREQUENCIES))[:, None, :]
        half = HEAD_DIM // 2
        re, im = (x[..., :half], x[..., half:]) if style == "half" else (x[..., ::2], x[..., 1::2])
        z = (re + 1j * im) * turn
        if style == "half":
            return np.concatenate([z.real, z.imag], -1)
        return np.stack([z.real, z.imag], -1).reshape(x.shape)

    def f16(x: Any) -> Any:
        return x.astype(np.float16).astype(np.float64)

    x = w["table"][tokens] * EMBED_SCALE
    for i in range(LAYERS):
        h = norm(x, w[f"{i}.n1"])
        q = (h @ w[f"{i}.q"].T + w[f"{i}.qb"]).reshape(n, HEADS, HEAD_DIM)
        k = (h @ w[f"{i}.k"].T).reshape(n, KV_HEADS, HEAD_DIM)
        v = (h @ w[f"{i}.v"].T).reshape(n, KV_HEADS, HEAD_DIM)
        q, k, v = rope(norm(q, w[f"{i}.qn"])), f16(rope(k)), f16(v)
        k, v = np.repeat(k, HEADS // KV_HEADS, 1), np.repeat(v, HEADS // KV_HEADS, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) * SCALE
        distance = at[:, None] - at[None, :]
        visible = distance >= 0
        if i:
            scores = SOFTCAP * np.tanh(scores / SOFTCAP)
            visible &= distance < WINDOW
        weights = np.exp(np.where(visible, scores, -np.inf))
        weights /= weights.sum(-1, keepdims=True)
        x = x + np.einsum("hqk,khd->qhd", weights, v).reshape(n, -1) @ w[f"{i}.o"].T
        h = norm(x, w[f"{i}.n2"])
        gate = h @ w[f"{i}.gate"].T
        if activation == "silu":
            gate = gate / (1 + np.exp(-gate))
        else:
            gate = gate / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        x = x + (gate * (h @ w[f"{i}.up"].T)) @ w[f"{i}.down"].T + w[f"{i}.db"]
    return norm(x, w["n"]) @ w["output"].T + w["ob"]


@pytest.mark.parametrize("style", ["half", "interleaved"])
@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_a_chain_agrees_with_the_dense_forward(style: str, activation: str) -> None:
    tokens = [3, 30, 0, 7, 7, 12, 25, 1]
    executable = compiled(style=style, activation=activation)
    found = executable.run(
        [executable.new_state(16)], Rows.chain(tokens), Want(logits=range(len(tokens)))
    ).logits
    expected = dense_forward(tokens, style, activation)
    assert np.std(expected) > 0.5  # else agreement would mean nothing
    np.testing.assert_allclose(found, expected, rtol=0, atol=DENSE_TOLERANCE)


def test_batched_products_agree(executable: ReferenceExecutable) -> None:
    batched = ReferenceBackend(batched=True).compile(make_program(), ArrayWeights(make_arrays()))
    rows, want = Rows.chain([3, 30, 0, 7]), Want(logits=range(4))
    exact = executable.run([executable.new_state(8)], rows, want).logits
    found = batched.run([batched.new_state(8)], rows, want).logits
    np.testing.assert_allclose(found, exact, rtol=0, atol=BATCHED_TOLERANCE)


def prefilled(executable: ReferenceExecutable, tokens: list[int], kv_type: Any = "f16") -> Any:
    """A state with these tokens committed and NaN in every slot that is not."""
    state = executable.new_state(24, kv_type)
    for array in (*state.keys, *state.values):
        array[:] = np.nan
    if tokens:
        executable.run([state], Rows.chain(tokens), Want())
        state.commit(range(len(tokens)))
    return state


def random_rows(rng: np.random.Generator, count: int, sequences: int) -> Rows:
    """A forest over several sequences, in random order."""
    sequence = rng.integers(0, sequences, count).astype(np.int32)
    parents = np.full(count, COMMITTED, np.int32)
    for row in range(count):
        earlier = [r for r in range(row) if sequence[r] == sequence[row]]
        if earlier and rng.random() < 0.8:
            parents[row] = rng.choice(earlier)
    return Rows(rng.integers(0, VOCABULARY, count).astype(np.int32), parents, sequence)


def path_to(rows: Rows, row: int) -> list[int]:
    path = [row]
    while rows.parents[path[0]] != COMMITTED:
        path.insert(0, int(rows.parents[path[0]]))
    return path


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
@pytest.mark.parametrize("seed", range(4))
def test_a_forest_gives_the_bits_of_one_row_at_a_time(
    executable: ReferenceExecutable, seed: int, kv_type: str
) -> None:
    rng = np.random.default_rng(seed)
    prompts: list[list[int]] = [[5, 9, 2], [], [11, 4, 4, 8, 20]]
    states = [prefilled(executable, prompt, kv_type) for prompt in prompts]
    rows = random_rows(rng, 12, len(states))
    everything = range(len(rows))
    taps = dict.fromkeys(executable.tap_names, everything)
    found = executable.run(states, rows, Want(logits=everything, taps=taps))
    for row in everything:
        path = path_to(rows, row)
        prompt = prompts[rows.sequences[row]]
        state = prefilled(executable, [], kv_type)
        for token in [*prompt, *rows.tokens[path].tolist()]:
            alone = executable.run(
                [state],
                Rows.chain([token]),
                Want(logits=[0], taps={name: [0] for name in taps}),
            )
            state.commit([0])
        assert found.logits[row].tobytes() == alone.logits[0].tobytes()
        for name in taps:
            assert found.taps[name][row].tobytes() == alone.taps[name][0].tobytes()
    # The last row's path, committed, leaves the same keys and values as well.
    committed = states[rows.sequences[row]]
    committed.commit(path)
    assert committed.length == state.length == len(prompt) + len(path)
    for mine, its in zip(
        (*committed.keys, *committed.values), (*state.keys, *state.values), strict=True
    ):
        assert mine[: state.length].tobytes() == its[: state.length].tobytes()


def next_logits(executable: ReferenceExecutable, state: Any, token: int = 1) -> bytes:
    result = executable.run([state], Rows.chain([token]), Want(logits=[0]))
    return bytes(result.logits.tobytes())


def test_truncate_and_fork(executable: ReferenceExecutable) -> None:
    state = prefilled(executable, [5, 9, 2, 14])
    fork = state.fork()
    state.truncate(2)
    assert (state.length, fork.length) == (2, 4)
    short = next_logits(executable, prefilled(executable, [5, 9]))
    long = next_logits(executable, prefilled(executable, [5, 9, 2, 14]))
    assert short != long
    assert next_logits(executable, state) == short
    state.commit([0])  # overwrites what the fork must have kept
    assert next_logits(executable, fork) == long
    fork.close()
    assert next_logits(executable, prefilled(executable, [5, 9, 1])) == next_logits(
        executable, state
    )
    with pytest.raises(ValueError, match="truncate to 4; 0 to 3 are allowed"):
        state.truncate(4)


def test_what_is_pending_is_dropped(executable: ReferenceExecutable) -> None:
    for drop in (
        lambda state: state.truncate(2),
        lambda state: state.fork(),
        lambda state: state.commit([]),
        lambda state: state.commit([0]),
        lambda state: executable.run([prefilled(executable, []), state], Rows.chain([1]), Want()),
    ):
        state = prefilled(executable, [5, 9])
        executable.run([state], Rows.chain([1, 2]), Want())
        drop(state)
        with pytest.raises(ValueError, match="commit of row"):
            state.commit([0])


def test_only_chains_from_the_committed_end_can_be_committed(
    executable: ReferenceExecutable,
) -> None:
    rows = Rows(
        np.array([1, 2, 3, 4], np.int32),
        np.array([-1, 0, 0, -1], np.int32),
        np.array([0, 0, 0, 1], np.int32),
    )
    for path, message in (
        ([1], "row 1, whose parent is 0, not -1"),
        ([0, 1, 2], "row 2, whose parent is 0, not 1"),
        ([3], "row 3, which the last pass did not have here"),
        ([4], "row 4, which the last pass did not have here"),
        ([-1], "row -1, which the last pass did not have here"),
    ):
        states = [prefilled(executable, [5]), prefilled(executable, [6])]
        executable.run(states, rows, Want())
        with pytest.raises(ValueError, match=message):
            states[0].commit(path)
        assert states[0].length == 1


def test_pending_rows_may_exceed_the_capacity_but_not_be_committed(
    executable: ReferenceExecutable,
) -> None:
    state = executable.new_state(2)
    executable.run([state], Rows.chain([1, 2, 3]), Want())
    with pytest.raises(CapacityError, match="3 more positions after 0 exceed the 2"):
        state.commit([0, 1, 2])
    assert state.length == 0
    executable.run([state], Rows.chain([1, 2, 3]), Want())
    state.commit([0, 1])
    assert (state.length, state.capacity) == (2, 2)


def test_vectors_are_taken_as_they_are(executable: ReferenceExecutable) -> None:
    tokens = [4, 9, 17]
    plain = executable.run([executable.new_state(8)], Rows.chain(tokens), Want(logits=[0, 1, 2]))
    vectors = np.full((3, DIM), np.nan, np.float32)
    vectors[1] = make_arrays()["table"][9] * np.float32(EMBED_SCALE)
    chain = Rows.chain([4, -77, 17])  # the token of a row that takes a vector is not looked at
    mixed = Rows(chain.tokens, chain.parents, chain.sequences, vectors, np.array([0, 1, 0], bool))
    found = executable.run([executable.new_state(8)], mixed, Want(logits=[0, 1, 2]))
    assert found.logits.tobytes() == plain.logits.tobytes()


def test_best_and_top_follow_from_the_logits_and_ties_go_to_the_lowest_id() -> None:
    arrays = make_arrays()
    arrays["ob"][[9, 5, 21]] = 50.0
    arrays["output"][[9, 21]] = arrays["output"][5]
    executable = ReferenceBackend().compile(make_program(), ArrayWeights(arrays))
    want = Want(best=[0, 2], top=([1, 2], 4), logits=[0, 1, 2])
    found = executable.run([executable.new_state(8)], Rows.chain([4, 9, 17]), want)
    assert found.best_ids.tolist() == [5, 5]
    assert found.top_ids[:, :3].tolist() == [[5, 9, 21], [5, 9, 21]]
    assert found.best_logits.tobytes() == found.logits[[0, 2], 5].tobytes()
    for line, row in enumerate([1, 2]):
        assert found.top_logits[line].tolist() == found.logits[row][found.top_ids[line]].tolist()
        assert found.top_logits[line, 3] == np.delete(found.logits[row], [5, 9, 21]).max()
    expected = np.log(np.exp(found.logits.astype(np.float64)).sum(axis=1)).astype(np.float32)
    np.testing.assert_allclose(found.log_sum_exp, expected[[0, 2]], rtol=1e-6)
    np.testing.assert_allclose(found.top_log_sum_exp, expected[[1, 2]], rtol=1e-6)


def test_when_all_tokens_tie_the_lowest_ids_come_first() -> None:
    arrays = make_arrays()
    arrays["output"][:] = arrays["ob"][:] = 0
    arrays["ob"][25:] = 1
    executable = ReferenceBackend().compile(make_program(), ArrayWeights(arrays))
    found = executable.run(
        [executable.new_state(8)], Rows.chain([4]), Want(best=[0], top=([0], VOCABULARY))
    )
    assert found.best_ids.tolist() == [25]
    assert found.top_ids.tolist() == [[*range(25, VOCABULARY), *range(25)]]


def test_nothing_wanted_gives_empty_arrays(executable: ReferenceExecutable) -> None:
    found = executable.run([executable.new_state(8)], Rows.chain([4]), Want())
    assert found.best_ids.shape == found.log_sum_exp.shape == (0,)
    assert found.top_ids.shape == (0, 0)
    assert found.logits.shape == (0, VOCABULARY)
    assert found.taps == {}


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
@pytest.mark.parametrize(
    ("name", "index", "value", "message"),
    [
        ("n", 3, np.nan, "NaN at position 5"),
        ("ob", 8, np.inf, "infinity at position 5"),
        ("ob", 8, -np.inf, "infinity at position 5"),
        ("table", (2, 0), np.inf, "NaN at position 5"),
        ("1.v", (0, 0), np.nan, "NaN at position 5"),
        ("1.v", (0, 0), 1e38, "NaN at position 5"),  # beyond f16: infinity, then NaN
    ],
)
def test_numbers_that_are_none_are_refused_with_their_position(
    name: str, index: Any, value: float, message: str, kv_type: Any
) -> None:
    arrays = make_arrays()
    arrays[name][index] = value
    executable = ReferenceBackend().compile(make_program(), ArrayWeights(arrays))
    state = executable.new_state(8, kv_type)
    executable.run([state], Rows.chain([1, 1, 1, 1]), Want())
    state.commit(range(4))
    for want in (Want(best=[1]), Want(top=([1], 2)), Want(logits=[1])):
        with pytest.raises(NumericError, match=f"the model produced {message}"):
            executable.run([state], Rows.chain([1, 2]), want)
    assert state.length == 4


def test_only_wanted_rows_are_checked_and_only_their_own_history_counts() -> None:
    arrays = make_arrays()
    arrays["table"][2] = np.nan
    executable = ReferenceBackend().compile(make_program(), ArrayWeights(arrays))
    rows = Rows(
        np.array([1, 2, 3], np.int32), np.array([-1, -1, 0], np.int32), np.zeros(3, np.int32)
    )
    found = executable.run([executable.new_state(8)], rows, Want(best=[0, 2]))
    assert len(found.best_ids) == 2
    with pytest.raises(NumericError, match="NaN at position 0"):
        executable.run([executable.new_state(8)], rows, Want(taps={"layer.0.input": [0, 1]}))


def test_cancel_stops_at_the_next_operation_and_leaves_the_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executable = compiled()
    state = prefilled(executable, [5, 9])
    before = next_logits(executable, state)
    executable.cancel()  # with no pass in progress, the next one is meant
    with pytest.raises(Cancelled):
        next_logits(executable, state)
    assert next_logits(executable, state) == before
    check, calls = executable.check_cancelled, itertools.count()

    def cancel_at_third() -> None:
        if next(calls) == 2:
            executable.cancel()
        check()

    monkeypatch.setattr(executable, "check_cancelled", cancel_at_third)
    with pytest.raises(Cancelled):
        executable.run([state], Rows.chain([1, 2]), Want())
    assert next(calls) == 3
    assert state.length == 2
    assert next_logits(executable, state) == before


def i32(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


VECTORS = np.zeros((2, DIM), np.float32)
TAKES = np.array([False, True])


@pytest.mark.parametrize(
    ("rows", "want", "message"),
    [
        (Rows.chain([]), Want(), "a pass has 0 rows; 1 to 1024 are allowed"),
        (Rows.chain([1] * 1025), Want(), "a pass has 1025 rows"),
        (Rows.chain([1, VOCABULARY]), Want(), "row 1 has token 31; 0 to 30 are allowed"),
        (Rows.chain([-1]), Want(), "row 0 has token -1"),
        (Rows(i32(1), i32(0), i32(0)), Want(), "row 0 has parent 0"),
        (Rows(i32(1, 1), i32(-1, -2), i32(0, 0)), Want(), "row 1 has parent -2"),
        (Rows(i32(1, 1), i32(1, -1), i32(0, 0)), Want(), "row 0 has parent 1"),
        (Rows(i32(1, 1), i32(-1, 2**31 - 1), i32(0, 0)), Want(), "row 1 has parent 2147483647"),
        (Rows(i32(1, 1), i32(-1, 0), i32(0, 1)), Want(), "row 1 has parent 0"),
        (Rows(i32(1), i32(-1), i32(2)), Want(), "row 0 has sequence 2; 0 to 1 are allowed"),
        (Rows(i32(1), i32(-1), i32(-1)), Want(), "row 0 has sequence -1"),
        (Rows(i32(1), i32(-1, 0), i32(0)), Want(), "parents has shape"),
        (Rows(np.ones(1), i32(-1), i32(0)), Want(), "tokens must be an array of int32"),  # type: ignore[arg-type]
        (Rows([1], i32(-1), i32(0)), Want(), "tokens must be an array of int32, not list"),  # type: ignore[arg-type]
        (Rows(i32(1), i32(-1).reshape(1, 1), i32(0)), Want(), "parents has shape"),
        (
            Rows(i32(1, 1), i32(-1, 0), i32(0, 0), VECTORS[:, 1:], TAKES),
            Want(),
            "vectors has shape",
        ),
        (Rows(i32(1, 1), i32(-1, 0), i32(0, 0), None, TAKES), Want(), "rows have no vectors"),
        (Rows(i32(1, 1), i32(-1, 0), i32(0, 0), VECTORS, TAKES[:1]), Want(), "takes_vector has"),
        (Rows.chain([1, 2]), Want(best=[2]), "best wants row 2 after -1"),
        (Rows.chain([1, 2]), Want(logits=[-1]), "logits wants row -1"),
        (Rows.chain([1, 2]), Want(logits=[1, 0]), "logits wants row 0 after 1"),
        (Rows.chain([1, 2]), Want(best=[1, 1]), "best wants row 1 after 1"),
        (Rows.chain([1, 2]), Want(top=([0], 0)), "top asks for 0 tokens; 1 to 31 are allowed"),
        (Rows.chain([1, 2]), Want(top=([0], 32)), "top asks for 32 tokens"),
        (Rows.chain([1, 2]), Want(taps={"x": [0]}), 'tap "x" is unknown; the taps are layer.0'),
        (Rows.chain([1, 2]), Want(taps={"final": [2]}), 'tap "final" wants row 2'),
    ],
)
def test_ill_formed_passes_are_refused(
    executable: ReferenceExecutable, rows: Rows, want: Want, message: str
) -> None:
    states = [executable.new_state(8), executable.new_state(8)]
    with pytest.raises(ValueError, match=message):
        executable.run(states, rows, want)


def test_states_must_be_open_distinct_and_of_this_executable() -> None:
    executable, other = compiled(), compiled()
    state = executable.new_state(8)
    with pytest.raises(ValueError, match="given twice"):
        executable.run([state, state], Rows.chain([1]), Want())
    with pytest.raises(ValueError, match="belongs to another executable"):
        other.run([state], Rows.chain([1]), Want())
    state.close()
    with pytest.raises(ValueError, match="the state is closed"):
        executable.run([state], Rows.chain([1]), Want())
    state = executable.new_state(8)
    executable.close()
    with pytest.raises(ValueError, match="the executable is closed"):
        executable.run([state], Rows.chain([1]), Want())


def test_state_sizes(executable: ReferenceExecutable) -> None:
    assert executable.new_state(10).nbytes == 10 * 2 * LAYERS * KV_HEADS * HEAD_DIM * 4
    with pytest.raises(ValueError, match="capacity is 0"):
        executable.new_state(0)
    with pytest.raises(ValueError, match='kv_type is "q4"'):
        executable.new_state(8, "q4")  # type: ignore[arg-type]
    with pytest.raises(CapacityError, match="a state of 1099511627776 positions needs"):
        executable.new_state(2**40)


def test_rounding_to_the_cache() -> None:
    x = np.random.default_rng(3).normal(size=(5, 64)).astype(np.float32)
    assert round_to_cache(x, "f16").tobytes() == x.astype(np.float16).astype(np.float32).tobytes()
    blocks = x.reshape(-1, 32)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / 127
    codes = np.rint(blocks / scale)
    expected = (codes * scale.astype(np.float16).astype(np.float32)).reshape(x.shape)
    np.testing.assert_allclose(round_to_cache(x, "q8_0"), expected, rtol=1e-6)


def test_a_q8_0_cache_needs_heads_of_whole_blocks() -> None:
    ops: list[Op] = [
        Embed("x", "table"),
        Linear("x", (Part("q", "w"), Part("k", "w"), Part("v", "w"))),
        Attention("a", "q", "k", "v", 0, 1, 1, DIM, 1.0, None),
        Head("a", "table"),
    ]
    program = Program("toy", DIM, VOCABULARY, 1, 64, tuple(ops))
    arrays = {"table": make_arrays()["table"], "w": np.eye(DIM, dtype=np.float32)}
    executable = ReferenceBackend().compile(program, ArrayWeights(arrays))
    with pytest.raises(UnsupportedError, match="multiple of 32 values; this model's have 24"):
        executable.new_state(8, "q8_0")
    assert executable.new_state(8).capacity == 8


def test_backends_are_created_by_name() -> None:
    assert BACKENDS == ("cpu", "reference")
    assert create_backend("reference").name == "reference"
    with pytest.raises(UsageError, match='backend "gpu" is unknown; the backends are "cpu", "ref'):
        create_backend("gpu")
    with pytest.raises(ValueError, match="threads is 0"):
        create_backend("reference").compile(make_program(), ArrayWeights({}), threads=0)
