"""The store loses nothing that was synced, whatever happens to the process or the disk."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic import SETTINGS

from divine.errors import CapacityError, FormatError, UsageError
from divine.tune import answers as module
from divine.tune.answers import Answer, AnswerStore, AnswerWriter, Finish

DIM = SETTINGS["dim"]


def answer(number: int) -> Answer:
    some = np.random.default_rng(number)
    prompt, count = int(some.integers(1, 5)), int(some.integers(1, 9))
    return Answer(
        number,
        some.integers(0, 12, prompt + count).astype(np.int32),
        prompt,
        some.standard_normal((count, DIM)).astype(np.float16),
        Finish(number % 3),
    )


def same(found: Answer, wanted: Answer) -> bool:
    return (
        found.number == wanted.number
        and found.prompt == wanted.prompt
        and found.finish == wanted.finish
        and np.array_equal(found.tokens, wanted.tokens)
        and np.array_equal(found.states, wanted.states)
    )


def test_answers_come_back_by_number_from_many_shards(tmp_path: Path) -> None:
    with AnswerWriter(tmp_path, SETTINGS, shard_bytes=3000) as writer:
        for number in reversed(range(30)):
            writer.append(answer(number))
    assert len(list(tmp_path.glob("*.index"))) > 3
    store = AnswerStore(tmp_path)
    assert [found.number for found in store] == list(range(30))
    assert all(same(found, answer(found.number)) for found in store)
    assert store.lengths.sum() == sum(len(answer(n).answer) for n in range(30))


def test_a_killed_writer_goes_on_from_its_last_whole_answer(tmp_path: Path) -> None:
    """Files cut anywhere, as a kill or a power failure leaves them."""
    chance = random.Random(7)
    for case in range(25):
        folder = tmp_path / str(case)
        with AnswerWriter(folder, SETTINGS) as writer:
            for number in range(6):
                writer.append(answer(number))
        for kind in chance.sample(("tokens", "states", "index"), chance.randint(1, 3)):
            path = folder / f"00000.{kind}"
            os.truncate(path, chance.randint(0, path.stat().st_size))
        with AnswerWriter(folder, SETTINGS) as writer:
            kept = sorted(writer.numbers)
            assert kept == list(range(len(kept)))
            for number in range(len(kept), 6):
                writer.append(answer(number))
        store = AnswerStore(folder)
        assert len(store) == 6
        assert all(same(found, answer(found.number)) for found in store)


def test_bytes_written_over_are_noticed(tmp_path: Path) -> None:
    with AnswerWriter(tmp_path, SETTINGS) as writer:
        for number in range(3):
            writer.append(answer(number))
    path = tmp_path / "00000.states"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with AnswerWriter(tmp_path, SETTINGS) as writer:
        assert writer.numbers == {0, 1}


def test_a_full_disk_is_one_sentence_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SYNC_ANSWERS", 2)
    real = os.fsync
    calls = 0

    def full(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 6:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(os, "fsync", full)

    def write() -> None:
        with AnswerWriter(tmp_path, SETTINGS) as writer:
            for number in range(10):
                writer.append(answer(number))

    with pytest.raises(CapacityError, match="no space left on device; what was captured"):
        write()
    monkeypatch.setattr(os, "fsync", real)
    with AnswerWriter(tmp_path, SETTINGS) as writer:
        assert writer.numbers >= {0, 1, 2, 3}
        for number in range(len(writer.numbers), 10):
            writer.append(answer(number))
    assert all(same(found, answer(found.number)) for found in AnswerStore(tmp_path))


@pytest.mark.parametrize(
    ("change", "words"),
    [({"fingerprint": "other"}, "fingerprint 'synthetic'"), ({"states": False}, "states True")],
)
def test_other_answers_are_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    AnswerWriter(tmp_path, SETTINGS).close()
    with pytest.raises(UsageError, match=words):
        AnswerWriter(tmp_path, {**SETTINGS, **change})


def test_damaged_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="holds no captured answers"):
        AnswerStore(tmp_path)
    with AnswerWriter(tmp_path, SETTINGS) as writer:
        writer.append(answer(0))
    os.truncate(tmp_path / "00000.tokens", 4)
    with pytest.raises(FormatError, match=r"00000\.tokens is shorter than its index says"):
        AnswerStore(tmp_path)
    (tmp_path / "capture.json").write_text("{")
    with pytest.raises(FormatError, match=r"capture\.json cannot be read"):
        AnswerStore(tmp_path)
