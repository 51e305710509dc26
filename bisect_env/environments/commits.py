"""Builds wheels of packages from their commits, and reads their metadata.

A wheel is built once on each host, and kept by commit. What it is built with is as old as the commit, so that
an old commit is not built by a build back end of today; but never older than the Python that builds it, which
earlier ones do not know.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from bisect_env.environments.cache import lock_or_fail, lock_path
from bisect_env.environments.download import sha256_of
from bisect_env.environments.integrity import remove_tree
from bisect_env.environments.interpreters import Interpreter
from bisect_env.environments.lock import BuildLimit, LockedPackage, UnbuildableError
from bisect_env.environments.repository import CommitNotFoundError, Repository
from bisect_env.environments.request import CommitRecipe, CommitSource
from bisect_env.environments.uv_tool import Finished, Uv, is_transient
from bisect_env.errors import InfrastructureError, UsageError
from bisect_env.secrets import MASK, for_build, is_secret
from bisect_env.temporary import replacing

FOLDER = "commits"
LOG_LINES = 12
"""Last lines of a build's log that are told where it fails."""
REMEMBERED = 600.0
"""Seconds for which a build that failed is not begun again by this process."""

_WHEEL = "wheel.json"
_SCRATCH = ("env", "tmp")
_OF_UV = ("error: Failed to build", "  × Failed to build", "hint:")
_NO_COMPILER = re.compile(
    r"command '([\w+-]+)' failed: No such file|Unknown compiler\(s\)|No CMAKE_C\w*_COMPILER could be found"
)
# When each minor version of Python was released: what is older cannot be expected to know it.
_RELEASED = {
    (3, 8): "2019-10-14",
    (3, 9): "2020-10-05",
    (3, 10): "2021-10-04",
    (3, 11): "2022-10-24",
    (3, 12): "2023-10-02",
    (3, 13): "2024-10-07",
    (3, 14): "2025-10-07",
}


@dataclass(frozen=True, slots=True)
class BuiltWheel:
    """A wheel that was built from a commit.

    Attributes:
        path: Where it is kept.
        sha256: Of the file.
        seconds: What building it took, whenever that was.
    """

    path: Path
    sha256: str
    seconds: float

    @property
    def version(self) -> str:
        """Return the version in the wheel's file name."""
        return self.path.name.split("-")[1]

    def locked(self, package: LockedPackage) -> LockedPackage:
        """Return the package of a lock as the installer is to have it."""
        return LockedPackage(package.name, package.version, "pip", self.path.as_uri(), self.sha256)


