"""Loads and checks a matrix and the files that it names. All problems are reported in one error."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import ValidationError

from bisect_env.errors import MatrixError, UsageError, expanded
from bisect_env.matrix import yaml_source
from bisect_env.matrix.contradictions import cross_checks
from bisect_env.matrix.files import StudyFile, among, beside, near_file, read_files
from bisect_env.matrix.grid import Combination
from bisect_env.matrix.problems import Path as Loc
from bisect_env.matrix.problems import Problem, line_of, matrix_error, of_validation
from bisect_env.matrix.rules import condition_problem
from bisect_env.matrix.schema import (
    CommitAxis,
    MatrixFile,
    PackageAxis,
    Trial,
    fill,
    fill_variable,
    variable,
)
from bisect_env.matrix.versions import host_platform
from bisect_env.secrets import keep_for_builds

# --------------------------------------------------------------------------------------------------
# Loading and checking a matrix.

MAX_BYTES = 256 * 1024
"""Maximum size of a matrix file in bytes."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A validated matrix, together with the contents of the files that its trials need.

    It was read from a matrix file, from the words of a command line or from a stored study.

    Attributes:
        file: Parsed content of the matrix file.
        path: Path of the matrix file, as the user named it; None if the matrix comes from a command line.
        text: Text of the matrix file; JSON (which is valid YAML) if the matrix comes from a command line.
        files: Files that are copied into the working directory of every trial.
        platform: conda's name of the platform that the file names, such as `linux-64`, or of this machine.
        digest: SHA-256 (hexadecimal) of everything that determines what trials do and what their outcomes
            mean. Studies with equal digests can share trials. Descriptions and settings of the search are
            left out, so that a study can be resumed with a larger budget.
        lines: Path of each key to its line number, for messages.
        folder: Folder to which channels, repositories and folders of wheels are relative.
    """

    file: MatrixFile
    path: Path | None
    text: str
    files: tuple[StudyFile, ...]
    platform: str
    digest: str
    lines: Mapping[Loc, int]
    folder: Path = field(default_factory=Path.cwd)

    @property
    def name(self) -> str:
        """Return the study's name."""
        return self.file.name

    @property
    def shown(self) -> str:
        """Return the name by which messages and commands refer to the matrix.

        This is the path of the matrix file or, if there is none, the name of the study.
        """
        return self.name if self.path is None else str(self.path)

    @property
    def channels(self) -> tuple[str, ...]:
        """Return the conda channels of the matrix, with paths as absolute paths.

        Paths such as `./channel` are resolved relative to the folder of the matrix file.
        """
        return tuple(
            str((self.folder / name).resolve()) if name.startswith(("./", "../")) else name
            for name in self.file.channels
        )

    def command(self, combination: Combination) -> tuple[str, ...]:
        """Return the command that a trial of a combination runs: the program and its arguments."""
        return fill(self.file.trial.command, combination.as_dict())

    def image(self, combination: Combination) -> str:
        """Return the name of the container image in which a combination is tried.

        Return "" if trials do not use containers.
        """
        if self.file.executor is None:
            return ""
        return fill([self.file.executor.image], combination.as_dict())[0]

    def environment(self, combination: Combination) -> dict[str, str]:
        """Return the environment variables that are set for a trial of a combination.

        They are the variables of `trial.env`, and one variable for each axis with its value.
        """
        axes = {variable(axis): value for axis, value in combination.items}
        values = combination.as_dict()
        return {name: fill_variable(text, values) for name, text in self.file.trial.env.items()} | axes

    def repository(self, axis: CommitAxis) -> str:
        """Return the address of the repository of a commit axis or, for a local clone, its absolute path."""
        return repository_at(axis.git, self.folder)

    @property
    def find_links(self) -> tuple[str, ...]:
        """Return the places to search for wheels: addresses of web pages and absolute paths of folders."""
        return tuple(
            text if "://" in text else os.path.normpath(self.folder / expanded(text))
            for text in self.file.find_links
        )

    def index_of(self, axis: PackageAxis) -> str | None:
        """Return the address of the index that must provide the package of an axis, or None for any index."""
        return None if axis.index is None else self.file.indexes[axis.index].url

    def line(self, *loc: str | int) -> int | None:
        """Return the line number of a key in the matrix file, for messages.

        If the file lacks the key, the line of its nearest parent is returned, or None if that is missing,
        too.
        """
        return line_of(loc, self.lines)


