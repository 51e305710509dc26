"""What running trials costs beside the trials: `python -m benchmarks.cluster [--only NAME …]`.

Four figures, each printed beside its limit; the exit code is 1 when one is over it. They are ratios, or times
that ratios cannot express, so that a slow machine says the same as a fast one.
"""

from __future__ import annotations

import argparse
import hashlib
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
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.hot_path import OneEnvironment
from bisect_env.cluster.choose import Place
from bisect_env.cluster.pool import PoolExecutor
from bisect_env.cluster.protocol import TrialRequest
from bisect_env.engine import events
from bisect_env.engine.session import Session
from bisect_env.engine.study import StudyRun
from bisect_env.environments.lock import Lock, LockedPackage
from bisect_env.environments.lockfiles import make_lock
from bisect_env.environments.prefix import Prefix
from bisect_env.environments.request import EnvironmentRequest
from bisect_env.matrix.grid import AxisKind, Combination, Direction, Grid, GridAxis
from bisect_env.matrix.load import load_matrix
from bisect_env.matrix.schema import SearchLimits
from bisect_env.matrix.versions import host_platform
from bisect_env.report.build import report_document
from bisect_env.search.searcher import Search
from bisect_env.storage.store import Store
from bisect_env.trials.records import TrialSpec
from tests.cluster.cores import cores_executor

SCRIPT = "import time; time.sleep(0.05)"
SCALE = 10
"""The study of 5 s trials and 20 s builds runs this many times faster."""


def machine_prefix(
    lock: Lock, *, allow_source: bool | frozenset[str] = False, existing: bool = False
) -> Prefix:
    """This interpreter's own."""
    return Prefix(Path(sys.prefix), Path(sys.executable))


def _lock(version: str = "0") -> Lock:
    """A lock of its own for each version; what it names is never installed."""
    url = f"https://index.invalid/level-{version}-py3-none-any.whl"
    package = LockedPackage("level", version, "pip", url, hashlib.sha256(url.encode()).hexdigest())
    return make_lock(platform.python_version(), host_platform(), [package])


