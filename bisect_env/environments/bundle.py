"""Reads and writes the directory that holds everything a study needs on a host without a network.

```
studies/<matrix>.json             what was asked and answered, when, and the size of every archive
locks/<content hash>.conda-lock.yml
archives/<sha256>/<file>
archives/<sha256>/built-<python>/<wheel>    made from the source distribution beside it
pythons/<file>                    interpreters, as uv keeps them
```

Nothing in it names the directory, nothing is a link, and each file stands for itself, so that it can be
copied piece by piece, by several people, in any order.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from bisect_env.environments.download import archive_name, sha256_of
from bisect_env.environments.lock import (
    Lock,
    LockedPackage,
    LockFileError,
    LockResult,
    UnbuildableError,
    UnsolvableError,
)
from bisect_env.environments.lockfiles import read_lock
from bisect_env.environments.request import EnvironmentRequest
from bisect_env.environments.settings import default_build_limit
from bisect_env.errors import InfrastructureError, UsageError
from bisect_env.temporary import read_limited, replacing

_FORMAT = 1
_MAX_STUDY = 256 << 20
"""Bytes of a study's answers; those of a large matrix take a few million."""


@dataclass(slots=True)
class BundledAnswers:
    """The answers of solvers and indexes for a study.

    Attributes:
        matrix: The study's name.
        as_of: What "now" was.
        catalogue: Key of a question to the index (see `offline`) to what it answered, as JSON data.
        locks: Digest of a request to the content hash of its lock, or why there is none.
        archives: sha256 of each archive to its file name and size in bytes.
        files: Everything else (wheels made from source distributions, interpreters), by its path in the
            directory: size in bytes and sha256.
    """

    matrix: str
    as_of: datetime
    catalogue: dict[str, Any] = field(default_factory=dict)
    locks: dict[str, str | UnsolvableError] = field(default_factory=dict)
    archives: dict[str, tuple[str, int]] = field(default_factory=dict)
    files: dict[str, tuple[int, str]] = field(default_factory=dict)


def request_digest(request: EnvironmentRequest) -> str:
    """Return the key of a request's answer: a hash, since the request may contain an index's address."""
    return hashlib.sha256(request.key.encode()).hexdigest()


