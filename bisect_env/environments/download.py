"""Fetches an archive of known hash from the web, a disk or a conda channel."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from bisect_env.environments.conda_process import HelperDiedError, HelperPool, shared_pool
from bisect_env.environments.lock import LockedPackage, UnbuildableError
from bisect_env.environments.uv_tool import is_transient
from bisect_env.secrets import public_channel, without_channel_secrets, without_credentials

# --------------------------------------------------------------------------------------------------
# Fetching one archive whose hash is known, from the web or from a disk.

_TIMEOUT = (10, 60)  # seconds to connect, and without any data
_CHUNK = 1 << 20


def archive_name(package: LockedPackage) -> str:
    """Return the file name of a package's archive, as its URL ends."""
    return PurePosixPath(unquote(urlsplit(package.url).path)).name


def sha256_of(path: Path) -> str:
    """Return the hex sha256 of a file.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def obtain(
    package: LockedPackage,
    folder: Path,
    addresses: Sequence[str] = (),
    by: Callable[[str, Path], None] | None = None,
) -> Path:
    """Return the archive of a package in a folder; download and verify it unless it is there and intact.

    Args:
        package: Which.
        folder: Where it is kept; made if it is not there.
        addresses: Where to fetch it from, one after the other (mirrors, or the lock's own with credentials);
            none is what the lock says.
        by: Fetches one address, `download` by default.

    Raises:
        UnbuildableError: It is gone, cannot be fetched, or is not what was locked.
        OSError: The folder cannot be written.
    """
    path = folder / archive_name(package)
    if path.exists() and sha256_of(path) == package.sha256:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".part-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        _download_from(addresses or (package.url,), part, by or download)
        if (found := sha256_of(part)) != package.sha256:
            raise UnbuildableError(
                f"Hash mismatch for {package.name} {package.version}: "
                f"the lock says {package.sha256}, the file has {found}",
                transient=True,
            )
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def _download_from(addresses: Sequence[str], target: Path, by: Callable[[str, Path], None]) -> None:
    failures: list[UnbuildableError] = []
    for url in addresses:
        try:
            by(url, target)
        except UnbuildableError as error:
            failures.append(error)
        else:
            return
    # One that may come back decides: what is gone here may be there.
    raise UnbuildableError(
        "; ".join(error.message for error in failures), transient=any(error.transient for error in failures)
    )


def download(url: str, target: Path) -> None:
    """Fetch one address into a file, from the web or from a disk.

    Raises:
        UnbuildableError: It is gone, or cannot be fetched.
    """
    shown = without_credentials(url)
    if urlsplit(url).scheme == "file":
        try:
            shutil.copyfile(unquote(urlsplit(url).path), target)
        except FileNotFoundError:
            raise UnbuildableError(f"{shown} is gone", transient=False) from None
        return
    # Here: workers import this module, and most of them never fetch anything by it.
    import requests

    try:
        with requests.get(url, stream=True, timeout=_TIMEOUT) as answer:
            if answer.status_code in (404, 410):
                raise UnbuildableError(f"{shown} is gone ({answer.status_code})", transient=False)
            answer.raise_for_status()
            with target.open("wb") as stream:
                for chunk in answer.iter_content(_CHUNK):
                    stream.write(chunk)
    except requests.RequestException as error:
        raise UnbuildableError(f"{shown} cannot be fetched: {error}", transient=True) from error


# --------------------------------------------------------------------------------------------------
# Fetching one archive of a conda channel, by rattler and with the credentials that it knows.

_CONDA_TIMEOUT = 6 * 3600.0  # a torch of some gigabytes over a slow line


def download_conda(url: str, target: Path, *, pool: HelperPool | None = None, stall: float = 300.0) -> None:
    """Fetch an archive as the installer would: with rattler's store of credentials, `.netrc` and `.condarc`.

    Args:
        url: Address of the archive; a user, password or token in it appears in no message.
        target: The file to write.
        pool: Where rattler runs.
        stall: Seconds without any data after which it is given up.

    Raises:
        UnbuildableError: It is gone, or cannot be fetched.
    """
    if urlsplit(url).scheme == "file":
        download(url, target)
        return
    channel, rest = url.rsplit("/", 2)[0], "/".join(url.rsplit("/", 2)[1:])
    clean = public_channel(channel)
    message = {
        "op": "download",
        "url": f"{clean}/{rest}",
        "target": str(target),
        "mirrors": {clean: [channel]} if clean != channel else {},
        "stall": stall,
    }
    try:
        answer = (pool or shared_pool()).ask(message, _CONDA_TIMEOUT)
    except HelperDiedError as error:
        raise UnbuildableError(f"{clean}/{rest} cannot be fetched: {error.text}", transient=True) from error
    if "failed" in answer:
        text = without_channel_secrets(str(answer["text"]))
        transient = answer["failed"] == "stalled" or is_transient(text)
        raise UnbuildableError(f"{clean}/{rest} cannot be fetched: {text}", transient=transient)
