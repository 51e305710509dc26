"""The GPUs of this host: which there are, who uses them, and whether each can be trusted with trials."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import ceil
from typing import Any, Self

from bisect_env.errors import InfrastructureError, UsageError
from bisect_env.trials.gpu_errors import SICK_XIDS, described

# --------------------------------------------------------------------------------------------------
# Choose the GPUs to use, and the worker that gets each of them. Pure.

NO_GPU_REMEDY = (
    "give the address of a Dask scheduler whose workers have GPUs (`--scheduler tcp://HOST:8786`), "
    "or set `trial.gpus: 0` in the matrix to run its trials on CPUs"
)


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of this host, with its index, UUID and product name.

    Attributes:
        index: NVML's index, which follows the order of the PCI bus.
        uuid: `GPU-…`, or `MIG-…` for a slice.
        name: Product name.
    """

    index: int
    uuid: str
    name: str = ""


def find_gpu(word: str, present: Sequence[Gpu]) -> Gpu | None:
    """Return the GPU that a user means by an index, a UUID, or the beginning of a UUID.

    Returns None if no GPU or more than one GPU matches.
    """
    if word.isascii() and word.isdecimal():
        found = [gpu for gpu in present if gpu.index == int(word)]
    else:
        found = [gpu for gpu in present if word and gpu.uuid.startswith(word)]
    return found[0] if len(found) == 1 else None