class Bundle:
    """The directory.

    Args:
        root: Its path on this host.

    Raises:
        InfrastructureError: It holds something that is neither a file nor a directory, or too large a file.
    """

    def __init__(self, root: Path) -> None:
        if root.is_dir():
            _refuse_strange(root)
        self.root = root
        self.archives = root / "archives"
        self.pythons = root / "pythons"

    def write(self, answers: BundledAnswers, locks: Iterable[Lock]) -> None:
        """Write the answers and the list of contents, once everything else is there.

        Raises:
            OSError: It cannot be written.
        """
        for lock in locks:
            _write(self._lock_path(lock.content_hash), lock.text)
        data = {
            "format": _FORMAT,
            "matrix": answers.matrix,
            "as_of": answers.as_of.isoformat(),
            "catalogue": answers.catalogue,
            "locks": {key: _result_data(value) for key, value in sorted(answers.locks.items())},
            "archives": {key: list(value) for key, value in sorted(answers.archives.items())},
            "files": {key: list(value) for key, value in sorted(self._others(answers).items())},
        }
        _write(self._study_path(answers.matrix), json.dumps(data, indent=1, ensure_ascii=False) + "\n")

    def read(self, matrix: str) -> BundledAnswers:
        """Return the answers that were stored for a study.

        Raises:
            UsageError: The directory holds nothing for it.
            InfrastructureError: What it holds cannot be read.
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
            data = json.loads(read_limited(path, _MAX_STUDY))
            _check_format(data["format"])
            return BundledAnswers(
                matrix=str(data["matrix"]),
                as_of=datetime.fromisoformat(data["as_of"]),
                catalogue=dict(data["catalogue"]),
                locks={key: _result(value) for key, value in data["locks"].items()},
                archives={
                    _hash(key): (_name(name), int(size)) for key, (name, size) in data["archives"].items()
                },
                files={
                    str(self._inside(key)): (int(size), _hash(sha256))
                    for key, (size, sha256) in data["files"].items()
                },
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InfrastructureError(
                f"{path} cannot be read: {error!r}", remedy="copy it again, or fetch again"
            ) from error

    def lock(self, content_hash: str) -> Lock:
        """Return a lock of the directory.

        Raises:
            LockFileError: It is not there, or damaged.
        """
        path = self._lock_path(content_hash)
        lock = read_lock(path)
        if lock.content_hash != content_hash:
            raise LockFileError(
                f"{path} holds another lock ({lock.content_hash[:12]})",
                remedy="copy it again, or fetch again",
            )
        return lock

    def result(self, answer: str | UnsolvableError) -> LockResult:
        """Return the lock behind an answer, or the answer itself.

        Raises:
            LockFileError: The lock is not there, or damaged.
        """
        return self.lock(answer) if isinstance(answer, str) else answer

    def folder(self, sha256: str) -> Path:
        """Return the folder of an archive."""
        return self.archives / sha256

    def has(self, sha256: str, name: str, size: int) -> bool:
        """Return whether an archive is there in full length."""
        return _size(self.folder(sha256) / name) == size

    def missing(self, answers: BundledAnswers, *, pythons: bool = True) -> list[str]:
        """Return the names of files that were not copied completely, sorted.

        Args:
            answers: Answers of the study.
            pythons: Whether interpreters count, which a host may have itself.
        """
        absent = [n for s, (n, size) in answers.archives.items() if not self.has(s, n, size)]
        absent += [
            name
            for name, (size, _) in answers.files.items()
            if _size(self.root / name) != size and (pythons or not name.startswith("pythons/"))
        ]
        hashes = {answer for answer in answers.locks.values() if isinstance(answer, str)}
        absent += [p.name for p in map(self._lock_path, hashes) if not p.exists()]
        return sorted(absent)

    def damaged(self, answers: BundledAnswers) -> list[str]:
        """Return the names of files that differ from the fetched ones; reads every file."""
        wrong = [
            name
            for name, (size, sha256) in answers.files.items()
            if _size(self.root / name) == size and sha256_of(self.root / name) != sha256
        ]
        for sha256, (name, size) in answers.archives.items():
            if self.has(sha256, name, size) and sha256_of(self.folder(sha256) / name) != sha256:
                wrong.append(name)
        for content_hash in {answer for answer in answers.locks.values() if isinstance(answer, str)}:
            path = self._lock_path(content_hash)
            try:
                if path.exists():
                    self.lock(content_hash)
            except LockFileError:
                wrong.append(path.name)
        return sorted(wrong)

    def path(self, package: LockedPackage) -> Path:
        """Return the archive of a package on this host, whose hash the installer compares.

        Raises:
            UnbuildableError: It is not there on this host.
        """
        path = self.folder(package.sha256) / archive_name(package)
        if not path.is_file():
            raise UnbuildableError(f"{path.name} is not in {self.root} on this host", transient=True)
        return path.absolute()

    def here(self, package: LockedPackage, python: str) -> LockedPackage:
        """Return the package with address and hash of its archive in this directory, for the installer.

        Args:
            package: Of a lock, from PyPI.
            python: The lock's; source distributions were built for it.

        Raises:
            UnbuildableError: It is not there on this host, or no study of the directory knows it.
        """
        if not package.is_source:
            return replace(package, url=self.path(package).as_uri())
        wheels = sorted(self.built(package.sha256, python).glob("*.whl"))
        if not wheels:
            name = archive_name(package)
            raise UnbuildableError(f"{self.root} holds no wheel made from {name}", transient=True)
        stated = self._files.get(wheels[0].relative_to(self.root).as_posix())
        if stated is None:
            raise UnbuildableError(f"{wheels[0].name} in {self.root} is not what was made", transient=True)
        return replace(package, url=wheels[0].absolute().as_uri(), sha256=stated[1])

    def changed(self, packages: Iterable[LockedPackage]) -> list[str]:
        """Return the names of archives that are not what was fetched or made; reads them.

        Args:
            packages: As `here` returned them.
        """
        paths = [(Path(unquote(urlsplit(p.url).path)), p.sha256) for p in packages]
        return [path.name for path, sha256 in paths if sha256_of(path) != sha256]

    def built(self, sha256: str, python: str) -> Path:
        """Return the path of the wheel that was built from a source distribution."""
        return self.folder(sha256) / f"built-{python}"

    def _others(self, answers: BundledAnswers) -> dict[str, tuple[int, str]]:
        """Return size and hash of the files that are neither archives nor locks."""
        built = (path for sha256 in answers.archives for path in self.folder(sha256).glob("built-*/*.whl"))
        pythons = (path for path in self.pythons.rglob("*") if not path.name.startswith("."))
        return {
            path.relative_to(self.root).as_posix(): (path.stat().st_size, sha256_of(path))
            for path in (*built, *pythons)
            if path.is_file()
        }

    @functools.cached_property
    def _files(self) -> dict[str, tuple[int, str]]:
        """What the studies of the directory say of its files; read once."""
        studies = sorted((self.root / "studies").glob("*.json"))
        return {name: facts for path in studies for name, facts in self.read(path.stem).files.items()}

    def _inside(self, name: object) -> PurePosixPath:
        path = PurePosixPath(str(name))
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"{name!r} is not a path in the directory")
        return path

    def _lock_path(self, content_hash: str) -> Path:
        return self.root / "locks" / f"{content_hash}.conda-lock.yml"

    def _study_path(self, matrix: str) -> Path:
        return self.root / "studies" / f"{matrix}.json"


def _refuse_strange(root: Path) -> None:
    """Refuse a directory that makes a command read or write outside of it, or wait for ever.

    Raises:
        InfrastructureError: It holds a link, a pipe or a device, or a file larger than an environment may be.
    """
    limit = default_build_limit()
    folders = [os.fspath(root)]
    while folders:
        for entry in _entries(folders.pop()):
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
                continue
            with contextlib.suppress(FileNotFoundError):  # another command is writing here
                status = entry.stat(follow_symlinks=False)
                if not stat.S_ISREG(status.st_mode):
                    problem = "is neither a file nor a directory: `bisect-env env fetch` writes nothing else"
                elif status.st_size > limit:
                    problem = f"has {status.st_size} bytes; BISECT_ENV_BUILD_SIZE allows {limit}"
                else:
                    continue
                raise InfrastructureError(
                    f"{entry.path} {problem}",
                    remedy="look who made this directory, or fetch again into another",
                )


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            yield from found
    except OSError as error:
        raise InfrastructureError(
            f"{folder} cannot be read: {error.strerror}", remedy="make it readable, or copy it again"
        ) from error


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def _hash(text: object) -> str:
    if not isinstance(text, str) or not re.fullmatch(r"[0-9a-f]{64}", text):
        raise ValueError(f"{text!a:.80} is no sha256")
    return text


def _name(text: object) -> str:
    if not isinstance(text, str) or not text or "/" in text or text in (".", ".."):
        raise ValueError(f"{text!a:.80} is no name of a file")
    return text


def _check_format(found: object) -> None:
    if found != _FORMAT:
        raise ValueError(f"format {found}, not {_FORMAT}")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as beside:
        beside.write_text(text, "utf-8")


def _result_data(answer: str | UnsolvableError) -> Mapping[str, Any]:
    if isinstance(answer, str):
        return {"lock": answer}
    return {"unsolvable": answer.message, "building": answer.building}


def _result(data: Mapping[str, Any]) -> str | UnsolvableError:
    if "lock" in data:
        return _hash(data["lock"])
    return UnsolvableError(str(data["unsolvable"]), building=bool(data["building"]))
