"""Limits how much an installer writes, so that a small archive cannot fill the disk.

The installers unpack themselves, and what an archive states of its own sizes may be wrong. So what they write
is counted, as the kernel counts it, and held to what one environment may take; and while the disk runs out
they are stopped before it is full for everybody else.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from bisect_env.environments.settings import default_build_limit

LOOK = 0.2
"""Seconds between two looks."""
_SPARE = 1 << 30
"""Bytes that stay free on a disk, or a fiftieth of a small one."""
_OWN_SHARE = 256 << 20
"""Bytes below which a tool is not why a disk is full."""


class Room:
    """The limit of what one tool may write.

    Args:
        folder: Where it writes; its file system is looked at.
    """

    def __init__(self, folder: Path) -> None:
        # As the kernel names open files.
        self._folder = folder.resolve()
        self._limit = default_build_limit()
        self._before: dict[int, int] = {}
        self._pid = 0

    def watch(self, pid: int) -> None:
        """Count from now on what a process writes."""
        self._pid = pid
        self._before[pid] = _written(pid)

    def exceeded(self) -> str:
        """Why the process must stop now, or ""; to be asked every `LOOK` seconds."""
        written = _written(self._pid) - self._before.get(self._pid, 0)
        if written > self._limit:
            return (
                f"stopped while it was unpacked{self._what()}: more than {_size(self._limit)} were written "
                "for one environment. If its packages really are that large, set BISECT_ENV_BUILD_SIZE"
            )
        if written > _OWN_SHARE:
            disk = os.statvfs(self._folder)
            free, spare = disk.f_bavail * disk.f_frsize, min(_SPARE, disk.f_blocks * disk.f_frsize // 50)
            if free < spare:
                return (
                    f"stopped while it was unpacked{self._what()}, after {_size(written)}: No space left on "
                    f"the file system of {self._folder} but for {_size(free)}, which are kept free"
                )
        return ""

    def unfinished(self) -> list[Path]:
        """Directories that the process unpacks into: uv's are called `.tmp…`, rattler's lie in `pkgs`."""
        found = set()
        for path in self._open():
            parts = path.relative_to(self._folder).parts
            for depth, part in enumerate(parts[:-1], start=1):
                if part.startswith(".tmp") or parts[depth - 2 : depth - 1] == ("pkgs",):
                    found.add(self._folder.joinpath(*parts[:depth]))
                    break
        return sorted(found)

    def _open(self) -> list[Path]:
        """Files below the folder that the process has open."""
        found = []
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{self._pid}/fd"):
                with contextlib.suppress(OSError):
                    path = Path(entry.path).readlink()
                    if path.is_relative_to(self._folder):
                        found.append(path)
        return found

    def _what(self) -> str:
        """The largest file that is being written, as its archive calls it."""
        named = []
        for top in self.unfinished():
            for path in self._open():
                if path.is_relative_to(top):
                    with contextlib.suppress(OSError):
                        named.append((path.stat().st_size, str(path.relative_to(top))))
        return f" ({max(named)[1]})" if named else ""


def remove(folders: list[Path]) -> None:
    """Remove what an installer that was stopped has left; it must have ended."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _written(pid: int) -> int:
    """Bytes that a process has written so far, 0 where the kernel does not say."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/io").read_text("ascii").splitlines():
            name, _, value = line.partition(":")
            if name == "wchar":
                return int(value)
    return 0


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
