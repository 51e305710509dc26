"""A Dask cluster as others start one: scheduler and workers as processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
DASK = str(Path(sys.executable).with_name("dask"))


class DaskProcesses:
    """Starts `dask scheduler` and `dask worker`; ends whatever is left on exit.

    Args:
        folder: For logs, the scheduler file and the workers' directories.
        host: Address to listen on.
        env: Added to the environment of all.
    """

    def __init__(self, folder: Path, host: str = "127.0.0.1", env: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.host = host
        temp = folder / "temp"  # what a killed worker leaves goes with the test's folder
        temp.mkdir(exist_ok=True)
        self.env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temp), **(env or {})}
        self.file = folder / "scheduler.json"
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> DaskProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            end_tree(process.pid)
            process.wait()

    def scheduler(self, *options: str) -> subprocess.Popen[bytes]:
        process = self._start(
            *("scheduler", "--host", self.host, "--port", "0", "--no-dashboard", "--dashboard-address", ":0"),
            *("--scheduler-file", str(self.file), *options),
        )
        deadline = time.monotonic() + 60
        while not self._written():
            assert process.poll() is None, self.logs()
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.05)
        return process

    def _written(self) -> bool:
        try:
            return bool(json.loads(self.file.read_text())["address"])
        except (OSError, ValueError):
            return False

    @property
    def address(self) -> str:
        return str(json.loads(self.file.read_text())["address"])

    def worker(
        self, *options: str, env: dict[str, str] | None = None, before: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        return self._start(
            *("worker", self.address, "--nthreads", "1", "--no-dashboard", "--memory-limit", "0"),
            *("--local-directory", str(self.folder / f"worker{len(self.processes)}"), *options),
            env=env,
            before=before,
        )

    def run(self, *words: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
        """`dask` with these words and nothing added."""
        return self._start(*words, env=env)

    def _start(
        self, *words: str, env: dict[str, str] | None = None, before: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        log = self.folder / f"{len(self.processes)}.log"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [*before, DASK, *words],
                env={**self.env, **(env or {})},
                cwd=self.folder,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def logs(self) -> str:
        return "\n".join(f"{path.name}:\n{path.read_text()}" for path in sorted(self.folder.glob("*.log")))


def end_tree(pid: int, how: signal.Signals = signal.SIGKILL) -> None:
    """Kill a process and all its descendants: what happens when a host goes away."""
    with contextlib.suppress(psutil.Error):
        top = psutil.Process(pid)
        for process in [top, *top.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                process.send_signal(how)
