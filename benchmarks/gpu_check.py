"""What is promised for GPUs, checked on real ones. By hand: `python -m benchmarks.gpu_check [--only NAME …]`.

Needs `bisect-env[gpu-cu12]` or `[gpu-cu13]`, and CuPy in the interpreter that runs the trials. That is the
machine's own (`--python`), not one built from a lock: what is looked at here is how trials run on GPUs, and
a GPU machine need not reach a package index. Building environments has its own tests.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from benchmarks.hot_path import OneEnvironment
from bisect_env import __version__
from bisect_env.cluster.choose import Place
from bisect_env.cluster.gpus import Gpu, Nvml, choose_gpus, group_gpus, open_nvml
from bisect_env.cluster.local import HostExecutor, gpu_executor
from bisect_env.cluster.protocol import Completion, TrialCompleted, TrialLost, TrialRequest
from bisect_env.engine import events
from bisect_env.engine.session import Session
from bisect_env.engine.study import StudyRun
from bisect_env.environments.lock import Lock
from bisect_env.environments.lockfiles import make_lock
from bisect_env.environments.prefix import Prefix
from bisect_env.errors import InfrastructureError
from bisect_env.matrix.files import StudyFile
from bisect_env.matrix.grid import Combination
from bisect_env.matrix.load import load_matrix
from bisect_env.report.build import report_document
from bisect_env.storage.store import Store
from bisect_env.trials.records import Evidence, Outcome, TrialRecord, TrialSpec

FAULTS = Path(__file__).with_name("gpu_faults")
FIRST_BAD = "4"

MATRIX = """\
version: 1
name: {name}
axes:
  level: {{values: [1, 2, 3, 4, 5, 6]}}
trial:
  command: [python, {script}, "{{level}}"]
  files: [{script}, common.py]
  timeout: {timeout}
  gpus: {gpus}
  bad: {{outcomes: [{outcome}]}}
search: {{confidence: 0.95, min_crash_rate: {rate}, max_trials: {most}}}
"""


BUSY = """\
import random, sys, time
from common import use_gpu
use_gpu()
time.sleep(3)
sys.exit(int(sys.argv[1]) >= 4 and random.random() < 0.3)
"""
"""A script that holds a GPU for three seconds, and fails in 30 % of runs from level 4 on."""
LEAST_BUSY = {1: 0.96, 0.25: 0.99}
"""Share of a study's time in which a trial runs, by how much of a GPU a trial takes."""
CERTAIN_WITHIN = 6.0
"""Seconds from the first trial to the answer, if a CUDA failure is certain."""


@dataclass(frozen=True)
class Fault:
    """A planted regression and what its trials must be called."""

    name: str
    outcome: Outcome
    timeout: int = 60
    gpus: float = 1
    max_trials: int = 500


PLANTED = (
    Fault("illegal_address", Outcome.CUDA_FAULT),
    Fault("fork_after_init", Outcome.CUDA_INIT),
    Fault("out_of_memory", Outcome.CUDA_OOM),
    Fault("gil_deadlock", Outcome.HANG, timeout=8),
)


def _lock() -> Lock:
    return make_lock(platform.python_version(), "linux-64", [])


def build(
    lock: Lock, *, allow_source: bool | frozenset[str] = False, existing: bool = False, python: str
) -> Prefix:
    """A `PrefixBuilder` that builds nothing."""
    return Prefix(Path(python).parent.parent, Path(python))


class Report:
    """Prints what was found, and remembers what failed."""

    def __init__(self) -> None:
        self.failed = 0

    def check(self, good: bool, text: str) -> None:
        """One line for one promise."""
        self.failed += not good
        print(f"  {'ok  ' if good else 'FAIL'}  {text}", flush=True)

    def say(self, text: str) -> None:
        """A line that promises nothing."""
        print(text, flush=True)


