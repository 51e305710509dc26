"""Creates temporary directories that are removed even after a kill, and replaces files atomically.

The process that creates a temporary directory holds a file lock on it. The kernel frees the lock when the
process ends for any reason, even SIGKILL. The next bisect-env process on this host therefore recognises the
directories of killed processes (right name, not locked) and removes them.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import functools
import itertools
import os
import pwd
import secrets
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

PREFIX = "bisect-env-tmp-"
"""Start of the names of the directories that `temporary` creates.

Unlocked directories with this prefix are deleted, so it must not match a directory that a user might create,
such as `bisect-env-results`.
"""
TRIAL = "bisect-env-trial-"
"""Start of the names of trial directories, which `trials/workdir.py` creates and removes.

It is short because the path of a Unix socket in such a directory may have at most 107 characters.
"""

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The error numbers of a write to a full file system or beyond a disk quota."""

# Open directories only and follow no links: any user can put a link or a pipe into the shared directory.
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY


_OWN: set[Path] = set()
# A forked child must not remove the directories of its parent.
os.register_at_fork(after_in_child=_OWN.clear)


@atexit.register
def remove_own() -> None:
    """Remove all temporary directories of this process.

    This function is called when the process ends.

    If another thread creates a directory at the same time, `remove_left_behind` of the next command removes
    that directory.
    """
    for path in list(_OWN):
        remove_tree(path)


def remove_tree(top: Path) -> None:
    """Remove a directory tree, including directories without permissions. Errors are ignored.

    The tree may be deeper than Python's recursion limit, and its paths may be longer than the kernel allows.
    A process may still be writing there; remaining files are removed by the next call.
    """
    if top.is_symlink():
        return
    with contextlib.suppress(OSError):
        top.chmod(stat.S_IRWXU)
    # Each directory is moved up to `top` before its contents are removed, so all paths are short.
    names = (f"{secrets.token_hex(8)}-{number}" for number in itertools.count())
    pending = [top]
    while pending:
        folder = pending.pop()
        with contextlib.suppress(OSError):
            with os.scandir(folder) as entries:
                paths = [(Path(entry.path), entry.is_dir(follow_symlinks=False)) for entry in entries]
            for path, is_folder in paths:
                if is_folder:
                    # Moving or emptying it needs write permission, which the directory of another user may
                    # have already and does not let this process change.
                    with contextlib.suppress(OSError):
                        path.chmod(stat.S_IRWXU)
                with contextlib.suppress(OSError):
                    if is_folder:
                        pending.append(path if folder == top else path.rename(top / next(names)))
                    else:
                        path.unlink()
            if folder != top:
                folder.rmdir()
    with contextlib.suppress(OSError):
        top.rmdir()


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Replace the file at `path` by a new file at the end of the block, in one atomic step.

    The context manager yields a temporary path in the same directory, to which the caller writes. At the end
    of the block that file is renamed to `path`. If the block raises, `path` keeps its previous content.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        yield beside
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file in UTF-8. Readers see the old or the new content, but never a part.

    The directory is created if it does not exist.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as beside:
        beside.write_text(text, "utf-8")


def read_limited(path: Path, limit: int, encoding: str = "utf-8", errors: str = "strict") -> str:
    """Read a text file of limited size that another user may have made.

    Args:
        path: The file. Pipes and devices are refused, because reading them could block or never end.
        limit: The largest size allowed, in bytes.
        encoding: The text encoding.
        errors: How to handle bytes that are invalid in the encoding, as in `bytes.decode`.

    Raises:
        OSError: The file cannot be read, is not a regular file, or is larger than `limit`.
        ValueError: The content cannot be decoded.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        content = stream.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit >> 20} MiB", str(path))
    return content.decode(encoding, errors)


@contextlib.contextmanager
def temporary(name: str) -> Iterator[Path]:
    """Create a temporary directory for the duration of the block.

    Args:
        name: Purpose of the directory. It becomes part of the directory's name.

    Raises:
        OSError: The directory cannot be created.
    """
    _sweep()
    path, held = make_held(f"{PREFIX}{name}-")
    _OWN.add(path)
    try:
        yield path
    finally:
        remove_tree(path)
        _OWN.discard(path)
        os.close(held)


def make_held(prefix: str) -> tuple[Path, int]:
    """Create a directory below the system's directory for temporary files, and lock it.

    Args:
        prefix: Start of the directory's name.

    Returns:
        The path, and a file descriptor that holds the lock. Closing the descriptor frees the lock.
    """
    # Hold no threading lock here: with 64 trials the threads would wait for each other, because every system
    # call lets another thread run.
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix))
        # Between mkdtemp and the lock, a cleanup (of any process) may lock or remove the directory as a
        # leftover. In that case, create a new one.
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(path, _FLAGS)
            try:
                is_ours = _lock(path, fd)
            except OSError:  # a file system without locks; no cleanup can lock the directory there either
                is_ours = True
            if is_ours:
                return path, fd
            os.close(fd)


def _lock(path: Path, fd: int) -> bool:
    """Try to lock an open directory, and return whether this succeeded.

    Return False if the lock is already held or the directory was removed.

    Raises:
        OSError: The file system does not support locks.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(path.stat(), os.fstat(fd))
    except (BlockingIOError, FileNotFoundError):
        return False


def lock_holder(path: Path) -> str:
    """Describe in words, for messages, the process that holds the lock on a file."""
    with contextlib.suppress(OSError):
        status = path.stat()
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        for line in Path("/proc/locks").read_text("ascii").splitlines():
            fields = line.split()
            if device in fields and "->" not in fields:
                pid = int(fields[fields.index(device) - 1])
                return f"process {pid} of user {_user(Path(f'/proc/{pid}').stat().st_uid)}"
    return "a process that this host does not name"


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def left_behind(prefix: str) -> Iterator[Path]:
    """Yield temporary directories whose process has ended, so that the caller can remove them.

    Each directory was made by `make_held`, and stays locked until the caller asks for the next one.
    Directories of other users are left out, because any user may create such a name in the shared temporary
    directory.
    """
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        try:
            fd = os.open(path, _FLAGS)
        except OSError:  # it belongs to another user, or was just removed
            continue
        is_nobodys = False
        try:
            with contextlib.suppress(OSError):
                is_nobodys = os.fstat(fd).st_uid == os.geteuid() and _lock(path, fd)
            if is_nobodys:
                yield path
        finally:
            os.close(fd)


def remove_left_behind() -> None:
    """Remove the temporary directories that killed processes left behind."""
    with contextlib.suppress(OSError):
        for old in left_behind(PREFIX):
            remove_tree(old)


@functools.cache
def _sweep() -> None:
    """Start a thread that removes temporary directories of killed processes. Later calls do nothing."""
    threading.Thread(target=remove_left_behind, name="left behind", daemon=True).start()


def full_file_system(*candidates: Path) -> Path | None:
    """Return the first path whose file system is full, or None if no file system is full.

    Args:
        candidates: Paths to check. The system's directory for temporary files is checked before them.

    Returns:
        The path, or None if every file system has free space.
    """
    for place in (Path(tempfile.gettempdir()), *candidates):
        with contextlib.suppress(OSError):
            disk = os.statvfs(next(one for one in (place, *place.parents) if one.exists()))
            # Some file systems report 0 inodes in total; then the number of free inodes means nothing.
            if disk.f_bavail * disk.f_frsize < 1 << 16 or (disk.f_files and not disk.f_favail):
                return place
    return None
