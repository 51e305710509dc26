"""Reads environments of other tools: lock files, lists of packages, and installed environments.

All formats are converted to a `ForeignEnvironment`. Packages that cannot be installed elsewhere (local and
editable packages, packages for other platforms) are left out, and listed with the reason.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

import yaml

from bisect_env.environments import foreign_conda, foreign_installed, foreign_locks
from bisect_env.environments.foreign_reading import (
    MAX_BYTES,
    ForeignEnvironment,
    ForeignReading,
    by_name,
    refused,
    unknown,
)
from bisect_env.environments.foreign_requirements import Requirements
from bisect_env.environments.lock import Lock
from bisect_env.environments.yaml_text import read_yaml
from bisect_env.errors import expanded
from bisect_env.matrix.versions import host_platform
from bisect_env.temporary import read_limited

_LISTED = re.compile(r"[A-Za-z0-9_][\w.-]*=[^=<>!~\s]+=[^=\s]+")


def read_environment(path: str | Path, *, python: str = "", platform: str = "") -> ForeignEnvironment:
    """Read the packages of an environment that a file or directory of another tool describes.

    The format, such as `poetry.lock` or `pip freeze`, is detected. If a lock supports several Python versions
    and platforms, the packages for one of them are read. All dependency groups and extras are included,
    because a test may need them.

    Args:
        path: A file, `FILE#NAME` for one environment of a `pixi.lock`, or the directory of an environment.
        python: Python version, such as `3.12`, for which markers are evaluated. If "", use the version that
            the environment states, else the running one if it fits, else the oldest that fits.
        platform: conda's name of the platform to read; "" for the platform of this host.

    Raises:
        UsageError: The path does not exist, or its format is unknown or invalid.
    """
    platform = platform or host_platform()
    text_path, name = str(path), ""
    where = expanded(text_path)
    if not _exists(where) and "#" in text_path:
        text_path, _, name = text_path.rpartition("#")
        where = expanded(text_path)
    reading = ForeignReading(str(path), where, name, python, platform)
    if not _exists(where):
        beside = sorted(p.name for p in where.parent.iterdir()) if where.parent.is_dir() else []
        raise refused(str(path), f"there is no such file{_near(where.name, beside)}", "correct the path")
    try:
        return foreign_installed.directory(reading) if where.is_dir() else _file(reading)
    except OSError as error:
        problem = f"it cannot be read: {error.strerror or error}"
        raise refused(reading.source, problem, "correct the path or its permissions") from error
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        # Files of other tools may have any content.
        raise refused(
            reading.source,
            "it does not have the form that its tool gives it",
            "write the file again with its tool; if that does not help, give the output of `pip freeze`",
        ) from error


def _exists(path: Path) -> bool:
    return os.path.exists(path)  # noqa: PTH110 - `Path.exists` raises an error for long names


def environment_of_lock(lock: Lock, source: str) -> ForeignEnvironment:
    """Convert a lock of bisect-env to a `ForeignEnvironment`.

    Args:
        lock: The lock.
        source: File or directory from which the lock was read, for messages.
    """
    return ForeignEnvironment(
        source=source,
        format="a lock of bisect-env",
        python=lock.python,
        packages=by_name(map(foreign_conda.of_locked, lock.packages)),
        platform=lock.platform,
        channels=tuple(dict.fromkeys(p.url.rsplit("/", 2)[0] for p in lock.packages if p.is_conda)),
    )


def _file(reading: ForeignReading) -> ForeignEnvironment:
    """Detect the format of a file, and read the environment that the file describes."""
    text, name = _text(reading), reading.where.name
    if reading.where.suffix == ".toml" or name in ("uv.lock", "poetry.lock", "pdm.lock"):
        return _toml(reading, text)
    if text.lstrip().startswith("{"):
        return _json(reading, text)
    if "@EXPLICIT" in text.splitlines():
        return foreign_conda.conda_explicit(reading, text)
    if reading.where.suffix in (".yml", ".yaml") or name == "pixi.lock":
        return _yaml(reading, text)
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if lines and all(_LISTED.fullmatch(line) for line in lines):
        return foreign_conda.conda_export(reading, text)
    # The name does not tell the format, so look at the content.
    if text.lstrip().startswith("version:"):
        return _yaml(reading, text)
    if re.search(r"^\[\[packages?\]\]$", text, re.MULTILINE):
        return _toml(reading, text)
    return Requirements(reading).read(text)


def _text(reading: ForeignReading) -> str:
    try:
        return read_limited(reading.where, MAX_BYTES, "utf-8-sig")
    except OSError as error:
        why = f"the file cannot be read ({error.strerror})"
        raise refused(reading.source, why, "correct the path") from None
    except UnicodeDecodeError:
        why = "the file is no text in UTF-8"
        raise refused(reading.source, why, "name a lock file, not an archive") from None


def _toml(reading: ForeignReading, text: str) -> ForeignEnvironment:
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise refused(reading.source, f"it is no TOML: {error}", "write the lock again") from None
    metadata = data.get("metadata") if isinstance(data.get("metadata"), dict) else {}
    if "lock-version" in data and "packages" in data:
        return foreign_locks.pylock(reading, data)
    if metadata and "lock_version" in metadata:
        return foreign_locks.pdm(reading, data)
    if metadata and "lock-version" in metadata:
        return foreign_locks.poetry(reading, data)
    if isinstance(data.get("version"), int) and "requires-python" in data:
        return foreign_locks.uv(reading, data)
    if "project" in data or "tool" in data or "build-system" in data:
        raise refused(
            reading.source,
            "this says what a project asks for, not which versions it got",
            "name the lock beside it, or the output of `pip freeze`",
        )
    raise unknown(reading.source)


def _json(reading: ForeignReading, text: str) -> ForeignEnvironment:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise refused(reading.source, f"it is no JSON: {error}", "write the lock again") from None
    if not isinstance(data, dict) or "_meta" not in data or "default" not in data:
        raise unknown(reading.source)
    return foreign_locks.pipenv(reading, data)


def _yaml(reading: ForeignReading, text: str) -> ForeignEnvironment:
    try:
        data = read_yaml(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" (line {mark.line + 1})" if mark is not None else ""
        raise refused(reading.source, f"it is no YAML{place}", "write the file again with its tool") from None
    if not isinstance(data, dict):
        raise unknown(reading.source)
    if "environments" in data and "packages" in data:
        return foreign_conda.pixi(reading, data)
    if "package" in data and "metadata" in data:
        return foreign_conda.conda_lock(reading, data)
    if "dependencies" in data:
        return foreign_conda.env_export(reading, data)
    raise unknown(reading.source)


def _near(name: str, others: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, others, 1)
    return f"; beside it lies {close[0]}" if close else ""
