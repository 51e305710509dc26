"""Takes snapshots of prefixes and of the archives behind them, and records when one has changed.

Files are shared by hard links between prefixes and with the installer's archives, so that a script that
writes into one environment changes all of them. Links share size and time, too: each prefix notices it by its
own snapshot, and an archive by the snapshot that was taken when the first prefix was linked from it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import stat
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bisect_env.temporary import replacing

MARKER = ".bisect-env.json"
"""Written into a prefix last: without it, it is none."""
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


# --------------------------------------------------------------------------------------------------
# Looks at prefixes. A change is noted beside the prefix before the prefix is dropped. The note stays: each
# trial and each look reports it, and a database stores it once, so that no kill in between loses it.


@dataclass(frozen=True, slots=True)
class Changed:
    """A time in which a prefix was not as it was made.

    Attributes:
        host: Host whose clock the times are by.
        since: When it was last seen as it was made, UTC.
        until: When the change was seen, UTC.
    """

    host: str
    since: datetime
    until: datetime


UNCHANGED: dict[tuple[str, str], float] = {}
"""Prefixes with their snapshots, and when this process last began a look that found them as they were."""
_CHANGED: dict[tuple[str, str], Changed] = {}
"""Prefixes with their snapshots that this process has found changed."""
_LOOKS: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)
_NEVER = datetime.min.replace(tzinfo=UTC)


def state_of(prefix: Path) -> str:
    """Return the digest of a prefix's content when it was built; "" if the directory is no prefix of ours."""
    try:
        return str(json.loads((prefix / MARKER).read_text("utf-8"))["snapshot"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def note_unchanged(prefix: Path, state: str) -> None:
    """Record that a prefix was just made, so that its first user need not look at it."""
    UNCHANGED[str(prefix), state] = time.monotonic()


def first_look(prefix: Path) -> bool:
    """Return whether a prefix is unchanged; looked at once in the life of this process."""
    state = state_of(prefix)
    return (str(prefix), state) in UNCHANGED or look(prefix, state)


def look(prefix: Path, state: str, used: datetime | None = None) -> bool:
    """Return whether a prefix still has the state of `state_of`; if not, note it and drop the marker.

    Threads that look at the same time share the looks that begin after they asked.

    Args:
        prefix: Its directory.
        state: What `state_of` said before something ran in it.
        used: When something began to run in it, UTC: a change counts up to then at least.
    """
    asked = time.monotonic()
    made = (str(prefix), state)
    with _LOOKS[prefix]:
        known = _CHANGED.get(made)
        if known is not None and (used is None or used <= known.until):
            return False
        # Another process may have found it changed, and may have built it again.
        is_same = known is None and state_of(prefix) == state
        if is_same and (UNCHANGED.get(made, asked) > asked or _is_as_made(prefix, state)):
            return True
        since = known.since if known else max(_own_last_look(made), _last_look(prefix) if is_same else _NEVER)
        _CHANGED[made] = note_change(prefix, since)
        with contextlib.suppress(OSError):
            if is_same:
                (prefix / MARKER).unlink()
        return False


def note_change(prefix: Path, since: datetime | None = None) -> Changed:
    """Note beside a prefix that it has changed.

    Args:
        prefix: Its directory.
        since: When it was last seen as it was made; if None, the last look of any process.
    """
    found = Changed(socket.gethostname(), _last_look(prefix) if since is None else since, datetime.now(UTC))
    # Who cannot write here can neither drop the prefix nor make it again.
    with contextlib.suppress(OSError), _notes(prefix).open("a", encoding="utf-8") as notes:
        notes.write(f"{found.host} {found.since.isoformat()} {found.until.isoformat()}\n")
    return found


def changes_of(prefix: Path) -> tuple[Changed, ...]:
    """Return all changes that were noted of a prefix, whether it is there or not."""
    try:
        lines = _notes(prefix).read_text("utf-8").splitlines()
        words = [line.split() for line in lines]
        return tuple(
            Changed(host, datetime.fromisoformat(since), datetime.fromisoformat(until))
            for host, since, until in words
        )
    except (OSError, ValueError):
        return ()


def _notes(prefix: Path) -> Path:
    return prefix.with_name(f".{prefix.name}.changed")


def _is_as_made(prefix: Path, state: str) -> bool:
    """Compare a prefix now; record an unchanged one here and, by its marker's time, for other processes."""
    begun, now = time.monotonic(), time.time()
    if not is_unchanged(prefix, state, ignore=(MARKER,)):
        return False
    UNCHANGED[str(prefix), state] = begun
    with contextlib.suppress(OSError):
        os.utime(prefix / MARKER, (now, now))
    return True


def _last_look(prefix: Path) -> datetime:
    """Return when any process last found a prefix as it was made, or made it."""
    try:
        return datetime.fromtimestamp((prefix / MARKER).stat().st_mtime, UTC)
    except OSError:
        return _NEVER


def _own_last_look(made: tuple[str, str]) -> datetime:
    begun = UNCHANGED.get(made)
    return _NEVER if begun is None else datetime.now(UTC) - timedelta(seconds=time.monotonic() - begun)


# --------------------------------------------------------------------------------------------------
# Archives that prefixes are linked from.


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
