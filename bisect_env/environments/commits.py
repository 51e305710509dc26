"""Builds wheels of packages from git commits, and reads the metadata of commits.

Each wheel is built once per host and kept in the cache. Build requirements (such as setuptools) are resolved
as of the date of the commit, so that an old commit is not built with a new build back end. If the Python
version was released after the commit, its release date is used, since older build tools may not support it.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from bisect_env.environments.cache import Lease, hold, lock_or_fail, lock_path
from bisect_env.environments.download import sha256_of
from bisect_env.environments.interpreters import Interpreter
from bisect_env.environments.lock import BuildLimit, UnbuildableError
from bisect_env.environments.progress import report_waiting
from bisect_env.environments.repository import Repository
from bisect_env.environments.request import CommitSource
from bisect_env.environments.uv_tool import Uv, is_transient
from bisect_env.errors import InfrastructureError, UsageError
from bisect_env.running import Finished
from bisect_env.secrets import for_build, without_values
from bisect_env.temporary import remove_tree, write_atomically

FOLDER = "commits"
LOG_LINES = 12
"""Number of lines from the end of a build log that an error message quotes."""
REMEMBERED = 600.0
"""Time, in seconds, during which this process does not retry a failed build."""

_WHEEL = "wheel.json"
_SCRATCH = ("env", "tmp")
_OF_UV = ("error: Failed to build", "  × Failed to build", "hint:")
_NO_COMPILER = re.compile(
    r"command '([\w+-]+)' failed: No such file|Unknown compiler\(s\)|No CMAKE_C\w*_COMPILER could be found"
)
# Release date of each minor version of Python. Older build tools may not support it.
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
    """A wheel that was built from a git commit and is kept in the cache.

    Attributes:
        path: Path of the wheel in the cache.
        sha256: Hex digest of the wheel.
        seconds: Duration of the build in seconds, even if it was built earlier.
        lease: Lock that protects the wheel from removal as long as this object exists.
    """

    path: Path
    sha256: str
    seconds: float
    lease: Lease | None = field(default=None, compare=False, repr=False)

    @property
    def version(self) -> str:
        """Return the version in the wheel's file name."""
        return self.path.name.split("-")[1]


class CommitBuilder:
    """A builder of wheels from git commits, which keeps the wheels in the cache.

    Args:
        cache: The cache directory of bisect-env.
        uv: The uv executable that builds, configured with the index for build requirements.
    """

    def __init__(self, cache: Path, uv: Uv) -> None:
        self._cache = cache
        self._uv = uv

    def wheel(self, source: CommitSource, interpreter: Interpreter) -> BuiltWheel:
        """Return the wheel of a commit from the cache, or build it. Safe to call from several processes.

        Args:
            source: The commit.
            interpreter: The Python for which the wheel is built.

        Raises:
            UnbuildableError: The commit cannot be fetched, or the build failed; `transient` is True if a
                retry may succeed.
        """
        place = self._place(source, interpreter)
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lease = hold(place)
        try:
            return replace(_kept(place) or self._made(source, interpreter, place), lease=lease)
        except BaseException:
            lease.release()
            raise

    def stand_in(self, source: CommitSource, interpreter: Interpreter, folder: Path) -> tuple[Path, str]:
        """Return a path from which the solver can read a commit's metadata, and the commit's version.

        A wheel is built only if needed: if the commit's `pyproject.toml` states all metadata, it is written
        to `folder`, and `folder` is returned. Otherwise the path of the wheel is returned, from the cache or
        newly built.

        Args:
            source: The commit.
            interpreter: The Python for which the environment is solved.
            folder: An empty directory.

        Raises:
            UnbuildableError: The build failed.
            UsageError: The repository has no such commit.
            InfrastructureError: The repository cannot be reached.
        """
        repository = Repository(source.repository, self._cache)
        repository.resolve(source.commit)
        path = "/".join(part for part in (source.build.subdirectory, "pyproject.toml") if part)
        text = repository.file(source.commit, path)
        version = stated_version(text or "", source.name)
        if version is None:
            wheel = self.wheel(source, interpreter)
            return wheel.path, wheel.version
        (folder / "pyproject.toml").write_text(_metadata(text or ""), "utf-8")
        return folder, version

    # -- one build ------------------------------------------------------------------------------------------

    def _place(self, source: CommitSource, interpreter: Interpreter) -> Path:
        facts = (source.digest, source.name, str(interpreter.path), interpreter.version)
        return self._cache / FOLDER / hashlib.sha256("\0".join(facts).encode()).hexdigest()

    def _made(self, source: CommitSource, interpreter: Interpreter, place: Path) -> BuiltWheel:
        """Fetch a commit and build its wheel, unless the build has failed in this process not long ago."""
        attempt = (place.name, source.limit)
        failure = _failures.get(attempt)
        if failure is not None and time.monotonic() - failure[0] < REMEMBERED:
            raise UnbuildableError(failure[1], transient=False)
        try:
            Repository(source.repository, self._cache).resolve(source.commit)
        except UsageError as error:
            raise UnbuildableError(f"{error.what} on this host", transient=True) from error
        except InfrastructureError as error:
            raise UnbuildableError(error.what, transient=True) from error
        try:
            lock, patience = lock_path(place), 2 * source.build.time_limit + 60
            why = "another process has been building this commit"
            with lock_or_fail(lock, why, timeout=patience, on_wait=report_waiting):
                # Another process may have built it while we waited.
                return _kept(place) or self._build(source, interpreter, place)
        except UnbuildableError as error:
            if not error.transient:
                _failures[attempt] = (time.monotonic(), error.message)
            raise

    def _build(self, source: CommitSource, interpreter: Interpreter, place: Path) -> BuiltWheel:
        """Build the wheel of a commit in the directory `place`, which the caller has locked.

        The file `wheel.json` is written last, so that a wheel of an interrupted build is never used.
        """
        remove_tree(place)  # left by a killed process, or contains a damaged wheel
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
            write_atomically(place / _WHEEL, json.dumps(facts))
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
        # With these settings, ccache reuses results across different build directories.
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
                self._step(step, place, deadline, env, source)
            args.append("--no-build-isolation")
        # Temporary files go to the build directory, so that they are removed even if the build is killed.
        scratch = place / "tmp"
        scratch.mkdir()
        env["TMPDIR"] = str(scratch)
        self._step([*args, *newer, "-p", python, "-o", place, root], place, deadline, env, source)

    def _step(
        self,
        args: Sequence[str | Path],
        cwd: Path,
        deadline: float,
        env: Mapping[str, str],
        source: CommitSource,
    ) -> None:
        build = source.build
        uv = Uv(self._cache, build.index) if build.index else self._uv
        finished = uv.run(
            args,
            cwd=cwd,
            timeout=max(1.0, deadline - time.monotonic()),
            builds=True,
            extra=env,
            memory=build.memory,
        )
        if finished.returncode != 0 or finished.timed_out:
            raise _failed(finished, source)


