"""Locks as text: conda-lock's unified format, version 1, written and read. Pure.

The text is a function of what the content hash covers, so that equal hashes are equal files, whichever
combination came first. It is written straight from our own data: conda-lock's models take a second to
import, in every worker; that its parser reads the result is held by tests.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import yaml

from bisect_env.environments.failures import LockFileError
from bisect_env.environments.lock import Lock, LockedPackage
from bisect_env.environments.settings import without_credentials

_HEADER = "# Made by bisect-env from a matrix. The format is conda-lock's unified one, version 1.\n"
_PYTHON = "bisect-env.python"
_EXCLUDE_NEWER = "bisect-env.exclude-newer"

_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def make_lock(
    python: str,
    platform: str,
    packages: Iterable[LockedPackage],
    exclude_newer: str | None = None,
    *,
    records: Mapping[str, str] | None = None,
) -> Lock:
    """Put packages together into a lock.

    Args:
        python: Version as the combination asks for it.
        platform: conda's name of it.
        packages: In any order.
        exclude_newer: RFC 3339 date. It matters to a prefix only where something is built (what the build
            requires is resolved then), so that it is dropped where everything is a wheel.
        records: URL of a conda package to all that its channel says of it, as JSON.
    """
    # Locks are shared, committed and stored: whoever made the packages, no password gets into one.
    public = (replace(package, url=without_credentials(package.url)) for package in packages)
    ordered = tuple(sorted(public, key=lambda p: (p.name, p.version, p.url)))
    if not any(package.is_source for package in ordered):
        exclude_newer = None
    digest = content_hash(python, platform, ordered, exclude_newer)
    text = _render(digest, python, platform, ordered, exclude_newer)
    known = tuple(records[p.url] for p in ordered if p.is_conda) if records else ()
    return Lock(digest, python, platform, ordered, text, known)


def content_hash(
    python: str, platform: str, packages: Iterable[LockedPackage], exclude_newer: str | None = None
) -> str:
    """Hex sha256 over Python, platform and the sorted URLs and hashes (and the date of source builds)."""
    facts: dict[str, Any] = {
        "python": python,
        "platform": platform,
        "files": sorted([package.url, package.sha256] for package in packages),
    }
    if exclude_newer is not None:
        facts["exclude_newer"] = exclude_newer
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def parse_lock(text: str, *, name: str = "the lock") -> Lock:
    """Read back what `make_lock` wrote.

    Args:
        text: The file's content.
        name: What to call it in messages.

    Raises:
        LockFileError: It is no such lock, or its content does not match its hash.
    """
    remedy = "lock the matrix again; lock files are not edited by hand"
    try:
        data = yaml.load(text, Loader=_Loader)
        if data["version"] != 1:
            raise LockFileError(f"{name} has the version {data['version']!r}, not 1", remedy=remedy)
        metadata = data["metadata"]
        (platform,) = metadata["platforms"]
        custom = metadata["custom_metadata"]
        packages = [
            LockedPackage(
                name=str(entry["name"]),
                version=str(entry["version"]),
                manager=str(entry["manager"]),
                url=str(entry["url"]),
                sha256=str(entry["hash"]["sha256"]),
                build=str(entry.get("build") or ""),
                md5=str(entry["hash"].get("md5") or ""),
                dependencies=tuple((str(n), str(v)) for n, v in entry.get("dependencies", {}).items()),
            )
            for entry in data["package"]
        ]
        stated = str(metadata["content_hash"][platform])
        lock = make_lock(str(custom[_PYTHON]), str(platform), packages, custom.get(_EXCLUDE_NEWER))
    except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise LockFileError(f"{name} is not a lock of ours: {error!r}", remedy=remedy) from error
    if lock.content_hash != stated:
        raise LockFileError(
            f"{name} was changed: its content has the hash {lock.content_hash[:12]}, it says {stated[:12]}",
            remedy=remedy,
        )
    return lock


def build_date(lock: Lock) -> str | None:
    """The date as of which build requirements are resolved (RFC 3339), if the lock has one."""
    custom = yaml.load(lock.text, Loader=_Loader)["metadata"]["custom_metadata"]
    date = custom.get(_EXCLUDE_NEWER)
    return None if date is None else str(date)


def _channels(packages: Iterable[LockedPackage]) -> list[str]:
    # A package lies in <channel>/<subdir>/<file>. Their order of priority is not the lock's: what it names
    # is chosen, and equal hashes have to mean equal texts.
    return sorted({package.url.rsplit("/", 2)[0] for package in packages if package.is_conda})


def _entry(package: LockedPackage, platform: str) -> dict[str, Any]:
    hashes = {"md5": package.md5} if package.md5 else {}
    entry: dict[str, Any] = {
        "name": package.name,
        "version": package.version,
        "manager": package.manager,
        "platform": platform,
        "dependencies": dict(package.dependencies),
        "url": package.url,
        "hash": {**hashes, "sha256": package.sha256},
        "category": "main",
        "optional": False,
    }
    return {**entry, "build": package.build} if package.build else entry


def _render(
    digest: str,
    python: str,
    platform: str,
    packages: Sequence[LockedPackage],
    exclude_newer: str | None,
) -> str:
    custom = {_PYTHON: python}
    if exclude_newer is not None:
        custom[_EXCLUDE_NEWER] = exclude_newer
    data = {
        "version": 1,
        "metadata": {
            "content_hash": {platform: digest},
            "channels": [{"url": url, "used_env_vars": []} for url in _channels(packages)],
            "platforms": [platform],
            "sources": [],
            "custom_metadata": custom,
        },
        "package": [_entry(package, platform) for package in packages],
    }
    body = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=4096)
    return f"{_HEADER}{body}"
