"""Our code inside a Dask worker, which lends the host's GPUs to trials."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, Any

from distributed import Reschedule, Status, get_worker

from bisect_env import __version__
from bisect_env.cluster.gpus import (
    GpuFault,
    Nvml,
    Suspicions,
    XidWatch,
    after_trial,
    before_trial,
    shared_with,
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
from bisect_env.trials.gpu_errors import described
from bisect_env.trials.records import Machine, Outcome, TrialRecord, TrialSpec

if TYPE_CHECKING:
    from distributed import Worker


# --------------------------------------------------------------------------------------------------
# The GPUs of one worker process: lent to one trial each, looked at before, during and after it.


class _TrialWatch:
    """The Xid events of one trial's GPUs, as its classification uses them."""

    def __init__(self, events: XidWatch, uuids: Sequence[str]) -> None:
        self._events = events
        self._uuids = uuids

    def reported(self) -> list[int]:
        return [xid for uuid in self._uuids for xid in self._events.xids(uuid)]

    def busy(self) -> float | None:
        rates = [rate for uuid in self._uuids if (rate := self._events.busy(uuid)) is not None]
        return max(rates, default=None)


DISTURBED = frozenset({Outcome.CUDA_OOM, Outcome.CUDA_FAULT, Outcome.CUDA_INIT})
"""What a trial may owe to another one on the same GPU: memory that was taken, an error that spread."""


@dataclass(slots=True, eq=False)
class _Tenant:
    """A trial that uses some GPUs.

    Attributes:
        uuids: UUIDs of the GPUs.
        share: Share of each of them.
        crowded: Whether another trial used one of them at the same time, at least for a moment.
    """

    uuids: list[str]
    share: Fraction
    crowded: bool = False


