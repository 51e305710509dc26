"""`bisect-env run` as a process of its own on a planted matrix, and the processes below it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from bisect_env.storage.store import Store
from tests.engine.studies import Studies

COMMAND = [sys.executable, "-m", "bisect_env"]


class Command:
    """`bisect-env run` on a planted matrix."""

    def __init__(self, folder: Path, script: str, **replace: str) -> None:
        self.folder = folder
        self.matrix = Studies(folder).matrix(script, **replace)
        (folder / "temp").mkdir()
        self.env = {
            **os.environ,
            "TMPDIR": str(folder / "temp"),  # what a killed command leaves goes with the test's folder
            "BISECT_ENV_DB": str(folder / "results.sqlite"),
            "BISECT_ENV_CACHE": str(folder / "cache"),
            "BISECT_ENV_LOCKFILES": str(folder / "lockfiles"),
        }

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*COMMAND, "run", str(self.matrix), *arguments],
            env=self.env,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=150)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def stored(self) -> list[str]:
        with Store.open(str(self.folder / "results.sqlite"), read_only=True) as store:
            return [trial.trial_id for trial in store.trials(store.study(None).id)]


def lines(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)


def wait_for(condition: Callable[[], bool], timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def trials_below(pid: int) -> list[psutil.Process]:
    """The scripts that run below a process."""
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # ended since it was listed
            if child.cmdline()[1:2] == ["script.py"]:
                found.append(child)
    return found
