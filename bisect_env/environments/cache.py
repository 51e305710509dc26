"""Manages the cache of this host: what it holds, who uses it, and what can be removed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib.metadata
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

from packaging.utils import canonicalize_name

from bisect_env.environments.integrity import (
    MARKER,
    archive_is_unchanged,
    forget_archive,
    is_unchanged,
    look,
    note_change,
    remove_tree,
    state_of,
)
from bisect_env.environments.lock import Lock, UnbuildableError
from bisect_env.errors import InfrastructureError
from bisect_env.temporary import lock_holder, replacing

# --------------------------------------------------------------------------------------------------
# Who uses a prefix, and who installs from or empties the archives: file locks that end with a process.

_POLL = 0.05  # seconds
LEASE_PATIENCE = 60.0
"""Seconds to wait for a lease: taking a prefix away, which is a rename, takes none."""
_CANNOT_WRITE = (errno.EROFS, errno.EACCES, errno.EPERM)


class Lease:
    """A lease that protects a prefix from removal until `release` or the end of the process.

    Args:
        fd: An open file with a shared lock on it; None where the cache cannot be written and has no such
            file for this prefix, which its owner then may take away.
    """

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def release(self) -> None:
        """Give it back; may be called twice."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __del__(self) -> None:
        # A caller that forgets it must not keep the prefix for the life of a long-lived worker.
        self.release()


def use_path(folder: Path, content_hash: str) -> Path:
    """Return the file whose lock shows that a prefix is in use, and whose time shows its last use."""
    return folder / f".{content_hash}.use"


def hold(folder: Path, content_hash: str) -> Lease:
    """Lease a prefix, existing or not, and record the present time as its last use.

    Waits only while somebody takes that prefix away.

    Raises:
        InfrastructureError: Somebody keeps it locked: who may read the file may do so.
        OSError: The cache cannot be used.
    """
    path = use_path(folder, content_hash)
    deadline = time.monotonic() + LEASE_PATIENCE
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if error.errno not in _CANNOT_WRITE:
                raise
            # Somebody else's cache, or a read-only one. Who may read the file may lock it, too: its owner
            # then does not take the prefix away beneath us.
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return Lease(None)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            if time.monotonic() >= deadline:
                raise InfrastructureError(
                    f"{path} has been locked for {LEASE_PATIENCE:.0f} s by {lock_holder(path)}",
                    remedy="end that process, or keep others from reading the cache "
                    f"(chmod 700 {shlex.quote(str(folder))})",
                ) from None
            time.sleep(_POLL)
            continue
        if _is_still(path, fd):
            with contextlib.suppress(PermissionError):
                os.utime(fd)
            return Lease(fd)
        os.close(fd)  # another process removed the prefix and this file before we had our lock


@contextlib.contextmanager
def taking_away(folder: Path, content_hash: str) -> Iterator[bool]:
    """Keep others from using a prefix inside the block; yield false if one is using it.

    Raises:
        OSError: The cache cannot be used.
    """
    path = use_path(folder, content_hash)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        if not _is_still(path, fd):
            yield False  # another one has just taken it away
            return
        yield True
        if not (folder / content_hash).exists():
            path.unlink(missing_ok=True)
    finally:
        os.close(fd)


def last_use(folder: Path, content_hash: str) -> float:
    """Return the Unix time of the last `hold`, or of the building of the prefix."""
    for path in (use_path(folder, content_hash), folder / content_hash):
        with contextlib.suppress(OSError):
            return path.stat().st_mtime
    return 0.0


@contextlib.contextmanager
def archives(cache: Path, *, exclusive: bool, timeout: float) -> Iterator[bool]:
    """Lock the cached archives: shared to install from them, exclusive to remove some.

    An archive that vanished under an installer would look like a package that cannot be installed.

    Args:
        cache: Our cache directory.
        exclusive: Which of the two.
        timeout: Seconds to wait.

    Yields:
        Whether it was had in time.
    """
    with lock_file(archives_lock(cache), exclusive=exclusive, timeout=timeout) as fd:
        yield fd is not None


