"""The numbers of a row depend on its own history only (the promise everything else stands on).

The oracle runs each row of a tree by itself on one thread (native_support.Oracle); trees over
several sequences, chunks, threads and forks must give its bits: logits, all taps, the best, the top
and what is committed. Slots that are not committed are filled with NaN before every pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_support import (
    TOY,
    WIDE,
    Oracle,
    Toy,
    compile_toy,
    everything,
    grown,
    kv_bytes,
    make_rows,
    reserve_slots,
    row_bytes,
    tokens_of,
)

from divine.backends.base import COMMITTED, KvType, Rows, Want
from divine.backends.cpu.backend import CpuExecutable, CpuState
from divine.errors import NumericError

FORMATS = ("Q4_0", "Q8_0", "F16", "Q5_1", "MXFP4", "F32")
PREFIX = tokens_of(530, TOY.vocabulary)
# Beginnings around what blocks of keys (16), splits of attention and chunks of slots (256) end at.
LENGTHS = (0, 1, 9, 15, 16, 17, 30, 250, 255, 256, 257, 270, 505, 511, 512, 513, 530)
KV_TYPES: tuple[KvType, ...] = ("f16", "q8_0")

tokens = st.integers(0, TOY.vocabulary - 1)


@dataclass
class Tree:
    """Rows of a pass as drawn; parents follow from `parent` once all rows are known."""

    rows: list[tuple[int, int, int]]  # sequence, parent choice, token
    leaf: int  # which row is the end of the committed path
    truncate: int  # positions taken back afterwards
    fork: bool

    def build(self) -> Rows:
        mine: dict[int, list[int]] = {}
        parents = []
        for row, (sequence, choice, _) in enumerate(self.rows):
            before = mine.setdefault(sequence, [])
            if not before or choice == 1:
                parents.append(COMMITTED)
            else:
                parents.append(before[-1] if choice == 0 else before[choice % len(before)])
            before.append(row)
        return make_rows(
            [token for _, _, token in self.rows], parents, [s for s, _, _ in self.rows]
        )


def path_to(rows: Rows, row: int) -> list[int]:
    path = []
    while row != COMMITTED:
        path.append(row)
        row = int(rows.parents[row])
    return path[::-1]


trees = st.builds(
    Tree,
    rows=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 15), tokens), min_size=1, max_size=16
    ),
    leaf=st.integers(0, 15),
    truncate=st.integers(0, 3),
    fork=st.booleans(),
)


@dataclass
class Setup:
    """Executables of one model, and one state of PREFIX for each KV type made row by row."""

    oracle: CpuExecutable
    tested: list[CpuExecutable]
    prefixes: dict[KvType, CpuState] = field(default_factory=dict)

    def states(self, executable: CpuExecutable, kv: KvType, lengths: list[int]) -> list[CpuState]:
        if kv not in self.prefixes:
            self.prefixes[kv] = grown(self.oracle, PREFIX, 1, kv)
        states = []
        for length in lengths:
            state = self.prefixes[kv].fork()
            state.truncate(length)
            reserve_slots(executable, state, 20)
            states.append(state)
        return states


@pytest.fixture(scope="module")
def setup() -> Setup:
    weights = TOY.weights(FORMATS)
    one, two, three = (compile_toy(TOY, weights, threads=n) for n in (1, 2, 3))
    return Setup(one, [one, two, three])


def check_trees(
    setup: Setup, executable: CpuExecutable, kv: KvType, lengths: list[int], drawn: list[Tree]
) -> None:
    states = setup.states(executable, kv, lengths)
    oracle = Oracle(setup.oracle, setup.states(setup.oracle, kv, lengths))
    for tree in drawn:
        rows = tree.build()
        for state in (*states, *oracle.states):
            state.native.poison()
        result = executable.run(states, rows, everything(executable, len(rows)))
        wanted = oracle.tree(rows)
        for row in range(len(rows)):
            assert row_bytes(result, row) == wanted[row], f"row {row}"
        path = path_to(rows, tree.leaf % len(rows))
        accepted = int(rows.sequences[path[0]])
        for sequence, state in enumerate(states):
            state.commit(path if sequence == accepted else [])
        oracle.commit(rows, accepted, path)
        for both in (states, oracle.states):
            both[accepted].truncate(max(0, both[accepted].length - tree.truncate))
            if tree.fork:
                both[accepted] = both[accepted].fork()
                reserve_slots(setup.oracle, both[accepted], 20)
        for state, known, length in zip(states, oracle.states, lengths, strict=True):
            start = max(0, min(length, state.length) - 20)
            assert kv_bytes(state, start) == kv_bytes(known, start)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    kv=st.sampled_from(KV_TYPES),
    lengths=st.lists(st.sampled_from(LENGTHS), min_size=3, max_size=3),
    drawn=st.lists(trees, min_size=1, max_size=3),
)
def test_random_trees(setup: Setup, kv: KvType, lengths: list[int], drawn: list[Tree]) -> None:
    check_trees(setup, setup.tested[0], kv, lengths, drawn)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    threads=st.sampled_from([2, 3]),
    lengths=st.lists(st.sampled_from(LENGTHS), min_size=3, max_size=3),
    drawn=st.lists(trees, min_size=1, max_size=2),
)
def test_random_trees_on_several_threads(
    setup: Setup, threads: int, lengths: list[int], drawn: list[Tree]
) -> None:
    check_trees(setup, setup.tested[threads - 1], "f16", lengths, drawn)


@pytest.mark.parametrize("kv", KV_TYPES)
@pytest.mark.parametrize("seed", range(2))
def test_any_chunking_of_a_prefill(setup: Setup, kv: KvType, seed: int) -> None:
    """Chunks of random sizes across the boundaries 16, 256 and 512."""
    executable = setup.oracle
    alone = grown(executable, PREFIX, 1, kv)
    rng = np.random.default_rng(seed)
    state = executable.new_state(1024, kv)
    check = setup.states(executable, kv, [0])[0]
    while state.length < len(PREFIX):
        chunk = PREFIX[state.length :][: int(rng.choice([1, 3, 15, 16, 17, 49, 100, 256]))]
        reserve_slots(executable, state, len(chunk))
        state.native.poison()
        result = executable.run([state], Rows.chain(chunk), everything(executable, len(chunk)))
        for row, token in enumerate(chunk):
            single = executable.run([check], Rows.chain([token]), everything(executable, 1))
            assert row_bytes(result, row) == row_bytes(single, 0), state.length + row
            check.commit([0])
        state.commit(range(len(chunk)))
    assert kv_bytes(state) == kv_bytes(alone)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_one_pass_on_any_number_of_threads(setup: Setup, threads: int) -> None:
    """A prefill of 200 rows, then one row whose attention is shared out by splits."""
    executable = setup.tested[threads - 1]
    for chunk in (200, 1):
        states = setup.states(executable, "f16", [513 if chunk == 1 else 100])
        known = setup.states(setup.oracle, "f16", [states[0].length])
        rows = Rows.chain(tokens_of(chunk, TOY.vocabulary, seed=9))
        result = executable.run(states, rows, everything(executable, chunk))
        wanted = setup.oracle.run(known, rows, everything(setup.oracle, chunk))
        for row in range(chunk):
            assert row_bytes(result, row) == row_bytes(wanted, row)
        states[0].commit(range(chunk))
        known[0].commit(range(chunk))
        assert kv_bytes(states[0], 100) == kv_bytes(known[0], 100)


@pytest.mark.parametrize("kv", KV_TYPES)
@pytest.mark.parametrize("length", [255, 256, 300, 511, 520])
def test_attention_by_splits_equals_attention_in_one_walk(
    setup: Setup, kv: KvType, length: int
) -> None:
    """One row of a long context has few tiles and goes by splits; among many it does not."""
    executable = setup.oracle
    token = int(PREFIX[length]) if length < len(PREFIX) else 5
    alone = executable.run(
        setup.states(executable, kv, [length]), Rows.chain([token]), everything(executable, 1)
    )
    states = setup.states(executable, kv, [length, 400, 16])
    tree = make_rows(
        [token, *range(150)], [COMMITTED] * 51 + [row - 1 for row in range(51, 151)],
        [0] * 51 + [0] * 100,
    )  # fmt: skip
    many = executable.run(states, tree, everything(executable, 151))
    assert row_bytes(many, 0) == row_bytes(alone, 0)
    several = make_rows([token, 1, 2, 3, 4], [COMMITTED] * 5, [0, 1, 1, 2, 2])
    other = executable.run(states, several, everything(executable, 5))
    assert row_bytes(other, 0) == row_bytes(alone, 0)


@pytest.mark.parametrize("window", [1, 15, 16, 17, 40, 256, 300])
def test_windows(window: int) -> None:
    """Windows that begin inside blocks and splits, or that hide whole splits."""
    toy = Toy(windows=(window,), head_norms=False)
    executable = compile_toy(toy, toy.weights(["Q8_0"]))
    text = tokens_of(530, toy.vocabulary)
    in_chunks, alone = executable.new_state(1024), executable.new_state(1024)
    for start in range(0, 530, 53):
        chunk = text[start : start + 53]
        reserve_slots(executable, in_chunks, len(chunk))
        in_chunks.native.poison()
        result = executable.run([in_chunks], Rows.chain(chunk), everything(executable, len(chunk)))
        in_chunks.commit(range(len(chunk)))
        for row, token in enumerate(chunk):
            single = executable.run([alone], Rows.chain([token]), everything(executable, 1))
            alone.commit([0])
            assert row_bytes(result, row) == row_bytes(single, 0), start + row
    assert kv_bytes(in_chunks) == kv_bytes(alone)


def test_a_window_hides_what_is_outside() -> None:
    toy = Toy(windows=(16,), head_norms=False)
    executable = compile_toy(toy, toy.weights(["Q8_0"]))
    recent = tokens_of(16, toy.vocabulary)
    found = []
    for seed in range(2):
        state = grown(executable, tokens_of(300, toy.vocabulary, seed), 100)
        result = executable.run([state], Rows.chain(recent), Want(logits=[14, 15]))
        found.append(result.logits)
    assert (found[0][0] != found[1][0]).any(), "row 14 still sees one token of the past"
    assert (found[0][1] == found[1][1]).all()


def test_vectors_equal_the_tokens_they_embed(setup: Setup) -> None:
    """A row that takes the embedding of a token as its vector has that token's bits."""
    executable = setup.oracle
    text = tokens_of(9, TOY.vocabulary, seed=4)
    tap = executable.tap_names[0]
    by_token = executable.run(
        [executable.new_state(16)], Rows.chain(text), everything(executable, 9)
    )
    chain = Rows.chain(text)
    takes = np.arange(9) % 2 == 0
    vectors = np.where(takes[:, None], by_token.taps[tap], np.float32(np.nan))
    mixed_tokens = np.where(takes, -7, text).astype(np.int32)
    rows = Rows(mixed_tokens, chain.parents, chain.sequences, vectors.astype(np.float32), takes)
    by_vector = executable.run([executable.new_state(16)], rows, everything(executable, 9))
    for row in range(9):
        assert row_bytes(by_vector, row) == row_bytes(by_token, row)


