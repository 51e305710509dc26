"""Builds prefixes. A *prefix* is the directory in which a lock is installed; all trials of the lock share it.

A directory `prefixes/<content hash>` is a complete prefix if it contains the marker file. The marker is
written last and deleted first. A file lock ensures that only one process builds a prefix at a time. The
installer inherits the lock, so the lock is free only when the builder and its installer have ended; the next
builder then removes what a killed builder left behind. Installers verify the hashes of archives. After the
installation the files are made read-only, and a snapshot (see `integrity`) is stored. A prefix that differs
from its snapshot is rebuilt.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bisect_env.containers.trial import Inside
from bisect_env.environments import conda_process, integrity, lockfiles, progress, validation
from bisect_env.environments.bundle import Bundle
from bisect_env.environments.cache import (
    Lease,
    archives_lock,
    hold,
    keep_within,
    lock_or_fail,
    lock_path,
    refuse_noexec,
    take_away,
)
from bisect_env.environments.commits import BuiltWheel, CommitBuilder
from bisect_env.environments.integrity import MARKER
from bisect_env.environments.interpreters import (
    Interpreter,
    machine_interpreters,
    offline_environment,
    offline_interpreters,
)
from bisect_env.environments.lock import Lock, LockedPackage, UnbuildableError
from bisect_env.environments.request import CommitSource
from bisect_env.environments.settings import default_cache_dir, default_cache_limit, default_offline
from bisect_env.environments.uv_tool import Uv, build_cache, is_transient, plain_words
from bisect_env.errors import InfrastructureError
from bisect_env.matrix.versions import PackageIndex, may_build
from bisect_env.secrets import without_credentials
from bisect_env.temporary import write_atomically

# --------------------------------------------------------------------------------------------------
# Prefixes: installed environments on this host, one directory for each lock, shared by every trial.


_FORMAT = 4  # increase it when prefixes are built differently; older ones are then rebuilt


class NoPrefixError(Exception):
    """The error raised if a prefix does not exist and the caller forbids building it.

    Args:
        place: Directory that the prefix would have.
    """

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.place = place


@dataclass(frozen=True, slots=True)
class Prefix:
    """An environment that is installed on this host: its directory, its Python and its lease.

    Attributes:
        path: Its directory.
        python: The executable to run; never a shell script.
        build_seconds: Duration of the build in seconds; 0.0 if the prefix existed already.
        notes: Messages for the user about the build, such as warnings about its packages.
        lease: Lock that protects the prefix from removal; None for the Python of an image.
        inside: The container image in which trials run; None if they run on the host.
        state: The snapshot (see `integrity.snapshot`) taken after the build; "" for the Python of an image.
    """

    path: Path
    python: Path
    build_seconds: float = 0.0
    notes: tuple[str, ...] = ()
    lease: Lease | None = field(default=None, compare=False, repr=False)
    inside: Inside | None = None
    state: str = ""

    def release(self) -> None:
        """End the use of the prefix, so that other processes may remove it."""
        if self.lease is not None:
            self.lease.release()


def ensure_prefix(
    lock: Lock,
    *,
    cache_dir: Path | None = None,
    allow_source: bool | frozenset[str] = False,
    timeout: float = 1800.0,
    cache_limit: int | None = None,
    offline: Path | None = None,
    existing: bool = False,
    indexes: Sequence[PackageIndex] = (),
) -> Prefix:
    """Return the prefix of a lock, and build it if necessary. Safe to call from several processes at once.

    An existing prefix is checked for changed files once per process, and rebuilt if it has changed. The
    caller must call `release` on the returned prefix after use.

    Args:
        lock: The packages to install.
        cache_dir: The cache directory of bisect-env; `default_cache_dir()` if None.
        allow_source: Whether source distributions may be built: True, False, or only the named packages.
        timeout: Time limit for a build, in seconds.
        cache_limit: Maximum size of the cache in bytes; `default_cache_limit()` if None. After a build, the
            least recently used content is removed until the cache is small enough.
        offline: Directory written by `bisect-env env fetch`, from which all archives are taken. If None, use
            the variable `BISECT_ENV_OFFLINE`; if that is not set, download from the URLs in the lock.
        existing: If True, do not build a missing prefix; only rebuild one that has changed.
        indexes: Further indexes of the matrix. Their logins are used on the hosts that archives come from.

    Raises:
        NoPrefixError: The prefix is missing and `existing` is True.
        UnbuildableError: The prefix cannot be built; `transient` is True if a retry may succeed.
        InterpreterNotFoundError: The required Python is neither installed nor downloadable.
        InfrastructureError: The cache cannot be used.
    """
    cache = (cache_dir or default_cache_dir()).absolute()
    offline = offline or default_offline()
    refuse_noexec(cache)
    builder = _Builder(lock, cache, allow_source, timeout, offline, indexes)
    lease: Lease | None = None
    try:
        lease = hold(builder.final)
        prefix = builder.existing()
        if prefix is None:
            prefix = builder.build(only_changed=existing)
            keep_within(cache, default_cache_limit() if cache_limit is None else cache_limit, prefix.path)
        return replace(prefix, lease=lease)
    except BaseException as error:
        if lease is not None:
            lease.release()
        if not isinstance(error, OSError):
            raise
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise UnbuildableError(f"{cache}: {error.strerror}", transient=True) from error
        raise InfrastructureError(
            f"the cache {cache} cannot be used: {error}",
            remedy="see that it can be written, or name another with BISECT_ENV_CACHE",
        ) from error


class _Builder:
    def __init__(
        self,
        lock: Lock,
        cache: Path,
        allow_source: bool | frozenset[str],
        timeout: float,
        offline: Path | None,
        indexes: Sequence[PackageIndex],
    ) -> None:
        self.lock = lock
        self.packages = lock.packages
        self.offline = offline
        # uv gets only their logins: it must not look for build requirements there.
        self.indexes = [replace(one, explicit=True) for one in indexes]
        self.cache = cache
        self.allow_source = allow_source
        self.timeout = timeout
        self.folder = cache / "prefixes"
        self.final = self.folder / lock.content_hash
        self.notes: list[str] = []
        self._has_changed = False
        self._wheels: list[BuiltWheel] = []  # they cannot be removed before the environment is installed
        self._held: int | None = None

    def existing(self) -> Prefix | None:
        python = self.final / "bin" / "python"
        try:
            marker = json.loads((self.final / MARKER).read_text("utf-8"))
        except (OSError, ValueError):
            return None  # there is no prefix, or an unfinished one; it is built
        # If the interpreter was uninstalled or upgraded, `bin/python` is a dangling link.
        if marker.get("format") != _FORMAT or not self._may_start(python):
            return None
        if not integrity.first_look(self.final):
            self._has_changed = True
            return None
        return Prefix(self.final, python, state=str(marker.get("snapshot", "")))

    def _may_start(self, python: Path) -> bool:
        """Return whether the prefix's interpreter exists and is executable.

        Raises:
            InfrastructureError: This user may not execute it and has no permission to rebuild the prefix.
        """
        if os.access(python, os.X_OK):
            return True
        if python.is_symlink() and not os.access(self.folder, os.W_OK):
            real = os.path.realpath(python)
            raise InfrastructureError(
                f"the environment {self.lock.content_hash[:12]} of the cache {self.cache} uses the Python "
                f"{real}, which is gone or which this user may not execute; only who may write "
                "to this cache can make the environment anew",
                remedy="let its owner take a Python that every user can execute (not one below a home "
                "directory) and make the environment again, or use a cache of your own with --cache",
            )
        return False

    def build(self, *, only_changed: bool = False) -> Prefix:
        if only_changed and not self._has_changed:
            raise NoPrefixError(self.final)
        self._refuse_sources()
        started = time.monotonic()
        # A conda environment contains its own Python.
        interpreters = offline_interpreters(self.offline) if self.offline else machine_interpreters()
        interpreter = None if self.lock.is_conda else interpreters.find(self.lock.python)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._build_commits(interpreter)
        # Twice the limit: the holder of the lock has one build to finish and cleaning up to do.
        patience, lock = 2 * self.timeout, lock_path(self.final)
        why = f"another process has been building this prefix for {patience:.0f} s"
        # The installer inherits the lock, which thus stays held until the installer has ended, too.
        with lock_or_fail(lock, why, timeout=patience, on_wait=progress.report_waiting) as self._held:
            # Another process may have built it while we waited.
            if (prefix := self.existing()) is not None:
                return prefix
            if self._has_changed:
                short = self.lock.content_hash[:12]
                self.notes.append(f"the environment {short} was changed since it was made, and is made anew")
            try:
                self._fill(interpreter)
                warnings = validation.prefix_warnings(self.lock, self.final)
                self.notes += [f"{self.lock.content_hash[:12]}: {text}" for text in warnings]
                state = self._mark(interpreter)
            except BaseException:
                take_away(self.cache, self.final)
                raise
        # Include the time for building wheels from commits, even if they were built earlier.
        seconds = max(time.monotonic() - started, sum(wheel.seconds for wheel in self._wheels))
        python = self.final / "bin" / "python"
        return Prefix(self.final, python, seconds, tuple(self.notes), state=state)

    def _build_commits(self, interpreter: Interpreter | None) -> None:
        """Build the packages that come from commits, and replace each with its built wheel.

        This happens before the environment is locked, so that other processes need not wait for git. The
        wheels stay protected from removal.
        """
        if not self.lock.has_commits:
            return
        if interpreter is None:
            raise UnbuildableError("commits are not built for conda's Python", transient=False)
        commits = CommitBuilder(self.cache, self._uv_tool())
        packages = []
        for package in self.lock.packages:
            if package.is_commit:
                built = commits.wheel(CommitSource.of(package, self.lock.limits), interpreter)
                self._wheels.append(built)
                package = replace(package, url=built.path.as_uri(), sha256=built.sha256)
            packages.append(package)
        self.packages = tuple(packages)

    def _fill(self, interpreter: Interpreter | None) -> None:
        """Install all packages in the prefix.

        If an unpacked archive in the cache has changed since its first use, remove it and repeat once.
        """
        for _attempt in range(2):
            lock = archives_lock(self.cache)
            with lock_or_fail(lock, "the cache is being emptied", timeout=self.timeout, exclusive=False):
                take_away(self.cache, self.final)
                self._install_all(interpreter)
                progress.report_step(progress.BuildStep("checking"))
                changed = integrity.changed_archives(self.final, self.cache)
            if not changed:
                return
            names = [next((one.stem for one in path.glob("*.dist-info")), path.name) for path in changed]
            why = "other builds leave no moment to clean the cache"
            with lock_or_fail(archives_lock(self.cache), why, timeout=2 * self.timeout):
                for folder in changed:
                    take_away(self.cache, folder)
            self.notes.append(f"archives in the cache were changed ({', '.join(names)}): fetched again")
        raise UnbuildableError("archives in the cache change while they are installed", transient=True)

    def _refuse_sources(self) -> None:
        for package in self.lock.packages:
            if package.is_source and not (package.is_commit or may_build(self.allow_source, package.name)):
                raise UnbuildableError(
                    f"{package.name} {package.version} would have to be built from source, "
                    "which the matrix does not allow",
                    transient=False,
                )

    def _install_all(self, interpreter: Interpreter | None) -> None:
        """Install the conda packages or create an empty virtual environment, then install the wheels."""
        if interpreter is not None:
            self._run_uv(["venv", "--no-project", "--quiet", "-p", interpreter.path, self.final], self.folder)
        else:
            conda, bundle = [package for package in self.lock.packages if package.is_conda], self._bundle
            archives = {package.url: bundle.path(package) for package in conda} if bundle else {}
            conda_process.fill(
                self.final, self.lock, self.cache, self.timeout, archives=archives, holding=self._held
            )
        wheels = tuple(package for package in self.packages if not package.is_conda)
        if not wheels:
            return
        if self._bundle is not None:
            wheels = tuple(self._bundle.here(package, self.lock.python) for package in wheels)
        try:
            self._install_wheels(wheels)
        except UnbuildableError as error:
            changed = self._bundle.changed(wheels) if self._bundle else []
            if not changed:
                raise
            text = f"{', '.join(changed)} in {self.offline} is not what was fetched"
            raise UnbuildableError(text, transient=True) from error

    def _install_wheels(self, packages: Sequence[LockedPackage]) -> None:
        """Install exactly the given packages with uv, without their dependencies."""
        sources = [package for package in packages if package.is_source]
        wheels = [package for package in packages if not package.is_source]
        if wheels:
            self._install_with_uv(wheels)
        if sources:
            own = build_cache(self.cache, self.lock.exclude_newer, self.lock.python)
            self._install_with_uv(sources, own, builds=True)

    def _install_with_uv(
        self,
        packages: Sequence[LockedPackage],
        extra: Mapping[str, str] | None = None,
        *,
        builds: bool = False,
    ) -> None:
        listing = self.final / "pylock.toml"
        listing.write_text(lockfiles.text(packages, without_credentials(self._uv_tool().index)), "utf-8")
        args: list[str | Path] = ["pip", "install", "--preview-features", "pylock", "--no-deps"]
        args += ["--link-mode", "hardlink", "-p", self.final / "bin" / "python", "-r", listing]
        if not builds:
            args.append("--no-build")
        elif self.lock.exclude_newer is not None:
            args += ["--exclude-newer", self.lock.exclude_newer]
        step = "downloading" if self.offline is None else "unpacking"
        archives = progress.Archives(step, {p.name: p.version for p in packages}, self.cache)
        self._run_uv(args, self.final, builds=builds, on_line=archives.take_line, extra=extra)
        listing.unlink()
        # uv's lock file against concurrent installations, which never happen here.
        (self.final / ".lock").unlink(missing_ok=True)

    def _run_uv(
        self,
        args: Sequence[str | Path],
        cwd: Path,
        *,
        builds: bool = False,
        on_line: Callable[[str], None] | None = None,
        extra: Mapping[str, str] | None = None,
    ) -> None:
        """Run uv, and raise an `UnbuildableError` if it fails."""
        finished = self._uv_tool().run(
            args, cwd=cwd, timeout=self.timeout, builds=builds, on_line=on_line, extra=extra
        )
        words = plain_words(finished.stderr)
        if finished.timed_out:
            # A stalled download may succeed next time; a build that takes too long will not.
            text = f"not finished in {self.timeout:.0f} s: {words}"
            raise UnbuildableError(text, transient=not builds)
        if finished.returncode < 0:
            text = f"uv was killed by signal {-finished.returncode}: {words}"
            raise UnbuildableError(text, transient=True)
        if finished.returncode != 0:
            text = words or f"uv ended with {finished.returncode}"
            raise UnbuildableError(text, transient=is_transient(words))

    def _mark(self, interpreter: Interpreter | None) -> str:
        """Make the prefix read-only, write the marker file, and return the snapshot of the prefix.

        A directory without the marker file is not a valid prefix.
        """
        lock = self.final / "conda-lock.yml"
        lock.write_text(self.lock.text, "utf-8")
        state = integrity.snapshot(self.final, protect=True)
        marker = {
            "format": _FORMAT,
            "python": interpreter.version if interpreter else self.lock.python,
            "packages": len(self.lock.packages),
            "snapshot": state,
        }
        write_atomically(self.final / MARKER, json.dumps(marker, indent=1) + "\n")
        integrity.note_unchanged(self.final, state)
        return state

    @functools.cached_property
    def _bundle(self) -> Bundle | None:
        return None if self.offline is None else Bundle(self.offline)

    def _uv_tool(self) -> Uv:
        environ = None if self.offline is None else offline_environment(self.offline)
        return Uv(self.cache, environ=environ, indexes=self.indexes, holding=self._held)
