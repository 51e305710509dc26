"""Temporary directories that are known to be somebody's, or nobody's, by a lock: never by their age.

Whoever makes one keeps it locked as long as it lives; the kernel frees the lock, however it dies. A process
that was killed cannot remove its own, so the next of its kind on this host does.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Without following links, or waiting for the other end of a pipe: anybody can put such a thing there.
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY


def make_held(prefix: str) -> tuple[Path, int]:
    """A fresh directory for temporary files, and a descriptor that keeps it locked until it is closed.

    Args:
        prefix: Of its name.
    """
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix))
        # Between making it and locking it, somebody who tidies up may take it for left behind. What he holds,
        # or has removed, is his: another one is made.
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
    """Whether the open directory could be locked, and is still there.

    Raises:
        OSError: This file system has no locks.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(path.stat(), os.fstat(fd))
    except (BlockingIOError, FileNotFoundError):
        return False


def left_behind(prefix: str, folder: Path | None = None) -> Iterator[Path]:
    """Directories of `make_held` that nobody holds, each locked while it is looked at, to be removed.

    Only this user's: anybody may put something of that name into a folder that all can write to.

    Args:
        prefix: Of their names.
        folder: Where they are; that of temporary files if None.
    """
    for path in (folder or Path(tempfile.gettempdir())).glob(f"{prefix}*"):
        try:
            fd = os.open(path, _FLAGS)
        except OSError:  # somebody else's, or just gone
            continue
        try:
            with contextlib.suppress(OSError):
                if os.fstat(fd).st_uid == os.geteuid() and _lock(path, fd):
                    yield path
        finally:
            os.close(fd)
