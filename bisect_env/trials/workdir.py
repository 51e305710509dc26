"""What a trial finds around it: private directories, gone afterwards in any case, and its variables."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import shutil
import stat
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from bisect_env.containers.engine import ask
from bisect_env.secrets import passed_on, without_proxy_logins
from bisect_env.temporary import FULL, TRIAL, left_behind, make_held
from bisect_env.trials.records import TrialFile

# --------------------------------------------------------------------------------------------------
# A trial's private directories: made fresh, filled, and removed afterwards.

REMOVAL = "removal.json"
"""File with commands that remove what a trial has outside of its directory, and make what is in it removable,
should nobody be left to."""


_BARRIER = {
    ".git": "gitdir: nothing\n",  # git says that this is no repository; black, isort and mypy look no further
    ".env": "",
    "pytest.ini": "",
    "ruff.toml": "",
    "tox.ini": "[flake8]\n",
    "uv.toml": "",
}
"""Files above a trial's working directory. Tools that look for their configuration in every directory up to
the root stop at them. The place of temporary files is often one that every user writes to: pytest would take
a `pytest.ini` there for the trial's own and run the `conftest.py` beside it. What a tool finds in the working
directory itself still comes first."""
_BROKEN = FULL | {errno.EIO, errno.EROFS, errno.ESTALE}
"""What a file system that was writable answers when it is not any more."""
_REMOVAL_LIMIT = 20.0
"""Seconds for each of these commands."""


@dataclass(frozen=True, slots=True)
class WorkDir:
    """The directories of one process of a trial.

    Attributes:
        top: Parent of the other two, closed to other users.
        work: Its working directory, which holds only the trial's files.
        tmp: Its TMPDIR, outside of `work` so that a script that lists its directory sees only its own files.
    """

    top: Path
    work: Path
    tmp: Path


@contextmanager
def work_dir(files: Sequence[TrialFile]) -> Iterator[WorkDir]:
    """Create the directories and remove them at the end, whatever the script did to them.

    Raises:
        ValueError: A file's name leads out of the directory.
    """
    _sweep_once()
    top, held = make_held(TRIAL)
    try:
        made = WorkDir(top=top, work=top / "work", tmp=top / "tmp")
        made.work.mkdir()
        made.tmp.mkdir()
        for name, text in _BARRIER.items():
            (top / name).write_text(text, "ascii")
        for file in files:
            _write(made.work, file)
        yield made
    finally:
        try:
            _remove(top)
        finally:
            os.close(held)


def sweep(*, containers: bool = True) -> None:
    """Remove the directories of trials whose worker and supervisor were both killed.

    Args:
        containers: Whether to remove their containers as well, which may take long; otherwise trials in
            containers are skipped.
    """
    for old in left_behind(TRIAL):
        if not containers and (old / REMOVAL).exists():
            continue
        # The supervisor, if that lives, removes it at the same time; a process of the script may still write.
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileNotFoundError, ValueError):
                for argv in json.loads((old / REMOVAL).read_text("utf-8")):
                    ask(argv, _REMOVAL_LIMIT)
            _remove(old)


def keep_removal(top: Path, commands: Sequence[Sequence[str]]) -> None:
    """Save the commands that `sweep` runs before it removes a trial's directory.

    Args:
        top: The directory; a trial in a container cannot write to the saved file.
        commands: Commands that remove what the trial has elsewhere and make the directory removable.
    """
    (top / REMOVAL).write_text(json.dumps(commands), "utf-8")


# For a worker that was killed, a new one is started.
_sweep_once = functools.cache(sweep)


def _write(directory: Path, file: TrialFile) -> None:
    name = PurePosixPath(file.name)
    if name.is_absolute() or ".." in name.parts:
        raise ValueError(f"the trial's file {file.name!r} lies outside its working directory")
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(file.content)
    if file.executable:
        path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


def write_problem(folder: Path) -> str:
    """Return the file system's error on writing to a folder, "" if there is none."""
    probe = folder / f".probe-{os.getpid()}-{threading.get_ident()}"
    try:
        with probe.open("wb") as stream:
            stream.write(bytes(4096))
            os.fsync(stream.fileno())
        probe.unlink()
    except OSError as error:
        return os.strerror(error.errno) if error.errno in _BROKEN else ""
    return ""


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