class CommitBuilder:
    """A builder of commits on this host that keeps the built wheels.

    Args:
        cache: Our cache directory.
        uv: Makes the builds; where build requirements come from.
    """

    def __init__(self, cache: Path, uv: Uv) -> None:
        self._cache = cache
        self._uv = uv

    def fetch(self, source: CommitSource, interpreter: Interpreter) -> None:
        """Fetch a commit, which may take long, unless its wheel is kept.

        Raises:
            UnbuildableError: It cannot be had on this host; that says nothing about the commit.
        """
        if _kept(self._place(source, interpreter)) is not None:
            return
        try:
            Repository(source.repository, self._cache).require(source.commit)
        except (CommitNotFoundError, UsageError) as error:
            raise UnbuildableError(f"{error.what} on this host", transient=True) from error
        except InfrastructureError as error:
            raise UnbuildableError(error.what, transient=True) from error

    def wheel(self, source: CommitSource, interpreter: Interpreter) -> BuiltWheel:
        """Return the wheel of a commit: kept, or built now; safe from any number of processes at once.

        Raises:
            UnbuildableError: It cannot be built; `transient` tells whether that says anything about the
                commit.
        """
        place = self._place(source, interpreter)
        if (known := _kept(place)) is not None:
            return known
        attempt = (place.name, source.limit)
        failure = _failures.get(attempt)
        if failure is not None and time.monotonic() - failure[0] < REMEMBERED:
            raise UnbuildableError(failure[1], transient=False)
        self.fetch(source, interpreter)
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            lock, patience = lock_path(place.parent, place.name), 2 * source.build.time_limit + 60
            with lock_or_fail(lock, "another process has been building this commit", timeout=patience):
                # Another process may have built it while we waited.
                return _kept(place) or self._build(source, interpreter, place)
        except UnbuildableError as error:
            if not error.transient:
                _failures[attempt] = (time.monotonic(), error.message)
            raise

    def stand_in(self, source: CommitSource, interpreter: Interpreter, folder: Path) -> tuple[Path, str]:
        """Return what tells the solver the metadata of a commit, and the commit's version.

        That is a folder with the commit's `pyproject.toml` where this file states all of them, and else a
        wheel, which is built if need be.

        Args:
            source: The commit.
            interpreter: The Python that it is locked for.
            folder: Where the file is written.

        Raises:
            UnbuildableError: It cannot be built.
            UsageError: The repository has no such commit.
            InfrastructureError: The repository cannot be reached.
        """
        repository = Repository(source.repository, self._cache)
        repository.require(source.commit)
        path = "/".join(part for part in (source.build.subdirectory, "pyproject.toml") if part)
        text = repository.file(source.commit, path)
        version = stated_version(text or "", source.name)
        if version is None:
            wheel = self.wheel(source, interpreter)
            return wheel.path, wheel.version
        (folder / "pyproject.toml").write_text(text or "", "utf-8")
        return folder, version

    # -- one build ------------------------------------------------------------------------------------------

    def _place(self, source: CommitSource, interpreter: Interpreter) -> Path:
        facts = (source.digest, source.name, str(interpreter.path), interpreter.version)
        return self._cache / FOLDER / hashlib.sha256("\0".join(facts).encode()).hexdigest()

    def _build(self, source: CommitSource, interpreter: Interpreter, place: Path) -> BuiltWheel:
        """Build a wheel in its place, under the lock of it; the facts are written last."""
        remove_tree(place)  # of a builder that was killed, or a damaged wheel
        started = time.monotonic()
        try:
            place.mkdir(parents=True, exist_ok=True)
            path = self._build_in(source, interpreter, place)
            built = BuiltWheel(path, sha256_of(path), round(time.monotonic() - started, 3))
            facts = {
                "file": path.name,
                "sha256": built.sha256,
                "seconds": built.seconds,
                "commit": source.commit,
                "url": source.url,
            }
            with replacing(place / _WHEEL) as beside:
                beside.write_text(json.dumps(facts), "utf-8")
        except BaseException:
            remove_tree(place)
            raise
        for folder in _SCRATCH:
            remove_tree(place / folder)
        return built

    def _build_in(self, source: CommitSource, interpreter: Interpreter, place: Path) -> Path:
        repository = Repository(source.repository, self._cache)
        short = source.commit[:10]
        missing = [] if source.build.partial else repository.submodules(source.commit)
        if missing:
            raise UnbuildableError(_partial(short, "submodules", missing), transient=False)
        with repository.checked_out(source.commit, place) as tree:
            missing = [] if source.build.partial else repository.pointers(tree)
            if missing:
                raise UnbuildableError(_partial(short, "files of git-lfs", missing), transient=False)
            root = tree / source.build.subdirectory
            if not root.is_dir() or not root.resolve().is_relative_to(tree.resolve()):
                text = f"the commit {short} has no directory {source.build.subdirectory}"
                raise UnbuildableError(text, transient=False)
            self._run(source, interpreter, root, place, repository.committed(source.commit))
        wheels = sorted(place.glob("*.whl"))
        if len(wheels) != 1:
            raise UnbuildableError(f"the build of {short} left {len(wheels)} wheels", transient=False)
        name = str(canonicalize_name(wheels[0].name.split("-")[0]))
        if name != source.name:
            text = f"the commit {short} builds the package {name}, and not {source.name}"
            raise UnbuildableError(text, transient=False)
        return wheels[0]

    def _run(
        self, source: CommitSource, interpreter: Interpreter, root: Path, place: Path, committed: datetime
    ) -> None:
        build = source.build
        date = build.exclude_newer or build_limit(committed, interpreter)
        env = {
            "SOURCE_DATE_EPOCH": str(max(int(committed.timestamp()), 315_532_800)),
            **for_build(dict(build.env)),
        }
        # What is compiled in one directory is found again by ccache when it is compiled in another.
        env.setdefault("CCACHE_BASEDIR", str(root))
        env.setdefault("CCACHE_NOHASHDIR", "1")
        deadline = time.monotonic() + build.time_limit
        python: str | Path = interpreter.path
        newer: list[str | Path] = ["--exclude-newer", date]
        args: list[str | Path] = [
            "build",
            "--wheel",
            "--no-sources",
            "--force-pep517",
            "--no-create-gitignore",
        ]
        if build.requires:
            made = place / "env"
            python = made / "bin" / "python"
            steps: list[list[str | Path]] = [
                ["venv", "--no-project", "--quiet", "-p", interpreter.path, made],
                ["pip", "install", "--quiet", "-p", python, *newer, "--", *build.requires],
            ]
            for step in steps:
                self._step(step, place, deadline, build, env, source)
            args.append("--no-build-isolation")
        # In the place of the build, so that nothing stays of what is killed.
        scratch = place / "tmp"
        scratch.mkdir()
        env["TMPDIR"] = str(scratch)
        self._step([*args, *newer, "-p", python, "-o", place, root], place, deadline, build, env, source)

    def _step(
        self,
        args: Sequence[str | Path],
        cwd: Path,
        deadline: float,
        build: CommitRecipe,
        env: Mapping[str, str],
        source: CommitSource,
    ) -> None:
        uv = Uv(self._cache, build.index) if build.index else self._uv
        finished = uv.run(
            args,
            cwd=cwd,
            timeout=max(1.0, deadline - time.monotonic()),
            builds=True,
            extra=env,
            watched=True,
            memory=build.memory,
        )
        if finished.returncode != 0 or finished.timed_out:
            raise _failed(finished, source)


