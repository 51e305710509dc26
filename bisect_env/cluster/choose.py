"""Chooses where the trials of a command run, from its options and the matrix."""

from __future__ import annotations

import ipaddress
import json
import os
import platform
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from urllib.parse import urlsplit

from bisect_env.cluster.protocol import Executor, trials_per_gpu
from bisect_env.environments.image_lock import ensure_environment
from bisect_env.environments.settings import default_cache_dir
from bisect_env.errors import InfrastructureError, StudyInterruptedError, UsageError
from bisect_env.temporary import remove_left_behind
from bisect_env.trials.records import Machine
from bisect_env.trials.workdir import sweep

_LOOK = 0.05
"""Seconds between two looks at whether the user wants to stop."""


class Place:
    """The executor of one command, started in a thread when it is first needed.

    A cluster may take a minute to start or to be found unreachable; a command that waits for it can be
    interrupted at any moment. If the executor is ready only after that, its starting thread closes it;
    that thread does not keep the process alive.

    Args:
        start: Starts the executor, or connects to it.
        machines: Returns the classes of machines on which trials will run, without starting anything; None
            if only the executor knows them.
        stopped: Whether the user wants to stop.
    """

    def __init__(
        self,
        start: Callable[[], Executor],
        machines: Callable[[], frozenset[Machine]] | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._make = start
        self._machines = machines
        self._stopped = stopped
        self._lock = threading.Lock()
        self._started: Future[Executor] | None = None
        self._closed = False

    def begin(self) -> Future[Executor]:
        """Start the executor unless it was started before."""
        with self._lock:
            if self._started is None:
                self._started = Future()
                threading.Thread(target=self._start, args=(self._started,), name="start", daemon=True).start()
            return self._started

    def _start(self, started: Future[Executor]) -> None:
        try:
            executor = self._make()
        except BaseException as error:  # noqa: BLE001 -- raised by `executor`
            started.set_exception(error)
            return
        with self._lock:
            closed = self._closed
            started.set_result(executor)
        if closed:
            executor.close()

    def executor(self) -> Executor:
        """Return the executor, waiting until it is ready.

        Raises:
            BisectEnvError: It could not be started.
            StudyInterruptedError: The user stopped before it was ready.
        """
        started = self.begin()
        while not started.done() and not self._stopped():
            wait([started], _LOOK)
        # The signal that stops us may have ended the workers, too: then that is why they did not start.
        if not started.done() or (started.exception() is not None and self._stopped()):
            raise StudyInterruptedError(
                "stopped before the place where trials run was ready; every trial that ended is stored",
                remedy="start the same command again; it goes on where it stopped",
            )
        return started.result()

    def machines(self) -> frozenset[Machine]:
        """Return the classes of machines that are known before trials run; workers may join later.

        Raises:
            InfrastructureError: A remote cluster cannot be reached.
        """
        if self._machines is not None:
            return self._machines()
        executor = self.executor()
        return executor.machines() if isinstance(executor, _Knows) else frozenset()

    def close(self) -> None:
        """Close the executor if it was started, and remove what killed commands left behind.

        A start in progress is waited for unless the user wants to stop; in that case its thread closes
        what it starts. Start-up errors are not raised here.
        """
        try:
            started = self._started
            while started is not None and not started.done() and not self._stopped():
                wait([started], _LOOK)
            with self._lock:
                self._closed = True
            if started is not None and started.done() and started.exception() is None:
                started.result().close()
        finally:
            sweep()
            remove_left_behind()


@runtime_checkable
class _Knows(Protocol):
    def machines(self) -> frozenset[Machine]: ...


def machines_here(gpus_per_trial: float, gpus: str | None) -> frozenset[Machine]:
    """Return the classes of machines that trials on this host see.

    Args:
        gpus_per_trial: `trial.gpus` of the matrix.
        gpus: `--devices`.
    """
    if not gpus_per_trial:
        return frozenset({Machine(platform.machine())})
    return _local_gpus(gpus_per_trial, gpus)


def _local_gpus(per_trial: float, selection: str | None) -> frozenset[Machine]:
    from bisect_env.cluster.gpus import choose_gpus, group_gpus, open_nvml

    nvml = open_nvml()
    chosen = choose_gpus(nvml.gpus(), selection, os.environ.get("CUDA_VISIBLE_DEVICES"))
    groups = group_gpus(chosen, per_trial, None)
    return frozenset(Machine(platform.machine(), *nvml.describe(group)) for group in groups)


# --------------------------------------------------------------------------------------------------
# Which executor a command line and a matrix ask for.

WORKERS_PER_CPU = 16
"""Trials that mostly wait may share a CPU; each worker is a Python process to start and feed."""


def executor_maker(
    *,
    gpus_per_trial: float = 0,
    workers: int | None = None,
    gpus: str | None = None,
    scheduler: str | None = None,
    scheduler_file: Path | None = None,
    cache: Path | None = None,
    cache_limit: int | None = None,
    offline: Path | None = None,
) -> Callable[[], Executor]:
    """Return a function that starts the executor of a study, or connects to it.

    Options and GPUs are checked now, before minutes are spent on solving; nothing is started.

    Args:
        gpus_per_trial: `trial.gpus` of the matrix.
        workers: `--workers`, None if not given.
        gpus: `--devices`.
        scheduler: `--scheduler`.
        scheduler_file: `--scheduler-file`.
        cache: `--cache`, None if not given: every host then uses its own default.
        cache_limit: `--env-cache-size` in bytes, None if not given: every host then uses its own default.
        offline: `--offline`, None if not given: every host then uses its own default.

    Raises:
        UsageError: The options contradict each other or the matrix.
        InfrastructureError: The requested resources do not exist.
    """
    said = {"cache_dir": cache and cache.absolute(), "cache_limit": cache_limit, "offline": offline}
    options: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
    if scheduler is not None or scheduler_file is not None:
        _refuse_local_options(scheduler, scheduler_file, workers, gpus)
        from bisect_env.cluster.remote import RemoteExecutor

        return partial(
            RemoteExecutor,
            partial(ensure_environment, **options),
            scheduler=scheduler,
            scheduler_file=scheduler_file,
            gpus_per_trial=gpus_per_trial,
        )
    build = partial(ensure_environment, **{"cache_dir": default_cache_dir(), **options})
    if gpus_per_trial == 0:
        if gpus is not None:
            raise UsageError(
                "--devices: the trials of this matrix use no GPU",
                remedy="set `trial.gpus` in the matrix, or leave --devices out",
            )
        from bisect_env.cluster.pool import PoolExecutor, default_workers

        most = WORKERS_PER_CPU * default_workers()
        if workers is not None and workers > most:
            raise UsageError(
                f"--workers {workers}: this machine would spend its time on starting them",
                remedy=f"take at most {most} ({WORKERS_PER_CPU} a CPU), or --scheduler for more machines",
            )
        return partial(PoolExecutor, build, workers)
    from bisect_env.cluster.gpus import INSTALL, NO_GPU_REMEDY, choose_gpus, group_gpus, open_nvml
    from bisect_env.cluster.local import gpu_executor, refuse_without_dask_cuda

    try:
        nvml = open_nvml()
    except InfrastructureError as error:
        raise InfrastructureError(
            f"the trials of this matrix need GPUs: {error.what}",
            tried=error.tried,
            remedy=f"{NO_GPU_REMEDY}; on a machine with GPUs, {INSTALL}",
        ) from error
    refuse_without_dask_cuda()
    chosen = choose_gpus(nvml.gpus(), gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    groups = group_gpus(chosen, gpus_per_trial, workers)
    return partial(_deaf_to_ctrl_c, partial(gpu_executor, build, groups, trials_per_gpu(gpus_per_trial)))


def _deaf_to_ctrl_c(start: Callable[[], Executor]) -> Executor:
    """Start a cluster of this host so that Ctrl-C does not reach its processes.

    A terminal sends SIGINT to every process of the foreground group, and workers that are still importing
    would die with a traceback each. They inherit the signal mask of the thread that starts them; trials
    get an empty mask from their supervisor.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unprotected(scheduler: str | None, scheduler_file: Path | None) -> str | None:
    """Return a warning if a scheduler on another host is used without TLS, else None.

    Args:
        scheduler: `--scheduler`.
        scheduler_file: `--scheduler-file`.
    """
    address = scheduler
    if scheduler_file is not None:
        if not scheduler_file.is_file():
            return None  # connecting says what is wrong with it
        try:
            address = str(json.loads(scheduler_file.read_text("utf-8"))["address"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
    if address is None or address.startswith("tls://"):
        return None
    host = urlsplit(address if "://" in address else f"tcp://{address}").hostname
    if host is None or _is_here(host):
        return None
    return (
        f"the scheduler at {host} is spoken to without TLS: anybody who reaches its port, or reads along on "
        "the way, can run code on its workers and on this host; docs/how-to/clusters.md says how to use TLS"
    )


def _is_here(host: str) -> bool:
    import psutil

    own = {address.address.partition("%")[0] for each in psutil.net_if_addrs().values() for address in each}
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return False
    return all(one in own or ipaddress.ip_address(one).is_loopback for one in found)


def _refuse_local_options(
    scheduler: str | None, scheduler_file: Path | None, workers: int | None, gpus: str | None
) -> None:
    if scheduler is not None and scheduler_file is not None:
        raise UsageError("--scheduler and --scheduler-file name two clusters", remedy="give one of the two")
    for option, value in (("--workers", workers), ("--devices", gpus)):
        if value is not None:
            raise UsageError(
                f"{option} starts workers on this machine, and --scheduler uses those of a cluster",
                remedy=f"leave {option} out; an existing cluster has the size that it was started with",
            )
