"""Which executor a command line and a matrix ask for."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bisect_env.cluster.protocol import Executor
from bisect_env.environments.images import ensure_environment
from bisect_env.environments.settings import default_cache_dir
from bisect_env.errors import InfrastructureError, UsageError

WORKERS_PER_CPU = 16
"""Trials that mostly wait may share a CPU; each worker is a Python process to start and feed."""


def executor_maker(
    *,
    gpus_per_trial: int = 0,
    workers: int | None = None,
    gpus: str | None = None,
    scheduler: str | None = None,
    scheduler_file: Path | None = None,
    cache: Path | None = None,
    cache_limit: int | None = None,
    offline: Path | None = None,
) -> Callable[[], Executor]:
    """What starts, or finds, the place where the trials of a study run.

    Options and GPUs are looked at now, before minutes are spent on solving; nothing is started.

    Args:
        gpus_per_trial: `trial.gpus` of the matrix.
        workers: `--workers`, None when not given.
        gpus: `--gpus`.
        scheduler: `--scheduler`.
        scheduler_file: `--scheduler-file`.
        cache: `--cache`, None when not given: then every host uses its own default.
        cache_limit: `--env-cache-size` in bytes, None when not given: likewise.
        offline: `--offline`, None when not given: likewise.

    Raises:
        UsageError: The options contradict each other or the matrix.
        InfrastructureError: What they ask for is not there.
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
                "--gpus: the trials of this matrix use no GPU",
                remedy="set `trial.gpus` in the matrix, or leave --gpus out",
            )
        from bisect_env.cluster.local import LocalExecutor, default_workers

        most = WORKERS_PER_CPU * default_workers()
        if workers is not None and workers > most:
            raise UsageError(
                f"--workers {workers}: this machine would spend its time on starting them",
                remedy=f"take at most {most} ({WORKERS_PER_CPU} a CPU), or --scheduler for more machines",
            )
        return partial(LocalExecutor, build, workers)
    from bisect_env.cluster.gpu import GpuExecutor, refuse_without_dask_cuda
    from bisect_env.cluster.gpu_choice import NO_GPU_REMEDY, choose_gpus, group_gpus
    from bisect_env.cluster.nvml import INSTALL, open_nvml

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
    return partial(GpuExecutor, build, group_gpus(chosen, gpus_per_trial, workers))


def _refuse_local_options(
    scheduler: str | None, scheduler_file: Path | None, workers: int | None, gpus: str | None
) -> None:
    if scheduler is not None and scheduler_file is not None:
        raise UsageError("--scheduler and --scheduler-file name two clusters", remedy="give one of the two")
    for option, value in (("--workers", workers), ("--gpus", gpus)):
        if value is not None:
            raise UsageError(
                f"{option} starts workers on this machine, and --scheduler uses those of a cluster",
                remedy=f"leave {option} out; an existing cluster is sized by whoever started it",
            )