def repository_at(text: str, folder: Path) -> str:
    """Return the address of a repository or, for a clone on this machine, its absolute path.

    Args:
        text: Address, `host:path` as for ssh, or path of a clone.
        folder: Folder to which the path is relative.
    """
    if text.startswith("file://"):
        with contextlib.suppress(ValueError):  # git says why an invalid address is none
            text = unquote(urlsplit(text).path)
    if "://" in text:
        return text
    place = expanded(text)
    if not (place if place.is_absolute() else folder / place).exists():
        host, colon, rest = text.partition(":")
        if colon and host and "/" not in host and rest:
            return f"ssh://{host}/{rest.lstrip('/')}"
    return os.path.normpath(folder / place)


def load_matrix(path: str | os.PathLike[str]) -> Matrix:
    """Load and check the matrix file at `path` and the files that it names.

    Raises:
        MatrixError: The matrix is invalid; the error lists all problems, with lines and remedies.
    """
    where = Path(path)
    return _checked(_read_text(where), where, where.parent, beside(where.parent))


def stored_matrix(text: str, files: Iterable[StudyFile], path: str) -> Matrix:
    """Build the matrix of a study from the stored text of its matrix file, and check it again.

    Args:
        text: Stored text of the matrix (YAML or JSON).
        files: Files that are stored with it.
        path: Path of the original matrix file; "" if there was none.

    Raises:
        MatrixError: The matrix is invalid; the error lists all problems.
    """
    folder = Path(path).absolute().parent if path else Path.cwd()
    return _checked(text, Path(path) if path else None, folder, among(files))


def asked_matrix(data: Mapping[str, Any], files: Iterable[StudyFile]) -> Matrix:
    """Build a matrix from a dict, such as the result of `question_data`, and check it.

    Args:
        data: Content of a matrix file, as a mapping.
        files: All files that the trial needs.

    Raises:
        MatrixError: The matrix is invalid; the error lists all problems.
    """
    text = json.dumps(data, indent=1, ensure_ascii=False)
    # Convert it to text first: so it is checked like a file, and gets the same digest as when it is stored.
    return stored_matrix(text, files, "")


def skipping(matrix: Matrix, words: Iterable[str]) -> Matrix:
    """Return a copy of a matrix in which some values of its axes are skipped, that is, never tried.

    The values are added to the key `skip` of their axes.

    Args:
        matrix: Matrix to copy.
        words: Values of the option `--skip`: `axis=value`, where the value may be a comparison (`<3.2`); or
            only a value, if just one axis has several.

    Raises:
        UsageError: A word names no axis, or a value that is not on its axis.
    """
    several = [name for name, axis in matrix.file.axes.items() if len(axis.listed or "ab") > 1]
    axes = dict(matrix.file.axes)
    for word in words:
        name, separator, value = word.partition("=")
        if name not in axes:
            name, separator, value = "", "", word
        if not separator and len(several) == 1:
            name = several[0]
        if not name or not value:
            raise UsageError(
                f"--skip {word}: which axis is meant?",
                remedy=f"write it as {several[0] if several else next(iter(axes))}=VALUE",
            )
        if found := condition_problem(axes[name], name, value, where=f"--skip {word}"):
            problem, _, remedy = found.rpartition("; ")
            raise UsageError(problem, remedy=remedy)
        axes[name] = axes[name].model_copy(update={"skip": (*axes[name].skip, value)})
    return replace(matrix, file=matrix.file.model_copy(update={"axes": axes}))