@contextlib.contextmanager
def lock_file(path: Path, *, exclusive: bool, timeout: float) -> Iterator[int | None]:
    """Lock a file that no other user may open, since who can open it can keep it locked.

    Args:
        path: The file, which is made if need be.
        exclusive: Whether nobody else may hold it at the same time.
        timeout: Seconds to wait.

    Yields:
        Its descriptor, None if it was not had in time. A process that inherits it holds the lock, too.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + timeout
    kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    try:
        while True:
            try:
                fcntl.flock(fd, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    yield None
                    return
                time.sleep(_POLL)
            else:
                yield fd
                return
    finally:
        os.close(fd)


@contextlib.contextmanager
def lock_or_fail(path: Path, why: str, *, timeout: float, exclusive: bool = True) -> Iterator[int]:
    """Lock a file as `lock_file` does.

    Args:
        path: The file.
        why: What is said if another process has it.
        timeout: Seconds to wait.
        exclusive: Whether nobody else may hold it at the same time.

    Raises:
        UnbuildableError: Another process has it, which says nothing about an environment.
    """
    with lock_file(path, exclusive=exclusive, timeout=timeout) as fd:
        if fd is None:
            raise UnbuildableError(f"{why} ({lock_holder(path)})", transient=True)
        yield fd


def archives_lock(cache: Path) -> Path:
    """Return the file that installers share, and that only one locks who removes archives."""
    cache.mkdir(parents=True, exist_ok=True)
    return cache / ".archives.lock"


def lock_path(folder: Path, key: str) -> Path:
    """Return the file that builders of an environment lock."""
    return folder / f".{key}.lock"


def _is_still(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False


# --------------------------------------------------------------------------------------------------
# The cache of this host: prefixes, the archives they were made from, and what may go when room is short.

_HASH_LENGTH = 64
_DEAR = ("commits", "git")
"""Folders of what takes longest to be had again: wheels that were built from commits, and mirrors."""
_NO_WAIT = 0.0

_DAY = 86400.0
MUCH = 2_000_000_000
"""Bytes by which a cache may grow in one command without a word."""

Inodes = dict[tuple[int, int], tuple[int, bool]]
"""(device, inode) to bytes on disk, and whether it has one name alone."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A prefix in the cache.

    Attributes:
        content_hash: Of its lock.
        path: Its directory.
        python: Version of its interpreter.
        packages: How many.
        size: Bytes on disk, with what it shares.
        own: Bytes on disk that no other directory of the cache shares: what its removal frees at once.
        shared: Bytes on disk that other environments have, too; the rest goes with it and its archives.
        last_used: Unix time.
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
    """The entries that were removed.

    Attributes:
        prefixes: Content hashes.
        archives: Number of archives.
        freed: Bytes on disk.
        left: Bytes on disk that the cache takes now.
        in_use: Prefixes that would have gone, and are in use.
    """

    prefixes: tuple[str, ...]
    archives: int
    freed: int
    left: int
    in_use: tuple[str, ...] = ()


def entries(cache: Path) -> list[Entry]:
    """Return the prefixes of a cache, used longest ago first."""
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
            continue  # somebody is taking it away
        found.append(
            Entry(
                path.name,
                path,
                str(marker.get("python", "")),
                int(marker.get("packages", 0)),
                total(inodes),
                total(inode for inode in inodes if bytes_of[inode][1]),
                last_use(path.parent, path.name),
                total(inode for inode in inodes if users[inode] > 1),
            )
        )
    return sorted(found, key=lambda entry: (entry.last_used, entry.content_hash))


def keep_within(cache: Path, limit: int, new: Path) -> None:
    """Prune a cache that may have grown beyond a limit.

    It is measured once a day, and when it would be too large if no new environment shared a file with others.

    Args:
        cache: Our cache directory.
        limit: Bytes on disk.
        new: The environment that was just built.
    """
    note = cache / "measured.json"
    total, at = limit + 1, 0.0
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads(note.read_text("utf-8"))
        total, at = int(known["bytes"]) + _added_by(new), float(known["at"])
    if total > limit or not 0 <= time.time() - at < _DAY:
        total, at = prune(cache, limit=limit).left, time.time()
    with replacing(note) as beside:
        beside.write_text(json.dumps({"bytes": total, "at": at}), "utf-8")


def _added_by(new: Path) -> int:
    """Return how many bytes a new environment may have added, with the archives that it was made from."""
    inodes: Inodes = {}
    _inodes(new, inodes)
    # Where the file system has no hard links, the archives have copies of the files.
    return sum(2 * size if is_own else size for size, is_own in inodes.values())