def overhead(trials: int = 120) -> tuple[float, str]:
    """Wall time of trials on a local cluster over that of `subprocess.run` at the same parallelism."""
    workers = min(4, len(os.sched_getaffinity(0)))

    def bare(_number: int) -> None:
        subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True)

    def run_bare() -> float:
        started = time.monotonic()
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(bare, range(trials)))
        return time.monotonic() - started

    with closing(cores_executor(machine_prefix, workers)) as executor:

        def run_trials(count: int) -> float:
            started = time.monotonic()
            sent = got = 0
            while got < count:
                while sent < count and sent - got < 2 * workers:
                    spec = TrialSpec(
                        os.urandom(8).hex(), Combination.of({"a": "1"}), "0" * 64, ("python", "-c", SCRIPT)
                    )
                    executor.submit(TrialRequest(spec, _lock()))
                    sent += 1
                got += len(executor.wait(5.0))
            return time.monotonic() - started

        run_trials(4 * workers)  # each worker's first trial starts its supervisor
        # In turn, so that whatever else the machine does meets both.
        pairs = [(run_trials(trials // 4), run_bare() / 4) for _ in range(4)]
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    ours = statistics.median(pair[0] for pair in pairs) / (trials // 4) * workers
    return ratio, f"{ours * 1000:.0f} ms of a worker per trial, {workers} workers"


class PlantedEnvironments(OneEnvironment):
    """An environment for each that is asked for, all of them this interpreter."""

    def solve(self, request: EnvironmentRequest, prefer: Lock | None = None) -> Lock:
        """Return a lock of its own for each request."""
        return _lock(hashlib.sha256(request.key.encode()).hexdigest()[:8])


class SlowBuilder:
    """Builds each lock once, in the time that a build takes; others wait for it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.first_done: float | None = None
        self._built: set[str] = set()
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}

    def __call__(
        self, lock: Lock, *, allow_source: bool | frozenset[str] = False, existing: bool = False
    ) -> Prefix:
        """Build."""
        with self._guard:
            mine = self._locks.setdefault(lock.content_hash, threading.Lock())
        with mine:
            if lock.content_hash in self._built:
                return machine_prefix(lock)
            time.sleep(self.seconds)
            self._built.add(lock.content_hash)
            self.first_done = self.first_done or time.monotonic()
        return Prefix(Path(sys.prefix), Path(sys.executable), self.seconds)


def share(workers: int) -> tuple[float, str]:
    """Share of worker time spent in trials after the first build."""
    builder = SlowBuilder(20 / SCALE)
    spent: list[float] = []

    def notify(event: events.Event) -> None:
        if isinstance(event, events.TrialFinished):
            spent.append(event.record.duration)

    script = f"""
        import random, sys, time
        time.sleep({5 / SCALE})
        sys.exit(int(sys.argv[1]) >= 5 and random.random() < 0.3)
    """
    matrix = """\
        version: 1
        name: share
        axes:
          level: {direction: regression, environments: %s}
        trial: {command: "python script.py {level}", files: [script.py]}
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "script.py").write_text(textwrap.dedent(script))
        planted = {str(level): {"pypi": [f"planted=={level}"]} for level in range(8)}
        (folder / "matrix.yaml").write_text(textwrap.dedent(matrix) % json.dumps(planted))
        place = Place(lambda: PoolExecutor(builder, workers))
        with Store.open(str(folder / "results.sqlite")) as store, closing(place):
            StudyRun(
                load_matrix(folder / "matrix.yaml"),
                Session(store, PlantedEnvironments(), place.executor, notify),
                report_document,
                lockfiles=folder / "lockfiles",
            ).run()
    ended = time.monotonic()
    assert builder.first_done is not None
    available = workers * (ended - builder.first_done)
    return sum(spent) / available, f"{len(spent)} trials, {len(builder._built)} builds, {workers} workers"


def asking(trials: int, workers: int = 1000) -> tuple[float, str]:
    """Cost of asking and telling per trial, last tenth over first tenth, with all workers busy."""
    axes = tuple(
        GridAxis(f"a{i}", AxisKind.VALUE, tuple(map(str, range(6))), Direction.REGRESSION) for i in range(3)
    )
    grid = Grid(axes)
    indices = list(grid.indices())
    search = Search(grid, {i: i for i in indices}, SearchLimits(max_trials=10 * trials))
    running: deque[Any] = deque()
    costs: list[float] = []
    pending: dict[Any, int] = {}
    done = 0
    while done < trials:
        started = time.perf_counter()
        # Answers come in batches when a thousand workers run.
        batch = min(50, trials - done)
        chosen = list(search.ask(workers - len(running), pending=pending))
        # A search that has its answer asks for nothing more; its cost of telling goes on being measured.
        chosen += [indices[(done + i) % len(indices)] for i in range(workers - len(running) - len(chosen))]
        for index in chosen:
            running.append(index)
            pending[index] = pending.get(index, 0) + 1
        for _ in range(batch):
            index = running.popleft()
            pending[index] -= 1
            search.tell(index, hit=min(index) >= 3 and done % 3 == 0)
            done += 1
        costs.append((time.perf_counter() - started) / batch)
    tenth = max(1, len(costs) // 10)
    first, last = statistics.median(costs[:tenth]), statistics.median(costs[-tenth:])
    return last / first, f"{first * 1e6:.0f} µs per trial at first, {last * 1e6:.0f} µs at last"


def start(matrix: Path = Path("matrices/quickstart.yaml")) -> tuple[float, str]:
    """Seconds from the command to its first trial, with every environment built."""
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-m", "bisect_env", "run", str(matrix), "--json", "--lockfiles", name]
        seconds = 0.0
        for number in range(2):  # the first one warms the cache
            started = time.monotonic()
            arguments = [*command, "--db", f"{name}/{number}.sqlite"]
            with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    event = json.loads(line)
                    if event["event"] == "started" and number:
                        seconds = time.monotonic() - started
                        process.terminate()
                        break
                else:
                    process.wait()
        if not seconds:
            raise SystemExit("the study ended without saying that a trial started")
    return seconds, str(matrix)


def main() -> int:
    """0 when every figure is within its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=["overhead", "share", "asking", "start"])
    parser.add_argument("--trials", type=int, default=5_000, help="of `asking`; 100000 takes half an hour")
    arguments = parser.parse_args()
    wanted = arguments.only or ["overhead", "share", "asking", "start"]
    rows: list[tuple[str, float, str, str, bool]] = []
    if "overhead" in wanted:
        value, note = overhead()
        rows.append(("overhead of a 50 ms trial over subprocess.run", value, "< 1.3", note, value < 1.3))
    for workers in (2, 8) if "share" in wanted else ():
        value, note = share(workers)
        rows.append(("share of worker time in trials", value, "> 0.85", note, value > 0.85))
    if "asking" in wanted:
        value, note = asking(arguments.trials)
        rows.append(("cost of asking, last over first trials", value, "< 1.5", note, value < 1.5))
    if "start" in wanted:
        value, note = start()
        rows.append(("seconds to the first trial, warm cache", value, "< 5", note, value < 5))
    for title, value, limit, note, good in rows:
        print(f"{'ok  ' if good else 'MISS'}  {title:46} {value:6.2f}  {limit:7} {note}")
    return 0 if all(good for *_, good in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
