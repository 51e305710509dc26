"""Whether a GPU is to be trusted with trials, decided from what NVML said before, during and after one. Pure.

A lost or sick GPU makes healthy code fail. Its trial is void, and the GPU gets no more; which Xids mean that
and which are the script's own doing is the table of `docs/outcomes.md`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bisect_env.trials.xids import SICK_XIDS, described

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
    """What NVML says of one GPU at one moment.

    Attributes:
        uuid: Which GPU.
        error: NVML's return code; anything but 0 when the GPU could not be read.
        count: GPUs on the host, None when not readable.
        uncorrected: ECC errors since the driver was loaded that could not be corrected, None when the GPU
            does not count them.
        processes: Ids of the processes that have a context on it, as far as visible.
    """

    uuid: str
    error: int = OK
    count: int | None = None
    uncorrected: int | None = None
    processes: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Finding:
    """Why a trial on this GPU says nothing.

    Attributes:
        uuid: Which GPU.
        reason: One line for people.
        aside: Whether the GPU gets no more trials; else the trial alone is void.
    """

    uuid: str
    reason: str
    aside: bool


def before_trial(reading: Reading) -> Finding | None:
    """Whether a GPU can be given to a trial at all."""
    if reading.error in _GONE:
        return Finding(reading.uuid, _GONE[reading.error], aside=True)
    return None


def after_trial(before: Reading, after: Reading, xids: Iterable[int] = ()) -> Finding | None:
    """Whether what a trial did on a GPU can be believed.

    Args:
        before: Taken before it.
        after: Taken after it, of the same GPU.
        xids: Xid events of this GPU in between.
    """
    if (gone := before_trial(after)) is not None:
        return gone
    if sick := sorted(set(xids) & SICK_XIDS):
        return Finding(after.uuid, f"the driver reported {described(sick)} during the trial", aside=True)
    if None not in (before.uncorrected, after.uncorrected) and before.uncorrected != after.uncorrected:
        new = (after.uncorrected or 0) - (before.uncorrected or 0)
        return Finding(after.uuid, f"{new} new uncorrectable memory errors during the trial", aside=True)
    if None not in (before.count, after.count) and before.count != after.count:
        # This one still answers. The lost one is put aside by whoever holds it; putting aside every GPU of
        # the host would end the study for one card.
        reason = f"the host had {before.count} GPUs before the trial and {after.count} after it"
        return Finding(after.uuid, reason, aside=False)
    return None


def shared_with(before: Reading, after: Reading, own: Iterable[int] = ()) -> frozenset[int]:
    """Processes of others that were on the GPU: with one, running out of memory says nothing."""
    return (before.processes | after.processes) - frozenset(own)


class Suspicions:
    """What trials say of GPUs that NVML finds healthy.

    A combination whose own libraries are wrong (a bundled driver library, say) claims a lost GPU on every
    card it meets, and would take one after another out of the study. So a claim counts when trials of two
    different environments make it of one GPU, with no trial in between that could use it.
    """

    def __init__(self) -> None:
        self._claims: defaultdict[str, set[str]] = defaultdict(set)

    def lost(self, uuids: Sequence[str], lock_hash: str) -> list[Finding]:
        """A trial of this environment says that its GPU is lost or sick."""
        found = []
        for uuid in uuids:
            self._claims[uuid].add(lock_hash)
            if len(self._claims[uuid]) >= REPORTS_BEFORE_ASIDE:
                reason = "trials of different environments say that it is lost or sick"
                found.append(Finding(uuid, reason, aside=True))
        return found

    def used(self, uuids: Iterable[str]) -> None:
        """A trial has used them."""
        for uuid in uuids:
            self._claims.pop(uuid, None)
