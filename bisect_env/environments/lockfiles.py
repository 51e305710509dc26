"""Reads and writes locks in conda-lock's format, and as lists for pip and conda.

conda-lock's format has no place for what a channel says of a package beyond its dependencies (`constrains`,
timestamps, build numbers, ...): `<content hash>.records.json` has all of it.
"""

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
from bisect_env.temporary import read_limited, replacing

# --------------------------------------------------------------------------------------------------
# Locks as text: conda-lock's unified format, version 1, written and read. Pure.
#
# The text is a function of what the content hash covers, so that equal hashes are equal files, whichever
# combination came first. It is written straight from our own data: conda-lock's models take a second to
# import, in every worker; that its parser reads the result is held by tests.

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
    *,
    records: Mapping[str, str] | None = None,
) -> Lock:
    """Build a lock from packages.

    Args:
        python: Version as the combination asks for it.
        platform: conda's name of it.
        packages: In any order.
        exclude_newer: RFC 3339 date. It matters to a prefix only where something is built (what the build
            requires is resolved then), so that it is dropped where everything is a wheel.
        records: URL of a conda package to all that its channel says of it, as JSON.

    Raises:
        LockFileError: The index, or another source of the package, gave it a name, version, hash or URL that
            cannot be one.
    """
    # Locks are shared, committed and stored: no password gets into one, wherever the packages come from.
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
    known = tuple(records[p.url] for p in ordered if p.is_conda) if records else ()
    return Lock(digest, python, platform, ordered, text, known, exclude_newer)


def content_hash(
    python: str, platform: str, packages: Iterable[LockedPackage], exclude_newer: str | None = None
) -> str:
    """Return the hex sha256 of Python, platform, sorted URLs and hashes, and the date of source builds.

    Args:
        python: Version of the interpreter.
        platform: conda's name of the platform.
        packages: In any order.
        exclude_newer: The date of the builds from source; None without any.
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
    """Read a lock from the text that `make_lock` wrote.

    Args:
        text: The file's content.
        name: What to call it in messages.

    Raises:
        LockFileError: It is no such lock, or its content does not match its hash.
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
        lock = make_lock(_text(custom[_PYTHON]), _text(platform), packages, _date(custom))
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
    """Return the packages of a file in conda-lock's format, whoever wrote it. Pure.

    Args:
        data: Its content.
        platform: conda's name of the platform whose packages are meant.

    Raises:
        KeyError: Something is missing; a hash may be.
        TypeError: Something is no text.
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
    """Return the build string of a conda package that only its address states."""
    archive = conda_archive(_text(entry["url"])) if entry["manager"] == "conda" else None
    return archive[2] if archive else ""


def conda_archive(url: str) -> tuple[str, str, str] | None:
    """Return name, version and build of a conda package by its address; None if it is none. Pure."""
    file = url.rpartition("/")[2]
    stem = file.removesuffix(".conda").removesuffix(".tar.bz2")
    if stem == file or stem.count("-") < 2:
        return None
    name, version, build = stem.rsplit("-", 2)
    return name, version, build


def _date(custom: Mapping[str, Any]) -> str | None:
    date = custom.get(_EXCLUDE_NEWER)
    return None if date is None else _text(date)


def _text(value: object) -> str:
    # Not `str`: aliases in YAML make lists that are endless once they are written.
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} where a text should be")
    return value


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


# --------------------------------------------------------------------------------------------------
# Wheels as uv reads them: to install exactly these, or to prefer them. Pure.


def text(packages: Iterable[LockedPackage], index: str) -> str:
    """Return the packages as a `pylock.toml` (PEP 751) with one file each.

    Args:
        packages: Wheels and source distributions.
        index: Address of the index that they are from, without credentials.
    """
    # JSON strings are TOML strings too. The index is not asked for anything: naming it makes uv
    # keep archives as long as its settings for that index say, where it would fetch them for every prefix
    # from hosts that send no cache headers.
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
# A lock in the words of tools that everybody has: pip's requirements, conda's explicit list. Pure.


def requirements_text(packages: Sequence[LockedPackage]) -> str:
    """Return the wheels of a lock with their hashes, for `pip install --no-deps` or `uv pip sync`."""
    wheels = [package for package in packages if package.manager == "pip"]
    if any(wheel.is_commit for wheel in wheels):
        # What is built has no hash, and beside one that has none pip takes no other.
        head = "# Exact versions and commits, for `pip install --no-deps` or `uv pip sync`."
        lines = [
            f"{wheel.name} @ {_as_pip_has_it(wheel.url)}"
            if wheel.is_commit
            else f"{wheel.name}=={wheel.version}"
            for wheel in wheels
        ]
        return "\n".join([head, *lines]) + "\n"
    lines = [f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}" for wheel in wheels]
    return "\n".join(["# Exact files, for `pip install --no-deps` or `uv pip sync`.", *lines]) + "\n"


def _as_pip_has_it(url: str) -> str:
    """Return the address of a commit without what only we read in it."""
    address, _, fragment = url.partition("#")
    kept = [one for one in fragment.split("&") if one.startswith("subdirectory=")]
    return "#".join([address, *kept])


def explicit_text(packages: Sequence[LockedPackage]) -> str:
    """Return the conda packages of a lock, for `conda create --file`."""
    lines = [f"{p.url}#{p.md5}" if p.md5 else p.url for p in packages if p.is_conda]
    return "\n".join(["# For `conda create --file`.", "@EXPLICIT", *lines]) + "\n"


def plain_lists(packages: Sequence[LockedPackage]) -> dict[str, str]:
    """Return the lists that a lock needs, by the name that files with them mostly have."""
    lists = {}
    if any(package.is_conda for package in packages):
        lists["explicit.txt"] = explicit_text(packages)
    if any(package.manager == "pip" for package in packages):
        lists["requirements.txt"] = requirements_text(packages)
    return lists


# --------------------------------------------------------------------------------------------------
# Lock files on disk: `<folder>/<matrix>/<content hash>.conda-lock.yml` and an `index.json` beside them.

SUFFIX = ".conda-lock.yml"
RECORDS = ".records.json"
INDEX = "index.json"
_VERSION = 1
_MAX_BYTES = 64 << 20
"""Of a lock file; one of a thousand conda packages takes two million."""


def write_locks(folder: Path, matrix: str, results: Mapping[str, LockResult]) -> Path:
    """Write every lock of a matrix, then the index; each file appears whole or not at all.

    Locks that no combination uses any longer are removed: what is there is what the matrix means now.

    Args:
        folder: The `lockfiles` directory.
        matrix: The matrix's name; one path component.
        results: Combination key to its lock, or why it has none.

    Returns:
        The matrix's directory.

    Raises:
        InfrastructureError: It cannot be written.
        ValueError: The name is no path component.
    """
    if matrix in ("", ".", "..") or "/" in matrix or "\0" in matrix:
        raise ValueError(f"{matrix!r} cannot be the name of a directory")
    target = folder / matrix
    locks = {result.content_hash: result for result in results.values() if isinstance(result, Lock)}
    try:
        target.mkdir(parents=True, exist_ok=True)
        for content_hash, lock in locks.items():
            _write(target / f"{content_hash}{SUFFIX}", lock.text)
            if lock.records:
                _write(target / f"{content_hash}{RECORDS}", records_text(lock))
        _write(target / INDEX, index_text(results))
        for suffix in (SUFFIX, RECORDS):
            for path in target.glob(f"*{suffix}"):
                if path.name.removesuffix(suffix) not in locks:
                    path.unlink(missing_ok=True)
    except OSError as error:
        raise InfrastructureError(
            f"lock files cannot be written to {target}: {error}",
            remedy="make that directory writable, or name another",
        ) from error
    return target


def records_text(lock: Lock) -> str:
    """Return the side file of a lock: the whole record of each conda package, in the lock's order. Pure."""
    return "[\n" + ",\n".join(lock.records) + "\n]\n"


