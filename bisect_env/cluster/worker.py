"""Code that runs inside a Dask worker, and lends the host's GPUs to trials."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import platform
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import partial
from math import ceil
from typing import Any

from distributed import Reschedule, Status, Worker, get_worker

from bisect_env import __version__
from bisect_env.cluster.gpus import (
    GpuFault,
    Nvml,
    Suspicions,
    after_trial,
    before_trial,
    visible_to_this_worker,
)
from bisect_env.cluster.perform import GpuTrial, GpuUnavailableError, PrefixBuilder, perform, prepare
from bisect_env.cluster.protocol import (
    GPU,
    BuildFailed,
    Completion,
    PrefixProgress,
    PrefixReady,
    PrefixRequest,
    TrialLost,
    TrialRequest,
    trials_per_gpu,
)
from bisect_env.errors import InfrastructureError
from bisect_env.trials.forks import SERVER
from bisect_env.trials.gpu_errors import described
from bisect_env.trials.records import Machine, Outcome, TrialRecord, TrialSpec

# --------------------------------------------------------------------------------------------------
# The GPUs of one worker process. They are lent to trials, and checked before, during and after each trial.


DISTURBED = frozenset({Outcome.CUDA_OOM, Outcome.CUDA_FAULT, Outcome.CUDA_INIT})
"""Outcomes that another trial on the same GPU may have caused, by taking memory or by an error that
spread."""


@dataclass(slots=True, eq=False)
class _Borrower:
    """A trial that uses some GPUs of a worker, with its share of each GPU.

    Attributes:
        uuids: UUIDs of the GPUs.
        share: Share of each GPU.
        crowded: Whether another trial used one of these GPUs at the same time, at least for a moment.
    """

    uuids: list[str]
    share: Fraction
    crowded: bool = False


class HostGpus:
    """The GPUs of a worker, which are lent to trials as a whole or in shares.

    All methods may be called from several threads. Dask's resource `GPU` limits how many are requested; this
    class decides which ones to lend. Shares are packed onto one GPU, so that whole GPUs stay free for trials
    that need one. If enough is free, but scattered over several GPUs, a trial waits until the least used GPUs
    are empty; these get no further shares meanwhile.

    Args:
        gpus: UUIDs to lend, and their monitor; without a monitor their health is not watched.

    Attributes:
        on_excluded: Called with a GPU that is excluded, the reason, and how many are left.
    """

    def __init__(self, gpus: tuple[Sequence[str], Nvml | None]) -> None:
        uuids, self._monitor = gpus
        self._order = list(uuids)
        self._healthy = set(uuids)
        self._borrowers: set[_Borrower] = set()
        self._reserved: list[str] = []
        self._suspicions = Suspicions()
        self._lock = threading.Condition()
        self.on_excluded: Callable[[str, str, int], None] = lambda _uuid, _why, _left: None

    def describe(self, gpus: float) -> set[tuple[str, str]]:
        """Return which GPU models and driver versions a trial with this number of GPUs may run on.

        The result is empty if NVML is not installed or too few GPUs work.
        """
        count = ceil(gpus)
        with self._lock:
            uuids = sorted(self._healthy)
        if self._monitor is None or len(uuids) < count:
            return set()
        # A trial of one GPU may get any of them. With several GPUs per trial, describe all as one group.
        groups = [[uuid] for uuid in uuids] if count == 1 else [uuids]
        return {self._monitor.describe(group) for group in groups}

    def enough(self, gpus: float) -> bool:
        """Return whether at least the given number of GPUs still works and can be lent to trials."""
        return len(self._healthy) >= gpus

    def run(self, spec: TrialSpec, trial: GpuTrial) -> TrialRecord:
        """Lend the requested GPUs to a trial, run the trial, and return its record.

        The function `trial` is called with the UUIDs of the GPUs and with an object that watches them. If the
        trial needs only a share of a GPU, other trials of ours may use the same GPU at the same time.

        Raises:
            GpuUnavailableError: Too few GPUs work.
        """
        borrower = self._take(spec.gpus)
        try:
            record = self._watched(spec, borrower.uuids, trial)
        finally:
            with self._lock:
                self._borrowers.remove(borrower)
                self._lock.notify_all()
        if borrower.crowded and record.outcome in DISTURBED:
            raise GpuUnavailableError(
                f"{record.outcome.value} beside another trial on the same GPU: {record.detail}", crowded=True
            )
        return record

    def _take(self, gpus: float) -> _Borrower:
        share, count = Fraction(1, trials_per_gpu(gpus)), ceil(gpus)
        with self._lock:
            while len(chosen := self._gpus_with_room(share, count)) < count:
                free = self._free_shares()
                if sum(free.values()) < share * count:
                    whole = sum(room == 1 for room in free.values())
                    raise GpuUnavailableError(f"{gpus:g} GPUs are asked for, and {whole} are free")
                # The least used GPUs get no further shares until they are empty.
                self._reserved = sorted(free, key=lambda uuid: -free[uuid])[:count] if share == 1 else []
                self._lock.wait()
            self._reserved = []
            # Move the chosen GPUs to the end, so that equally free GPUs are used in turn.
            self._order = [uuid for uuid in self._order if uuid not in chosen] + chosen
            borrower = _Borrower(chosen, share)
            for other in self._borrowers:
                if not set(chosen).isdisjoint(other.uuids):
                    other.crowded = borrower.crowded = True
            self._borrowers.add(borrower)
        return borrower

    def _free_shares(self) -> dict[str, Fraction]:
        """Return how much of each working GPU is free; the GPU that was unused for longest comes first."""
        room = {uuid: Fraction(1) for uuid in self._order if uuid in self._healthy}
        for borrower in self._borrowers:
            for uuid in borrower.uuids:
                if uuid in room:
                    room[uuid] -= borrower.share
        return room

    def _gpus_with_room(self, share: Fraction, count: int) -> list[str]:
        room = self._free_shares()
        there = [uuid for uuid in room if room[uuid] >= share and (share == 1 or uuid not in self._reserved)]
        return sorted(there, key=lambda uuid: room[uuid])[:count]

    def _watched(self, spec: TrialSpec, uuids: list[str], trial: GpuTrial) -> TrialRecord:
        if self._monitor is None:
            return self._note_loss(spec, uuids, trial(uuids, None))
        before = {uuid: self._monitor.read(uuid) for uuid in uuids}
        if bad := [one for reading in before.values() if (one := before_trial(reading))]:
            self._exclude(bad)
            raise GpuUnavailableError(_reasons(bad))
        with self._monitor.watch(uuids) as events:
            record = trial(uuids, events)
        model, driver = self._monitor.describe(uuids)
        record = replace(record, machine=replace(record.machine, gpu_model=model, driver=driver))
        after = {uuid: self._monitor.read(uuid) for uuid in uuids}
        found = [one for uuid in uuids if (one := after_trial(before[uuid], after[uuid], events.xids(uuid)))]
        if found:
            self._exclude(found)
            detail = f"{_reasons(found)} (the script: {record.detail})"
            return replace(record, outcome=Outcome.GPU_LOST, detail=detail)
        others = frozenset[int]().union(*(one.processes for one in (*before.values(), *after.values())))
        if record.outcome is Outcome.CUDA_OOM and others:
            pids = ", ".join(map(str, sorted(others)))
            raise GpuUnavailableError(f"out of GPU memory beside other processes ({pids}): {record.detail}")
        if xids := events.reported():
            record = replace(record, detail=f"{record.detail}; {described(xids)}")
        return self._note_loss(spec, uuids, record)

    def _note_loss(self, spec: TrialSpec, uuids: list[str], record: TrialRecord) -> TrialRecord:
        """Exclude GPUs that a trial reports as lost, once other trials have confirmed the report.

        Returns the record of the trial unchanged.
        """
        with self._lock:
            if record.outcome is not Outcome.GPU_LOST:
                self._suspicions.used(uuids)
                return record
            claims = self._suspicions.lost(uuids, spec.lock_hash)
        self._exclude(claims)
        return record

    def _exclude(self, findings: Sequence[GpuFault]) -> None:
        for finding in findings:
            with self._lock:
                new = finding.aside and finding.uuid in self._healthy
                if new:
                    self._healthy.remove(finding.uuid)
                    self._lock.notify_all()
                left = len(self._healthy)
            if new:
                self.on_excluded(finding.uuid, finding.reason, left)


def _reasons(findings: Sequence[GpuFault]) -> str:
    return "; ".join(f"{one.uuid}: {one.reason}" for one in findings)


# --------------------------------------------------------------------------------------------------
# The functions that run inside a Dask worker.


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The settings that a command sends to each worker so that it can run trials.

    Attributes:
        build: Builds prefixes.
        topic: Dask topic on which the executor listens for events.
        cpus: CPUs that trials may use; empty for those of the worker.
        version: Version of the command's bisect-env.
    """

    build: PrefixBuilder
    topic: str
    cpus: tuple[int, ...]
    version: str


