"""Builds prefixes: installed environments on this host, one for each lock, shared by its trials.

**What holds.** A directory `prefixes/<content hash>` is a prefix if its marker is in it. The marker is
written last and goes first. Builders of one lock exclude each other by a file lock that the installer
inherits and the kernel gives back when the last of them has ended: the next builder takes away what a killed
one left. The installers check the hashes of archives; what they installed is made read-only, and one snapshot
says whether it still is what they made. A prefix that has changed is built again.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bisect_env.containers.trial import Inside
from bisect_env.environments import conda_process, integrity, lockfiles, progress, validation
from bisect_env.environments.cache import (
    Lease,
    archives_lock,
    hold,
    keep_within,
    lock_or_fail,
    lock_path,
    take_away,
)
from bisect_env.environments.integrity import MARKER
from bisect_env.environments.interpreters import (
    Interpreter,
    Interpreters,
    machine_interpreters,
    offline_environment,
    offline_interpreters,
)
from bisect_env.environments.lock import Lock, LockedPackage, UnbuildableError
from bisect_env.environments.request import CommitSource
from bisect_env.environments.settings import default_cache_dir, default_cache_limit, default_offline
from bisect_env.environments.uv_tool import Finished, Uv, is_transient, plain_words
from bisect_env.errors import InfrastructureError
from bisect_env.secrets import without_credentials
from bisect_env.temporary import replacing

if TYPE_CHECKING:
    from bisect_env.environments.bundle import Bundle
    from bisect_env.environments.commits import CommitBuilder

# --------------------------------------------------------------------------------------------------
# What uv does for a prefix: an empty environment, and wheels in it.


def make_empty(uv: Uv, place: Path, interpreter: Interpreter, timeout: float) -> None:
    """Make an environment without packages.

    Args:
        uv: Makes it.
        place: Must not exist.
        interpreter: Its Python.
        timeout: Seconds.

    Raises:
        UnbuildableError: uv cannot.
    """
    args: list[str | Path] = ["venv", "--no-project", "--quiet", "-p", interpreter.path, place]
    _run(uv, args, place.parent, timeout, builds=False)


def install(
    uv: Uv,
    place: Path,
    packages: Sequence[LockedPackage],
    timeout: float,
    *,
    date: str | None = None,
    step: str = "downloading",
) -> None:
    """Install packages without their dependencies.

    Args:
        uv: With the cache that their archives are kept in.
        place: An environment.
        packages: With the addresses that archives are taken from.
        timeout: Seconds.
        date: Newest upload that what a source distribution is built with may have; None for any.
        step: What takes its time where archives are large.

    Raises:
        UnbuildableError: It cannot be done; `transient` tells whether that says anything about the lock.
    """
    if not packages:
        return
    builds = any(package.is_source for package in packages)
    listing = place / "pylock.toml"
    listing.write_text(lockfiles.text(packages, without_credentials(uv.index)), "utf-8")
    args: list[str | Path] = ["pip", "install", "--preview-features", "pylock", "--no-deps"]
    args += ["--link-mode", "hardlink", "-p", place / "bin" / "python", "-r", listing]
    if not builds:
        args.append("--no-build")
    elif date is not None:
        args += ["--exclude-newer", date]
    archives = progress.Archives(step, {package.name: package.version for package in packages}, uv.cache_dir)
    _run(uv, args, place, timeout, builds=builds, on_line=archives.take_line)
    listing.unlink()
    # uv's own, against others who install here at the same time: nobody ever does.
    (place / ".lock").unlink(missing_ok=True)


def _run(
    uv: Uv,
    args: list[str | Path],
    cwd: Path,
    timeout: float,
    *,
    builds: bool,
    on_line: Callable[[str], None] | None = None,
) -> None:
    # A build may leave a server behind, which would hold the lock for ever: uv then ends with this process.
    finished = uv.run(args, cwd=cwd, timeout=timeout, builds=builds, on_line=on_line, watched=builds)
    if finished.returncode != 0 or finished.timed_out:
        raise _failure(finished, timeout, builds=builds)


def _failure(finished: Finished, timeout: float, *, builds: bool) -> UnbuildableError:
    words = plain_words(finished.stderr)
    if finished.timed_out:
        # A download that stalls says nothing about the environment; a build that never ends does.
        return UnbuildableError(f"not finished in {timeout:.0f} s: {words}", transient=not builds)
    if finished.returncode < 0:
        return UnbuildableError(f"uv was killed by signal {-finished.returncode}: {words}", transient=True)
    return UnbuildableError(words or f"uv ended with {finished.returncode}", transient=is_transient(words))


# --------------------------------------------------------------------------------------------------
# Prefixes: installed environments on this host, one directory for each lock, shared by every trial.


_FORMAT = 4  # raise it when prefixes are made differently: older ones are then built anew


class NoPrefixError(Exception):
    """An error raised when a prefix is not on this host and must not be built.

    Args:
        place: Where it would be.
    """

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.place = place


@dataclass(frozen=True, slots=True)
class Prefix:
    """An installed environment.

    Attributes:
        path: Its directory.
        python: The executable to run; never a shell script.
        build_seconds: What building it took now; 0.0 when it was there.
        notes: What a user should know of how it was made.
        lease: Keeps it from eviction.
        inside: The container image that its trials run in, if they do.
    """

    path: Path
    python: Path
    build_seconds: float = 0.0
    notes: tuple[str, ...] = ()
    lease: Lease | None = field(default=None, compare=False, repr=False)
    inside: Inside | None = None

    def release(self) -> None:
        """End the use of the prefix; from then on it may be evicted."""
        if self.lease is not None:
            self.lease.release()


def ensure_prefix(
    lock: Lock,
    *,
    cache_dir: Path | None = None,
    allow_source: bool | frozenset[str] = False,
    timeout: float = 1800.0,
    interpreters: Interpreters | None = None,
    cache_limit: int | None = None,
    offline: Path | None = None,
    existing: bool = False,
) -> Prefix:
    """Return the prefix of a lock, built if need be; safe from any number of processes at once.

    It is leased to the caller, who releases it after use. What it holds is compared with what it held when
    it was made, once in the life of this process: a prefix that was written to is made anew.

    Args:
        lock: Its packages say everything; nothing is solved here.
        cache_dir: Our cache directory, `default_cache_dir()` if None.
        allow_source: Whether source distributions in the lock may be built.
        timeout: Seconds for one build.
        interpreters: Where Pythons are looked for.
        cache_limit: Bytes that the cache may take: after a build, what was used least recently and is not
            in use goes. None is `default_cache_limit()`.
        offline: What `bisect-env env fetch` wrote: archives come from there alone. None is
            `BISECT_ENV_OFFLINE`, if that is set, and else the places that the lock names.
        existing: Build it only in place of one that has changed.

    Raises:
        NoPrefixError: There is none, and `existing` is set.
        UnbuildableError: It cannot be built; `transient` tells whether that says anything about it.
        InterpreterNotFoundError: Its Python is not to be had on this host.
        InfrastructureError: The cache cannot be used.
    """
    cache = (cache_dir or default_cache_dir()).absolute()
    offline = offline or default_offline()
    if interpreters is None:
        interpreters = machine_interpreters() if offline is None else offline_interpreters(offline)
    builder = _Builder(lock, cache, allow_source, timeout, interpreters, offline)
    lease: Lease | None = None
    try:
        lease = hold(builder.folder, lock.content_hash)
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
        interpreters: Interpreters,
        offline: Path | None,
    ) -> None:
        self.lock = lock
        self.packages = lock.packages
        self.spent = 0.0
        self.offline = offline
        self.cache = cache
        self.allow_source = allow_source
        self.timeout = timeout
        self.interpreters = interpreters
        self.folder = cache / "prefixes"
        self.final = self.folder / lock.content_hash
        self.notes: list[str] = []
        self._has_changed = False
        self._held: int | None = None

    def existing(self) -> Prefix | None:
        python = self.final / "bin" / "python"
        try:
            marker = json.loads((self.final / MARKER).read_text("utf-8"))
        except (OSError, ValueError):
            return None
        # The link dangles when the interpreter was uninstalled or upgraded since.
        if marker.get("format") != _FORMAT or not self._may_start(python):
            return None
        if not integrity.first_look(self.final):
            self._has_changed = True
            return None
        return Prefix(self.final, python)

    def _may_start(self, python: Path) -> bool:
        """Return whether the interpreter is there and may be executed.

        Raises:
            InfrastructureError: Not by this user, who cannot make another environment in its place either.
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
        # conda packages bring their own.
        interpreter = None if self.lock.is_conda else self.interpreters.find(self.lock.python)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._fetch_commits(interpreter)
        with self._alone() as self._held:
            # Another process may have built it while we waited.
            if (prefix := self.existing()) is not None:
                return prefix
            if self._has_changed:
                short = self.lock.content_hash[:12]
                self.notes.append(f"the environment {short} was changed since it was made, and is made anew")
            self._build_commits(interpreter)
            begun = time.monotonic()
            try:
                self._fill(interpreter)
                warnings = validation.prefix_warnings(self.lock, self.final)
                self.notes += [f"{self.lock.content_hash[:12]}: {text}" for text in warnings]
                self._mark(interpreter, begun)
            except BaseException:
                take_away(self.cache, self.final)
                raise
        # What was spent on a wheel is the price of such an environment, whenever it was built.
        seconds = max(time.monotonic() - started, self.spent)
        python = self.final / "bin" / "python"
        return Prefix(self.final, python, seconds, tuple(self.notes))

    def _alone(self) -> contextlib.AbstractContextManager[int]:
        """Keep others from building this environment, until the installer has ended as well."""
        # Twice the limit: its holder has one build to finish and cleaning up to do.
        patience = 2 * self.timeout
        why = f"another process has been building this prefix for {patience:.0f} s"
        return lock_or_fail(lock_path(self.folder, self.lock.content_hash), why, timeout=patience)

    def _fetch_commits(self, interpreter: Interpreter | None) -> None:
        """Fetch the commits that wheels are built from, while others may use the prefix."""
        if self.lock.has_commits:
            if interpreter is None:
                raise UnbuildableError("commits are not built for conda's Python", transient=False)
            for package in self.lock.packages:
                if package.is_commit:
                    self._commits().fetch(CommitSource.of(package, self.lock.limits), interpreter)

    def _commits(self) -> CommitBuilder:
        # Here, as what reads a fetched directory is below: most environments need none of it.
        from bisect_env.environments.commits import CommitBuilder

        return CommitBuilder(self.cache, self._uv_tool())

    def _build_commits(self, interpreter: Interpreter | None) -> None:
        """Put the wheels that are built from commits in the place of those."""
        if interpreter is None or not self.lock.has_commits:
            return
        commits = self._commits()
        packages = []
        for package in self.lock.packages:
            if package.is_commit:
                built = commits.wheel(CommitSource.of(package, self.lock.limits), interpreter)
                self.spent += built.seconds
                package = built.locked(package)
            packages.append(package)
        self.packages = tuple(packages)

    def _fill(self, interpreter: Interpreter | None) -> None:
        """Run the installers on the prefix; repeat once if an archive that they used has changed."""
        for _attempt in range(2):
            lock = archives_lock(self.cache)
            with lock_or_fail(lock, "the cache is being emptied", timeout=self.timeout, exclusive=False):
                if interpreter is None:
                    conda_process.wait_for_orphan(self.final)
                take_away(self.cache, self.final)
                self._install_all(interpreter)
                progress.tell(progress.BuildStep("checking"))
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
            allowed = self.allow_source
            if package.is_commit:
                continue
            if package.is_source and not (allowed if isinstance(allowed, bool) else package.name in allowed):
                raise UnbuildableError(
                    f"{package.name} {package.version} would have to be built from source, "
                    "which the matrix does not allow",
                    transient=False,
                )

    def _install_all(self, interpreter: Interpreter | None) -> None:
        if interpreter is not None:
            make_empty(self._uv_tool(), self.final, interpreter, self.timeout)
        else:
            archives = self._conda_archives()
            conda_process.fill(self.final, self.lock, self.cache, self.timeout, archives=archives)
        self._install(self.final)

    def _mark(self, interpreter: Interpreter | None, begun: float) -> None:
        """Make the prefix read-only, and write last the marker that makes it valid, with its digest."""
        lock = self.final / "conda-lock.yml"
        lock.write_text(self.lock.text, "utf-8")
        state = integrity.snapshot(self.final, ignore=(MARKER,), protect=True)
        marker = {
            "format": _FORMAT,
            "content_hash": self.lock.content_hash,
            "python": interpreter.version if interpreter else self.lock.python,
            "interpreter": str(interpreter.path if interpreter else self.final / "bin" / "python"),
            "packages": len(self.lock.packages),
            "seconds": round(time.monotonic() - begun, 3),
            "snapshot": state,
        }
        with replacing(self.final / MARKER) as beside:
            beside.write_text(json.dumps(marker, indent=1) + "\n", "utf-8")
        integrity.note_unchanged(self.final, state)

    @functools.cached_property
    def _bundle(self) -> Bundle | None:
        from bisect_env.environments.bundle import Bundle

        return None if self.offline is None else Bundle(self.offline)

    def _conda_archives(self) -> dict[str, Path]:
        bundle = self._bundle
        return {p.url: bundle.path(p) for p in self.lock.packages if p.is_conda} if bundle else {}

    def _wheels(self) -> tuple[LockedPackage, ...]:
        """Return the packages that are not conda's, with the addresses of their archives."""
        packages = tuple(package for package in self.packages if not package.is_conda)
        bundle = self._bundle
        return tuple(bundle.here(p, self.lock.python) for p in packages) if bundle else packages

    def _uv_tool(self) -> Uv:
        if self.offline is None:
            return Uv(self.cache, holding=self._held)
        return Uv(self.cache, environ=offline_environment(self.offline), holding=self._held)

    def _install(self, place: Path) -> None:
        step = "downloading" if self.offline is None else "unpacking"
        wheels = self._wheels()
        try:
            install(self._uv_tool(), place, wheels, self.timeout, date=self.lock.exclude_newer, step=step)
        except UnbuildableError as error:
            changed = self._bundle.changed(wheels) if self._bundle else []
            if not changed:
                raise
            text = f"{', '.join(changed)} in {self.offline} is not what was fetched"
            raise UnbuildableError(text, transient=True) from error
