"""Files are written whole or not at all, and nothing else is touched."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from divine.errors import CapacityError, UsageError
from divine.files import check_replaceable, replacing


def test_replaces_at_the_end_and_leaves_nothing_else(tmp_path: Path) -> None:
    path, partial = tmp_path / "a.json", tmp_path / "a.json.partial"
    path.write_text("old")
    partial.write_text("somebody's")
    with replacing(path) as place:
        place.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert partial.read_text() == "somebody's"
    assert sorted(tmp_path.iterdir()) == [path, partial]


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), replacing(path) as place:  # noqa: PT012
        place.write_text("ne")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_follows_links(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("old")
    link.symlink_to(real)
    with replacing(link) as place:
        place.write_text("new")
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_devices_stay_devices(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    check_replaceable(pipe)
    with replacing(pipe) as place:
        place.write_text("through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert pipe.is_fifo()


def test_names_of_any_length_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    check_replaceable(path)
    with replacing(path) as place:
        place.write_text("x")
    assert path.read_text() == "x"


@pytest.mark.parametrize("name", ["folder", "none/a.json"])
def test_what_cannot_be_written_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    path = tmp_path / name
    said = f"{path} (is a folder|cannot be written)"
    with pytest.raises(UsageError, match=said):
        check_replaceable(path)
    with pytest.raises(UsageError, match=said), replacing(path) as place:
        place.write_text("x")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_a_full_disk_is_no_usage_error(tmp_path: Path) -> None:
    with pytest.raises(CapacityError, match="No space left on device; the old one is kept"):  # noqa: SIM117
        with replacing(tmp_path / "a", kept="the old one is kept"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