class HostGpus:
    """A lender of GPUs, or shares of them, to trials; safe to use from several threads.

    Dask's resource `GPU` limits how many are requested; this class decides which ones to lend. Shares are
    packed onto one GPU, so that whole GPUs stay free for trials that need one. If enough is free, but
    scattered over several GPUs, a trial waits until the least used GPUs are empty; these get no further
    shares meanwhile.

    Args:
        gpus: UUIDs to lend, and their monitor; without a monitor their health is not watched.

    Attributes:
        on_aside: Called with a GPU that is excluded, the reason, and how many are left.
    """

    def __init__(self, gpus: tuple[Sequence[str], Nvml | None]) -> None:
        uuids, self._monitor = gpus
        self._order = list(uuids)
        self._healthy = set(uuids)
        self._tenants: set[_Tenant] = set()
        self._emptied: list[str] = []
        self._suspicions = Suspicions()
        self._lock = threading.Condition()
        self.on_aside: Callable[[str, str, int], None] = lambda _uuid, _why, _left: None

    def describe(self, gpus: float) -> set[tuple[str, str]]:
        """Return models and drivers that trials with this many GPUs may see; empty without a monitor."""
        count = ceil(gpus)
        with self._lock:
            uuids = sorted(self._healthy)
        if self._monitor is None or len(uuids) < count:
            return set()
        # One GPU is any of them; several of unlike models could be any choice, of which all is one.
        groups = [[uuid] for uuid in uuids] if count == 1 else [uuids]
        return {self._monitor.describe(group) for group in groups}

    def enough(self, gpus: float) -> bool:
        """Return whether at least that many GPUs still work."""
        return len(self._healthy) >= gpus

    def run(self, spec: TrialSpec, trial: GpuTrial) -> TrialRecord:
        """Lend GPUs to a trial; see `GpuLender.run`."""
        tenant = self._take(spec.gpus)
        try:
            record = self._watched(spec, tenant.uuids, trial)
        finally:
            with self._lock:
                self._tenants.remove(tenant)
                self._lock.notify_all()
        if tenant.crowded and record.outcome in DISTURBED:
            raise GpuUnavailableError(
                f"{record.outcome.value} beside another trial on the same GPU: {record.detail}", crowded=True
            )
        return record

    def _take(self, gpus: float) -> _Tenant:
        share, count = Fraction(1, trials_per_gpu(gpus)), ceil(gpus)
        with self._lock:
            while len(chosen := self._fitting(share, count)) < count:
                free = self._room()
                if sum(free.values()) < share * count:
                    whole = sum(room == 1 for room in free.values())
                    raise GpuUnavailableError(f"{gpus:g} GPUs are asked for, and {whole} are free")
                self._emptied = self._least_used(free, count) if share == 1 else []
                self._lock.wait()
            self._emptied = []
            # In turns: of GPUs that are equally free the one that has rested longest.
            self._order = [uuid for uuid in self._order if uuid not in chosen] + chosen
            tenant = _Tenant(chosen, share)
            for other in self._tenants:
                if not set(chosen).isdisjoint(other.uuids):
                    other.crowded = tenant.crowded = True
            self._tenants.add(tenant)
        return tenant

    def _room(self) -> dict[str, Fraction]:
        """Return the free share of each healthy GPU, the longest unused first."""
        room = {uuid: Fraction(1) for uuid in self._order if uuid in self._healthy}
        for tenant in self._tenants:
            for uuid in tenant.uuids:
                if uuid in room:
                    room[uuid] -= tenant.share
        return room

    def _fitting(self, share: Fraction, count: int) -> list[str]:
        room = self._room()
        there = [uuid for uuid in room if room[uuid] >= share and (share == 1 or uuid not in self._emptied)]
        return sorted(there, key=lambda uuid: room[uuid])[:count]

    def _least_used(self, room: Mapping[str, Fraction], count: int) -> list[str]:
        return sorted(room, key=lambda uuid: -room[uuid])[:count]

    def _watched(self, spec: TrialSpec, uuids: list[str], trial: GpuTrial) -> TrialRecord:
        if self._monitor is None:
            return self._with_claims(spec, uuids, trial(uuids, None))
        before = {uuid: self._monitor.read(uuid) for uuid in uuids}
        if bad := [one for reading in before.values() if (one := before_trial(reading))]:
            self._put_aside(bad)
            raise GpuUnavailableError(_say(bad))
        with self._monitor.watch(uuids) as events:
            record = trial(uuids, _TrialWatch(events, uuids))
        model, driver = self._monitor.describe(uuids)
        record = replace(record, machine=replace(record.machine, gpu_model=model, driver=driver))
        after = {uuid: self._monitor.read(uuid) for uuid in uuids}
        found = [one for uuid in uuids if (one := after_trial(before[uuid], after[uuid], events.xids(uuid)))]
        if found:
            self._put_aside(found)
            detail = f"{_say(found)} (the script: {record.detail})"
            return replace(record, outcome=Outcome.GPU_LOST, detail=detail)
        others = set().union(*(shared_with(before[uuid], after[uuid]) for uuid in uuids))
        if record.outcome is Outcome.CUDA_OOM and others:
            pids = ", ".join(map(str, sorted(others)))
            raise GpuUnavailableError(f"out of GPU memory beside other processes ({pids}): {record.detail}")
        if xids := [xid for uuid in uuids for xid in events.xids(uuid)]:
            record = replace(record, detail=f"{record.detail}; {described(xids)}")
        return self._with_claims(spec, uuids, record)

    def _with_claims(self, spec: TrialSpec, uuids: list[str], record: TrialRecord) -> TrialRecord:
        """Record what a trial claims about its GPUs, and exclude GPUs with confirmed faults."""
        with self._lock:
            if record.outcome is not Outcome.GPU_LOST:
                self._suspicions.used(uuids)
                return record
            claims = self._suspicions.lost(uuids, spec.lock_hash)
        self._put_aside(claims)
        return record

    def _put_aside(self, findings: Sequence[GpuFault]) -> None:
        for finding in findings:
            with self._lock:
                new = finding.aside and finding.uuid in self._healthy
                if new:
                    self._healthy.remove(finding.uuid)
                    self._lock.notify_all()
                left = len(self._healthy)
            if new:
                self.on_aside(finding.uuid, finding.reason, left)


def _say(findings: Sequence[GpuFault]) -> str:
    return "; ".join(f"{one.uuid}: {one.reason}" for one in findings)


# --------------------------------------------------------------------------------------------------
# The code of ours that runs inside a Dask worker; named as its preload, too.


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Settings that a worker needs besides the request.

    Attributes:
        build: Builds prefixes.
        topic: Topic on which the executor listens.
        cpus: CPUs that trials may use; empty means those of the worker.
        version: Version of the command's bisect-env.
    """

    build: PrefixBuilder
    topic: str
    cpus: tuple[int, ...]
    version: str


def dask_setup(_worker: Worker) -> None:
    """Ignore SIGINT in the worker; Dask calls this when the worker starts.

    A Ctrl-C in the terminal reaches every process of its foreground group. Only the command decides what
    it means: workers that died of it would turn an orderly stop into lost trials.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)


