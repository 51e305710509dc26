"""Fetching one archive of a conda channel, by rattler and with the credentials that it knows."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from bisect_env.environments.conda_config import public_address, without_secrets
from bisect_env.environments.conda_failures import TRANSIENT
from bisect_env.environments.conda_process import HelperDiedError, HelperPool, shared_pool
from bisect_env.environments.download import download
from bisect_env.environments.failures import UnbuildableError

_TIMEOUT = 6 * 3600.0  # a torch of some gigabytes over a slow line


def download_conda(url: str, target: Path, *, pool: HelperPool | None = None, stall: float = 300.0) -> None:
    """Fetch an archive as the installer would: with rattler's store of credentials, `.netrc` and `.condarc`.

    Args:
        url: Of the archive; may hold a user, a password or a token, which no message repeats.
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
    clean = public_address(channel)
    message = {
        "op": "download",
        "url": f"{clean}/{rest}",
        "target": str(target),
        "mirrors": {clean: [channel]} if clean != channel else {},
        "stall": stall,
    }
    try:
        answer = (pool or shared_pool()).ask(message, _TIMEOUT)
    except HelperDiedError as error:
        raise UnbuildableError(f"{clean}/{rest} cannot be fetched: {error.text}", transient=True) from error
    if "failed" in answer:
        text = without_secrets(str(answer["text"]))
        transient = answer["failed"] == "stalled" or TRANSIENT.search(text) is not None
        raise UnbuildableError(f"{clean}/{rest} cannot be fetched: {text}", transient=transient)
