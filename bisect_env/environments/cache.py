"""Manages the cache of this host: locks content that is in use, measures the size, removes old content."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shlex
import shutil
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bisect_env.environments.integrity import (
    MARKER,
    archive_is_unchanged,
    forget_archive,
    is_unchanged,
    look,
    note_change,
    state_of,
)
from bisect_env.environments.lock import UnbuildableError
from bisect_env.errors import InfrastructureError
from bisect_env.temporary import lock_holder, remove_tree, write_atomically

# --------------------------------------------------------------------------------------------------
# File locks for prefixes and archives in use. The kernel frees them when the process ends.

_POLL = 0.05  # seconds
_NO_WAIT = 0.0
LEASE_PATIENCE = 60.0
"""Time, in seconds, to wait for a lease. Removing a prefix is a rename, so the wait is normally short."""
_CANNOT_WRITE = (errno.EROFS, errno.EACCES, errno.EPERM)


class Lease:
    """A shared lock that protects a prefix (an installed environment) from removal until `release`.

    The end of the process releases the lock, too.

    Args:
        fd: File descriptor that holds the lock. None if the cache is read-only and has no lock file for the
            prefix; the prefix is then not protected.
    """

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def release(self) -> None:
        """Release the lock. Further calls have no effect."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __del__(self) -> None:
        # Otherwise a caller that forgets `release` would protect the prefix until its worker ends.
        self.release()


def _use_path(place: Path) -> Path:
    """Return the path of the file that is locked while a prefix, wheel or mirror is in use.

    The modification time of this file is the time of the last use. The file is never removed, so that all
    processes lock the same one.
    """
    return place.with_name(f".{place.name}.use")


def refuse_noexec(cache: Path) -> None:
    """Raise an error if nothing can be executed from the file system of the cache.

    Compiled modules cannot be loaded from it. The first release of a package that has one would look bad.

    Raises:
        InfrastructureError: It is mounted with the option `noexec`.
    """
    if is_noexec(cache):
        raise InfrastructureError(
            f"the cache {cache} is on a file system that is mounted noexec: no compiled module can be loaded "
            "from it",
            remedy="name a directory on another file system with BISECT_ENV_CACHE",
        )


def is_noexec(place: Path) -> bool:
    """Return whether the file system on which a directory is, or would be made, is mounted `noexec`."""
    existing = next(folder for folder in (place, *place.parents) if folder.exists())
    return bool(os.statvfs(existing).f_flag & os.ST_NOEXEC)


def hold(place: Path) -> Lease:
    """Protect a prefix, wheel or mirror from removal until the returned lease is released.

    The time of its last use is set to now. The directory `place` need not exist yet. Waits while another
    process removes it.

    Raises:
        InfrastructureError: Another process has held an exclusive lock for 60 s.
        OSError: The cache cannot be used.
    """
    path = _use_path(place)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:
            raise
        # The cache belongs to another user or is read-only. A file opened for reading can be locked as well,
        # which prevents its owner from removing the prefix.
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return Lease(None)
    if not _locked(fd, fcntl.LOCK_SH, time.monotonic() + LEASE_PATIENCE):
        os.close(fd)
        raise InfrastructureError(
            f"{path} has been locked for {LEASE_PATIENCE:.0f} s by {lock_holder(path)}",
            remedy="end that process, or keep others from reading the cache "
            f"(chmod 700 {shlex.quote(str(path.parent))})",
        )
    # In a cache of another user, the time of the last use stays as its owner left it.
    with contextlib.suppress(PermissionError):
        os.utime(fd)
    return Lease(fd)


@contextlib.contextmanager
def taking_away(place: Path) -> Iterator[bool]:
    """Reserve a prefix, wheel or mirror for removal in a `with` block. Yield False if it is in use.

    While it is reserved, `hold` waits in other processes.

    Raises:
        OSError: The cache cannot be used.
    """
    with lock_file(_use_path(place), exclusive=True, timeout=_NO_WAIT, mode=0o644) as fd:
        yield fd is not None


