"""Which environments exist, which are being made, and which to make next while trials run.

No trial is sent anywhere before its environment is there: a worker that waits for a build would hold its GPU
all the while. So builds are asked for apart from trials, in the order in which the search wants them, and
environments that it is likely to want next are made ahead, a few at a time: it may change its mind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from bisect_env.cluster.protocol import BuildFailed, Executor, PrefixReady, PrefixRequest
from bisect_env.environments.lock import Lock
from bisect_env.matrix.grid import Index

AT_ONCE = (2, 6)
"""Builds under way, at least and at most: what is made and what is next, so that no host waits for us in
between; as many as there are places for trials, since at first each of them waits for an environment."""


@dataclass(slots=True)
class Builds:
    """The environments of a study on the hosts of its executor.

    Attributes:
        locks: Of each combination that has one.
        allow_source: Whether installing may build source distributions.
        seen: Content hashes of environments in which trials ran before this command began: they are likely
            to be there still.
        ready: Of those that are on every host.
        under_way: Of those that are being made.
    """

    locks: Mapping[Index, Lock]
    allow_source: bool | frozenset[str]
    seen: set[str] = field(default_factory=set)
    ready: set[str] = field(default_factory=set)
    under_way: set[str] = field(default_factory=set)

    def is_ready(self, index: Index) -> bool:
        """Whether trials of a combination can be sent off."""
        return self.locks[index].content_hash in self.ready

    def is_paid(self, index: Index) -> bool:
        """Whether its environment costs nothing more: it exists, or it is being made whatever comes."""
        content_hash = self.locks[index].content_hash
        return content_hash in self.ready or content_hash in self.under_way or content_hash in self.seen

    def begin(self, wanted: Iterable[Index], executor: Executor) -> int:
        """Begin to make environments, the first of those wanted first, as far as there is room.

        Returns:
            How many were begun.
        """
        begun = 0
        least, most = AT_ONCE
        room = min(max(least, executor.slots), most)
        for index in wanted:
            lock = self.locks[index]
            if len(self.under_way) >= room:
                break
            if lock.content_hash not in self.ready and lock.content_hash not in self.under_way:
                self.under_way.add(lock.content_hash)
                executor.prepare(PrefixRequest(lock, self.allow_source))
                begun += 1
        return begun

    def hear(self, answer: PrefixReady | BuildFailed) -> None:
        """Take note of how a build ended."""
        self.under_way.discard(answer.lock_hash)
        if isinstance(answer, PrefixReady):
            self.ready.add(answer.lock_hash)
        else:
            # One that broke on some host is looked at again before more trials go there.
            self.ready.discard(answer.lock_hash)

    def combinations(self, lock_hash: str, among: Iterable[Index]) -> list[Index]:
        """Those that live in an environment."""
        return [index for index in among if self.locks[index].content_hash == lock_hash]


def sort_out(chosen: Iterable[Index], is_ready: Callable[[Index], bool]) -> tuple[list[Index], list[Index]]:
    """Split what the search chose into what can start now and what has to wait for its environment. Pure."""
    now: list[Index] = []
    later: list[Index] = []
    for index in chosen:
        (now if is_ready(index) else later).append(index)
    return now, later