def free_bytes(cache: Path) -> int:
    """Return how much the disk of a cache, which may not be there yet, has free."""
    return shutil.disk_usage(next(place for place in (cache, *cache.parents) if place.exists())).free


def growth(cache: Path, free: int) -> str:
    """Return a message about a cache that has grown during a command, "" if it has hardly grown.

    Args:
        cache: Our cache directory.
        free: What `free_bytes` said when the command began.
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
    on_removed: Callable[[str], None] = lambda _name: None,
) -> Pruned:
    """Take away prefixes and archives that are not in use.

    First archives that no prefix shares, oldest first, then the prefix used longest ago, and again.

    Args:
        cache: Our cache directory.
        limit: Bytes on disk to come down to; None takes all that `unused_since` allows.
        unused_since: Unix time; prefixes used later stay. None spares none for that reason.
        dry_run: Say only what would go.
        on_removed: Called with the content hash of each removed prefix.
    """
    if not cache.is_dir():
        return Pruned((), 0, 0, 0)
    remove_tree(cache / "trash")  # what somebody who was killed had begun to take away
    if not dry_run:
        _remove_unfinished(cache)
    inodes: Inodes = {}
    folders = (*_prefixes(cache), *_archive_folders(cache))
    owners = {folder: _inodes(folder, inodes) for folder in folders}
    _inodes(cache, inodes, passed_over=frozenset(map(str, folders)))
    before = left = sum(size for size, _ in inodes.values())
    if limit is not None and left <= limit:
        return Pruned((), 0, 0, left)
    shares = Counter(inode for owned in owners.values() for inode in owned)
    gone: list[str] = []
    in_use: list[str] = []
    dropped = 0

    def forget(folder: Path) -> None:
        nonlocal left
        for inode in owners.pop(folder):
            shares[inode] -= 1
            if not shares[inode]:
                left -= inodes[inode][0]

    def drop_orphans() -> None:
        nonlocal dropped
        # Archives that came after we had looked belong to somebody who is about to use them.
        known = [folder for folder in _archive_folders(cache) if folder in owners]
        orphans = [f for f in known if all(shares[inode] == 1 for inode in owners[f])]
        for folder in sorted(orphans, key=lambda one: (one.parent.name in _DEAR, _age(one))):
            if limit is not None and left <= limit:
                return
            if unused_since is not None and _age(folder) > unused_since:
                continue
            with _unused(folder) as free:
                if not free:
                    continue
                if not dry_run:
                    take_away(cache, folder)
            forget(folder)
            dropped += 1

    with archives(cache, exclusive=True, timeout=_NO_WAIT) as alone:
        # While others install from the archives, they stay.
        if alone:
            drop_orphans()
        for used, path in sorted((last_use(path.parent, path.name), path) for path in _prefixes(cache)):
            if limit is not None and left <= limit:
                break
            if path not in owners or (unused_since is not None and used > unused_since):
                continue
            with taking_away(path.parent, path.name) as free:
                if not free:
                    in_use.append(path.name)
                    continue
                if not dry_run:
                    look(path, state_of(path))  # a change that nobody has seen yet is noted
                    take_away(cache, path)
            forget(path)
            gone.append(path.name)
            on_removed(path.name)
            if alone:
                drop_orphans()
    return Pruned(tuple(gone), dropped, before - left, left, tuple(in_use))


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of looking at a prefix or an archive.

    Attributes:
        name: Beginning of the content hash, or the archive's directory.
        changed: Whether files were changed, added or removed since it was made.
        removed: Whether it was taken away.
    """

    name: str
    changed: bool
    removed: bool = False


def verify(cache: Path, only: Sequence[str] = (), *, repair: bool = False) -> Iterator[Checked]:
    """Check whether prefixes and archives are unchanged.

    Args:
        cache: Our cache directory.
        only: Beginnings of content hashes; empty looks at every prefix and every archive.
        repair: Take away those that changed, unless they are in use.
    """
    for path in _prefixes(cache):
        if only and not path.name.startswith(tuple(only)):
            continue
        changed = not is_unchanged(path, state_of(path), ignore=(MARKER,))
        removed = False
        if changed and repair:
            with taking_away(path.parent, path.name) as removed:
                if removed:
                    note_change(path)
                    take_away(cache, path)
        yield Checked(path.name[:12], changed, removed)
    for folder in () if only else _archive_folders(cache):
        changed = not archive_is_unchanged(folder, cache)
        removed = False
        if changed and repair:
            with archives(cache, exclusive=True, timeout=_NO_WAIT) as removed:
                if removed:
                    take_away(cache, folder)
        yield Checked(str(folder.relative_to(cache)), changed, removed)


