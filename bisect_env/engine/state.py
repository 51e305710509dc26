"""Decides what a study does next from what it knows. Pure: no clock, process or database.

Facts are answers of solvers, builds and trials. `decide` says which trials to start, which environments to
make and which combinations to lock; who carries that out tells the state of it before it asks again.
Environments come first: no trial is started before its environment is there, for a worker that waits for a
build would hold its GPU all the while. So combinations are locked and built in the order in which the search
wants them, and what it is likely to want next is made ahead while trials run, a little at a time: it may
change its mind.
"""

from __future__ import annotations

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bisect_env.engine.locking import Prepared, of_commits
from bisect_env.engine.plans import UNKNOWN_COST
from bisect_env.errors import InfrastructureError, NoEnvironmentError, UsageError
from bisect_env.matrix.grid import AxisKind, Index
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.schema import CommitAxis
from bisect_env.search.bisect import BUILT_AT_ONCE
from bisect_env.search.plan import Plan
from bisect_env.trials.records import Evidence, Outcome, TrialRecord

OTHER_BEFORE_ASIDE = 3
"""Other failures of a combination without any counted trial."""
OTHER_PER_COUNTED = 4.0
"""With counted trials: other failures for each of them, once there are `OTHER_MANY`."""
OTHER_MANY = 20
BUILDS_BEFORE_UNBUILDABLE = 3
"""Failed builds of one environment before it counts as unbuildable."""
LOSSES_FOR_FINDING = 3
"""Different hosts on which trials of one combination were lost before that is told as a finding."""
VOIDS_BEFORE_STOP = 10
"""Void trials in a row after which the study stops and blames the infrastructure. The same number holds for
builds that failed for temporary reasons while no environment at all could be made."""
CHANGES_BEFORE_STOP = 3
"""Times that trials may change the files of one environment before the study stops."""
TRIED_BEFORE_BLAME = 3
"""Combinations in which a command that cannot be run is tried before the matrix is to blame."""
BACKFILL = 0.03
"""While wanted environments are being made, others are tried that tell at least this share of what the
wanted ones would: a trial on an idle GPU costs nothing, but a trial that tells nothing is one too many."""
BACKFILLS, MUCH = 10, 0.2
"""After so many of them at each place for trials since the last environment came, a further one must tell
this share: where a trial takes a second and a build a minute they would pile up."""
BUILDERS = 4
"""Places for trials for each build that is made ahead; hosts make about as many at the same time."""
BUILDS_AT_ONCE = (2, BUILT_AT_ONCE)
"""Builds under way, at least and at most: what is made and what is next, so that no host waits for us in
between; as many as there are places for trials, since at first each of them waits for an environment."""
LOCKS_AT_ONCE = 8
"""Combinations that are given to be locked at a time: a solver mostly waits for the index."""
FLAKY_FROM = 4
"""Trials of one combination from which on failures do not look certain any more: what fails surely is not
asked so often."""
THOUGHT_THROUGH = 20_000
"""Combinations up to which looking ahead takes less time than it saves."""
_HOSTS = "allow_host:"
"""Stands in what is said of a program that is the host's: no combination can change that."""
_STRETCH = 2
"""L of `expected_builds`: played for intervals of 4 to 10 among 50, it takes fewer builds than 1, 3 or 4."""
_SHORT = 4
"""Lines of a builder's words that are told as a whole."""


