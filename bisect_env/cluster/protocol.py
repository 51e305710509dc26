"""The contract that every executor fulfils, and the requests and answers that it takes and gives.

An executor runs trials and reports what became of each. It decides nothing: what to run comes from the
search, what a result means is judged by the engine, and nothing is retried here in silence.

**Delivery.** Every submitted trial is answered exactly once by `wait`, be it by a record, a build failure
or a loss; so is every `prepare`, once all hosts have answered. **Builds hold nothing.** What is prepared is
built beside trials, and takes none of the places (slots, GPUs) where trials run. **Isolation.** The user's
script never runs inside the worker process. **Cancel.** After `cancel` every trial that was submitted before
is answered by its record if that was there already, else as lost. Its process group is ended, soon after the
answer at the latest, and until then its place stays taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import floor
from typing import Any, Protocol

from bisect_env.environments.lock import Lock
from bisect_env.environments.progress import BuildStep
from bisect_env.trials.records import TrialRecord, TrialSpec

# --------------------------------------------------------------------------------------------------
# What workers offer, and whether a trial could ever run there. Pure.
#
# A worker says how many GPUs it hands out by Dask's resource `GPU`. Dask itself lets a task that asks for
# more than any worker has wait for ever, in silence; here it is refused.

GPU = "GPU"
"""Dask's resource that counts the GPUs of a worker."""
_GRAIN = 2**20


@dataclass(frozen=True, slots=True)
class WorkerOffer:
    """The trials and GPUs that one worker can run and lend.

    Attributes:
        address: Dask's.
        host: Name or address of its host.
        threads: Tasks at the same time.
        gpus: GPUs that it hands out, those put aside not counted.
    """

    address: str
    host: str
    threads: int
    gpus: int = 0

    @classmethod
    def of(cls, address: str, info: Mapping[str, Any]) -> WorkerOffer:
        """From the scheduler's description of a worker."""
        return cls(address, str(info["host"]), int(info["nthreads"]), int(info["resources"].get(GPU, 0)))


def trials_per_gpu(gpus: float) -> int:
    """Return how many trials that ask for so much of a GPU run on one at the same time."""
    return int(1.0 / gpus + 1e-6) if 0 < gpus < 1 else 1


def promised(gpus: float) -> float:
    """Return the amount of Dask's GPU resource that a trial takes.

    Shares are multiples of a power of two, so that taking and giving them back leaves exactly what was there:
    with thirds of one, a trial that needs all of it would wait for ever.
    """
    return floor(_GRAIN / trials_per_gpu(gpus)) / _GRAIN if gpus < 1 else gpus


