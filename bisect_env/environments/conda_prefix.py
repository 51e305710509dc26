"""Filling a directory with the conda packages of a lock."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bisect_env.environments.conda_config import mirrors_of_urls, read_conda_config, without_secrets
from bisect_env.environments.conda_failures import TRANSIENT
from bisect_env.environments.conda_process import HelperDiedError, HelperPool, shared_pool, with_usual_alias
from bisect_env.environments.failures import UnbuildableError
from bisect_env.environments.lock import Lock


def fill(
    place: Path,
    final: Path,
    lock: Lock,
    cache: Path,
    timeout: float,
    *,
    archives: Mapping[str, Path] | None = None,
    stall: float = 300.0,
    pool: HelperPool | None = None,
) -> None:
    """Install the conda packages of a lock; wheels go on top of them by other hands.

    Archives are fetched into, and hardlinked from, `conda/pkgs` in the cache, hashes checked.

    Args:
        place: Where they are installed; made if need be.
        final: Where it will be renamed to; files that hold the path of their prefix name this one.
        lock: Its conda packages.
        cache: Our cache directory.
        timeout: Seconds.
        archives: URL to a file on this host that is taken in its place.
        stall: Seconds without any data after which downloads are given up.
        pool: Where rattler runs.

    Raises:
        UnbuildableError: It cannot be done; `transient` tells whether that says anything about the lock.
    """
    pool = pool or shared_pool()
    config = read_conda_config()
    if config.mirrored_channels or config.custom_multichannels or config.default_channels:
        # Their names may stand for what is below the usual address.
        config = with_usual_alias(config, pool)
    packages = [package for package in lock.packages if package.is_conda]
    channels = sorted({package.url.rsplit("/", 2)[0] for package in packages})
    message = {
        "op": "install",
        "packages": [
            {
                "name": p.name,
                "version": p.version,
                "build": p.build,
                "url": p.url,
                "sha256": p.sha256,
                "md5": p.md5,
            }
            for p in packages
        ],
        "archives": {url: str(path) for url, path in (archives or {}).items()},
        "place": str(place),
        "final": str(final),
        "package_cache": str(cache / "conda" / "pkgs"),
        "stall": stall,
        "verified": str(cache / "verified"),
        "mirrors": mirrors_of_urls(channels, config),
    }
    try:
        answer = pool.ask(message, timeout)
    except HelperDiedError as error:
        text = f"not finished in {timeout:.0f} s" if error.timed_out else error.text
        # A solver that dies says nothing about the environment.
        raise UnbuildableError(text, transient=True) from error
    if "failed" in answer:
        lines = without_secrets(str(answer["text"])).splitlines()
        text = "\n".join(line.removeprefix("Caused by: ") for line in lines)
        raise UnbuildableError(text, transient=answer["failed"] == "hash" or bool(TRANSIENT.search(text)))
