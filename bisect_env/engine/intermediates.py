"""Intermediate environments: the good environment, with some packages replaced by those of the bad one.

An intermediate environment is requested with every package pinned. If no solution satisfies the pins, or the
solver would have to add or change packages, this intermediate environment does not exist.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName, default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from bisect_env.engine.requests import Requests
from bisect_env.environments.difference import PackageChange, difference
from bisect_env.environments.lock import Lock, LockedPackage, LockResult, UnsolvableError
from bisect_env.environments.lockfiles import make_lock
from bisect_env.environments.provider import EnvironmentProvider
from bisect_env.environments.request import CondaRequest, EnvironmentRequest
from bisect_env.matrix.grid import Index

Changes = frozenset[int]
_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")
"""The name of an extra in a marker."""


@dataclass(frozen=True, slots=True)
class Between:
    """A good and a bad lock, and the package changes that turn the good one into the bad one.

    Attributes:
        good: The lock of the environment that passes.
        bad: The lock of the environment that fails.
        request: The request of the bad combination, for its index, channels, virtual packages and date.
        changes: The changes that can be applied one by one; those of the axes' own packages come first.
    """

    good: Lock
    bad: Lock
    request: EnvironmentRequest
    changes: tuple[PackageChange, ...]

    @classmethod
    def of(cls, good: Lock, bad: Lock, request: EnvironmentRequest, axes: Sequence[str]) -> Between:
        """Compare two locks, and return them with the package changes between the two.

        Args:
            good: The lock of the environment that passes.
            bad: The lock of the environment that fails.
            request: The request of the bad combination.
            axes: Names of the axes' own packages.
        """
        # Ignore a change of the archive if the version is equal: the solver chooses the archive for the
        # interpreter. Builds of conda packages count, because a build alone can cause a failure.
        changes = tuple(change for change in difference(good, bad, axes) if not _follows(change))
        wheels = {p.url: p for lock in (good, bad) for p in lock.packages if p.manager == "pip"}
        if request.conda is None and not any(p.is_source for p in wheels.values()):
            # Exclude versions that neither end has, so that the solver need not consider them.
            archives = tuple(sorted(f"{url}#sha256={p.sha256}" for url, p in wheels.items()))
            request = replace(request, archives=archives)
        return cls(good, bad, request, changes)

    @property
    def everything(self) -> Changes:
        """Return the set of all package changes; applying all of them gives the bad environment."""
        return frozenset(range(len(self.changes)))

    def packages(self, intermediate: Changes) -> dict[str, LockedPackage]:
        """Return the packages of the good environment after applying some changes, by normalised name.

        Python is included only if it is a conda package.
        """
        found = {str(canonicalize_name(p.name)): p for p in self.good.packages}
        theirs = {str(canonicalize_name(p.name)): p for p in self.bad.packages}
        for position in intermediate:
            name = self.changes[position].name
            found.pop(name, None)
            if name in theirs:
                found[name] = theirs[name]
        return found

    def python(self, intermediate: Changes) -> str:
        """Return the Python version of the good environment after applying some changes."""
        moved = any(self.changes[position].name == "python" for position in intermediate)
        return (self.bad if moved else self.good).python

    def request_for(self, intermediate: Changes) -> EnvironmentRequest:
        """Return a request for the good environment with some changes applied and every package pinned."""
        packages = self.packages(intermediate)
        wheels = {self._asked_as(p): p.version for p in packages.values() if p.manager == "pip"}
        return replace(
            self.request,
            python=self.python(intermediate),
            pins=wheels,
            packages=(),
            conda=self._conda({p.name: p for p in packages.values() if p.is_conda}),
        )

    def _asked_as(self, package: LockedPackage) -> str:
        """Return the name of a package with the extras with which the environments are asked for."""
        extras = asked_extras(self.request).get(str(canonicalize_name(package.name)))
        return f"{package.name}[{','.join(sorted(extras))}]" if extras else package.name

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
        """Return the solver's lock if it contains exactly the wanted changes, else None.

        The changes are those that turn the good lock into the solver's. Returns None as well if the solver
        found no solution.
        """
        if not isinstance(result, Lock):
            return None
        asked = {name: (p.version, p.build) for name, p in self.packages(intermediate).items()}
        solved = {str(canonicalize_name(p.name)): (p.version, p.build) for p in result.packages}
        return result if asked == solved else None

    def leaning_request(self, intermediate: Changes, position: int) -> EnvironmentRequest | None:
        """Return a request that pins one changed package and leaves all other versions to the solver.

        The solution shows which other packages this change forces to change.

        Args:
            intermediate: The set of changes to start from.
            position: The change to apply, or to revert if `intermediate` contains it.

        Returns:
            None if the change is about the interpreter, or the package would be absent: nothing could be
            pinned.
        """
        change = self.changes[position]
        wanted = change.before if position in intermediate else change.after
        if change.name == "python" or wanted is None:
            return None
        after = intermediate ^ {position}
        others = self.packages(after)
        package = others[change.name]
        version, build = {package.name: package.version}, {package.name: package.build}
        conda = self.request.conda
        if conda is not None:
            is_conda = package.is_conda
            conda = replace(conda, pins=version if is_conda else {}, builds=build if is_conda else {})
        return replace(
            self.request,
            python=self.python(intermediate),
            pins={} if package.is_conda else version,
            # The solver must install these packages, but may choose their versions.
            packages=tuple(
                sorted(p.name for n, p in others.items() if n != change.name and p.manager == "pip")
            ),
            conda=conda,
        )

    def locate(self, result: LockResult, start: Changes) -> Changes | None:
        """Return the set of changes that lead from the good environment to a solver's solution.

        Returns None if there is no solution, or if some version is neither that of the good nor that of the
        bad environment.

        Args:
            result: The result of the solver.
            start: The set of changes from which the solver started.
        """
        if not isinstance(result, Lock):
            return None
        solved = {str(canonicalize_name(p.name)): (p.version, p.build) for p in result.packages}
        found = set()
        for position, change in enumerate(self.changes):
            after = None if change.after is None else (change.after.version, change.after.build)
            is_applied = solved.get(change.name) == after
            if change.name == "python" and not result.is_conda:
                is_applied = position in start
            if is_applied:
                found.add(position)
        return frozenset(found) if self.check(frozenset(found), result) is not None else None


def _follows(change: PackageChange) -> bool:
    is_conda = change.after is not None and change.after.manager == "conda"
    return change.kind in ("rebuilt", "moved") and not is_conda


def asked_extras(request: EnvironmentRequest) -> dict[str, frozenset[str]]:
    """Return the extras with which packages are asked for, by normalised name of the package."""
    found: dict[str, frozenset[str]] = {}
    for text in (*request.pins, *request.packages):
        with contextlib.suppress(InvalidRequirement):
            asked = Requirement(text)
            name = str(canonicalize_name(asked.name))
            if asked.extras:
                found[name] = found.get(name, frozenset()) | asked.extras
    return found


class Demands:
    """The requirements that the wheels of a good and a bad environment declare.

    They show without a solver whether a mixture of packages from both environments is sound.

    A mixture is sound if it fulfils all requirements. Requirements that are not even fulfilled in the
    environment of their wheel (for example because it was installed by hand) are ignored.

    A requirement of an extra counts if the extra is asked for. Lists such as `pip freeze` state no extras;
    an extra counts as asked for if both environments fulfil all of its requirements.

    Attributes:
        extras: The extras that count, by package name.

    Args:
        between: The two locks, which must contain only wheels and have the same Python.
        good: The requirements of each wheel of the good lock, by package name.
        bad: The requirements of each wheel of the bad lock, by package name.
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
        }
        ends = (between.packages(frozenset()), good), (between.packages(between.everything), bad)
        self.extras = asked_extras(between.request)
        for name in good.keys() & bad.keys() & ends[0][0].keys() & ends[1][0].keys():
            held = [self._held_extras(texts.get(name, ()), packages) for packages, texts in ends]
            if both := held[0] & held[1]:
                self.extras[name] = self.extras.get(name, frozenset()) | both
        self._asked: dict[tuple[str, str], list[Requirement]] = {}
        for packages, texts in ends:
            for name, package in packages.items():
                own = [
                    r
                    for text in texts.get(name, ())
                    if (r := self._binding(name, text, packages)) is not None
                ]
                key = (name, package.version)
                # Keep the requirements that are equal at both ends and fulfilled at both.
                self._asked[key] = [r for r in own if r in self._asked.get(key, own)]

    @classmethod
    def of(cls, between: Between, provider: EnvironmentProvider) -> Demands | None:
        """Read the requirements of all wheels of a good and a bad environment.

        Returns None if they cannot be read or are not enough, so that a solver must be used.

        """
        locks = (between.good, between.bad)
        if between.good.python != between.bad.python or any(
            p.manager != "pip" or p.is_source for lock in locks for p in lock.packages
        ):
            return None
        good, bad = (provider.requirements(lock) for lock in locks)
        return None if good is None or bad is None else cls(between, good, bad)

    def _held_extras(self, texts: Sequence[str], packages: Mapping[str, LockedPackage]) -> frozenset[str]:
        """Return the extras of a package all of whose requirements an environment fulfils.

        Args:
            texts: The requirements of the package.
            packages: The packages of the environment.
        """
        held: dict[str, bool] = {}
        for text in texts:
            with contextlib.suppress(InvalidRequirement):
                asked = Requirement(text)
                for extra in _EXTRA.findall(str(asked.marker or "")):
                    if self._applies(asked, extra) and not self._applies(asked, ""):
                        held[extra] = held.get(extra, True) and _meets(packages, asked)
        return frozenset(extra for extra, is_held in held.items() if is_held)

    def _applies(self, asked: Requirement, extra: str) -> bool:
        try:
            return asked.marker is None or asked.marker.evaluate({**self._markers, "extra": extra})
        except (UndefinedComparison, UndefinedEnvironmentName):  # such as `os_name ~= "posix"`
            return False

    def _binding(self, name: str, text: str, packages: Mapping[str, LockedPackage]) -> Requirement | None:
        """Return a requirement if it has to be fulfilled in mixed environments, else None.

        It has to be if it applies to this Python version and the packages of its own environment fulfil it.

        Args:
            name: Name of the package that states it.
            text: The requirement as the wheel states it.
            packages: The packages of the end that contains the wheel.
        """
        try:
            asked = Requirement(text)
        except InvalidRequirement:  # old packages may contain invalid text
            return None
        if not any(self._applies(asked, extra) for extra in ("", *self.extras.get(name, ()))):
            return None
        return asked if _meets(packages, asked) else None

    def unmet(self, intermediate: Changes) -> list[tuple[str, str]]:
        """Return the requirements that are not fulfilled if the given changes are applied.

        Each is a pair (package, required package). The list is empty if the environment is sound.
        """
        packages = self._between.packages(intermediate)
        return [
            (name, str(canonicalize_name(asked.name)))
            for name, package in packages.items()
            for asked in self._asked[(name, package.version)]
            if not _meets(packages, asked)
        ]

    def lock(self, intermediate: Changes) -> Lock:
        """Return the lock of an intermediate environment: the good one, with the given changes of packages.

        Its archives are those of the good and of the bad lock. The environment must be sound, which is not
        checked.
        """
        ends = self._between.good, self._between.bad
        return make_lock(ends[0].python, ends[0].platform, self._between.packages(intermediate).values())

    def closures(self) -> tuple[list[Changes], list[Changes]]:
        """Return which other changes each package change needs, computed from the wheels' requirements.

        First, the changes that must be applied together with each change in the good environment; second,
        those that must be reverted together with each change in the bad environment.

        Returns:
            Two lists with one set per change; each set contains the change itself.
        """
        ends = (frozenset[int](), self._between.everything)
        positions = range(len(self._between.changes))
        forced, released = ([self._closure(end, position) for position in positions] for end in ends)
        return forced, released

    def _closure(self, end: Changes, position: int) -> Changes:
        along = {position}
        # If a requirement is unmet, one of its two packages was changed and the other was not; change the
        # other one as well. The loop ends, because all requirements are met when all packages are changed.
        while unmet := self.unmet(end ^ along):
            along |= {self._position[name] for pair in unmet for name in pair if name in self._position}
        return frozenset(along)