def _usable(variable: str | None, present: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs that `CUDA_VISIBLE_DEVICES` lists, up to the first invalid entry (as CUDA does).

    Returns all GPUs if the variable is not set.
    """
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
    """Choose the GPUs of this host on which a study may run trials.

    Args:
        present: All readable GPUs.
        selection: `--devices`: indices or UUIDs, separated by commas; None means all that are visible.
        variable: `CUDA_VISIBLE_DEVICES` of the command, None if it is not set. GPUs that it hides are not
            used unless `selection` names them.

    Raises:
        UsageError: `selection` names a GPU that does not exist, or the same GPU twice.
        InfrastructureError: There is no GPU to choose.
    """
    if not present:
        raise InfrastructureError("this machine has no GPU that NVML can read", remedy=NO_GPU_REMEDY)
    if selection is None:
        usable = _usable(variable, present)
        if not usable:
            raise InfrastructureError(
                f"CUDA_VISIBLE_DEVICES={variable!r} hides every GPU of this machine",
                remedy="unset it, or name GPUs with `--devices 0`",
            )
        return usable
    there = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in present)
    chosen: list[Gpu] = []
    for word in (part.strip() for part in selection.split(",")):
        gpu = find_gpu(word, present)
        if gpu is None:
            raise UsageError(f"--devices: {word!r} is no GPU of this machine", remedy=f"choose among {there}")
        if gpu in chosen:
            raise UsageError(f"--devices: {word!r} is named twice", remedy="name each GPU once")
        chosen.append(gpu)
    return chosen


def group_gpus(gpus: Sequence[Gpu], per_trial: float, workers: int | None) -> list[tuple[str, ...]]:
    """Divide the GPUs among workers, and return the UUIDs for each worker.

    Each worker gets as many GPUs as one trial needs.

    Args:
        gpus: The GPUs that the study may use.
        per_trial: `trial.gpus` of the matrix; if trials share a GPU, each worker has one.
        workers: `--workers`; None means as many as the GPUs allow.

    Raises:
        InfrastructureError: There are fewer GPUs than one trial needs.
        UsageError: There are fewer GPUs than that many workers need.
    """
    size = max(1, ceil(per_trial))
    most = len(gpus) // size
    if most == 0:
        raise InfrastructureError(
            f"a trial asks for {size} GPUs, and {len(gpus)} can be used here",
            remedy="lower `trial.gpus`, choose more with `--devices`, or use `--scheduler` with larger hosts",
        )
    if workers is not None and workers > most:
        raise UsageError(
            f"--workers {workers}: {len(gpus)} GPUs are enough for {most} workers with {size} each",
            remedy=f"use `--workers {most}` at most",
        )
    count = most if workers is None else workers
    return [tuple(gpu.uuid for gpu in gpus[i * size : (i + 1) * size]) for i in range(count)]


def visible_gpus(
    variable: str | None,
    present: Sequence[Gpu] | None,
    count: int,
    claim: Callable[[str], bool] = lambda _uuid: True,
) -> tuple[str, ...]:
    """Return the UUIDs of the GPUs that a worker may lend to trials.

    dask-cuda gives each worker all GPUs, rotated so that its own come first, and workers that a user starts
    may all see the same GPUs. Only the first `count` that no other worker lends belong to this one, which is
    the number that it has promised to the scheduler.

    Args:
        variable: `CUDA_VISIBLE_DEVICES` of the worker.
        present: GPUs of the host; None if NVML is not installed.
        count: Its resource `GPU`.
        claim: Reserves a GPU for this worker, and returns False if another worker lends this GPU.

    Raises:
        InfrastructureError: Fewer than `count` GPUs are found.
    """
    if present is None:
        words = [word.strip() for word in (variable or "").split(",")]
        uuids = [word for word in words if word.startswith(("GPU-", "MIG-"))]
        remedy = "install nvidia-ml-py on the worker, or give it UUIDs in CUDA_VISIBLE_DEVICES"
    else:
        # NVML does not list the slices (MIG) of a GPU, so their UUIDs cannot be checked.
        slices = [word.strip() for word in (variable or "").split(",") if word.strip().startswith("MIG-")]
        uuids = slices or [gpu.uuid for gpu in _usable(variable, present)]
        remedy = "start it with a `--resources GPU=N` that fits its CUDA_VISIBLE_DEVICES"
    if len(uuids) < count:
        raise InfrastructureError(
            f"a worker hands out {count} GPUs and can name {len(uuids)} "
            f"(CUDA_VISIBLE_DEVICES={'not set' if variable is None else variable!r})",
            remedy=remedy,
        )
    own = tuple(islice(filter(claim, uuids), count))
    if len(own) < count:
        raise InfrastructureError(
            f"a worker hands out {count} GPUs, and others of this host lend {len(uuids) - len(own)} of the "
            f"{len(uuids)} that it sees",
            remedy="start no more workers than GPUs, or each with its own CUDA_VISIBLE_DEVICES",
        )
    return own


# --------------------------------------------------------------------------------------------------
# Decide from NVML's readings before, during and after a trial whether a GPU can be trusted. Pure.
#
# A lost or sick GPU makes healthy code fail. Its trial is void, and the GPU gets no more trials. The table
# in `docs/outcomes.md` lists which Xids mean that, and which are caused by the script itself.

OK = 0
NOT_FOUND = 6
GPU_IS_LOST = 15
RESET_REQUIRED = 16
"""Return codes of NVML, from `nvml.h`."""
_GONE = {
    NOT_FOUND: "NVML does not find it any more",
    GPU_IS_LOST: "it was lost (NVML error 15: it fell off the bus or cannot be reached)",
    RESET_REQUIRED: "it must be reset (NVML error 16)",
}

REPORTS_BEFORE_ASIDE = 2
"""Number of different environments whose trials must report a GPU as lost before it is excluded although NVML
finds it healthy."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The state of one GPU at one moment, as read from NVML (NVIDIA's management library).

    Attributes:
        uuid: UUID of the GPU.
        error: NVML's return code; not 0 if the GPU could not be read.
        count: Number of GPUs on the host, None if not readable.
        uncorrected: Uncorrectable ECC errors since the driver was loaded, None if the GPU does not count
            them.
        processes: Ids of the processes that have a context on it, as far as visible.
    """

    uuid: str
    error: int = OK
    count: int | None = None
    uncorrected: int | None = None
    processes: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class GpuFault:
    """A fault of a GPU because of which a trial on this GPU is void.

    Attributes:
        uuid: UUID of the GPU.
        reason: One readable line.
        aside: Whether the GPU gets no more trials; otherwise only this trial is void.
    """

    uuid: str
    reason: str
    aside: bool


def before_trial(reading: Reading) -> GpuFault | None:
    """Return the fault because of which no trial may use a GPU now, or None if the GPU is usable."""
    if reading.error in _GONE:
        return GpuFault(reading.uuid, _GONE[reading.error], aside=True)
    return None


def after_trial(before: Reading, after: Reading, xids: Iterable[int] = ()) -> GpuFault | None:
    """Return the fault because of which a finished trial is void, or None if the GPU had no fault.

    Args:
        before: Reading before the trial.
        after: Reading of the same GPU after the trial.
        xids: Xid events of this GPU in between.
    """
    if (gone := before_trial(after)) is not None:
        return gone
    if sick := sorted(set(xids) & SICK_XIDS):
        return GpuFault(after.uuid, f"the driver reported {described(sick)} during the trial", aside=True)
    if None not in (before.uncorrected, after.uncorrected) and before.uncorrected != after.uncorrected:
        new = (after.uncorrected or 0) - (before.uncorrected or 0)
        return GpuFault(after.uuid, f"{new} new uncorrectable memory errors during the trial", aside=True)
    if None not in (before.count, after.count) and before.count != after.count:
        # This GPU still answers. The worker with the lost GPU excludes that one; excluding every GPU of the
        # host would end the study because of one card.
        reason = f"the host had {before.count} GPUs before the trial and {after.count} after it"
        return GpuFault(after.uuid, reason, aside=False)
    return None


class Suspicions:
    """A record of GPUs that trials report as lost although NVML (NVIDIA's library) finds them healthy.

    A combination whose own libraries are broken (a bundled driver library, say) reports every GPU as lost,
    and all would be excluded one after another. Therefore a report counts only if trials of two different
    environments report the same GPU, and no trial in between could use this GPU.
    """

    def __init__(self) -> None:
        self._claims: defaultdict[str, set[str]] = defaultdict(set)

    def lost(self, uuids: Sequence[str], lock_hash: str) -> list[GpuFault]:
        """Record that a trial reports GPUs as lost, and return the faults that are confirmed by now.

        Args:
            uuids: UUIDs of the GPUs.
            lock_hash: Content hash of the lock of the trial's environment.
        """
        found = []
        for uuid in uuids:
            self._claims[uuid].add(lock_hash)
            if len(self._claims[uuid]) >= REPORTS_BEFORE_ASIDE:
                reason = "trials of different environments say that it is lost or sick"
                found.append(GpuFault(uuid, reason, aside=True))
        return found

    def used(self, uuids: Iterable[str]) -> None:
        """Delete all reports that some GPUs are lost, because a trial has just used these GPUs."""
        for uuid in uuids:
            self._claims.pop(uuid, None)


# --------------------------------------------------------------------------------------------------
# Read GPUs, their state and Xid events from NVML with `nvidia-ml-py`, without creating a CUDA context.

INSTALL = "install the extra that fits the driver: `pip install 'bisect-env[gpu-cu13]'` (or `gpu-cu12`)"
EVENT_WAIT_MS = 20
"""Milliseconds of one wait for events, and so the maximum time that the watcher needs to end."""


class Nvml:
    """An open connection to NVML (NVIDIA's management library) in this process.

    Raises:
        InfrastructureError: It cannot be opened: there is no driver, or its version does not match NVML.
    """

    def __init__(self, pynvml: Any) -> None:
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise InfrastructureError(
                f"NVML, which watches over GPUs, cannot be opened: {error}",
                remedy="see that `nvidia-smi` works on this host; in a container, that GPUs are passed to it",
            ) from error

    def gpus(self) -> list[Gpu]:
        """Return all GPUs of this host that NVML can read, in the order of their index."""
        found = []
        for index in range(self._nvml.nvmlDeviceGetCount()):
            # A lost GPU keeps its index, but calls about it fail; the other GPUs are still usable.
            with contextlib.suppress(self._nvml.NVMLError):
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                name = str(self._nvml.nvmlDeviceGetName(handle))
                found.append(Gpu(index, str(self._nvml.nvmlDeviceGetUUID(handle)), name))
        return found

    def read(self, uuid: str) -> Reading:
        """Read the state of a GPU; if this fails, return a reading that contains the error code."""
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            nvml.nvmlDeviceGetMemoryInfo(handle)  # NVML also returns a handle of a lost GPU
        except nvml.NVMLError as error:
            return Reading(uuid, error=int(error.value), count=self._count())
        uncorrected = None
        with contextlib.suppress(nvml.NVMLError):  # raised for GPUs without ECC
            uncorrected = int(
                nvml.nvmlDeviceGetTotalEccErrors(
                    handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
                )
            )
        return Reading(uuid, OK, self._count(), uncorrected, self._processes(handle))

    def describe(self, uuids: Sequence[str]) -> tuple[str, str]:
        """Return the models of some GPUs (joined by commas) and the version of the driver.

        Both are "" if they cannot be read.
        """
        nvml = self._nvml
        try:
            names = {str(nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByUUID(uuid))) for uuid in uuids}
            return ",".join(sorted(names)), str(nvml.nvmlSystemGetDriverVersion())
        except nvml.NVMLError:
            return "", ""

    def _count(self) -> int | None:
        try:
            return int(self._nvml.nvmlDeviceGetCount())
        except self._nvml.NVMLError:
            return None

    def _processes(self, handle: Any) -> frozenset[int]:
        with contextlib.suppress(self._nvml.NVMLError):
            return frozenset(int(p.pid) for p in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        return frozenset()

    def watch(self, uuids: Sequence[str]) -> XidWatch:
        """Return a context manager that collects the Xid events (driver error numbers) of some GPUs."""
        return XidWatch(self._nvml, uuids)


class XidWatch:
    """A context manager that collects the Xid events (driver error numbers) of some GPUs.

    A thread fetches the events, because NVML keeps only the last number if several events are waiting. In
    some containers and on MIG devices, the driver reports no Xids; then nothing is collected.
    """

    def __init__(self, pynvml: Any, uuids: Sequence[str]) -> None:
        self._nvml = pynvml
        self._uuids = uuids
        self._events: Any = None
        self._seen: list[tuple[str, int]] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="xid-watch", daemon=True)

    def __enter__(self) -> Self:
        nvml = self._nvml
        try:
            self._events = nvml.nvmlEventSetCreate()
            for uuid in self._uuids:
                handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._events)
        except nvml.NVMLError:
            self._free()
            return self
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stopping.set()
        if self._events is not None:
            self._thread.join()
        self._free()

    def _listen(self) -> None:
        nvml = self._nvml
        while not self._stopping.is_set():
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, EVENT_WAIT_MS)
                self._seen.append((str(nvml.nvmlDeviceGetUUID(event.device)), int(event.eventData)))
            except nvml.NVMLError_Timeout:
                continue
            except nvml.NVMLError:
                # The GPU is lost, so there are no more events. The reading after the trial will show it.
                return

    def _free(self) -> None:
        if self._events is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlEventSetFree(self._events)
            self._events = None

    def xids(self, uuid: str) -> list[int]:
        """Return the Xids (driver error numbers) that were reported for one GPU, in order."""
        return [xid for seen, xid in self._seen if seen == uuid]

    def reported(self) -> list[int]:
        """Return the Xids (driver error numbers) that were reported for all watched GPUs."""
        return [xid for uuid in self._uuids for xid in self.xids(uuid)]

    def busy(self) -> float | None:
        """Return how busy the busiest GPU was in the last second: the share of time in which it ran a kernel.

        Returns None if no GPU can be read.
        """
        rates = []
        for uuid in self._uuids:
            with contextlib.suppress(self._nvml.NVMLError):
                handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
                rates.append(float(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100.0)
        return max(rates, default=None)


def open_nvml() -> Nvml:
    """Open NVML, NVIDIA's management library, to read the state of the GPUs of this host.

    Raises:
        InfrastructureError: `nvidia-ml-py` is not installed, or there is no driver.
    """
    try:
        pynvml = importlib.import_module("pynvml")
    except ImportError as error:
        raise InfrastructureError(f"GPUs cannot be found: {error}", remedy=INSTALL) from error
    return Nvml(pynvml)


def visible_to_this_worker(
    environ: Mapping[str, str], count: int, claim: Callable[[str], bool]
) -> tuple[tuple[str, ...], Nvml | None]:
    """Return the UUIDs of the GPUs that this worker may lend to trials, and NVML if it is installed.

    Args:
        environ: Environment of the worker.
        count: Number of GPUs that it has promised to the scheduler.
        claim: See `visible_gpus`.

    Raises:
        InfrastructureError: It has promised more GPUs than it can lend, or the driver does not work.
    """
    variable = environ.get("CUDA_VISIBLE_DEVICES")
    try:
        pynvml = importlib.import_module("pynvml")
    except ImportError:
        # Without NVML the health of GPUs is not watched.
        return visible_gpus(variable, None, count, claim), None
    nvml = Nvml(pynvml)
    return visible_gpus(variable, nvml.gpus(), count, claim), nvml
