"""Detects whether a prefix (an installed environment) or an unpacked archive was changed after installation.

Prefixes share files through hard links, with each other and with the unpacked archives in the cache. A script
that writes into one environment therefore changes all others that share the file. A *snapshot* is a digest
over names, sizes and times of all files. Each prefix stores the snapshot taken after its installation, and
each archive the one taken when a prefix first used it. A differing snapshot means that files have changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import stat
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bisect_env.temporary import write_atomically

MARKER = ".bisect-env.json"
"""Name of the file that is written into a prefix last. A directory without it is an unfinished prefix."""
BYTECODE = "__pycache__"
WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
_MODULES = "/lib/python"
_SNAPSHOTS = "snapshots"


def snapshot(folder: Path, *, protect: bool = False) -> str:
    """Return a hex digest over the names, sizes, times and link targets of everything in a directory.

    The marker of a prefix is left out. Bytecode (`.pyc` files) is left out, too, because Python writes it
    during trials and checks it against the time and size of the module. Bytecode that Python imports without
    this check is included.

    Args:
        folder: A prefix or an unpacked archive.
        protect: Whether to make all files and directories read-only too. Directories for bytecode stay
            writable and are created next to the modules of a prefix.
    """
    lines = sorted(_lines(folder, protect=protect))
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


_ALONE = threading.Lock()
"""Lock that is held while the files of a prefix are read.

Reading needs a system call per file, at each of which Python switches threads. Several threads that read at
the same time would take far longer than one after the other.
"""


def is_unchanged(folder: Path, expected: str) -> bool:
    """Return whether the current snapshot of a directory equals `expected`, a digest of `snapshot`."""
    with _ALONE:
        return snapshot(folder) == expected


def _lines(top: Path, *, protect: bool) -> Iterator[str]:
    waiting = [(str(top), "")]
    while waiting:
        folder, shown = waiting.pop()
        has_modules = has_bytecode = False
        with os.scandir(folder) as entries:
            for entry in entries:
                if not shown and entry.name == MARKER:
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
    """Yield one text for each bytecode file that Python imports without checking the source file.

    "Unchecked" means that Python does not compare the bytecode with the source file. Bytes 4 to 7 of the file
    then have the value 1 (PEP 552). Python never writes such files by default.
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
# trial and each look reports it, and a database stores it once, so that no kill in between loses it. Where
# the note cannot be written (the cache is gone, or is another user's), the process that saw it reports it.


@dataclass(frozen=True, slots=True)
class Changed:
    """A detected change of a prefix, with the two checks between which the change happened.

    Attributes:
        host: Name of the host, whose clock the times refer to.
        since: Time (UTC) of the last check that found the prefix unchanged.
        until: Time (UTC) of the check that found the change.
    """

    host: str
    since: datetime
    until: datetime


UNCHANGED: dict[tuple[str, str], float] = {}
"""Maps (path of a prefix, snapshot) to the monotonic time at which its last successful check began."""
_CHANGED: dict[tuple[str, str], Changed] = {}
"""Maps (path of a prefix, snapshot) to the change that this process has found."""
_LOOKS: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)
_NEVER = datetime.min.replace(tzinfo=UTC)