def usage(cache: Path) -> int:
    """Return the bytes on disk of everything in the cache; shared files count once."""
    inodes: Inodes = {}
    _inodes(cache, inodes)
    return sum(size for size, _ in inodes.values())


def _prefixes(cache: Path) -> list[Path]:
    folder = cache / "prefixes"
    return [p for p in sorted(folder.glob("*")) if len(p.name) == _HASH_LENGTH and (p / MARKER).exists()]


def _archive_folders(cache: Path) -> list[Path]:
    """Return the directories that each hold one archive or the mirror of a repository."""
    patterns = ("uv/archive-v*/*", "conda/pkgs/*", "commits/*", "git/*.git")
    return [p for pattern in patterns for p in sorted(cache.glob(pattern)) if p.is_dir()]


def _remove_unfinished(cache: Path) -> None:
    """Remove what killed builders left of prefixes; those alive hold their lock."""
    for path in (cache / "prefixes").glob("*"):
        if len(path.name) == _HASH_LENGTH and not (path / MARKER).exists():
            with lock_file(lock_path(path.parent, path.name), exclusive=True, timeout=_NO_WAIT) as fd:
                if fd is not None and not (path / MARKER).exists():
                    take_away(cache, path)


def take_away(cache: Path, folder: Path) -> None:
    """Remove a prefix or an archive atomically, if it exists.

    Args:
        cache: Our cache directory.
        folder: What goes.
    """
    if not folder.exists():
        return
    trash = cache / "trash"
    trash.mkdir(exist_ok=True)
    aside = trash / f"{folder.name}-{secrets.token_hex(4)}"
    with contextlib.suppress(OSError):
        # Without the right to write into it, a directory cannot get another parent.
        folder.chmod(stat.S_IRWXU)
    forget_archive(folder, cache)
    with contextlib.suppress(FileNotFoundError):
        folder.rename(aside)
        remove_tree(aside)


@contextlib.contextmanager
def _unused(folder: Path) -> Iterator[bool]:
    """Keep others from using an archive inside the block; yield false if one is using it."""
    if folder.parent.name == "git":
        with taking_away(folder.parent, folder.name) as free:
            yield free
    elif folder.parent.name == "commits":
        with lock_file(lock_path(folder.parent, folder.name), exclusive=True, timeout=_NO_WAIT) as fd:
            yield fd is not None  # no build is under way
    else:
        yield True


def _age(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0


def _inodes(path: Path, into: Inodes, *, passed_over: frozenset[str] = frozenset()) -> set[tuple[int, int]]:
    """Add everything below a directory, but for some directories and what vanishes; return its inodes."""
    found = set()
    waiting = [os.fspath(path)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as listing:
                for entry in listing:
                    if entry.path in passed_over:
                        continue
                    with contextlib.suppress(OSError):
                        known = entry.stat(follow_symlinks=False)
                        inode = (known.st_dev, known.st_ino)
                        is_folder = stat.S_ISDIR(known.st_mode)
                        into[inode] = (known.st_blocks * 512, is_folder or known.st_nlink == 1)
                        found.add(inode)
                        if is_folder:
                            waiting.append(entry.path)
        except OSError:
            continue
    return found


# --------------------------------------------------------------------------------------------------
# What is in a prefix that exists.


def requirements_here(lock: Lock, cache_dir: Path) -> dict[str, tuple[str, ...]] | None:
    """Return the requirements of each wheel of a lock, from the metadata in its prefix.

    Args:
        lock: Of wheels alone.
        cache_dir: Where prefixes are.

    Returns:
        Normalised name to PEP 508 texts; None where there is no such prefix.
    """
    prefix = cache_dir / "prefixes" / lock.content_hash
    if not (prefix / MARKER).exists():
        return None
    found = {}
    sites = [str(site) for site in prefix.glob("lib/python*/site-packages")]
    for distribution in importlib.metadata.distributions(path=sites):
        name = distribution.metadata["Name"]
        if name:
            found[str(canonicalize_name(name))] = tuple(distribution.requires or ())
    return found