_builders = ThreadPoolExecutor(max(1, min(4, (os.cpu_count() or 1) // 4)), thread_name_prefix="build")
"""Threads for builds. There are few, because builds should only use CPUs that trials leave idle."""
_making_gpus = threading.Lock()
_gpus: HostGpus | None = None
"""The GPUs that this worker process lends; None until a trial asks for one."""
_claims = contextlib.ExitStack()
"""Holds the claims of these GPUs until the process ends; see `_claim`."""
_topics: list[str] = []
"""Topics of all commands that have asked this worker for GPUs."""
_excluded: list[dict[str, str]] = []
"""Events about excluded GPUs, for commands that come later."""


def perform_on_worker(request: TrialRequest, settings: WorkerSettings) -> Completion:
    """Run a requested trial on this Dask worker, and return the result.

    Args:
        request: The trial.
        settings: Settings of the executor.

    Raises:
        Reschedule: Too few GPUs of this worker work; Dask then sends the trial to another worker.
    """
    worker = get_worker()
    trial_id, host = request.spec.trial_id, socket.gethostname()
    if settings.version != (ours := __version__):
        # Versions are checked when the command connects, but workers may join later.
        reason = f"the worker {worker.address} has bisect-env {ours}, the command has {settings.version}"
        return TrialLost(trial_id, reason, host, under_trial=False)
    try:
        gpus = _host_gpus(worker, settings.topic) if request.spec.gpus else None
    except InfrastructureError as error:
        return TrialLost(trial_id, f"the worker {worker.address}: {error.what}", host, under_trial=False)
    if gpus is not None and not gpus.enough(request.spec.gpus):
        raise Reschedule
    begun = {"begun": trial_id, "worker": str(worker.name), "host": host}
    worker.log_event(settings.topic, begun)
    return perform(
        request,
        build=settings.build,
        cancelled=_cancel_flag(worker, trial_id),
        worker=str(worker.name),
        cpus=settings.cpus,
        lend=None if gpus is None else gpus.run,
    )


def machines_of_worker(topic: str, gpus_per_trial: float, dask_worker: Worker) -> set[Machine]:
    """Return the kinds of machines (CPU, GPU model, driver) that trials on this worker may use.

    The server that the worker's trials are forked from starts meanwhile.

    Args:
        topic: Dask topic for events.
        gpus_per_trial: Number of GPUs that each trial needs.
        dask_worker: The worker, which Dask fills in.

    Raises:
        InfrastructureError: The GPUs of the worker cannot be read.
    """
    SERVER.prepare()
    cpu = platform.machine()
    if not gpus_per_trial:
        return {Machine(cpu)}
    described = _host_gpus(dask_worker, topic).describe(gpus_per_trial)
    return {Machine(cpu, model, driver) for model, driver in described}


async def prepare_on_worker(
    request: PrefixRequest, build: PrefixBuilder, topic: str, dask_worker: Worker
) -> PrefixReady | BuildFailed:
    """Build an environment in a separate thread of this worker, and return the result.

    This coroutine runs in the worker's event loop. The thread runs no trials.

    Args:
        request: The environment.
        build: Builds the environment.
        topic: Topic for progress events.
        dask_worker: The worker, which Dask fills in.
    """
    loop = asyncio.get_running_loop()

    def tell(progress: PrefixProgress) -> None:
        said = {"building": progress.lock_hash, "step": asdict(progress.step)}
        loop.call_soon_threadsafe(dask_worker.log_event, topic, said)

    answer: PrefixReady | BuildFailed = await loop.run_in_executor(_builders, prepare, request, build, tell)
    return answer


def _cancel_flag(worker: Any, trial_id: str) -> Callable[[], bool]:
    def cancelled() -> bool:
        if worker.status in (Status.closing, Status.closed, Status.failed):
            # The worker has lost its scheduler. It would wait half a minute for the trial before ending it.
            return True
        # Dask drops a task if it was cancelled, its client died, or the scheduler gave it to another worker.
        # Then nothing waits for the answer.
        task = worker.state.tasks.get(("trial", trial_id))
        return task is None or task.state not in ("executing", "long-running")

    return cancelled


def _host_gpus(worker: Any, topic: str) -> HostGpus:
    global _gpus
    # The first trials start at the same time in several threads; one of them creates the shared object.
    with _making_gpus:
        if _gpus is None:
            count = int(worker.state.total_resources.get(GPU, 0))
            with contextlib.ExitStack() as claims:
                claim = partial(_claim, str(worker.scheduler.address), claims)
                _gpus = HostGpus(visible_to_this_worker(os.environ, count, claim))
                _claims.enter_context(claims.pop_all())
            _gpus.on_excluded = partial(_exclude, worker)
        if topic not in _topics:
            _topics.append(topic)
            for event in _excluded:
                worker.log_event(topic, event)
    return _gpus


def _claim(scheduler: str, claims: contextlib.ExitStack, uuid: str) -> bool:
    """Reserve a GPU for this process among the workers of one scheduler on this host.

    Args:
        scheduler: Address of the scheduler.
        claims: Gives the GPU back when it is closed. The end of the process does so, too.
        uuid: UUID of the GPU.

    Returns:
        False if another worker has reserved the GPU.
    """
    # An abstract socket: its name belongs to one process at a time, and needs no file.
    mine = socket.socket(socket.AF_UNIX)
    try:
        mine.bind(f"\0bisect-env {hashlib.sha256(f'{scheduler} {uuid}'.encode()).hexdigest()}")
    except OSError:
        mine.close()
        return False
    claims.enter_context(mine)
    return True


def _exclude(worker: Any, uuid: str, why: str, left: int) -> None:
    """Tell every command that has used this worker of an excluded GPU, and the scheduler how many are left.

    Args:
        worker: This worker.
        uuid: UUID of the GPU.
        why: Reason in words.
        left: Number of GPUs that this worker still lends.
    """
    event = {"aside": uuid, "why": why, "host": socket.gethostname()}
    with _making_gpus:
        _excluded.append(event)
        topics = list(_topics)
    for topic in topics:
        worker.log_event(topic, event)
    # Change the number at the scheduler only. If the worker's own number changed, too, trials that were
    # already sent here would wait for ever; so they start, find no GPU, and are rescheduled.
    worker.loop.add_callback(
        worker.scheduler.set_resources,
        resources={**worker.state.total_resources, GPU: left},
        worker=worker.contact_address,
    )
