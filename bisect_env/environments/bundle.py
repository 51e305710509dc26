"""Reads and writes the directory that holds everything a study needs on a host without a network.

```
studies/<matrix>.json             what was asked and answered, when, and the size of every archive
locks/<content hash>.conda-lock.yml
archives/<sha256>/<file>          or <file>.000, <file>.001, ... where files had to be small
archives/<sha256>/built-<python>/<wheel>    made from the source distribution beside it
pythons/<file>                    interpreters, as uv keeps them
```

Nothing in it names the directory, nothing is a link, and each file stands for itself, so that it can be
copied piece by piece, by several people, in any order.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, urlsplit

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
_COPY = 1 << 20
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
    """Under which a request's answer is kept: its key may hold the address of an index."""
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
                remedy="`bisect-env fetch MATRIX --to DIR` on a machine with a network",
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
        """Return whether an archive is there in full length, whole or in pieces."""
        return sum(p.stat().st_size for p in self._pieces(sha256, name)) == size

    def missing(self, answers: BundledAnswers, *, pythons: bool = True) -> list[str]:
        """Names of files that were not copied completely, sorted.

        Args:
            answers: Of the study.
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
        """Names of files that differ from what was fetched; reads every file."""
        wrong = [
            name
            for name, (size, sha256) in answers.files.items()
            if _size(self.root / name) == size and sha256_of(self.root / name) != sha256
        ]
        for sha256, (name, size) in answers.archives.items():
            if self.has(sha256, name, size) and sha256_of(*self._pieces(sha256, name)) != sha256:
                wrong.append(name)
        for content_hash in {answer for answer in answers.locks.values() if isinstance(answer, str)}:
            path = self._lock_path(content_hash)
            try:
                if path.exists():
                    self.lock(content_hash)
            except LockFileError:
                wrong.append(path.name)
        return sorted(wrong)

    def split(self, sha256: str, name: str, piece_size: int) -> None:
        """Cut an archive into pieces, if it is larger than one.

        Raises:
            OSError: There is no room.
        """
        whole = self.folder(sha256) / name
        if whole.stat().st_size <= piece_size:
            return
        with whole.open("rb") as stream:
            for number, start in enumerate(range(0, whole.stat().st_size, piece_size)):
                with whole.with_name(f"{name}.{number:03d}").open("wb") as piece:
                    stream.seek(start)
                    _copy(stream, piece, piece_size)
        whole.unlink()

    def join(self, sha256: str, name: str) -> None:
        """Undo `split`, if it was done."""
        found = self._pieces(sha256, name)
        whole = self.folder(sha256) / name
        if found and found != [whole]:
            _join(found, whole)
            for piece in found:
                piece.unlink()

    def path(self, package: LockedPackage, joined: Path) -> Path:
        """Return the archive of a package on this host, compared with its hash.

        Args:
            package: Of a lock.
            joined: Where archives that lie in pieces are put together.

        Raises:
            UnbuildableError: It is not there on this host, or damaged.
            OSError: It cannot be put together.
        """
        name = archive_name(package)
        found = self._pieces(package.sha256, name)
        if not found:
            raise UnbuildableError(f"{name} is not in {self.root} on this host", transient=True)
        if sha256_of(*found) != package.sha256:
            raise UnbuildableError(f"{name} in {self.root} is not what was fetched", transient=True)
        if found[0].name == name:
            return found[0].absolute()
        path = joined / package.sha256 / name
        path.parent.mkdir(parents=True, exist_ok=True)
        _join(found, path)
        return path

    def here(self, package: LockedPackage, python: str) -> LockedPackage:
        """Return the package with the address of its archive in this directory.

        What lies in pieces has an address at which `served_pieces` has to serve it; who fetches it compares
        it with its hash.

        Args:
            package: Of a lock, from PyPI.
            python: The lock's; source distributions were built for it.

        Raises:
            UnbuildableError: It is not there on this host, or damaged.
        """
        if not package.is_source:
            name = archive_name(package)
            parts = self.pieces(package)
            if parts and parts[0].name != name:
                return replace(package, url=piece_address(package.sha256, name))
            return replace(package, url=self.path(package, Path()).as_uri())
        wheels = sorted(self.built(package.sha256, python).glob("*.whl"))
        if not wheels:
            name = archive_name(package)
            raise UnbuildableError(f"{self.root} holds no wheel made from {name}", transient=True)
        stated = {sha256 for study in self._studies() for name, (_, sha256) in study.items()}
        if (found := sha256_of(wheels[0])) not in stated:
            raise UnbuildableError(f"{wheels[0].name} in {self.root} is not what was made", transient=True)
        return replace(package, url=wheels[0].absolute().as_uri(), sha256=found)

    def pieces(self, package: LockedPackage) -> list[Path]:
        """The files of a package's archive, in order; one where it is whole, none where it is not here."""
        return self._pieces(package.sha256, archive_name(package))

    def built(self, sha256: str, python: str) -> Path:
        """Return the path of the wheel that was built from a source distribution."""
        return self.folder(sha256) / f"built-{python}"

    def _others(self, answers: BundledAnswers) -> dict[str, tuple[int, str]]:
        """Return what the directory holds beside archives and locks."""
        built = (path for sha256 in answers.archives for path in self.folder(sha256).glob("built-*/*.whl"))
        pythons = (path for path in self.pythons.rglob("*") if not path.name.startswith("."))
        return {
            path.relative_to(self.root).as_posix(): (path.stat().st_size, sha256_of(path))
            for path in (*built, *pythons)
            if path.is_file()
        }

    def _studies(self) -> list[Mapping[str, tuple[int, str]]]:
        return [self.read(path.stem).files for path in sorted((self.root / "studies").glob("*.json"))]

    def _inside(self, name: object) -> PurePosixPath:
        path = PurePosixPath(str(name))
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"{name!r} is not a path in the directory")
        return path

    def _pieces(self, sha256: str, name: str) -> list[Path]:
        whole = self.folder(sha256) / name
        if whole.exists():
            return [whole]
        return sorted(p for p in self.folder(sha256).glob("*") if _is_piece(p.name, name))

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
                    problem = "is neither a file nor a directory: `bisect-env fetch` writes nothing else"
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