_failures: dict[tuple[str, BuildLimit], tuple[float, str]] = {}
"""Failed builds of this process: maps (directory name, limits) to the time of failure and the message."""


def build_limit(committed: datetime, interpreter: Interpreter) -> str:
    """Return the cutoff time (RFC 3339) of a build: later uploads of build requirements are ignored.

    Args:
        committed: Date of the commit.
        interpreter: The Python that builds.

    Returns:
        The later of the commit's date and the release date of the Python version; the current time for a
        Python version whose release date is not known because it is newer.
    """
    minor = interpreter.release[:2]
    released = _RELEASED.get((minor[0], minor[1]))
    known = datetime.fromisoformat(f"{released}T00:00:00+00:00") if released else committed
    if minor > max(_RELEASED):
        known = datetime.now(UTC)
    return max(committed, known).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def stated_version(text: str, package: str) -> str | None:
    """Return the version in a `pyproject.toml`, or None if the file does not state all that a solver needs.

    This function is pure.

    Args:
        text: Text of the file; "" if there is none.
        package: Normalised name of the expected package.

    Returns:
        The version; None if some metadata is dynamic, the file is invalid, or it is of another package.
    """
    try:
        data: Any = tomllib.loads(text)
        project = data.get("project", {})
        # Without `project.dependencies`, Poetry reads the dependencies from its own table.
        is_poetry = "poetry" in data.get("tool", {}) and "dependencies" not in project
        is_dynamic = is_poetry or set(project.get("dynamic", ())) & _ASKED
        is_other = canonicalize_name(project["name"]) != package
        return None if is_dynamic or is_other else str(Version(project["version"]))
    except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError, InvalidVersion):
        return None


def _metadata(text: str) -> str:
    """Reduce the text of a `pyproject.toml` to the metadata that a solver needs.

    Settings in `tool.uv`, such as sources of packages, are meant for developers and are left out.
    """
    project = tomllib.loads(text)["project"]
    lines = ["[project]"]
    for key in ("name", "version", "requires-python", "dependencies"):
        # Strings and arrays of strings are written in the same way in JSON and in TOML.
        lines += [f"{key} = {json.dumps(project[key], ensure_ascii=False)}"] if key in project else []
    lines.append("[project.optional-dependencies]")
    for extra, requirements in project.get("optional-dependencies", {}).items():
        lines.append(f"{json.dumps(extra)} = {json.dumps(requirements, ensure_ascii=False)}")
    return "\n".join((*lines, ""))


_ASKED = {"version", "dependencies", "optional-dependencies", "requires-python"}


def package_of_project(files: Mapping[str, str | None]) -> str | None:
    """Return the package name that a repository's `pyproject.toml` or `setup.cfg` states.

    This function is pure.

    Args:
        files: Maps these two file names to their texts; a missing file has no entry or None.

    Returns:
        The name; None if neither file states it.
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
    """Return the wheel that an earlier build left in a directory, or None if it is missing or damaged."""
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
    # The build may have printed its secrets, and the message is stored.
    shown = without_values(finished.stderr, for_build(dict(source.build.env)), shortest=1)
    lines = [line.rstrip() for line in shown.splitlines() if line.strip()]
    # Drop uv's own lines after the build back end's output; they only help users who run uv themselves.
    own = next((i for i, line in enumerate(lines) if i and line.startswith(_OF_UV)), len(lines))
    lines = lines[:own]
    tail = "\n".join(lines[-LOG_LINES:])
    if finished.timed_out:
        text = f"the build of {short} took longer than {source.build.time_limit:.0f} s:\n{tail}"
        return UnbuildableError(text, transient=False)
    if finished.returncode < 0:
        text = f"the build of {short} was killed by signal {-finished.returncode}:\n{tail}"
        return UnbuildableError(text, transient=True)
    words = "\n".join(lines)
    if missing := _NO_COMPILER.search(words):
        # A missing compiler is a problem of this host; another host may be able to build the commit.
        lacking = missing[1] or "compiler"
        text = f"the build of {short} failed (this host has no {lacking}):\n{tail}"
        return UnbuildableError(text, transient=True)
    transient = is_transient(words) and not (source.build.memory and "Cannot allocate memory" in words)
    why = ""
    if "missing an upload date" in words:
        why = " (the index gives no upload dates, so that nobody knows what is as old as the commit)"
    return UnbuildableError(f"the build of {short} failed{why}:\n{tail}", transient=transient)