class Check:
    """Everything that is looked at, on the GPUs given."""

    def __init__(self, nvml: Nvml, gpus: Sequence[Gpu], python: str, report: Report, folder: Path) -> None:
        self.nvml = nvml
        self.gpus = gpus
        self.report = report
        self.folder = folder
        self.build = partial(build, python=python)
        self.python = python

    # -- studies ---------------------------------------------------------------------------------------------

    def study(self, fault: Fault, kill_a_worker: bool = False) -> None:
        """A whole study through engine, search, database and dask-cuda, with a planted CUDA failure."""
        kill = ", and a worker is killed" if kill_a_worker else ""
        self.report.say(f"\nstudy: {fault.name} from level {FIRST_BAD} on, {len(self.gpus)} GPU(s){kill}")
        records: list[tuple[TrialRecord, Evidence]] = []
        killed: list[str] = []
        answered: list[float] = []
        first_trial: list[float] = []

        def make() -> HostExecutor:
            return gpu_executor(self.build, group_gpus(self.gpus, 1, None))

        def notify(event: events.Event) -> None:
            if isinstance(event, events.TrialFinished):
                records.append((event.record, event.evidence))
            if isinstance(event, events.TrialStarted):
                first_trial.append(time.monotonic())
            if isinstance(event, events.Answered):
                answered.append(time.monotonic())
            if kill_a_worker and not killed and isinstance(event, events.TrialStarted) and len(records) >= 2:
                killed.append(event.trial)
                threading.Thread(target=_kill_worker_of, args=[event.trial]).start()

        started = time.monotonic()
        # Short trials would be over before their worker is found.
        report = self._run(fault, make, notify, more="import time\ntime.sleep(2)\n" if kill_a_worker else "")
        took = time.monotonic() - started
        verdict = report["verdict"]
        self.report.check(
            verdict["status"] != "none" and verdict["first_bad"] == {"level": FIRST_BAD},
            f"verdict {verdict['status']}, first bad {verdict['first_bad']}, last good "
            f"{verdict['last_good']}, probability {verdict['probability']:.4f}",
        )
        outcomes = Counter((r.outcome.value, e.value) for r, e in records)
        shown = ", ".join(f"{count} {o} ({e})" for (o, e), count in sorted(outcomes.items()))
        self.report.say(f"        {len(records)} trials in {took:.1f} s: {shown}")
        if fault.name == "illegal_address" and not kill_a_worker:
            told = (answered or [started + took])[0]
            since = told - first_trial[0]
            self.report.check(
                since <= CERTAIN_WITHIN,
                f"answered {since:.1f} s after the first trial began, {told - started:.1f} s after the study",
            )
        bad = [r for r, _ in records if r.outcome not in (Outcome.PASS, Outcome.WORKER_LOST)]
        self.report.check(
            bool(bad) and {r.outcome for r in bad} == {fault.outcome},
            f"every failure is {fault.outcome.value}: {bad[0].detail if bad else 'there is none'}",
        )
        self.sees_its_own([r for r, _ in records if r.outcome is not Outcome.WORKER_LOST], 1)
        lost = [r for r, _ in records if r.outcome is Outcome.WORKER_LOST]
        if kill_a_worker:
            self.report.check(len(lost) == 1, f"a worker killed in mid-trial cost {len(lost)} void trial(s)")
        else:
            self.report.check(not lost, "no trial was lost")
        used = Counter(r.gpu for r, _ in records if r.gpu)
        spread = ", ".join(map(str, used.values()))
        self.report.check(len(used) == len(self.gpus), f"trials on each GPU: {spread}")

    def _run(
        self,
        fault: Fault,
        make: Callable[[], HostExecutor],
        notify: Callable[[events.Event], None],
        *,
        more: str,
    ) -> dict[str, Any]:
        folder = self.folder / fault.name
        folder.mkdir(exist_ok=True)
        script = f"{fault.name}.py"
        known = FAULTS / script
        (folder / script).write_text((known.read_text() if known.exists() else "") + more)
        (folder / "common.py").write_bytes((FAULTS / "common.py").read_bytes())
        matrix = folder / "matrix.yaml"
        text = MATRIX.format(
            name=fault.name,
            script=script,
            timeout=fault.timeout,
            gpus=fault.gpus,
            outcome=fault.outcome.value,
            rate=0.5 if known.exists() else 0.2,
            most=fault.max_trials,
        )
        matrix.write_text(text)
        place = Place(make)
        with Store.open(str(folder / "results.sqlite")) as store, closing(place):
            return StudyRun(
                load_matrix(matrix),
                Session(store, OneEnvironment(), place.executor, notify),
                report_document,
                lockfiles=folder / "lockfiles",
            ).run()

    def sees_its_own(self, records: Sequence[TrialRecord], count: int) -> None:
        """Whether each trial saw as many GPUs as it was lent, and those; by the script's own words."""
        wrong = []
        for record in records:
            words = dict(line.split(": ", 1) for line in record.stdout.splitlines() if line.count(": ") == 1)
            lent = record.gpu.split(",")
            right = words.get("variable") == record.gpu and words.get("driver") == record.gpu
            if not (right and len(lent) == count):
                wrong.append(f"lent {record.gpu}, saw {words}")
        self.report.check(
            not wrong,
            f"each of {len(records)} trials saw {count} GPU{'s' * (count > 1)}, the one it was lent, by UUID"
            if count == 1
            else f"each of {len(records)} trials saw the {count} GPUs it was lent, by UUID",
        )
        for line in wrong[:3]:
            self.report.say(f"        {line}")

    def busy(self, gpus: float) -> None:
        """How much of the time of a flaky study a trial runs on the GPU, by the records of the trials."""
        self.report.say(f"\nbusy: a study whose trials hold {gpus:g} of a GPU for three seconds")
        fault = Fault(f"busy-{100 * gpus:.0f}", Outcome.EXIT_FAIL, gpus=gpus, max_trials=40)
        spans: list[tuple[float, float]] = []

        def make() -> HostExecutor:
            groups = group_gpus(self.gpus[:1], gpus, None)
            return gpu_executor(self.build, groups, trials=max(1, round(1 / gpus)))

        def notify(event: events.Event) -> None:
            if isinstance(event, events.TrialFinished):
                began = event.record.started_at.timestamp()
                spans.append((began, began + event.record.duration))

        self._run(fault, make, notify, more=BUSY)
        covered, until = 0.0, 0.0
        for began, ended in sorted(spans):
            covered += max(0.0, ended - max(began, until))
            until = max(until, ended)
        share = covered / (until - min(spans)[0])
        least = LEAST_BUSY[gpus]
        self.report.check(share >= least, f"busy {share:.3f} of the time, in {len(spans)} trials ({least})")

    # -- contexts --------------------------------------------------------------------------------------------

    def contexts(self) -> None:
        """Who is on the GPUs while a trial runs, by NVML's process list."""
        self.report.say("\ncontexts: NVML's process list while every worker runs a trial")
        with self.executor(group_gpus(self.gpus, 1, None)) as executor:
            idle = self._ours_on_gpus()
            self.report.check(not idle, f"idle workers: {len(idle)} process(es) of ours on the GPUs")
            requests = [self.request("use_gpu(); import time; time.sleep(4)") for _ in self.gpus]
            for one in requests:
                executor.submit(one)
            seen: set[int] = set()
            deadline = time.monotonic() + 60
            while len(seen) < len(self.gpus) and time.monotonic() < deadline:
                seen |= self._on_gpus()
                time.sleep(0.2)
            trials = {p.pid for one in requests for p in _processes_of(one.spec.trial_id)}
            ours = self._ours_on_gpus() - trials
            self.report.check(
                len(seen & trials) == len(self.gpus),
                f"{len(seen & trials)} trial process(es) on {len(self.gpus)} GPU(s), so the list can be read",
            )
            self.report.check(not ours, f"{len(ours)} worker(s), nannies or commands of ours beside them")
            answers = _collect(executor, len(requests))
            watched = [a.record.outcome for a in answers if isinstance(a, TrialCompleted)]
            self.report.check(
                watched == [Outcome.PASS] * len(requests), f"they ended with {', '.join(watched)}"
            )
        self._control()

    def _control(self) -> None:
        """The same list under dask-cuda as it is: shows that the check can fail."""
        from dask_cuda import LocalCUDACluster

        uuids = [gpu.uuid for gpu in self.gpus]
        with LocalCUDACluster(CUDA_VISIBLE_DEVICES=uuids, dashboard_address=None, silence_logs=50):
            time.sleep(1.0)
            found = self._ours_on_gpus()
        self.report.say(
            f"        for comparison, dask-cuda's own cluster: {len(found)} of its processes there"
        )

    def _on_gpus(self) -> set[int]:
        return {pid for gpu in self.gpus for pid in self.nvml.read(gpu.uuid).processes}

    def _ours_on_gpus(self) -> set[int]:
        me = psutil.Process()
        family = {me.pid} | {child.pid for child in me.children(recursive=True)}
        return self._on_gpus() & family

    # -- faults of workers, and resources --------------------------------------------------------------------

    def several(self) -> None:
        """What only several GPUs can show."""
        count = len(self.gpus)
        self.report.say(f"\nseveral GPUs: {count}")
        meet = self.folder / "meet"
        meet.mkdir()
        code = (
            f"use_gpu(); import os, time; place = {str(meet)!r}\n"
            "open(os.path.join(place, str(os.getpid())), 'w').close()\n"
            f"while len(os.listdir(place)) < {count}: time.sleep(0.02)"
        )
        with self.executor(group_gpus(self.gpus, 1, None)) as executor:
            for _ in self.gpus:
                executor.submit(self.request(code))
            records = [a.record for a in _collect(executor, count) if isinstance(a, TrialCompleted)]
            different = len({r.gpu for r in records})
            self.report.check(different == count, f"{count} trials at the same time on {different} GPUs")
            self.sees_its_own(records, 1)
            self._refused(executor, count + 1)
        with self.executor(group_gpus(self.gpus, count, None)) as executor:
            self.report.check(executor.slots == 1, f"`gpus: {count}`: {executor.slots} trial at a time")
            executor.submit(self.request("use_gpu()", gpus=count))
            self.sees_its_own(
                [a.record for a in _collect(executor, 1) if isinstance(a, TrialCompleted)], count
            )
        last = choose_gpus(self.gpus, str(self.gpus[-1].index), None)
        with self.executor(group_gpus(last, 1, None)) as executor:
            executor.submit(self.request("use_gpu()"))
            records = [a.record for a in _collect(executor, 1) if isinstance(a, TrialCompleted)]
            self.report.check(
                [r.gpu for r in records] == [self.gpus[-1].uuid],
                f"`--devices {self.gpus[-1].index}` took that one",
            )

    def _refused(self, executor: HostExecutor, gpus: int) -> None:
        try:
            executor.submit(self.request("pass", gpus=gpus))
        except InfrastructureError as error:
            self.report.check(True, f"refused at once: {error.what}")
        else:
            self.report.check(False, f"a trial with {gpus} GPUs was accepted")

    def overhead(self) -> None:
        """What a GPU trial costs beside the script."""
        self.report.say("\noverhead of a trial (a script that does nothing; median of 20, one after another)")
        with self.executor(group_gpus(self.gpus, 1, 1)) as executor:
            for gpus in (0, 1):
                times = []
                for _ in range(20):
                    started = time.monotonic()
                    executor.submit(self.request("", gpus=gpus, bare=True))
                    _collect(executor, 1)
                    times.append(time.monotonic() - started)
                self.report.say(f"        with {gpus} GPU(s): {sorted(times)[10] * 1000:.0f} ms")
            bare = []
            for _ in range(20):
                started = time.monotonic()
                subprocess.run([self.python, "-c", ""], check=True)
                bare.append(time.monotonic() - started)
            self.report.say(f"        subprocess.run alone: {sorted(bare)[10] * 1000:.0f} ms")

    # -- parts -----------------------------------------------------------------------------------------------

    @contextmanager
    def executor(self, groups: list[tuple[str, ...]]) -> Iterator[HostExecutor]:
        """Workers for these groups, closed at the end."""
        with closing(gpu_executor(self.build, groups)) as executor:
            yield executor

    def request(self, code: str, gpus: int = 1, *, bare: bool = False) -> TrialRequest:
        """A trial of some code, which can call `use_gpu` unless it is bare."""
        text = code if bare else "from common import use_gpu\n" + code
        files = (
            StudyFile("main.py", text.encode()),
            StudyFile("common.py", (FAULTS / "common.py").read_bytes()),
        )
        spec = TrialSpec(
            trial_id=os.urandom(8).hex(),
            combination=Combination.of({"level": "1"}),
            lock_hash=_lock().content_hash,
            command=("python", "main.py"),
            files=files,
            gpus=gpus,
        )
        return TrialRequest(spec, _lock())


