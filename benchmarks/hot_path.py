"""How many trials a second the command handles, what one costs its process, and whether that grows.

    python -m benchmarks.hot_path

A study whose trials do nothing (`true`) and never fail is run by 2, 16 and 64 workers until so many trials
are recorded; beside it the same number of processes is started by as many threads with `subprocess`. Then
64 and 1,000 workers are simulated: trials take their time without processes or threads, so that what is
left is the command's own part, at most `a_second` of them. Processor time is that of the command's process
with all threads, without that of its children; `main_ms_each` is what of it the thread spends that decides
and records. `grows` has the median over windows of the trials up to 500, up to 2,000 and up to 8,000.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bisect_env.cluster.choose import Place
from bisect_env.cluster.pool import PoolExecutor
from bisect_env.cluster.protocol import (
    Completion,
    Executor,
    PrefixReady,
    PrefixRequest,
    TrialCompleted,
    TrialLost,
    TrialRequest,
)
from bisect_env.engine import events
from bisect_env.engine.session import Session
from bisect_env.engine.study import StudyRun
from bisect_env.environments.lock import Lock
from bisect_env.environments.lockfiles import make_lock
from bisect_env.environments.prefix import Prefix
from bisect_env.environments.provider import EnvironmentProvider, Environments
from bisect_env.environments.request import EnvironmentRequest
from bisect_env.matrix.load import load_matrix
from bisect_env.matrix.versions import host_platform
from bisect_env.report.build import report_document
from bisect_env.storage.store import Store
from bisect_env.trials.records import Machine, Outcome, Phase, TrialRecord, TrialSpec

MATRIX = """\
    version: 1
    name: nothing
    axes:
      level: {values: [0, 1, 2, 3, 4, 5, 6, 7]}
    trial: {command: "true", allow_host: ["true"]}
    search: {min_crash_rate: 0.0001, max_trials: %d}
"""

SIMULATED = 0.02
"""Seconds that a simulated trial takes."""
UNTIL = (500, 2000, 8000)
"""Trials up to which each figure of growth goes, from the one before."""


class OneEnvironment(EnvironmentProvider):
    """An `EnvironmentProvider` whose every environment is this interpreter's own."""

    def __init__(self) -> None:
        self.catalogue = Environments().catalogue

    def solve(self, request: EnvironmentRequest, prefer: Lock | None = None) -> Lock:
        """A lock without packages."""
        return make_lock(platform.python_version(), host_platform(), [])

    def ensure_prefix(
        self, lock: Lock, *, allow_source: bool | frozenset[str] = False, existing: bool = False
    ) -> Prefix:
        """This interpreter's own."""
        return Prefix(Path(sys.prefix), Path(sys.executable))

    def requirements(self, lock: Lock) -> None:
        """Not known."""


