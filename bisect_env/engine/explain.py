"""Finds the packages that carry the failure by trials between the last good and first bad environment."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from bisect_env.answers.explanation import ChangedPackage, Explanation, IntermediateEnvironment
from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.engine import events
from bisect_env.engine.locking import SOLVERS, Prepared, environment_request
from bisect_env.engine.reuse import trial_key
from bisect_env.engine.single import Single, SingleTrials
from bisect_env.engine.state import Tally, build_cost
from bisect_env.engine.stored import StoredCombination, refuse_local, stored_combination
from bisect_env.environments.difference import PackageChange, PackageState, difference
from bisect_env.environments.lock import Lock, LockedPackage, LockResult
from bisect_env.environments.lockfiles import make_lock, may_be_installed
from bisect_env.environments.provider import EnvironmentProvider
from bisect_env.environments.request import CondaRequest, EnvironmentRequest
from bisect_env.errors import NoEnvironmentError, UsageError
from bisect_env.matrix.grid import Combination
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.schema import CommitAxis, PackageAxis, ValueAxis
from bisect_env.search.culprits import CheckEnvironment, CulpritSearch, Done
from bisect_env.search.numeric import clopper_pearson
from bisect_env.storage.entries import (
    EXPLAINED,
    CombinationState,
    CombinationStatus,
    Study,
    StudyDefinition,
    StudyStatus,
    counts_of,
)
from bisect_env.storage.store import Store
from bisect_env.storage.study_trials import StudyTrials

# --------------------------------------------------------------------------------------------------
# Environments between two others: the good lock with some of the changed packages as the bad one has them.
#
# An intermediate environment is asked for with every package pinned. What the solver would have to add or
# change makes it another environment, which is no answer about this one: then there is no such intermediate
# environment, as where nothing satisfies the pins.

Changes = frozenset[int]


@dataclass(frozen=True, slots=True)
class Between:
    """Two locks and what changed from one to the other.

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
        """Sort out what changed.

        Args:
            good: The lock that passes.
            bad: The lock that fails.
            request: Of the bad combination.
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
        """All changes: the bad end."""
        return frozenset(range(len(self.changes)))

    def packages(self, intermediate: Changes) -> dict[str, LockedPackage]:
        """Packages of an intermediate environment by normalised name; a PyPI environment's Python is none."""
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
        """One change made in an intermediate environment, the solver free to move what that forces.

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
        """The intermediate environment that was solved, None if it holds a version that neither end has."""
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
    """Requirements between the wheels of two environments, to tell without a solver which mixtures are sound.

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
        """Requirements that an intermediate environment does not meet, and whose; empty if it is sound."""
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
        """For each change the changes that it forces, and those that are undone with it.

        Returns:
            Two sets for each change, itself included.
        """
        ends = (frozenset[int](), self._between.everything)
        positions = range(len(self._between.changes))
        forced, released = ([self._closure(end, position) for position in positions] for end in ends)
        return forced, released

    def _closure(self, end: Changes, position: int) -> Changes:
        along = {position}
        # Whoever asks in vain for something, and what is asked for, are of different ends: the one of them
        # that has not moved follows. With everything moved nothing is unmet, so that this ends.
        while unmet := self.unmet(end ^ along):
            along |= {self._position[name] for pair in unmet for name in pair if name in self._position}
        return frozenset(along)


def _meets(packages: Mapping[str, LockedPackage], asked: Requirement) -> bool:
    found = packages.get(str(canonicalize_name(asked.name)))
    return found is not None and (
        bool(asked.url) or asked.specifier.contains(found.version, prereleases=True)
    )


