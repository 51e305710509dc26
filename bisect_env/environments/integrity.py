"""Checks files against the hashes that packages list, and takes snapshots of prefixes.

Files are shared by hardlinks between prefixes and with the cache of archives, so that a script that writes
into one environment spoils all of them, and the next one that is made from the same archive.

A wheel's own list can be wrong: some that are published disagree with themselves, and every installer takes
them. What counts is the archive whose hash is in the lock; where its list says otherwise of a file, that is
noted in the cache, once for each archive, and the file is held against what the archive really holds.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import csv
import hashlib
import json
import os
import shutil
import stat
import threading
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from bisect_env.temporary import replacing

BYTECODE = "__pycache__"
WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class StatedFile:
    """A file as its package lists it.

    Attributes:
        path: Where it is.
        algorithm: As `hashlib` names it.
        digest: Of its content.
    """

    path: Path
    algorithm: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class Installed:
    """A package in a prefix, or unpacked in the cache.

    Attributes:
        name: As its directory or record names it, with the version.
        files: Those whose content is stated, links apart.
        readable: Whether its list of files can be read at all.
    """

    name: str
    files: tuple[StatedFile, ...]
    readable: bool = True

    @property
    def key(self) -> str:
        """Hex sha256 of what it states: two packages with equal keys have equal files."""
        digest = hashlib.sha256(self.name.encode())
        for file in sorted(self.files, key=lambda f: (f.path.name, f.digest)):
            digest.update(file.path.name.encode("utf-8", "surrogateescape") + b"\0" + file.digest)
        return digest.hexdigest()


Misstated = Mapping[tuple[str, str], Mapping[str, str | None]]
"""Package as `Installed` names it, and a hex digest that its list states; then for the end of each path of
which that is wrong what the archive holds in truth: the digest by the same algorithm, or None for nothing."""

_MISSTATED = "misstated"


def misstated(cache: Path) -> Misstated:
    """Known errors of archives in a cache about their own content.

    Args:
        cache: Our cache directory.
    """
    found: dict[tuple[str, str], dict[str, str | None]] = {}
    for path in (cache / _MISSTATED).glob("*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            for package, stated, tail, actual in json.loads(path.read_text("utf-8")):
                found.setdefault((package, stated), {})[tail] = actual
    return found


def note_misstated(cache: Path, sha256: str, archive: Path, package: Installed) -> int:
    """Note in which files a wheel disagrees with its own list.

    Args:
        cache: Our cache directory.
        sha256: Of the archive, as it is in the lock.
        archive: The wheel; its hash has been compared.
        package: As it was installed from it.

    Returns:
        How many files the list is wrong about.
    """
    entries = []
    with zipfile.ZipFile(archive) as wheel:
        members = {_installed_as(name): name for name in wheel.namelist()}
        for file in package.files:
            if (here := _digest_at(file)) == file.digest:
                continue
            path = os.path.normpath(file.path)
            tail = max((tail for tail in members if path.endswith(f"/{tail}")), key=len, default=None)
            if here == (None if tail is None else _digest_of(wheel, members[tail], file.algorithm)):
                actual = None if here is None else here.hex()
                tail = tail or "/".join(file.path.parts[-2:])
                entries.append((package.name, file.digest.hex(), tail, actual))
    if entries:
        folder = cache / _MISSTATED
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / f"{sha256}.json") as beside:
            beside.write_text(json.dumps(entries), "utf-8")
    return len(entries)


def _installed_as(member: str) -> str:
    """Return the end of the path that a member of a wheel gets: `x.data/purelib/a.py` becomes `a.py`."""
    parts = member.split("/")
    return "/".join(parts[2:] if parts[0].endswith(".data") and len(parts) > 2 else parts)


def corrected(package: Installed, known: Misstated) -> Installed:
    """Return a package with the facts of its archive in place of those that the archive states wrongly."""
    if not any(name == package.name for name, _ in known):
        return package
    files: list[StatedFile] = []
    for file in package.files:
        wrong = known.get((package.name, file.digest.hex()), {})
        path = os.path.normpath(file.path)
        tail = next((tail for tail in wrong if path.endswith(f"/{tail}")), None)
        if tail is None:
            files.append(file)
        elif (actual := wrong[tail]) is not None:
            files.append(replace(file, digest=bytes.fromhex(actual)))
    return replace(package, files=tuple(files))


def wheels_in(root: Path) -> Iterator[Installed]:
    """The wheels that lie unpacked in a directory such as `site-packages`."""
    for record in sorted(root.glob("*.dist-info/RECORD")):
        name = record.parent.name.removesuffix(".dist-info")
        try:
            with record.open(encoding="utf-8", newline="") as stream:
                files = tuple(_stated_by_record(root, csv.reader(stream)))
        except (OSError, ValueError, csv.Error, IndexError):
            yield Installed(name, (), readable=False)
        else:
            yield Installed(name, files)


def conda_packages_in(prefix: Path) -> Iterator[Installed]:
    """The conda packages of a prefix, by its `conda-meta`."""
    for record in sorted((prefix / "conda-meta").glob("*.json")):
        try:
            data = json.loads(record.read_text("utf-8"))
            files = tuple(_stated_by_conda(prefix, data["paths_data"]["paths"]))
        except (OSError, ValueError, KeyError, TypeError):
            yield Installed(record.stem, (), readable=False)
        else:
            yield Installed(record.stem, files)


def conda_archive(folder: Path) -> Installed | None:
    """Return the conda package that lies unpacked in a directory, None if there is none."""
    listing = folder / "info" / "paths.json"
    if not listing.exists():
        return None
    try:
        files = tuple(_stated_by_conda(folder, json.loads(listing.read_text("utf-8"))["paths"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Installed(folder.name, (), readable=False)
    return Installed(folder.name, files)


def packages_in(prefix: Path) -> Iterator[Installed]:
    """Every package of a prefix that states what its files hold."""
    by_conda: set[Path] = set()
    for package in conda_packages_in(prefix):
        by_conda.update(file.path for file in package.files)
        yield package
    for site in sorted(prefix.glob("lib/python*/site-packages")):
        for wheel in wheels_in(site):
            # conda keeps the wheel's list of a package that it made from one, and changes files after it.
            if site / f"{wheel.name}.dist-info" / "METADATA" not in by_conda:
                yield wheel


def damaged_files(package: Installed) -> list[Path]:
    """Files that are missing or hold something else; reads all of them."""
    return [file.path for file in package.files if not _holds(file)]


def damaged_since(package: Installed, memory: Path) -> list[Path]:
    """Like `damaged_files`, without reading again what has been read before.

    A file that shares its content with other places, and has the size and time that it had when it was
    read, has not been written to by ordinary means. Files of which there is one copy are always read: they
    are few and small (commands, notes of the installer), unless the file system has no hardlinks.

    Args:
        package: Whose files to look at.
        memory: Directory in which the states of sound packages are remembered.
    """
    digest = hashlib.sha256()
    single: list[StatedFile] = []
    for file in package.files:
        try:
            known = file.path.lstat()
        except OSError:
            return damaged_files(package)
        if known.st_nlink == 1:
            single.append(file)
        else:
            digest.update(f"{known.st_size} {known.st_mtime_ns}\n".encode())
    state, remembered = digest.hexdigest(), memory / package.key
    try:
        is_known = remembered.read_text("ascii") == state
    except (OSError, ValueError):
        is_known = False
    if is_known:
        return [file.path for file in single if not _holds(file)]
    damaged = damaged_files(package)
    if not damaged:
        memory.mkdir(parents=True, exist_ok=True)
        with replacing(remembered) as beside:
            beside.write_text(state, "ascii")
    return damaged


def snapshot(prefix: Path, *, ignore: Iterable[str] = (), protect: bool = False) -> str:
    """Hex digest over the names, sizes, times and link targets of everything in a prefix.

    Args:
        prefix: The directory.
        ignore: Names in its top level that are left out.
        protect: Take away the permission to write files and directories on the way.
    """
    return digest([line for line, _ in _lines(prefix, frozenset(ignore), protect=protect)])


_ALONE = threading.Lock()
"""Held by who looks through a prefix. Each file is a system call, at which a thread lets the others in:
several that look at once hand the interpreter to and fro, and take far longer than one after the other."""


def is_unchanged(prefix: Path, expected: str, *, ignore: Iterable[str] = ()) -> bool:
    """Return whether a prefix is as it was when its snapshot was made.

    Bytecode that nobody shares is passed over if need be: Python writes it by itself, wherever it may.

    Args:
        prefix: The directory.
        expected: Its snapshot then.
        ignore: Names in its top level that are left out.
    """
    with _ALONE:
        lines = list(_lines(prefix, frozenset(ignore), protect=False))
    if digest([line for line, _ in lines]) == expected:
        return True
    return digest([line for line, may_be_new in lines if not may_be_new]) == expected


def _lines(prefix: Path, ignored: frozenset[str], *, protect: bool) -> Iterator[tuple[str, bool]]:
    """What `digest` wants, and whether it is of bytecode of which there is one copy."""
    waiting = [(str(prefix), "")]
    while waiting:
        folder, shown = waiting.pop()
        is_bytecode = shown.endswith(f"/{BYTECODE}")
        with os.scandir(folder) as entries:
            for entry in entries:
                if not shown and entry.name in ignored:
                    continue
                name = f"{shown}/{entry.name}"
                may_be_new = False
                if entry.is_symlink():
                    fact = f"-> {Path(entry.path).readlink()}"
                elif entry.is_dir(follow_symlinks=False):
                    waiting.append((entry.path, name))
                    if entry.name == BYTECODE:
                        continue
                    fact = "directory"
                else:
                    known = entry.stat(follow_symlinks=False)
                    fact = f"{known.st_size} {known.st_mtime_ns}"
                    may_be_new = is_bytecode and known.st_nlink == 1
                    if protect and known.st_mode & WRITABLE:
                        Path(entry.path).chmod(stat.S_IMODE(known.st_mode) & ~WRITABLE)
                yield f"{name}\0{fact}\n", may_be_new
        if protect and shown:
            place = Path(folder)
            place.chmod(stat.S_IMODE(place.stat().st_mode) & ~WRITABLE)


def digest(lines: Iterable[str]) -> str:
    """Hex digest over what is said of each file, link and directory, in any order. Pure.

    Args:
        lines: Each `/path`, a zero byte, then `directory`, `-> target` or `size time`, then a line feed.
    """
    text = "".join(sorted(lines))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def remove_tree(path: Path) -> None:
    """Remove a directory whose own directories may be read-only, as far as it can be removed.

    An installer that outlived its killed parent may still write there; what stays goes next time.
    """
    for folder, _names, _files in os.walk(path):
        with contextlib.suppress(OSError):
            Path(folder).chmod(stat.S_IRWXU)
    shutil.rmtree(path, ignore_errors=True)


def _stated_by_record(root: Path, rows: Iterable[list[str]]) -> Iterator[StatedFile]:
    for row in rows:
        if not row or len(row) < 2 or not row[1]:
            continue  # RECORD cannot state its own hash
        algorithm, _, digest = row[1].partition("=")
        if algorithm not in hashlib.algorithms_guaranteed:
            continue
        raw = base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4))
        yield StatedFile(root / row[0], algorithm, raw)


def _stated_by_conda(prefix: Path, paths: Iterable[dict[str, Any]]) -> Iterator[StatedFile]:
    for entry in paths:
        digest = entry.get("sha256_in_prefix") or entry.get("sha256")
        if digest and entry.get("path_type", "hardlink") == "hardlink":
            try:
                raw = binascii.unhexlify(digest)
            except binascii.Error as error:
                raise ValueError(str(error)) from error
            yield StatedFile(prefix / entry["_path"], "sha256", raw)


def _holds(file: StatedFile) -> bool:
    return _digest_at(file) == file.digest


def _digest_at(file: StatedFile) -> bytes | None:
    """Of what is there now, by the algorithm that the list uses; None where nothing can be read."""
    try:
        with file.path.open("rb") as stream:
            return _digest_from(stream, file.algorithm)
    except OSError:
        return None


def _digest_of(wheel: zipfile.ZipFile, member: str, algorithm: str) -> bytes:
    with wheel.open(member) as stream:
        return _digest_from(stream, algorithm)


def _digest_from(stream: IO[bytes], algorithm: str) -> bytes:
    digest = hashlib.new(algorithm)
    while chunk := stream.read(_CHUNK):
        digest.update(chunk)
    return digest.digest()