def _meets(packages: Mapping[str, LockedPackage], asked: Requirement) -> bool:
    found = packages.get(str(canonicalize_name(asked.name)))
    return found is not None and (
        bool(asked.url) or asked.specifier.contains(found.version, prereleases=True)
    )


class LeaningRequests(Requests):
    """The solver requests that show which other packages each package change needs.

    Each pins one changed package only. An index consists of an end (0: the good environment, 1: the bad one)
    and the position of the change to apply there, or to revert.

    Args:
        between: The two locks.

    Attributes:
        indices: The combinations of an end and a change for which there is a request.
    """

    def __init__(self, between: Between) -> None:
        self._between = between
        self._ends = ((frozenset[int](), between.good), (between.everything, between.bad))
        self._requests = {
            (end, position): request
            for end, (start, _) in enumerate(self._ends)
            for position in range(len(between.changes))
            if (request := between.leaning_request(start, position)) is not None
        }
        self.indices: list[Index] = list(self._requests)

    def request(self, index: Index) -> EnvironmentRequest:
        """Return the request that pins the package of a change."""
        end, position = index
        return self._requests[end, position]

    def solve(self, index: Index, _model: Lock | None, provider: EnvironmentProvider) -> LockResult:
        """Return the lock for a change at one end. The solver keeps the other versions if possible."""
        return super().solve(index, self._ends[index[0]][1], provider)

    def closures(self, locks: Mapping[Index, Lock]) -> tuple[list[Changes], list[Changes]]:
        """Return which other changes each package change needs, as found by a solver.

        See `Demands.closures`. A set contains only the change itself if the solver has found no intermediate
        environment.

        Args:
            locks: The locks of the requests that have a solution.
        """
        positions = range(len(self._between.changes))
        forced, released = ([self._along(locks, end, position) for position in positions] for end in (0, 1))
        return forced, released

    def _along(self, locks: Mapping[Index, Lock], end: int, position: int) -> Changes:
        start, lock = self._ends[end][0], locks.get((end, position))
        there = None if lock is None else self._between.locate(lock, start)
        found = frozenset([position]) if there is None else there ^ start
        return found if position in found else frozenset([position])


class IntermediateRequests(Requests):
    """The solver requests for environments in which some package changes are applied.

    The index of a combination has a 1 for each change that is applied, and a 0 for the others.

    Args:
        between: The two locks.
        demands: The requirements of their wheels; None to use a solver.
    """

    def __init__(self, between: Between, demands: Demands | None) -> None:
        self._between = between
        self._demands = demands

    def request(self, index: Index) -> EnvironmentRequest:
        """Return the request for the environment of a combination of changes, with every package pinned."""
        return self._between.request_for(changes_of(index))

    def solve(self, index: Index, model: Lock | None, provider: EnvironmentProvider) -> LockResult:
        """Return the lock of a combination of changes, or an error if no such environment exists.

        It does not exist if requirements are unfulfilled, or if the solver would have to change further
        packages.
        """
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
    """Return the positions at which an index has a 1: the package changes that are applied."""
    return frozenset(position for position, made in enumerate(index) if made)


def index_of(changes: Changes, size: int) -> Index:
    """Return the index with a 1 at the position of each given change and a 0 elsewhere.

    The index has `size` positions.
    """
    return tuple(int(position in changes) for position in range(size))
