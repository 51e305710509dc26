"""Downloads package archives from the web, a local disk or a conda channel, and verifies their hashes."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from bisect_env.environments.conda_process import HelperDiedError, HelperPool, mirrors_here, shared_pool
from bisect_env.environments.lock import LockedPackage, UnbuildableError
from bisect_env.environments.settings import configured_places, login_of, trusted_by_requests
from bisect_env.environments.uv_tool import is_transient
from bisect_env.matrix.versions import PackageIndex
from bisect_env.secrets import public_channel, without_channel_secrets, without_credentials, without_passwords
from bisect_env.temporary import replacing

# --------------------------------------------------------------------------------------------------
# Download of one archive whose hash is known, from the web or from a local disk.

_TIMEOUT = (10, 60)  # seconds to wait for a connection, and for data
_CHUNK = 1 << 20


def file_name(url: str) -> str:
    """Return the last part of a URL's path, which is the name of the file."""
    return PurePosixPath(unquote(urlsplit(url).path)).name


def sha256_of(path: Path) -> str:
    """Return the hex sha256 of a file.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def obtain(package: LockedPackage, folder: Path, indexes: Sequence[PackageIndex] = ()) -> Path:
    """Return the path of a package's archive in a directory, and download the archive if necessary.

    An archive that is already there is used if its hash is right.

    Args:
        package: The package, with the expected hash.
        folder: Directory of the archive; created if it does not exist.
        indexes: Further indexes of the matrix, whose logins are used.

    Returns:
        Path of the archive.

    Raises:
        UnbuildableError: The download failed, or the hash differs.
        OSError: The directory cannot be written.
    """
    path = folder / file_name(package.url)
    if path.exists() and sha256_of(path) == package.sha256:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        if package.is_conda:
            download_conda(package.url, part)
        else:
            download(configured_places(indexes=indexes).with_login(package.url), part)
        if (found := sha256_of(part)) != package.sha256:
            raise UnbuildableError(
                f"Hash mismatch for {package.name} {package.version}: "
                f"the lock says {package.sha256}, the file has {found}",
                transient=True,
            )
    return path


def download(url: str, target: Path) -> None:
    """Download `url`, an `http(s):` or `file:` URL, to the file `target`.

    Raises:
        UnbuildableError: The archive does not exist any more, or (`transient`) the download failed.
    """
    shown = without_credentials(url)
    if urlsplit(url).scheme == "file":
        try:
            shutil.copyfile(unquote(urlsplit(url).path), target)
        except FileNotFoundError:
            raise UnbuildableError(f"{shown} is gone", transient=False) from None
        return
    # Imported here because most workers import this module but never download anything.
    import requests

    try:
        verify = trusted_by_requests()
        login = login_of(url)
        auth = None if login is None else requests.auth.HTTPBasicAuth(*login)
        with requests.get(url, stream=True, timeout=_TIMEOUT, verify=verify, auth=auth) as answer:
            if answer.status_code in (404, 410):
                raise UnbuildableError(f"{shown} is gone ({answer.status_code})", transient=False)
            answer.raise_for_status()
            with target.open("wb") as stream:
                for chunk in answer.iter_content(_CHUNK):
                    stream.write(chunk)
    except requests.RequestException as error:
        raise UnbuildableError(
            f"{shown} cannot be fetched: {without_passwords(str(error))}", transient=True
        ) from None


# --------------------------------------------------------------------------------------------------
# Download of one archive from a conda channel, by rattler and with its credentials.

_CONDA_TIMEOUT = 6 * 3600.0  # enough for some gigabytes over a slow connection


def download_conda(url: str, target: Path, *, pool: HelperPool | None = None, stall: float = 300.0) -> None:
    """Download an archive of a conda channel with rattler, from the first mirror that has it.

    Mirrors and credentials come from rattler's credential store, `.netrc` and `.condarc`, as for an
    installation.

    Args:
        url: URL of the archive in a lock.
        target: The file to write.
        pool: Helper processes that run rattler; None for the pool that this process shares.
        stall: Seconds without any data after which a download is given up.

    Raises:
        UnbuildableError: No mirror has the archive any more, or (`transient`) a download failed.
    """
    if urlsplit(url).scheme == "file":
        download(url, target)
        return
    channel = url.rsplit("/", 2)[0]
    failures: list[UnbuildableError] = []
    for mirror in mirrors_here([channel]).get(channel, [channel]):
        message = {
            "op": "download",
            "url": url,
            "target": str(target),
            "mirrors": {channel: [mirror]} if mirror != channel else {},
            "stall": stall,
        }
        shown = f"{public_channel(mirror)}{url.removeprefix(channel)}"
        try:
            answer = (pool or shared_pool()).ask(message, _CONDA_TIMEOUT)
        except HelperDiedError as error:
            failures.append(UnbuildableError(f"{shown} cannot be fetched: {error.text}", transient=True))
            continue
        if "failed" not in answer:
            return
        text = without_channel_secrets(str(answer["text"]))
        transient = answer["failed"] == "stalled" or is_transient(text)
        failures.append(UnbuildableError(f"{shown} cannot be fetched: {text}", transient=transient))
    # The failure is transient if that of any mirror is: that mirror may still have the archive.
    raise UnbuildableError(
        "; ".join(error.message for error in failures), transient=any(error.transient for error in failures)
    )
