from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import dask.config
import psutil
import pytest

from bisect_env.cluster.local import HostExecutor
from bisect_env.cluster.pool import PoolExecutor
from bisect_env.cluster.protocol import PrefixReady, PrefixRequest, TrialCompleted, TrialLost
from bisect_env.environments.lock import Lock
from bisect_env.environments.prefix import Prefix
from bisect_env.errors import InfrastructureError
from bisect_env.running import run_tool
from bisect_env.temporary import remove_left_behind
from bisect_env.trials.forks import SERVER
from bisect_env.trials.records import Outcome
from tests.cluster.cores import cores_executor
from tests.cluster.executor_contract import (
    PATIENCE,
    ExecutorContract,
    build,
    collect,
    left_of,
    prepared,
    processes_of,
    request,
    until,
    wait_until,
)

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
HOST = socket.gethostname()
SLEEP = "import time; time.sleep(600)"


class TestPoolExecutor(ExecutorContract):
    @pytest.fixture
    def executor(self) -> Iterator[PoolExecutor]:
        executor = PoolExecutor(build, slots=2)
        yield executor
        executor.close()


@dataclasses.dataclass(frozen=True)
class Unreleasable(Prefix):
    """An environment whose use ends with an error that nobody expects."""

    def release(self) -> None:
        raise RuntimeError("no release")


def test_an_unexpected_error_voids_a_trial_and_ends_no_thread() -> None:
    left = [True, True]

    def breaks_at_first(
        lock: Lock, *, allow_source: bool | frozenset[str] = False, existing: bool = False
    ) -> Prefix:
        prefix = build(lock, allow_source=allow_source)
        return Unreleasable(prefix.path, prefix.python) if left and left.pop() else prefix

    executor = PoolExecutor(breaks_at_first, slots=1)
    try:
        executor.prepare(PrefixRequest(request().lock))
        assert collect(executor, 1) == [PrefixReady(request().lock.content_hash)]
        one, two = request("pass"), request("pass")
        executor.submit(one)
        (void,) = collect(executor, 1)
        assert isinstance(void, TrialCompleted)
        assert (void.record.trial_id, void.record.outcome) == (one.spec.trial_id, Outcome.HARNESS_ERROR)
        assert "Traceback" in void.record.stack
        assert "RuntimeError: no release" in void.record.stack
        executor.submit(two)
        (answer,) = collect(executor, 1)
        assert isinstance(answer, TrialCompleted)
        assert answer.record.outcome is Outcome.PASS
    finally:
        executor.close()


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[HostExecutor]:
    """One cluster for the whole suite: starting one takes seconds."""
    before = set(psutil.Process().children(recursive=True))
    executor = cores_executor(build, workers=2)
    yield executor
    executor.close()
    executor.close()
    SERVER.close()  # of inline executors
    # multiprocessing's resource tracker belongs to this process, not to the cluster.
    left = set(psutil.Process().children(recursive=True)) - before
    assert not [process for process in left if "resource_tracker" not in " ".join(process.cmdline())]
    with pytest.raises(InfrastructureError, match="closed"):
        executor.submit(request())


