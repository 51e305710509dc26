"""Where a prefix is made, and what the answers of the hosts come to. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from bisect_env.cluster.protocol import BuildFailed, PrefixReady
from bisect_env.cluster.resources import WorkerOffer


def outcome(lock_hash: str, answers: Iterable[object]) -> PrefixReady | BuildFailed:
    """What a prefix that was to be made on every host has come to.

    One failure is all that is told: a trial that was sent to that host would fail there.

    Args:
        lock_hash: Which environment.
        answers: One for each host; whatever is no answer of ours is what became of a host that was lost.
    """
    given = list(answers)
    failed = [answer for answer in given if isinstance(answer, BuildFailed)]
    ready = [answer for answer in given if isinstance(answer, PrefixReady)]
    if failed:
        # What says something about the environment matters more than what says something of a host.
        return min(failed, key=lambda failure: failure.transient)
    if not ready:
        why = "; ".join(f"{type(answer).__name__}: {answer}" for answer in given) or "there are none"
        return BuildFailed("", lock_hash, f"no worker could be told to build: {why}", transient=True)
    notes = tuple(note for answer in ready for note in answer.notes)
    return PrefixReady(lock_hash, max(answer.build_seconds for answer in ready), notes)


def one_of_each_host(offers: Iterable[WorkerOffer]) -> set[str]:
    """Addresses of workers, one for each host: whoever builds there builds for all of them."""
    chosen: dict[str, str] = {}
    for offer in offers:
        chosen[offer.host] = min(offer.address, chosen.get(offer.host, offer.address))
    return set(chosen.values())
