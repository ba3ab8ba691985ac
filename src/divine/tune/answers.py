"""AnswerStore: a folder of answers, token by token, with the hidden state behind each token.

Append-only shards of raw arrays beside an index whose fixed-size records come last, so a process
that is killed loses at most what was not indexed yet: opening again cuts such a tail. Reading maps
the files. Knows tokens and arrays; nothing of models, prompts or how answers are made.

    capture.json           what the answers are of; written once, whole or not at all
    00000.tokens           int32: of each answer its prompt, then the answer
    00000.states           float16 [rows, dim]: for each token of the answer, the hidden state that
                           it was chosen from; absent if none are kept
    00000.index            records of INDEX
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from divine.errors import CapacityError, FormatError
from divine.files import replacing, write_error
from divine.tune.sameness import check_same
from divine.tune.shards import INDEX, mapped, records_of, recover, shard_path, shards, too_short

SETTINGS = "capture.json"
VERSION = 1
SHARD_BYTES = 256 << 20
SYNC_BYTES = 8 << 20  # between two moments at which everything is on the disk and indexed,
SYNC_ANSWERS = 64  # or so many answers
MAX_STATE = 65504.0  # of float16


class Finish(IntEnum):
    """Why an answer ended."""

    STOP = 0
    LENGTH = 1
    LOOP = 2
    FAILED = 3  # no answer: the model gave no finite numbers


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer.

    number   of its prompt
    tokens   int32 [prompt + answer]
    prompt   how many of the tokens are the prompt
    states   float16 [answer, dim], states[i] chose tokens[prompt + i]; [0, dim] if none are kept
    """

    number: int
    tokens: NDArray[np.int32]
    prompt: int
    states: NDArray[np.float16]
    finish: Finish

    @property
    def answer(self) -> NDArray[np.int32]:
        """The answer's own tokens."""
        return self.tokens[self.prompt :]


def read_settings(folder: Path) -> dict[str, Any]:
    """What capture.json says. Raises FormatError."""
    path = folder / SETTINGS
    try:
        settings = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise FormatError(f"{folder} holds no captured answers: it has no {SETTINGS}") from None
    except (OSError, ValueError) as error:
        raise FormatError(f"{path} cannot be read ({error}); capture anew") from error
    if not isinstance(settings, dict) or settings.get("version") != VERSION:
        raise FormatError(f"{path} is not of version {VERSION}, the only one known")
    if not isinstance(settings.get("dim"), int) or not isinstance(settings.get("vocabulary"), int):
        raise FormatError(f"{path} lacks dim or vocabulary; both are integers")
    return settings


class AnswerWriter:
    """Appends answers to a folder; what it held already is kept."""

    def __init__(
        self, folder: Path, settings: dict[str, Any], *, shard_bytes: int = SHARD_BYTES
    ) -> None:
        """`settings` has "dim", "vocabulary" and "states"; it must be that of what is there.

        Raises UsageError if the folder holds answers captured otherwise, FormatError if damaged.
        """
        self.folder = folder
        self._shard_bytes = shard_bytes
        self._dim = int(settings["dim"])
        self._with_states = bool(settings["states"])
        self._pending: list[tuple[Any, ...]] = []
        self._unsynced = 0
        settings = json.loads(json.dumps({**settings, "version": VERSION}))
        if (folder / SETTINGS).exists():
            check_same(folder, read_settings(folder), settings)
        else:
            self._create(settings)
        self._shard = max((int(path.stem) for path in folder.glob("*.index")), default=0)
        records = recover(folder, self._shard, self._dim if self._with_states else 0)
        self._tokens = _open(folder, self._shard, "tokens")
        self._states = _open(folder, self._shard, "states") if self._with_states else None
        self._index = _open(folder, self._shard, "index")
        earlier = [records_of(folder, shard) for shard in shards(folder) if shard < self._shard]
        self.numbers: set[int] = set()
        self.answer_tokens = 0
        for some in (*earlier, records):
            self.numbers.update(some["number"].tolist())
            self.answer_tokens += int(some["answer"].sum())

    def append(self, answer: Answer) -> None:
        """Write one answer; it is safe after the next sync(). Raises CapacityError if disks fill.

        After an error nothing further may be appended; what was synced before is whole.
        """
        tokens = np.ascontiguousarray(answer.tokens, "<i4")
        states = np.ascontiguousarray(answer.states, "<f2")
        count = len(tokens) - answer.prompt
        assert not self._with_states or states.shape == (count, self._dim)
        nbytes = tokens.nbytes + (states.nbytes if self._with_states else 0)
        try:
            if self._tokens.tell() and self._size() + nbytes > self._shard_bytes:
                self._next_shard()
            check = zlib.crc32(tokens.tobytes())
            row_at = 0
            token_at = self._tokens.tell() // 4
            self._tokens.write(tokens.tobytes())
            if self._states is not None:
                row_at = self._states.tell() // (2 * self._dim)
                check = zlib.crc32(states.tobytes(), check)
                self._states.write(states.tobytes())
            self._pending.append(
                (answer.number, token_at, row_at, answer.prompt, count, int(answer.finish), check)
            )
            self.numbers.add(answer.number)
            self.answer_tokens += count
            self._unsynced += nbytes
            if self._unsynced >= SYNC_BYTES or len(self._pending) >= SYNC_ANSWERS:
                self.sync()
        except OSError as error:
            raise self._full(error) from error

    def sync(self) -> None:
        """Everything appended is on the disk and indexed after this. Raises CapacityError."""
        try:
            for file in (self._tokens, self._states):
                if file is not None:
                    file.flush()
                    os.fsync(file.fileno())
            self._index.write(np.array(self._pending, INDEX).tobytes())
            self._index.flush()
            os.fsync(self._index.fileno())
        except OSError as error:
            raise self._full(error) from error
        self._pending.clear()
        self._unsynced = 0

    def close(self) -> None:
        """Sync and close."""
        self.sync()
        self._close()

    def abandon(self) -> None:
        """Close after an error: what was not synced is lost."""
        for file in (self._tokens, self._states, self._index):
            if file is not None:
                try:
                    file.close()
                except OSError:  # the buffer's last bytes do not fit either
                    continue

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None and issubclass(kind, CapacityError):
            self.abandon()
        else:  # an interruption, too, keeps what was finished
            self.close()

    def _create(self, settings: dict[str, Any]) -> None:
        path = self.folder / SETTINGS
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(self.folder, error) from error
        if any(self.folder.glob("*.index")):
            raise FormatError(f"{self.folder} has answers and no {SETTINGS}; use another folder")
        with replacing(path) as place:
            place.write_text(json.dumps(settings, indent=1) + "\n", "utf-8")

    def _next_shard(self) -> None:
        self.sync()
        self._close()
        self._shard += 1
        self._tokens = _open(self.folder, self._shard, "tokens")
        if self._with_states:
            self._states = _open(self.folder, self._shard, "states")
        self._index = _open(self.folder, self._shard, "index")

    def _close(self) -> None:
        self._tokens.close()
        self._index.close()
        if self._states is not None:
            self._states.close()

    def _size(self) -> int:
        return self._tokens.tell() + (0 if self._states is None else self._states.tell())

    def _full(self, error: OSError) -> CapacityError:
        return CapacityError(
            f"answers cannot be written to {self.folder}: {(error.strerror or str(error)).lower()};"
            f" what was captured before is kept, and the same command goes on from there"
        )