def index_text(results: Mapping[str, LockResult]) -> str:
    """Return the text of `index.json`: per combination its lock or the solver's message. Pure, sorted."""
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


def read_lock(source: Path | str) -> Lock:
    """Read a lock from a file, or from its text.

    Args:
        source: A path, or the text itself.

    Raises:
        LockFileError: It is missing, no lock of ours, or changed since it was written.
    """
    if isinstance(source, str):
        return parse_lock(source)
    try:
        text = read_limited(source, _MAX_BYTES)
    except (OSError, ValueError) as error:
        raise LockFileError(f"{source} cannot be read: {error}", remedy="lock the matrix again") from error
    return parse_lock(text, name=str(source))


def _write(path: Path, text: str) -> None:
    with replacing(path) as beside:
        beside.write_text(text, "utf-8")


# --------------------------------------------------------------------------------------------------
# Which locks with packages from files this user's own commands have solved.
#
# An index, a channel or a repository that the user names may lie on a disk. A database may claim the same of
# any file of this host, and what it claims would be installed and run.


def note_solved(lock: Lock) -> None:
    """Record a lock that was solved on this host, if it contains packages from files."""
    if lock.local_addresses:
        # Where this cannot be written, the lock is solved again when a database names it.
        with contextlib.suppress(OSError):
            path = _solved(lock)
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(0o600)


def may_be_installed(lock: Lock) -> bool:
    """Return whether a lock from a database may be installed: it names the web alone, or was solved here."""
    return not lock.local_addresses or _solved(lock).exists()


def _solved(lock: Lock) -> Path:
    return platformdirs.user_state_path("bisect-env") / "solved" / lock.content_hash