_builders = ThreadPoolExecutor(max(1, min(4, (os.cpu_count() or 1) // 4)), thread_name_prefix="build")
"""Few builds at a time: they are to use the CPUs that trials leave idle, not to compete with them."""
_making_gpus = threading.Lock()
_gpus: HostGpus | None = None
"""The GPUs that this worker process hands out, once a trial has asked for one."""


def perform_on_worker(request: TrialRequest, attempt: str, settings: WorkerSettings) -> Completion:
    """Perform a request on this worker.

    Raises:
        Reschedule: This worker's GPUs were excluded after the trial had been sent here.
    """
    worker = get_worker()
    trial_id, host = request.spec.trial_id, socket.gethostname()
    if settings.version != (ours := __version__):
        # Checked at connect, but workers may join later.
        reason = f"the worker {worker.address} has bisect-env {ours}, the command has {settings.version}"
        return TrialLost(trial_id, reason, host, under_trial=False)
    try:
        gpus = _host_gpus(worker, settings.topic) if request.spec.gpus else None
    except InfrastructureError as error:
        return TrialLost(trial_id, f"the worker {worker.address}: {error.what}", host, under_trial=False)
    if gpus is not None and not gpus.enough(request.spec.gpus):
        raise Reschedule
    begun = {"begun": attempt, "worker": str(worker.name), "host": host}
    worker.log_event(settings.topic, begun)
    return perform(
        request,
        build=settings.build,
        cancelled=_cancel_flag(worker, attempt),
        worker=str(worker.name),
        cpus=settings.cpus,
        gpus=gpus,
    )


def machines_of_worker(topic: str, gpus_per_trial: float) -> set[Machine]:
    """Return the classes of machines that trials on this worker see.

    Raises:
        InfrastructureError: Its GPUs cannot be read.
    """
    cpu = platform.machine()
    if not gpus_per_trial:
        return {Machine(cpu)}
    described = _host_gpus(get_worker(), topic).describe(gpus_per_trial)
    return {Machine(cpu, model, driver) for model, driver in described}


async def prepare_on_worker(
    request: PrefixRequest, build: PrefixBuilder, topic: str, dask_worker: Worker
) -> PrefixReady | BuildFailed:
    """Build a prefix in a thread that runs no trials; called in the worker's event loop.

    Args:
        request: The prefix.
        build: Builds it.
        topic: Topic for progress events.
        dask_worker: The worker, which Dask fills in.
    """
    loop = asyncio.get_running_loop()

    def tell(progress: PrefixProgress) -> None:
        said = {"building": progress.lock_hash, "step": asdict(progress.step)}
        loop.call_soon_threadsafe(dask_worker.log_event, topic, said)

    answer: PrefixReady | BuildFailed = await loop.run_in_executor(_builders, prepare, request, build, tell)
    return answer


def _cancel_flag(worker: Any, attempt: str) -> Callable[[], bool]:
    def cancelled() -> bool:
        if worker.status in (Status.closing, Status.closed, Status.failed):
            # It has lost its scheduler, and would wait half a minute for the trial before it ends it.
            return True
        # Dask has let go of the task: it was cancelled, its client died, or the scheduler has given it to
        # another worker. Nobody waits for the answer.
        task = worker.state.tasks.get(("trial", attempt))
        return task is None or task.state not in ("executing", "long-running")

    return cancelled


def _host_gpus(worker: Any, topic: str) -> HostGpus:
    global _gpus
    # The first trials come at once, each in a thread of its own: one of them makes what all share.
    with _making_gpus:
        if _gpus is None:
            count = int(worker.state.total_resources.get(GPU, 0))
            _gpus = HostGpus(visible_to_this_worker(os.environ, count))

    def aside(uuid: str, why: str, left: int) -> None:
        host = socket.gethostname()
        worker.log_event(topic, {"aside": uuid, "why": why, "host": host})
        # The scheduler alone: the worker's own count stays, so that what was sent here already begins, finds
        # no GPU, and is rescheduled, instead of waiting here for ever.
        worker.loop.add_callback(
            worker.scheduler.set_resources,
            resources={**worker.state.total_resources, GPU: left},
            worker=worker.contact_address,
        )

    _gpus.on_aside = aside
    return _gpus
