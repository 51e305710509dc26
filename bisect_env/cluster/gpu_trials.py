"""The GPUs of one worker process: lent to one trial each, looked at before, during and after it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Protocol

from bisect_env.cluster.gpu_health import (
    Finding,
    Reading,
    Suspicions,
    after_trial,
    before_trial,
    shared_with,
)
from bisect_env.cluster.perform import GpuTrial, GpuUnavailableError
from bisect_env.trials.records import Outcome, TrialRecord, TrialSpec
from bisect_env.trials.xids import described


class Xids(Protocol):
    """Xid events heard during a trial."""

    def xids(self, uuid: str) -> list[int]:
        """Of one GPU, in order."""
        ...

    def busy(self, uuid: str) -> float | None:
        """Share of the last moments in which a kernel ran on it; None when that cannot be read."""
        ...


class Monitor(Protocol):
    """Reads GPUs; `nvml.Nvml` is one."""

    def read(self, uuid: str) -> Reading:
        """How a GPU is now."""
        ...

    def describe(self, uuids: Sequence[str]) -> tuple[str, str]:
        """Model of some GPUs and version of their driver, as in `Machine`; "" for what cannot be told."""
        ...

    def watch(self, uuids: Sequence[str]) -> AbstractContextManager[Xids]:
        """Hear the Xid events of some GPUs."""
        ...


class _Watch:
    """What one trial's classification hears of its GPUs."""

    def __init__(self, heard: Xids, uuids: Sequence[str]) -> None:
        self._heard = heard
        self._uuids = uuids

    def reported(self) -> list[int]:
        return [xid for uuid in self._uuids for xid in self._heard.xids(uuid)]

    def busy(self) -> float | None:
        rates = [rate for uuid in self._uuids if (rate := self._heard.busy(uuid)) is not None]
        return max(rates, default=None)


class HostGpus:
    """Lends GPUs to trials; safe from several threads at once.

    Dask's resource `GPU` sees to it that no more are asked for than there are; which ones is decided here.

    Args:
        gpus: UUIDs to lend, and what reads them; without it their health is not watched.

    Attributes:
        on_aside: Called with a GPU, why it is put aside, and how many are left.
    """

    def __init__(self, gpus: tuple[Sequence[str], Monitor | None]) -> None:
        uuids, self._monitor = gpus
        self._free = list(uuids)
        self._healthy = set(uuids)
        self._suspicions = Suspicions()
        self._lock = threading.Lock()
        self.on_aside: Callable[[str, str, int], None] = lambda _uuid, _why, _left: None

    def describe(self, count: int) -> set[tuple[str, str]]:
        """Models and drivers that trials with this many GPUs may see; none when nothing can read them."""
        with self._lock:
            uuids = sorted(self._healthy)
        if self._monitor is None or len(uuids) < count:
            return set()
        # One GPU is any of them; several of unlike models could be any choice, of which all is one.
        groups = [[uuid] for uuid in uuids] if count == 1 else [uuids]
        return {self._monitor.describe(group) for group in groups}

    def enough(self, count: int) -> bool:
        """Whether as many GPUs as that still work."""
        return len(self._healthy) >= count

    def run(self, spec: TrialSpec, trial: GpuTrial) -> TrialRecord:
        """Lend GPUs to a trial; see `GpuLender.run`."""
        uuids = self._take(spec.gpus)
        try:
            return self._watched(spec, uuids, trial)
        finally:
            with self._lock:
                self._free += [uuid for uuid in uuids if uuid in self._healthy]

    def _take(self, count: int) -> list[str]:
        with self._lock:
            if len(self._free) < count:
                raise GpuUnavailableError(f"{count} GPUs are asked for, and {len(self._free)} are free")
            taken, self._free = self._free[:count], self._free[count:]
        return taken

    def _watched(self, spec: TrialSpec, uuids: list[str], trial: GpuTrial) -> TrialRecord:
        if self._monitor is None:
            return self._heard(spec, uuids, trial(uuids, None))
        before = {uuid: self._monitor.read(uuid) for uuid in uuids}
        if bad := [one for reading in before.values() if (one := before_trial(reading))]:
            self._put_aside(bad)
            raise GpuUnavailableError(_say(bad))
        with self._monitor.watch(uuids) as heard:
            record = trial(uuids, _Watch(heard, uuids))
        model, driver = self._monitor.describe(uuids)
        record = replace(record, machine=replace(record.machine, gpu_model=model, driver=driver))
        after = {uuid: self._monitor.read(uuid) for uuid in uuids}
        found = [one for uuid in uuids if (one := after_trial(before[uuid], after[uuid], heard.xids(uuid)))]
        if found:
            self._put_aside(found)
            detail = f"{_say(found)} (the script: {record.detail})"
            return replace(record, outcome=Outcome.GPU_LOST, detail=detail)
        others = set().union(*(shared_with(before[uuid], after[uuid]) for uuid in uuids))
        if record.outcome is Outcome.CUDA_OOM and others:
            pids = ", ".join(map(str, sorted(others)))
            raise GpuUnavailableError(f"out of GPU memory beside other processes ({pids}): {record.detail}")
        if xids := [xid for uuid in uuids for xid in heard.xids(uuid)]:
            record = replace(record, detail=f"{record.detail}; {described(xids)}")
        return self._heard(spec, uuids, record)

    def _heard(self, spec: TrialSpec, uuids: list[str], record: TrialRecord) -> TrialRecord:
        """Weigh what the trial itself says of its GPUs."""
        with self._lock:
            if record.outcome is not Outcome.GPU_LOST:
                self._suspicions.used(uuids)
                return record
            claims = self._suspicions.lost(uuids, spec.lock_hash)
        self._put_aside(claims)
        return record

    def _put_aside(self, findings: Sequence[Finding]) -> None:
        for finding in findings:
            with self._lock:
                new = finding.aside and finding.uuid in self._healthy
                if new:
                    self._healthy.remove(finding.uuid)
                left = len(self._healthy)
            if new:
                self.on_aside(finding.uuid, finding.reason, left)


def _say(findings: Sequence[Finding]) -> str:
    return "; ".join(f"{one.uuid}: {one.reason}" for one in findings)
