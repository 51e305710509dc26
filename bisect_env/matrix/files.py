"""Finds and reads the files that a trial needs, such as its script, named by a matrix or a command."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import shlex
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from packaging.requirements import InvalidRequirement, Requirement

from bisect_env.errors import UsageError
from bisect_env.matrix.interpreter import is_python, python_options
from bisect_env.matrix.problems import near

MAX_TOTAL = 16 * 1024 * 1024
"""Maximum total size in bytes of the files of a trial, because they are copied for every trial."""
_SHELLS = {".sh": "bash", ".bash": "bash"}
_PASSED_OVER = {"__pycache__", "node_modules", "build", "dist", "lockfiles"}


@dataclass(frozen=True, slots=True)
class StudyFile:
    """The name and content of a file that a trial needs, such as its script.

    Attributes:
        name: Relative path with forward slashes. It is relative to the folder of the matrix file, and to the
            working directory of a trial.
        content: Content of the file.
        executable: Whether the file may be executed.
    """

    name: str
    content: bytes
    executable: bool = False


# --------------------------------------------------------------------------------------------------
# The files that a matrix names.


def name_problem(name: str) -> str | None:
    """Return an error message if a file with the path `name` cannot be copied into trials.

    The path must be relative and must not leave the folder of the matrix, because the file gets the same
    relative path in the working directory of a trial. Return None if the path is valid.
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
    """Read the files of a study, and collect an error message for each file that cannot be read.

    Args:
        names: Relative paths of the files.
        read: Function that takes a name and a maximum size in bytes, and returns the file (see `beside` and
            `among`).

    Returns:
        The files that could be read, and a dict from the name of each other file to a message.
    """
    files: list[StudyFile] = []
    problems: dict[str, str] = {}
    for name in names:
        problem = name_problem(name)
        if problem is None:
            try:
                files.append(read(name, MAX_TOTAL - sum(len(file.content) for file in files)))
            except OSError as error:
                problem = _why(name, error)
            except ValueError as error:
                problem = str(error)
        if problem is not None:
            problems[name] = problem
    return tuple(files), problems


def beside(folder: Path) -> Callable[[str, int], StudyFile]:
    """Return a function for `read_files` that reads files in a given folder.

    The function raises an error if the file is larger than the given size, is no regular file, or if a link
    leads out of the folder.
    """

    def read(name: str, room: int) -> StudyFile:
        path = folder / name
        status = path.stat()
        # A matrix from somebody else may come with a link to `~/.ssh`, whose files a trial could reveal.
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ValueError(
                f"{name!r} is, or lies behind, a link that leaves the folder of the matrix; "
                "put the file itself beside the matrix or below it"
            )
        if stat.S_ISDIR(status.st_mode):
            raise ValueError(f"{name!r} is a folder; list the files in it")
        if not stat.S_ISREG(status.st_mode):
            # Opening a named pipe would block until its other end is opened.
            raise ValueError(f"{name!r} cannot be read (neither a file nor a folder); name a regular file")
        _check_room(name, status.st_size, room)
        return file_at(name, path)

    return read


def among(files: Iterable[StudyFile]) -> Callable[[str, int], StudyFile]:
    """Return a function for `read_files` that takes files from a given collection instead of the disk.

    It finds them by name.
    """
    known = {str(PurePosixPath(file.name)): file for file in files}

    def read(name: str, room: int) -> StudyFile:
        file = known.get(str(PurePosixPath(name)))
        if file is None:
            raise FileNotFoundError
        _check_room(name, len(file.content), room)
        return file

    return read


def file_at(name: str, place: Path) -> StudyFile:
    """Read one file, and return it with the name that it will have in a trial.

    Args:
        name: Relative path that the file will have in a trial.
        place: Path of the file on this machine.
    """
    return StudyFile(name, place.read_bytes(), os.access(place, os.X_OK))


def _check_room(name: str, size: int, room: int) -> None:
    if size > room:
        limit = MAX_TOTAL // (1024 * 1024)
        raise ValueError(
            f"with {name!r} the files exceed {limit} MiB in all; let the script fetch its data itself"
        )


def _why(name: str, error: OSError) -> str:
    match error:
        case FileNotFoundError() | NotADirectoryError():
            return f"the file {name!r} does not exist beside the matrix; correct the path or add the file"
        case PermissionError():
            return f"the file {name!r} may not be read; change its permissions"
        case _:
            return f"the file {name!r} cannot be read ({error.strerror}); correct the path"


def near_file(place: Path, suffixes: Sequence[str]) -> str:
    """Return advice about a path that does not exist, such as the name of a similar file in its folder.

    Args:
        place: The path that does not exist.
        suffixes: Suffixes of files to suggest, such as `.yaml`.
    """
    others: list[Path] = []
    with contextlib.suppress(OSError):  # there is no such folder, or it may not be listed
        others = sorted(one for one in place.parent.iterdir() if one.suffix in suffixes)
    if not others:
        return "correct the path"
    # Without suffixes: a common one would make any two names similar.
    close = difflib.get_close_matches(place.stem, [one.stem for one in others], n=1)
    alike = [one.name for one in others if one.stem in close]
    return near(alike[0] if alike else "", [one.name for one in others])