# --------------------------------------------------------------------------------------------------
# Builds a trial's environment variables from an allow-list, never by inheriting them all.
#
# Dask puts `OMP_NUM_THREADS=1`, `MALLOC_TRIM_THRESHOLD_` and a fixed `PYTHONHASHSEED` into its workers, an
# activated virtual environment leaks its path, and a token in a shell is nobody's business: what is not named
# here does not reach the script unless the matrix sets it.

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""What a login shell starts with where PATH is not set."""

TRIAL_ID = "BISECT_ENV_TRIAL_ID"
"""Variable that names the trial in each of its processes, for people who read a process list."""


def child_env(
    outer: Mapping[str, str],
    *,
    prefix_bin: Path,
    tmp: Path,
    hash_seed: int,
    trial_id: str,
    gpus: Sequence[str] = (),
    own_bin: Path | None = None,
    extra: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return all environment variables of one trial.

    Args:
        outer: The worker's own environment.
        prefix_bin: The prefix's directory of commands; first on PATH.
        tmp: Private directory for temporary files.
        hash_seed: `PYTHONHASHSEED`; random per trial and recorded, so that a trial can be repeated.
        trial_id: The trial's id.
        gpus: UUIDs of the GPUs that the trial may see. With none, it sees none: a script that quietly uses a
            GPU that another trial was given would falsify both.
        own_bin: Directory of this program's own commands, taken out of PATH: a `pytest` that the prefix
            lacks must be missing, not run under our interpreter.
        extra: The matrix's `trial.env` and `BISECT_ENV_<AXIS>`; wins over everything.
    """
    env = without_proxy_logins(passed_on(outer))
    env["PATH"] = child_path(outer.get("PATH", DEFAULT_PATH), prefix_bin, own_bin)
    env.update(_settings(tmp, hash_seed, trial_id, gpus))
    env.update(extra or {})
    return env


def container_env(
    *,
    tmp: Path,
    hash_seed: int,
    trial_id: str,
    gpus: Sequence[str] = (),
    extra: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the variables that a trial in a container gets in addition to the image's.

    None are this host's.
    """
    return {**_settings(tmp, hash_seed, trial_id, gpus), **(extra or {})}


def _settings(tmp: Path, hash_seed: int, trial_id: str, gpus: Sequence[str]) -> dict[str, str]:
    """Return the variables that every trial gets, wherever it runs."""
    env = {"TMPDIR": str(tmp)}
    env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    env["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    env["PYTHONFAULTHANDLER"] = "1"
    env["PYTHONHASHSEED"] = str(hash_seed)
    env["PYTHONNOUSERSITE"] = "1"
    # Lines that a crash would lose in a pipe's block buffer appear, as they do on the terminal where the
    # crash was first seen; patterns on the output need them.
    env["PYTHONUNBUFFERED"] = "1"
    env[TRIAL_ID] = trial_id
    return env


def child_path(path: str, prefix_bin: Path, own_bin: Path | None) -> str:
    """Return PATH with the prefix's commands first and without this program's own."""
    return os.pathsep.join(dict.fromkeys([str(prefix_bin), *_without(path, own_bin)]))


@functools.lru_cache(16)
def _without(path: str, own_bin: Path | None) -> tuple[str, ...]:
    """Return the directories of PATH except one, which is recognised through links as well; cached."""
    own = None if own_bin is None else os.path.realpath(own_bin)
    return tuple(part for part in path.split(os.pathsep) if part and os.path.realpath(part) != own)


def own_bin() -> Path | None:
    """Return the directory of this program's own commands, if it lives in a virtual environment."""
    return None if sys.prefix == sys.base_prefix else Path(sys.prefix, "bin")
