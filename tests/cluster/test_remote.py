"""An existing cluster: scheduler and workers are processes that the executor did not start."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bisect_env.cluster import base, remote
from bisect_env.cluster.protocol import (
    BuildFailed,
    Completion,
    PrefixReady,
    PrefixRequest,
    TrialCompleted,
    TrialLost,
)
from bisect_env.cluster.remote import RemoteExecutor
from bisect_env.environments.lock import Lock, UnbuildableError
from bisect_env.environments.prefix import Prefix
from bisect_env.errors import ExitCode, InfrastructureError, UsageError
from bisect_env.trials.records import Outcome
from tests.cluster.dask_processes import ROOT, DaskProcesses, end_tree
from tests.cluster.executor_contract import (
    ExecutorContract,
    build,
    collect,
    left_of,
    prepared,
    processes_of,
    request,
    trial_id,
    wait_until,
)

pytestmark = [pytest.mark.slow, pytest.mark.integration]

SLEEP = "import time; time.sleep(600)"
GPUS = [f"GPU-{letter * 8}-0000-0000-0000-000000000000" for letter in "ab"]


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteExecutor]:
    with DaskProcesses(tmp_path_factory.mktemp("dask")) as dask:
        dask.scheduler()
        dask.worker("--nworkers", "2")
        executor = RemoteExecutor(build, scheduler_file=dask.file)
        wait_until(lambda: executor.slots == 2)
        yield executor
        executor.close()
        executor.close()
        with pytest.raises(InfrastructureError, match="closed"):
            executor.submit(request())
        # The cluster is not ours: it stays.
        assert all(process.poll() is None for process in dask.processes)


class TestRemoteExecutor(ExecutorContract):
    @pytest.fixture
    def executor(self, shared_cluster: RemoteExecutor) -> RemoteExecutor:
        wait_until(lambda: len(shared_cluster.look(0.0)) == 2)
        return shared_cluster

    def test_trials_end_when_the_command_that_asked_for_them_dies(
        self, executor: RemoteExecutor, tmp_path: Path
    ) -> None:
        one = request(SLEEP)
        script = tmp_path / "command.py"
        script.write_text(
            f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
            "from bisect_env.cluster.remote import RemoteExecutor\n"
            "from tests.cluster.executor_contract import build, request\n"
            f"executor = RemoteExecutor(build, scheduler={executor.client.scheduler.address!r})\n"
            f"executor.submit(request({SLEEP!r}, trial_id={one.spec.trial_id!r}))\n"
            "executor.wait()\n"
        )
        with subprocess.Popen([sys.executable, script]) as command:
            wait_until(lambda: processes_of(one.spec.trial_id))
            command.kill()
        wait_until(lambda: not left_of(one.spec.trial_id))
        # Its place is free for others.
        for _ in range(2):
            executor.submit(request())
        assert all(isinstance(answer, TrialCompleted) for answer in collect(executor, 2))


def test_workers_join_and_leave_while_trials_run(tmp_path: Path) -> None:
    with DaskProcesses(tmp_path) as dask:
        dask.scheduler()
        first = dask.worker()
        executor = RemoteExecutor(build, scheduler=dask.address)
        assert executor.slots == 1
        long = request(SLEEP)
        executor.submit(long)
        wait_until(lambda: processes_of(long.spec.trial_id))
        second = dask.worker()
        wait_until(lambda: executor.slots == 2)
        executor.submit(request())
        (answer,) = collect(executor, 1)
        assert isinstance(answer, TrialCompleted)
        # The host of the long trial goes away. This scheduler has Dask's default: it runs the task again, on
        # the other worker, and would do so three times. That run is not the trial's, and not waited for.
        end_tree(first.pid)
        (lost,) = collect(executor, 1)
        assert isinstance(lost, TrialLost)
        assert lost.trial_id == long.spec.trial_id
        assert lost.host == socket.gethostname()
        wait_until(lambda: not left_of(long.spec.trial_id))
        executor.submit(request())
        (answer,) = collect(executor, 1)
        assert isinstance(answer, TrialCompleted)
        assert second.poll() is None
        executor.close()


def build_where_allowed(lock: Lock, *, allow_source: bool, existing: bool = False) -> Prefix:
    """Takes two seconds, and fails on hosts that are told to."""
    time.sleep(2.0)
    if "CANNOT_BUILD" in os.environ:
        raise UnbuildableError("the C library is too old", False)
    return Prefix(Path(sys.prefix), Path(sys.executable), 2.0)


def ready_later(executor: RemoteExecutor) -> PrefixReady:
    (answer,) = collect(executor, 1)
    assert isinstance(answer, PrefixReady)
    return answer


def test_a_host_that_joins_gets_no_trial_before_it_has_the_environment(tmp_path: Path) -> None:
    with DaskProcesses(tmp_path) as dask:
        dask.scheduler()
        dask.worker("--host", "127.0.0.1")
        executor = RemoteExecutor(build_where_allowed, scheduler=dask.address)
        executor.prepare(prepared())
        ready_later(executor)
        long = request(SLEEP)
        executor.submit(long)
        wait_until(lambda: processes_of(long.spec.trial_id))
        dask.worker("--host", "127.0.0.2", "--name", "late")
        wait_until(lambda: len(executor.look(0.0)) == 2)
        # What is submitted before the prefix is there waits for the host that has it.
        assert executor.slots == 1
        early = request()
        executor.submit(early)
        assert ready_later(executor) == PrefixReady("0" * 64, 2.0)
        assert executor.slots == 2
        after = request()
        executor.submit(after)
        (answer,) = collect(executor, 1)
        assert isinstance(answer, TrialCompleted)
        assert (answer.record.trial_id, answer.record.worker) == (after.spec.trial_id, "late")
        executor.close()


def test_where_an_environment_cannot_be_made_on_a_host_that_joins(tmp_path: Path) -> None:
    with DaskProcesses(tmp_path) as dask:
        dask.scheduler()
        first = dask.worker("--host", "127.0.0.1")
        executor = RemoteExecutor(build_where_allowed, scheduler=dask.address)
        executor.prepare(prepared())
        ready_later(executor)
        dask.worker("--host", "127.0.0.2", env={"CANNOT_BUILD": "1"})
        wait_until(lambda: len(executor.look(0.0)) == 2)
        executor.submit(request())
        answers = collect(executor, 2)
        (ready,) = [answer for answer in answers if isinstance(answer, PrefixReady)]
        (note,) = ready.notes
        assert "127.0.0.2" in note
        assert "the C library is too old; its trials run elsewhere" in note
        assert sum(isinstance(answer, TrialCompleted) for answer in answers) == 1
        assert executor.slots == 1
        # Its only host goes away: Dask would keep the trial waiting for ever.
        long = request(SLEEP)
        executor.submit(long)
        wait_until(lambda: processes_of(long.spec.trial_id))
        end_tree(first.pid)
        (lost,) = collect(executor, 1)
        assert isinstance(lost, TrialLost)
        executor.close()


def test_a_lost_scheduler_is_an_error_that_says_what_to_do_and_leaves_no_trial_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "CONNECT_TIMEOUT", 10.0)
    monkeypatch.setattr(base, "RECONNECT_GRACE", 15.0)
    with DaskProcesses(tmp_path) as dask:
        scheduler = dask.scheduler()
        dask.worker()
        executor = RemoteExecutor(build, scheduler=dask.address)
        one = request(SLEEP)
        executor.submit(one)
        wait_until(lambda: processes_of(one.spec.trial_id))
        scheduler.kill()
        wait_until(lambda: executor.client.status == "connecting")
        answers: list[Completion] = []
        # None of these waits for the connection, so that Ctrl-C is looked at.
        for step in (
            lambda: executor.prepare(prepared()),
            lambda: executor.submit(request()),
            lambda: answers.extend(executor.wait(0.1)),
        ):
            began = time.monotonic()
            step()
            assert time.monotonic() - began < 3.0
        with pytest.raises(InfrastructureError, match="lost") as error:  # noqa: PT012
            while True:
                answers += executor.wait(1.0)
                if answers:
                    executor.submit(request())
        assert "start the same command again" in str(error.value)
        trials = [answer for answer in answers if not isinstance(answer, BuildFailed)]
        assert {type(answer) for answer in trials} == {TrialLost}
        assert [trial_id(answer) for answer in trials].count(one.spec.trial_id) == 1
        wait_until(lambda: not left_of(one.spec.trial_id))
        # As a client is that closes by itself while it is asked; what a thread raises fails the test.
        executor.client.scheduler = None
        executor.cancel()
        executor.close()


def meeting(folder: Path) -> str:
    """Return a script that shows its GPUs once two of its runs have met in a folder.

    Without the meeting, a GPU that one run has given back could be lent to the other.
    """
    return f"""
        import os, time
        open(os.path.join({str(folder)!r}, f"met-{{os.getpid()}}"), "w").close()
        while len([name for name in os.listdir({str(folder)!r}) if name.startswith("met-")]) < 2:
            time.sleep(0.01)
        print(os.environ["CUDA_VISIBLE_DEVICES"])
    """


def test_gpus_are_counted_and_lent_by_workers_that_promise_them(tmp_path: Path) -> None:
    if importlib.util.find_spec("pynvml") is not None:
        pytest.skip("with NVML, GPUs that are not there are refused")
    show = meeting(tmp_path)
    with DaskProcesses(tmp_path) as dask:
        dask.scheduler()
        dask.worker("--nthreads", "3", "--resources", "GPU=2", env={"CUDA_VISIBLE_DEVICES": ",".join(GPUS)})
        executor = RemoteExecutor(build, scheduler=dask.address, gpus_per_trial=1)
        assert executor.slots == 2
        for _ in range(2):
            executor.submit(request(show, gpus=1))
        answers = collect(executor, 2)
        assert sorted(said(answer) for answer in answers) == GPUS
        assert sorted(a.record.gpu for a in answers if isinstance(a, TrialCompleted)) == GPUS
        executor.submit(request(show, gpus=2))
        assert sorted(said(collect(executor, 1)[0]).split(",")) == GPUS
        executor.submit(request(show))
        assert said(collect(executor, 1)[0]) == ""
        with pytest.raises(InfrastructureError, match="asks for 3 GPUs"):
            executor.submit(request(show, gpus=3))
        executor.close()
        with pytest.raises(InfrastructureError, match="asks for 3 GPUs") as error:
            RemoteExecutor(build, scheduler=dask.address, gpus_per_trial=3)
        assert "--resources GPU=N" in str(error.value)


def test_workers_of_one_host_that_see_the_same_gpus_never_lend_the_same_one(tmp_path: Path) -> None:
    if importlib.util.find_spec("pynvml") is not None:
        pytest.skip("with NVML, GPUs that are not there are refused")
    show = meeting(tmp_path)
    with DaskProcesses(tmp_path) as dask:
        dask.scheduler()
        for _ in range(2):
            dask.worker("--resources", "GPU=1", env={"CUDA_VISIBLE_DEVICES": ",".join(GPUS)})
        executor = RemoteExecutor(build, scheduler=dask.address, gpus_per_trial=1)
        wait_until(lambda: executor.slots == 2)
        for _ in range(2):
            executor.submit(request(show, gpus=1))
        assert sorted(said(answer) for answer in collect(executor, 2)) == GPUS
        # A worker that is killed gives its GPU back, and one too many says so.
        end_tree(dask.processes[1].pid)
        wait_until(lambda: len(executor.look(0.0)) == 1)
        for name in tmp_path.glob("met-*"):
            name.unlink()
        dask.worker("--resources", "GPU=1", env={"CUDA_VISIBLE_DEVICES": ",".join(GPUS)})
        wait_until(lambda: len(executor.look(0.0)) == 2)
        for _ in range(2):
            executor.submit(request(show, gpus=1))
        assert sorted(said(answer) for answer in collect(executor, 2)) == GPUS
        dask.worker("--resources", "GPU=1", env={"CUDA_VISIBLE_DEVICES": ",".join(GPUS)})
        wait_until(lambda: len(executor.look(0.0)) == 3)
        for _ in range(3):
            executor.submit(request("import time; time.sleep(2)", gpus=1))
        (lost,) = [answer for answer in collect(executor, 3) if isinstance(answer, TrialLost)]
        assert "others of this host lend 2 of the 2 that it sees" in lost.reason
        assert not lost.under_trial
        executor.close()


NVML = """
import os

