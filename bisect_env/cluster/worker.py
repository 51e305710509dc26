"""The code of ours that runs inside a Dask worker; named as its preload, too."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from distributed import Reschedule, Status, get_worker

from bisect_env.cluster.gpu_trials import HostGpus
from bisect_env.cluster.nvml import visible_to_this_worker
from bisect_env.cluster.perform import PrefixBuilder, perform, prepare
from bisect_env.cluster.protocol import (
    BuildFailed,
    Completion,
    PrefixReady,
    PrefixRequest,
    TrialLost,
    TrialRequest,
)
from bisect_env.cluster.resources import GPU
from bisect_env.errors import InfrastructureError
from bisect_env.trials.records import Machine

if TYPE_CHECKING:
    from distributed import Worker


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a worker needs besides the request.

    Attributes:
        build: Makes prefixes.
        topic: Where the executor listens.
        epoch: Which `cancel` ends the trial.
        cpus: CPUs that trials may use; empty means those of the worker.
        version: Of the command's bisect-env.
    """

    build: PrefixBuilder
    topic: str
    epoch: int
    cpus: tuple[int, ...]
    version: str


def dask_setup(_worker: Worker) -> None:
    """Called by Dask when the worker starts.

    A Ctrl-C in the terminal reaches every process of its foreground group. What it means is for the command
    to decide: workers that died of it would turn an orderly stop into lost trials.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Dask's event loop shares the interpreter with the thread that watches the trial; with the default of
    # 5 ms, each step of a trial's start and end may wait that long.
    sys.setswitchinterval(0.0005)


_cancelled_up_to: dict[str, int] = {}
"""For each executor, by its topic, the last epoch that was cancelled."""
_builders = ThreadPoolExecutor(max(1, min(4, (os.cpu_count() or 1) // 4)), thread_name_prefix="build")
"""Few builds at a time: they are to use the CPUs that trials leave idle, not to compete with them."""
_gpus: HostGpus | None = None
"""The GPUs that this worker process hands out, once a trial has asked for one."""


def cancel_up_to(topic: str, epoch: int) -> None:
    """Broadcast by an executor: its trials up to this epoch are to end."""
    _cancelled_up_to[topic] = max(epoch, _cancelled_up_to.get(topic, -1))


def perform_on_worker(request: TrialRequest, attempt: str, settings: WorkerSettings) -> Completion:
    """Answer a request.

    Raises:
        Reschedule: This worker's GPUs were put aside after the trial had been sent here.
    """
    worker = get_worker()
    trial_id, host = request.spec.trial_id, socket.gethostname()
    if settings.version != (ours := version("bisect-env")):
        # Checked at connect, but workers may join later.
        reason = f"the worker {worker.address} has bisect-env {ours}, the command has {settings.version}"
        return TrialLost(trial_id, reason, host)
    try:
        gpus = _host_gpus(worker, settings.topic) if request.spec.gpus else None
    except InfrastructureError as error:
        return TrialLost(trial_id, f"the worker {worker.address}: {error.what}", host)
    if gpus is not None and not gpus.enough(request.spec.gpus):
        raise Reschedule
    worker.log_event(settings.topic, {"begun": attempt, "worker": str(worker.name), "host": host})
    return perform(
        request,
        build=settings.build,
        cancelled=_cancel_flag(worker, ("trial", attempt), settings),
        worker=str(worker.name),
        cpus=settings.cpus,
        gpus=gpus,
    )


def machines_of_worker(topic: str, gpus_per_trial: int) -> set[Machine]:
    """Classes of machines that trials on this worker see.

    Raises:
        InfrastructureError: Its GPUs cannot be read.
    """
    cpu = platform.machine()
    if not gpus_per_trial:
        return {Machine(cpu)}
    described = _host_gpus(get_worker(), topic).describe(gpus_per_trial)
    return {Machine(cpu, model, driver) for model, driver in described}


async def prepare_on_worker(request: PrefixRequest, build: PrefixBuilder) -> PrefixReady | BuildFailed:
    """Called in the worker's event loop: make a prefix in a thread that no trial runs in."""
    loop = asyncio.get_running_loop()
    answer: PrefixReady | BuildFailed = await loop.run_in_executor(_builders, prepare, request, build)
    return answer


def _cancel_flag(worker: Any, key: tuple[str, str], settings: WorkerSettings) -> Callable[[], bool]:
    def cancelled() -> bool:
        if settings.epoch <= _cancelled_up_to.get(settings.topic, -1):
            return True
        if worker.status in (Status.closing, Status.closed, Status.failed):
            # It has lost its scheduler, and would wait half a minute for the trial before it ends it.
            return True
        # Dask has let go of the task: its client died, or the scheduler has given it to somebody else.
        # Nobody will hear the answer, and the next command is waiting for this CPU.
        task = worker.state.tasks.get(key)
        return task is None or task.state not in ("executing", "long-running")

    return cancelled


def _host_gpus(worker: Any, topic: str) -> HostGpus:
    global _gpus
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
