"""Runs trials on a Dask cluster that is started on this host, for its cores or its GPUs."""

from __future__ import annotations

import contextlib
import importlib
import logging
import multiprocessing
import multiprocessing.util
import os
import shutil
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import dask.config
import distributed
import psutil

from bisect_env.cluster.base import DaskExecutor
from bisect_env.cluster.gpus import INSTALL
from bisect_env.cluster.perform import PrefixBuilder, refuse_gpus
from bisect_env.cluster.pool import default_workers
from bisect_env.cluster.protocol import GPU, Completion, PrefixReady, TrialRequest
from bisect_env.errors import InfrastructureError
from bisect_env.temporary import left_behind, make_held, remove_left_behind
from bisect_env.trials.workdir import sweep

# --------------------------------------------------------------------------------------------------
# Trials on a Dask cluster of processes on this host.

START_TIMEOUT = 60.0
"""Seconds for workers to start; a machine under load takes some."""
_ATTEMPTS = 3
"""How often a cluster is started one of whose workers ends meanwhile."""

_CONFIG: dict[str, Any] = {
    # One trial waits at each worker, which hides the way to the scheduler and back; the rest wait at the
    # scheduler, or a worker that dies would take its whole share of them with it.
    "distributed.scheduler.worker-saturation": 1.1,
    # Dask's own profiler wakes a hundred times a second; trials deserve that CPU.
    "distributed.worker.profile.enabled": False,
    # Dask would ask NVML twice a second in every worker; a lost GPU is for us to notice, not to stumble over.
    "distributed.diagnostics.nvml": False,
    # Pages about tasks and logs, which every user of this host could read, and a proxy.
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    # A worker that the host starves of CPU is slow, not dead.
    "distributed.scheduler.worker-ttl": "15 minutes",
}


_SCHEDULER: dict[str, Any] = {
    # With the default of 3, a trial whose worker dies is run again in silence.
    "allowed_failures": 0,
    # Without a dashboard it serves HTTP all the same, by default on a fixed port and for everybody.
    "dashboard": False,
    "dashboard_address": "127.0.0.1:0",
}

_SCRATCH = "bisect-env-cluster-"
_scratches: set[Path] = set()
"""Directories of the clusters of this process."""

_local_cluster: Any = distributed.LocalCluster
_spec_cluster: Any = distributed.SpecCluster
_client: Any = distributed.Client
_security: Any = distributed.Security


class HostExecutor(DaskExecutor):
    """Starts workers on this host and ends them; subclasses say which.

    Args:
        build: Makes prefixes; has to survive a pickle.
        workers: How many.
        gpus_per_trial: See `DaskExecutor`.
        threads: Trials that each worker runs at the same time.

    Raises:
        InfrastructureError: The cluster does not start.
    """

    def __init__(
        self, build: PrefixBuilder, workers: int, *, gpus_per_trial: float = 0, threads: int = 1
    ) -> None:
        super().__init__(build, cpus=tuple(sorted(os.sched_getaffinity(0))), gpus_per_trial=gpus_per_trial)
        self._notes: list[str] = []
        self._threads = threads
        self.scratch, self._scratch_lock = make_scratch()
        _start_in_turns()
        self.cluster: Any = None
        with contextlib.ExitStack() as undo:
            undo.callback(self._remove_scratch)
            undo.callback(_keep_going().set)
            _scratches.add(self.scratch)
            # As long as the cluster lives: a worker that is started again reads the settings of that moment.
            undo.enter_context(dask.config.set({**_CONFIG, "temporary-directory": str(self.scratch)}))
            self._start(workers)
            self._undo = undo.pop_all()

    def _make_cluster(self, workers: int, options: dict[str, Any]) -> Any:
        """Return the cluster with its workers, given the options that every cluster on a host takes."""
        raise NotImplementedError

    def _complete(self) -> None:
        """Begin to start the workers that `_make_cluster` has left for later; does not wait for them."""

    def _start(self, workers: int) -> None:
        options: dict[str, Any] = {
            "threads_per_worker": self._threads,
            # Dask's limit does not see a worker's children, who do all the work here.
            "memory_limit": 0,
            "dashboard_address": None,
            "silence_logs": logging.CRITICAL,
            "local_directory": str(self.scratch),
            "preload": ["bisect_env.cluster.worker"],
            "scheduler_kwargs": _SCHEDULER,
            # Every user of this host reaches the loopback device, and whoever a scheduler or a worker listens
            # to runs code as its owner: a certificate made for this cluster lets in its own processes and
            # nobody else.
            "security": _certificate(self.scratch),
        }
        deadline = time.monotonic() + START_TIMEOUT
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self.cluster = self._make_cluster(workers, options)
                break
            except (OSError, RuntimeError, TimeoutError) as error:
                # One worker that dies while it starts (of the kernel's memory kill, say) ends them all.
                if attempt == _ATTEMPTS or time.monotonic() > deadline:
                    raise _start_error(workers, attempt, error) from error
                self._notes.append(
                    f"a worker ended while the local Dask cluster was starting ({error}): started again"
                )
        try:
            client = _client(
                self.cluster, set_as_default=False, direct_to_workers=True, timeout=START_TIMEOUT
            )
            # With the first one trials begin; the others join when they stand.
            client.wait_for_workers(1, timeout=START_TIMEOUT)
            self._connect(client)
            self._complete()
        except (OSError, TimeoutError) as error:
            self.cluster.close()
            raise _start_error(workers, attempt, error) from error

    def wait(self, timeout: float | None = None) -> list[Completion]:
        """Answers since the last call; see `Executor.wait`. The first environment tells of the start."""
        answers = super().wait(timeout)
        for i, answer in enumerate(answers):
            if isinstance(answer, PrefixReady) and self._notes:
                answers[i] = replace(answer, notes=(*self._notes, *answer.notes))
                self._notes.clear()
        return answers

    def _give_back(self) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            self.cluster.close()

    def _kill(self) -> None:
        end_processes()

    def _release(self) -> None:
        _let_tracker_end()
        self._undo.close()
        # Workers that were killed, some at the same time as the supervisors of their trials ended.
        sweep()
        remove_left_behind()

    def _remove_scratch(self) -> None:
        _scratches.discard(self.scratch)
        shutil.rmtree(self.scratch, ignore_errors=True)
        os.close(self._scratch_lock)