class AnswerStore:
    """Reads a folder of answers, ordered by prompt number; arrays are views of mapped files."""

    def __init__(self, folder: Path) -> None:
        """Raises FormatError naming the file that is missing or too short."""
        self.folder = folder
        # Several processes that capture together write a part each.
        folders = sorted(folder.glob("part-*")) or [folder]
        self.settings = read_settings(folders[0])
        self.dim = int(self.settings["dim"])
        self.has_states = bool(self.settings["states"])
        self._tokens: list[NDArray[np.int32]] = []
        self._states: list[NDArray[np.float16]] = []
        rows: list[NDArray[Any]] = []
        shard_of: list[NDArray[np.int64]] = []
        for part in folders:
            check_same(part, read_settings(part), self.settings)
            for shard in shards(part):
                records = records_of(part, shard)
                shard_of.append(np.full(len(records), len(rows)))
                rows.append(records)
                self._map(part, shard, records)
        self._records: NDArray[Any] = np.concatenate(rows) if rows else np.zeros(0, INDEX)
        place = np.concatenate(shard_of) if shard_of else np.zeros(0, np.int64)
        order = np.argsort(self._records["number"], kind="stable")
        self._records, self._shard_of = self._records[order], place[order]

    def __len__(self) -> int:
        return len(self._records)

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Tokens of each answer, int32 [answers]."""
        lengths: NDArray[np.int32] = self._records["answer"]
        return lengths

    @property
    def numbers(self) -> NDArray[np.int64]:
        """The prompt's number of each answer, int64 [answers], ascending."""
        numbers: NDArray[np.int64] = self._records["number"]
        return numbers

    def __getitem__(self, index: int) -> Answer:
        record, shard = self._records[index], int(self._shard_of[index])
        prompt, count = int(record["prompt"]), int(record["answer"])
        at, row = int(record["token_at"]), int(record["row_at"])
        return Answer(
            int(record["number"]),
            self._tokens[shard][at : at + prompt + count],
            prompt,
            self._states[shard][row : row + count if self.has_states else row],
            Finish(int(record["finish"])),
        )

    def __iter__(self) -> Iterator[Answer]:
        return (self[index] for index in range(len(self)))

    def _map(self, folder: Path, shard: int, records: NDArray[Any]) -> None:
        tokens = mapped(shard_path(folder, shard, "tokens"), np.dtype("<i4"))
        ends = records["token_at"] + records["prompt"] + records["answer"]
        if len(records) and int(ends.max()) > len(tokens):
            raise too_short(shard_path(folder, shard, "tokens"))
        states = np.zeros((0, self.dim), np.float16)
        if self.has_states:
            flat = mapped(shard_path(folder, shard, "states"), np.dtype("<f2"))
            states = flat[: len(flat) // self.dim * self.dim].reshape(-1, self.dim)
            if len(records) and int((records["row_at"] + records["answer"]).max()) > len(states):
                raise too_short(shard_path(folder, shard, "states"))
        self._tokens.append(tokens)
        self._states.append(states)


def _open(folder: Path, shard: int, kind: str) -> BinaryIO:
    try:
        return shard_path(folder, shard, kind).open("ab")
    except OSError as error:
        raise CapacityError(
            f"{shard_path(folder, shard, kind)} cannot be written: "
            f"{(error.strerror or str(error)).lower()}"
        ) from error
