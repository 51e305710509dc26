"""Lock files on disk: `<folder>/<matrix>/<content hash>.conda-lock.yml` and an `index.json` beside them.

conda-lock's format has no place for what a channel says of a package beyond its dependencies (`constrains`,
timestamps, build numbers, ...): `<content hash>.records.json` has all of it.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bisect_env.environments.failures import LockFileError, UnsolvableError
from bisect_env.environments.lock import Lock, LockResult
from bisect_env.environments.lock_text import parse_lock
from bisect_env.errors import InfrastructureError
from bisect_env.matrix.secrets import without_passwords

SUFFIX = ".conda-lock.yml"
RECORDS = ".records.json"
INDEX = "index.json"
_VERSION = 1


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
    """The side file of a lock: the whole record of each conda package, in the lock's order. Pure."""
    return "[\n" + ",\n".join(lock.records) + "\n]\n"


def index_text(results: Mapping[str, LockResult]) -> str:
    """What `index.json` says: for each combination its lock, or the solver's words. Pure, and sorted."""
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


def read_index(folder: Path, matrix: str) -> dict[str, str | UnsolvableError]:
    """Combination key to content hash, or why there is no lock.

    Raises:
        LockFileError: There is no index, or none of ours.
    """
    path = folder / matrix / INDEX
    try:
        data = json.loads(path.read_text("utf-8"))
        if data["version"] != _VERSION:
            raise LockFileError(f"{path} has the version {data['version']!r}, not {_VERSION}")
        index: dict[str, str | UnsolvableError] = {}
        for entry in data["combinations"]:
            key = json.dumps(list(entry["combination"].items()), separators=(",", ":"), ensure_ascii=False)
            if "lock" in entry:
                index[key] = str(entry["lock"])
            else:
                index[key] = UnsolvableError(entry["unsolvable"], building=entry.get("building", False))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LockFileError(f"{path} cannot be read: {error!r}", remedy="lock the matrix again") from error
    return index


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
        text = source.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise LockFileError(f"{source} cannot be read: {error}", remedy="lock the matrix again") from error
    return parse_lock(text, name=str(source))


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        temporary.write_text(text, "utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
