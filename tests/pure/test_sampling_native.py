"""The native sampler against its specification, bit for bit, and against probability itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sampling_reference as reference
from hypothesis import given, settings
from hypothesis import strategies as st

from divine.backends.cpu import _native

# A right sampler fails a chi-square test at this level once in a thousand seeds; ours are fixed.
CHI_SQUARE_P = 0.001


def native_gumbel(seed, choice, position, tokens):
    return _native.gumbel(seed, choice, position, np.asarray(tokens, dtype=np.int32))


def test_philox_gives_the_published_known_answers():
    ones = 0xFFFFFFFF
    assert reference.philox((0, 0, 0, 0), (0, 0)) == (
        0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8,
    )  # fmt: skip
    assert reference.philox((ones,) * 4, (ones,) * 2) == (
        0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD,
    )  # fmt: skip
    assert reference.philox(
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
    ) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)


@given(
    seed=st.integers(0, 2**64 - 1),
    choice=st.integers(0, 2**32 - 1),
    position=st.integers(0, 2**32 - 1),
    token=st.integers(0, 2**31 - 1),
)
def test_noise_has_the_bits_of_the_specification(seed, choice, position, token):
    got = native_gumbel(seed, choice, position, [token])[0]
    assert got == reference.gumbel(seed, choice, position, token)


def test_log_is_right_to_the_last_bits_where_noise_needs_it():
    for x in (2.0**-33, 0.1, 0.5, 0.75, 1 - 2.0**-20, 1 - 2.0**-33, 1.0, 22.87, 1e300):
        assert reference.log(x) == pytest.approx(math.log(x), rel=1e-15, abs=0)


def test_noise_is_gumbel_and_independent_between_positions_and_seeds():
    tokens = np.arange(20_000)
    g = native_gumbel(1, 0, 0, tokens)
    uniform = np.sort(np.exp(-np.exp(-g)))
    distance = np.max(np.abs(uniform - np.arange(len(g)) / len(g)))  # Kolmogorov-Smirnov
    assert distance < 1.95 / math.sqrt(len(g))
    for other in (
        native_gumbel(1, 0, 1, tokens),
        native_gumbel(1, 1, 0, tokens),
        native_gumbel(2, 0, 0, tokens),
        native_gumbel(1 + 2**32, 0, 0, tokens),
        native_gumbel(1, 0, 0, tokens + 1),
    ):
        correlation = np.corrcoef(g, other)[0, 1]
        assert abs(correlation) < 4 / math.sqrt(len(g))


logit_rows = st.one_of(
    st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=70),
    st.lists(st.sampled_from([-math.inf, -5.0, -0.0, 0.0, 1.0, 3.0]), min_size=1, max_size=70),
)


@settings(max_examples=300, deadline=None)
@given(
    row=logit_rows,
    temperature=st.sampled_from([0.0, 1e-6, 0.3, 0.8, 1.0, 2.5, 100.0]),
    top_k=st.sampled_from([-1, 0, 1, 2, 5, 40, 10**9]),
    top_p=st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 5000),
)
def test_sampling_equals_the_specification(row, temperature, top_k, top_p, min_p, seed, position):
    logits = np.array(row, dtype=np.float32)
    arguments = (logits, temperature, top_k, top_p, min_p, seed, 3, position)
    assert _native.sample(*arguments) == reference.sample(*arguments)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [(1, 0, 1, 0), (0.8, 40, 0.95, 0.05), (1, 0, 0.9, 0), (2, 0, 0.99, 0), (1, 3000, 0.8, 0)],
)
def test_large_rows_equal_the_specification(temperature, top_k, top_p, min_p):
    rng = np.random.default_rng(5)
    logits = (rng.standard_normal(5003) * 4).astype(np.float32)
    for position in range(4):
        arguments = (logits, temperature, top_k, top_p, min_p, 2**40 + 9, 0, position)
        assert _native.sample(*arguments) == reference.sample(*arguments)


@settings(max_examples=300, deadline=None)
@given(
    row=logit_rows,
    temperature=st.sampled_from([0.0, 1e-6, 0.3, 0.8, 1.0, 2.5, 100.0]),
    top_k=st.sampled_from([-1, 0, 1, 2, 5, 40, 10**9]),
    top_p=st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    position=st.integers(0, 5000),
    k=st.sampled_from([1, 2, 3, 8, 100]),
)
def test_ranks_and_probabilities_equal_the_specification(
    row, temperature, top_k, top_p, min_p, position, k
):
    logits = np.array(row, dtype=np.float32)
    filters = (logits, temperature, top_k, top_p, min_p)
    ranked = _native.rank(*filters, 7, 3, position, k)
    probabilities = _native.distribution(*filters)
    chosen = _native.sample(*filters, 7, 3, position)
    if chosen < 0:
        assert (ranked, probabilities) == ([], None)
        return
    assert ranked == reference.rank(*filters, 7, 3, position, k)
    assert ranked[0][0] == chosen
    assert probabilities.tolist() == reference.distribution(*filters)


def test_ranks_of_large_rows_equal_the_specification():
    rng = np.random.default_rng(6)
    logits = (rng.standard_normal(5003) * 4).astype(np.float32)
    logits[rng.integers(0, 5003, 900)] = -np.inf
    for settings_ in [(1, 0, 1, 0), (0.8, 40, 0.95, 0.05), (2, 0, 0.99, 0), (0, 0, 1, 0)]:
        for k in (1, 4, 64, 5003):
            arguments = (logits, *settings_, 2**40 + 9, 0, 5, k)
            assert _native.rank(*arguments) == reference.rank(*arguments)


def test_probabilities_are_the_softmax_of_what_is_kept():
    logits = (np.random.default_rng(2).standard_normal(1003) * 5).astype(np.float32)
    for temperature in (0.7, 1.0, 3.0):
        exact = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
        found = _native.distribution(logits, temperature, 0, 1.0, 0.0)
        assert np.abs(found - exact / exact.sum()).max() < 1e-6
        kept = _native.distribution(logits, temperature, 7, 1.0, 0.0)
        assert (np.flatnonzero(kept) == np.sort(np.argsort(-logits)[:7])).all()
        assert kept.sum() == pytest.approx(1, abs=1e-12)


def test_what_is_kept_is_drawn_with_its_probability():
    logits = np.log(np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.04], dtype=np.float32))
    draws = 20_000
    for temperature, top_k, top_p, min_p, kept in [
        (1.0, 0, 1.0, 0.0, 6),
        (0.7, 4, 1.0, 0.0, 4),
        (1.0, 0, 0.75, 0.0, 3),
        (1.0, 0, 1.0, 0.2, 4),
    ]:
        p = np.exp(logits[:kept].astype(np.float64) / temperature)
        expected = draws * p / p.sum()
        counts = np.bincount(
            [
                _native.sample(logits, temperature, top_k, top_p, min_p, 11, 0, i)
                for i in range(draws)
            ],
            minlength=len(logits),
        )
        assert counts[kept:].sum() == 0
        chi_square = float(np.sum((counts[:kept] - expected) ** 2 / expected))
        # Wilson and Hilferty: the cube root of chi-square over its degrees is nearly normal.
        degrees = kept - 1
        normal = ((chi_square / degrees) ** (1 / 3) - (1 - 2 / (9 * degrees))) / math.sqrt(
            2 / (9 * degrees)
        )
        assert 0.5 * math.erfc(normal / math.sqrt(2)) > CHI_SQUARE_P


def test_ties_go_to_the_lowest_id_and_zero_has_no_sign():
    for length in (5, 16, 17, 40):
        logits = np.zeros(length, dtype=np.float32)
        logits[::2] = -0.0
        assert _native.sample(logits, 0, 0, 1, 0, 0, 0, 0) == 0
        assert _native.sample(logits, 1, 1, 1, 0, 8, 0, 0) == 0
        assert _native.sample(logits, 1, 0, 0.0, 0, 8, 0, 0) == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("where", [0, 15, 16, 36])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_infinity_are_reported(temperature, where, bad):
    logits = np.zeros(37, dtype=np.float32)
    logits[where] = bad
    assert _native.sample(logits, temperature, 0, 1, 0, 0, 0, 0) == -1
    assert _native.rank(logits, temperature, 0, 1, 0, 0, 0, 0, 3) == []
    assert _native.distribution(logits, temperature, 0, 1, 0) is None
    assert _native.log_probabilities(logits, 1, 2) == []


def test_only_finite_logits_are_chosen():
    logits = np.full(100, -np.inf, dtype=np.float32)
    assert _native.sample(logits, 1, 0, 1, 0, 0, 0, 0) == -1
    logits[77] = -3e38
    for top_k, top_p in [(0, 1), (50, 1), (50, 0.99), (0, 0.99)]:
        assert _native.sample(logits, 100, top_k, top_p, 0, 0, 0, 0) == 77


def test_log_probabilities_are_the_log_softmax():
    logits = (np.random.default_rng(2).standard_normal(1003) * 5).astype(np.float32)
    exact = logits - (np.log(np.sum(np.exp(logits.astype(np.float64) - 20))) + 20)
    (chosen, value), *top = _native.log_probabilities(logits, 17, 20)
    assert chosen == 17
    assert value == pytest.approx(exact[17], abs=2e-6)
    assert [token for token, _ in top] == list(np.argsort(-logits, kind="stable")[:20])
    assert [v for _, v in top] == pytest.approx(list(np.sort(exact)[::-1][:20]), abs=2e-6)


def test_wrong_arguments_are_refused():
    row = np.zeros(8, dtype=np.float32)
    neutral = (1.0, 0, 1.0, 0.0, 0, 0, 0)
    for bad in (row[::2], row.astype(np.float64), row.reshape(2, 4), None, [0.0]):
        with pytest.raises(TypeError):
            _native.sample(bad, *neutral)
    misaligned = np.frombuffer(b"\0" * 37, dtype=np.uint8)[1:33].view(np.float32)
    for bad in (np.zeros(0, dtype=np.float32), misaligned):
        with pytest.raises(ValueError, match="logits"):
            _native.sample(bad, *neutral)
    for temperature in (math.nan, math.inf, -1.0, 1e-40, 2e30, 1e300):
        with pytest.raises(ValueError, match="temperature"):
            _native.sample(row, temperature, 0, 1.0, 0.0, 0, 0, 0)
    for temperature in (1e-30, 1e30):
        spread = np.linspace(-50, 50, 100, dtype=np.float32)
        assert 0 <= _native.sample(spread, temperature, 0, 0.5, 0.0, 1, 2, 3) < 100
    for top_p, min_p in ((math.nan, 0), (-1, 0), (1, -1), (1, 2), (1, math.nan)):
        with pytest.raises(ValueError, match="top_p"):
            _native.sample(row, 1.0, 0, top_p, min_p, 0, 0, 0)
        with pytest.raises(ValueError, match="top_p"):
            _native.rank(row, 1.0, 0, top_p, min_p, 0, 0, 0, 1)
        with pytest.raises(ValueError, match="top_p"):
            _native.distribution(row, 1.0, 0, top_p, min_p)
    with pytest.raises(ValueError, match="k must"):
        _native.rank(row, *neutral, 0)
    with pytest.raises(TypeError):
        _native.rank(row[::2], *neutral, 1)
    with pytest.raises(TypeError):
        _native.distribution(row.astype(np.float64), 1.0, 0, 1.0, 0.0)
    for chosen in (-1, 8):
        with pytest.raises(ValueError, match="chosen"):
            _native.log_probabilities(row, chosen, 0)


def test_golden_values_of_every_machine():
    """Written down once: another machine, compiler or CPU level must give these very bits."""
    noise = native_gumbel(2024, 1, 77, [0, 1, 49151, 151935])
    assert [float(value).hex() for value in noise] == [
        "-0x1.8c8c10006553ep-2",
        "-0x1.f0ddd13095454p-1",
        "-0x1.26ab33f525b00p-1",
        "0x1.3889f205250c4p-3",
    ]
    mixed = np.arange(5000, dtype=np.int64) * 2654435761 % 4096
    logits = mixed.astype(np.float32) / np.float32(512)
    plain = [_native.sample(logits, 1.0, 0, 1.0, 0.0, 7, 0, i) for i in range(8)]
    assert plain == [2483, 4989, 1953, 1149, 4875, 4624, 3711, 558]
    filtered = [_native.sample(logits, 0.8, 0, 0.9, 0.05, 7, 0, i) for i in range(8)]
    assert filtered == [2483, 4989, 1953, 1149, 4875, 2610, 3711, 558]
    logprobs = [value.hex() for _, value in _native.log_probabilities(logits, 3, 1)]
    assert logprobs == ["-0x1.f9ba565da3f44p+2", "-0x1.9c3a565da3f44p+2"]
