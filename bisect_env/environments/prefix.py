"""Builds prefixes: installed environments on this host, one for each lock, shared by its trials.

**What holds.** A directory `prefixes/<content hash>` with a marker in it is whole, for it was built beside
its place and renamed when finished; nothing else is ever used. Builders of one lock exclude each other by
a file lock that the kernel gives back when its holder dies. What a dead builder left is removed by the
next one. Prefixes are read-only for their users: their files are hardlinks into one cache.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import errno
import fcntl
import hashlib
import io
import itertools
import json
import os
import secrets
import stat
import tempfile
import threading
import time
import zipfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from bisect_env.containers.trial import Inside
from bisect_env.environments import (
    bytecode,
    conda_process,
    install_manifest,
    integrity,
    lockfiles,
    progress,
    validation,
)
from bisect_env.environments.cache import (
    MARKER,
    Lease,
    archive_label,
    archives,
    damage,
    drop_damaged_archives,
    evict,
    hold,
    normal_label,
)
from bisect_env.environments.install_manifest import CONDA_BASE, Contents, contents, write_manifests
from bisect_env.environments.interpreters import (
    Interpreter,
    Interpreters,
    machine_interpreters,
    offline_environment,
    offline_interpreters,
)
from bisect_env.environments.lock import Lock, LockedPackage, UnbuildableError
from bisect_env.environments.lockfiles import build_date
from bisect_env.environments.request import CommitSource
from bisect_env.environments.settings import default_cache_dir, default_cache_limit, default_offline
from bisect_env.environments.uv_tool import Finished, Uv, is_transient, plain_words
from bisect_env.errors import InfrastructureError
from bisect_env.matrix.secrets import without_credentials
from bisect_env.temporary import file_locks, lock_holder, replacing

if TYPE_CHECKING:
    from bisect_env.environments.bundle import Bundle

# --------------------------------------------------------------------------------------------------
# Commands in a prefix that is made in one place and used in another.

_LONGEST_LINE = 4096


def move(place: Path, final: Path) -> None:
    """Let commands that name the interpreter in one directory name the one in another.

    uv makes commands relocatable in virtual environments alone; in a conda prefix they begin with
    `#!<place>/bin/python`. Each is written anew beside itself, for it may be a hardlink, and the lists of
    what packages hold are told of it.

    Args:
        place: Where the prefix is.
        final: Where it will be.
    """
    changed = {}
    for path in sorted((place / "bin").iterdir()):
        if path.is_file() and not path.is_symlink() and (text := _moved(path, place, final)) is not None:
            _write(path, text, path.stat().st_mode & 0o7777)
            changed[path] = text
    if changed:
        for record in place.glob("lib/python*/site-packages/*.dist-info/RECORD"):
            _state(record, changed)


def _moved(path: Path, place: Path, final: Path) -> bytes | None:
    here = os.fsencode(str(place / "bin")) + b"/"
    there = os.fsencode(str(final / "bin")) + b"/"
    with path.open("rb") as stream:
        first = stream.readline(_LONGEST_LINE)
        if not first.startswith(b"#!"):
            return None
        # Of a path that is too long for a shebang line there is a shell's `exec` in the second one.
        head = first + stream.readline(_LONGEST_LINE)
        return head.replace(here, there) + stream.read() if here in head else None


def _state(record: Path, changed: dict[Path, bytes]) -> None:
    site = record.parent.parent
    with record.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.reader(stream))
    hit = False
    for row in rows:
        path = Path(os.path.normpath(site / row[0])) if row else site
        if path in changed:
            digest = base64.urlsafe_b64encode(hashlib.sha256(changed[path]).digest()).rstrip(b"=").decode()
            row[1:] = [f"sha256={digest}", str(len(changed[path]))]
            hit = True
    if hit:
        _write(record, _csv(rows), record.stat().st_mode & 0o7777)


def _csv(rows: Iterable[list[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _write(path: Path, content: bytes, mode: int) -> None:
    with replacing(path) as beside:
        beside.write_bytes(content)
        beside.chmod(mode)


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
    made = (str(interpreter.path), interpreter.version, Path(interpreter.path).stat().st_mtime_ns)
    if (known := _EMPTY.get(made)) is not None:
        _put(known, place)
        return
    # Relocatable, for scripts in bin/ are to work after the rename: so nothing in it says where it is.
    args: list[str | Path] = ["venv", "--relocatable", "--no-project", "--quiet"]
    _run(uv, [*args, "-p", interpreter.path, place], place.parent, timeout, builds=False)
    _EMPTY[made] = _taken(place)


_EMPTY: dict[tuple[str, str, int], dict[str, bytes | str | None]] = {}
"""What uv puts into an environment without packages, for each Python that this process has had it do so for:
what is in a file, where a link leads to, and None for a folder. To start uv takes longer than to copy it."""


def _taken(place: Path) -> dict[str, bytes | str | None]:
    found: dict[str, bytes | str | None] = {}
    for path in sorted(place.rglob("*")):
        name = str(path.relative_to(place))
        if path.is_symlink():
            found[name] = str(path.readlink())
        else:
            found[name] = None if path.is_dir() else path.read_bytes()
    return found


def _put(content: Mapping[str, bytes | str | None], place: Path) -> None:
    place.mkdir()
    for name, what in content.items():
        match what:
            case None:
                (place / name).mkdir()
            case str():
                (place / name).symlink_to(what)
            case _:
                (place / name).write_bytes(what)


def install(
    uv: Uv,
    place: Path,
    packages: Sequence[LockedPackage],
    timeout: float,
    *,
    date: str | None = None,
    step: str = "downloading",
) -> None:
    """Install packages, and nothing that they depend on.

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
    _run(uv, args, place, timeout, builds=builds, heard=archives.heard)
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
    heard: Callable[[str], None] | None = None,
) -> None:
    finished = uv.run(args, cwd=cwd, timeout=timeout, builds=builds, heard=heard)
    if finished.returncode != 0 or finished.timed_out:
        raise _failure(finished, timeout, builds=builds)