class TestHostExecutor(ExecutorContract):
    @pytest.fixture
    def executor(self, shared_cluster: HostExecutor) -> HostExecutor:
        # A test before may have killed a worker, which then starts again.
        wait_until(lambda: len(shared_cluster.look(0.0)) == 2)
        return shared_cluster

    def test_a_killed_worker_loses_its_trial_and_leaves_no_process(self, executor: HostExecutor) -> None:
        code = "import os, time\nif os.fork() == 0: os.setsid()\ntime.sleep(600)"
        one = request(code)
        executor.submit(one)
        wait_until(lambda: len(processes_of(one.spec.trial_id)) == 2)
        processes = processes_of(one.spec.trial_id)
        worker_of(one.spec.trial_id).kill()
        (answer,) = collect(executor, 1)
        assert answer == TrialLost(one.spec.trial_id, "the worker died while the trial ran", HOST)
        wait_until(lambda: not any(process.is_running() for process in processes))
        # Nothing is run again behind our back, and the worker comes back.
        assert executor.wait(1.0) == []
        assert not left_of(one.spec.trial_id)
        wait_until(lambda: executor.slots == 2)
        # The worker that came back has the settings of the one that was there.
        wait_until(lambda: len(settings_of(executor)) == 2)
        assert settings_of(executor) == [False, False]
        executor.submit(request())
        assert isinstance(collect(executor, 1)[0], TrialCompleted)

    def test_a_trial_that_is_cancelled_while_its_worker_dies_is_answered_once(
        self, executor: HostExecutor, tmp_path: Path
    ) -> None:
        one, other = request(SLEEP), request(until(tmp_path / "end"))
        executor.submit(one)
        executor.submit(other)
        wait_until(lambda: processes_of(one.spec.trial_id) and processes_of(other.spec.trial_id))
        worker = worker_of(one.spec.trial_id)
        worker.suspend()  # it does not hear of it, and others are told nevertheless
        executor.cancel()
        worker.kill()
        answers = collect(executor, 2)
        assert all(isinstance(answer, TrialLost) for answer in answers)
        wait_until(lambda: not left_of(one.spec.trial_id) and not left_of(other.spec.trial_id))
        assert executor.wait(1.0) == []
        wait_until(lambda: executor.slots == 2)

    def test_an_answer_that_a_lost_worker_took_along_is_not_taken_from_a_second_run(
        self, executor: HostExecutor, tmp_path: Path
    ) -> None:
        one = request(f"open({str(tmp_path / 'ran')!r}, 'a').write('x')")
        executor.submit(one)
        attempt, known = next(iter(executor.attempts.items()))
        wait_until(lambda: known.future.status == "finished")
        (address,) = executor.client.who_has()[("trial", attempt)]
        pid = executor.client.run(os.getpid, workers=[address])[address]
        psutil.Process(pid).kill()
        wait_until(lambda: not psutil.pid_exists(pid))
        (answer,) = collect(executor, 1)
        assert isinstance(answer, TrialLost)
        assert "was lost before its answer was fetched" in answer.reason
        assert executor.wait(0.5) == []
        wait_until(lambda: executor.slots == 2)

    @pytest.mark.slow
    def test_a_worker_that_takes_long_to_start_again_comes_back(self, executor: HostExecutor) -> None:
        before = {worker.pid for worker in psutil.Process().children()}
        pids = executor.client.run(os.getpid)
        psutil.Process(min(pids.values())).kill()
        wait_until(lambda: any(worker.pid not in before for worker in psutil.Process().children()))
        new = [worker for worker in psutil.Process().children() if worker.pid not in before]
        for worker in new:
            worker.suspend()
        time.sleep(17.0)  # Dask gives up such a worker after 15 seconds
        for worker in new:
            worker.resume()
        wait_until(lambda: executor.slots == 2)
        executor.submit(request())
        assert isinstance(collect(executor, 1)[0], TrialCompleted)

    def test_workers_are_seen_while_the_client_looks_at_the_scheduler_itself(
        self, executor: HostExecutor
    ) -> None:
        done = threading.Event()

        def ask_for_no_workers() -> None:
            # As the client does itself every few seconds.
            while not done.is_set():
                executor.client.scheduler_info(n_workers=0)

        asking = threading.Thread(target=ask_for_no_workers)
        asking.start()
        try:
            assert [len(executor.look(0.0)) for _ in range(200)] == [2] * 200
        finally:
            done.set()
            asking.join()

    def test_ctrl_c_in_the_terminal_does_not_reach_trials_or_workers(
        self, executor: HostExecutor, tmp_path: Path
    ) -> None:
        one = request(until(tmp_path / "seen"))
        executor.submit(one)
        wait_until(lambda: processes_of(one.spec.trial_id))
        worker = worker_of(one.spec.trial_id)
        worker.send_signal(signal.SIGINT)
        (trial,) = processes_of(one.spec.trial_id)
        assert os.getpgid(trial.pid) != os.getpgid(worker.pid)
        assert os.getsid(trial.pid) == trial.pid
        (tmp_path / "seen").touch()
        (answer,) = collect(executor, 1)
        assert isinstance(answer, TrialCompleted)
        assert answer.record.outcome is Outcome.PASS
        assert worker.is_running()


