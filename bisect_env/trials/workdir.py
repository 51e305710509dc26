"""Makes and fills a trial's private directories, and removes them afterwards in any case."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from bisect_env.temporary import TRIAL, Once, left_behind, make_held
from bisect_env.trials.records import TrialFile
from bisect_env.trials.tools import run_tool

# --------------------------------------------------------------------------------------------------
# A trial's private directories: made fresh, filled, and gone afterwards, whoever then removes them.

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
    """Make the directories, and remove them at the end whatever the script did to them.

    Raises:
        ValueError: A file's name leads out of the directory.
    """
    _SWEEP()
    top, held = make_held(TRIAL)
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
    for old in left_behind(TRIAL):
        # The supervisor, if that lives, removes it at the same time; a process of the script may still write.
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileNotFoundError, ValueError):
                for argv in json.loads((old / REMOVAL).read_text("utf-8")):
                    run_tool(argv)
            _remove(old)


# For a worker that was killed, a new one is started.
_SWEEP = Once(sweep)


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
