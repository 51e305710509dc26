"""NVML, read through `nvidia-ml-py`: which GPUs there are, how they are, Xids. Makes no CUDA context."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bisect_env.cluster.gpu_choice import Gpu, visible_gpus
from bisect_env.cluster.gpu_health import OK, Reading
from bisect_env.errors import InfrastructureError

INSTALL = "install the extra that fits the driver: `pip install 'bisect-env[gpu-cu13]'` (or `gpu-cu12`)"
EVENT_WAIT_MS = 20
"""Milliseconds of one wait for events; also how long the watcher takes to end."""


class Nvml:
    """NVML of this process, opened once.

    Raises:
        InfrastructureError: It cannot be opened: no driver, or one that does not fit its library.
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
        """Every GPU of this host that can be read, by index."""
        found = []
        for index in range(self._nvml.nvmlDeviceGetCount()):
            # A lost GPU keeps its index and answers nothing; the others are still good.
            with contextlib.suppress(self._nvml.NVMLError):
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                name = str(self._nvml.nvmlDeviceGetName(handle))
                found.append(Gpu(index, str(self._nvml.nvmlDeviceGetUUID(handle)), name))
        return found

    def read(self, uuid: str) -> Reading:
        """How a GPU is now; never raises, its error is part of the reading."""
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
        """Model of some GPUs and version of their driver, as in `Machine`; "" for what cannot be told."""
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
    """Xid events of some GPUs, heard by a thread of its own.

    A thread, because NVML keeps only the last number when several events wait to be fetched.

    Attributes:
        readable: Whether the driver tells Xids at all; in some containers and on MIG devices it does not.
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
        """Begin to listen, if that can be done."""
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
        """End the thread and give back the event set."""
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
        """Of one GPU, in order."""
        return [xid for seen, xid in self._seen if seen == uuid]

    def busy(self, uuid: str) -> float | None:
        """Share of the last moments (up to a second) in which a kernel ran on it; None when not readable."""
        try:
            handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
            return float(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100.0
        except self._nvml.NVMLError:
            return None


def open_nvml() -> Nvml:
    """NVML of this host.

    Raises:
        InfrastructureError: `nvidia-ml-py` is not installed, or there is no driver.
    """
    try:
        pynvml = importlib.import_module("pynvml")
    except ImportError as error:
        raise InfrastructureError(f"GPUs cannot be found: {error}", remedy=INSTALL) from error
    return Nvml(pynvml)


def visible_to_this_worker(environ: Mapping[str, str], count: int) -> tuple[tuple[str, ...], Nvml | None]:
    """The GPUs that this worker may hand out, and NVML where it is installed.

    Args:
        environ: Of the worker.
        count: How many it has promised to the scheduler.

    Raises:
        InfrastructureError: It has promised what is not there, or the driver does not work.
    """
    variable = environ.get("CUDA_VISIBLE_DEVICES")
    try:
        pynvml = importlib.import_module("pynvml")
    except ImportError:
        # Health is not watched without it; UUIDs need no translation.
        return visible_gpus(variable, None, count), None
    nvml = Nvml(pynvml)
    return visible_gpus(variable, nvml.gpus(), count), nvml
