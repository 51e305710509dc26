"""Choose where the trials of a command run, from its options and the matrix."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from bisect_env.cluster.gpus import INSTALL, NO_GPU_REMEDY, choose_gpus, group_gpus, open_nvml
from bisect_env.cluster.pool import PoolExecutor, default_workers
from bisect_env.cluster.protocol import Executor, trials_per_gpu
from bisect_env.environments.image_lock import ensure_environment
from bisect_env.environments.settings import default_cache_dir
from bisect_env.errors import InfrastructureError, StudyInterruptedError, UsageError
from bisect_env.matrix.versions import PackageIndex
from bisect_env.temporary import remove_left_behind
from bisect_env.trials.workdir import sweep

_CHECK_EVERY = 0.05
"""Seconds between two checks of whether the user wants to stop."""


class Place:
    """The executor of one command (the object that runs its trials), started when it is first needed.

    A cluster may take a minute to start or to be found unreachable; the user can stop a command that waits
    for this. If the executor is ready only after that, the thread that started it closes it. This thread does
    not keep the process alive.

    Args:
        start: Starts the executor, or connects to it.
        stopped: Whether the user wants to stop.
    """

    def __init__(self, start: Callable[[], Executor], stopped: Callable[[], bool] = lambda: False) -> None:
        self._make = start
        self._stopped = stopped
        self._lock = threading.Lock()
        self._started: Future[Executor] | None = None
        self._closed = False

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
        """Start the executor if necessary, wait until it is ready, and return it.

        Raises:
            BisectEnvError: It could not be started.
            StudyInterruptedError: The user stopped before it was ready.
        """
        if self._started is None:
            self._started = Future()
            threading.Thread(target=self._start, args=(self._started,), name="start", daemon=True).start()
        started = self._started
        while not started.done() and not self._stopped():
            wait([started], _CHECK_EVERY)
        # The signal that stopped the command may have ended the workers; then their error is not reported.
        if not started.done() or (started.exception() is not None and self._stopped()):
            raise StudyInterruptedError(
                "stopped before the place where trials run was ready; every trial that ended is stored",
                remedy="start the same command again; it goes on where it stopped",
            )
        return started.result()

    def close(self) -> None:
        """Close the executor if it was started, and delete files that killed commands left behind.

        If the executor is still starting, the starting thread closes it. Start-up errors are not raised here.
        """
        try:
            started = self._started
            with self._lock:
                self._closed = True
            if started is not None and started.done() and started.exception() is None:
                started.result().close()
        finally:
            sweep()
            remove_left_behind()


# --------------------------------------------------------------------------------------------------
# Choose the executor from the command line and the matrix.

WORKERS_PER_CPU = 16
"""Maximum number of workers per CPU. Trials that mostly wait can share a CPU."""


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
    indexes: Sequence[PackageIndex] = (),
) -> Callable[[], Executor]:
    """Check where trials should run, and return a function that starts the executor there.

    The function starts workers on this host, or connects to an existing cluster. Options and GPUs are checked
    at once, before minutes are spent on solving; nothing is started yet.

    Args:
        gpus_per_trial: `trial.gpus` of the matrix.
        workers: `--workers`, None if not given.
        gpus: `--devices`.
        scheduler: `--scheduler`.
        scheduler_file: `--scheduler-file`.
        cache: `--cache`, None if not given: every host then uses its own default.
        cache_limit: `--env-cache-size` in bytes, None if not given: every host then uses its own default.
        offline: `--offline`, None if not given: every host then uses its own default.
        indexes: Further indexes of the matrix, whose logins every host uses.

    Raises:
        UsageError: The options contradict each other or the matrix.
        InfrastructureError: The requested resources do not exist.
    """
    said = {"cache_dir": cache and cache.absolute(), "cache_limit": cache_limit, "offline": offline}
    options: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
    if indexes:
        options["indexes"] = indexes
    if scheduler is not None or scheduler_file is not None:
        _refuse_local_options(scheduler, scheduler_file, workers, gpus)
        # Imported here because it brings Dask.
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
        most = WORKERS_PER_CPU * default_workers()
        if workers is not None and workers > most:
            raise UsageError(
                f"--workers {workers}: this machine would spend its time on starting them",
                remedy=f"take at most {most} ({WORKERS_PER_CPU} a CPU), or --scheduler for more machines",
            )
        return partial(PoolExecutor, build, workers)
    # Imported here because it brings Dask.
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
    return partial(gpu_executor, build, groups, trials_per_gpu(gpus_per_trial))


def tls_warning(scheduler: str | None, scheduler_file: Path | None) -> str | None:
    """Return a warning if the command talks to a Dask scheduler on another host without TLS, else None.

    Args:
        scheduler: `--scheduler`.
        scheduler_file: `--scheduler-file`.

    Raises:
        UsageError: The address cannot be read.
    """
    address = scheduler if scheduler_file is None else address_in(scheduler_file)
    if not address or address.startswith("tls://"):
        return None
    try:
        host = urlsplit(address if "://" in address else f"tcp://{address}").hostname
    except ValueError as error:
        raise UsageError(
            f"the scheduler's address {address} cannot be read: {error}",
            remedy="write it like tcp://HOST:PORT",
        ) from None
    if host is None or _is_here(host):
        return None
    return (
        f"the scheduler at {host} is spoken to without TLS: anybody who reaches its port, or reads along on "
        "the way, can run code on its workers and on this host; docs/how-to/clusters.md says how to use TLS"
    )


def address_in(scheduler_file: Path) -> str:
    """Read the address of the Dask scheduler from a scheduler file.

    Returns "" if the file contains no address; the error is then raised on connecting.
    """
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        return str(json.loads(scheduler_file.read_text("utf-8"))["address"])
    return ""


def _is_here(host: str) -> bool:
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
