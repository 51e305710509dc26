"""Takes snapshots of prefixes and of the archives behind them, and notices when one has changed.

Files are shared by hard links between prefixes and with the installer's archives, so that a script that
writes into one environment changes all of them. Links share size and time, too: each prefix notices it by its
own snapshot, and an archive by the snapshot that was taken when the first prefix was linked from it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from bisect_env.temporary import replacing

BYTECODE = "__pycache__"
WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
_MODULES = "/lib/python"
_SNAPSHOTS = "snapshots"


def snapshot(folder: Path, *, ignore: Iterable[str] = (), protect: bool = False) -> str:
    """Return a hex digest over the names, sizes, times and link targets of everything in a directory.

    Bytecode is left out: Python writes it beside the modules that a trial imports, renames it into place, and
    uses it only where it states the time and size of its module. Bytecode that Python would import without
    comparing it counts like any other file.

    Args:
        folder: A prefix, or an archive that lies unpacked.
        ignore: Names in its top level that are left out.
        protect: Take away the permission to write files and directories on the way, but for directories of
            bytecode, which are made beside the modules of a prefix.
    """
    lines = sorted(_lines(folder, frozenset(ignore), protect=protect))
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


_ALONE = threading.Lock()
"""Held while a prefix is looked through. Each file is a system call, at which a thread lets others in:
several that look at once hand the interpreter to and fro, and take far longer than one after the other."""


def is_unchanged(folder: Path, expected: str, *, ignore: Iterable[str] = ()) -> bool:
    """Return whether a directory is as it was when its snapshot was made; arguments as for `snapshot`."""
    with _ALONE:
        return snapshot(folder, ignore=ignore) == expected


def _lines(top: Path, ignored: frozenset[str], *, protect: bool) -> Iterator[str]:
    waiting = [(str(top), "")]
    while waiting:
        folder, shown = waiting.pop()
        has_modules = has_bytecode = False
        with os.scandir(folder) as entries:
            for entry in entries:
                if not shown and entry.name in ignored:
                    continue
                name = f"{shown}/{entry.name}"
                if entry.is_symlink():
                    fact = f"-> {Path(entry.path).readlink()}"
                elif entry.is_dir(follow_symlinks=False):
                    if entry.name == BYTECODE:
                        has_bytecode = True
                        yield from _unchecked(entry.path, name)
                        continue
                    waiting.append((entry.path, name))
                    fact = "directory"
                else:
                    known = entry.stat(follow_symlinks=False)
                    has_modules = has_modules or entry.name.endswith(".py")
                    fact = f"{known.st_size} {known.st_mtime_ns}"
                    if protect and known.st_mode & WRITABLE:
                        Path(entry.path).chmod(stat.S_IMODE(known.st_mode) & ~WRITABLE)
                yield f"{name}\0{fact}\n"
        if protect and shown:
            place = Path(folder)
            if has_modules and not has_bytecode and shown.startswith(_MODULES):
                (place / BYTECODE).mkdir()
            place.chmod(stat.S_IMODE(place.stat().st_mode) & ~WRITABLE)


def _unchecked(folder: str, shown: str) -> Iterator[str]:
    """Yield a line for each file of bytecode that Python imports whatever its source says.

    Python writes no such file by itself. The flags that say so are bytes 4 to 7 of a file (PEP 552): 1 stands
    for a hash of the source that is not compared.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".pyc") and entry.is_file(follow_symlinks=False):
                with Path(entry.path).open("rb") as file:
                    flags = int.from_bytes(file.read(8)[4:], "little")
                if flags == 1:
                    known = entry.stat(follow_symlinks=False)
                    yield f"{shown}/{entry.name}\0{known.st_size} {known.st_mtime_ns}\n"


def changed_archives(prefix: Path, cache: Path) -> list[Path]:
    """Return the unpacked archives behind a new prefix that have changed since they were first used.

    Args:
        prefix: As the installers have just filled it.
        cache: Our cache directory.
    """
    return [folder for folder in sorted(_archives_of(prefix, cache)) if not _is_as_first_used(folder, cache)]


def archive_is_unchanged(folder: Path, cache: Path) -> bool:
    """Return whether an unpacked archive is as it was when a prefix was first linked from it."""
    try:
        return _snapshot_file(folder, cache).read_text("ascii") == snapshot(folder)
    except (OSError, ValueError):
        return True


def forget_archive(folder: Path, cache: Path) -> None:
    """Delete the recorded state of an archive that is removed; another with its name may follow."""
    _snapshot_file(folder, cache).unlink(missing_ok=True)


def _is_as_first_used(folder: Path, cache: Path) -> bool:
    path = _snapshot_file(folder, cache)
    if path.exists():
        return archive_is_unchanged(folder, cache)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as beside:
        beside.write_text(snapshot(folder), "ascii")
    return True


def _snapshot_file(folder: Path, cache: Path) -> Path:
    return cache / _SNAPSHOTS / f"{folder.parent.name}-{folder.name}"


def _archives_of(prefix: Path, cache: Path) -> Iterator[Path]:
    """Find the archives by a file of each package: a hard link has the same inode."""
    unpacked = {}
    for notes in cache.glob("uv/archive-v*/*/*.dist-info"):
        with contextlib.suppress(OSError):
            unpacked[(notes / "WHEEL").stat().st_ino] = notes.parent
    for notes in prefix.glob("lib/python*/site-packages/*.dist-info"):
        with contextlib.suppress(OSError, KeyError):
            yield unpacked[(notes / "WHEEL").stat().st_ino]
    for record in prefix.glob("conda-meta/*.json"):
        folder = cache / "conda" / "pkgs" / record.stem
        if folder.is_dir():
            yield folder


def remove_tree(path: Path) -> None:
    """Remove a directory whose own directories may be read-only, as far as it can be removed.

    An installer that outlived its killed parent may still write there; what stays goes next time.
    """
    for folder, _names, _files in os.walk(path):
        with contextlib.suppress(OSError):
            Path(folder).chmod(stat.S_IRWXU)
    shutil.rmtree(path, ignore_errors=True)