def _failure(finished: Finished, timeout: float, *, builds: bool) -> UnbuildableError:
    words = plain_words(finished.stderr)
    if finished.stopped:
        return UnbuildableError(words, transient=is_transient(words))
    if finished.timed_out:
        # A download that stalls says nothing about the environment; a build that never ends does.
        return UnbuildableError(f"not finished in {timeout:.0f} s: {words}", transient=not builds)
    if finished.returncode < 0:
        return UnbuildableError(f"uv was killed by signal {-finished.returncode}: {words}", transient=True)
    return UnbuildableError(words or f"uv ended with {finished.returncode}", transient=is_transient(words))


# --------------------------------------------------------------------------------------------------
# Prefixes: installed environments on this host, one directory for each lock, shared by every trial.


@dataclass(frozen=True, slots=True)
class _Look:
    """A look that found a prefix as it was made: when it began, by the monotonic clock and in UTC."""

    begun: float
    at: datetime

    @classmethod
    def now(cls) -> _Look:
        return cls(time.monotonic(), datetime.now(UTC))


UNCHANGED: dict[tuple[str, str], _Look] = {}
"""Prefixes, with their snapshots, and the last look of this process that found them as they were made."""
_FORMAT = 3  # raise it when prefixes are made differently: older ones are then built anew


