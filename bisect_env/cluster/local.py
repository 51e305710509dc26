"""Run trials on the GPUs of this host, with dask-cuda's `LocalCUDACluster`: a worker per group of GPUs.

Workers never open CUDA. Each trial sees only the GPUs that were lent to it, by UUID.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import resource_tracker
from typing import Any

import dask.config
import distributed

from bisect_env.cluster.base import DaskExecutor
from bisect_env.cluster.gpus import INSTALL
from bisect_env.cluster.perform import PrefixBuilder
from bisect_env.cluster.protocol import GPU
from bisect_env.errors import InfrastructureError
from bisect_env.temporary import temporary

START_TIMEOUT = 60.0
"""Seconds for workers to start."""

_CONFIG: dict[str, Any] = {
    # Let one trial wait at each worker, to hide the delay of messages. The others wait at the scheduler,
    # because trials that wait at a worker are lost if it dies.
    "distributed.scheduler.worker-saturation": 1.1,
    # Dask's profiler wakes a hundred times a second and would take CPU from the trials.
    "distributed.worker.profile.enabled": False,
    # Dask would ask NVML twice a second in every worker, and fail when a GPU is lost.
    "distributed.diagnostics.nvml": False,
    # No pages about tasks and logs, because every user of this host could read them.
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    # Allow for workers that get no CPU for a while: they are slow, but not dead.
    "distributed.scheduler.worker-ttl": "15 minutes",
    # After this time Dask would give up a worker that is being started again, and never start another one.
    "distributed.deploy.lost-worker-timeout": "15 minutes",
}
_SCHEDULER: dict[str, Any] = {
    # With the default of 3, Dask would silently repeat a trial whose worker died.
    "allowed_failures": 0,
    # Even without a dashboard the scheduler serves HTTP, by default on a fixed port and for all hosts.
    "dashboard": False,
    "dashboard_address": "127.0.0.1:0",
}

_client: Any = distributed.Client
_security: Any = distributed.Security


class HostExecutor(DaskExecutor):
    """An executor (it runs trials) that starts a Dask cluster on this host and ends it when closed.

    Args:
        build: Builds prefixes; must be picklable.
        make_cluster: Called with the options of `distributed.LocalCluster`; starts the workers.
        gpus_per_trial: See `DaskExecutor`.
        threads: Trials that each worker runs at the same time.

    Attributes:
        cluster: The Dask cluster.

    Raises:
        InfrastructureError: The cluster does not start.
    """

    def __init__(
        self,
        build: PrefixBuilder,
        make_cluster: Callable[..., Any],
        *,
        gpus_per_trial: float = 0,
        threads: int = 1,
    ) -> None:
        super().__init__(build, cpus=tuple(sorted(os.sched_getaffinity(0))), gpus_per_trial=gpus_per_trial)
        with contextlib.ExitStack() as undo:
            folder = undo.enter_context(temporary("cluster"))
            # Keep these settings as long as the cluster exists, because restarted workers read them again.
            undo.enter_context(dask.config.set({**_CONFIG, "temporary-directory": str(folder)}))
            # A terminal sends SIGINT (Ctrl-C) to every process of the foreground group. Only the command
            # reacts: if workers ended on their own, an orderly stop would lose trials. Workers inherit the
            # signal mask of the thread that starts them; trials get an empty mask from their supervisor.
            # Starting Python's resource tracker would unblock SIGINT, so start it first.
            resource_tracker.ensure_running()
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                self.cluster = make_cluster(
                    threads_per_worker=threads,
                    # Dask's memory limit ignores the child processes of a worker, which do all the work here.
                    memory_limit=0,
                    dashboard_address=None,
                    silence_logs=logging.CRITICAL,
                    local_directory=str(folder),
                    scheduler_kwargs=_SCHEDULER,
                    # Every user of this host can connect to the loopback device, and a scheduler or worker
                    # runs the code that its peers send as the user who started it.
                    security=_security.temporary(),
                )
                undo.callback(self._give_back)
                client = _client(
                    self.cluster, set_as_default=False, direct_to_workers=True, timeout=START_TIMEOUT
                )
                client.wait_for_workers(1, timeout=START_TIMEOUT)
            except (OSError, RuntimeError, TimeoutError) as error:
                raise InfrastructureError(
                    f"the local Dask cluster does not start: {error}",
                    remedy="see whether this host is out of memory (`dmesg`), or try fewer workers "
                    "(`--workers 1`)",
                ) from error
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            self._connect(client)
            self._undo = undo.pop_all()

    def _give_back(self) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            self.cluster.close()

    def _kill(self) -> None:
        self.cluster.shutdown_on_close = False  # Dask would close it in order when Python ends
        for nanny in list(self.cluster.workers.values()):
            nanny.auto_restart = False
        for process in multiprocessing.active_children():
            process.kill()

    def _release(self) -> None:
        self._undo.close()


def gpu_executor(build: PrefixBuilder, groups: Sequence[tuple[str, ...]], trials: int = 1) -> HostExecutor:
    """Start an executor on the GPUs of this host, with one Dask worker for each group of GPUs.

    Args:
        build: Builds prefixes; must be picklable.
        groups: UUIDs of the GPUs of each worker, which are as many as one trial needs.
        trials: How many trials share a GPU; more than 1 only where each group has one GPU.

    Raises:
        InfrastructureError: dask-cuda is not installed, or the cluster does not start.
    """
    dask_cuda = refuse_without_dask_cuda()
    of_first = {group[0]: group for group in groups}

    class _Cluster(dask_cuda.LocalCUDACluster):  # type: ignore[misc,name-defined]
        def new_worker_spec(self) -> dict[str, Any]:
            ((name, spec),) = super().new_worker_spec().items()
            options = spec["options"]
            options["env"]["CUDA_VISIBLE_DEVICES"] = ",".join(of_first[name])
            options["resources"] = {GPU: len(of_first[name])}
            # Without `--create-cuda-context`: a context in the worker would hold GPU memory for the whole
            # study, and share the fault of any trial that breaks the GPU.
            options["preload_argv"] = []
            return {name: spec}

    # `None`, because Dask never holds data in GPU memory here that it would have to move out.
    make_cluster = partial(_Cluster, CUDA_VISIBLE_DEVICES=list(of_first), device_memory_limit=None)
    gpus = len(groups[0]) if trials == 1 else 1 / trials
    return HostExecutor(build, make_cluster, gpus_per_trial=gpus, threads=trials)


def refuse_without_dask_cuda() -> Any:
    """Import and return the module `dask_cuda`; raise an error with a remedy if it is not installed.

    Raises:
        InfrastructureError: dask-cuda is not installed.
    """
    try:
        return importlib.import_module("dask_cuda")
    except ImportError as error:
        raise InfrastructureError(f"dask-cuda cannot be used: {error}", remedy=INSTALL) from error
