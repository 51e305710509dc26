"""Reports the progress of building an environment, such as downloaded bytes, to a listener function."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from bisect_env.environments.lock import UnbuildableError

_DOWNLOADING = re.compile(r"^\s*Downloading (?P<name>\S+) \((?P<size>[\d.]+)(?P<unit>[KMGT]?i?B)\)")
_DOWNLOADED = re.compile(r"^\s*Downloaded (?P<name>\S+)")
UNPACKED = 2.0
"""Assumed ratio of the unpacked size of an archive to its size; typical of wheels with CUDA libraries."""
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


@dataclass(frozen=True, slots=True)
class BuildStep:
    """The current step of building an environment, with its progress.

    Attributes:
        what: `waiting` (for another process that builds the same environment), `downloading`, `unpacking` or
            `checking`.
        package: Name and version of the package in progress; "" if the step concerns all packages.
        done: Bytes of the archives that are finished. Only archives that uv reports (large ones) count.
        total: Bytes of all these archives; 0 if unknown.
    """

    what: str
    package: str = ""
    done: int = 0
    total: int = 0


Listener = Callable[[BuildStep], None]
_listener: ContextVar[Listener | None] = ContextVar("_listener", default=None)


@contextlib.contextmanager
def listening(listener: Listener | None) -> Iterator[None]:
    """Report the progress of builds inside the `with` block to the function `listener`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def report_step(step: BuildStep) -> None:
    """Report a build step to the listener that `listening` has set, if there is one."""
    if (listener := _listener.get()) is not None:
        listener(step)


def report_waiting() -> None:
    """Report that the build waits for another process, which builds the same environment or commit."""
    report_step(BuildStep("waiting"))


class Archives:
    """A parser of uv's output that reports which archives uv is downloading.

    Args:
        what: Name of the step to report, `downloading` or `unpacking`.
        versions: Maps package names to versions, for reports.
        folder: Directory in which archives are unpacked. Its free space is checked.
    """

    def __init__(self, what: str, versions: dict[str, str], folder: Path) -> None:
        self._folder = folder
        self._what = what
        self._versions = versions
        self._sizes: dict[str, int] = {}
        self._waiting: list[str] = []

    def take_line(self, line: str) -> None:
        """Process one line of uv's output, and report progress if the line is about a download.

        Raises:
            UnbuildableError: The disk has too little space for the archives that uv is downloading.
        """
        if begun := _DOWNLOADING.match(line):
            size = float(begun["size"]) * _UNITS.get(begun["unit"], 1)
            self._sizes[begun["name"]] = int(size)
            self._waiting.append(begun["name"])
        elif (ended := _DOWNLOADED.match(line)) and ended["name"] in self._waiting:
            self._waiting.remove(ended["name"])
        else:
            return
        total = sum(self._sizes.values())
        done = total - sum(self._sizes[name] for name in self._waiting)
        self._check_room(total - done)
        # Name the largest unfinished archive, since it takes the most time.
        name = max(self._waiting, key=lambda name: self._sizes[name], default="")
        shown = f"{name} {self._versions.get(name, '')}".strip()
        report_step(BuildStep(self._what, shown, done, total))

    def _check_room(self, left: int) -> None:
        free = shutil.disk_usage(self._folder).free
        needed = int(UNPACKED * left)
        if free < needed:
            raise UnbuildableError(
                f"No space left for {shown_bytes(left)} of archives: unpacked they take about "
                f"{shown_bytes(needed)}, {self._folder} has {shown_bytes(free)} free, and "
                f"{shown_bytes(needed - free)} are missing; make room (`bisect-env env prune`), or "
                "name another cache (--cache)",
                transient=True,
            )


def shown_bytes(count: int) -> str:
    """Return a number of bytes with a unit, such as `15 MB` or `1.5 GB`."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