def _is_piece(found: str, name: str) -> bool:
    stem, _, number = found.rpartition(".")
    return stem == name and number.isdecimal()


def _join(pieces: Iterable[Path], path: Path) -> None:
    with replacing(path) as beside, beside.open("wb") as whole:
        for piece in pieces:
            with piece.open("rb") as stream:
                shutil.copyfileobj(stream, whole)


def _copy(source: Any, target: Any, count: int) -> None:
    while count and (chunk := source.read(min(_COPY, count))):
        target.write(chunk)
        count -= len(chunk)


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


# --------------------------------------------------------------------------------------------------
# Serves archives that are stored in pieces to uv as whole files, without copying them.
#
# uv unpacks what it downloads as it comes and keeps that alone; an archive on a disk it wants whole, and it
# unpacks it again when the file is another one than before. So pieces are served by HTTP, to this host alone,
# under an address that is the same in every process: what uv has under it, it does not ask for again. To uv
# it is a proxy, through which nothing else can be reached.

_HOST = "pieces.bisect-env.invalid"


def piece_address(sha256: str, name: str) -> str:
    """Return the address at which uv asks for an archive."""
    return f"http://{_HOST}/{sha256}/{quote(name)}"


@contextlib.contextmanager
def served_pieces(archives: Mapping[str, Sequence[Path]]) -> Iterator[dict[str, str]]:
    """Serve archives while the block runs.

    Args:
        archives: Their addresses, and the pieces of each in order.

    Yields:
        Environment variables with which uv finds them, and no network beside them.
    """
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.pieces = {urlsplit(url).path: paths for url, paths in archives.items()}  # type: ignore[attr-defined]
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    proxy = f"http://127.0.0.1:{server.server_address[1]}"
    names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    try:
        yield {
            **{name: proxy for upper in names for name in (upper, upper.lower())},
            **dict.fromkeys(("NO_PROXY", "no_proxy"), ""),
            "UV_OFFLINE": "0",
        }
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    """Answers with pieces, one after the other."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """A whole archive."""
        url = urlsplit(self.path)
        pieces: Mapping[str, Sequence[Path]] = self.server.pieces  # type: ignore[attr-defined]
        paths = pieces.get(url.path) if url.hostname in (None, _HOST) else None
        if paths is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(sum(path.stat().st_size for path in paths)))
        self.send_header("Cache-Control", "max-age=365000000, immutable")
        self.end_headers()
        self.wfile.flush()
        for path in paths:
            with path.open("rb") as stream:
                self.connection.sendfile(stream)

    def do_CONNECT(self) -> None:
        """What would be the network."""
        self.send_error(403)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- its name there
        """Nobody reads it."""
