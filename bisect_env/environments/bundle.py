"""Reads and writes the directory that `bisect-env env fetch` fills for a host without a network.

```
studies/<matrix>.json             responses of indexes and solvers, their date, and each file's size and hash
locks/<content hash>.conda-lock.yml
archives/<sha256>/<file>
archives/<sha256>/built-<python>/<wheel>    built from the source distribution in `archives/<sha256>`
pythons/<file>                    Python interpreters, in uv's format
```

The files contain neither links nor the path of the directory, so they can be copied to another place one by
one and in any order.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, NoReturn
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, AwareDatetime, BaseModel, StringConstraints, ValidationError

from bisect_env.environments.download import file_name, sha256_of
from bisect_env.environments.lock import Lock, LockedPackage, LockFileError, UnbuildableError
from bisect_env.environments.lockfiles import read_lock
from bisect_env.environments.request import EnvironmentRequest
from bisect_env.errors import InfrastructureError, UsageError
from bisect_env.matrix.versions import Release
from bisect_env.temporary import read_limited, write_atomically

_MAX_STUDY = 256 << 20
"""Maximum size in bytes of a file in `studies`. The file of a large matrix has a few MB."""
_MAX_FILE = 64 << 30
"""Maximum size in bytes of any file. The largest archives in use have about 3 GB."""
_MAX_NAME, _MAX_PATH = 255, 1024
"""Maximum sizes in bytes of the name of a file, and of its path in the directory."""


def _inside(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{name!r} is not a path in the directory")
    if len(name.encode()) > _MAX_PATH or any(len(part.encode()) > _MAX_NAME for part in path.parts):
        raise ValueError(f"a path of {len(name)} characters is longer than file systems allow")
    return name


Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]


class NoLock(BaseModel):
    """The recorded error of a solver that found no solution for a request; see `lock.UnsolvableError`."""

    message: str
    building: bool


class BundledAnswers(BaseModel):
    """The recorded responses of indexes and solvers for a study, and a list of the study's files.

    With them and the files, a host without a network can run the study.

    Attributes:
        format: Version of the file format.
        matrix: Name of the matrix.
        as_of: Time at which the responses were recorded.
        catalogue: Maps queries (see `provider.RememberedCatalogue`) to the recorded responses.
        locks: Maps the digest of a request to the content hash of its lock, or to the solver's error.
        files: Maps the path of each file, relative to the directory, to its size in bytes and its sha256.
            Lock files are not included, because `locks` states their hashes.
    """

    format: Literal[2] = 2
    matrix: str
    as_of: AwareDatetime
    catalogue: dict[str, list[Release] | list[str]] = {}
    locks: dict[str, Sha256 | NoLock] = {}
    files: dict[Annotated[str, AfterValidator(_inside)], tuple[int, Sha256]] = {}


def request_digest(request: EnvironmentRequest) -> str:
    """Return the sha256 of an environment request, which is its key in `BundledAnswers.locks`.

    The request itself is not the key, because it may contain the URL of a private index.
    """
    return hashlib.sha256(request.key.encode()).hexdigest()


class Bundle:
    """A directory written by `bisect-env env fetch`, with archives, locks and recorded index responses.

    Args:
        root: Path of the directory on this host; need not exist yet.

    Raises:
        InfrastructureError: The directory contains a link, a pipe, a device or a file that is too large.
    """

    def __init__(self, root: Path) -> None:
        if root.is_dir():
            _refuse_strange(root)
        self.root = root
        self.archives = root / "archives"
        self.pythons = root / "pythons"

    def write(self, answers: BundledAnswers, locks: Iterable[Lock]) -> None:
        """Write the locks, and write the recorded responses to `studies/<matrix>.json`.

        All other files must have been written before, because that file lists their sizes and hashes. Built
        wheels and interpreters are added to the list.

        Args:
            answers: Recorded responses of the study, with its archives as `files`.
            locks: The locks to write.

        Raises:
            OSError: A file cannot be written.
        """
        for lock in locks:
            write_atomically(self._lock_path(lock.content_hash), lock.text)
        answers.files = dict(sorted((answers.files | self._others(answers)).items()))
        write_atomically(self._study_path(answers.matrix), answers.model_dump_json(indent=1) + "\n")

    def read(self, matrix: str) -> BundledAnswers:
        """Return the recorded responses for the study of a matrix.

        Raises:
            UsageError: The directory contains nothing for that matrix.
            InfrastructureError: The study's file cannot be read.
        """
        path = self._study_path(matrix)
        if not path.exists():
            there = sorted(p.stem for p in (self.root / "studies").glob("*.json"))
            raise UsageError(
                f"{self.root} holds nothing for the matrix {matrix!r}"
                + (f", but for {', '.join(there)}" if there else ""),
                remedy="`bisect-env env fetch MATRIX -o DIR` on a machine with a network",
            )
        try:
            return BundledAnswers.model_validate_json(read_limited(path, _MAX_STUDY))
        except (OSError, ValueError) as error:
            why = str(error)
            if isinstance(error, ValidationError):
                first = error.errors(include_url=False)[0]
                why = f"{'.'.join(map(str, first['loc'])) or 'JSON'}: {first['msg']}"
            raise InfrastructureError(
                f"{path} cannot be read: {why}", remedy="copy it again, or fetch again"
            ) from error

    def lock(self, content_hash: str) -> Lock:
        """Read the lock with the given content hash from this directory.

        Raises:
            LockFileError: The lock file is missing or damaged.
        """
        path = self._lock_path(content_hash)
        lock = read_lock(path)
        if lock.content_hash != content_hash:
            raise LockFileError(
                f"{path} holds another lock ({lock.content_hash[:12]})",
                remedy="copy it again, or fetch again",
            )
        return lock

    def folder(self, sha256: str) -> Path:
        """Return the path in this directory at which the archive with the given sha256 is stored."""
        return self.archives / sha256

    def missing(self, answers: BundledAnswers, *, pythons: bool = True) -> list[str]:
        """Return the sorted paths of the study's files that are missing or have the wrong size.

        Args:
            answers: Recorded responses of the study.
            pythons: Whether to include interpreters. A host may have these installed already.
        """
        absent = [
            name
            for name, (size, _) in answers.files.items()
            if self._size(name) != size and (pythons or not name.startswith("pythons/"))
        ]
        absent += [p.name for p in map(self._lock_path, _hashes(answers)) if not p.exists()]
        return sorted(absent)

    def damaged(self, answers: BundledAnswers) -> list[str]:
        """Return the paths of the study's files whose content does not match the hash. Reads every file."""
        wrong = [
            name
            for name, (size, sha256) in answers.files.items()
            if self._size(name) == size and sha256_of(self.root / name) != sha256
        ]
        for content_hash in _hashes(answers):
            path = self._lock_path(content_hash)
            try:
                if path.exists():
                    self.lock(content_hash)
            except LockFileError:
                wrong.append(path.name)
        return sorted(wrong)

    def path(self, package: LockedPackage) -> Path:
        """Return the path of a package's archive in this directory.

        The hash of the archive is checked by the installer, not here.

        Raises:
            UnbuildableError: The archive is missing.
        """
        path = self.folder(package.sha256) / file_name(package.url)
        if not path.is_file():
            raise UnbuildableError(f"{path.name} is not in {self.root} on this host", transient=True)
        return path.absolute()

    def here(self, package: LockedPackage, python: str) -> LockedPackage:
        """Return a locked package with its URL replaced by that of its wheel in this directory.

        The installer then needs no network. For a source distribution, the wheel is the one that `bisect-env
        env fetch` has built, and the copy has the hash of that wheel.

        Args:
            package: A PyPI package of a lock.
            python: Python version of the lock.

        Raises:
            UnbuildableError: The wheel is missing, or is not listed in any study of the directory.
        """
        if not package.is_source:
            return replace(package, url=self.path(package).as_uri())
        wheels = sorted(self.built(package.sha256, python).glob("*.whl"))
        if not wheels:
            name = file_name(package.url)
            raise UnbuildableError(f"{self.root} holds no wheel made from {name}", transient=True)
        stated = self._files.get(wheels[0].relative_to(self.root).as_posix())
        if stated is None:
            raise UnbuildableError(f"{wheels[0].name} in {self.root} is not what was made", transient=True)
        return replace(package, url=wheels[0].absolute().as_uri(), sha256=stated[1])

    def changed(self, packages: Iterable[LockedPackage]) -> list[str]:
        """Return the file names of the packages whose archive differs from its recorded hash.

        Args:
            packages: Packages returned by `here`.
        """
        paths = [(Path(unquote(urlsplit(p.url).path)), p.sha256) for p in packages]
        return [path.name for path, sha256 in paths if sha256_of(path) != sha256]

    def built(self, sha256: str, python: str) -> Path:
        """Return the directory of the wheel that was built from a source distribution.

        Args:
            sha256: Hash of the source distribution.
            python: Python version for which the wheel was built.
        """
        return self.folder(sha256) / f"built-{python}"

    def _others(self, answers: BundledAnswers) -> dict[str, tuple[int, str]]:
        """Return a map from path to (size, sha256) for the built wheels and the files in `pythons`."""
        folders = {(self.root / name).parent for name in answers.files if name.startswith("archives/")}
        built = (path for folder in folders for path in folder.glob("built-*/*.whl"))
        pythons = (path for path in self.pythons.rglob("*") if not path.name.startswith("."))
        return {
            path.relative_to(self.root).as_posix(): (path.stat().st_size, sha256_of(path))
            for path in (*built, *pythons)
            if path.is_file()
        }

    @functools.cached_property
    def _files(self) -> dict[str, tuple[int, str]]:
        """Return a map from path to (size, sha256) for the wheels and interpreters that all studies list.

        The files of the studies are read once and cached.
        """
        studies = sorted((self.root / "studies").glob("*.json"))
        return {name: facts for path in studies for name, facts in self.read(path.stem).files.items()}

    def _size(self, name: str) -> int | None:
        path = self.root / name
        return path.stat().st_size if path.is_file() else None

    def _lock_path(self, content_hash: str) -> Path:
        return self.root / "locks" / f"{content_hash}.conda-lock.yml"

    def _study_path(self, matrix: str) -> Path:
        return self.root / "studies" / f"{matrix}.json"


