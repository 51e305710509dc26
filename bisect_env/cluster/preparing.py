"""Where a prefix is made, and what the answers of the hosts come to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bisect_env.cluster.protocol import BuildFailed, PrefixReady, PrefixRequest
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


@dataclass(slots=True)
class Whereabouts:
    """On which hosts the prefixes are, and who has to make one yet, since it joined after the others.

    Only what was asked for with `asked` is known here: of any other prefix every host is thought to be fit.
    """

    _requests: dict[str, PrefixRequest] = field(default_factory=dict)
    _there: dict[str, set[str]] = field(default_factory=dict)
    _begun: dict[str, set[str]] = field(default_factory=dict)

    def asked(self, request: PrefixRequest, offers: Sequence[WorkerOffer]) -> None:
        """A prefix is begun on every host of now."""
        self._requests[request.lock.content_hash] = request
        self._begun.setdefault(request.lock.content_hash, set()).update(offer.host for offer in offers)

    def heard(self, lock_hash: str, answers: Mapping[str, object]) -> None:
        """Hosts have answered, or were lost: what has no answer of ours is begun again when it is needed."""
        for host, answer in answers.items():
            if isinstance(answer, PrefixReady):
                self._there.setdefault(lock_hash, set()).add(host)
            elif not isinstance(answer, BuildFailed):
                self._begun[lock_hash].discard(host)

    def late(
        self, wanted: Iterable[str], offers: Sequence[WorkerOffer]
    ) -> list[tuple[PrefixRequest, list[WorkerOffer]]]:
        """What is to be begun on hosts that joined, which counts as begun from then on.

        Args:
            wanted: Content hashes of the environments in use.
            offers: Of the workers of now.
        """
        found = []
        for lock_hash in wanted:
            if lock_hash in self._there:
                begun = self._begun[lock_hash]
                joined = [offer for offer in offers if offer.host not in begun | self._there[lock_hash]]
                chosen = one_of_each_host(joined)
                begun.update(offer.host for offer in joined)
                if chosen:
                    builders = [offer for offer in joined if offer.address in chosen]
                    found.append((self._requests[lock_hash], builders))
        return found

    def fit(self, lock_hash: str, offers: Sequence[WorkerOffer]) -> list[str] | None:
        """Addresses of the workers on whose hosts a prefix is; None where that rules nobody out."""
        there = self._there.get(lock_hash, set())
        addresses = [offer.address for offer in offers if offer.host in there]
        return addresses if 0 < len(addresses) < len(offers) else None

    def at_work(self, offers: Sequence[WorkerOffer]) -> list[WorkerOffer]:
        """Offers of the hosts that have any prefix at all; all offers as long as none has."""
        hosts = set().union(*self._there.values())
        return [offer for offer in offers if offer.host in hosts] or list(offers)


def late_outcome(lock_hash: str, answers: Mapping[str, object]) -> PrefixReady:
    """What a prefix that was made on hosts that joined late has come to.

    The environment is there elsewhere, so that a host where it cannot be made says nothing of it: its trials
    run on the others.
    """
    failures = tuple(
        f"on {host}, which joined later, an environment cannot be made: "
        f"{answer.message}; its trials run elsewhere"
        for host, answer in answers.items()
        if isinstance(answer, BuildFailed)
    )
    made = outcome(lock_hash, [one for one in answers.values() if isinstance(one, PrefixReady)])
    if isinstance(made, BuildFailed):
        return PrefixReady(lock_hash, notes=failures)
    return PrefixReady(lock_hash, made.build_seconds, made.notes + failures)
