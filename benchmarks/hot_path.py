"""How many trials a second the command handles, and what one costs its process.

    python -m benchmarks.hot_path

A study whose trials do nothing (`true`) and never fail is run by 2, 16 and 64 workers until so many trials
are recorded; beside it the same number of processes is started by as many threads with `subprocess`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bisect_env.cluster.pool import PoolExecutor
from bisect_env.engine import events
from bisect_env.engine.study import run_study
from bisect_env.environments.lock import Lock, LockResult
from bisect_env.environments.lockfiles import make_lock
from bisect_env.environments.prefix import Prefix
from bisect_env.environments.provider import Environments
from bisect_env.environments.request import EnvironmentRequest
from bisect_env.matrix.load import load_matrix
from bisect_env.matrix.versions import host_platform
from bisect_env.storage.store import Store

MATRIX = """\
    version: 1
    name: nothing
    axes:
      level: {values: [0, 1, 2, 3, 4, 5, 6, 7]}
    trial: {command: "true", allow_host: ["true"]}
    search: {min_crash_rate: 0.005, max_trials: %d}
"""


class OneEnvironment:
    """An `EnvironmentProvider` whose every environment is this interpreter's own."""

    def __init__(self) -> None:
        self.catalogue = Environments().catalogue

    @property
    def as_of(self) -> None:
        """Any day will do."""
        return

    def lock(self, request: EnvironmentRequest, prefer: Lock | None = None) -> LockResult:
        """A lock without packages."""
        return make_lock(platform.python_version(), host_platform(), [])

    def lock_many(
        self,
        requests: Sequence[EnvironmentRequest],
        workers: int = 2,
        on_done: Callable[[int, Any], None] | None = None,
        *,
        prefer: Sequence[Sequence[int]] | None = None,
    ) -> list[LockResult]:
        """The same for all."""
        return [self.lock(request) for request in requests]

    def ensure_prefix(self, lock: Lock, *, allow_source: bool | frozenset[str] = False) -> Prefix:
        """This interpreter's own."""
        return Prefix(Path(sys.prefix), Path(sys.executable))

    def requirements(self, lock: Lock) -> None:
        """Not known."""


def _seconds_used() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def study(workers: int, trials: int) -> dict[str, float]:
    """Trials a second between the first record and the last, and milliseconds of this process for each."""
    provider = OneEnvironment()
    recorded: list[tuple[float, float]] = []

    def notify(event: events.Event) -> None:
        if isinstance(event, events.TrialFinished):
            recorded.append((time.monotonic(), _seconds_used()))

    with tempfile.TemporaryDirectory(prefix="hot-path-") as text:
        folder = Path(text)
        (folder / "matrix.yaml").write_text(textwrap.dedent(MATRIX % trials))
        with Store.open(str(folder / "results.sqlite")) as store:
            run_study(
                load_matrix(folder / "matrix.yaml"),
                store=store,
                provider=provider,
                make_executor=lambda: PoolExecutor(provider.ensure_prefix, workers),
                lockfiles=None,
                notify=notify,
                quick=True,
            )
    warm = len(recorded) // 5
    (began, used), (ended, used_then) = recorded[warm], recorded[-1]
    count = len(recorded) - warm - 1
    return {
        "trials": len(recorded),
        "a_second": round(count / (ended - began), 1),
        "own_ms_each": round(1000 * (used_then - used) / count, 2),
    }


def plain(workers: int, trials: int) -> float:
    """Processes a second that as many threads start and wait for."""
    started = time.monotonic()
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(lambda _: subprocess.run(["true"], check=True), range(trials)))
    return round(trials / (time.monotonic() - started), 1)


def main() -> None:
    """Print a line for each number of workers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 16, 64])
    parser.add_argument("--trials", type=int, default=2000)
    asked = parser.parse_args()
    for workers in asked.workers:
        row = {"workers": workers, "cores": len(os.sched_getaffinity(0)), **study(workers, asked.trials)}
        print(json.dumps({**row, "subprocess_a_second": plain(workers, asked.trials)}), flush=True)


if __name__ == "__main__":
    main()
