"""Finds and reads the files that a trial needs."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from packaging.requirements import InvalidRequirement, Requirement

from bisect_env.errors import UsageError
from bisect_env.matrix.interpreter import is_python, python_options
from bisect_env.matrix.problems import near

MAX_TOTAL = 16 * 1024 * 1024
"""Limit of all files of a trial, in bytes: they are copied for every trial."""
_SHELLS = {".sh": "bash", ".bash": "bash"}
_PASSED_OVER = {"__pycache__", "node_modules", "build", "dist", "lockfiles"}


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


# --------------------------------------------------------------------------------------------------
# The files that a matrix names.


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


def read_files(
    names: Iterable[str], read: Callable[[str, int], StudyFile]
) -> tuple[tuple[StudyFile, ...], dict[str, str]]:
    """Read the files of a study.

    Args:
        names: Relative paths.
        read: Returns the file of a name that has at most so many bytes; see `beside` and `among`.

    Returns:
        The files that could be read, and name to problem for the others.
    """
    files: list[StudyFile] = []
    problems: dict[str, str] = {}
    for name in names:
        problem = name_problem(name)
        if problem is None:
            try:
                files.append(read(name, MAX_TOTAL - sum(len(file.content) for file in files)))
            except (OSError, ValueError) as error:
                problem = _why(name, error)
        if problem is not None:
            problems[name] = problem
    return tuple(files), problems


class _TooLargeError(ValueError):
    pass


class _OutsideError(ValueError):
    pass


def beside(folder: Path) -> Callable[[str, int], StudyFile]:
    """Return a function that reads files from the folder of a matrix file."""

    def read(name: str, room: int) -> StudyFile:
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
        return file_at(name, path)

    return read


def among(files: Iterable[StudyFile]) -> Callable[[str, int], StudyFile]:
    """Return a function that finds files among the given ones."""
    known = {str(PurePosixPath(file.name)): file for file in files}

    def read(name: str, room: int) -> StudyFile:
        file = known.get(str(PurePosixPath(name)))
        if file is None:
            raise FileNotFoundError
        if len(file.content) > room:
            raise _TooLargeError
        return file

    return read


def file_at(name: str, place: Path) -> StudyFile:
    """Read one file that a trial needs.

    Args:
        name: Relative path in a trial.
        place: Where the file is now.
    """
    return StudyFile(name, place.read_bytes(), os.access(place, os.X_OK))


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


def near_file(place: Path, suffixes: Sequence[str]) -> str:
    """Return a remedy for a path that does not exist: the name of a file in its folder, if there is any."""
    folder = place.parent
    others = sorted(one.name for one in folder.iterdir() if one.suffix in suffixes) if folder.is_dir() else []
    return near(place.name, others) if others else "correct the path"


# --------------------------------------------------------------------------------------------------
# The files that a command line names.


def full_command(words: Sequence[str], folder: Path) -> tuple[str, ...]:
    """Return the command to run; a script without a program gets its interpreter.

    Args:
        words: As given.
        folder: Base of relative paths.

    Raises:
        UsageError: There is no command, or the script does not exist.
    """
    if not words:
        raise UsageError(
            "nothing to run was given",
            remedy="end the line with a script (`repro.py`), or with `--` and a command",
        )
    if _is_range(words[0]):
        raise UsageError(
            f"{words[0]!r} is a package with a range, and stands where a script or a command is expected",
            remedy='with several packages `-p` names each: -p "A>=1" -p "B>=2" -- COMMAND; what every '
            "environment holds besides is given with `--with`",
        )
    suffix = Path(words[0]).suffix
    script = words[0] if suffix in (".py", ".pyw", *_SHELLS) else ""
    program = (_SHELLS.get(suffix, "python"),) if script else ()
    if is_python(words[0]) and (options := python_options(words[1:])) is not None:
        word = "" if options.end is None else words[1 + options.end]
        script = word if word.endswith(".py") else ""
    if script and not (folder / script).is_file():
        raise UsageError(
            f"the script {script} does not exist", remedy=near_file(folder / script, (".py", *_SHELLS))
        )
    return (*program, *words)


def _is_range(word: str) -> bool:
    try:
        return bool(Requirement(word).specifier)
    except InvalidRequirement:
        return False


def travelling(
    command: Sequence[str], extra: Iterable[str], folder: Path
) -> tuple[tuple[str, ...], dict[str, Path]]:
    """Return the command with the files that have to be copied into trials.

    Args:
        command: Words of the command; existing files among them are copied, also those named as `FILE::TEST`.
        extra: Additional files and directories to copy.
        folder: Base of relative paths.

    Returns:
        The command, in which files from outside the folder have their bare names, and name to file.

    Raises:
        UsageError: Two files would have the same name, or a named file does not exist.
    """
    files: dict[str, Path] = {}
    words = [*command[:1]]
    for word in command[1:]:
        name, colons, rest = word.partition("::")
        if name and not word.startswith("-"):
            if os.path.isfile(folder / name):  # noqa: PTH113 -- a word may be too long for a path
                word = _take(files, folder / name, folder) + colons + rest
            else:
                _take_below(files, folder / word, folder)
        words.append(word)
    for name in extra:
        place = folder / name
        if os.path.isfile(place):  # noqa: PTH113
            _take(files, place, folder)
        elif not _take_below(files, place, folder):
            raise UsageError(f"--files {name}: there is no such file or directory", remedy="correct the path")
    return tuple(words), files


def _take(files: dict[str, Path], place: Path, folder: Path) -> str:
    """Add a file to `files` and return its name: the relative path, or the bare name outside the folder."""
    whole, base = place.resolve(), folder.resolve()
    name = whole.relative_to(base).as_posix() if whole.is_relative_to(base) else whole.name
    if files.setdefault(name, whole) != whole:
        raise UsageError(
            f"{place} and {files[name]} would both travel as {name}", remedy="rename one, or copy it here"
        )
    return name


def _take_below(files: dict[str, Path], place: Path, folder: Path) -> bool:
    """Add the files of a directory that a trial may need; return False if there is no such directory."""
    if not os.path.isdir(place):  # noqa: PTH112 -- a word may be too long for a path
        return False
    for one in sorted(_below(place)):
        _take(files, one, folder)
    return True


def _below(folder: Path) -> Iterable[Path]:
    """Yield the files of a directory that a trial may need, without hidden files, environments and caches."""
    for one in folder.iterdir():
        if one.name.startswith(".") or one.name in _PASSED_OVER or one.name.endswith((".pyc", ".egg-info")):
            continue
        if one.is_dir() and not one.is_symlink():
            if not (one / "pyvenv.cfg").exists() and not (one / "conda-meta").exists():
                yield from _below(one)
        elif one.is_file():
            yield one