# --------------------------------------------------------------------------------------------------
# The files that a command line names.


def full_command(words: Sequence[str], folder: Path) -> tuple[str, ...]:
    """Return the command to run. If it starts with a script, the interpreter is added before the script.

    Args:
        words: Command as the user gave it, such as `["repro.py", "--fast"]`.
        folder: Folder to which the path of the script is relative.

    Raises:
        UsageError: There is no command, it begins with a range of a package, or the script does not exist.
    """
    if not words:
        raise UsageError(
            "nothing to run was given",
            remedy="end the line with a script (`repro.py`), or with `--` and a command",
        )
    _refuse_no_program(words, folder)
    if _is_range(words[0]):
        raise UsageError(
            f"{words[0]!r} is a package with a range, and stands where a script or a command is expected",
            remedy='with several packages `-p` names each: -p "A>=1" -p "B>=2" -- COMMAND; '
            "`--with` adds a package to every environment",
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


def _refuse_no_program(words: Sequence[str], folder: Path) -> None:
    """Raise an error if the first word of a command is an assignment, a notebook or another file."""
    first, place = words[0], folder / words[0]
    if _ASSIGNMENT.fullmatch(first) and "==" not in first:
        remedy = f"let `env` set it: `-- env {shlex.join(words)}`, or use `--env`"
        raise UsageError(f"{first!r} is no program: it sets a variable", remedy=remedy)
    if not Path(first).suffix and "/" not in first:
        return
    if first.endswith(".ipynb"):
        remedy = f"execute it: `--with nbclient --with ipykernel -- jupyter execute {shlex.join(words)}`"
        raise UsageError(f"{first} is a notebook, no program", remedy=remedy)
    if os.path.isdir(place):  # noqa: PTH112 -- a word may be too long for a path
        remedy = f"name a program first: `-- pytest {first}`"
        raise UsageError(f"{first} is a directory, no program", remedy=remedy)
    is_script = Path(first).suffix in (".py", ".pyw", *_SHELLS)
    if os.path.isfile(place) and not is_script and not os.access(place, os.X_OK):  # noqa: PTH113
        remedy = f"name the program that reads it first, or make it executable (`chmod +x {first}`)"
        raise UsageError(f"{first} is a file that cannot be executed", remedy=remedy)


_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)


def _is_range(word: str) -> bool:
    try:
        return bool(Requirement(word).specifier)
    except (InvalidRequirement, RecursionError):
        return False


def travelling(
    command: Sequence[str], extra: Iterable[str], folder: Path
) -> tuple[tuple[str, ...], dict[str, Path]]:
    """Find the files to copy into trials: those that a command names, and the additional ones in `extra`.

    Words that name files outside the folder are replaced, because these files get other paths in a trial.

    Args:
        command: Words of the command. Words that name existing files or directories are copied; `FILE::TEST`
            names `FILE`.
        extra: Additional files and directories to copy.
        folder: Folder to which paths are relative.

    Returns:
        The command to run in a trial, in which files from outside `folder` have names without directories;
        and a dict from the name of each file in a trial to its path on this machine.

    Raises:
        UsageError: Two files would get the same name in a trial, or a file in `extra` does not exist.
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
    """Add the file at `place` to `files`, and return its name in the directory of a trial.

    The name is the path relative to `folder` or, for a file outside `folder`, only the file name.
    """
    whole, base = place.resolve(), folder.resolve()
    name = whole.relative_to(base).as_posix() if whole.is_relative_to(base) else whole.name
    if files.setdefault(name, whole) != whole:
        raise UsageError(
            f"{place} and {files[name]} would both travel as {name}", remedy="rename one, or copy it here"
        )
    return name


def _take_below(files: dict[str, Path], place: Path, folder: Path) -> bool:
    """Add all files in a directory to `files`, and return whether `place` is a directory.

    Some files are left out (see `_below`).
    """
    if not os.path.isdir(place):  # noqa: PTH112 -- a word may be too long for a path
        return False
    for one in sorted(_below(place)):
        _take(files, one, folder)
    return True


def _below(folder: Path) -> Iterable[Path]:
    """Yield all files in a directory and its subdirectories, except hidden and generated files.

    Hidden files, caches, build outputs, environments and linked directories are left out.
    """
    for one in folder.iterdir():
        if one.name.startswith(".") or one.name in _PASSED_OVER or one.name.endswith((".pyc", ".egg-info")):
            continue
        if one.is_dir() and not one.is_symlink():
            if not (one / "pyvenv.cfg").exists() and not (one / "conda-meta").exists():
                yield from _below(one)
        elif one.is_file():
            yield one
