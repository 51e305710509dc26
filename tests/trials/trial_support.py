"""What several tests of trials need."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from bisect_env.matrix.files import StudyFile
from bisect_env.matrix.grid import Combination
from bisect_env.trials.forks import MARK, SERVER
from bisect_env.trials.processes import PR_SET_CHILD_SUBREAPER
from bisect_env.trials.records import TrialSpec

PREFIX = Path(sys.prefix)

Living = Callable[[], list[int]]
"""Tells the living processes of the trials of a test."""


def make_spec(code: str = "", **changes: object) -> TrialSpec:
    values: dict[str, object] = {
        "trial_id": f"trial-{os.urandom(6).hex()}",
        "combination": Combination.of({"numpy": "1.0"}),
        "lock_hash": "0" * 64,
        "command": ("python", "main.py"),
        "files": (StudyFile("main.py", textwrap.dedent(code).encode()),),
        "timeout": 30.0,
    }
    return TrialSpec(**{**values, **changes})  # type: ignore[arg-type]


@contextmanager
def watched_trials() -> Iterator[Living]:
    """Yields what tells the living processes of the trials that this process runs from here on.

    They are found from their supervisors' server down, wherever they forked to and whatever they did to their
    environment: a supervisor adopts what its trial leaves behind, the server what a killed supervisor leaves,
    and this process, as long as it watches, what a killed server or a killed command leaves.
    """
    SERVER.prepare()
    here = psutil.Process()
    before = set(here.children())

    def living() -> list[int]:
        server = SERVER.process
        found = []
        for child in here.children():
            if child in before and (server is None or child.pid != server.pid):
                continue
            for process in (child, *child.children(recursive=True)):
                with contextlib.suppress(psutil.Error):  # ended since it was listed
                    is_ours = MARK in process.cmdline()
                    # What ends has given its memory back, and its command line with it.
                    if not is_ours and process.memory_info().rss:
                        found.append(process.pid)
        return found

    adopt_orphans(yes=True)
    try:
        yield living
    finally:
        adopt_orphans(yes=False)
        for child in set(here.children()) - before:
            with contextlib.suppress(psutil.Error, ChildProcessError):
                if child.status() == psutil.STATUS_ZOMBIE:
                    os.waitpid(child.pid, os.WNOHANG)


def adopt_orphans(*, yes: bool) -> None:
    """Whether orphans below this process come to it and not to the first process of the host."""
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0) == 0