def last_use(prefix: Path) -> float:
    """Return the Unix time at which a prefix was last used, or 0.0 if the prefix is missing or unfinished.

    The time is that of the last `hold`, or of the build if `hold` was never called.
    """
    if not (prefix / MARKER).exists():
        return 0.0
    for path in (_use_path(prefix), prefix):
        with contextlib.suppress(OSError):
            return path.stat().st_mtime
    return 0.0


@contextlib.contextmanager
def lock_file(
    path: Path,
    *,
    exclusive: bool,
    timeout: float,
    mode: int = stat.S_IRUSR | stat.S_IWUSR,
    on_wait: Callable[[], None] | None = None,
) -> Iterator[int | None]:
    """Lock a file inside the `with` block, and yield its descriptor, or None after a timeout.

    Args:
        path: The lock file, created if it does not exist.
        exclusive: Whether to take an exclusive lock; a shared one otherwise.
        timeout: Time to wait for the lock, in seconds.
        mode: Permissions of a new file. By default only this user may open the file, because anybody who can
            open a file can keep it locked.
        on_wait: Called once if another process holds the lock, before waiting for that process.

    Yields:
        The file descriptor that holds the lock; None if the lock was not obtained in time. A child process
        that inherits the descriptor holds the lock too.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    deadline = time.monotonic() + timeout
    try:
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        yield fd if _locked(fd, kind, deadline, on_wait) else None
    finally:
        os.close(fd)


def _locked(fd: int, kind: int, deadline: float, on_wait: Callable[[], None] | None = None) -> bool:
    """Lock an open file, and return whether this succeeded.

    Args:
        fd: The file.
        kind: `fcntl.LOCK_SH` or `fcntl.LOCK_EX`.
        deadline: Monotonic time at which to give up. The lock is tried at least once.
        on_wait: Called once before waiting.
    """
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
            return True
        if time.monotonic() >= deadline:
            return False
        if on_wait is not None:
            on_wait()
            on_wait = None
        time.sleep(_POLL)


@contextlib.contextmanager
def lock_or_fail(
    path: Path,
    why: str,
    *,
    timeout: float,
    exclusive: bool = True,
    on_wait: Callable[[], None] | None = None,
) -> Iterator[int]:
    """Lock a file inside the `with` block like `lock_file`, but raise an error after a timeout.

    Args:
        path: The lock file.
        why: Start of the error message.
        timeout: Time to wait for the lock, in seconds.
        exclusive: Whether to take an exclusive lock; a shared one otherwise.
        on_wait: Called once if another process holds the lock, before waiting for that process.

    Yields:
        The file descriptor that holds the lock.

    Raises:
        UnbuildableError: Another process holds the lock; the error is marked as transient.
    """
    with lock_file(path, exclusive=exclusive, timeout=timeout, on_wait=on_wait) as fd:
        if fd is None:
            raise UnbuildableError(f"{why} ({lock_holder(path)})", transient=True)
        yield fd


def archives_lock(cache: Path) -> Path:
    """Return the path of the lock file that protects the unpacked archives in the cache.

    Processes that install take a shared lock, and processes that remove archives take an exclusive one.
    """
    cache.mkdir(parents=True, exist_ok=True)
    return cache / ".archives.lock"


def lock_path(place: Path) -> Path:
    """Return the path of the file that a process locks while it builds a prefix or wheel in `place`."""
    return place.with_name(f".{place.name}.lock")


# --------------------------------------------------------------------------------------------------
# The size of the cache, and the removal of prefixes and archives.

_HASH_LENGTH = 64
_PREFIXES = "prefixes"
_COSTLY = ("commits", "git")
"""Directories whose content is slow to recreate (wheels built from commits, and repository mirrors)."""

_DAY = 86400.0
MUCH = 2_000_000_000
"""Minimum growth of the cache in one command, in bytes, that is reported to the user."""

Inodes = dict[tuple[int, int], tuple[int, bool]]
"""Maps (device, inode) to the bytes on disk and whether the file has only one hard link."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A prefix (an installed environment) in the cache, with its size and last use.

    Attributes:
        content_hash: Content hash of its lock.
        path: Directory of the prefix.
        python: Version of its Python.
        packages: Number of packages.
        size: Bytes on disk, including files shared with other directories.
        own: Bytes on disk of files that nothing else shares. Removing the prefix frees as much.
        shared: Bytes on disk of files shared with other prefixes.
        last_used: Unix time of the last use.
    """

    content_hash: str
    path: Path
    python: str
    packages: int
    size: int
    own: int
    last_used: float
    shared: int = 0


@dataclass(frozen=True, slots=True)
class Pruned:
    """The result of pruning the cache: what was removed, and how many bytes that freed.

    Attributes:
        prefixes: Content hashes of the removed prefixes.
        archives: Number of removed archives.
        freed: Bytes on disk that were freed.
        left: Bytes on disk that the cache still takes.
        in_use: Content hashes of prefixes that were kept because they are in use.
    """

    prefixes: tuple[str, ...]
    archives: int
    freed: int
    left: int
    in_use: tuple[str, ...] = ()


def entries(cache: Path) -> list[Entry]:
    """Return the finished prefixes in a cache, least recently used first."""
    found = []
    bytes_of: Inodes = {}
    files = {path: _inodes(path, bytes_of) for path in _prefixes(cache)}
    users = Counter(inode for inodes in files.values() for inode in inodes)

    def total(inodes: Iterable[tuple[int, int]]) -> int:
        return sum(bytes_of[inode][0] for inode in inodes)

    for path, inodes in files.items():
        try:
            marker = json.loads((path / MARKER).read_text("utf-8"))
        except (OSError, ValueError):
            continue  # another process is removing it
        found.append(
            Entry(
                path.name,
                path,
                str(marker.get("python", "")),
                int(marker.get("packages", 0)),
                total(inodes),
                total(inode for inode in inodes if bytes_of[inode][1]),
                last_use(path),
                total(inode for inode in inodes if users[inode] > 1),
            )
        )
    return sorted(found, key=lambda entry: (entry.last_used, entry.content_hash))


def keep_within(cache: Path, limit: int, new: Path) -> None:
    """Remove the least recently used content if a cache has become larger than `limit` bytes.

    Measuring the cache is slow. It is measured once a day, and whenever the last size plus the sizes of the
    prefixes built since exceeds the limit.

    Args:
        cache: The cache directory of bisect-env.
        limit: Maximum size in bytes.
        new: The prefix that was just built.
    """
    note = cache / "measured.json"
    total, at = limit + 1, 0.0
    # Without a valid note, `total` exceeds the limit, so the cache is measured now.
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads(note.read_text("utf-8"))
        total, at = int(known["bytes"]), float(known["at"])
        inodes: Inodes = {}
        _inodes(new, inodes)
        # Where the file system has no hard links, the archives have copies of the files.
        total += sum(2 * size if is_own else size for size, is_own in inodes.values())
    if total > limit or not 0 <= time.time() - at < _DAY:
        total, at = prune(cache, limit=limit).left, time.time()
    write_atomically(note, json.dumps({"bytes": total, "at": at}))


def free_bytes(cache: Path) -> int:
    """Return the free bytes on the disk of a cache directory.

    The directory need not exist yet.
    """
    return shutil.disk_usage(next(place for place in (cache, *cache.parents) if place.exists())).free


def growth(cache: Path, free: int) -> str:
    """Return a message for the user if a command used up 2 GB or more of the free space on the cache's disk.

    Return "" if it used less.

    Args:
        cache: The cache directory of bisect-env.
        free: Result of `free_bytes` at the start of the command.
    """
    lost = free - free_bytes(cache)
    if lost < MUCH:
        return ""
    return (
        f"the cache {cache} takes {usage(cache) / 1e9:.1f} GB now, and its disk has {lost / 1e9:.1f} GB less "
        "free than when this began; `bisect-env env prune --size 5GB` takes away what was used longest ago"
    )


def prune(
    cache: Path,
    *,
    limit: int | None = None,
    unused_since: float | None = None,
    dry_run: bool = False,
) -> Pruned:
    """Remove prefixes and archives that are not in use.

    First the archives are removed that no prefix shares, oldest first. Then the least recently used prefix is
    removed and the archives that only it shared, and so on. Prefixes whose build was killed count as unused.

    Args:
        cache: The cache directory of bisect-env.
        limit: Stop when the cache takes at most this many bytes; None to remove everything that
            `unused_since` allows.
        unused_since: Unix time; keep prefixes and archives used later. None for no such restriction.
        dry_run: Remove nothing; only report what would be removed.
    """
    if not cache.is_dir():
        return Pruned((), 0, 0, 0)
    if not dry_run:
        for left_behind in (cache / "trash").glob("*"):  # by a process that was killed
            remove_tree(left_behind)
    inodes: Inodes = {}
    folders = (*_prefixes(cache), *_archive_folders(cache))
    owners = {folder: _inodes(folder, inodes) for folder in folders}
    _inodes(cache, inodes, passed_over=frozenset(map(str, (*folders, cache / "trash"))))
    before = left = sum(size for size, _ in inodes.values())
    if limit is not None and left <= limit:
        return Pruned((), 0, 0, left)
    shares = Counter(inode for owned in owners.values() for inode in owned)
    gone: list[str] = []
    in_use: list[Path] = []
    aside: list[Path] = []
    dropped = 0

    def drop(folder: Path, used: float) -> bool:
        """Remove a directory and return True, or return False if it is in use or was used too recently."""
        nonlocal left
        if unused_since is not None and used > unused_since:
            return False
        with _unused(folder) as free:
            if not free:
                in_use.append(folder)
                return False
            if not dry_run:
                if state := state_of(folder):
                    look(folder, state)  # note a change before the prefix is gone
                aside.extend(_put_aside(cache, folder))
        for inode in owners.pop(folder):
            shares[inode] -= 1
            if not shares[inode]:
                left -= inodes[inode][0]
        return True

    def drop_orphans() -> None:
        nonlocal dropped
        # Archives that are not in `owners` are new; another process is about to use them.
        known = [folder for folder in _archive_folders(cache) if folder in owners]
        orphans = [f for f in known if all(shares[inode] == 1 for inode in owners[f])]
        for folder in sorted(orphans, key=lambda one: (one.parent.name in _COSTLY, _age(one))):
            if limit is not None and left <= limit:
                return
            dropped += drop(folder, _age(folder))

    with lock_file(archives_lock(cache), exclusive=True, timeout=_NO_WAIT) as alone:
        # Archives are kept while another process installs from them.
        if alone is not None:
            drop_orphans()
        for used, path in sorted((last_use(path), path) for path in _prefixes(cache)):
            if limit is not None and left <= limit:
                break
            if path in owners and drop(path, used):
                gone.append(path.name)
                if alone is not None:
                    drop_orphans()
    # Deleting takes long, so it begins when no other process waits for a lock of this one.
    for folder in aside:
        remove_tree(folder)
    kept = tuple(path.name for path in in_use if path.parent.name == _PREFIXES)
    return Pruned(tuple(gone), dropped, before - left, left, kept)


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of checking a prefix or an archive for changes.

    Attributes:
        name: First 12 characters of the prefix's content hash, or path of the archive in the cache.
        changed: Whether files were changed, added or removed since the installation.
        removed: Whether the prefix or archive was removed.
    """

    name: str
    changed: bool
    removed: bool = False