# -- small decisions ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Tally:
    """Counts of the trials of one group of combinations, by their evidence.

    A combination that never passes and never shows the target, because it always fails another way, hides the
    answer: after a few such trials it is set aside, as `git bisect skip` would. One that fails the other way
    only now and then goes on; its other failures are shown and never counted.

    Attributes:
        good: Passes.
        bad: Target outcomes.
        other: Failures of another kind.
        void: Trials that do not count because of a fault of the infrastructure.
        skip: Trials that said nothing can be learnt.
        failed_builds: Builds of its environment that failed.
        not_runnable: Trials whose command could not be run at all.
        lost_on: Hosts that went away, or lost their GPU, under its trials.
    """

    good: int = 0
    bad: int = 0
    other: int = 0
    void: int = 0
    skip: int = 0
    failed_builds: int = 0
    not_runnable: int = 0
    lost_on: set[str] = field(default_factory=set)

    def count(self, evidence: Evidence) -> None:
        """Add one trial."""
        setattr(self, str(evidence), getattr(self, str(evidence)) + 1)

    def add(self, other: Tally) -> None:
        """Add the trials of another tally."""
        for evidence in Evidence:
            setattr(self, str(evidence), getattr(self, str(evidence)) + getattr(other, str(evidence)))
        self.lost_on |= other.lost_on

    def many_lost(self) -> str | None:
        """Return a reason to exclude a combination whose trials took several hosts down, else None."""
        if len(self.lost_on) < LOSSES_FOR_FINDING:
            return None
        return f"its trials were lost on {len(self.lost_on)} hosts ({', '.join(sorted(self.lost_on))})"

    def why_aside(self) -> str | None:
        """Return why no more trials should run here, or None."""
        counted = self.good + self.bad
        if counted == 0 and (lost := self.many_lost()):
            return lost
        if self.skip:
            return "the trial said that nothing can be learnt here"
        if counted == 0 and self.other >= OTHER_BEFORE_ASIDE:
            return f"always fails in another way ({self.other} of {self.other} trials)"
        if self.other >= OTHER_MANY and self.other > OTHER_PER_COUNTED * counted:
            return f"mostly fails in another way ({self.other} of {self.other + counted} trials)"
        return None


@dataclass(slots=True)
class Mean:
    """A mean that forgets nothing."""

    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        """Take a value in."""
        self.total += value
        self.count += 1

    @property
    def value(self) -> float | None:
        """Return the mean, None before the first value."""
        return self.total / self.count if self.count else None


def says_bad(evidence: Evidence) -> bool | None:
    """Return true for bad and false for good evidence; None for evidence that does not count.

    Failures of another kind, void trials and skips are None: they never reach the posterior.
    """
    return {Evidence.BAD: True, Evidence.GOOD: False}.get(evidence)


def build_cost(build_seconds: float | None, trial_seconds: float | None) -> float:
    """Return the price of a new environment in trials, from the measured times.

    Args:
        build_seconds: Mean over builds, None before the first.
        trial_seconds: Mean over trials, None before the first.
    """
    if build_seconds is None or not trial_seconds:
        return UNKNOWN_COST
    return min(build_seconds / trial_seconds, 500.0)


def expected_builds(place: int, failed: Collection[int], built: Collection[int]) -> float:
    """Return how many builds it is likely to take until one succeeds at a place near others that failed.

    Commits that cannot be built come in intervals of unknown length: of those at a distance d from one about
    d in d + L can be built. Beyond one that was built another interval would have to begin.

    Args:
        place: Position on the axis of commits.
        failed: Where builds failed.
        built: Where they did not.
    """
    worst = 1.0
    for other in failed:
        low, high = sorted((place, other))
        if not any(low < between < high for between in built):
            worst = max(worst, 1.0 + _STRETCH / max(1, high - low))
    return worst


def in_flight(slots: int, trial_seconds: float | None, *, flaky: bool = True) -> int:
    """Return how many trials to keep submitted.

    Short trials need a second one waiting at each worker, or workers idle while the search thinks; long ones
    do not, and every trial asked too early is asked knowing less. Where failures look certain each trial
    decides much, so that none is asked before it is due.

    Args:
        slots: Places for trials.
        trial_seconds: Mean duration, None before the first trial.
        flaky: Whether failures are, or may be, anything but certain.
    """
    waiting = slots if flaky and trial_seconds is not None and trial_seconds < 0.5 else 0
    return slots + waiting


def brief(text: str) -> str:
    """Return the first line of a long text, or all lines of a short one, joined by colons. Pure."""
    lines: list[str] = [line.strip() for line in text.splitlines() if line.strip()]
    return ": ".join(lines if len(lines) <= _SHORT else lines[:1]) or "(no words)"


# -- the state of a study ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PutAside:
    """The finding that trials of a combination are not possible or useful.

    Attributes:
        index: Index of the combination that stands for its group.
        status: As outcomes call it: `env-unsolvable`, `env-unbuildable` or `set-aside`.
        reason: Why.
    """

    index: Index
    status: str
    reason: str


