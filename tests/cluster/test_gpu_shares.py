"""Trials that share a GPU: who is lent which, who waits, and what is not held against whom."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_env.cluster.perform import GpuTrial, GpuUnavailableError
from bisect_env.cluster.protocol import (
    TrialCompleted,
    TrialLost,
    WorkerOffer,
    promised,
    slots,
    trials_per_gpu,
    why_never,
)
from bisect_env.cluster.remote import RemoteExecutor
from bisect_env.cluster.worker import HostGpus
from bisect_env.matrix.grid import Combination
from bisect_env.trials.records import Outcome, Phase, TrialRecord, TrialSpec
from bisect_env.trials.run import GpuWatch
from tests.cluster.dask_processes import DaskProcesses
from tests.cluster.executor_contract import build, collect, processes_of, request, wait_until

A, B = "GPU-a", "GPU-b"
VALUES = Combination.of({"a": "1"})


def spec(gpus: float) -> TrialSpec:
    return TrialSpec("t", VALUES, "lock", ("python",), gpus=gpus)


def record(outcome: Outcome) -> TrialRecord:
    return TrialRecord("t", VALUES, "lock", outcome, "its words", 0, Phase.BODY, datetime.now(UTC), 1.0)


class Tenants:
    """Trials that stay until they are told to end, each in a thread."""

    def __init__(self, gpus: HostGpus) -> None:
        self.gpus = gpus
        self.seen: list[list[str]] = []
        self.threads: dict[threading.Event, threading.Thread] = {}

    def start(self, gpus: float, *, waits: bool = False) -> threading.Event:
        """Begin a trial, or let it wait for a GPU; it goes on until the event that is given is set."""
        end, begun = threading.Event(), threading.Event()

        def trial(uuids: Sequence[str], _watch: GpuWatch | None) -> TrialRecord:
            self.seen.append(list(uuids))
            begun.set()
            assert end.wait(60)
            return record(Outcome.PASS)

        thread = threading.Thread(target=self.gpus.run, args=(spec(gpus), trial))
        thread.start()
        self.threads[end] = thread
        # Nothing says that a trial waits: it is given a moment to begin all the same.
        assert begun.wait(0.3 if waits else 20) or waits
        return end

    def leave(self, *ends: threading.Event) -> None:
        """End trials, and wait until their GPUs are given back."""
        for end in ends:
            end.set()
        for end in ends:
            self.threads[end].join(60)
            assert not self.threads[end].is_alive()


def ends(outcome: Outcome) -> GpuTrial:
    return lambda _uuids, _watch: record(outcome)


@pytest.mark.slow
@given(st.integers(1, 32))
def test_so_many_trials_fit_on_a_gpu_and_no_more(count: int) -> None:
    share = 1 / count
    assert trials_per_gpu(share) == count
    total = sum(promised(share) for _ in range(count))
    assert total <= 1.0 < total + promised(share)
    assert slots([WorkerOffer("a", "h", 99, 2)], share) == 2 * count
    assert why_never([WorkerOffer("a", "h", 99, 1)], share) is None


def test_threads_of_a_worker_limit_what_shares_its_gpu() -> None:
    assert slots([WorkerOffer("a", "h", 3, 1)], 0.25) == 3
    assert slots([WorkerOffer("a", "h", 4, 0)], 0.25) == 0
    assert why_never([WorkerOffer("a", "h", 4, 0)], 0.25) == (
        "a trial asks for 0.25 GPU, and no worker hands them out (the only worker is there, none has any)"
    )


def test_shares_of_one_gpu_are_put_together() -> None:
    tenants = Tenants(HostGpus(((A, B), None)))
    ends = [tenants.start(0.5) for _ in range(2)] + [tenants.start(1)]
    assert tenants.seen == [[A], [A], [B]]
    tenants.leave(*ends)


def test_who_needs_a_whole_gpu_waits_for_the_first_that_gets_free() -> None:
    tenants = Tenants(HostGpus(((A, B), None)))
    first, *rest = [tenants.start(0.5) for _ in range(4)]
    tenants.leave(first, rest[1])
    whole = tenants.start(1, waits=True)  # half of each GPU is free: enough, but in no one piece
    assert len(tenants.seen) == 4
    late = tenants.start(0.5, waits=True)
    tenants.leave(rest[0], rest[2], late, whole)
    assert len(tenants.seen) == 6


@pytest.mark.parametrize("outcome", [Outcome.CUDA_OOM, Outcome.CUDA_FAULT, Outcome.CUDA_INIT])
def test_what_a_neighbour_may_have_done_is_not_held_against_a_trial(outcome: Outcome) -> None:
    tenants = Tenants(HostGpus(((A,), None)))
    end = tenants.start(0.5)
    with pytest.raises(GpuUnavailableError, match="beside another trial on the same GPU: its words") as error:
        tenants.gpus.run(spec(0.5), ends(outcome))
    assert error.value.crowded
    tenants.leave(end)
    # Nobody is there any more.
    assert tenants.gpus.run(spec(0.5), ends(outcome)).outcome is outcome


def test_failures_that_no_neighbour_brings_about_count_on_a_shared_gpu() -> None:
    tenants = Tenants(HostGpus(((A,), None)))
    end = tenants.start(0.5)
    for outcome in (Outcome.CRASH, Outcome.EXIT_FAIL, Outcome.PASS):
        assert tenants.gpus.run(spec(0.5), ends(outcome)).outcome is outcome
    tenants.leave(end)


@pytest.mark.slow
@pytest.mark.integration
def test_four_trials_share_a_gpu_of_a_dask_worker_and_a_fifth_waits(tmp_path: Path) -> None:
    if importlib.util.find_spec("pynvml") is not None:
        pytest.skip("with NVML, GPUs that are not there are refused")
    gpu = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
    meet = tmp_path / "meet"
    meet.mkdir()
    # All who can be there at once meet; who comes later waits until they have gone.
    code = f"""
        import os, time
        place, met = {str(meet)!r}, {str(tmp_path / "met")!r}
        is_late, own = os.path.exists(met), os.path.join(place, str(os.getpid()))
        open(own, "w").close()
        while (len(os.listdir(place)) > 1) if is_late else (len(os.listdir(place)) < 4): time.sleep(0.01)
        time.sleep(0.5)
        print(len(os.listdir(place)), os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
        open(f"{{met}}-{{os.getpid()}}", "w").close()
        while not is_late and len([n for n in os.listdir({str(tmp_path)!r}) if n.startswith("met-")]) < 4:
            time.sleep(0.01)
        open(met, "w").close()
        os.remove(own)
    """
    with DaskProcesses(tmp_path) as dask:
        dask.scheduler()
        dask.worker("--nthreads", "8", "--resources", "GPU=1", env={"CUDA_VISIBLE_DEVICES": gpu})
        executor = RemoteExecutor(build, scheduler=dask.address, gpus_per_trial=0.25)
        assert executor.slots == 4
        for _ in range(5):
            one = request(code, gpus=1)
            executor.submit(replace(one, spec=replace(one.spec, gpus=0.25)))
        answers = [a.record.stdout.split() for a in collect(executor, 5) if isinstance(a, TrialCompleted)]
        assert sorted(answers) == [["1", gpu], *[["4", gpu]] * 4]
        # What looks like a neighbour's doing is lost, and says so.
        fail = f"""
            import os, time
            open(os.path.join({str(meet)!r}, str(os.getpid())), "w").close()
            while len(os.listdir({str(meet)!r})) < 2: time.sleep(0.01)
            raise RuntimeError("CUDA error: out of memory")
        """
        for _ in range(2):
            one = request(fail, gpus=1)
            executor.submit(replace(one, spec=replace(one.spec, gpus=0.25)))
        lost = collect(executor, 2)
        assert [type(answer) for answer in lost] == [TrialLost] * 2, lost
        assert all(answer.crowded for answer in lost if isinstance(answer, TrialLost))
        # A cancelled trial gives its share back.
        staying = [request("import time; time.sleep(600)", gpus=1) for _ in range(4)]
        for one in staying:
            executor.submit(replace(one, spec=replace(one.spec, gpus=0.25)))
        wait_until(lambda: sum(bool(processes_of(one.spec.trial_id)) for one in staying) == 4)
        executor.cancel()
        assert all(isinstance(answer, TrialLost) for answer in collect(executor, 4))
        later = request("pass", gpus=1)
        executor.submit(replace(later, spec=replace(later.spec, gpus=1)))
        (answer,) = collect(executor, 1)
        assert isinstance(answer, TrialCompleted)
        executor.close()