_failures: dict[tuple[str, BuildLimit], tuple[float, str]] = {}
"""When and why builds within a limit failed in this process: three attempts are made of each."""


def build_limit(committed: datetime, interpreter: Interpreter) -> str:
    """Return the first instant (RFC 3339) that is too new for a commit's build requirements."""
    minor = interpreter.release[:2]
    released = _RELEASED.get((minor[0], minor[1]))
    known = datetime.fromisoformat(f"{released}T00:00:00+00:00") if released else committed
    if minor > max(_RELEASED):
        known = datetime.now(UTC)
    return max(committed, known).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def stated_version(text: str, package: str) -> str | None:
    """Return the version of a project whose `pyproject.toml` states all metadata that a solver needs. Pure.

    Args:
        text: Text of the file; "" if there is none.
        package: Normalised name that is expected.

    Returns:
        None where a build back end works something out, or the file states something else.
    """
    try:
        data: Any = tomllib.loads(text)
        project = data.get("project", {})
        # Poetry, of its own table, and uv, of `project`, take what is missing to be stated elsewhere.
        is_poetry = "poetry" in data.get("tool", {}) and "dependencies" not in project
        is_dynamic = is_poetry or set(project.get("dynamic", ())) & _ASKED
        is_other = canonicalize_name(project["name"]) != package
        return None if is_dynamic or is_other else str(Version(project["version"]))
    except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError, InvalidVersion):
        return None


_ASKED = {"version", "dependencies", "optional-dependencies", "requires-python"}


def package_of_project(files: Mapping[str, str | None]) -> str | None:
    """Return the name of the package that a repository's files state, None if none does. Pure.

    Args:
        files: `pyproject.toml` and `setup.cfg`, as far as they are there.
    """
    try:
        project = tomllib.loads(files.get("pyproject.toml") or "")
    except tomllib.TOMLDecodeError:
        project = {}
    for keys in (("project", "name"), ("tool", "poetry", "name"), ("tool", "flit", "metadata", "module")):
        found: Any = project
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        if isinstance(found, str):
            return found
    section = re.search(r"^\[metadata\]$(.*?)(?=^\[|\Z)", files.get("setup.cfg") or "", re.M | re.S)
    named = re.search(r"^name\s*=\s*([A-Za-z0-9._-]+)\s*$", section[1], re.M) if section else None
    return named[1] if named else None


def _kept(place: Path) -> BuiltWheel | None:
    try:
        facts = json.loads((place / _WHEEL).read_text("utf-8"))
        path = place / str(facts["file"])
        if path.parent != place or sha256_of(path) != facts["sha256"]:
            return None
        return BuiltWheel(path, str(facts["sha256"]), float(facts["seconds"]))
    except (OSError, ValueError, KeyError):
        return None


def _partial(short: str, what: str, missing: Sequence[str]) -> str:
    named = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    return (
        f"the commit {short} needs {what}, which are not fetched ({named}); "
        "`build: {partial: true}` builds it without them"
    )


def _failed(finished: Finished, source: CommitSource) -> UnbuildableError:
    short = source.commit[:10]
    lines = [line.rstrip() for line in finished.stderr.splitlines() if line.strip()]
    # What uv adds below the words of the build back end is of use to those who call uv themselves.
    own = next((i for i, line in enumerate(lines) if i and line.startswith(_OF_UV)), len(lines))
    lines = lines[:own]
    # What it failed with is stored; a build may show what it was given.
    for name, value in for_build(dict(source.build.env)).items():
        if value and is_secret(name, value):
            lines = [line.replace(value, MASK) for line in lines]
    told = "\n".join(lines[-LOG_LINES:])
    if finished.timed_out:
        text = f"the build of {short} took longer than {source.build.time_limit:.0f} s:\n{told}"
        return UnbuildableError(text, transient=False)
    if finished.returncode < 0:
        text = f"the build of {short} was killed by signal {-finished.returncode}:\n{told}"
        return UnbuildableError(text, transient=True)
    words = "\n".join(lines)
    if missing := _NO_COMPILER.search(words):
        # Of the host, and not of the commit: another host can build it.
        lacking = missing[1] or "compiler"
        text = f"the build of {short} failed (this host has no {lacking}):\n{told}"
        return UnbuildableError(text, transient=True)
    transient = is_transient(words) and not (source.build.memory and "Cannot allocate memory" in words)
    why = _reason(words)
    return UnbuildableError(f"the build of {short} failed{why}:\n{told}", transient=transient)


def _reason(words: str) -> str:
    """Return the cause of a build failure that is not the commit's fault, or ""."""
    if "missing an upload date" in words:
        return " (the index gives no upload dates, so that nobody knows what is as old as the commit)"
    return ""
