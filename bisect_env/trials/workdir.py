"""Creates and removes the private directories of a trial, and builds its environment variables."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import stat
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil

from bisect_env.containers.engine import ask
from bisect_env.matrix.files import StudyFile
from bisect_env.secrets import passed_on, without_proxy_logins
from bisect_env.temporary import FULL, TRIAL, left_behind, make_held, read_limited, remove_tree

# --------------------------------------------------------------------------------------------------
# A trial's private directories: created, filled with its files, and removed after the trial.

REMOVAL = "removal.json"
"""Name of the file with the commands that clean up after a trial in a container whose worker and supervisor
were killed. They remove the container, and make the files in the trial's directory removable."""


_BARRIER = {
    ".git": b"gitdir: nothing\n",  # for git this is no repository; black, isort and mypy stop searching here
    ".env": b"",
    "pytest.ini": b"",
    "ruff.toml": b"",
    "tox.ini": b"[flake8]\n",
    "uv.toml": b"",
}
"""Names and contents of files in the parent of a trial's working directory. Tools that search for their
configuration in every directory up to the root stop at these files. Without them, a tool could find files of
other users: temporary files are often in a directory that every user can write to, and pytest would use a
`pytest.ini` there and run the `conftest.py` beside it. Configuration in the working directory itself still
takes precedence."""
_BROKEN = FULL | {errno.EIO, errno.EROFS, errno.ESTALE}
"""Error numbers of a file system that has become full or unwritable."""
_REMOVAL_LIMIT = 20.0
"""Time limit in seconds for each of the commands in `REMOVAL`."""
_LARGEST_REMOVAL = 1 << 20
"""Maximum size of the file `REMOVAL` in bytes."""


@dataclass(frozen=True, slots=True)
class WorkDir:
    """The directories of one process of a trial, such as its working directory and its TMPDIR.

    Attributes:
        top: Parent of the other two directories; other users have no access to it.
        work: Working directory of the process, which contains only the trial's files.
        tmp: TMPDIR of the process. It is not in `work`, so that a script that lists its working directory
            sees only its own files.
    """

    top: Path
    work: Path
    tmp: Path


@contextmanager
def work_dir(files: Sequence[StudyFile]) -> Iterator[WorkDir]:
    """Create the directories of one process of a trial, and remove them at the end of the `with` block.

    Args:
        files: Files to write into the working directory.

    Raises:
        ValueError: A file's name leads out of the working directory.
    """
    top, held = make_held(TRIAL)
    try:
        made = WorkDir(top=top, work=top / "work", tmp=top / "tmp")
        made.work.mkdir()
        made.tmp.mkdir()
        for name, content in _BARRIER.items():
            _create(name, content, held)
        for file in files:
            _write(made.work, file)
        yield made
    finally:
        # What cannot be removed now, such as a mounted file system, is left for `sweep`: the result counts.
        remove_tree(top)
        os.close(held)


def _create(name: str, content: bytes, folder: int) -> None:
    """Create a small file in an open folder, with fewer system calls than `Path.write_bytes`."""
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        os.write(file, content)
    finally:
        os.close(file)


def sweep() -> None:
    """Remove directories and containers of trials whose worker and supervisor were both killed."""
    for old in left_behind(TRIAL):
        # The file is missing if no container was used. A script on this host can write anything to it, which
        # must not stop the trials of later commands.
        with contextlib.suppress(Exception):
            for argv in json.loads(read_limited(old / REMOVAL, _LARGEST_REMOVAL)):
                ask(argv, _REMOVAL_LIMIT)
        remove_tree(old)


def keep_removal(top: Path, commands: Sequence[Sequence[str]]) -> None:
    """Save the commands that `sweep` runs before it removes a trial's directory.

    Args:
        top: Directory of the trial. The script in the container cannot write to the saved file.
        commands: Commands that remove the trial's container and make the files in `top` removable.
    """
    (top / REMOVAL).write_text(json.dumps(commands), "utf-8")


# Once per process suffices: after a worker was killed, a new worker process is started.
sweep_once = functools.cache(sweep)


def _write(directory: Path, file: StudyFile) -> None:
    name = PurePosixPath(file.name)
    if name.is_absolute() or ".." in name.parts:
        raise ValueError(f"the trial's file {file.name!r} lies outside its working directory")
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(file.content)
    if file.executable:
        path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


FULL_PERCENT = 95.0
"""Share of a file system from which it counts as full. A script may have removed a file that it could not
finish, so the file system need not be full to the last block afterwards."""
ANSWERS_IN = 5.0
"""Seconds within which all file systems must tell their free space."""