def _refuse_strange(root: Path) -> None:
    """Raise an error if the directory `root` contains links, special files or files that are too large.

    A link could lead to files outside of `root`, and reading a pipe or a device could block forever.

    Raises:
        InfrastructureError: The directory contains a link, a pipe, a device or a file that is too large.
    """
    for folder, names, files in os.walk(root, onerror=_refuse_unreadable):
        for path in (Path(folder, name) for name in (*names, *files)):
            with contextlib.suppress(FileNotFoundError):  # another command is writing here
                status = path.lstat()
                if stat.S_ISREG(status.st_mode) and status.st_size > _MAX_FILE:
                    problem = f"has {status.st_size} bytes, more than any archive"
                elif not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
                    problem = "is neither a file nor a directory: `bisect-env env fetch` writes nothing else"
                else:
                    continue
                raise InfrastructureError(
                    f"{path} {problem}", remedy="look who made this directory, or fetch again into another"
                )


def _refuse_unreadable(error: OSError) -> NoReturn:
    raise InfrastructureError(
        f"{error.filename} cannot be read: {error.strerror}", remedy="make it readable, or copy it again"
    ) from error


def _hashes(answers: BundledAnswers) -> set[str]:
    """Return the content hashes of a study's locks."""
    return {answer for answer in answers.locks.values() if isinstance(answer, str)}
