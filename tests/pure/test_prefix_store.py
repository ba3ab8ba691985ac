"""Blocks on disk: what is found again, what is not believed, and how the folder stays bounded."""

from __future__ import annotations

import os
import stat
import time
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divine.backends.prefix_store import BLOCK, PrefixStore
from divine.backends.prefixes import FORK_FROM, Prefixes
from divine.errors import UsageError

POSITION = 4  # bytes: a state of these tests is its tokens


class TokenState:
    """A state that holds nothing but its tokens."""

    def __init__(self, tokens=()):
        self.tokens, self.closed, self.capacity, self.nbytes = list(tokens), False, 10**6, 1

    @property
    def length(self):
        return len(self.tokens)

    def save(self, start, stop):
        assert start % 16 == stop % 16 == 0
        assert stop <= len(self.tokens)
        return np.array(self.tokens[start:stop], "<i4").view(np.uint8)

    def load(self, data):
        if len(data) != BLOCK * POSITION:
            raise ValueError("of another size")
        self.tokens += data.view("<i4").tolist()

    def truncate(self, length):
        del self.tokens[length:]

    def fork(self):
        return TokenState(self.tokens)

    def close(self):
        self.closed = True


def common_length(a, b):
    """Of the common beginning of two lists of tokens."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "kept"


def store(folder, identity=b"model", size=10**9):
    return PrefixStore(folder, identity, size)


def keep(folder, tokens, **options):
    kept = store(folder, **options)
    kept.save(tokens, TokenState(tokens))
    kept.close()


def restored(folder, tokens, **options):
    """What a new process finds of these tokens."""
    kept, state = store(folder, **options), TokenState()
    kept.load(kept.longest(tokens), state)
    kept.close()
    assert state.tokens == list(tokens[: state.length])
    return state.length


def files(folder):
    return sorted(folder.glob("*.kv"))


@given(
    lengths=st.lists(st.integers(0, 5 * BLOCK), min_size=1, max_size=4),
    common=st.integers(0, 5 * BLOCK),
    asked=st.integers(0, 5 * BLOCK),
)
@settings(max_examples=25, deadline=None)
def test_the_longest_beginning_of_whole_blocks_is_found(tmp_path_factory, lengths, common, asked):
    folder = tmp_path_factory.mktemp("kept")
    texts = []
    for number, length in enumerate(lengths):
        texts.append([*range(common), *range(1000 * (number + 1), 1000 * (number + 1) + length)])
        keep(folder, texts[-1])
    prompt = [*range(common), *range(1000, 1000 + asked)]
    known = 0
    for text in texts:
        known = max(known, common_length(text, prompt))
    assert restored(folder, prompt) == known // BLOCK * BLOCK


def test_equal_beginnings_are_kept_once(folder):
    keep(folder, [*range(4 * BLOCK), 1])
    keep(folder, [*range(4 * BLOCK), 2, 3])
    keep(folder, [*range(4 * BLOCK), *range(7, 7 + BLOCK)])
    assert len(files(folder)) == 5


def test_another_model_sees_nothing(folder):
    keep(folder, range(3 * BLOCK))
    assert restored(folder, range(3 * BLOCK), identity=b"another") == 0
    assert restored(folder, range(3 * BLOCK)) == 3 * BLOCK
    assert restored(folder, range(1, 3 * BLOCK)) == 0


def test_the_folder_is_the_owners_alone(folder):
    keep(folder, range(BLOCK))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(files(folder)[0].stat().st_mode) == 0o600


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_damage_is_never_believed(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("kept")
    keep(folder, range(2 * BLOCK))
    victim = data.draw(st.sampled_from(files(folder)))
    content = bytearray(victim.read_bytes())
    how = data.draw(st.sampled_from(["flip", "cut", "longer", "other", "empty", "random"]))
    if how == "flip":
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] ^= 1 << data.draw(st.integers(0, 7))
    elif how == "cut":
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    elif how == "longer":
        content += b"x"
    elif how == "other":  # a good file under a wrong name
        content = bytearray(next(f for f in files(folder) if f != victim).read_bytes())
    elif how == "empty":
        content.clear()
    else:
        content[:] = data.draw(st.binary(max_size=400))
    victim.write_bytes(bytes(content))
    with pytest.warns(RuntimeWarning, match="is damaged and is not used") as warned:
        length = restored(folder, range(2 * BLOCK))
    assert len(warned) == 1
    assert length in (0, BLOCK)
    assert not victim.exists()
    keep(folder, range(2 * BLOCK))  # and it is written anew
    assert restored(folder, range(2 * BLOCK)) == 2 * BLOCK


def test_what_is_not_ours_stays(folder):
    keep(folder, range(BLOCK))
    others = [folder / "README", folder / "x.kv", folder / ("0" * 31 + ".kv")]
    for path in others:
        path.write_bytes(b"mine" * 10**6)
    (folder / ("f" * 32 + ".kv")).mkdir()
    (folder / "folder").mkdir()
    keep(folder, range(5000, 5000 + BLOCK), size=1)
    assert all(path.exists() for path in others)
    assert restored(folder, range(BLOCK)) == 0


def test_the_longest_unused_go_first_and_ends_before_beginnings(folder):
    keep(folder, range(4 * BLOCK))
    one = files(folder)[0].stat().st_size
    old, new = time.time_ns() - 10**12, [range(i, i + 2 * BLOCK) for i in (10_000, 20_000)]
    for path in files(folder):
        os.utime(path, ns=(old, old))
    assert restored(folder, range(4 * BLOCK)) == 4 * BLOCK  # used just now, in order
    keep(folder, new[0], size=6 * one)
    assert restored(folder, range(4 * BLOCK)) == 4 * BLOCK
    time.sleep(0.01)
    assert restored(folder, new[0]) == 2 * BLOCK
    keep(folder, new[1], size=6 * one)
    assert restored(folder, new[0]) == 2 * BLOCK
    assert restored(folder, new[1]) == 2 * BLOCK
    assert restored(folder, range(4 * BLOCK)) == 2 * BLOCK
    assert len(files(folder)) == 6


def test_a_smaller_size_than_before_and_what_crashes_leave(folder):
    keep(folder, range(4 * BLOCK))
    stale, fresh = folder / ".divine-kv-old", folder / ".divine-kv-new"
    for path in (stale, fresh):
        path.write_bytes(b"half")
    os.utime(stale, (1, 1))
    one = files(folder)[0].stat().st_size
    assert restored(folder, range(4 * BLOCK), size=3 * one - 1) == 2 * BLOCK
    assert fresh.exists()
    assert not stale.exists()


def test_waiting_blocks_are_found_before_they_are_written(folder, monkeypatch):
    kept = store(folder)
    monkeypatch.setattr(kept, "_write_all", lambda: None)  # a disk that is slow
    kept.save(range(2 * BLOCK), TokenState(range(2 * BLOCK)))
    assert not files(folder)
    state = TokenState()
    kept.load(kept.longest(range(3 * BLOCK)), state)
    assert state.tokens == list(range(2 * BLOCK))


def test_a_slow_disk_does_not_fill_the_memory(folder, monkeypatch):
    monkeypatch.setattr("divine.backends.prefix_store.MOST_WAITING", 3 * BLOCK * POSITION)
    kept = store(folder)
    monkeypatch.setattr(kept, "_write_all", lambda: None)
    kept.save(range(50 * BLOCK), TokenState(range(50 * BLOCK)))
    assert len(kept.longest(range(50 * BLOCK))) < 6


def test_a_disk_that_cannot_be_written(folder, monkeypatch):
    kept = store(folder)

    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kept, "_write", full)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        kept.save(range(3 * BLOCK), TokenState(range(3 * BLOCK)))
        kept.close()
    assert [str(w.message) for w in warned] == [
        f"{folder}: a prompt's state was not kept: no space left on device"
    ]


def test_a_folder_that_cannot_be_one(tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below", "a\0b"):
        with pytest.raises(UsageError, match="prefix_cache is"):
            PrefixStore(path, b"", 10**6)


@given(
    st.lists(
        st.tuples(st.integers(0, 3 * BLOCK), st.integers(0, 3), st.integers(0, 90)),
        min_size=2,
        max_size=8,
    )
)
@settings(max_examples=40, deadline=None)
def test_kept_and_stored_states_together(tmp_path_factory, talks):
    """Whatever is in memory and on disk, a state begins as its prompt does, and is of some use."""
    folder = tmp_path_factory.mktemp("kept")
    prefixes = Prefixes(kept_states=2, store=store(folder))
    seen = []
    for common, branch, length in talks:
        prompt = [*range(common), *range(1000 * branch, 1000 * branch + length), 5]
        state = prefixes.take(prompt, TokenState)
        assert not state.closed
        assert state.tokens == prompt[: state.length]
        assert state.length < len(prompt)
        whole = max((common_length(prompt[:-1], old) for old in seen), default=0)
        assert state.length > whole // BLOCK * BLOCK - FORK_FROM
        state.tokens = list(prompt)
        seen.append(prompt)
        prefixes.put(prompt, state)
    prefixes.close()
    again = Prefixes(store=store(folder))
    prompt = seen[-1]
    whole = len(prompt) // BLOCK * BLOCK
    expected = whole if whole >= FORK_FROM else 0  # less is not worth a file's reading
    assert again.take([*prompt, 1], TokenState).length == expected