def settings_of(executor: HostExecutor) -> list[bool]:
    return list(executor.client.run(dask.config.get, "distributed.worker.profile.enabled").values())


def worker_of(trial_id: str) -> psutil.Process:
    """The Dask worker: parent of the server, of the supervisor, of the trial."""
    trial = min(processes_of(trial_id), key=lambda process: process.create_time())
    worker = trial.parents()[2]
    assert "spawn_main" in " ".join(worker.cmdline())
    return worker


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_when_the_whole_command_is_killed(
    tmp_path: Path, how: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = request(SLEEP)
    program = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
if __name__ == "__main__":
    from tests.cluster.cores import cores_executor
    from tests.cluster.executor_contract import build, request
    executor = cores_executor(build, workers=1)
    executor.submit(request({SLEEP!r}, trial_id={one.spec.trial_id!r}))
    executor.wait()
"""
    script = tmp_path / "command.py"
    script.write_text(program)
    with subprocess.Popen([sys.executable, script], env={**os.environ, "TMPDIR": str(tmp_path)}) as command:
        wait_until(lambda: processes_of(one.spec.trial_id))
        everything = psutil.Process(command.pid).children(recursive=True)
        command.send_signal(how)
    wait_until(lambda: not any(process.is_running() for process in everything))
    assert not left_of(one.spec.trial_id)
    # The trial's directory goes with its supervisor, which may outlive those above by a moment; the cluster's
    # own is left to the next cluster.
    wait_until(
        lambda: len(list(tmp_path.glob("bisect-env-*"))) == 1,
        said=lambda: f"left: {sorted(path.name for path in tmp_path.iterdir())}",
    )
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    remove_left_behind()
    assert list(tmp_path.glob("bisect-env-*")) == []


def test_closing_an_inline_executor_ends_its_trials() -> None:
    executor = PoolExecutor(build, slots=2)
    one = request(SLEEP)
    executor.submit(one)
    wait_until(lambda: processes_of(one.spec.trial_id))
    before = time.monotonic()
    executor.close()
    executor.close()
    assert not left_of(one.spec.trial_id)
    assert time.monotonic() - before < 30
    with pytest.raises(InfrastructureError, match="closed"):
        executor.submit(one)


@pytest.mark.slow
def test_a_lost_cluster_is_an_error_that_says_what_to_do() -> None:
    executor = cores_executor(build, workers=1)
    executor.submit(request(SLEEP))
    executor.cluster.close()
    with pytest.raises(InfrastructureError, match=r"lost|gone"):
        wait_for_ever(executor)
    executor.close()


def wait_for_ever(executor: HostExecutor) -> None:
    while True:
        if any(isinstance(answer, TrialLost) for answer in executor.wait(1.0)):
            executor.submit(request(SLEEP))


def test_no_build_is_begun_or_continued_after_the_end(tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    def runs_two_tools(lock: Lock, *, allow_source: bool, existing: bool = False) -> Prefix:
        for _ in range(2):
            run_tool(
                ["sh", "-c", f"echo >> {begun}; exec sleep 600"], env=os.environ, cwd=tmp_path, timeout=700
            )
        raise AssertionError("it was not ended")

    executor = PoolExecutor(runs_two_tools, slots=1)
    executor.prepare(prepared("a"))
    executor.prepare(prepared("b"))
    wait_until(begun.exists)
    executor.close()
    for thread in threading.enumerate():
        if thread.name.startswith("build-"):
            thread.join(PATIENCE)
    assert begun.read_text() == "\n"
