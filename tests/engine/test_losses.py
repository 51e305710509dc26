"""Hosts that go away under the trials of one combination: void each time, and a finding in the end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace

import pytest

from bisect_env.cluster.pool import PoolExecutor
from bisect_env.cluster.protocol import Completion, TrialCompleted, TrialLost, TrialRequest
from bisect_env.cluster.worker import WorkerSettings, perform_on_worker
from bisect_env.engine import events
from bisect_env.engine.state import VOIDS_BEFORE_STOP, many_lost, why_aside
from bisect_env.environments.lock import Lock
from bisect_env.environments.prefix import Prefix
from bisect_env.errors import InfrastructureError
from bisect_env.storage.entries import EvidenceCounts
from bisect_env.trials.records import Evidence
from tests.engine.studies import QUICK, Studies


def machine_prefix(
    lock: Lock, *, allow_source: bool | frozenset[str] = False, existing: bool = False
) -> Prefix:
    return Prefix(Path(sys.prefix), Path(sys.executable))


class HostsThatFall(PoolExecutor):
    """Real trials, some of whose answers are lost with the host that they are said to have run on."""

    def __init__(self, falls: Callable[[TrialRequest], bool], hosts: list[str]) -> None:
        super().__init__(machine_prefix, 2)
        self._falls = falls
        self._hosts = cycle(hosts)
        self._doomed: set[str] = set()

    def submit(self, request: TrialRequest) -> None:
        if self._falls(request):
            self._doomed.add(request.spec.trial_id)
        super().submit(request)

    def wait(self, timeout: float | None = None) -> list[Completion]:
        return [
            TrialLost(answer.record.trial_id, "the worker died while the trial ran", next(self._hosts))
            if isinstance(answer, TrialCompleted) and answer.record.trial_id in self._doomed
            else answer
            for answer in super().wait(timeout)
        ]


SCRIPT = "import sys; sys.exit(int(sys.argv[1]) >= 6)"


@pytest.mark.integration
def test_a_combination_that_takes_hosts_down_is_told_and_never_counted(studies: Studies) -> None:
    def at_five(request: TrialRequest) -> bool:
        return request.spec.combination["level"] == "5"

    report = studies.run(
        studies.matrix(SCRIPT), make_executor=lambda: HostsThatFall(at_five, ["a", "b", "c"])
    ).report
    assert report["verdict"]["first_bad"]["level"] == "6"
    (aside,) = [event for event in studies.events if isinstance(event, events.SetAside)]
    assert [combination["level"] for combination in aside.combinations] == ["5"]
    assert aside.reason == "its trials were lost on 3 hosts (a, b, c)"
    told = [event for event in studies.events if isinstance(event, events.TrialFinished)]
    lost = [event for event in told if event.record.combination["level"] == "5"]
    assert len(lost) >= 3
    assert {event.evidence for event in lost} == {Evidence.VOID}
    assert {event.record.host for event in lost} == {"a", "b", "c"}


@pytest.mark.integration
def test_one_bad_host_is_no_finding(studies: Studies) -> None:
    count = iter(range(1000))

    def every_third(_request: TrialRequest) -> bool:
        return next(count) % 3 == 0

    report = studies.run(
        studies.matrix(SCRIPT), make_executor=lambda: HostsThatFall(every_third, ["a"])
    ).report
    assert report["verdict"]["first_bad"]["level"] == "6"
    assert not [event for event in studies.events if isinstance(event, events.SetAside)]


class LosesAHost(PoolExecutor):
    """An executor whose first trials are lost at the same time with their host, as are the next ones."""

    def __init__(self) -> None:
        super().__init__(machine_prefix, 16)
        self.hosts = ["a", "b"]
        self.held: list[TrialRequest] = []
        self.lost = 0

    def submit(self, request: TrialRequest) -> None:
        if self.hosts:
            self.held.append(request)
        else:
            super().submit(request)

    def wait(self, timeout: float | None = None) -> list[Completion]:
        if not self.held:
            return super().wait(timeout)
        host = self.hosts.pop()
        held, self.held = self.held, []
        self.lost += len(held)
        return [TrialLost(one.spec.trial_id, "the worker died", host) for one in held]


@pytest.mark.integration
def test_hosts_that_are_lost_with_many_trials_do_not_end_the_study(studies: Studies) -> None:
    executor = LosesAHost()
    path = studies.matrix(SCRIPT, axes=f"level: {{values: {[*range(40)]}}}")
    report = studies.run(path, make_executor=lambda: executor).report
    assert executor.lost >= VOIDS_BEFORE_STOP
    assert report["verdict"]["first_bad"]["level"] == "6"


@pytest.mark.integration
def test_hosts_that_are_lost_one_after_another_end_the_study(studies: Studies) -> None:
    hosts = [f"host-{n}" for n in range(100)]
    with pytest.raises(InfrastructureError, match="trials in a row were void"):
        studies.run(studies.matrix(SCRIPT), make_executor=lambda: HostsThatFall(lambda _one: True, hosts))


class OfAnotherRelease(PoolExecutor):
    """Three hosts whose workers answer each a first trial of a combination with their own release."""

    def __init__(self) -> None:
        super().__init__(machine_prefix, 2)
        self._hosts: dict[str, list[str]] = {}
        self._lost: list[Completion] = []

    def submit(self, request: TrialRequest) -> None:
        hosts = self._hosts.setdefault(request.spec.combination["level"], ["a", "b", "c"])
        if request.spec.combination["level"] != "9" or not hosts:
            super().submit(request)
            return
        host = hosts.pop()
        worker = SimpleNamespace(address=f"tcp://{host}:1")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("bisect_env.cluster.worker.get_worker", lambda: worker)
            patch.setattr("bisect_env.cluster.worker.socket.gethostname", lambda: host)
            settings = WorkerSettings(build=machine_prefix, topic="t", cpus=(), version="0.0.1")
            self._lost.append(perform_on_worker(request, settings))

    def wait(self, timeout: float | None = None) -> list[Completion]:
        lost, self._lost = self._lost, []
        return lost or super().wait(timeout)


@pytest.mark.integration
def test_workers_of_another_release_are_not_the_combinations_fault(studies: Studies) -> None:
    report = studies.run(studies.matrix(SCRIPT), make_executor=OfAnotherRelease).report
    assert report["verdict"]["first_bad"]["level"] == "6"
    told = [event.record for event in studies.events if isinstance(event, events.TrialFinished)]
    assert {one.host for one in told if "0.0.1" in one.detail} == {"a", "b", "c"}
    assert [event for event in studies.events if isinstance(event, events.SetAside)] == []


def test_losses_beside_good_trials_are_a_warning() -> None:
    three = {"a", "b", "c"}
    assert why_aside(EvidenceCounts(good=2, void=3), three) is None
    assert many_lost(three) == "its trials were lost on 3 hosts (a, b, c)"
    assert many_lost({"a", "b"}) is None
    assert why_aside(EvidenceCounts(void=3), three) == many_lost(three)


CUDA_ONCE = """
import os, signal, sys
if sys.argv[1] == "9":
    count = os.path.join({folder!r}, "count")
    with open(count, "a+") as file:
        calls = file.tell() + 1
        file.write(".")
    if calls == 1:
        os.kill(os.getpid(), signal.SIGKILL)  # nobody here sent it
    if calls == 2:
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
"""


@pytest.mark.integration
def test_a_lost_trial_does_not_make_the_first_failure_of_cuda_count(studies: Studies) -> None:
    matrix = studies.matrix(
        CUDA_ONCE.format(folder=str(studies.folder)),
        axes="level: {values: [8, 9]}",
        trial="bad: {outcomes: [cuda-init]}",
        rest=QUICK,
    )
    studies.run(matrix, make_executor=lambda: PoolExecutor(machine_prefix, 1))
    told = [event for event in studies.events if isinstance(event, events.TrialFinished)]
    at_nine = [event for event in told if event.record.combination["level"] == "9"]
    outcomes = [(str(event.record.outcome), event.evidence) for event in at_nine[:2]]
    assert outcomes == [("killed-external", Evidence.VOID), ("cuda-init", Evidence.VOID)]
    assert {event.evidence for event in at_nine[2:]} == {Evidence.GOOD}