def _collect(executor: HostExecutor, count: int) -> list[Completion]:
    answers: list[Completion] = []
    deadline = time.monotonic() + 120
    while len(answers) < count and time.monotonic() < deadline:
        answers += executor.wait(1.0)
    for answer in answers:
        if isinstance(answer, TrialLost):
            print(f"        lost: {answer.reason}")
    return answers


def _processes_of(trial_id: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("BISECT_ENV_TRIAL_ID") == trial_id:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def _kill_worker_of(trial_id: str) -> None:
    """SIGKILL for the Dask worker: parent of the server, of the supervisor, of the trial."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if processes := _processes_of(trial_id):
            try:
                min(processes, key=lambda p: p.create_time()).parents()[2].kill()
            except (psutil.Error, IndexError):
                continue
            return
        time.sleep(0.05)


def record_faults(python: str, gpu: str, target: Path) -> None:
    """Write what real CUDA failures print, as inputs for the tests of classification."""
    target.mkdir(parents=True, exist_ok=True)
    calls = [[f"{f.name}.py", FIRST_BAD] for f in PLANTED if f.outcome is not Outcome.HANG]
    names = ("illegal_address", "fork_after_init", "out_of_memory", "device_assert")
    calls += [["torch_faults.py", name] for name in names]
    for call in calls:
        name = f"torch_{call[1]}" if call[0].startswith("torch") else f"cupy_{call[0].removesuffix('.py')}"
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu, "PYTHONFAULTHANDLER": "1"}
        env.pop("PYTHONPATH", None)
        done = subprocess.run(
            [python, *call], cwd=FAULTS, env=env, capture_output=True, text=True, timeout=120, check=False
        )
        said = {"returncode": done.returncode, "stdout": done.stdout[-8000:], "stderr": done.stderr[-8000:]}
        (target / f"{name}.json").write_text(json.dumps(said, indent=1) + "\n")
        print(f"recorded {name}: exit {done.returncode}")


def _package(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def main() -> int:
    """0 when everything is as promised."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--only", nargs="*", help="contexts, overhead, busy-100, busy-25, several, kill, or names of faults"
    )
    parser.add_argument("--gpus", help="as `bisect-env run --devices`")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the trials; has CuPy")
    parser.add_argument("--record", type=Path, help="write what the faults print into this folder")
    arguments = parser.parse_args()
    nvml, report = open_nvml(), Report()
    gpus = choose_gpus(nvml.gpus(), arguments.gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    report.say(f"bisect-env {__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC")
    report.say(
        f"dask {_package('dask')}, dask-cuda {_package('dask-cuda')}, Python {platform.python_version()}"
    )
    for gpu in gpus:
        report.say(f"GPU {gpu.index}: {gpu.name}, {gpu.uuid}")
    report.say("trials run in this machine's own interpreter, through a PrefixBuilder that builds nothing")
    wanted = arguments.only
    with tempfile.TemporaryDirectory(prefix="bisect-env-gpu-check-") as name:
        check = Check(nvml, gpus, arguments.python, report, Path(name))
        steps: dict[str, Callable[[], None]] = {"contexts": check.contexts, "overhead": check.overhead}
        steps |= {fault.name: partial(check.study, fault) for fault in PLANTED}
        (Path(name) / "kill").mkdir()
        killed = Check(nvml, gpus, arguments.python, report, Path(name) / "kill")
        steps["kill"] = partial(killed.study, PLANTED[0], kill_a_worker=True)
        steps |= {f"busy-{100 * share:.0f}": partial(check.busy, share) for share in LEAST_BUSY}
        if len(gpus) > 1:
            steps["several"] = check.several
        for step, do in steps.items():
            if wanted is None or step in wanted:
                do()
    if arguments.record:
        record_faults(arguments.python, gpus[0].uuid, arguments.record)
    report.say(f"\n{'everything is as promised' if not report.failed else f'{report.failed} checks FAILED'}")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
