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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from bisect_env.environments import foreign_conda, foreign_locks
from bisect_env.environments.foreign_installed import installed
from bisect_env.environments.foreign_reading import MAX_BYTES, ForeignEnvironment, Listed
from bisect_env.environments.foreign_requirements import requirements
from bisect_env.environments.lock import Lock
from bisect_env.environments.yaml_text import read_yaml
from bisect_env.errors import expanded
from bisect_env.temporary import read_limited

_LISTED = re.compile(r"[A-Za-z0-9_][\w.-]*=[^=<>!~\s]+=[^=\s]+")

_FORMATS = (
    ({"lock-version", "packages"}, foreign_locks.pylock),
    ({"metadata.lock_version"}, foreign_locks.pdm),
    ({"metadata.lock-version"}, foreign_locks.poetry),
    ({"version", "requires-python"}, foreign_locks.uv),
    ({"_meta", "default"}, foreign_locks.pipenv),
    ({"environments", "packages"}, foreign_conda.pixi),
    ({"package", "metadata"}, foreign_conda.conda_lock),
)
"""Pairs of keys and a reader: a file that has all the keys is read by the first such reader."""


def read_environment(path: str | Path, *, python: str = "") -> ForeignEnvironment:
    """Read the packages of an environment that a file or directory of another tool describes.

    The format, such as `poetry.lock` or `pip freeze`, is detected. If a lock supports several Python versions
    and platforms, the packages for this host and one version are read. All dependency groups and extras are
    included, because a test may need them.

    Args:
        path: A file, `FILE#NAME` for one environment of a `pixi.lock`, or the directory of an environment.
        python: Python version, such as `3.12`, for which markers are evaluated. If "", use the version that
            the environment states, else the running one if it fits, else the oldest that fits.

    Raises:
        UsageError: The path does not exist, or its format is unknown or invalid.
    """
    source, name = str(path), ""
    where = expanded(source)
    if not _exists(where) and "#" in source:
        before, _, name = source.rpartition("#")
        where = expanded(before)
    environment = ForeignEnvironment(source, where, name, python)
    if not _exists(where):
        beside = sorted(p.name for p in where.parent.iterdir()) if where.parent.is_dir() else []
        close = difflib.get_close_matches(where.name, beside, 1)
        hint = f"; beside it lies {close[0]}" if close else ""
        raise environment.refused(f"there is no such file{hint}", "correct the path")
    try:
        environment.fill(installed(environment) if where.is_dir() else _rows(environment))
    except OSError as error:
        problem = f"it cannot be read: {error.strerror or error}"
        raise environment.refused(problem, "correct the path or its permissions") from error
    except UnicodeDecodeError:
        problem = "the file is no text in UTF-8"
        raise environment.refused(problem, "name a lock file, not an archive") from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        # Files of other tools may have any content.
        raise environment.refused(
            "it does not have the form that its tool gives it",
            "write the file again with its tool; if that does not help, give the output of `pip freeze`",
        ) from error
    return environment


def _exists(path: Path) -> bool:
    return os.path.exists(path)  # noqa: PTH110 - `Path.exists` raises an error for long names


def environment_of_lock(lock: Lock, source: str) -> ForeignEnvironment:
    """Convert a lock of bisect-env to a `ForeignEnvironment`.

    Args:
        lock: The lock.
        source: File or directory from which the lock was read, for messages.
    """
    environment = ForeignEnvironment(source, Path(source), format="a lock of bisect-env")
    environment.python, environment.platform = lock.python, lock.platform
    environment.fill(map(Listed, lock.packages))
    return environment


def _rows(environment: ForeignEnvironment) -> Iterator[Listed]:
    """Detect the format of a file, and return its packages."""
    text, name = read_limited(environment.where, MAX_BYTES, "utf-8-sig"), environment.where.name
    # Names of locks may have been changed, so look at the content, too.
    is_toml = name in ("uv.lock", "poetry.lock", "pdm.lock") or re.search(r"(?m)^\[\[packages?\]\]$", text)
    if is_toml or name.endswith(".toml"):
        return _structured(environment, _parsed(environment, "TOML", tomllib.loads, text))
    if text.lstrip().startswith("{"):
        return _structured(environment, _parsed(environment, "JSON", json.loads, text))
    if "@EXPLICIT" in text.splitlines():
        return foreign_conda.conda_explicit(environment, text)
    if name.endswith((".yml", ".yaml")) or name == "pixi.lock" or text.lstrip().startswith("version:"):
        return _structured(environment, _parsed(environment, "YAML", read_yaml, text))
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if lines and all(_LISTED.fullmatch(line) for line in lines):
        return foreign_conda.conda_export(environment, text)
    return requirements(environment, text)


def _parsed(environment: ForeignEnvironment, language: str, parse: Callable[[str], Any], text: str) -> Any:
    try:
        return parse(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = f" (line {mark.line + 1})" if mark is not None else ""
    except (ValueError, RecursionError) as error:
        problem = f": {error}"
    raise environment.refused(f"it is no {language}{problem}", "write the file again with its tool")


def _structured(environment: ForeignEnvironment, data: Any) -> Iterator[Listed]:
    """Detect the format of a parsed file by its keys, and return its packages."""
    top = data if isinstance(data, dict) else {}
    metadata = top.get("metadata")
    keys = {*top, *(f"metadata.{key}" for key in (metadata if isinstance(metadata, dict) else ()))}
    for its_keys, reader in _FORMATS:
        if its_keys <= keys:
            return reader(environment, top)
    if isinstance(top.get("dependencies"), list):
        return foreign_conda.env_export(environment, top)
    if {"project", "tool", "build-system"} & keys:
        raise environment.refused(
            "this says what a project asks for, not which versions it got",
            "name the lock beside it, or the output of `pip freeze`",
        )
    raise environment.refused(
        "this is no list of an environment's packages that is known here",
        "give `pip freeze` output, uv.lock, pylock.toml, poetry.lock, pdm.lock, Pipfile.lock, conda list "
        "--explicit or --export, conda env export, conda-lock.yml, pixi.lock, or an environment's directory",
    )