def _certificate(folder: Path) -> Any:
    """Return a certificate for one cluster, in a directory that nobody but its owner can read.

    Of one that it is given in memory Dask makes files in a nameless directory whenever it uses it, which stay
    where it is killed meanwhile.
    """
    made = _security.temporary()
    names: dict[str, str] = {}
    for kind, text in (("cert", made.tls_client_cert), ("key", made.tls_client_key)):
        path = folder / f"cluster.{kind}"
        with os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as stream:
            stream.write(text)
        names |= {f"tls_{role}_{kind}": str(path) for role in ("client", "scheduler", "worker")}
    return _security(require_encryption=True, tls_ca_file=names["tls_client_cert"], **names)


def _keep_going() -> threading.Event:
    """Continue workers that somebody stops, as long as the event is not set.

    Dask would wait for one for a minute while the cluster starts, and for a quarter of an hour later.
    """
    over = threading.Event()

    def look() -> None:
        while not over.wait(1.0):
            for child in psutil.Process().children():
                with contextlib.suppress(psutil.Error):
                    if child.status() == psutil.STATUS_STOPPED and _is_worker(child):
                        child.resume()

    threading.Thread(target=look, name="stopped workers", daemon=True).start()
    return over


def _is_worker(child: psutil.Process) -> bool:
    return any("spawn_main" in word for word in child.cmdline())


def _let_tracker_end() -> None:
    """Let multiprocessing's tracker go on if somebody has stopped it, for it ends by itself after us."""
    pid = getattr(getattr(resource_tracker, "_resource_tracker", None), "_pid", None)
    if isinstance(pid, int):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGCONT)


def end_processes(*, for_good: bool = False) -> bool:
    """Kill every worker that Dask started in this process, and let nothing start one again or wait for it.

    Args:
        for_good: Whether this process is about to end. No thread starts a worker any more then, and those are
            killed, too, that are being started: without us they would end with a traceback.

    Returns:
        Whether there was a cluster that had not ended.
    """
    found = bool(_scratches)
    if found and for_good:
        _start_no_more()
    _let_tracker_end()
    for cluster in list(_spec_cluster._instances):
        # Dask would close it in order when Python ends, for ten seconds more.
        cluster.shutdown_on_close = False
        for nanny in list(cluster.workers.values()):
            nanny.auto_restart = False
    for process in multiprocessing.active_children():
        process.kill()
    if found and for_good:
        _see_them_end()
    for scratch in list(_scratches):
        shutil.rmtree(scratch, ignore_errors=True)
    return found


def _see_them_end() -> None:
    """Kill those workers, too, that are being started, wait for all, and remove what they left."""
    own = psutil.Process()
    killed = []
    # multiprocessing counts a process as its child once it has told it what to do.
    for child in own.children():
        with contextlib.suppress(psutil.Error):
            # Before it executes Python it is a copy of us.
            if _is_worker(child) or child.cmdline() == own.cmdline():
                child.kill()
                killed.append(child)
    psutil.wait_procs(killed, timeout=1.0)
    # A worker makes a trial's directory before it starts the supervisor that would remove it.
    sweep(containers=False)
    remove_left_behind()


_starting = threading.Lock()
"""Held while multiprocessing starts a process, which it may do in several threads."""
_is_over = False


def _start_in_turns() -> None:
    """Let multiprocessing start processes one by one, and none any more when this process ends."""
    util: Any = multiprocessing.util  # private; where a later Python has other names, nothing is changed
    spawn = getattr(util, "spawnv_passfds", None)
    if spawn is None or hasattr(spawn, "in_turns"):
        return

    def start(*args: Any) -> Any:
        with _starting:
            if not _is_over:
                return spawn(*args)
        threading.Event().wait()  # what would follow could only fail
        raise AssertionError

    start.in_turns = True  # type: ignore[attr-defined]
    util.spawnv_passfds = start


