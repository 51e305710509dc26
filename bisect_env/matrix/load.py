"""Loads and checks a matrix with its files, or reports everything that is wrong with it."""

from __future__ import annotations

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

from bisect_env.errors import MatrixError, UsageError
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
    variable,
)
from bisect_env.matrix.versions import host_platform
from bisect_env.secrets import keep_for_builds

# --------------------------------------------------------------------------------------------------
# From a path to a checked matrix, or to everything that is wrong with it.

MAX_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Matrix:
    """A checked question with the files of its trial: of a matrix file, of words, or of a stored study.

    Attributes:
        file: The parsed file.
        path: Path of the file, as the user named it; None if the question comes from no file.
        text: Its raw text; JSON, which is YAML, if it comes from no file.
        files: Files copied into the working directory of every trial.
        platform: conda's name of the platform: the file's, else this machine's.
        digest: sha256 (hex) of everything that decides what a trial does and what it means: equal digests
            may share trials. Descriptions and the search's own settings are left out, so that a study can be
            resumed with a larger budget.
        lines: Path of a key to its line, for messages.
        folder: Base of relative paths of channels, repositories and folders of wheels.
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
        """Return what messages and commands call the question: the path of its file, or its name."""
        return self.name if self.path is None else str(self.path)

    @property
    def channels(self) -> tuple[str, ...]:
        """Return the conda channels; paths such as `./channel` are resolved relative to the matrix file."""
        return tuple(
            str((self.folder / name).resolve()) if name.startswith(("./", "../")) else name
            for name in self.file.channels
        )

    def command(self, combination: Combination) -> tuple[str, ...]:
        """Return the argument vector of a trial of this combination."""
        return fill(self.file.trial.effective_command, combination.as_dict())

    def image(self, combination: Combination) -> str:
        """Return the name of the container image of a combination; "" if trials do not use containers."""
        if self.file.executor is None:
            return ""
        return fill([self.file.executor.image], combination.as_dict())[0]

    def environment(self, combination: Combination) -> dict[str, str]:
        """Return the environment variables of a trial: `trial.env`, and one for each axis."""
        axes = {variable(axis): value for axis, value in combination.items}
        return {**self.file.trial.env, **axes}

    def repository(self, axis: CommitAxis) -> str:
        """Return the repository of an axis of commits: an address, or the absolute path of a clone."""
        return repository_at(axis.git, self.folder)

    @property
    def find_links(self) -> tuple[str, ...]:
        """Return addresses, and absolute paths of folders, that contain wheels."""
        return tuple(
            text if "://" in text else os.path.normpath(self.folder / Path(text).expanduser())
            for text in self.file.find_links
        )

    def index_of(self, axis: PackageAxis) -> str | None:
        """Return the address of the index that an axis's package must come from; None for any index."""
        return None if axis.index is None else self.file.indexes[axis.index].url

    def line(self, *loc: str | int) -> int | None:
        """Return the line of the deepest known key on the way to `loc`."""
        return line_of(loc, self.lines)


def repository_at(text: str, folder: Path) -> str:
    """Return the repository that a text names: an address, or the absolute path of a clone.

    Args:
        text: An address, `host:path` in ssh's form, or a path.
        folder: Base of relative paths.
    """
    if text.startswith("file://"):
        text = unquote(urlsplit(text).path)
    if "://" in text:
        return text
    place = Path(text).expanduser()
    if not (place if place.is_absolute() else folder / place).exists():
        host, colon, rest = text.partition(":")
        if colon and host and "/" not in host and rest:
            return f"ssh://{host}/{rest.lstrip('/')}"
    return os.path.normpath(folder / place)


def load_matrix(path: str | os.PathLike[str]) -> Matrix:
    """Read and check a matrix file and the files that it names.

    Raises:
        MatrixError: With every problem found, each with its line and remedy.
    """
    where = Path(path)
    return _checked(_read_text(where), where, where.parent, beside(where.parent))


def stored_matrix(text: str, files: Iterable[StudyFile], path: str) -> Matrix:
    """Check the question of a study again.

    Args:
        text: Text of the matrix file, or JSON.
        files: Files that are stored with it.
        path: Path of the matrix file, "" if there was none.

    Raises:
        MatrixError: With every problem found.
    """
    folder = Path(path).absolute().parent if path else Path.cwd()
    return _checked(text, Path(path) if path else None, folder, among(files))


def asked_matrix(data: Mapping[str, Any], files: Iterable[StudyFile]) -> Matrix:
    """Check a question that is given as plain data.

    Args:
        data: What a matrix file would hold.
        files: All files that the trial needs.

    Raises:
        MatrixError: With every problem found.
    """
    text = json.dumps(data, indent=1, ensure_ascii=False)
    # Read as text, as every file and every stored question is: the same check, and the same digest.
    return stored_matrix(text, files, "")


def skipping(matrix: Matrix, words: Iterable[str]) -> Matrix:
    """Return a matrix that leaves out further values, as if `skip` of their axes named them.

    Args:
        matrix: As loaded.
        words: Each `axis=value`, where the value may be a comparison; or only a value, if just one axis has
            several.

    Raises:
        UsageError: A word names no axis of the matrix.
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
        if problem := condition_problem(axes[name], name, value):
            raise UsageError(f"--skip {word}: {problem}")
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
    # Nobody has seen the lines of a question that comes from no file.
    lines = {} if path is None else source.lines
    problems = [*source.problems]
    if not isinstance(source.data, dict):
        raise matrix_error(shown, problems or [_no_mapping(source.data)])
    try:
        file = MatrixFile.model_validate(source.data)
    except ValidationError as error:
        # What could not be read as YAML was left empty; that it is empty is not a second problem.
        unread = {problem.line for problem in problems if problem.line is not None}
        found = of_validation(error, MatrixFile, source.lines)
        problems += [problem for problem in found if problem.line not in unread]
        raise matrix_error(shown, problems) from None
    problems += cross_checks(file, lines)
    files, unreadable = read_files(_file_names(file.trial), read)
    problems += [Problem(why, _line_of_file(name, file.trial, lines)) for name, why in unreadable.items()]
    if problems:
        raise matrix_error(shown, problems)
    for axis in file.axes.values():
        if isinstance(axis, CommitAxis):
            keep_for_builds(axis.build.env)
    platform = file.platform or host_platform()
    digest = _digest(file, files, platform)
    return Matrix(file, path, text, files, platform, digest, lines, folder.absolute())


def _file_names(trial: Trial) -> tuple[str, ...]:
    try:
        return tuple(trial.file_names)
    except ValueError:
        # A brace in the command that is no placeholder: noted by the cross checks.
        return tuple(trial.files)


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
        # Its trials run under other circumstances: they are not those of the study without.
        content["amplify"] = True
    content["platform"] = platform
    content["files"] = [(f.name, hashlib.sha256(f.content).hexdigest(), f.executable) for f in files]
    # Axes are ordered, every other mapping is not; both are kept apart by listing the axes as pairs.
    for axis in content["axes"].values():
        # What they say is which combinations are looked at, not what a trial of one is.
        axis.pop("refine", None)
        axis.pop("skip", None)
        if isinstance(build := axis.get("build"), dict):
            # Of how much is built at a time the wheels know nothing. Limits count: what one of them ended is
            # tried again by the study with another, which takes over all trials.
            build.pop("ahead", None)
    content["axes"] = list(content["axes"].items())
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