@dataclass(frozen=True, slots=True)
class Remark:
    """A message that is shown to the user once.

    Attributes:
        text: A sentence.
    """

    text: str


Finding = PutAside | Remark


@dataclass(frozen=True, slots=True)
class Wanted:
    """The work that is to be done next.

    Attributes:
        start: Combinations to try now, one entry a trial; their environments are there.
        build: Combinations whose environments to make, the most wanted first.
        lock: Combinations to lock, the most wanted first.
    """

    start: tuple[Index, ...] = ()
    build: tuple[Index, ...] = ()
    lock: tuple[Index, ...] = ()


class StudyState:
    """The state of a study.

    Args:
        matrix: What is asked.
        prepared: Its combinations; locks may be added to it at any time.
        plan: Chooses trials, and receives their results from this object.
        max_trials: Trials that count, at most; None for any number.

    Attributes:
        tallies: What trials said, for each combination that stands for its group.
        aside: Status and reason of combinations at which nothing can be learnt.
        running: Trials that run, by id, with their combinations.
        elsewhere: Trials of each combination that other commands run.
        members: Combinations of each group, by the one that stands for it.
        seen: Content hashes of environments in which trials ran before this command began: they are likely to
            be there still.
        ready: Of those that are on every host.
        building: Of those that are being made.
        build_seconds: Of environments.
        trial_seconds: Of trials that count.
    """

    def __init__(
        self, matrix: Matrix, prepared: Prepared, plan: Plan, *, max_trials: int | None = None
    ) -> None:
        self._matrix = matrix
        self._max_trials = sys.maxsize if max_trials is None else max_trials
        self._of_commits = of_commits(prepared.grid)
        axes = matrix.file.axes.values()
        self._builds_ahead = any(isinstance(axis, CommitAxis) and axis.build.ahead for axis in axes)
        self._prepared = prepared
        self._grid = prepared.grid
        self.plan = plan
        self.members: defaultdict[Index, list[Index]] = defaultdict(list)
        for index, stands_for in prepared.groups.items():
            self.members[stands_for].append(index)
        self.tallies: defaultdict[Index, Tally] = defaultdict(Tally)
        self.aside: dict[Index, tuple[str, str]] = {}
        self.running: dict[str, Index] = {}
        self.elsewhere: Counter[Index] = Counter()
        self.seen: set[str] = set()
        self.ready: set[str] = set()
        self.building: set[str] = set()
        self.build_seconds = Mean()
        self.trial_seconds = Mean()
        self._voids_in_a_row = 0
        self._failed_builds = 0
        self._last_void = ""
        self._said: set[str] = set()
        self._broken: dict[str, str] = {}
        self._in_environment: defaultdict[str, list[Index]] = defaultdict(list)
        for index in self.members:
            if index in prepared.locks:
                self._in_environment[prepared.locks[index].content_hash].append(index)
        self._changes: Counter[str] = Counter()
        self._backfilled, self._backfilled_at = 0, 0
        # What `decide` wanted last and could not start, because its environment is not there yet.
        self._awaited: Counter[Index] = Counter()
        self._foreseen_at: tuple[int, int, int, int] | None = None

    def begin_again(self, plan: Plan) -> None:
        """Drop all findings of trials, which will be added again; environments and running trials stay.

        Args:
            plan: The new plan, which receives results from now on.
        """
        self.plan = plan
        self.aside = {i: why for i, why in self.aside.items() if why[0] != "set-aside"}
        for index in self.aside:
            plan.set_aside(index)
        self.tallies = defaultdict(
            Tally,
            {
                index: Tally(failed_builds=tally.failed_builds, lost_on=tally.lost_on)
                for index, tally in self.tallies.items()
            },
        )
        self.trial_seconds = Mean()
        self._foreseen_at = None

    @property
    def hits(self) -> int:
        """Return the number of bad trials."""
        return sum(tally.bad for tally in self.tallies.values())

    @property
    def looks_certain(self) -> bool:
        """Return whether every combination always failed or always passed, in few trials each."""
        return not any((t.bad and t.good) or t.bad + t.good >= FLAKY_FROM for t in self.tallies.values())

    def missing(self) -> dict[Index, tuple[str, str]]:
        """Return status and reason of every combination that is known not to be runnable."""
        known = {index: ("excluded", why) for index, why in self._grid.excluded.items()}
        known |= {
            index: ("env-unbuildable" if error.building else "env-unsolvable", error.message)
            for index, error in self._prepared.unsolvable.items()
        }
        for index, why in self.aside.items():
            known |= dict.fromkeys(self.members[index], why)
        return known

    # -- facts: environments -------------------------------------------------------------------------------

    def locked(self, index: Index) -> list[Finding]:
        """Process a solver's answer about a combination, which `Prepared` holds.

        Raises:
            NoEnvironmentError: It is an end that the matrix states, and has no environment.
        """
        error = self._prepared.unsolvable.get(index)
        if self._prepared.groups.get(index) == index and index not in self.members:
            self.members[index].append(index)
        if error is None:
            if index not in self.members:
                return []
            lock_hash = self._prepared.locks[index].content_hash
            self._in_environment[lock_hash].append(index)
            why = self._broken.get(lock_hash)
            return [] if why is None else self._put_aside(index, "env-unbuildable", why)
        for name, end in (("good", self._grid.good), ("bad", self._grid.bad)):
            if index == end:
                raise NoEnvironmentError(
                    f"{self._matrix.path}: the stated {name} end, {self._grid.combination(index)}, has no "
                    f"environment: {error.message}",
                    remedy=f"state another `{name}`, or leave it out",
                )
        return self._put_aside(
            index, "env-unbuildable" if error.building else "env-unsolvable", error.message
        )

    def begun(self, lock_hash: str) -> None:
        """Record that an environment is being built."""
        self.building.add(lock_hash)

    def built(self, lock_hash: str, seconds: float) -> None:
        """Record that an environment exists, and its build time in seconds, 0 if it existed before."""
        self.building.discard(lock_hash)
        self.ready.add(lock_hash)
        self._failed_builds = 0
        if seconds:
            self.build_seconds.add(seconds)

    def build_failed(self, lock_hash: str, message: str, *, transient: bool) -> list[Finding]:
        """Process the failure to build an environment, for a reason that may be transient or not.

        What cannot be built is a property of its combinations as soon as another environment could be
        made, for then neither the host nor the network is to blame.

        Raises:
            InfrastructureError: Builds fail one after the other, and none succeeded yet.
        """
        self.building.discard(lock_hash)
        # One that broke on some host is looked at again before more trials go there.
        self.ready.discard(lock_hash)
        indices = self.combinations_in(lock_hash)
        findings: list[Finding] = []
        for index in indices:
            tally = self.tallies[index]
            tally.failed_builds += 1
            if tally.failed_builds >= BUILDS_BEFORE_UNBUILDABLE and (not transient or self.ready):
                self._broken[lock_hash] = message
                findings += self._put_aside(index, "env-unbuildable", message)
        if not transient or not indices:
            return findings
        self._failed_builds += 1
        self._last_void = f"building {self._grid.combination(indices[0])}: {brief(message)}"
        if self._failed_builds >= VOIDS_BEFORE_STOP and not self.ready:
            raise InfrastructureError(
                f"{self._failed_builds} builds in a row failed; the last: {self._last_void}",
                tried="each was begun again",
                remedy="correct that, then start the same command again: it goes on where it stopped",
            )
        return findings + self._remark(f"build-{indices[0]}", f"{self._last_void}; it is tried again")

    def combinations_in(self, lock_hash: str) -> list[Index]:
        """Return the representative combinations that use this environment."""
        return list(self._in_environment[lock_hash])

    def changed(self, lock_hash: str, name: str) -> None:
        """Note that trials changed an environment, which is made again.

        Args:
            lock_hash: Lock of the environment.
            name: A combination that lives in it, for the message.

        Raises:
            InfrastructureError: It was changed again and again: no trial in it would ever count.
        """
        self._changes[lock_hash] += 1
        if self._changes[lock_hash] >= CHANGES_BEFORE_STOP:
            raise InfrastructureError(
                f"files of the environment of {name} were changed {self._changes[lock_hash]} times by trials",
                tried="it was made again each time, and its trials since were not counted",
                remedy="see to it that the script changes no installed file, then start the same command "
                "again",
            )

    # -- facts: trials -------------------------------------------------------------------------------------

    def started(self, trial_id: str, index: Index) -> None:
        """Note that a trial of a combination runs."""
        self.running[trial_id] = index

    def ended(self, trial_id: str) -> Index:
        """Record that a trial has ended, and return its combination."""
        return self.running.pop(trial_id)

    def nothing_runs(self) -> None:
        """Note that no trial runs any more, because all were ended."""
        self.running.clear()

    def lost(self, index: Index, host: str) -> None:
        """Note that a host, if it is known which, was lost while a trial ran on it."""
        if host:
            self.tallies[index].lost_on.add(host)

    def learn(
        self, index: Index, outcome: Outcome, evidence: Evidence, *, duration: float, detail: str
    ) -> list[Finding]:
        """Process a recorded trial.

        Args:
            index: Its combination, standing for its group.
            outcome: What it did.
            evidence: What that means.
            duration: Seconds.
            detail: The outcome in words.
        """
        tally = self.tallies[index]
        tally.count(evidence)
        tally.not_runnable += outcome is Outcome.NOT_RUNNABLE
        if index in self.aside:
            return []
        if (bad := says_bad(evidence)) is not None:
            self.trial_seconds.add(duration)
            self.plan.tell(index, hit=bad)
        if (why := tally.why_aside()) is not None:
            return self._put_aside(index, "set-aside", f"{outcome}: {detail}; {why}" if tally.skip else why)
        if (lost := tally.many_lost()) is not None:
            return self._remark(f"lost-{index}", f"{self._grid.combination(index)}: {lost}")
        if tally.other >= OTHER_BEFORE_ASIDE and tally.other > tally.good + tally.bad:
            return self._remark(
                f"other-{index}",
                f"{self._grid.combination(index)} often fails in another way ({outcome}); "
                "that can hide the answer",
            )
        return []

    def check(self, record: TrialRecord, evidence: Evidence) -> None:
        """Raise an error if the trial that just ran shows that further trials are pointless.

        Raises:
            UsageError: The command could be run in none of the combinations tried: that is a mistake in the
                matrix, not a property of combinations.
            InfrastructureError: So many trials in a row were void that the next ones would be, too.
        """
        if evidence is Evidence.VOID:
            self._voids_in_a_row += 1
            self._last_void = f"{record.outcome}: {record.detail}"
        else:
            self._voids_in_a_row = 0
        nowhere = record.outcome is Outcome.NOT_RUNNABLE and not self.plan.trials
        if nowhere and _HOSTS in record.detail:
            raise UsageError(
                f"{self._matrix.path}: {record.detail}",
                tried=" ".join(self._matrix.command(record.combination)),
                remedy="add that line, then start the same command again",
            )
        if record.outcome is Outcome.NOT_RUNNABLE:
            tried = [t for t in self.tallies.values() if t.good + t.bad + t.other + t.skip]
            if len(tried) >= min(TRIED_BEFORE_BLAME, len(self.members)) and all(
                t.not_runnable for t in tried
            ):
                raise UsageError(
                    f"{self._matrix.path}: the trial's command cannot be run"
                    + (f" in any of {len(tried)} combinations tried" if len(tried) > 1 else "")
                    + f": {record.detail}",
                    tried=" ".join(self._matrix.command(record.combination)),
                    remedy="correct `trial.command` or `trial.files`, then start the same command again",
                )
        if self._voids_in_a_row >= VOIDS_BEFORE_STOP:
            raise InfrastructureError(
                f"{self._voids_in_a_row} trials in a row were void; the last: {self._last_void}",
                tried="each was run again",
                remedy="correct that, then start the same command again: it goes on where it stopped",
            )

    def put_aside(self, index: Index, status: str, reason: str) -> list[Finding]:
        """Exclude a combination that another or earlier command found not to be runnable."""
        return self._put_aside(index, status, reason)

    def check_anything_ran(self) -> None:
        """Raise an error if no trial ran because no environment can be built.

        Raises:
            NoEnvironmentError: No combination has an environment that can be made.
        """
        if self.plan.trials or any(index not in self.aside for index in self.members):
            return
        reasons = [reason for status, reason in self.aside.values() if status.startswith("env-")]
        if len(reasons) < len(self.members):
            return
        if all(status == "env-unsolvable" for status, _ in self.aside.values()):
            raise NoEnvironmentError(
                f"{self._matrix.path}: none of the combinations has an environment",
                tried=reasons[0] if reasons else None,
                remedy="`bisect-env plan` lists every combination with its reason",
            )
        raise NoEnvironmentError(
            f"no environment could be built: {brief(reasons[-1]) if reasons else 'none is solvable'}",
            remedy="`bisect-env report` lists every combination with its reason",
        )

    def _put_aside(self, index: Index, status: str, reason: str) -> list[Finding]:
        if index in self.aside:
            return []
        self.aside[index] = (status, reason)
        self.plan.set_aside(index)
        return [PutAside(index, status, reason)]

    def _remark(self, key: str, text: str) -> list[Finding]:
        if key in self._said:
            return []
        self._said.add(key)
        return [Remark(text)]

    # -- decisions -----------------------------------------------------------------------------------------

    def is_ready(self, index: Index) -> bool:
        """Return whether trials of a combination can be sent off."""
        lock = self._prepared.locks.get(index)
        return lock is not None and lock.content_hash in self.ready

    def _is_paid(self, index: Index) -> bool:
        """Return whether a combination's environment costs nothing more: it exists or is being built."""
        lock = self._prepared.locks.get(index)
        if lock is None:
            return False
        return any(lock.content_hash in known for known in (self.ready, self.building, self.seen))

    def pending(self) -> Counter[Index]:
        """Return how many trials of each combination run, here or under other commands."""
        return Counter(self.running.values()) + self.elsewhere

    def decide(self, slots: int, *, only: Mapping[Index, int] | None = None) -> Wanted:
        """Decide what to do next.

        Args:
            slots: Places for trials.
            only: Try these combinations and no others, whatever the search wants; the numbers say how many
                trials of each may run at the same time.
        """
        self._awaited = Counter()
        if self.plan.finished:
            return Wanted()
        free = in_flight(slots, self.trial_seconds.value, flaky=not self.looks_certain) - len(self.running)
        # Nothing is begun that would exceed the budget of trials.
        left = self._max_trials - self.plan.trials - len(self.running)
        free = min(free, left)
        if only is not None:
            return self._try_only(only, max(0, free), slots)
        if self._of_commits and self.looks_certain:
            # Building a commit takes long: two at once would need more builds than one after another.
            free = min(free, 1 - len(self.running))
        costs = self._costs()
        pending = self.pending()
        chosen = self.plan.ask(free, pending=pending, build_cost=costs) if free > 0 else []
        now = [index for index in chosen if self.is_ready(index)]
        later = self._elsewhere([index for index in chosen if not self.is_ready(index)])
        self._awaited = Counter(later)
        if later:
            # Cores that build are not given to trials that only pass the time.
            idle = slots - len(self.building) - len(self.running)
            room = min(len(later), max(0, min(idle, left) - len(now)))
            now += self._backfill(room, pending + Counter(chosen), slots)
        return Wanted(tuple(now), *self._to_make(later, slots))

    def _try_only(self, only: Mapping[Index, int], free: int, slots: int) -> Wanted:
        pending = self.pending()
        now = [
            index
            for index, most in only.items()
            if self.is_ready(index)
            for _ in range(min(free, most - pending[index]))
        ]
        return Wanted(tuple(now[:free]), *self._to_make([one for one in only if one not in now], slots))

    def decide_ahead(self, slots: int) -> Wanted:
        """Decide what to prepare for trials that the search may want after the running ones.

        Trials that `decide` wants are started first, because this takes longer.

        Args:
            slots: Places for trials.
        """
        if self.plan.finished:
            return Wanted()
        costs, pending = self._costs(), self.pending() + self._awaited
        ahead = self._ahead(costs, pending)
        build, lock = self._to_make(ahead, slots)
        if len(self.building) >= max(BUILDS_AT_ONCE[0], slots // BUILDERS):
            build = ()
        return Wanted((), build, (*lock, *self._after(ahead, pending, costs)))

    def _elsewhere(self, wanted: list[Index]) -> list[Index]:
        """Return the environments to build, with those that failed often replaced by near ones.

        If a near one can be built, the failures are not the fault of this host.
        """

        def failed(index: Index) -> int:
            return self.tallies[index].failed_builds

        often = [index for index in wanted if failed(index) >= BUILDS_BEFORE_UNBUILDABLE]
        if self.ready or not often:
            return wanted
        others = [index for index in self.members if index not in self.aside and index not in wanted]
        for index in often:
            nearest = min(others, key=lambda one: (failed(one), math.dist(one, index)), default=index)
            if failed(nearest) < failed(index):
                wanted[wanted.index(index)] = nearest
        return wanted

    def _costs(self) -> dict[Index, float]:
        price = build_cost(self.build_seconds.value, self.trial_seconds.value)
        unpaid = [index for index in self.members if not self._is_paid(index)]
        if not self._of_commits:
            return dict.fromkeys(unpaid, price)
        place = next(i for i, axis in enumerate(self._grid.axes) if axis.kind is AxisKind.COMMIT)
        failed = {i[place] for i, (status, _) in self.aside.items() if status == "env-unbuildable"}
        built = {i[place] for i in self.members if self.is_ready(i)}
        return {index: price * expected_builds(index[place], failed, built) for index in unpaid}

    def _backfill(self, count: int, pending: Mapping[Index, int], slots: int) -> list[Index]:
        """Return trials in existing environments to run until the wanted environments are built."""
        ready = {index for index in self.members if self.is_ready(index)}
        if count <= 0 or not ready or not self.plan.trials or self.looks_certain:
            return []
        if (known := len(self.ready)) != self._backfilled_at:
            self._backfilled, self._backfilled_at = 0, known
        worth = BACKFILL if self._backfilled < BACKFILLS * slots else MUCH
        chosen = self.plan.ask(count, pending=pending, only=ready, worth=worth)
        self._backfilled += len(chosen)
        return chosen

    def _ahead(self, costs: Mapping[Index, float], pending: Counter[Index]) -> list[Index]:
        """Return the combinations that are likely to be wanted next, unless nothing has changed."""
        known = (self.plan.trials, len(self.running), len(self.ready), sum(pending.values()))
        if not pending or not costs or known == self._foreseen_at or len(self.members) > THOUGHT_THROUGH:
            return []
        if self._of_commits and not self._builds_ahead:
            # A build takes longer than a trial, and every second one would be for nothing.
            return []
        self._foreseen_at = known
        again: list[Index] = []
        if not self._awaited:
            again = self.plan.ask(max(1, len(self.running)), pending=pending, build_cost=costs)
        return [*again, *self.plan.foresee(pending, costs)]

    def _after(
        self, ahead: Sequence[Index], pending: Counter[Index], costs: Mapping[Index, float]
    ) -> list[Index]:
        """Return combinations that may be wanted after the next ones, so that they can be locked early."""
        if not ahead or not self.looks_certain:
            return []
        then = self.plan.foresee(pending + Counter(ahead), costs)
        return [index for index in then if index not in self._prepared.locks]

    def _to_make(self, wanted: Iterable[Index], slots: int) -> tuple[tuple[Index, ...], tuple[Index, ...]]:
        """Return which environments to build and which combinations to lock, within the limits."""
        least, most = BUILDS_AT_ONCE
        room = min(max(least, slots), most) - len(self.building)
        locks = self._prepared.locks
        build: list[Index] = []
        lock: list[Index] = []
        begun = set(self.building)
        for index in dict.fromkeys(wanted):
            if index not in locks:
                lock.append(index)
            elif locks[index].content_hash not in self.ready | begun and len(build) < room:
                begun.add(locks[index].content_hash)
                build.append(index)
        return tuple(build), tuple(lock[:LOCKS_AT_ONCE])
