"""Lists the GPUs of this host, who uses them, and whether each can be trusted with trials."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from bisect_env.errors import InfrastructureError, UsageError
from bisect_env.trials.gpu_errors import SICK_XIDS, described

# --------------------------------------------------------------------------------------------------
# Which GPUs are used, and by which worker. Pure.

NO_GPU_REMEDY = (
    "give the address of a Dask scheduler whose workers have GPUs (`--scheduler tcp://HOST:8786`), "
    "or set `trial.gpus: 0` in the matrix to run its trials on CPUs"
)


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of this host.

    Attributes:
        index: NVML's index, which follows the order of the PCI bus.
        uuid: `GPU-…`, or `MIG-…` for a slice.
        name: Product name.
    """

    index: int
    uuid: str
    name: str = ""


def find_gpu(word: str, present: Sequence[Gpu]) -> Gpu | None:
    """Return the GPU that an index, a UUID or the beginning of one names; None if none or several match."""
    if word.isdigit():
        found = [gpu for gpu in present if gpu.index == int(word)]
    else:
        found = [gpu for gpu in present if word and gpu.uuid.startswith(word)]
    return found[0] if len(found) == 1 else None


def _usable(variable: str | None, present: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs in `CUDA_VISIBLE_DEVICES`; as in CUDA, the list ends at the first invalid entry."""
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
    """Return the GPUs of this host that a study may use.

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
    """Return the GPUs of each worker: as many as one trial needs.

    Args:
        gpus: As chosen.
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


def visible_gpus(variable: str | None, present: Sequence[Gpu] | None, count: int) -> tuple[str, ...]:
    """Return the UUIDs of the GPUs that a worker hands out.

    dask-cuda gives each worker all GPUs, rotated so that its own come first; only the first `count` belong
    to the worker, which is the number that it has promised to the scheduler.

    Args:
        variable: `CUDA_VISIBLE_DEVICES` of the worker.
        present: GPUs of the host; None if NVML is not installed.
        count: Its resource `GPU`.

    Raises:
        InfrastructureError: Fewer than `count` GPUs are found.
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


# --------------------------------------------------------------------------------------------------
# Whether a GPU is to be trusted with trials, decided from what NVML said before, during and after one.
# Pure.
#
# A lost or sick GPU makes healthy code fail. Its trial is void, and the GPU gets no more; which Xids mean
# that and which are the script's own doing is the table of `docs/outcomes.md`.

OK = 0
NOT_FOUND = 6
GPU_IS_LOST = 15
RESET_REQUIRED = 16
"""NVML's return codes, from `nvml.h`."""
_GONE = {
    NOT_FOUND: "NVML does not find it any more",
    GPU_IS_LOST: "it was lost (NVML error 15: it fell off the bus or cannot be reached)",
    RESET_REQUIRED: "it must be reset (NVML error 16)",
}

REPORTS_BEFORE_ASIDE = 2
"""Different environments whose trials must say that a GPU is lost before it is believed against NVML."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The state of one GPU at one moment, read by NVML.

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
    """A reason why a trial on a GPU is void.

    Attributes:
        uuid: UUID of the GPU.
        reason: One readable line.
        aside: Whether the GPU gets no more trials; otherwise only this trial is void.
    """

    uuid: str
    reason: str
    aside: bool


def before_trial(reading: Reading) -> GpuFault | None:
    """Return the fault that prevents giving a GPU to a trial, or None."""
    if reading.error in _GONE:
        return GpuFault(reading.uuid, _GONE[reading.error], aside=True)
    return None


def after_trial(before: Reading, after: Reading, xids: Iterable[int] = ()) -> GpuFault | None:
    """Return the fault that makes a finished trial on a GPU void, or None.

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
        # This one still answers. The worker that holds the lost one puts it aside; putting aside every GPU
        # of the host would end the study for one card.
        reason = f"the host had {before.count} GPUs before the trial and {after.count} after it"
        return GpuFault(after.uuid, reason, aside=False)
    return None


def shared_with(before: Reading, after: Reading, own: Iterable[int] = ()) -> frozenset[int]:
    """Return the foreign processes on a GPU; if there are any, an out-of-memory error is no evidence."""
    return (before.processes | after.processes) - frozenset(own)


class Suspicions:
    """A collection of trials' claims against GPUs that NVML finds healthy.

    A combination whose own libraries are broken (a bundled driver library, say) claims a lost GPU on every
    card and would exclude one after another. Therefore a claim counts only if trials of two different
    environments make it about one GPU, with no trial in between that could use it.
    """

    def __init__(self) -> None:
        self._claims: defaultdict[str, set[str]] = defaultdict(set)

    def lost(self, uuids: Sequence[str], lock_hash: str) -> list[GpuFault]:
        """Record that a trial of this environment claims its GPUs to be lost or sick.

        Return confirmed faults.
        """
        found = []
        for uuid in uuids:
            self._claims[uuid].add(lock_hash)
            if len(self._claims[uuid]) >= REPORTS_BEFORE_ASIDE:
                reason = "trials of different environments say that it is lost or sick"
                found.append(GpuFault(uuid, reason, aside=True))
        return found

    def used(self, uuids: Iterable[str]) -> None:
        """Record that a trial could use the GPUs, which clears earlier claims."""
        for uuid in uuids:
            self._claims.pop(uuid, None)


# --------------------------------------------------------------------------------------------------
# NVML, read through `nvidia-ml-py`: which GPUs there are, how they are, Xids. Makes no CUDA context.

INSTALL = "install the extra that fits the driver: `pip install 'bisect-env[gpu-cu13]'` (or `gpu-cu12`)"
EVENT_WAIT_MS = 20
"""Milliseconds of one wait for events; also how long the watcher takes to end."""


class Nvml:
    """NVML of this process, opened once.

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
        """Return every GPU of this host that can be read, by index."""
        found = []
        for index in range(self._nvml.nvmlDeviceGetCount()):
            # A lost GPU keeps its index and answers nothing; the others are still good.
            with contextlib.suppress(self._nvml.NVMLError):
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                name = str(self._nvml.nvmlDeviceGetName(handle))
                found.append(Gpu(index, str(self._nvml.nvmlDeviceGetUUID(handle)), name))
        return found

    def read(self, uuid: str) -> Reading:
        """Read the state of a GPU; errors never raise but are part of the reading."""
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            nvml.nvmlDeviceGetMemoryInfo(handle)  # a handle alone is given for a lost GPU, too
        except nvml.NVMLError as error:
            return Reading(uuid, error=int(error.value), count=self._count())
        uncorrected = None
        with contextlib.suppress(nvml.NVMLError):  # GPUs without ECC do not count
            uncorrected = int(
                nvml.nvmlDeviceGetTotalEccErrors(
                    handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
                )
            )
        return Reading(uuid, OK, self._count(), uncorrected, self._processes(handle))

    def describe(self, uuids: Sequence[str]) -> tuple[str, str]:
        """Return the models of some GPUs and the driver's version, as in `Machine`; "" if unreadable."""
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

    @contextlib.contextmanager
    def watch(self, uuids: Sequence[str]) -> Iterator[XidWatch]:
        """Collect the Xid events of some GPUs while the block runs."""
        watch = XidWatch(self._nvml, uuids)
        watch.start()
        try:
            yield watch
        finally:
            watch.stop()


class XidWatch:
    """A thread that collects the Xid events of some GPUs.

    A thread is needed because NVML keeps only the last number if several events wait to be fetched.

    Attributes:
        readable: Whether the driver reports Xids; in some containers and on MIG devices it does not.
    """

    def __init__(self, pynvml: Any, uuids: Sequence[str]) -> None:
        self._nvml = pynvml
        self._uuids = uuids
        self._events: Any = None
        self._seen: list[tuple[str, int]] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="xid-watch", daemon=True)
        self.readable = False

    def start(self) -> None:
        """Start listening, if the driver supports it."""
        nvml = self._nvml
        try:
            self._events = nvml.nvmlEventSetCreate()
            for uuid in self._uuids:
                handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._events)
        except nvml.NVMLError:
            self._free()
            return
        self.readable = True
        self._thread.start()

    def _listen(self) -> None:
        nvml = self._nvml
        while not self._stopping.is_set():
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, EVENT_WAIT_MS)
                self._seen.append((str(nvml.nvmlDeviceGetUUID(event.device)), int(event.eventData)))
            except nvml.NVMLError_Timeout:
                continue
            except nvml.NVMLError:
                # The GPU is lost, and events with it; the reading after the trial says so.
                return

    def stop(self) -> None:
        """End the thread and free the event set."""
        self._stopping.set()
        if self.readable:
            self._thread.join()
        self._free()

    def _free(self) -> None:
        if self._events is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlEventSetFree(self._events)
            self._events = None

    def xids(self, uuid: str) -> list[int]:
        """Return the events of one GPU, in order."""
        return [xid for seen, xid in self._seen if seen == uuid]

    def busy(self, uuid: str) -> float | None:
        """Return the share of the last second or less in which a kernel ran on a GPU; None if unreadable."""
        try:
            handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
            return float(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100.0
        except self._nvml.NVMLError:
            return None


def open_nvml() -> Nvml:
    """Return NVML of this host.

    Raises:
        InfrastructureError: `nvidia-ml-py` is not installed, or there is no driver.
    """
    try:
        pynvml = importlib.import_module("pynvml")
    except ImportError as error:
        raise InfrastructureError(f"GPUs cannot be found: {error}", remedy=INSTALL) from error
    return Nvml(pynvml)


def visible_to_this_worker(environ: Mapping[str, str], count: int) -> tuple[tuple[str, ...], Nvml | None]:
    """Return the GPUs that this worker may hand out, and NVML if it is installed.

    Args:
        environ: Environment of the worker.
        count: Number of GPUs that it has promised to the scheduler.

    Raises:
        InfrastructureError: It has promised more GPUs than exist, or the driver does not work.
    """
    variable = environ.get("CUDA_VISIBLE_DEVICES")
    try:
        pynvml = importlib.import_module("pynvml")
    except ImportError:
        # Health is not watched without it; UUIDs need no translation.
        return visible_gpus(variable, None, count), None
    nvml = Nvml(pynvml)
    return visible_gpus(variable, nvml.gpus(), count), nvml