def _no_mapping(data: Any) -> Problem:
    if data is None:
        return Problem("the file is empty; begin with `version: 1`, and see docs/reference/matrix.md")
    kind = "a list" if isinstance(data, list) else "a single text"
    return Problem(f"the file holds {kind}, not `key: value` lines; begin with `version: 1`", 1)


def _read_text(path: Path) -> str:
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise MatrixError(str(path), ["this is a folder; name a matrix file in it"])
        if not stat.S_ISREG(status.st_mode):
            raise MatrixError(str(path), ["this is not a regular file; name a matrix file"])
        if status.st_size > MAX_BYTES:
            size = MAX_BYTES // 1024
            raise MatrixError(str(path), [f"the file is larger than {size} KiB; a matrix is a page or two"])
        raw = path.read_bytes()
    except FileNotFoundError:
        remedy = near_file(path, (".yaml", ".yml"))
        raise MatrixError(str(path), [f"the file does not exist; {remedy}"]) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise MatrixError(str(path), [f"the file cannot be read ({why}); correct the path"]) from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        problem = Problem(f"byte {raw[error.start]:#04x} is not UTF-8; save the file as UTF-8", line)
        raise matrix_error(str(path), [problem]) from None


def _checked(text: str, path: Path | None, folder: Path, read: Callable[[str, int], StudyFile]) -> Matrix:
    shown = str(path or "the question")
    source = yaml_source.parse(text)
    # Without a file there are no lines that the user could look up.
    lines = {} if path is None else source.lines
    problems = [*source.problems]
    if not isinstance(source.data, dict):
        raise matrix_error(shown, problems or [_no_mapping(source.data)])
    try:
        file = MatrixFile.model_validate(source.data)
    except ValidationError as error:
        # A value that is not valid YAML is None in the data; do not report it a second time as empty.
        unread = {problem.line for problem in problems if problem.line is not None}
        found = of_validation(error, MatrixFile, source.lines)
        problems += [problem for problem in found if problem.line not in unread]
        raise matrix_error(shown, problems) from None
    problems += cross_checks(file, lines)
    files, unreadable = read_files(file.trial.file_names, read)
    unreadable = {name: why for name, why in unreadable.items() if name not in file.trial.perhaps_files}
    problems += [Problem(why, _line_of_file(name, file.trial, lines)) for name, why in unreadable.items()]
    if problems:
        raise matrix_error(shown, problems)
    for axis in file.axes.values():
        if isinstance(axis, CommitAxis):
            keep_for_builds(axis.build.env)
    platform = file.platform or host_platform()
    digest = _digest(file, files, platform)
    return Matrix(file, path, text, files, platform, digest, lines, folder.absolute())


def _line_of_file(name: str, trial: Trial, lines: Mapping[Loc, int]) -> int | None:
    listed = [str(PurePosixPath(file)) for file in trial.files]
    if name in listed:
        return line_of(("trial", "files", listed.index(name)), lines)
    return lines.get(("trial", "command"))


def _digest(file: MatrixFile, files: tuple[StudyFile, ...], platform: str) -> str:
    content = file.model_dump(mode="json", by_alias=True, exclude={"description", "search"})
    for key in ("exclude", "include"):
        content[key] = [rule["when"] for rule in content[key]]
    if file.search.amplify:
        # With `amplify`, trials run under other circumstances and cannot be shared with a study without it.
        content["amplify"] = True
    content["platform"] = platform
    content["files"] = [(f.name, hashlib.sha256(f.content).hexdigest(), f.executable) for f in files]
    # The order of the axes matters, the order of other keys does not: axes become a list, keys are sorted.
    for axis in content["axes"].values():
        # These keys determine which combinations are tried, not what a trial does.
        axis.pop("refine", None)
        axis.pop("skip", None)
        if isinstance(build := axis.get("build"), dict):
            # How many commits are built at a time does not change the wheels. Limits of a build do count: a
            # study with another limit must try again to build what exceeded the old one.
            build.pop("ahead", None)
    content["axes"] = list(content["axes"].items())
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