def closures(between: Between, provider: EnvironmentProvider) -> tuple[list[Changes], list[Changes]]:
    """For each change the changes that it forces, and those that are undone with it.

    Args:
        between: The two ends.
        provider: Solves; it is asked twice for each change, with the end where it starts as its preference.

    Returns:
        Two sets for each change, itself included; it alone where the solver gives no intermediate
        environment.
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
    results = provider.lock_many(requests, SOLVERS, prefer=prefer) if asked else []
    found: list[list[Changes]] = [[], []]
    for side, start in enumerate(ends):
        for position in range(size):
            number = asked.get((side, position))
            there = None if number is None else between.locate(results[number], start)
            along = frozenset([position]) if there is None else there ^ start
            found[side].append(along if position in along else frozenset([position]))
    return found[0], found[1]


# --------------------------------------------------------------------------------------------------
# Which package carries the failure: trials of environments between last good and first bad.
#
# They are a study of their own, whose axes are the packages that changed, so that what was measured is
# kept, shared and resumed like everything else.

ABSENT = "absent"
_FREE = 8
"""Trials at most that are run at once where fewer were asked for."""
_AXES_SHARE = 1 / 3
"""Prior share of the packages that axes move: those along with them are often to blame."""

MakeTrials = Callable[[str], SingleTrials]
"""Runs trials that are recorded in the study of this id."""


@dataclass(slots=True)
class _Seconds:
    build: float | None = None
    trial: float | None = None


@dataclass
class CulpritStudy:
    """The search for the packages that carry a failure.

    Args:
        matrix: Whose study was answered.
        study: That study.
        store: Open for writing.
        provider: Solves intermediate environments.
        make_trials: Runs their trials.
        tell: Hears, in words, what is being done.
        stopped: Whether the user wants to stop.
        good: The combination that passes; the last good one if None.
        bad: The one that fails; the first bad one if None.
        confidence: Posterior at which the search ends.
        max_trials: Where to give up.

    Raises:
        UsageError: There are no two such combinations, or no package differs between them.
    """

    matrix: Matrix
    study: Study
    store: Store
    provider: EnvironmentProvider
    make_trials: MakeTrials
    tell: Callable[[str], None] = lambda _text: None
    stopped: Callable[[], bool] = lambda: False
    good: str | None = None
    bad: str | None = None
    confidence: float = 0.95
    max_trials: int = 2000
    _locks: dict[Changes, Lock] = field(default_factory=dict)
    _seconds: _Seconds = field(default_factory=_Seconds)
    _last: Changes | None = None
    _demands: Demands | None = None
    _trials: StudyTrials = field(init=False)
    _tallies: defaultdict[Changes, Tally] = field(default_factory=lambda: defaultdict(Tally))

    def __post_init__(self) -> None:
        self._good = stored_combination(self.store, self.study, self.good or "last-good", "--good")
        self._bad = stored_combination(self.store, self.study, self.bad or "first-bad", "--bad")
        for end in (self._good, self._bad):
            refuse_local(end)
        self._between = self._compare()
        self._trials = self.store.study_trials(self.study.id)
        self._trials.look()
        self._ends = self._counts(self._good), self._counts(self._bad)
        if not self._ends[1][0]:
            raise UsageError(
                f"{self._bad.combination} was never seen to fail", remedy="name another with `--bad`"
            )
        self._names = [
            (change.name, _label(change.before, change.after), _label(change.after, change.before))
            for change in self._between.changes
        ]
        self._locks = {frozenset(): self._good.lock, self._between.everything: self._bad.lock}

    @property
    def changes(self) -> int:
        """Number of packages that changed."""
        return len(self._names)

    def run(self) -> Explanation:
        """Search until it is known, nothing more can be learnt, or the limit is reached.

        Returns:
            What was found; stored in the study, unless the user stopped it.
        """
        own = self._open()
        self._demands = Demands.of(self._between, self.provider)
        if self._demands is not None:
            forced, released = self._demands.closures()
        else:
            if self.changes > 1:
                self.tell(f"asking the solver what each of {self.changes} changes needs")
            forced, released = closures(self._between, self.provider)
        search = CulpritSearch(
            self.changes,
            *self._ends,
            forced=forced,
            released=released,
            weights=self._weights(),
            confidence=self.confidence,
            min_rate=self.matrix.file.search.min_crash_rate,
            stated_rate=self.matrix.file.search.crash_rate,
            is_sound=lambda intermediate: self._demands is None or not self._demands.unmet(intermediate),
        )
        self._replay(search, own)
        trials = self.make_trials(own.id)
        is_sure = self.changes == 1
        while self.changes > 1 and not self.stopped():
            price = build_cost(self._seconds.build, self._seconds.trial)
            step = search.next_step(build_cost=price)
            if isinstance(step, Done) or self._tried(search) >= self.max_trials:
                is_sure = isinstance(step, Done) and step.is_sure
                break
            if isinstance(step, CheckEnvironment):
                self._solve(search, own, step.intermediate)
            else:
                self._try(search, own, trials, step.intermediate, step.trials)
        found = self._explanation(search, is_sure=is_sure, unsolvable=search.infeasible)
        if not self.stopped():
            self.store.record_decision(self.study.id, EXPLAINED, found.model_dump(mode="json"))
            self.store.finish_study(
                own.id,
                StudyStatus.FINISHED,
                VerdictDocument(kind="explanation", reason=found.sentence, sentence=found.sentence),
            )
        else:
            self.store.finish_study(own.id, StudyStatus.INTERRUPTED, None)
        return found

    # -- what is compared ----------------------------------------------------------------------------------

    def _compare(self) -> Between:
        good, bad = self._good, self._bad
        values = [name for name, axis in self.matrix.file.axes.items() if isinstance(axis, ValueAxis)]
        moved = [name for name in values if good.combination[name] != bad.combination[name]]
        if moved:
            raise UsageError(
                f"{good.combination} and {bad.combination} differ in the value of {', '.join(moved)}",
                tried="comparing their environments",
                remedy="a value is no package: name two combinations in which it is the same, with `--good` "
                "and `--bad`",
            )
        built = [name for name, axis in self.matrix.file.axes.items() if isinstance(axis, CommitAxis)]
        if any(good.combination[name] != bad.combination[name] for name in built):
            raise UsageError(
                f"{good.combination} and {bad.combination} are commits: no other package is looked for",
                remedy="the commit is the answer, and `bisect-env report` has its chapter; from releases to "
                "a commit leads `bisect-env narrow`",
            )
        request = environment_request(self.matrix, bad.combination)
        between = Between.of(good.lock, bad.lock, request, self.study.definition.packages)
        if good.lock.image != bad.lock.image:
            raise UsageError(
                f"{good.combination} and {bad.combination} are different container images",
                remedy="what is in an image is not known to this tool: give the matrix packages as axes",
            )
        if not between.changes:
            raise UsageError(
                f"no package differs between {good.combination} and {bad.combination}",
                remedy="`bisect-env diff` shows what does",
            )
        return between

    def _counts(self, one: StoredCombination) -> tuple[int, int]:
        """Bad trials and trials of everything that is the same measurement."""
        values = {n for n, axis in self.matrix.file.axes.items() if isinstance(axis, ValueAxis)}
        same = [
            state.combination
            for state in self.store.combinations(self.study.id)
            if state.lock_hash == one.lock.content_hash
            and all(state.combination[name] == one.combination[name] for name in values)
        ]
        counts = counts_of(self._trials.everything())
        found = [counts[combination] for combination in same if combination in counts]
        return sum(c.bad for c in found), sum(c.counted for c in found)

    def _weights(self) -> list[float]:
        own = sum(change.of_axis for change in self._between.changes)
        along = self.changes - own
        if not own or not along:
            return [1.0] * self.changes
        return [
            _AXES_SHARE / own if change.of_axis else (1 - _AXES_SHARE) / along
            for change in self._between.changes
        ]

    # -- its own study -------------------------------------------------------------------------------------

    def _open(self) -> Study:
        # A failure is what it is in the study that is explained, whichever trials showed that.
        target = self._trials.target
        facts = (
            *(self.matrix.digest, target.signature),
            *(self._good.lock.content_hash, self._bad.lock.content_hash),
        )
        definition = self.study.definition
        kept = {**definition.settings, "explains": self.study.id}
        own = self.store.open_study(
            StudyDefinition(
                name=f"{self.study.name}: culprit",
                digest=hashlib.sha256("|".join(("culprit", *facts)).encode()).hexdigest(),
                matrix_path=definition.matrix_path,
                matrix_text=definition.matrix_text,
                description=f"packages between {self._good.combination} and {self._bad.combination}",
                grid=[
                    {"name": name, "kind": "package", "direction": "regression", "values": [old, new]}
                    for name, old, new in self._names
                ],
                settings=kept,
                target=target,
                exclude_newer=definition.exclude_newer,
                version=definition.version,
                host=definition.host,
                user=definition.user,
            )
        )
        for intermediate, lock in self._locks.items():
            self._save(own, intermediate, lock)
        return own

    def _save(self, own: Study, intermediate: Changes, lock: Lock | None, why: str = "") -> None:
        combination = self._combination(intermediate)
        if lock is None:
            state = CombinationState(combination, CombinationStatus.UNSOLVABLE, why)
        else:
            self.store.save_locks(own.id, [lock])
            state = CombinationState(combination, CombinationStatus.SOLVABLE, "", lock.content_hash)
        self.store.save_combinations(own.id, [state])

    def _combination(self, intermediate: Changes) -> Combination:
        return Combination(
            tuple((name, new if i in intermediate else old) for i, (name, old, new) in enumerate(self._names))
        )

    def _intermediate(self, combination: Combination) -> Changes:
        values = combination.as_dict()
        return frozenset(i for i, (name, _, new) in enumerate(self._names) if values[name] == new)

    def _replay(self, search: CulpritSearch, own: Study) -> None:
        """What an earlier command learnt."""
        for state in self.store.combinations(own.id):
            intermediate = self._intermediate(state.combination)
            if state.lock_hash is None:
                search.mark(intermediate, feasible=False)
            elif (lock := self.store.lock(state.lock_hash)) is not None and may_be_installed(lock):
                self._locks[intermediate] = lock
                runnable = state.status == CombinationStatus.SOLVABLE
                search.mark(intermediate, feasible=runnable)
        for combination, counts in counts_of(self.store.trials(own.id)).items():
            if counts.counted:
                search.tell(self._intermediate(combination), hits=counts.bad, trials=counts.counted)

    # -- solving -------------------------------------------------------------------------------------------

    def _solve(self, search: CulpritSearch, own: Study, intermediate: Changes) -> None:
        lock: Lock | None
        if self._demands is not None:
            unmet = self._demands.unmet(intermediate)
            lock = None if unmet else self._demands.lock(intermediate)
            why = "; ".join(f"{name} asks for another {wanted}" for name, wanted in unmet)
        else:
            (result,) = self.provider.lock_many([self._between.request_for(intermediate)])
            lock = self._between.check(intermediate, result)
            why = "" if isinstance(result, Lock) else result.message
        self._save(own, intermediate, lock, why or "the solver takes other packages than were asked for")
        search.mark(intermediate, feasible=lock is not None)
        if lock is not None:
            self._locks[intermediate] = lock

    # -- trying --------------------------------------------------------------------------------------------

    def _try(
        self, search: CulpritSearch, own: Study, trials: SingleTrials, intermediate: Changes, block: int
    ) -> None:
        single = self._single(intermediate)
        # Idle workers cost nothing, and a block is as long as its longest trial.
        block = max(block, min(trials.slots, _FREE))
        if intermediate != self._last:
            self.tell(f"trying {self._in_words(intermediate)}")
            self._last = intermediate

        def wanted(tally: Tally, running: int) -> int:
            done = tally.good + tally.bad + tally.other
            return 0 if tally.why_aside() else block - done - running

        try:
            tally = trials.run(single, wanted)
        except NoEnvironmentError as error:
            self._set_aside(search, own, intermediate, CombinationStatus.UNBUILDABLE, error.what)
            return
        if tally.good + tally.bad:
            search.tell(intermediate, hits=tally.bad, trials=tally.good + tally.bad)
        known = self._tallies[intermediate]
        known.add(tally)
        if (why := known.why_aside()) is not None:
            self._set_aside(search, own, intermediate, CombinationStatus.SET_ASIDE, why)

    def _tried(self, search: CulpritSearch) -> int:
        """Count the trials by now, those that failed in another way included."""
        counted = sum(number for _, number in search.counts.values())
        return counted + sum(tally.other for tally in self._tallies.values())

    def _set_aside(
        self, search: CulpritSearch, own: Study, intermediate: Changes, status: CombinationStatus, why: str
    ) -> None:
        self.tell(f"warning: {self._in_words(intermediate)}: {why}")
        self.store.set_combination(own.id, self._combination(intermediate), status, why)
        search.mark(intermediate, feasible=False)

    def heard(self, event: events.Event) -> None:
        """Take note of the durations in a trial's event."""
        if isinstance(event, events.Built):
            self._seconds.build = event.seconds
        elif isinstance(event, events.TrialFinished):
            self._seconds.trial = event.record.duration

    def _single(self, intermediate: Changes) -> Single:
        lock = self._locks[intermediate]
        grid = self.study.grid
        index = grid.index(self._bad.combination)
        key = trial_key(self.matrix, Prepared(grid, {index: lock}, {}, {}), index)
        return Single(self._combination(intermediate), lock, key, self._values(intermediate))

    def _values(self, intermediate: Changes) -> Combination:
        """Return what the command sees of the axes: of each package the version that is there."""
        moved = {self._between.changes[i].name for i in intermediate}
        still = {c.name for i, c in enumerate(self._between.changes) if i not in intermediate} - moved
        axes = self.matrix.file.axes
        return Combination(
            tuple(
                (name, self._good.combination[name] if _moves(axes[name]) in still else value)
                for name, value in self._bad.combination.items
            )
        )

    # -- telling -------------------------------------------------------------------------------------------

    def _in_words(self, intermediate: Changes) -> str:
        names = [self._names[i][0] for i in sorted(intermediate)]
        return f"{', '.join(names)} as in the bad one ({len(names)} of {self.changes})"

    def _explanation(self, search: CulpritSearch, *, is_sure: bool, unsolvable: int) -> Explanation:
        answer = search.answer
        moved = [
            ChangedPackage(name=change.name, old=old, new=new, of_axis=change.of_axis)
            for change, (_, old, new) in zip(self._between.changes, self._names, strict=True)
        ]
        tried: Mapping[Changes, tuple[int, int]] = {
            **search.counts,
            frozenset(): _sum(self._ends[0], search.counts.get(frozenset())),
            self._between.everything: _sum(self._ends[1], search.counts.get(self._between.everything)),
        }
        found = Explanation(
            study=self.study.id,
            good=self._good.combination.as_dict(),
            bad=self._bad.combination.as_dict(),
            changes=tuple(moved),
            kind=answer.kind,
            culprits=tuple(sorted(answer.changes)),
            tied=tuple(tuple(sorted(other)) for other in answer.tied),
            probability=1.0 if self.changes == 1 else answer.probability,
            is_sure=is_sure or self.changes == 1,
            intermediates=tuple(
                IntermediateEnvironment(
                    moved=tuple(sorted(one)), bad=hits, trials=trials, interval=clopper_pearson(hits, trials)
                )
                for one, (hits, trials) in tried.items()
                if trials
            ),
            unsolvable=unsolvable,
        )
        return found.model_copy(update={"sentence": found.in_words()})


def _moves(axis: object) -> str:
    return axis.canonical_package if isinstance(axis, PackageAxis) else ""


def _sum(one: tuple[int, int], other: tuple[int, int] | None) -> tuple[int, int]:
    return one if other is None else (one[0] + other[0], one[1] + other[1])


def _label(state: PackageState | None, other: PackageState | None) -> str:
    if state is None:
        return ABSENT
    if other is not None and other.label == state.label:
        return f"{state.label} ({state.source or state.manager}, {state.sha256[:8]})"
    return state.label
