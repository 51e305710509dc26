"""Describes environments between two others: the good lock with some packages as the bad one has them.

An intermediate environment is asked for with every package pinned. What the solver would have to add or
change makes it another environment, which is no answer about this one: then there is no such intermediate
environment, as where nothing satisfies the pins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from bisect_env.engine.locking import SOLVERS, Requests
from bisect_env.environments.difference import PackageChange, difference
from bisect_env.environments.lock import Lock, LockedPackage, LockResult, UnsolvableError
from bisect_env.environments.lockfiles import make_lock
from bisect_env.environments.provider import EnvironmentProvider
from bisect_env.environments.request import CondaRequest, EnvironmentRequest
from bisect_env.matrix.grid import Index

Changes = frozenset[int]


@dataclass(frozen=True, slots=True)
class Between:
    """A pair of locks with the changes from one to the other.

    Attributes:
        good: The lock that passes.
        bad: The lock that fails.
        request: What the bad combination asked of its environment: index, channels, virtual packages and
            date.
        changes: What can be moved by itself, packages of axes first.
    """

    good: Lock
    bad: Lock
    request: EnvironmentRequest
    changes: tuple[PackageChange, ...]

    @classmethod
    def of(cls, good: Lock, bad: Lock, request: EnvironmentRequest, axes: Sequence[str]) -> Between:
        """Build the changes between two environments.

        Args:
            good: The lock that passes.
            bad: The lock that fails.
            request: Request of the bad combination.
            axes: Packages that axes move.
        """
        # The same version from another archive of an index, or another place: what a solver takes follows
        # from the interpreter. A conda build is chosen, and can carry a failure by itself.
        changes = tuple(change for change in difference(good, bad, axes) if not _follows(change))
        wheels = {p.url: p for lock in (good, bad) for p in lock.packages if p.manager == "pip"}
        if request.conda is None and not any(p.is_source for p in wheels.values()):
            # What neither end has is no environment between them: the solver need not look at it.
            archives = tuple(sorted(f"{url}#sha256={p.sha256}" for url, p in wheels.items()))
            request = replace(request, archives=archives)
        return cls(good, bad, request, changes)

    @property
    def everything(self) -> Changes:
        """Return all changes: the bad end."""
        return frozenset(range(len(self.changes)))

    def packages(self, intermediate: Changes) -> dict[str, LockedPackage]:
        """Return the packages of an intermediate environment by normalised name, without PyPI's Python."""
        found = {str(canonicalize_name(p.name)): p for p in self.good.packages}
        theirs = {str(canonicalize_name(p.name)): p for p in self.bad.packages}
        for position in intermediate:
            name = self.changes[position].name
            found.pop(name, None)
            if name in theirs:
                found[name] = theirs[name]
        return found

    def python(self, intermediate: Changes) -> str:
        """Return the interpreter of an intermediate environment, as a lock names it."""
        moved = any(self.changes[position].name == "python" for position in intermediate)
        return (self.bad if moved else self.good).python

    def request_for(self, intermediate: Changes) -> EnvironmentRequest:
        """Return an intermediate environment, every package pinned."""
        packages = self.packages(intermediate)
        wheels = {p.name: p.version for p in packages.values() if p.manager == "pip"}
        return replace(
            self.request,
            python=self.python(intermediate),
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

    def check(self, intermediate: Changes, result: LockResult) -> Lock | None:
        """Return the lock of an intermediate environment, None if nothing was solved, or another one."""
        if not isinstance(result, Lock):
            return None
        asked = {name: (p.version, p.build) for name, p in self.packages(intermediate).items()}
        solved = {str(canonicalize_name(p.name)): (p.version, p.build) for p in result.packages}
        return result if asked == solved else None

    def leaning_request(self, intermediate: Changes, position: int) -> EnvironmentRequest | None:
        """Return a request for one more change that lets the solver move whatever this change forces.

        Args:
            intermediate: Where it is made, or taken back if it holds it.
            position: The change.

        Returns:
            None for the interpreter, or where the package is added or taken away: nothing is pinned then.
        """
        change = self.changes[position]
        wanted = change.before if position in intermediate else change.after
        if change.name == "python" or wanted is None:
            return None
        after = intermediate ^ {position}
        package = self.packages(after)[change.name]
        request = replace(
            self.request, python=self.python(intermediate), packages=self._free(after, change.name)
        )
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

    def _free(self, intermediate: Changes, name: str) -> tuple[str, ...]:
        """Return every wheel by name, so that none is dropped; its version is for the solver to choose."""
        return tuple(
            sorted(p.name for n, p in self.packages(intermediate).items() if n != name and p.manager == "pip")
        )

    def locate(self, result: LockResult, start: Changes) -> Changes | None:
        """Return the intermediate environment of a solution; None if it holds a version of neither end."""
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


class Demands:
    """The wheels' requirements, which show without a solver which mixtures of two environments are sound.

    A demand that its own end does not meet, as in an environment that was put together by hand, is none.

    Args:
        between: The two ends, of wheels alone and with one interpreter.
        good: What each wheel of the good lock asks for, by name.
        bad: The same of the bad lock.
    """

    def __init__(
        self, between: Between, good: Mapping[str, Sequence[str]], bad: Mapping[str, Sequence[str]]
    ) -> None:
        self._between = between
        self._position = {change.name: n for n, change in enumerate(between.changes)}
        release = between.good.python
        self._markers: dict[str, str | AbstractSet[str]] = {
            **{name: str(value) for name, value in default_environment().items()},
            "python_version": ".".join(release.split(".")[:2]),
            "python_full_version": release if release.count(".") > 1 else f"{release}.0",
            "extra": "",
        }
        ends = (between.packages(frozenset()), good), (between.packages(between.everything), bad)
        self._asked: dict[tuple[str, str], list[Requirement]] = {}
        for packages, texts in ends:
            for name, package in packages.items():
                own = [r for text in texts.get(name, ()) if (r := self._binding(text, packages)) is not None]
                key = (name, package.version)
                # Of what both ends have, what both meet.
                self._asked[key] = [r for r in own if r in self._asked.get(key, own)]

    @classmethod
    def of(cls, between: Between, provider: EnvironmentProvider) -> Demands | None:
        """Read them from the prefixes of both ends; None where a solver has to be asked."""
        locks = (between.good, between.bad)
        if between.good.python != between.bad.python or any(
            p.manager != "pip" or p.is_source for lock in locks for p in lock.packages
        ):
            return None
        good, bad = (provider.requirements(lock) for lock in locks)
        return None if good is None or bad is None else cls(between, good, bad)

    def _binding(self, text: str, packages: Mapping[str, LockedPackage]) -> Requirement | None:
        """Return a demand that counts: for this interpreter, of no extra, and met where it comes from."""
        try:
            asked = Requirement(text)
        except InvalidRequirement:  # of a time when anything was written there
            return None
        if asked.marker is not None and not asked.marker.evaluate(self._markers):
            return None
        return asked if _meets(packages, asked) else None

    def unmet(self, intermediate: Changes) -> list[tuple[str, str]]:
        """Return the requirements that an environment does not meet, as (package, wanted); empty if sound."""
        packages = self._between.packages(intermediate)
        return [
            (name, str(canonicalize_name(asked.name)))
            for name, package in packages.items()
            for asked in self._asked[(name, package.version)]
            if not _meets(packages, asked)
        ]

    def lock(self, intermediate: Changes) -> Lock:
        """Return a sound intermediate environment: archives that the ends have, put together."""
        ends = self._between.good, self._between.bad
        return make_lock(ends[0].python, ends[0].platform, self._between.packages(intermediate).values())

    def closures(self) -> tuple[list[Changes], list[Changes]]:
        """Return, for each change, the changes that it forces, and those that are undone with it.

        Returns:
            Two sets for each change, itself included.
        """
        ends = (frozenset[int](), self._between.everything)
        positions = range(len(self._between.changes))
        forced, released = ([self._closure(end, position) for position in positions] for end in ends)
        return forced, released

    def _closure(self, end: Changes, position: int) -> Changes:
        along = {position}
        # Where a demand is not met, one of its two packages has moved and the other has not: the other one
        # moves as well. The loop ends, since no demand is unmet when every package has moved.
        while unmet := self.unmet(end ^ along):
            along |= {self._position[name] for pair in unmet for name in pair if name in self._position}
        return frozenset(along)


def _meets(packages: Mapping[str, LockedPackage], asked: Requirement) -> bool:
    found = packages.get(str(canonicalize_name(asked.name)))
    return found is not None and (
        bool(asked.url) or asked.specifier.contains(found.version, prereleases=True)
    )


def closures(between: Between, provider: EnvironmentProvider) -> tuple[list[Changes], list[Changes]]:
    """Return, for each change, the changes that it forces, and those that are undone with it.

    Args:
        between: The two ends.
        provider: Solves; it is asked twice for each change, with the end where it starts as its preference.

    Returns:
        Two sets for each change, itself included; it alone where the solver gives no intermediate
        environment.
    """
    ends = ((frozenset[int](), between.good), (between.everything, between.bad))

    def along(start: Changes, model: Lock, position: int) -> Changes:
        request = between.leaning_request(start, position)
        there = None if request is None else between.locate(provider.lock(request, model), start)
        found = frozenset([position]) if there is None else there ^ start
        return found if position in found else frozenset([position])

    with ThreadPoolExecutor(SOLVERS) as pool:
        forced, released = (
            list(pool.map(lambda n, s=start, m=model: along(s, m, n), range(len(between.changes))))
            for start, model in ends
        )
    return forced, released


class IntermediateRequests(Requests):
    """The environments that combinations of changes ask for.

    An index has a 1 at each change that is made.

    Args:
        between: The two ends.
        demands: What their wheels require; None where a solver has to be asked.
    """

    def __init__(self, between: Between, demands: Demands | None) -> None:
        self._between = between
        self._demands = demands

    def request(self, index: Index) -> EnvironmentRequest:
        """Return the environment, every package pinned."""
        return self._between.request_for(changes_of(index))

    def solve(self, index: Index, model: Lock | None, provider: EnvironmentProvider) -> LockResult:
        """Return the lock, or an error if requirements are not met, or the solver takes other packages."""
        changes = changes_of(index)
        if self._demands is None:
            found = super().solve(index, model, provider)
            if not isinstance(found, Lock) or self._between.check(changes, found) is not None:
                return found
            return UnsolvableError("the solver takes other packages than were asked for")
        if unmet := self._demands.unmet(changes):
            return UnsolvableError("; ".join(f"{name} asks for another {wanted}" for name, wanted in unmet))
        return self._demands.lock(changes)


def changes_of(index: Index) -> Changes:
    """Return the changes that an index names."""
    return frozenset(position for position, made in enumerate(index) if made)


def index_of(changes: Changes, size: int) -> Index:
    """Return the index of some of so many changes."""
    return tuple(int(position in changes) for position in range(size))