def full_disk() -> str:
    """Return which file system of this host is full, such as `/data is full`; "" if none is.

    All writable file systems are asked, because an output rarely names the file that could not be written. If
    one does not answer within `ANSWERS_IN` seconds, such as that of a lost server, the text says so.
    """
    mounts = [one.mountpoint for one in psutil.disk_partitions(all=True) if "ro" not in one.opts.split(",")]
    full: list[str] = []
    asking = threading.Thread(target=lambda: full.extend(filter(_is_full, mounts)), daemon=True)
    asking.start()
    asking.join(ANSWERS_IN)
    if asking.is_alive():
        return "a file system of this host does not answer"
    return f"{full[0]} is full" if full else ""


def _is_full(mount: str) -> bool:
    """Return whether a mounted file system counts as full; False if it cannot be asked."""
    with contextlib.suppress(OSError):
        return bool(psutil.disk_usage(mount).percent >= FULL_PERCENT)
    return False


def write_problem(folder: Path) -> str:
    """Write a test file into a folder, and return the error message if the file system fails.

    Return "" if writing succeeds, and for errors of other kinds.
    """
    probe = folder / f".probe-{os.getpid()}-{threading.get_ident()}"
    try:
        with probe.open("wb") as stream:
            stream.write(bytes(4096))
            os.fsync(stream.fileno())
        probe.unlink()
    except OSError as error:
        return os.strerror(error.errno) if error.errno in _BROKEN else ""
    return ""


# --------------------------------------------------------------------------------------------------
# Building a trial's environment variables from an allow-list; other variables are not inherited.
#
# Some variables of a worker must not reach the script: Dask sets `OMP_NUM_THREADS=1`,
# `MALLOC_TRIM_THRESHOLD_` and a fixed `PYTHONHASHSEED`, an activated virtual environment adds its path, and a
# shell may hold secret tokens. A variable that is not named here is passed on only if the matrix sets it.

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The PATH used if the worker has none; it is the default of a login shell."""

TRIAL_ID = "BISECT_ENV_TRIAL_ID"
"""Environment variable with the trial's id, so that its processes can be recognised in a process list."""


def inherited_env(outer: Mapping[str, str], prefix_bin: Path, own_bin: Path | None = None) -> dict[str, str]:
    """Return the environment variables that a trial on this host inherits from the worker, and its PATH.

    Args:
        outer: Environment variables of the worker, some of which are passed on.
        prefix_bin: Directory of the environment's commands, which becomes the first on PATH.
        own_bin: Directory of bisect-env's own commands, which is removed from PATH. Otherwise a `pytest` that
            is missing in the environment would run with bisect-env's packages.
    """
    env = without_proxy_logins(passed_on(outer))
    env["PATH"] = child_path(outer.get("PATH", DEFAULT_PATH), prefix_bin, own_bin)
    return env


def trial_env(
    inherited: Mapping[str, str],
    *,
    tmp: Path,
    hash_seed: int,
    trial_id: str,
    gpus: Sequence[str] = (),
    extra: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the environment variables of a trial. In a container, the image adds its own.

    Args:
        inherited: Variables that the trial inherits from this host (see `inherited_env`); {} in a container.
        tmp: Private directory for temporary files.
        hash_seed: Value of `PYTHONHASHSEED`.
        trial_id: Id of the trial.
        gpus: UUIDs of the GPUs that the trial may see. If empty, it sees no GPU: a script that used the GPU
            of another trial would distort both results.
        extra: Variables set by the matrix (`trial.env` and `BISECT_ENV_<AXIS>`), which override all others.
    """
    return {
        **inherited,
        "TMPDIR": str(tmp),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        "PYTHONFAULTHANDLER": "1",
        "PYTHONHASHSEED": str(hash_seed),
        "PYTHONNOUSERSITE": "1",
        # Without this, a crash would lose the lines in the buffer of the pipe. On a terminal they are
        # printed, and patterns on the output need them.
        "PYTHONUNBUFFERED": "1",
        TRIAL_ID: trial_id,
        **(extra or {}),
    }


@functools.lru_cache(16)  # every trial asks, and each directory takes a system call for each part of its path
def child_path(path: str, prefix_bin: Path, own_bin: Path | None) -> str:
    """Return `path` with `prefix_bin` as its first directory and without `own_bin`.

    Other names of `own_bin`, through links, are left out, too.
    """
    own = None if own_bin is None else os.path.realpath(own_bin)
    kept = (part for part in path.split(os.pathsep) if part and os.path.realpath(part) != own)
    return os.pathsep.join(dict.fromkeys([str(prefix_bin), *kept]))


def own_bin() -> Path | None:
    """Return the directory of bisect-env's own commands; None if it runs in no virtual environment."""
    return None if sys.prefix == sys.base_prefix else Path(sys.prefix, "bin")
