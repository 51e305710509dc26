"""Temporary directories that a lock tells to be in use, and files that are read and replaced as a whole.

The process that makes such a directory keeps it locked as long as it lives; the kernel frees the lock,
however it dies. A process that was killed cannot remove its own, so the next one on this host does. All of
them carry our name.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import functools
import os
import pwd
import secrets
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

PREFIX = "bisect-env-tmp-"
"""Of what `temporary` makes, and of nothing else: such a directory is removed, and a user may well have made
a `bisect-env-something` beside it."""
TRIAL = "bisect-env-trial-"
"""Of directories of trials, for whose removal more is to be done (see `trials/workdir.py`). Short: paths of
Unix sockets below them may have 107 characters."""

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What a write to a full file system ends in."""

# Without following links, or waiting for the other end of a pipe: anybody can put such a thing there.
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY


_OWN: set[Path] = set()
# What a forked process inherits is its parent's.
os.register_at_fork(after_in_child=_OWN.clear)


@atexit.register
def remove_own() -> None:
    """Remove the temporary directories of this process, which ends now, perhaps without unwinding.

    A directory that another thread makes meanwhile is left to `remove_left_behind` of the next command.
    """
    for path in list(_OWN):
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write a file as a whole or not at all.

    Gives a path beside it to write to, which takes its place at the end of the block; after an error
    everything is as before.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        yield beside
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def read_limited(path: Path, limit: int, encoding: str = "utf-8") -> str:
    """Read a text file that somebody else may have made.

    Args:
        path: Of a regular file; opening a pipe would wait for its other end, and a device has no end.
        limit: Most bytes that it may have.
        encoding: Of the text.

    Raises:
        OSError: It cannot be read, is no regular file, or is larger.
        ValueError: It is no text in this encoding.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        content = stream.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit >> 20} MiB", str(path))
    return content.decode(encoding)


@contextlib.contextmanager
def temporary(name: str) -> Iterator[Path]:
    """A directory for the time of a block.

    Args:
        name: What it is for, as it is to stand in its own name.

    Raises:
        OSError: It cannot be made.
    """
    _sweep()
    path, held = make_held(f"{PREFIX}{name}-")
    _OWN.add(path)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        _OWN.discard(path)
        os.close(held)


def make_held(prefix: str) -> tuple[Path, int]:
    """Return a fresh directory for temporary files, and a descriptor that keeps it locked until it is closed.

    Args:
        prefix: Of its name.
    """
    # No lock of ours is held here: the threads of 64 trials would wait for each other, as every call of the
    # system lets another thread run first.
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix))
        # Between the two calls a cleanup, of this process or another, may take the directory for left behind
        # and lock or remove it; then another one is made.
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(path, _FLAGS)
            try:
                is_ours = _lock(path, fd)
            except OSError:  # a file system without locks, on which nobody can tidy up either
                is_ours = True
            if is_ours:
                return path, fd
            os.close(fd)


def _lock(path: Path, fd: int) -> bool:
    """Return whether the open directory could be locked, and is still there.

    Raises:
        OSError: This file system has no locks.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(path.stat(), os.fstat(fd))
    except (BlockingIOError, FileNotFoundError):
        return False


def lock_holder(path: Path) -> str:
    """Name the process that holds a lock on a file, as far as this host tells, for a message."""
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
    """Directories of `make_held` whose process has ended, locked until they are removed.

    Only this user's: anybody may put something of that name into a folder that all can write to.
    """
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        try:
            fd = os.open(path, _FLAGS)
        except OSError:  # somebody else's, or just gone
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
    """Remove what killed processes left of `temporary`."""
    with contextlib.suppress(OSError):
        for old in left_behind(PREFIX):
            shutil.rmtree(old, ignore_errors=True)


@functools.cache
def _sweep() -> None:
    """Start to remove what killed processes left, once in the life of this process."""
    threading.Thread(target=remove_left_behind, name="left behind", daemon=True).start()


def full_file_system(*candidates: Path) -> Path | None:
    """Return the first of several places whose file system has no room for a file; None where each has.

    Args:
        candidates: Where something was to be written; the place of temporary files is looked at, too.
    """
    for place in (Path(tempfile.gettempdir()), *candidates):
        with contextlib.suppress(OSError):
            disk = os.statvfs(next(one for one in (place, *place.parents) if one.exists()))
            # Some file systems count no files.
            if disk.f_bavail * disk.f_frsize < 1 << 16 or (disk.f_files and not disk.f_favail):
                return place
    return None
