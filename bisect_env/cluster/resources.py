"""What workers offer, and whether a trial could ever run there. Pure.

A worker says how many GPUs it hands out by Dask's resource `GPU`. Dask itself lets a task that asks for more
than any worker has wait for ever, in silence; here it is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

GPU = "GPU"
"""Dask's resource that counts the GPUs of a worker."""


@dataclass(frozen=True, slots=True)
class WorkerOffer:
    """What one worker can run.

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


def slots(offers: Iterable[WorkerOffer], gpus: int) -> int:
    """How many trials with that many GPUs each can run at the same time."""
    return sum(offer.threads if gpus == 0 else min(offer.threads, offer.gpus // gpus) for offer in offers)


def why_never(offers: Sequence[WorkerOffer], gpus: int) -> str | None:
    """Why no worker could run a trial with that many GPUs, or None when one could.

    Without any worker nothing is known: some may be about to join.
    """
    if gpus == 0 or not offers or slots(offers, gpus):
        return None
    most = max(offer.gpus for offer in offers)
    have = "none has any" if most == 0 else f"the best has {most}"
    workers = "the only worker is there" if len(offers) == 1 else f"{len(offers)} workers are there"
    return f"a trial asks for {gpus} GPU{'s' * (gpus > 1)}, and no worker hands them out ({workers}, {have})"
