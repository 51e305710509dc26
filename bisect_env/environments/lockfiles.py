"""Reads and writes locks in conda-lock's format, and writes them as lists for pip and conda."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import platformdirs
import yaml

from bisect_env.environments.lock import (
    Lock,
    LockedPackage,
    LockFileError,
    LockResult,
    UnsolvableError,
    check_forms,
)
from bisect_env.environments.yaml_text import read_yaml
from bisect_env.errors import InfrastructureError
from bisect_env.secrets import without_credentials, without_passwords
from bisect_env.temporary import read_limited, write_atomically

# --------------------------------------------------------------------------------------------------
# Locks as text, in conda-lock's unified format, version 1. Pure.
#
# The text depends only on values that the content hash covers, so equal hashes mean equal files. conda-lock's
# own code is not used because importing it takes a second in every worker; tests verify that its parser reads
# the result.

_HEADER = "# Made by bisect-env from a matrix. The format is conda-lock's unified one, version 1.\n"
_PYTHON = "bisect-env.python"
_EXCLUDE_NEWER = "bisect-env.exclude-newer"

_OTHER = "name a lock that bisect-env wrote, or combinations of a study"

_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def make_lock(
    python: str,
    platform: str,
    packages: Iterable[LockedPackage],
    exclude_newer: str | None = None,
) -> Lock:
    """Build a `Lock` from a list of packages.

    Args:
        python: Python version as the combination requests it.
        platform: conda's name of the platform, such as `linux-64`.
        packages: The packages, in any order.
        exclude_newer: RFC 3339 date. Build requirements uploaded later are ignored. Dropped if the lock has
            no source distribution, because nothing is built then.

    Raises:
        LockFileError: A name, version, hash or URL of a package has an invalid format.
    """
    # Locks are shared, committed and stored, so passwords are removed from the URLs.
    public = (replace(package, url=without_credentials(package.url)) for package in packages)
    ordered = tuple(sorted(public, key=lambda p: (p.name, p.version, p.url)))
    if not any(package.is_source for package in ordered):
        exclude_newer = None
    try:
        check_forms(python, platform, ordered, exclude_newer)
    except ValueError as error:
        raise LockFileError(
            f"there can be no such lock: {error}", remedy="see who serves, or wrote, that package"
        ) from None
    digest = content_hash(python, platform, ordered, exclude_newer)
    text = _render(digest, python, platform, ordered, exclude_newer)
    return Lock(digest, python, platform, ordered, text, exclude_newer)


def content_hash(
    python: str, platform: str, packages: Iterable[LockedPackage], exclude_newer: str | None = None
) -> str:
    """Return the content hash of a lock (hex sha256), which is equal for equal environments.

    Args:
        python: See `make_lock`.
        platform: See `make_lock`.
        packages: The packages, in any order. Their URLs and hashes are included.
        exclude_newer: See `make_lock`; None if nothing is built.
    """
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
    """Parse the text of a lock that `make_lock` created.

    Args:
        text: Content of the lock file.
        name: Name of the lock in error messages.

    Raises:
        LockFileError: The text is not a lock of bisect-env, or does not match its content hash.
    """
    remedy = "lock the matrix again; lock files are not edited by hand"
    try:
        data = read_yaml(text)
        if not isinstance(version := data["version"], int) or version != 1:
            found = ascii(version)[:20] if isinstance(version, int | float | str) else "of another kind"
            raise LockFileError(f"{name} has the version {found}, not 1", remedy=remedy)
        metadata = data["metadata"]
        (platform,) = metadata["platforms"]
        custom = metadata["custom_metadata"]
        packages = packages_of(data, platform)
        if bare := [package.name for package in packages if not package.sha256]:
            raise LockFileError(f"{name} is not a lock of ours: {bare[0]} has no sha256", remedy=_OTHER)
        stated = _text(metadata["content_hash"][platform])
        date = custom.get(_EXCLUDE_NEWER)
        exclude_newer = None if date is None else _text(date)
        lock = make_lock(_text(custom[_PYTHON]), _text(platform), packages, exclude_newer)
    except KeyError as error:
        raise LockFileError(
            f"{name} is not a lock of ours: it lacks `{error.args[0]}`",
            remedy=_OTHER,
        ) from error
    except (yaml.YAMLError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise LockFileError(f"{name} is not a lock of ours: {error!r:.300}", remedy=remedy) from error
    if lock.content_hash != stated:
        raise LockFileError(
            f"{name} was changed: its content has the hash {lock.content_hash[:12]}, it says {stated[:12]!a}",
            remedy=remedy,
        )
    return lock


def packages_of(data: Mapping[str, Any], platform: str) -> list[LockedPackage]:
    """Return the packages for one platform from a file in conda-lock's format.

    Any tool may have written the file. This function is pure.

    Args:
        data: Parsed content of the file.
        platform: conda's name of the platform whose packages are returned.

    Raises:
        KeyError: A required key is missing. (Hashes are optional.)
        TypeError: A value is not a string.
    """
    return [
        LockedPackage(
            name=_text(entry["name"]),
            version=_text(entry["version"]),
            manager=_text(entry["manager"]),
            url=_text(entry["url"]),
            sha256=_text(entry["hash"].get("sha256") or ""),
            build=_text(entry.get("build") or _build_in(entry)),
            md5=_text(entry["hash"].get("md5") or ""),
            dependencies=tuple((_text(n), _text(v)) for n, v in entry.get("dependencies", {}).items()),
        )
        for entry in data["package"]
        if entry["platform"] == platform
    ]


def _build_in(entry: Mapping[str, Any]) -> str:
    """Return the build string in the URL of a conda package, or "" for other packages."""
    archive = conda_archive(_text(entry["url"])) if entry["manager"] == "conda" else None
    return archive[2] if archive else ""


def conda_archive(url: str) -> tuple[str, str, str] | None:
    """Return the name, version and build string in a conda package's URL, or None for other URLs.

    This function is pure.
    """
    file = url.rpartition("/")[2]
    stem = file.removesuffix(".conda").removesuffix(".tar.bz2")
    if stem == file or stem.count("-") < 2:
        return None
    name, version, build = stem.rsplit("-", 2)
    return name, version, build


def _text(value: object) -> str:
    # Not `str(value)`: with aliases, a short YAML file can describe a list whose text would be endless.
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} where a text should be")
    return value


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
    # The channels are sorted instead of ordered by priority: the packages are already chosen, and equal
    # content hashes must mean equal texts.
    channels = sorted({package.source for package in packages if package.is_conda})
    data = {
        "version": 1,
        "metadata": {
            "content_hash": {platform: digest},
            "channels": [{"url": url, "used_env_vars": []} for url in channels],
            "platforms": [platform],
            "sources": [],
            "custom_metadata": custom,
        },
        "package": [_entry(package, platform) for package in packages],
    }
    body = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=4096)
    return f"{_HEADER}{body}"


# --------------------------------------------------------------------------------------------------
# Packages as a `pylock.toml`, for uv. Pure.


def text(packages: Iterable[LockedPackage], index: str) -> str:
    """Return the text of a `pylock.toml` (PEP 751) with exactly one archive per package.

    Args:
        packages: Wheels and source distributions.
        index: URL of the packages' index, without credentials.
    """
    # JSON strings are also TOML strings. uv does not contact the index here. But if the index is named, uv
    # caches archives by its settings for that index; otherwise it would download them again for every prefix
    # from servers that send no cache headers.
    lines = ['lock-version = "1.0"', 'created-by = "bisect-env"']
    for package in packages:
        archive = (
            f"{{ url = {json.dumps(package.url)}, hashes = {{ sha256 = {json.dumps(package.sha256)} }} }}"
        )
        lines += ["", "[[packages]]", f"name = {json.dumps(package.name)}"]
        lines += [f"version = {json.dumps(package.version)}", f"index = {json.dumps(index)}"]
        lines += [f"sdist = {archive}" if package.is_source else f"wheels = [{archive}]"]
    return "\n".join(lines) + "\n"


# --------------------------------------------------------------------------------------------------
# Locks as pip's requirements and as conda's explicit list. Pure.


def requirements_text(packages: Sequence[LockedPackage]) -> str:
    """Return the text of a requirements file with the PyPI packages of a lock.

    It is meant for `pip install --no-deps` or `uv pip sync`. Hashes are included unless the lock has packages
    that are built from commits.
    """
    wheels = [package for package in packages if package.manager == "pip"]
    # Packages built from commits have no hash, and pip requires hashes for all packages or for none.
    has_commits = any(wheel.is_commit for wheel in wheels)
    what = "versions and commits" if has_commits else "files"
    lines = [f"# Exact {what}, for `pip install --no-deps` or `uv pip sync`."]
    for wheel in wheels:
        # The other parts of a fragment are build settings that only this program reads.
        address, _, fragment = wheel.url.partition("#")
        kept = [part for part in fragment.split("&") if part.startswith("subdirectory=")]
        pin = wheel.spec if has_commits else f"{wheel.spec} --hash=sha256:{wheel.sha256}"
        lines.append(f"{wheel.name} @ {'#'.join([address, *kept])}" if wheel.is_commit else pin)
    return "\n".join(lines) + "\n"


def explicit_text(packages: Sequence[LockedPackage]) -> str:
    """Return the conda packages of a lock as an explicit list, for `conda create --file`."""
    lines = [f"{p.url}#{p.md5}" if p.md5 else p.url for p in packages if p.is_conda]
    return "\n".join(["# For `conda create --file`.", "@EXPLICIT", *lines]) + "\n"


def plain_lists(packages: Sequence[LockedPackage]) -> dict[str, str]:
    """Return the texts of package lists for conda and pip, as a map from file name to text.

    The files are `explicit.txt` for conda packages and `requirements.txt` for PyPI packages. A list without
    packages is left out.
    """
    lists = {}
    if any(package.is_conda for package in packages):
        lists["explicit.txt"] = explicit_text(packages)
    if any(package.manager == "pip" for package in packages):
        lists["requirements.txt"] = requirements_text(packages)
    return lists


# --------------------------------------------------------------------------------------------------
# Lock files on disk: `<folder>/<matrix>/<content hash>.conda-lock.yml` and an `index.json` beside them.

SUFFIX = ".conda-lock.yml"
INDEX = "index.json"
_VERSION = 1
_MAX_BYTES = 64 << 20
"""Maximum size of a lock file. A lock with a thousand conda packages has 2 MB."""


def write_locks(folder: Path, matrix: str, results: Mapping[str, LockResult]) -> Path:
    """Write each lock of a matrix to a file, and write `index.json`, which maps combinations to locks.

    Each file is replaced atomically. Files of locks that no combination uses any more are removed.

    Args:
        folder: The `lockfiles` directory.
        matrix: Name of the matrix, which becomes the name of a subdirectory.
        results: Maps combination keys to locks, or to errors that say why there is none.

    Returns:
        The subdirectory of the matrix.

    Raises:
        InfrastructureError: A file cannot be written.
        ValueError: The name of the matrix is not a valid directory name.
    """
    if matrix in ("", ".", "..") or "/" in matrix or "\0" in matrix:
        raise ValueError(f"{matrix!r} cannot be the name of a directory")
    target = folder / matrix
    locks = {result.content_hash: result for result in results.values() if isinstance(result, Lock)}
    try:
        for content_hash, lock in locks.items():
            write_atomically(target / f"{content_hash}{SUFFIX}", lock.text)
        write_atomically(target / INDEX, index_text(results))
        for path in target.glob(f"*{SUFFIX}"):
            if path.name.removesuffix(SUFFIX) not in locks:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise InfrastructureError(
            f"lock files cannot be written to {target}: {error}",
            remedy="make that directory writable, or name another",
        ) from error
    return target


def index_text(results: Mapping[str, LockResult]) -> str:
    """Return the text of `index.json`, which maps each combination of versions to its lock.

    The file has one entry per combination, sorted, with the content hash of the lock or the solver's message.
    This function is pure.
    """
    combinations = []
    for key in sorted(results):
        result = results[key]
        entry: dict[str, Any] = {"combination": dict(json.loads(key))}
        if isinstance(result, UnsolvableError):
            entry["unsolvable"] = without_passwords(result.message)
            if result.building:
                entry["building"] = True
        else:
            entry["lock"] = result.content_hash
        combinations.append(entry)
    data = {"version": _VERSION, "combinations": combinations}
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def read_lock(path: Path) -> Lock:
    """Read a lock file.

    Raises:
        LockFileError: The file is missing, is not a lock of bisect-env, or does not match its content hash.
    """
    try:
        text = read_limited(path, _MAX_BYTES)
    except (OSError, ValueError) as error:
        raise LockFileError(f"{path} cannot be read: {error}", remedy="lock the matrix again") from error
    return parse_lock(text, name=str(path))


# --------------------------------------------------------------------------------------------------
# A record of the locks with packages from local files that commands of this user have solved.
#
# Such locks are legitimate if the user names a local index, channel or repository. But an untrusted database
# could contain a lock that names any file of this host, which would then be installed and run.


def note_solved(lock: Lock) -> None:
    """Record that this host solved a lock, if the lock contains packages from local files."""
    if lock.local_addresses:
        # If this fails, the lock is solved again when it is next read from a database.
        with contextlib.suppress(OSError):
            path = _solved(lock)
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(0o600)


def may_be_installed(lock: Lock) -> bool:
    """Return whether a stored lock may be installed on this host.

    A lock with packages from local files may be installed only if this user solved the lock on this host.
    """
    return not lock.local_addresses or _solved(lock).exists()


def _solved(lock: Lock) -> Path:
    return platformdirs.user_state_path("bisect-env") / "solved" / lock.content_hash
