"""Reads the files that a trial needs from beside the matrix file."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

MAX_TOTAL = 16 * 1024 * 1024
"""Files travel with every trial; data sets are fetched or mounted, not carried."""


@dataclass(frozen=True, slots=True)
class StudyFile:
    """A file that the script needs.

    Attributes:
        name: Relative path with forward slashes, the same beside the matrix file and in a trial.
        content: The bytes.
        executable: Whether the owner may execute it.
    """

    name: str
    content: bytes
    executable: bool


def file_at(name: str, place: Path) -> StudyFile:
    """Read one file that a trial needs.

    Args:
        name: Relative path in a trial.
        place: Where the file is now.
    """
    return StudyFile(name, place.read_bytes(), os.access(place, os.X_OK))


def name_problem(name: str) -> str | None:
    """Return why a file cannot be copied into trials under this path, or None.

    A trial runs in a fresh folder, into which the files are written under the same relative paths.
    Therefore files outside the matrix's own folder are refused.
    """
    path = PurePosixPath(name)
    if not name.isprintable():
        return f"the path {name!r} holds a line break or another control character; rename the file"
    if path.is_absolute():
        return f"the path {name!r} is absolute; put the file beside the matrix and name it from there"
    if ".." in path.parts:
        return (
            f"the path {name!r} leaves the folder of the matrix; put the file beside the matrix or below it"
        )
    return None


def read_files(folder: Path, names: Iterable[str]) -> tuple[tuple[StudyFile, ...], dict[str, str]]:
    """Read the files of a study.

    Args:
        folder: Where the matrix file lies.
        names: Relative paths.

    Returns:
        The files that could be read, and name to problem for the others.
    """
    files: list[StudyFile] = []
    problems: dict[str, str] = {}
    total = 0
    for name in names:
        problem = name_problem(name)
        if problem is None:
            try:
                file = _read(folder, name, MAX_TOTAL - total)
            except (OSError, ValueError) as error:
                problem = _why(name, error)
            else:
                total += len(file.content)
                files.append(file)
        if problem is not None:
            problems[name] = problem
    return tuple(files), problems


class _TooLargeError(ValueError):
    pass


class _OutsideError(ValueError):
    pass


def _read(folder: Path, name: str, room: int) -> StudyFile:
    path = folder / name
    status = path.stat()
    # A matrix that somebody sent may bring a link to `~/.ssh`, and a trial shows what it is given.
    if not path.resolve().is_relative_to(folder.resolve()):
        raise _OutsideError
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError
    if not stat.S_ISREG(status.st_mode):
        # Opening a pipe would wait for its other end.
        raise ValueError("neither a file nor a folder")
    if status.st_size > room:
        raise _TooLargeError
    return StudyFile(name, path.read_bytes(), os.access(path, os.X_OK))


def _why(name: str, error: Exception) -> str:
    match error:
        case FileNotFoundError() | NotADirectoryError():
            return f"the file {name!r} does not exist beside the matrix; correct the path or add the file"
        case IsADirectoryError():
            return f"{name!r} is a folder; list the files in it"
        case PermissionError():
            return f"the file {name!r} may not be read; change its permissions"
        case _OutsideError():
            return (
                f"{name!r} is, or lies behind, a link that leaves the folder of the matrix; "
                "put the file itself beside the matrix or below it"
            )
        case _TooLargeError():
            size = MAX_TOTAL // (1024 * 1024)
            return f"with {name!r} the files exceed {size} MiB in all; let the script fetch its data itself"
        case OSError():
            return f"the file {name!r} cannot be read ({error.strerror}); correct the path"
        case _:
            return f"{name!r} cannot be read ({error}); name a regular file"
