"""A trial's private directories: made fresh, filled, and gone afterwards, whoever then removes them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from bisect_env.trials.records import TrialFile
from bisect_env.trials.tools import run_tool

# --------------------------------------------------------------------------------------------------
# Temporary directories that are known to be somebody's, or nobody's, by a lock: never by their age.
#
# Whoever makes one keeps it locked as long as it lives; the kernel frees the lock, however it dies. A
# process that was killed cannot remove its own, so the next of its kind on this host does.

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


# --------------------------------------------------------------------------------------------------
# A trial's private directories: made fresh, filled, and gone afterwards, whoever then removes them.

# Short: paths of Unix sockets below it may have 107 characters.
PREFIX = "bisect-env-trial-"
REMOVAL = "removal.json"
"""File with commands that remove what a trial has outside of its directory, and make what is in it removable,
should nobody be left to."""


@dataclass(frozen=True, slots=True)
class WorkDir:
    """The directories of one process of a trial.

    Attributes:
        top: Holds the other two.
        work: Its working directory, holding the trial's files and nothing else.
        tmp: Its TMPDIR, beside `work`: a script that lists its own directory finds what it would alone.
    """

    top: Path
    work: Path
    tmp: Path


@contextmanager
def work_dir(files: Sequence[TrialFile]) -> Iterator[WorkDir]:
    """Make the directories, and remove them whatever the script did to them.

    Raises:
        ValueError: A file's name leads out of the directory.
    """
    _SWEEP.once()
    top, held = make_held(PREFIX)
    try:
        made = WorkDir(top=top, work=top / "work", tmp=top / "tmp")
        made.work.mkdir()
        made.tmp.mkdir()
        for file in files:
            _write(made.work, file)
        yield made
    finally:
        try:
            _remove(top)
        finally:
            os.close(held)


def sweep() -> None:
    """Remove what trials left whose worker and supervisor were killed together."""
    for old in left_behind(PREFIX):
        # The supervisor, if that lives, removes it at the same time; a process of the script may still write.
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileNotFoundError, ValueError):
                for argv in json.loads((old / REMOVAL).read_text("utf-8")):
                    run_tool(argv)
            _remove(old)


class _Sweep:
    """Once in the life of a process: for a worker that was killed, a new one is started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._done = False

    def once(self) -> None:
        with self._lock:
            if not self._done:
                self._done = True
                sweep()


_SWEEP = _Sweep()


def _write(directory: Path, file: TrialFile) -> None:
    name = PurePosixPath(file.name)
    if name.is_absolute() or ".." in name.parts:
        raise ValueError(f"the trial's file {file.name!r} lies outside its working directory")
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(file.content)
    if file.executable:
        path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


def _remove(top: Path) -> None:
    try:
        shutil.rmtree(top)
    except FileNotFoundError:  # the script removed it itself, or one of its processes is just doing that
        shutil.rmtree(top, ignore_errors=True)
    except PermissionError:  # the script took permissions from its own directories
        for directory, names, _ in os.walk(top):
            for name in names:
                path = Path(directory, name)
                if not path.is_symlink():
                    path.chmod(0o700)
        shutil.rmtree(top)