class NVMLError(Exception):
    value = 15

NVMLError_Timeout = type("NVMLError_Timeout", (NVMLError,), {})
NVML_MEMORY_ERROR_TYPE_UNCORRECTED = NVML_VOLATILE_ECC = nvmlEventTypeXidCriticalError = 1

def nvmlInit(): pass
def nvmlDeviceGetCount(): return 1
def nvmlDeviceGetHandleByIndex(index): return "GPU-0"
def nvmlDeviceGetHandleByUUID(uuid): return uuid
def nvmlDeviceGetUUID(handle): return handle
def nvmlDeviceGetName(handle): return "NVIDIA H100"
def nvmlSystemGetDriverVersion(): return "570.1"
def nvmlDeviceGetTotalEccErrors(*_): return 0
def nvmlDeviceGetComputeRunningProcesses(handle): return []
def nvmlEventSetCreate(): raise NVMLError
def nvmlDeviceGetMemoryInfo(handle):
    if os.path.exists(LOST):
        raise NVMLError
"""


def test_every_command_is_told_of_a_gpu_that_is_put_aside(tmp_path: Path) -> None:
    """Also of one that the trial of another command has found, before or after."""
    lost = tmp_path / "lost"
    (tmp_path / "pynvml.py").write_text(f"LOST = {str(lost)!r}\n{NVML}")
    env = {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
        "DASK_DISTRIBUTED__DIAGNOSTICS__NVML": "False",
    }
    with DaskProcesses(tmp_path) as dask:
        dask.scheduler()
        dask.worker("--resources", "GPU=1", env=env)
        first, second = (RemoteExecutor(build, scheduler=dask.address, gpus_per_trial=1) for _ in range(2))
        for executor in (first, second):
            executor.submit(request(gpus=1))
            assert said(collect(executor, 1)[0]) == ""
        lost.touch()
        second.submit(request(gpus=1))
        assert isinstance(collect(second, 1)[0], TrialLost)
        for executor in (second, first):
            wait_until(lambda: not sum(offer.gpus for offer in first.look(0.0)))
            time.sleep(2 * base.OFFERS_AGE)
            with pytest.raises(InfrastructureError, match="asks for 1 GPU") as error:
                executor.submit(request(gpus=1))
            assert "GPU-0: it was lost" in str(error.value)
            executor.close()


def test_an_environment_is_built_without_a_gpu_and_beside_a_trial_that_has_it(tmp_path: Path) -> None:
    if importlib.util.find_spec("pynvml") is not None:
        pytest.skip("with NVML, GPUs that are not there are refused")
    running, over, built = (tmp_path / name for name in ("running", "over", "built"))
    trial = f"""
        import os, time
        open({str(running)!r}, "w").close()
        while not os.path.exists({str(over)!r}):
            time.sleep(0.02)
    """
    with DaskProcesses(tmp_path) as dask:
        dask.scheduler()
        dask.worker("--nthreads", "2", "--resources", "GPU=1", env={"CUDA_VISIBLE_DEVICES": GPUS[0]})
        executor = RemoteExecutor(build, scheduler=dask.address, gpus_per_trial=1)
        lock = Lock("1" * 64, "3.11", "linux-64", (), f"until {built}")
        executor.prepare(PrefixRequest(lock, allow_source=False))
        executor.submit(request(trial, gpus=1))
        # The build is under way, and the only GPU is free for the trial.
        wait_until(running.exists)
        built.touch()
        # The trial has the GPU, and the build ends.
        (ready,) = collect(executor, 1)
        assert isinstance(ready, PrefixReady)
        over.touch()
        (answer,) = collect(executor, 1)
        assert said(answer) == ""
        executor.close()


def said(answer: Completion) -> str:
    assert isinstance(answer, TrialCompleted), answer
    assert answer.record.outcome is Outcome.PASS, answer.record
    return answer.record.stdout.strip()


def another_release(folder: Path) -> Path:
    """A directory to import another release of ours from: what it says of itself, and its metadata."""
    place = folder / "other"
    shutil.copytree(ROOT / "bisect_env", place / "bisect_env", ignore=shutil.ignore_patterns("__pycache__"))
    init = place / "bisect_env" / "__init__.py"
    init.write_text(re.sub(r'__version__ = ".*"', '__version__ = "9.9.0"', init.read_text("utf-8")))
    metadata = place / "bisect_env-9.9.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: bisect-env\nVersion: 9.9.0\n")
    return place


def test_a_cluster_with_other_versions_or_without_workers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DaskProcesses(tmp_path) as dask:
        dask.scheduler()
        with monkeypatch.context() as patched:
            patched.setattr(remote, "WORKERS_TIMEOUT", 0.5)
            with pytest.raises(InfrastructureError, match="has no workers") as error:
                RemoteExecutor(build, scheduler=dask.address)
        assert "dask worker" in str(error.value)
        dask.worker(env={"PYTHONPATH": os.pathsep.join([str(another_release(tmp_path)), str(ROOT)])})
        with pytest.raises(InfrastructureError, match="cannot work together") as error:
            RemoteExecutor(build, scheduler=dask.address)
        assert "bisect-env: this command has" in str(error.value)
        assert "has 9.9.0" in str(error.value)


def test_a_worker_with_another_version_that_joins_later_runs_nothing(tmp_path: Path) -> None:
    with DaskProcesses(tmp_path) as dask:
        dask.scheduler()
        first = dask.worker()
        executor = RemoteExecutor(build, scheduler=dask.address)
        dask.worker(env={"PYTHONPATH": os.pathsep.join([str(another_release(tmp_path)), str(ROOT)])})
        wait_until(lambda: executor.slots == 2)
        end_tree(first.pid)
        wait_until(lambda: executor.slots == 1)
        executor.submit(request())
        (answer,) = collect(executor, 1)
        assert isinstance(answer, TrialLost)
        assert "has bisect-env 9.9.0" in answer.reason
        executor.close()


def test_a_scheduler_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "CONNECT_TIMEOUT", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(InfrastructureError, match="cannot be reached") as error:
        RemoteExecutor(build, scheduler=f"tcp://127.0.0.1:{port}")
    assert error.value.exit_code is ExitCode.INFRASTRUCTURE
    with pytest.raises(UsageError, match="is no file"):
        RemoteExecutor(build, scheduler_file=tmp_path / "none.json")
    with pytest.raises(UsageError, match="no scheduler's address"):
        RemoteExecutor(build, scheduler="nonsense://x")


# -- a host of its own ---------------------------------------------------------------------------------------


class Namespace:
    """A network namespace, joined to this host by a link that can be cut."""

    def __init__(self) -> None:
        number = os.getpid() % 250 + 1
        self.name, self.link, self.peer = f"bx{os.getpid()}", f"bxa{os.getpid()}", f"bxb{os.getpid()}"
        self.here, self.there = f"10.213.{number}.1", f"10.213.{number}.2"

    def ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)

    def __enter__(self) -> Namespace:
        if os.geteuid() != 0 or shutil.which("ip") is None:
            pytest.skip("needs root and iproute2")
        try:
            self.ip("netns", "add", self.name)
            self.ip("link", "add", self.link, "type", "veth", "peer", "name", self.peer, "netns", self.name)
        except subprocess.CalledProcessError as error:
            self.__exit__()
            pytest.skip(f"network namespaces cannot be made here: {error.stderr.decode().strip()}")
        self.ip("addr", "add", f"{self.here}/30", "dev", self.link)
        self.ip("link", "set", self.link, "up")
        self.ip("-n", self.name, "addr", "add", f"{self.there}/30", "dev", self.peer)
        self.ip("-n", self.name, "link", "set", self.peer, "up")
        self.ip("-n", self.name, "link", "set", "lo", "up")
        return self

    def __exit__(self, *_: object) -> None:
        for words in (["link", "del", self.link], ["netns", "del", self.name]):
            subprocess.run(["ip", *words], check=False, capture_output=True, timeout=20)

    @property
    def inside(self) -> list[str]:
        return ["ip", "netns", "exec", self.name]


def test_a_host_that_vanishes_loses_its_trial_and_may_come_back(tmp_path: Path) -> None:
    patience = {
        "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "12s",
        "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "10s",
    }
    with Namespace() as far, DaskProcesses(tmp_path, host=far.here, env=patience) as dask:
        dask.scheduler()
        away = dask.worker("--host", far.there, before=far.inside)
        executor = RemoteExecutor(build, scheduler=dask.address)
        one = request(SLEEP)
        executor.submit(one)
        wait_until(lambda: processes_of(one.spec.trial_id))
        dask.worker("--host", far.here)
        wait_until(lambda: executor.slots == 2)
        far.ip("link", "set", far.link, "down")
        (lost,) = collect(executor, 1)
        assert isinstance(lost, TrialLost)
        executor.submit(request())
        assert isinstance(collect(executor, 1)[0], TrialCompleted)
        # The vanished host notices too, and does not go on with what nobody waits for.
        wait_until(lambda: not left_of(one.spec.trial_id))
        far.ip("link", "set", far.link, "up")
        # Dask ends a worker that lost its scheduler; whoever started it starts another.
        end_tree(away.pid)
        dask.worker("--host", far.there, before=far.inside)
        wait_until(lambda: executor.slots == 2)
        for _ in range(4):
            executor.submit(request("import time; time.sleep(0.5)"))
        answers = collect(executor, 4)
        assert len({a.record.worker for a in answers if isinstance(a, TrialCompleted)}) == 2
        executor.close()