@dataclass(frozen=True, slots=True)
class Prefix:
    """An installed environment.

    Attributes:
        path: Its directory.
        python: The executable to run; never a shell script.
        build_seconds: What building it took now; 0.0 when it was there.
        notes: What a user should know of how it was made, such as damage that was found and mended.
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
        """Say that the prefix is no longer in use; from then on it may be evicted."""
        if self.lease is not None:
            self.lease.release()


def state_of(place: Path) -> str:
    """A digest of a prefix's content when it was made; "" for a directory that is no prefix of ours."""
    try:
        return str(json.loads((place / MARKER).read_text("utf-8"))["snapshot"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


@dataclass(frozen=True, slots=True)
class Changed:
    """A prefix that does not hold any more what it held when it was made.

    Attributes:
        since: When it was last seen as it was made, UTC.
    """

    since: datetime


def look(place: Path, state: str) -> Changed | None:
    """Look whether a prefix still holds what `state_of` said; if not, the next user builds it again.

    Threads that look at the same time share the looks that begin after they asked.

    Args:
        place: The prefix.
        state: What `state_of` said before something ran in it.

    Returns:
        None if nothing has changed.
    """
    asked = time.monotonic()
    with _looking(place):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            marker = json.loads((place / MARKER).read_text("utf-8"))
            made = (str(place), str(marker["snapshot"]))
            if state in (made[1], marker.get("without_bytecode")):
                if (last := UNCHANGED.get(made)) is not None and last.begun > asked:
                    return None
                begun = _Look.now()
                if integrity.is_unchanged(place, made[1], ignore=(MARKER,)):
                    UNCHANGED[made] = begun
                    return None
        since = UNCHANGED.pop((str(place), state), None)
        return Changed(_made_at(place) if since is None else since.at)


def _made_at(place: Path) -> datetime:
    try:
        return datetime.fromtimestamp((place / MARKER).stat().st_mtime, UTC)
    except OSError:
        return datetime.min.replace(tzinfo=UTC)


_LOOKS: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)


def _looking(place: Path) -> threading.Lock:
    return _LOOKS[str(place)]


def ensure_prefix(
    lock: Lock,
    *,
    cache_dir: Path | None = None,
    allow_source: bool | frozenset[str] = False,
    timeout: float = 1800.0,
    interpreters: Interpreters | None = None,
    cache_limit: int | None = None,
    offline: Path | None = None,
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
        offline: What `bisect-env fetch` wrote: archives come from there alone. None is
            `BISECT_ENV_OFFLINE`, if that is set, and else the places that the lock names.

    Raises:
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
            prefix = builder.build()
            limit = default_cache_limit() if cache_limit is None else cache_limit
            if limit is not None:
                evict(cache, limit)
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


_NONE, _WANTED = "none, until a second trial", "after the next trial"
"""What the marker of a prefix says of its bytecode where that is not made with the prefix."""
_FAILED: set[str] = set()
"""Prefixes whose modules this process could not compile."""


_COMPILED_LATER = 900.0
"""Seconds for the modules of a prefix that a second trial has used."""


def count_use(prefix: Prefix, *, nice: int = 0) -> Prefix:
    """Note that a trial has used a small prefix, and compile its modules from the second one on.

    Most environments of a certain failure see one trial, which compiles what it imports for itself; see
    `bytecode.SMALL`. A trial that runs meanwhile takes no notice, nor does `is_still`.

    Args:
        prefix: Leased by the caller.
        nice: Niceness of the compilation.

    Returns:
        The prefix, with a note if its modules could not be compiled: trials are merely slower then.
    """
    marker = _bare_marker(prefix.path)
    if marker is None or str(prefix.path) in _FAILED or not os.access(prefix.path, os.W_OK):
        return prefix
    problem = ""
    try:
        with _file_lock(prefix.path.parent, prefix.path.name, _COMPILED_LATER):
            marker = _bare_marker(prefix.path)
            if marker is None:
                return prefix
            if marker["bytecode"] == _NONE:
                marker["bytecode"] = _WANTED
            else:
                problem, snapshot = _compile(prefix.path, str(marker["python"]), _COMPILED_LATER, nice)
                if not integrity.is_unchanged(prefix.path, str(marker["snapshot"]), ignore=(MARKER,)):
                    # The new snapshot would take what a trial has changed for what was made.
                    problem = "files were changed since it was made"
                if not problem:
                    # Trials that began before are told by the old one that nothing else has changed.
                    marker |= {"snapshot": snapshot, "without_bytecode": marker["snapshot"]}
                    del marker["bytecode"]
            if not problem:
                _mark_anew(prefix.path, json.dumps(marker, indent=1) + "\n")
    except (OSError, file_locks().Timeout) as error:
        problem = f"modules cannot be compiled: {error}"
    if not problem:
        return prefix
    # What there is of it by now is as good as any that Python writes by itself.
    _FAILED.add(str(prefix.path))
    return replace(prefix, notes=(*prefix.notes, f"{prefix.path.name[:12]}: {problem}"))


def _mark_anew(place: Path, text: str) -> None:
    """Replace the marker of a prefix whose lock the caller holds."""
    # Not beside it: for a trial that ends just now there would be a file that the prefix did not have.
    folder = place.with_name(f".build-{place.name}-{secrets.token_hex(4)}")
    folder.mkdir()
    try:
        (folder / MARKER).write_text(text, "utf-8")
        (folder / MARKER).chmod(0o644)
        (folder / MARKER).replace(place / MARKER)
    finally:
        integrity.remove_tree(folder)


def lacks_bytecode(prefix: Prefix) -> bool:
    """Return whether `count_use` has something to note or to do."""
    return _bare_marker(prefix.path) is not None and str(prefix.path) not in _FAILED


def _bare_marker(place: Path) -> dict[str, object] | None:
    with contextlib.suppress(OSError, ValueError):
        marker = json.loads((place / MARKER).read_text("utf-8"))
        if isinstance(marker, dict) and "bytecode" in marker:
            return marker
    return None


def _compile(place: Path, version: str, timeout: float, nice: int) -> tuple[str, str]:
    for folder in {Path(path).parent for path in bytecode.bare_modules(place)}:
        folder.chmod(folder.stat().st_mode | stat.S_IWUSR)
    try:
        release = tuple(int(piece) for piece in version.split(".")[:2])
        problem = bytecode.compile_modules(place, release, timeout, nice)
    finally:
        snapshot = integrity.snapshot(place, ignore=(MARKER,), protect=True)
    return problem, snapshot


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
        self.is_bare = False
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
        made = (str(self.final), str(marker.get("snapshot")))
        if made not in UNCHANGED:
            begun = _Look.now()
            if not integrity.is_unchanged(self.final, made[1], ignore=(MARKER,)):
                return None
            UNCHANGED[made] = begun
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

    def build(self) -> Prefix:
        self._refuse_sources()
        started = time.monotonic()
        # conda packages bring their own.
        interpreter = None if self.lock.is_conda else self.interpreters.find(self.lock.python)
        self.folder.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(self.folder)
        with self._exclusive():
            # Another process may have built it while we waited.
            if (prefix := self.existing()) is not None:
                return prefix
            self._mend_archives()
            self._build_commits(interpreter)
            with self._place(interpreter) as place:
                self._fill_and_check(place, interpreter)
                if self.final.exists():
                    # Unusable, or `existing` had found it. Renamed first, so that it is never half a prefix.
                    self.final.rename(self.folder / f".build-{self.lock.content_hash}-{secrets.token_hex(4)}")
                place.rename(self.final)
        # What was spent on a wheel is the price of such an environment, whenever it was built.
        seconds = max(time.monotonic() - started, self.spent)
        return Prefix(self.final, self.final / "bin" / "python", seconds, tuple(self.notes))

    @contextlib.contextmanager
    def _place(self, interpreter: Interpreter | None) -> Iterator[Path]:
        """Where to build this environment: a path that does not exist, and from which to rename it.

        Where uv makes it, builds take turns at the same paths: uv asks the Python of every path that it has
        not met for its facts, which takes as long as installing a small package does. Each path is locked,
        by uv too, which outlives this process where that is killed.
        """
        with contextlib.ExitStack() as held:
            held.callback(_remove_builds, self.folder, self.lock.content_hash)
            if interpreter is None:
                yield self.folder / f".build-{self.lock.content_hash}-{secrets.token_hex(4)}"
                return
            whose = f"{interpreter.path}\0{interpreter.version}\0{os.getuid()}"
            facts = hashlib.sha256(whose.encode()).hexdigest()[:12]
            keys = (f"{facts}.{number}" for number in itertools.count())
            key, self._held = next(
                (key, taken) for key in keys if (taken := _try_lock(_lock_path(self.folder, key))) is not None
            )
            held.callback(os.close, self._held)
            _remove_builds(self.folder, key)  # what a dead builder left
            held.callback(_remove_builds, self.folder, key)
            yield self.folder / f".build-{key}-0"

    def _build_commits(self, interpreter: Interpreter | None) -> None:
        """Put the wheels that are built from commits in the place of those."""
        if not any(package.is_commit for package in self.lock.packages):
            return
        if interpreter is None:
            raise UnbuildableError("commits are not built for conda's Python", transient=False)
        # Here, as what reads a fetched directory and archives is below: most environments need none of it.
        from bisect_env.environments.commits import CommitBuilder

        commits = CommitBuilder(self.cache, self._uv_tool())
        packages = []
        for package in self.lock.packages:
            if package.is_commit:
                built = commits.wheel(CommitSource.of(package, self.lock.limits), interpreter)
                self.spent += built.seconds
                package = built.locked(package)
            packages.append(package)
        self.packages = tuple(packages)

    def _mend_archives(self) -> None:
        """Where the prefix that is to be replaced was written to, its archives share the damage."""
        if not (self.final / MARKER).exists():
            return
        damaged = [name for name, files in damage(self.final, cache=self.cache) if files]
        if damaged:
            self.notes.append(
                f"the environment {self.lock.content_hash[:12]} was changed since it was made "
                f"({', '.join(damaged)}), and is made anew"
            )
            self._drop_archives()

    def _drop_archives(self) -> None:
        with archives(self.cache, exclusive=True, timeout=2 * self.timeout) as alone:
            if not alone:
                raise UnbuildableError("other builds leave no moment to mend the cache", transient=True)
            drop_damaged_archives(self.cache, self.lock.packages)

    def _fill_and_check(self, place: Path, interpreter: Interpreter | None) -> None:
        started = time.monotonic()
        known = self._known(interpreter)
        with self._archives():
            snapshot = self._assemble(place, known)
        if snapshot is None:
            snapshot = self._install_and_check(place, known, interpreter)
        self._mark(place, interpreter, snapshot, time.monotonic() - started)

    def _known(self, interpreter: Interpreter | None) -> dict[str, str]:
        """Keys of the manifests, none where there can be no manifests."""
        # What a source distribution becomes depends on more than the archive.
        if any(package.is_source for package in self.packages):
            return {}
        lock = replace(self.lock, packages=self.packages)
        return install_manifest.keys(lock, self.cache, interpreter)

    def _assemble(self, place: Path, keys: dict[str, str]) -> str | None:
        """Fill a prefix from manifests, if all of them are known; gives its snapshot."""
        found = {
            key: manifest
            for key in keys.values()
            if (manifest := install_manifest.load(self.cache, key)) is not None
        }
        if not keys or len(found) < len(keys):
            return None
        try:
            assembled = install_manifest.assemble(place, self.final, self.cache, found)
        except install_manifest.UnfitError as error:
            # The installer looks into it: it reads what has changed since, and fetches what is gone.
            integrity.remove_tree(place)
            if error.key is not None:
                install_manifest.discard(self.cache, error.key)
            return None
        self._compare(assembled.held)
        return integrity.digest([*assembled.lines, self._write_lock(place)])

    def _install_and_check(self, place: Path, keys: dict[str, str], interpreter: Interpreter | None) -> str:
        for attempt in ("from the cache", "from fresh archives"):
            with self._archives():
                base = self._fill(place, interpreter)
            progress.tell(progress.BuildStep("checking"))
            damaged = self._damaged(place)
            if damaged and self._hold_against_archives(place, damaged):
                damaged = self._damaged(place)
            if not damaged:
                self._compare(validation.held_by(place))
                # Conda's are remembered whatever their size: rattler takes longer than all else.
                self.is_bare = interpreter is not None and bytecode.is_small(place)
                if keys and not self.is_bare:
                    with self._archives():
                        version = interpreter.version if interpreter else self.lock.python
                        progress.tell(progress.BuildStep("compiling"))
                        if problem := bytecode.add(place, self.cache, keys, version, self.timeout):
                            # Trials are what they are without it, and slower.
                            self.notes.append(f"{self.lock.content_hash[:12]}: {problem}")
                        if write_manifests(place, self.final, self.cache, keys, self.packages, base):
                            bytecode.share(place, self.cache, keys)
                self._write_lock(place)
                return integrity.snapshot(place, ignore=(MARKER,), protect=True)
            text = f"files of {', '.join(damaged)} are not what the archive holds, installed {attempt}"
            integrity.remove_tree(place)
            if attempt == "from fresh archives":
                raise UnbuildableError(text, transient=True)
            self.notes.append(f"{text}: fetched again")
            self._drop_archives()
        raise AssertionError("the second attempt ends one way or the other")

    def _damaged(self, place: Path) -> list[str]:
        return [name for name, files in damage(place, cache=self.cache, skip_known=True) if files]

    def _hold_against_archives(self, place: Path, names: Collection[str]) -> bool:
        """Compare wheels that disagree with their own lists with their archives; whether any list was wrong.

        The archive is fetched once more for it: installers keep what was in it, and not the archive.
        """
        wheels = {archive_label(package): package for package in self._wheels() if not package.is_source}
        found = False
        for installed in integrity.packages_in(place):
            package = wheels.get(normal_label(installed.name)) if installed.name in names else None
            if package is None or not installed.readable:
                continue
            try:
                with tempfile.TemporaryDirectory(prefix=".wheel-", dir=self.folder) as folder:
                    archive = self._archive(package, Path(folder))
                    wrong = integrity.note_misstated(self.cache, package.sha256, archive, installed)
            except (UnbuildableError, zipfile.BadZipFile) as error:
                self.notes.append(f"{installed.name} could not be compared with its archive: {error}")
                continue
            if wrong:
                found = True
                self.notes.append(
                    f"{installed.name} states wrong hashes of {wrong} of its own files; they were compared "
                    "with the archive, whose hash is in the lock"
                )
        return found

    def _archive(self, package: LockedPackage, folder: Path) -> Path:
        if self.offline is not None:
            return _bundle(self.offline).path(package, folder)
        from bisect_env.environments.download import obtain

        return obtain(package, folder)

    @contextlib.contextmanager
    def _archives(self) -> Iterator[None]:
        with archives(self.cache, exclusive=False, timeout=self.timeout) as shared:
            if not shared:
                holder = lock_holder(self.cache / ".archives.lock")
                raise UnbuildableError(f"the cache is being emptied ({holder})", transient=True)
            yield

    def _compare(self, held: validation.Held) -> None:
        """What the new prefix says it holds: another environment than the lock's is none."""
        comparison = validation.compare(self.lock, held)
        if comparison.errors:
            raise UnbuildableError(
                f"the prefix is not what was locked: {'; '.join(comparison.errors)}", transient=False
            )
        self.notes += [f"{self.lock.content_hash[:12]}: {text}" for text in comparison.warnings]

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        try:
            # Twice the limit: whoever holds it has one build to finish and cleaning up to do.
            with _file_lock(self.folder, self.lock.content_hash, 2 * self.timeout):
                yield
        except file_locks().Timeout as error:
            holder = lock_holder(_lock_path(self.folder, self.lock.content_hash))
            raise UnbuildableError(
                f"another process has been building this prefix for {2 * self.timeout:.0f} s ({holder})",
                transient=True,
            ) from error

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

    def _fill(self, place: Path, interpreter: Interpreter | None) -> Contents:
        """Let the installers fill a prefix; gives what was in it before the first package."""
        if interpreter is None:
            joined = place.with_name(f"{place.name}-joined")
            try:
                archives = self._conda_archives(joined)
                conda_process.fill(place, self.final, self.lock, self.cache, self.timeout, archives=archives)
            finally:
                integrity.remove_tree(joined)
            if any(not package.is_conda for package in self.lock.packages):
                self._install(place)
                move(place, self.final)
            return Contents(contents(place).files & CONDA_BASE, frozenset())
        make_empty(self._uv_tool(), place, interpreter, self.timeout)
        empty = contents(place)
        self._install(place)
        return empty

    def _write_lock(self, place: Path) -> str:
        """Put the lock into a prefix; gives its line of the snapshot."""
        path = place / "conda-lock.yml"
        path.write_text(self.lock.text, "utf-8")
        path.chmod(0o444)
        known = path.stat()
        return f"/{path.name}\0{known.st_size} {known.st_mtime_ns}\n"

    def _mark(self, place: Path, interpreter: Interpreter | None, snapshot: str, seconds: float) -> None:
        """Write last what makes it a prefix, and what it holds: what differs later was not made by us."""
        marker = {
            "format": _FORMAT,
            "content_hash": self.lock.content_hash,
            "python": interpreter.version if interpreter else self.lock.python,
            "interpreter": str(interpreter.path if interpreter else self.final / "bin" / "python"),
            "packages": len(self.lock.packages),
            "seconds": round(seconds, 3),
            "snapshot": snapshot,
        }
        if self.is_bare:
            marker["bytecode"] = _NONE
        (place / MARKER).write_text(json.dumps(marker, indent=1) + "\n", "utf-8")

    def _conda_archives(self, joined: Path) -> dict[str, Path]:
        if self.offline is None:
            return {}
        bundle = _bundle(self.offline)
        packages = [package for package in self.lock.packages if package.is_conda]
        return {p.url: bundle.path(p, joined) for p in packages}

    def _wheels(self) -> tuple[LockedPackage, ...]:
        """Return what is not conda's, with the addresses that the archives are to be taken from."""
        packages = tuple(package for package in self.packages if not package.is_conda)
        if self.offline is None:
            return packages
        bundle = _bundle(self.offline)
        return tuple(bundle.here(p, self.lock.python) for p in packages)

    def _uv_tool(self, variables: Mapping[str, str] | None = None) -> Uv:
        if self.offline is None:
            return Uv(self.cache, holding=self._held)
        environ = {**offline_environment(self.offline), **(variables or {})}
        return Uv(self.cache, environ=environ, holding=self._held)

    def _install(self, place: Path) -> None:
        with self._whole() as variables:
            step = "downloading" if self.offline is None else "unpacking"
            uv = self._uv_tool(variables)
            install(uv, place, self._wheels(), self.timeout, date=build_date(self.lock), step=step)

    @contextlib.contextmanager
    def _whole(self) -> Iterator[dict[str, str]]:
        """Let uv have archives that lie in pieces, by the variables that are given."""
        if self.offline is None:
            yield {}
            return
        from bisect_env.environments.bundle import piece_address, served_pieces
        from bisect_env.environments.download import archive_name

        bundle = _bundle(self.offline)
        wheels = [package for package in self.lock.packages if not (package.is_conda or package.is_source)]
        there = {piece_address(p.sha256, archive_name(p)): bundle.pieces(p) for p in wheels}
        cut = {url: paths for url, paths in there.items() if paths and not url.endswith(f"/{paths[0].name}")}
        if not cut:
            yield {}
            return
        with served_pieces(cut) as variables:
            yield variables


def _bundle(root: Path) -> Bundle:
    from bisect_env.environments.bundle import Bundle

    return Bundle(root)


def _lock_path(folder: Path, key: str) -> Path:
    """Return the lock of an environment's hash, or of a place where they are built."""
    return folder / f".{key}.lock"


def _file_lock(folder: Path, key: str, timeout: float) -> contextlib.AbstractContextManager[object]:
    """A `FileLock` on `_lock_path` that no other user may open, since who can open it can keep it locked."""
    lock: contextlib.AbstractContextManager[object]
    lock = file_locks().FileLock(_lock_path(folder, key), timeout=timeout, mode=0o600)
    return lock


def _try_lock(path: Path) -> int | None:
    """The open file, locked as by `FileLock` until all who inherit it have closed it; None if it is taken."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except OSError:
        os.close(fd)
        raise
    return fd


def _remove_leftovers(folder: Path) -> None:
    """Remove what dead builders left; those alive hold their lock."""
    for key in {path.name.split("-")[1] for path in folder.glob(".build-*-*")}:
        with (
            contextlib.suppress(file_locks().Timeout),
            _file_lock(folder, key, 0),
        ):
            _remove_builds(folder, key)


def _remove_builds(folder: Path, key: str) -> None:
    """Remove the unfinished builds of one key; its file lock is held by the caller."""
    for path in folder.glob(f".build-{key}-*"):
        integrity.remove_tree(path)