def slots(offers: Iterable[WorkerOffer], gpus: float) -> int:
    """Return how many trials with that many GPUs, or such a share of one, can run at the same time."""

    def of(offer: WorkerOffer) -> int:
        places = offer.gpus * trials_per_gpu(gpus) if gpus < 1 else int(offer.gpus // gpus)
        return min(offer.threads, places)

    return sum(offer.threads if gpus == 0 else of(offer) for offer in offers)


def why_never(offers: Sequence[WorkerOffer], gpus: float) -> str | None:
    """Why no worker could run a trial with that many GPUs, or None when one could.

    Without any worker nothing is known: some may be about to join.
    """
    if gpus == 0 or not offers or slots(offers, gpus):
        return None
    most = max(offer.gpus for offer in offers)
    have = "none has any" if most == 0 else f"the best has {most}"
    workers = "the only worker is there" if len(offers) == 1 else f"{len(offers)} workers are there"
    return (
        f"a trial asks for {gpus:g} GPU{'s' * (gpus > 1)}, and no worker hands them out ({workers}, {have})"
    )


# --------------------------------------------------------------------------------------------------
# The contract behind which every place that runs trials stands.


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """One trial with the lock from which a worker makes its prefix.

    Attributes:
        spec: What to run.
        lock: The whole environment; workers share no file system with us.
        allow_source: Whether installing may build source distributions.
    """

    spec: TrialSpec
    lock: Lock
    allow_source: bool | frozenset[str] = False


@dataclass(frozen=True, slots=True)
class PrefixRequest:
    """An environment that is to be made before a trial needs it.

    Attributes:
        lock: The whole environment.
        allow_source: Whether installing may build source distributions.
        look: Whether to look if a prefix that is there is still as it was made.
    """

    lock: Lock
    allow_source: bool | frozenset[str] = False
    look: bool = False


@dataclass(frozen=True, slots=True)
class PrefixChange:
    """A prefix was not as it was made any more, so that trials in it say nothing.

    Attributes:
        lock_hash: Which environment.
        host: Where.
        since: When it was last seen as it was made, UTC.
    """

    lock_hash: str
    host: str
    since: datetime


@dataclass(frozen=True, slots=True)
class PrefixProgress:
    """A host tells where the making of a prefix is; no answer, which comes later.

    Attributes:
        lock_hash: Which environment.
        step: What is done now.
    """

    lock_hash: str
    step: BuildStep


@dataclass(frozen=True, slots=True)
class PrefixReady:
    """The answer to a `PrefixRequest`: at least one host has made the prefix, and trials can run there.

    Attributes:
        lock_hash: Which environment.
        build_seconds: Time that the slowest host spent on making it; 0 when all had it.
        notes: What a user should know of how it was made.
        changes: Where it had been changed, if it was looked at.
    """

    lock_hash: str
    build_seconds: float = 0.0
    notes: tuple[str, ...] = ()
    changes: tuple[PrefixChange, ...] = ()


@dataclass(frozen=True, slots=True)
class TrialCompleted:
    """A trial ran and was classified.

    Attributes:
        record: What it did.
        build_seconds: Time spent on making the prefix; 0 when it existed.
        notes: What a user should know of how the prefix was made.
    """

    record: TrialRecord
    build_seconds: float = 0.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BuildFailed:
    """The prefix could not be made; the trial, if it was for one, never ran.

    Attributes:
        trial_id: Of the request, "" when it was prepared for trials to come.
        lock_hash: Which environment.
        message: The builder's own words.
        transient: Network or checksum trouble (void) rather than a property of the environment.
    """

    trial_id: str
    lock_hash: str
    message: str
    transient: bool


@dataclass(frozen=True, slots=True)
class TrialLost:
    """The worker or its host went away, or the trial was cancelled; it says nothing about the script.

    Attributes:
        trial_id: Of the request.
        reason: What is known about the loss.
        host: Where it ran, "" when it is not known to have begun.
        crowded: Whether another trial on the same GPU may be to blame.
        under_trial: Whether the host went away while the trial itself ran, so that the trial may be to blame.
        change: Of its prefix, where that is why.
    """

    trial_id: str
    reason: str
    host: str = ""
    crowded: bool = False
    under_trial: bool = True
    change: PrefixChange | None = None


Completion = TrialCompleted | PrefixReady | PrefixProgress | BuildFailed | TrialLost


class Executor(Protocol):
    """A place that runs trials."""

    @property
    def slots(self) -> int:
        """How many trials can run at the same time, now."""
        ...

    def submit(self, request: TrialRequest) -> None:
        """Accept a trial; returns at once.

        Raises:
            InfrastructureError: No worker could ever run it (resources nobody has, cluster gone).
        """
        ...

    def prepare(self, request: PrefixRequest) -> None:
        """Begin to make a prefix on every host that there is now; returns at once.

        Hosts that join later make what is in use, and get trials once it is made. What is being made is not
        ended by `cancel`.
        """
        ...

    def wait(self, timeout: float | None = None) -> list[Completion]:
        """Block until at least one answer is there, or the timeout (seconds) is over.

        Returns:
            The answers since the last call, and what is told of builds under way; empty on timeout.

        Raises:
            InfrastructureError: The cluster as a whole is lost.
        """
        ...

    def wake(self) -> None:
        """Let a `wait` under way return at once, or the next one; called from any thread."""
        ...

    def cancel(self) -> None:
        """End all trials, whether they run or wait, and return at once; those submitted later go on."""
        ...

    def close(self) -> None:
        """Cancel, then give back what the executor holds; may be called twice."""
        ...
