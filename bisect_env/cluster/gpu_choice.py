"""Which GPUs are used, and by which worker. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bisect_env.errors import InfrastructureError, UsageError

NO_GPU_REMEDY = (
    "give the address of a Dask scheduler whose workers have GPUs (`--scheduler tcp://HOST:8786`), "
    "or set `trial.gpus: 0` in the matrix to run its trials on CPUs"
)


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of this host.

    Attributes:
        index: NVML's, which is the order of the PCI bus.
        uuid: `GPU-…`, or `MIG-…` for a slice.
        name: The product's.
    """

    index: int
    uuid: str
    name: str = ""


def find_gpu(word: str, present: Sequence[Gpu]) -> Gpu | None:
    """The GPU that an index, a UUID or the beginning of a UUID names; None when none or several fit."""
    if word.isdigit():
        found = [gpu for gpu in present if gpu.index == int(word)]
    else:
        found = [gpu for gpu in present if word and gpu.uuid.startswith(word)]
    return found[0] if len(found) == 1 else None


def _usable(variable: str | None, present: Sequence[Gpu]) -> list[Gpu]:
    """What `CUDA_VISIBLE_DEVICES` leaves; as in CUDA, it ends at the first entry that names nothing."""
    if variable is None:
        return list(present)
    usable: list[Gpu] = []
    for word in variable.split(","):
        gpu = find_gpu(word.strip(), present)
        if gpu is None or gpu in usable:
            break
        usable.append(gpu)
    return usable


def choose_gpus(present: Sequence[Gpu], selection: str | None, variable: str | None) -> list[Gpu]:
    """The GPUs of this host that a study may use.

    Args:
        present: All that can be read.
        selection: `--gpus`: indices or UUIDs, separated by commas; None means all that are visible.
        variable: `CUDA_VISIBLE_DEVICES` of the command, None when it is not set. What it hides is not used
            unless `selection` names it.

    Raises:
        UsageError: `selection` names what is not there, or the same GPU twice.
        InfrastructureError: There is nothing to choose.
    """
    if not present:
        raise InfrastructureError("this machine has no GPU that NVML can read", remedy=NO_GPU_REMEDY)
    if selection is None:
        usable = _usable(variable, present)
        if not usable:
            raise InfrastructureError(
                f"CUDA_VISIBLE_DEVICES={variable!r} hides every GPU of this machine",
                remedy="unset it, or name GPUs with `--gpus 0`",
            )
        return usable
    there = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in present)
    chosen: list[Gpu] = []
    for word in (part.strip() for part in selection.split(",")):
        gpu = find_gpu(word, present)
        if gpu is None:
            raise UsageError(f"--gpus: {word!r} is no GPU of this machine", remedy=f"choose among {there}")
        if gpu in chosen:
            raise UsageError(f"--gpus: {word!r} is named twice", remedy="name each GPU once")
        chosen.append(gpu)
    return chosen


def group_gpus(gpus: Sequence[Gpu], per_trial: int, workers: int | None) -> list[tuple[str, ...]]:
    """Which GPUs each worker hands out: one worker for as many GPUs as one trial needs.

    Args:
        gpus: As chosen.
        per_trial: `trial.gpus` of the matrix.
        workers: `--workers`; None means as many as there are GPUs for.

    Raises:
        InfrastructureError: There are fewer GPUs than one trial needs.
        UsageError: There are fewer than that many workers need.
    """
    size = max(1, per_trial)
    most = len(gpus) // size
    if most == 0:
        raise InfrastructureError(
            f"a trial asks for {size} GPUs, and {len(gpus)} can be used here",
            remedy="lower `trial.gpus`, choose more with `--gpus`, or use `--scheduler` with larger hosts",
        )
    if workers is not None and workers > most:
        raise UsageError(
            f"--workers {workers}: {len(gpus)} GPUs are enough for {most} workers with {size} each",
            remedy=f"use `--workers {most}` at most",
        )
    count = most if workers is None else workers
    return [tuple(gpu.uuid for gpu in gpus[i * size : (i + 1) * size]) for i in range(count)]


def visible_gpus(variable: str | None, present: Sequence[Gpu] | None, count: int) -> tuple[str, ...]:
    """UUIDs of the GPUs that a worker hands out.

    dask-cuda gives each worker all GPUs, rotated, so that its own comes first: only the first `count` are
    the worker's, `count` being what it has promised to the scheduler.

    Args:
        variable: `CUDA_VISIBLE_DEVICES` of the worker.
        present: GPUs of the host; None when NVML is not installed.
        count: Its resource `GPU`.

    Raises:
        InfrastructureError: Fewer can be named.
    """
    if present is None:
        words = [word.strip() for word in (variable or "").split(",")]
        uuids = [word for word in words if word.startswith(("GPU-", "MIG-"))]
        remedy = "install nvidia-ml-py on the worker, or give it UUIDs in CUDA_VISIBLE_DEVICES"
    else:
        # NVML does not list the slices of a GPU; their UUIDs are taken as they are.
        slices = [word.strip() for word in (variable or "").split(",") if word.strip().startswith("MIG-")]
        uuids = slices or [gpu.uuid for gpu in _usable(variable, present)]
        remedy = "start it with a `--resources GPU=N` that fits its CUDA_VISIBLE_DEVICES"
    if len(uuids) < count:
        raise InfrastructureError(
            f"a worker hands out {count} GPUs and can name {len(uuids)} "
            f"(CUDA_VISIBLE_DEVICES={'not set' if variable is None else variable!r})",
            remedy=remedy,
        )
    return tuple(uuids[:count])