def _start_no_more() -> None:
    global _is_over
    # Whoever holds it starts a process, which takes no time; if it does, ours may not be lost over it.
    is_held = _starting.acquire(timeout=1.0)
    _is_over = True
    if is_held:
        _starting.release()


class LocalExecutor(HostExecutor):
    """An `Executor` on a `LocalCluster`: one process a worker, one trial a worker at a time, no GPUs.

    Args:
        build: Makes prefixes; has to survive a pickle.
        workers: How many; by default one for each CPU that may be used.

    Raises:
        InfrastructureError: The cluster does not start.
    """

    def __init__(self, build: PrefixBuilder, workers: int | None = None) -> None:
        super().__init__(build, default_workers() if workers is None else workers)

    def _make_cluster(self, workers: int, options: dict[str, Any]) -> Any:
        return _local_cluster(n_workers=workers, processes=True, **options)

    def submit(self, request: TrialRequest) -> None:
        """Accept a trial; see `Executor.submit`."""
        if not self._closed:
            refuse_gpus(request)
        super().submit(request)


def make_scratch() -> tuple[Path, int]:
    """A directory for the workers, and a descriptor that keeps it locked as long as this process lives.

    A command that was killed could not remove its own: the next one does.
    """
    for old in left_behind(_SCRATCH):
        shutil.rmtree(old, ignore_errors=True)
    return make_held(_SCRATCH)


def _start_error(workers: int, attempts: int, error: BaseException) -> InfrastructureError:
    times = "once" if attempts == 1 else f"{attempts} times"
    return InfrastructureError(
        f"the local Dask cluster does not start: {error}",
        tried=f"starting {workers} worker processes, {times}",
        remedy="see whether this host is out of memory (`dmesg`), or try fewer workers (`--workers 1`)",
    )


# --------------------------------------------------------------------------------------------------
# Trials on the GPUs of this host: dask-cuda's `LocalCUDACluster`, without what would spoil a trial.

CONTEXT_PRELOAD = "dask_cuda.initialize"
"""dask-cuda's preload that creates a CUDA context in every worker. It would hold memory of the GPU for the
whole study, and share the fault of any trial that breaks the GPU."""


class GpuExecutor(HostExecutor):
    """An `Executor` with one worker for as many GPUs as one trial needs.

    Workers never open CUDA. Each trial sees the GPUs it was lent and no others, by UUID.

    Args:
        build: Makes prefixes; has to survive a pickle.
        groups: UUIDs of the GPUs of each worker.
        trials: That share a GPU; then each group has one.

    Raises:
        InfrastructureError: dask-cuda is not installed, or the cluster does not start.
    """

    def __init__(self, build: PrefixBuilder, groups: Sequence[tuple[str, ...]], trials: int = 1) -> None:
        self._groups = {group[0]: group for group in groups}
        self._cluster_class = _cluster_class()
        gpus = len(groups[0]) if trials == 1 else 1 / trials
        super().__init__(build, len(groups), gpus_per_trial=gpus, threads=trials)

    def _make_cluster(self, workers: int, options: dict[str, Any]) -> Any:
        # The constructor waits for what it starts, and a client for what the cluster is starting: the others
        # are asked for by `_complete`.
        return self._cluster_class(
            groups=self._groups,
            CUDA_VISIBLE_DEVICES=list(self._groups),
            n_workers=1,
            # None: nothing of ours is ever in GPU memory, so nothing is to be spilled from it.
            device_memory_limit=None,
            **options,
        )

    def _complete(self) -> None:
        self.cluster.scale(len(self._groups))


def refuse_without_dask_cuda() -> Any:
    """Return the module `dask_cuda`.

    Raises:
        InfrastructureError: It is not installed.
    """
    try:
        return importlib.import_module("dask_cuda")
    except ImportError as error:
        raise InfrastructureError(f"dask-cuda cannot be used: {error}", remedy=INSTALL) from error


def _cluster_class() -> Any:
    dask_cuda = refuse_without_dask_cuda()

    class _CudaCluster(dask_cuda.LocalCUDACluster):  # type: ignore[misc,name-defined]
        def __init__(self, *, groups: dict[str, tuple[str, ...]], **options: Any) -> None:
            self.groups = groups
            super().__init__(**options)

        def new_worker_spec(self) -> dict[str, Any]:
            (named,) = super().new_worker_spec().items()
            name, spec = named
            gpus = self.groups[name]
            options = spec["options"]
            kept = [one for one in options["preload"] if one != CONTEXT_PRELOAD]
            spec["options"] = {
                **options,
                "preload": kept,
                "preload_argv": [[] for _ in kept],
                # CPU affinity, memory pools, libraries to import: all for tasks that compute in the worker.
                # Trials do not; theirs are the CPUs of the command.
                "plugins": (),
                # dask-cuda's store for results in GPU memory: there are none, and a worker would import all
                # of dask-cuda for it.
                "data": None,
                "env": {"CUDA_VISIBLE_DEVICES": ",".join(gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
                "resources": {GPU: len(gpus)},
            }
            return {name: spec}

    return _CudaCluster
