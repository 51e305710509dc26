"""Who uses a prefix, and who installs from or empties the archives: file locks that end with a process."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

_POLL = 0.05  # seconds
_CANNOT_WRITE = (errno.EROFS, errno.EACCES, errno.EPERM)


class Lease:
    """Keeps a prefix from being taken away; held until `release`, or until the process ends, however.

    Args:
        fd: An open file with a shared lock on it; None where the cache cannot be written, so that nobody
            who could evict anything comes by here either.
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
    """The file whose lock says that a prefix is in use, and whose time says when it last was."""
    return folder / f".{content_hash}.use"


def hold(folder: Path, content_hash: str) -> Lease:
    """Lease a prefix, there or yet to be built, and note the moment as its last use.

    Blocks only while somebody takes that prefix away, which is a rename.

    Raises:
        OSError: The cache cannot be used.
    """
    path = use_path(folder, content_hash)
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if error.errno in _CANNOT_WRITE:
                return Lease(None)
            raise
        fcntl.flock(fd, fcntl.LOCK_SH)
        if _is_still(path, fd):
            os.utime(fd)
            return Lease(fd)
        os.close(fd)  # whoever took the prefix away removed this file before we had our lock


@contextlib.contextmanager
def taking_away(folder: Path, content_hash: str) -> Iterator[bool]:
    """For the time of the block nobody begins to use a prefix; False if somebody is using it.

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
    """Unix time of the last `hold`, else of the making of the prefix."""
    for path in (use_path(folder, content_hash), folder / content_hash):
        with contextlib.suppress(OSError):
            return path.stat().st_mtime
    return 0.0


@contextlib.contextmanager
def archives(cache: Path, *, exclusive: bool, timeout: float) -> Iterator[bool]:
    """Shared by those who install from the cached archives, exclusive for those who remove some.

    An archive that vanished under an installer would look like a package that cannot be installed.

    Args:
        cache: Our cache directory.
        exclusive: Which of the two.
        timeout: Seconds to wait.

    Yields:
        Whether it was had in time.
    """
    cache.mkdir(parents=True, exist_ok=True)
    fd = os.open(cache / ".archives.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    deadline = time.monotonic() + timeout
    kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    try:
        while True:
            try:
                fcntl.flock(fd, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    yield False
                    return
                time.sleep(_POLL)
            else:
                yield True
                return
    finally:
        os.close(fd)


def _is_still(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False