def verify(cache: Path, only: Sequence[str] = (), *, repair: bool = False) -> Iterator[Checked]:
    """Check whether prefixes and archives are unchanged, and yield a result for each.

    Args:
        cache: The cache directory of bisect-env.
        only: Check only prefixes whose content hash begins with one of these texts. If empty, check all
            prefixes and archives.
        repair: Remove changed prefixes and archives, unless they are in use.
    """
    for path in _prefixes(cache):
        if not (path / MARKER).exists() or (only and not path.name.startswith(tuple(only))):
            continue
        changed = not is_unchanged(path, state_of(path))
        removed = False
        if changed and repair:
            with taking_away(path) as removed:
                if removed:
                    note_change(path)
                    take_away(cache, path)
        yield Checked(path.name[:12], changed, removed)
    for folder in () if only else _archive_folders(cache):
        changed = not archive_is_unchanged(folder, cache)
        removed = False
        if changed and repair:
            with lock_file(archives_lock(cache), exclusive=True, timeout=_NO_WAIT) as alone:
                removed = alone is not None
                if removed:
                    take_away(cache, folder)
        yield Checked(str(folder.relative_to(cache)), changed, removed)


def usage(cache: Path) -> int:
    """Return the bytes on disk of everything in the cache. Shared files count once."""
    inodes: Inodes = {}
    _inodes(cache, inodes)
    return sum(size for size, _ in inodes.values())


