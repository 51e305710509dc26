"""Reports the progress of locking and building to the caller that asked for the environment."""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from bisect_env.environments.lock import UnbuildableError

EVERY = 0.5
"""Seconds between two tellings of the same step."""
_DOWNLOADING = re.compile(r"^\s*Downloading (?P<name>\S+) \((?P<size>[\d.]+)(?P<unit>[KMGT]?i?B)\)")
_DOWNLOADED = re.compile(r"^\s*Downloaded (?P<name>\S+)")
UNPACKED = 2.0
"""Bytes of an unpacked archive for each of its own: what wheels with CUDA libraries come to."""
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


@dataclass(frozen=True, slots=True)
class BuildStep:
    """A step in the making of an environment.

    Attributes:
        what: `downloading`, `unpacking` or `checking`.
        package: Name and version of the package at work, "" where it is all of them.
        done: Bytes of archives that are dealt with, of those that are large enough to be told.
        total: Of these archives together; 0 where that is not known.
    """

    what: str
    package: str = ""
    done: int = 0
    total: int = 0


Listener = Callable[[BuildStep], None]
_listener: ContextVar[Listener | None] = ContextVar("_listener", default=None)


@contextlib.contextmanager
def told_to(listener: Listener | None) -> Iterator[None]:
    """Send the progress of environments that are made inside the block to a listener."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def tell(step: BuildStep) -> None:
    """Report the current step to the listener, if there is one."""
    if (listener := _listener.get()) is not None:
        listener(step)


class Archives:
    """A parser of uv's output that finds which archives uv is downloading.

    Args:
        what: The name of the step: archives come from a network, or are here already.
        versions: Of packages, by name.
        folder: Where they are unpacked.
    """

    def __init__(self, what: str, versions: dict[str, str], folder: Path) -> None:
        self._folder = folder
        self._what = what
        self._versions = versions
        self._sizes: dict[str, int] = {}
        self._waiting: list[str] = []

    def take_line(self, line: str) -> None:
        """Process a line that uv has written.

        Raises:
            UnbuildableError: There is no room for what it has begun to fetch.
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
        # The largest is what everybody waits for.
        name = max(self._waiting, key=lambda name: self._sizes[name], default="")
        shown = f"{name} {self._versions.get(name, '')}".strip()
        tell(BuildStep(self._what, shown, done, total))

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
    """Return an amount as people read it."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


class Seldom:
    """A listener that forwards new steps at once, and repeated ones twice a second."""

    def __init__(self, listener: Listener, clock: Callable[[], float] = time.monotonic) -> None:
        self._listener = listener
        self._clock = clock
        self._last: tuple[str, str] | None = None
        self._at = float("-inf")

    def __call__(self, step: BuildStep) -> None:
        """Receive a step."""
        now = self._clock()
        if (step.what, step.package) != self._last or now >= self._at + EVERY:
            self._last, self._at = (step.what, step.package), now
            self._listener(step)