def state_of(prefix: Path) -> str:
    """Return the snapshot (digest of all files) that was stored when a prefix was built.

    Return "" if the directory is not a prefix.
    """
    try:
        return str(json.loads((prefix / MARKER).read_text("utf-8"))["snapshot"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def note_unchanged(prefix: Path, state: str) -> None:
    """Record a newly built prefix as unchanged, so that its first use needs no check."""
    UNCHANGED[str(prefix), state] = time.monotonic()


def first_look(prefix: Path) -> bool:
    """Check once per process whether a prefix is unchanged since its build, and return the result."""
    state = state_of(prefix)
    return (str(prefix), state) in UNCHANGED or look(prefix, state)


def look(prefix: Path, state: str, used: datetime | None = None) -> bool:
    """Check a prefix, and return whether the prefix is unchanged since its build.

    If the prefix has changed, the change is recorded and the marker file is removed, so that the prefix will
    be rebuilt.

    Threads that wait at the same time share one check, provided that it begins after their calls.

    Args:
        prefix: Directory of the prefix.
        state: The snapshot that `state_of` returned before a trial ran in the prefix.
        used: Time (UTC) at which the trial began. If a change was found before that time, the prefix was used
            although it had changed, and a second change is recorded, up to now.

    Returns:
        True if the prefix is unchanged.
    """
    asked = time.monotonic()
    made = (str(prefix), state)
    with _LOOKS[prefix]:
        known = _CHANGED.get(made)
        if known is not None and (used is None or used <= known.until):
            return False
        # Another process may have found the change before, and may have rebuilt the prefix.
        is_same = known is None and state_of(prefix) == state
        if is_same and (UNCHANGED.get(made, asked) > asked or _is_as_made(prefix, state)):
            return True
        since = known.since if known else max(_own_last_look(made), _last_look(prefix) if is_same else _NEVER)
        _CHANGED[made] = note_change(prefix, since)
        # In a cache that this user cannot write, `_CHANGED` keeps this process from using the prefix.
        with contextlib.suppress(OSError):
            if is_same:
                (prefix / MARKER).unlink()
        return False


def note_change(prefix: Path, since: datetime | None = None) -> Changed:
    """Record, in a file next to a prefix, that the prefix has changed.

    Args:
        prefix: Directory of the prefix.
        since: Time of the last check that found it unchanged; if None, taken from the prefix's marker.
    """
    found = Changed(socket.gethostname(), _last_look(prefix) if since is None else since, datetime.now(UTC))
    # A user without write permission can neither delete nor rebuild the prefix, so no note is needed.
    with contextlib.suppress(OSError), _notes(prefix).open("a", encoding="utf-8") as notes:
        notes.write(f"{found.host} {found.since.isoformat()} {found.until.isoformat()}\n")
    return found


def changes_of(prefix: Path) -> tuple[Changed, ...]:
    """Return all recorded changes of a prefix, even if the prefix has been removed.

    These are the changes in the file next to the prefix, and those that this process has found.
    """
    seen = [change for (path, _), change in list(_CHANGED.items()) if path == str(prefix)]
    try:
        lines = _notes(prefix).read_text("utf-8").splitlines()
        words = [line.split() for line in lines]
        noted = [
            Changed(host, datetime.fromisoformat(since), datetime.fromisoformat(until))
            for host, since, until in words
        ]
    except (OSError, ValueError):
        noted = []  # nothing was noted, or the file was cut off
    return tuple(dict.fromkeys([*noted, *seen]))


def _notes(prefix: Path) -> Path:
    return prefix.with_name(f".{prefix.name}.changed")


def _is_as_made(prefix: Path, state: str) -> bool:
    """Return whether the files of a prefix still match the snapshot `state`; if so, record the time."""
    begun, now = time.monotonic(), time.time()
    if not is_unchanged(prefix, state):
        return False
    UNCHANGED[str(prefix), state] = begun
    # In a cache that this user cannot write, the known period of a change is longer, which voids more trials.
    with contextlib.suppress(OSError):
        os.utime(prefix / MARKER, (now, now))
    return True


def _last_look(prefix: Path) -> datetime:
    """Return the time at which any process last found a prefix unchanged."""
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
    """Return the unpacked archives of a new prefix whose files have changed since their first use.

    The first use of an archive is its first installation into a prefix. Its snapshot is recorded then.

    Args:
        prefix: A prefix that was just installed.
        cache: The cache directory of bisect-env.
    """
    changed = []
    for folder in sorted(_archives_of(prefix, cache)):
        path = _snapshot_file(folder, cache)
        if not path.exists():
            write_atomically(path, snapshot(folder))
        elif not archive_is_unchanged(folder, cache):
            changed.append(folder)
    return changed


def archive_is_unchanged(folder: Path, cache: Path) -> bool:
    """Return whether an unpacked archive is unchanged since its first installation into a prefix.

    Return True if it was never installed.
    """
    try:
        return _snapshot_file(folder, cache).read_text("ascii") == snapshot(folder)
    except (OSError, ValueError):
        return True


def forget_archive(folder: Path, cache: Path) -> None:
    """Delete the recorded digest of an archive that is removed.

    A new archive may get the same name.
    """
    _snapshot_file(folder, cache).unlink(missing_ok=True)


def _snapshot_file(folder: Path, cache: Path) -> Path:
    return cache / _SNAPSHOTS / f"{folder.parent.name}-{folder.name}"


def _archives_of(prefix: Path, cache: Path) -> Iterator[Path]:
    """Yield the directories of the unpacked archives in the cache from which a prefix was installed.

    Archives of uv are recognised by hard links (files with the same inode), archives of conda by name.
    """
    unpacked = {}
    for notes in cache.glob("uv*/archive-v*/*/*.dist-info"):
        with contextlib.suppress(OSError):  # removed meanwhile, or without the file: nothing links to it
            unpacked[(notes / "WHEEL").stat().st_ino] = notes.parent
    for notes in prefix.glob("lib/python*/site-packages/*.dist-info"):
        with contextlib.suppress(OSError, KeyError):  # it was copied, or comes from elsewhere
            yield unpacked[(notes / "WHEEL").stat().st_ino]
    for record in prefix.glob("conda-meta/*.json"):
        folder = cache / "conda" / "pkgs" / record.stem
        if folder.is_dir():
            yield folder