def _prefixes(cache: Path) -> list[Path]:
    """Return the directories of prefixes, including those that are being built or whose build was killed."""
    folder = cache / _PREFIXES
    return [path for path in sorted(folder.glob("*")) if len(path.name) == _HASH_LENGTH]


def _archive_folders(cache: Path) -> list[Path]:
    """Return the directories of unpacked archives, wheels built from commits, and repository mirrors."""
    patterns = ("uv*/archive-v*/*", "conda/pkgs/*", "commits/*", "git/*.git")
    return [p for pattern in patterns for p in sorted(cache.glob(pattern)) if p.is_dir()]


def take_away(cache: Path, folder: Path) -> None:
    """Remove a prefix or an archive atomically: rename it first, then delete its files.

    Args:
        cache: The cache directory of bisect-env.
        folder: Directory to remove; need not exist.
    """
    for aside in _put_aside(cache, folder):
        remove_tree(aside)


def _put_aside(cache: Path, folder: Path) -> Iterator[Path]:
    """Rename a prefix or an archive, and yield its new path unless another process has removed it."""
    if not folder.exists():
        return
    trash = cache / "trash"
    trash.mkdir(exist_ok=True)
    aside = trash / f"{folder.name}-{secrets.token_hex(4)}"
    with contextlib.suppress(OSError):
        # Moving a directory to another parent needs write permission for the directory itself.
        folder.chmod(stat.S_IRWXU)
    forget_archive(folder, cache)
    with contextlib.suppress(FileNotFoundError):  # another process has just removed it
        folder.rename(aside)
        yield aside