class Simulated:
    """An `Executor` whose trials are due times in a heap."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._free = slots
        self._due: list[tuple[float, int, TrialSpec]] = []
        self._waiting: deque[TrialSpec] = deque()
        self._ready: list[Completion] = []
        self._number = 0
        self._woken = threading.Event()

    def machines(self) -> frozenset[Machine]:
        """Of this host's kind."""
        return frozenset({Machine(platform.machine())})

    def submit(self, request: TrialRequest) -> None:
        """Let it begin as soon as there is a place."""
        self._waiting.append(request.spec)
        self._begin()

    def _begin(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            self._number += 1
            # Between a half and three halves of it, so that they do not end in step.
            takes = SIMULATED * (0.5 + self._number * 0.618 % 1)
            heapq.heappush(self._due, (time.monotonic() + takes, self._number, self._waiting.popleft()))

    def prepare(self, request: PrefixRequest) -> None:
        """It is there."""
        self._ready.append(PrefixReady(request.lock.content_hash))

    def wait(self, timeout: float | None = None) -> list[Completion]:
        """What is due, after waiting for the first."""
        if not self._ready and self._due:
            left = self._due[0][0] - time.monotonic()
            self._woken.wait(max(0.0, left if timeout is None else min(left, timeout)))
        self._woken.clear()
        answers, self._ready = self._ready, []
        while self._due and self._due[0][0] <= time.monotonic():
            _, _, spec = heapq.heappop(self._due)
            self._free += 1
            answers.append(TrialCompleted(_passed(spec)))
        self._begin()
        return answers

    def wake(self) -> None:
        """Let `wait` return."""
        self._woken.set()

    def cancel(self) -> None:
        """Lose what runs and what waits."""
        gone = [*(spec for _, _, spec in self._due), *self._waiting]
        self._ready += [TrialLost(spec.trial_id, "the trial was cancelled") for spec in gone]
        self._free += len(self._due)
        self._due.clear()
        self._waiting.clear()

    def close(self) -> None:
        """Nothing is held."""


def _passed(spec: TrialSpec) -> TrialRecord:
    return TrialRecord(
        trial_id=spec.trial_id,
        combination=spec.combination,
        lock_hash=spec.lock_hash,
        outcome=Outcome.PASS,
        detail="exit code 0",
        returncode=0,
        phase=Phase.UNKNOWN,
        started_at=datetime.now(UTC),
        duration=SIMULATED,
        hash_seed=spec.hash_seed,
        copies={Outcome.PASS: 1},
        host=platform.node(),
        machine=Machine(platform.machine()),
    )


def study(workers: int, trials: int, *, simulated: bool) -> dict[str, Any]:
    """Trials a second between the first record and the last, and milliseconds of this process for each."""
    provider = OneEnvironment()
    # When a trial was recorded: by the clock, by this process's time, and by that of the thread that decides.
    recorded: list[tuple[float, float, float]] = []

    def notify(event: events.Event) -> None:
        if isinstance(event, events.TrialFinished):
            recorded.append((time.monotonic(), time.process_time(), time.thread_time()))

    def executor() -> Executor:
        return Simulated(workers) if simulated else PoolExecutor(provider.ensure_prefix, workers)

    with tempfile.TemporaryDirectory(prefix="hot-path-") as text:
        folder = Path(text)
        (folder / "matrix.yaml").write_text(textwrap.dedent(MATRIX % trials))
        place = Place(executor)
        with Store.open(str(folder / "results.sqlite")) as store, closing(place):
            StudyRun(
                load_matrix(folder / "matrix.yaml"),
                Session(store, provider, place.executor, notify),
                report_document,
                quick=True,
            ).run()
    first, last = recorded[len(recorded) // 5], recorded[-1]
    count = len(recorded) - len(recorded) // 5 - 1
    return {
        "trials": len(recorded),
        "a_second": round(count / (last[0] - first[0]), 1),
        "own_ms_each": round(1000 * (last[1] - first[1]) / count, 2),
        "main_ms_each": round(1000 * (last[2] - first[2]) / count, 2),
        "grows": grows([used for _, used, _ in recorded], window=max(50, workers)),
    }


def grows(used: Sequence[float], window: int) -> dict[str, float]:
    """Milliseconds for each trial, as the median over windows, of the trials up to each of `UNTIL`."""
    found = {}
    for since, until in itertools.pairwise((0, *UNTIL)):
        places = range(since, min(until, len(used) - 1) - window + 1, window)
        each = [1000 * (used[place + window] - used[place]) / window for place in places]
        if each:
            found[f"until_{until}"] = round(statistics.median(each), 2)
    return found


def plain(workers: int, trials: int) -> float:
    """Processes a second that as many threads start and wait for."""
    started = time.monotonic()
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(lambda _: subprocess.run(["true"], check=True), range(trials)))
    return round(trials / (time.monotonic() - started), 1)


def main() -> None:
    """Print a line for each number of workers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="*", default=[2, 16, 64])
    parser.add_argument("--trials", type=int, default=1500)
    parser.add_argument("--simulated", type=int, nargs="*", default=[64, 1000])
    parser.add_argument("--simulated-trials", type=int, default=UNTIL[-1])
    asked = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    for workers in asked.workers:
        row = {"workers": workers, "cores": cores, **study(workers, asked.trials, simulated=False)}
        print(json.dumps({**row, "subprocess_a_second": plain(workers, asked.trials)}), flush=True)
    for workers in asked.simulated:
        found = study(workers, asked.simulated_trials, simulated=True)
        print(json.dumps({"simulated_workers": workers, "cores": cores, **found}), flush=True)


if __name__ == "__main__":
    main()
