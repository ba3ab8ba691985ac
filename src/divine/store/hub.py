"""Models from Hugging Face, through its own library: resume, proxies, tokens and mirrors are its.

$HF_ENDPOINT and $HF_TOKEN work as everywhere. Files land in the models folder under owner/repo;
sizes and SHA-256 are checked against what the repository declares. The library draws its own bars.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from divine import __version__
from divine.errors import DownloadError
from divine.store.checks import sha256
from divine.store.folder import check_space, writable_folder
from divine.store.names import HubName, choose, shard_names
from divine.store.progress import Progress

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

_TIMEOUT_S = 10.0  # for the first answer: offline is told soon, not after retries


def fetch_hub(name: HubName, progress: Progress) -> Path:
    """Fetch what `name` means unless it is here; its (first) file. Raises DownloadError."""
    writable_folder()  # told before anything is asked of the network
    files = _listing(name)
    first = choose(name, list(files))
    wanted = shard_names(first)
    missing = [shard for shard in wanted if shard not in files]
    if missing:
        raise DownloadError(f"{name}: the repository lacks the shard {missing[0]}")
    folder = writable_folder(name.owner, name.repo)
    absent = [shard for shard in wanted if not _is_complete(folder / shard, files[shard])]
    check_space(folder, sum(files[shard].size or 0 for shard in absent), str(name))
    for shard in absent:
        _download(name, shard, folder)
        _verify(name, folder / shard, files[shard], progress)
    return folder / first


def _listing(name: HubName) -> dict[str, RepoSibling]:
    """The repository's files by name, with sizes and hashes."""
    from huggingface_hub import HfApi

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    api = HfApi(endpoint=_endpoint(), library_name="divine-llm", library_version=__version__)
    try:
        info = api.model_info(f"{name.owner}/{name.repo}", files_metadata=True, timeout=_TIMEOUT_S)
    except Exception as error:  # whatever the library's transport raises
        raise _sentence(name, error) from error
    siblings = info.siblings or []
    return {file.rfilename: file for file in siblings if _is_plain(file.rfilename)}


def _download(name: HubName, filename: str, folder: Path) -> None:
    from huggingface_hub import hf_hub_download

    try:
        hf_hub_download(
            f"{name.owner}/{name.repo}",
            filename,
            local_dir=folder,
            endpoint=_endpoint(),
            etag_timeout=_TIMEOUT_S,
            library_name="divine-llm",
            library_version=__version__,
        )
    except Exception as error:
        raise _sentence(name, error) from error


def _endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT") or None


def _is_plain(filename: str) -> bool:
    """A name that stays below the folder: the listing comes from outside."""
    parts = filename.replace("\\", "/").split("/")
    return all(part not in ("", ".", "..") for part in parts) and ":" not in filename


def _is_complete(path: Path, file: RepoSibling) -> bool:
    """Here with the declared size; its hash was checked when it came."""
    return path.is_file() and file.size is not None and path.stat().st_size == file.size


def _verify(name: HubName, path: Path, file: RepoSibling, progress: Progress) -> None:
    expected = file.lfs.sha256 if file.lfs else None
    if expected and sha256(path, progress) != expected:
        path.unlink()
        raise DownloadError(f"{name}: {path.name} arrived with another SHA-256 than declared")


def _sentence(name: HubName, error: Exception) -> DownloadError:
    from huggingface_hub import errors

    where = f"hf:{name.owner}/{name.repo}"
    host = (_endpoint() or "https://huggingface.co").removeprefix("https://")
    if isinstance(error, errors.OfflineModeIsEnabled):
        return DownloadError(f"{where} cannot be fetched while HF_HUB_OFFLINE is set")
    if isinstance(error, errors.GatedRepoError):
        return DownloadError(f"{where} is gated: accept its terms on {host} and set HF_TOKEN")
    if isinstance(error, errors.RepositoryNotFoundError):
        return DownloadError(f"{host} has no repository {where[3:]}, or it is private (HF_TOKEN)")
    if isinstance(error, errors.HFValidationError):
        return DownloadError(f"{where} is not a valid repository name")
    if isinstance(error, errors.HfHubHTTPError):
        return DownloadError(f"{where}: {host} answered {error.response.status_code}")
    if isinstance(error, OSError) and error.errno:
        return DownloadError(f"{where} cannot be stored: {error.strerror}")
    kind = type(error).__name__
    return DownloadError(f"{where}: {host} cannot be reached ({kind}); is this computer online?")