@contextlib.contextmanager
def _unused(folder: Path) -> Iterator[bool]:
    """Reserve a cached directory for removal in a `with` block. Yield False if it is in use.

    Archives of uv and conda need no lock of their own, because the caller holds `archives_lock`.
    """
    if folder.parent.name not in (_PREFIXES, *_COSTLY):
        yield True
        return
    with taking_away(folder) as free:
        if folder.parent.name != _PREFIXES or (folder / MARKER).exists():
            yield free
            return
        # An installer whose command was killed may still be writing; it has inherited the lock of the build.
        with lock_file(lock_path(folder), exclusive=True, timeout=_NO_WAIT) as built:
            yield free and built is not None


def _age(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0  # it was just removed


def _inodes(path: Path, into: Inodes, *, passed_over: frozenset[str] = frozenset()) -> set[tuple[int, int]]:
    """Return the inodes of `path` and of everything below it, and add their sizes to `into`.

    Paths in `passed_over` are skipped, with everything below them.
    """
    found = set()
    waiting = [os.fspath(path)]
    while waiting:
        one = waiting.pop()
        with contextlib.suppress(OSError):  # removed meanwhile, or a directory of another user
            known = os.lstat(one)
            inode = (known.st_dev, known.st_ino)
            is_folder = stat.S_ISDIR(known.st_mode)
            into[inode] = (known.st_blocks * 512, is_folder or known.st_nlink == 1)
            found.add(inode)
            if is_folder:
                with os.scandir(one) as listing:
                    waiting += [entry.path for entry in listing if entry.path not in passed_over]
    return found
