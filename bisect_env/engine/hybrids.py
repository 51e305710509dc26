"""Environments between two others: the good lock with some of the changed packages as the bad one has them.

A hybrid is asked for with every package pinned. What the solver would have to add or change makes it another
environment, which is no answer about this one: then there is no such hybrid, as where nothing satisfies the
pins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from packaging.utils import canonicalize_name

from bisect_env.environments.difference import PackageChange, difference
from bisect_env.environments.lock import Lock, LockedPackage, LockResult
from bisect_env.environments.provider import EnvironmentProvider
from bisect_env.environments.request import CondaRequest, EnvironmentRequest

Changes = frozenset[int]


@dataclass(frozen=True, slots=True)
class Between:
    """Two locks and what changed from one to the other.

    Attributes:
        good: The lock that passes.
        bad: The lock that fails.
        request: What the bad combination asked of its environment: index, channels, virtual packages and
        date. changes: What can be moved by itself, packages of axes first.
        followers: What changes by itself when something else does: wheels of another interpreter.
    """

    good: Lock
    bad: Lock
    request: EnvironmentRequest
    changes: tuple[PackageChange, ...]
    followers: tuple[PackageChange, ...] = ()

    @classmethod
    def of(cls, good: Lock, bad: Lock, request: EnvironmentRequest, axes: Sequence[str]) -> Between:
        """Sort out what changed.

        Args:
            good: The lock that passes.
            bad: The lock that fails.
            request: Of the bad combination.
            axes: Packages that axes move.
        """
        every = difference(good, bad, axes)
        # The same version from another archive of an index, or another place: what a solver takes follows
        # from the interpreter. A conda build is chosen, and can carry a failure by itself.
        fixed = [change for change in every if _follows(change)]
        return cls(good, bad, request, tuple(c for c in every if c not in fixed), tuple(fixed))

    @property
    def everything(self) -> Changes:
        """All changes: the bad end."""
        return frozenset(range(len(self.changes)))

    def packages(self, hybrid: Changes) -> dict[str, LockedPackage]:
        """The packages of a hybrid, by normalised name; the interpreter of a PyPI environment is none."""
        found = {str(canonicalize_name(p.name)): p for p in self.good.packages}
        theirs = {str(canonicalize_name(p.name)): p for p in self.bad.packages}
        for position in hybrid:
            name = self.changes[position].name
            found.pop(name, None)
            if name in theirs:
                found[name] = theirs[name]
        return found

    def python(self, hybrid: Changes) -> str:
        """The interpreter of a hybrid, as a lock names it."""
        moved = any(self.changes[position].name == "python" for position in hybrid)
        return (self.bad if moved else self.good).python

    def request_for(self, hybrid: Changes) -> EnvironmentRequest:
        """A hybrid, every package pinned."""
        packages = self.packages(hybrid)
        wheels = {p.name: p.version for p in packages.values() if p.manager == "pip"}
        return replace(
            self.request,
            python=self.python(hybrid),
            pins=wheels,
            packages=(),
            conda=self._conda({p.name: p for p in packages.values() if p.is_conda}),
        )

    def _conda(self, packages: dict[str, LockedPackage]) -> CondaRequest | None:
        if self.request.conda is None:
            return None
        own = {name: package for name, package in packages.items() if name != "python"}
        return replace(
            self.request.conda,
            pins={name: package.version for name, package in own.items()},
            builds={name: package.build for name, package in own.items()},
            packages=(),
        )

    def check(self, hybrid: Changes, result: LockResult) -> Lock | None:
        """The lock of a hybrid, None if what was solved is nothing or another environment."""
        if not isinstance(result, Lock):
            return None
        asked = {name: (p.version, p.build) for name, p in self.packages(hybrid).items()}
        solved = {str(canonicalize_name(p.name)): (p.version, p.build) for p in result.packages}
        return result if asked == solved else None

    def leaning_request(self, hybrid: Changes, position: int) -> EnvironmentRequest | None:
        """One change made in a hybrid, the solver free to move what that forces.

        Args:
            hybrid: Where it is made, or taken back if it holds it.
            position: The change.

        Returns:
            None for the interpreter, or where the package is added or taken away: nothing is pinned then.
        """
        change = self.changes[position]
        wanted = change.before if position in hybrid else change.after
        if change.name == "python" or wanted is None:
            return None
        after = hybrid ^ {position}
        package = self.packages(after)[change.name]
        request = replace(self.request, python=self.python(hybrid), packages=self._free(after, change.name))
        if package.is_conda:
            assert request.conda is not None
            conda = replace(
                request.conda, pins={package.name: package.version}, builds={package.name: package.build}
            )
            return replace(request, pins={}, conda=conda)
        conda_part = request.conda
        if conda_part is not None:
            conda_part = replace(conda_part, pins={}, builds={})
        return replace(request, pins={package.name: package.version}, conda=conda_part)

    def _free(self, hybrid: Changes, name: str) -> tuple[str, ...]:
        """Every wheel by name, so that none is dropped; its version is for the solver to choose."""
        return tuple(
            sorted(p.name for n, p in self.packages(hybrid).items() if n != name and p.manager == "pip")
        )

    def locate(self, result: LockResult, start: Changes) -> Changes | None:
        """The hybrid that a solution is, None if it holds a version that neither end has."""
        if not isinstance(result, Lock):
            return None
        solved = {str(canonicalize_name(p.name)): (p.version, p.build) for p in result.packages}
        found = set()
        for position, change in enumerate(self.changes):
            if change.name == "python" and not result.is_conda:
                if position in start:
                    found.add(position)
                continue
            here = solved.get(change.name)
            before = None if change.before is None else (change.before.version, change.before.build)
            after = None if change.after is None else (change.after.version, change.after.build)
            if here == after:
                found.add(position)
            elif here != before:
                return None
        return frozenset(found) if self.check(frozenset(found), result) is not None else None


def _follows(change: PackageChange) -> bool:
    is_conda = change.after is not None and change.after.manager == "conda"
    return change.kind in ("rebuilt", "moved") and not is_conda


def closures(between: Between, provider: EnvironmentProvider) -> tuple[list[Changes], list[Changes]]:
    """What each change forces when it is made, and what it takes along when it is taken back.

    Args:
        between: The two ends.
        provider: Solves; it is asked twice for each change, with the end where it starts as its preference.

    Returns:
        Two sets for each change, itself included; it alone where the solver gives no hybrid.
    """
    size = len(between.changes)
    ends = (frozenset[int](), between.everything)
    requests = [between.request_for(end) for end in ends]
    prefer: list[list[int]] = [[], []]
    asked: dict[tuple[int, int], int] = {}
    for side, start in enumerate(ends):
        for position in range(size if size > 1 else 0):
            request = between.leaning_request(start, position)
            if request is not None:
                asked[(side, position)] = len(requests)
                requests.append(request)
                prefer.append([side])
    results = provider.lock_many(requests, prefer=prefer) if asked else []
    found: list[list[Changes]] = [[], []]
    for side, start in enumerate(ends):
        for position in range(size):
            number = asked.get((side, position))
            there = None if number is None else between.locate(results[number], start)
            along = frozenset([position]) if there is None else there ^ start
            found[side].append(along if position in along else frozenset([position]))
    return found[0], found[1]