@pytest.mark.parametrize("rows", range(1, 17))
def test_k_formats_with_any_number_of_rows(rows: int) -> None:
    """Tiles of 1 to 6 rows of every format, as even as they go."""
    executable = wide_executable()
    text = tokens_of(16, WIDE.vocabulary, seed=2)
    state = executable.new_state(32)
    result = executable.run([state], Rows.chain(text[:rows]), everything(executable, rows))
    alone = wide_alone()
    for row in range(rows):
        assert row_bytes(result, row) == alone[row]


_WIDE: dict[str, CpuExecutable] = {}
_ALONE: list[dict[str, bytes]] = []


def wide_executable() -> CpuExecutable:
    if not _WIDE:
        toy = Toy(
            dim=256, ffn=256, vocabulary=300, heads=4, kv_heads=2, head_dim=64, windows=(None, None)
        )
        kinds = ("Q4_K", "Q6_K", "Q2_K", "Q3_K", "Q5_K", "IQ4_XS", "Q5_0", "Q4_1", "IQ4_NL", "BF16")
        _WIDE["it"] = compile_toy(toy, toy.weights(kinds))
    return _WIDE["it"]


def wide_alone() -> list[dict[str, bytes]]:
    if not _ALONE:
        executable = wide_executable()
        state = executable.new_state(32)
        for token in tokens_of(16, WIDE.vocabulary, seed=2):
            single = executable.run([state], Rows.chain([token]), everything(executable, 1))
            _ALONE.append(row_bytes(single, 0))
            state.commit([0])
    return _ALONE


