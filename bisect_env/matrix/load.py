"""Loads and checks a matrix with its files, or reports everything that is wrong with it."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ValidationError

from bisect_env.errors import MatrixError, UsageError
from bisect_env.matrix import yaml_source
from bisect_env.matrix.contradictions import cross_checks, listed_values, value_problem
from bisect_env.matrix.files import StudyFile, read_files
from bisect_env.matrix.grid import Combination
from bisect_env.matrix.problems import Path as Loc
from bisect_env.matrix.problems import Problem, matrix_error, near, of_validation
from bisect_env.matrix.schema import (
    CommitAxis,
    CommitBuild,
    ContainerExecutor,
    DateAxis,
    DateRange,
    EnvironmentAxis,
    MatrixFile,
    PackageAxis,
    Packages,
    Rule,
    SearchLimits,
    Solver,
    TargetRule,
    Trial,
    ValueAxis,
    WholeEnvironment,
    fill,
    variable,
)
from bisect_env.matrix.secrets import keep_for_builds
from bisect_env.matrix.versions import host_platform

# --------------------------------------------------------------------------------------------------
# From a path to a checked matrix, or to everything that is wrong with it.

MAX_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Matrix:
    """A checked matrix file with the files of its trial.

    Attributes:
        file: The parsed file.
        path: Path of the file, as the user named it.
        text: Its raw text.
        files: Files copied into the working directory of every trial.
        platform: conda's name of the platform: the file's, else this machine's.
        digest: sha256 (hex) of everything that decides what a trial does and what it means: equal digests
            may share trials. Descriptions and the search's own settings are left out, so that a study can be
            resumed with a larger budget.
        lines: Path of a key to its line, for messages.
    """

    file: MatrixFile
    path: Path
    text: str
    files: tuple[StudyFile, ...]
    platform: str
    digest: str
    lines: Mapping[Loc, int]

    @property
    def name(self) -> str:
        """Return the study's name."""
        return self.file.name

    @property
    def channels(self) -> tuple[str, ...]:
        """Return the conda channels; paths such as `./channel` are resolved relative to the matrix file."""
        return tuple(
            str((self.path.parent / name).resolve()) if name.startswith(("./", "../")) else name
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
        return repository_at(axis.git, self.path.absolute().parent)

    @property
    def find_links(self) -> tuple[str, ...]:
        """Return addresses, and absolute paths of folders, that contain wheels."""
        folder = self.path.absolute().parent
        return tuple(
            text if "://" in text else os.path.normpath(folder / Path(text).expanduser())
            for text in self.file.find_links
        )

    def index_of(self, axis: PackageAxis) -> str | None:
        """Return the address of the index that an axis's package must come from; None for any index."""
        return None if axis.index is None else self.file.indexes[axis.index].url

    def line(self, *loc: str | int) -> int | None:
        """Return the line of the deepest known key on the way to `loc`."""
        while loc and loc not in self.lines:
            loc = loc[:-1]
        return self.lines.get(loc)


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
    text = _read_text(where)
    source = yaml_source.parse(text)
    problems = list(source.problems)
    if isinstance(source.data, dict):
        return _checked(where, text, source, problems)
    if not problems:
        problems.append(_no_mapping(source.data))
    raise matrix_error(str(path), problems)


def skipping(matrix: Matrix, words: Iterable[str]) -> Matrix:
    """Return a matrix that leaves out further values, as if `skip` of their axes named them.

    Args:
        matrix: As loaded.
        words: Each `axis=value`, where the value may be a comparison; or only a value, if just one axis has
            several.

    Raises:
        UsageError: A word names no axis of the matrix.
    """
    several = [name for name, axis in matrix.file.axes.items() if len(listed_values(axis) or "ab") > 1]
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
        if problem := value_problem(name, axes[name], value):
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
        beside = sorted(p.name for p in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
        remedy = near(path.name, beside) if beside else "correct the path"
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


def _keys(model: type[BaseModel]) -> tuple[str, ...]:
    return tuple(info.alias or name for name, info in model.model_fields.items())


KEYS_AT: dict[str, tuple[str, ...]] = {
    "": _keys(MatrixFile),
    "axes.package-axis": _keys(PackageAxis),
    "axes.value-axis": _keys(ValueAxis),
    "axes.date-axis": _keys(DateAxis),
    "axes.environment-axis": _keys(EnvironmentAxis),
    "axes.commit-axis": _keys(CommitAxis),
    "environments": _keys(WholeEnvironment),
    "build": _keys(CommitBuild),
    "dates": _keys(DateRange),
    "packages": _keys(Packages),
    "solver": _keys(Solver),
    "exclude": _keys(Rule),
    "include": _keys(Rule),
    "executor": _keys(ContainerExecutor),
    "trial": _keys(Trial),
    "trial.bad": _keys(TargetRule),
    "search": _keys(SearchLimits),
}


def _checked(path: Path, text: str, source: yaml_source.Source, problems: list[Problem]) -> Matrix:
    try:
        file = MatrixFile.model_validate(source.data)
    except ValidationError as error:
        # What could not be read as YAML was left empty; that it is empty is not a second problem.
        unread = {problem.line for problem in problems}
        found = of_validation(error, source.lines, KEYS_AT)
        problems += [problem for problem in found if problem.line not in unread]
        raise matrix_error(str(path), problems) from None
    problems += cross_checks(file, source.lines)
    files, unreadable = _trial_files(path.parent, file.trial)
    problems += [Problem(why, _line_of_file(name, file.trial, source)) for name, why in unreadable.items()]
    if problems:
        raise matrix_error(str(path), problems)
    for axis in file.axes.values():
        if isinstance(axis, CommitAxis):
            keep_for_builds(axis.build.env)
    platform = file.platform or host_platform()
    return Matrix(file, path, text, files, platform, _digest(file, files, platform), source.lines)


def _trial_files(folder: Path, trial: Trial) -> tuple[tuple[StudyFile, ...], dict[str, str]]:
    try:
        return read_files(folder, trial.file_names)
    except ValueError:
        # A brace in the command that is no placeholder: noted by the cross checks.
        return read_files(folder, trial.files)


def _line_of_file(name: str, trial: Trial, source: yaml_source.Source) -> int | None:
    key = ("trial", "command")
    for i, listed in enumerate(trial.files):
        if str(Path(listed)) == name:
            key = ("trial", "files")
            return source.lines.get((*key, i), source.lines.get(key))
    return source.lines.get(key)


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
    content["axes"] = list(content["axes"].items())
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
