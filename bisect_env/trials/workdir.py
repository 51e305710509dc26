"""A trial's private directories: made fresh, filled, and gone afterwards."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from bisect_env.trials.records import TrialFile


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
    # A short name: paths of Unix sockets below it may have 107 characters.
    top = Path(tempfile.mkdtemp(prefix="bisect-env-"))
    try:
        made = WorkDir(top=top, work=top / "work", tmp=top / "tmp")
        made.work.mkdir()
        made.tmp.mkdir()
        for file in files:
            _write(made.work, file)
        yield made
    finally:
        _remove(top)


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
    except PermissionError:  # the script took permissions from its own directories
        for directory, names, _ in os.walk(top):
            for name in names:
                path = Path(directory, name)
                if not path.is_symlink():
                    path.chmod(0o700)
        shutil.rmtree(top)