# ---- states ----


def test_poison_reaches_every_slot_that_is_not_committed(setup: Setup) -> None:
    """Else the tests above would prove nothing: what is poisoned and then committed is NaN."""
    executable = setup.oracle
    for kv in KV_TYPES:
        state = executable.new_state(64, kv)
        executable.run([state], Rows.chain([1, 2, 3]), Want())
        state.commit([0])
        clean = kv_bytes(state)
        executable.run([state], Rows.chain([2, 3]), Want())
        state.native.poison()
        state.commit([0, 1])
        assert kv_bytes(state)[:1] == clean
        with pytest.raises(NumericError, match="NaN at position 3"):
            executable.run([state], Rows.chain([4]), Want(best=[0]))


def test_truncate_fork_and_regrow(setup: Setup) -> None:
    """Going back and on again, and forks that go their own ways, leave no trace."""
    executable = setup.oracle
    state = grown(executable, PREFIX[:300], 100)
    original = kv_bytes(state)
    fork = state.fork()
    fork.truncate(250)
    executable.run([fork], Rows.chain(tokens_of(40, 300, seed=11)), Want())
    fork.commit(range(40))
    assert kv_bytes(state) == original
    assert kv_bytes(fork)[:250] == original[:250]
    state.truncate(17)
    executable.run([state], Rows.chain(PREFIX[17:300].tolist()[:200]), Want())
    state.commit(range(200))
    assert kv_bytes(state) == original[:217]


def test_commit_refuses_what_is_no_path(setup: Setup) -> None:
    executable = setup.oracle
    state = executable.new_state(64)
    rows = make_rows([1, 2, 3, 4, 5], [-1, 0, 0, 2, -1])
    for path in ([1], [0, 3], [0, 1, 2], [0, 0], [4, 0], [5], [-1], [0, 2, 3, 4]):
        executable.run([state], rows, Want())
        with pytest.raises(ValueError, match="commit"):
            state.commit(path)
        assert state.length == 0
        state.commit([0, 2, 3])  # a refused commit leaves the pending rows as they were
        assert state.length == 3
        state.truncate(0)
    with pytest.raises(ValueError, match="not a pending row"):
        state.commit([0])
