"""Keeps what is known of a study while it runs: environments, trials, and excluded combinations. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from bisect_env.engine.locking import Prepared
from bisect_env.errors import InfrastructureError, NoEnvironmentError, UsageError
from bisect_env.matrix.grid import Index
from bisect_env.matrix.load import Matrix
from bisect_env.search.plan import Plan
from bisect_env.storage.entries import EvidenceCounts
from bisect_env.trials.records import Evidence, Outcome, TrialRecord

BUILDS_BEFORE_UNBUILDABLE = 3
"""Number of failed builds after which an environment counts as unbuildable."""
VOIDS_BEFORE_STOP = 10
"""Number of consecutive void trials after which the study stops because of the infrastructure. The same holds
for builds that fail for temporary reasons while no environment at all could be built."""
CHANGES_BEFORE_STOP = 3
"""Number of times that trials may change the files of one environment before the study stops."""
TRIED_BEFORE_BLAME = 3
"""Number of combinations in which a command cannot be run before the matrix is considered wrong."""
FLAKY_FROM = 4
"""Number of trials of one combination from which on failures are not considered certain: a plan asks less
often about a certain failure."""
OTHER_BEFORE_ASIDE = 3
"""Failures of another kind after which a combination without counted trials is set aside."""
OTHER_PER_COUNTED, OTHER_MANY = 4.0, 20
"""Failures of another kind per counted trial above which a combination is set aside, from so many on."""
LOSSES_FOR_FINDING = 3
"""Number of hosts lost during trials of one combination after which the user is told."""
_HOSTS = "allow_host:"
"""A part of the message about a program of the host, which is the same for all combinations."""
_SHORT = 4
"""Maximum number of lines of a builder's message that are shown whole."""


@dataclass(slots=True)
class Mean:
    """The mean of all values that were added."""

    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        """Add a value."""
        self.total += value
        self.count += 1

    @property
    def value(self) -> float | None:
        """Return the mean, None before the first value."""
        return self.total / self.count if self.count else None


def brief(text: str) -> str:
    """Return the first line of a long text, or all lines of a short one, joined by colons. Pure."""
    lines: list[str] = [line.strip() for line in text.splitlines() if line.strip()]
    return ": ".join(lines if len(lines) <= _SHORT else lines[:1]) or "(no words)"


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


def says_bad(evidence: Evidence) -> bool | None:
    """Return true for bad and false for good evidence; None for evidence that does not count.

    Failures of another kind, void trials and skips are None: they never reach the posterior.
    """
    return {Evidence.BAD: True, Evidence.GOOD: False}.get(evidence)


def many_lost(hosts: Collection[str]) -> str | None:
    """Return what to say of a combination during whose trials several hosts were lost, else None."""
    if len(hosts) < LOSSES_FOR_FINDING:
        return None
    return f"its trials were lost on {len(hosts)} hosts ({', '.join(sorted(hosts))})"


def why_aside(counts: EvidenceCounts, hosts: Collection[str] = ()) -> str | None:
    """Return why no more trials of a combination should run, or None.

    A combination that always fails in another way than the target hides the answer: after a few such trials
    it is set aside, as by `git bisect skip`. One that fails in another way only sometimes is kept; its other
    failures are shown and never counted.

    Args:
        counts: Its trials.
        hosts: Hosts that were lost, or lost their GPU, during them.
    """
    if counts.counted == 0 and (lost := many_lost(hosts)):
        return lost
    if counts.skip:
        return "the script cannot run here, or skips it (exit code 125)"
    if counts.counted == 0 and counts.other >= OTHER_BEFORE_ASIDE:
        return f"always fails in another way ({counts.other} of {counts.other} trials)"
    if counts.other >= OTHER_MANY and counts.other > OTHER_PER_COUNTED * counts.counted:
        return f"mostly fails in another way ({counts.other} of {counts.other + counts.counted} trials)"
    return None


class StudyState:
    """The state of a study.

    Args:
        matrix: What is asked.
        prepared: Its combinations; locks may be added to it at any time.
        plan: Chooses trials, and receives their results from this object.

    Attributes:
        counts: What trials said, for each combination that stands for its group.
        failed_builds: Number of failed builds of the environment of each of these.
        aside: Status and reason of combinations at which nothing can be learnt.
        running: Trials that run, by id, with their combinations.
        elsewhere: Trials of each combination that other commands run.
        members: Combinations of each group, by the one that stands for it.
        seen: Content hashes of environments in which trials ran before this command began: they are likely to
            be there still.
        ready: Content hashes of environments that at least one host has.
        building: Content hashes of environments that are being made.
        build_seconds: Of environments.
        trial_seconds: Of trials that count.
    """

    def __init__(self, matrix: Matrix, prepared: Prepared, plan: Plan) -> None:
        self._matrix = matrix
        self._prepared = prepared
        self._grid = prepared.grid
        self.plan = plan
        self.members: defaultdict[Index, list[Index]] = defaultdict(list)
        for index, stands_for in prepared.groups.items():
            self.members[stands_for].append(index)
        self.counts: defaultdict[Index, EvidenceCounts] = defaultdict(EvidenceCounts)
        self.failed_builds: Counter[Index] = Counter()
        self._lost_on: defaultdict[Index, set[str]] = defaultdict(set)
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

    def begin_again(self, plan: Plan) -> None:
        """Drop all findings of trials, which will be added again; environments and running trials stay.

        Args:
            plan: The new plan, which receives results from now on.
        """
        self.plan = plan
        self.aside = {i: why for i, why in self.aside.items() if why[0] != "set-aside"}
        for index in self.aside:
            plan.set_aside(index)
        self.counts.clear()
        self.trial_seconds = Mean()

    @property
    def hits(self) -> int:
        """Return the number of bad trials."""
        return sum(counts.bad for counts in self.counts.values())

    @property
    def looks_certain(self) -> bool:
        """Return whether every combination always failed or always passed, in few trials each."""
        return not any((c.bad and c.good) or c.counted >= FLAKY_FROM for c in self.counts.values())

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
            return [] if why is None else self.put_aside(index, "env-unbuildable", why)
        for name, end in (("good", self._grid.good), ("bad", self._grid.bad)):
            if index == end:
                raise NoEnvironmentError(
                    f"{self._matrix.shown}: the stated {name} end, {self._grid.combination(index)}, has no "
                    f"environment: {error.message}",
                    remedy=f"state another `{name}`, or leave it out",
                )
        return self.put_aside(index, "env-unbuildable" if error.building else "env-unsolvable", error.message)

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
            self.failed_builds[index] += 1
            if self.failed_builds[index] >= BUILDS_BEFORE_UNBUILDABLE and (not transient or self.ready):
                self._broken[lock_hash] = message
                findings += self.put_aside(index, "env-unbuildable", message)
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
            self._lost_on[index].add(host)

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
        counts, lost_on = self.counts[index], self._lost_on[index]
        counts.add(evidence, outcome)
        if index in self.aside:
            return []
        if (bad := says_bad(evidence)) is not None:
            self.trial_seconds.add(duration)
            self.plan.tell(index, hit=bad)
        if (why := why_aside(counts, lost_on)) is not None:
            return self.put_aside(index, "set-aside", f"{outcome}: {detail}; {why}" if counts.skip else why)
        if (lost := many_lost(lost_on)) is not None:
            return self._remark(f"lost-{index}", f"{self._grid.combination(index)}: {lost}")
        if counts.other >= OTHER_BEFORE_ASIDE and counts.other > counts.counted:
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
                f"{self._matrix.shown}: {record.detail}",
                tried=" ".join(self._matrix.command(record.combination)),
                remedy="add that line, then start the same command again",
            )
        if record.outcome is Outcome.NOT_RUNNABLE:
            tried = [c for c in self.counts.values() if c.counted + c.other + c.skip]
            never = all(c.by_outcome[Evidence.SKIP, Outcome.NOT_RUNNABLE] for c in tried)
            if never and len(tried) >= min(TRIED_BEFORE_BLAME, len(self.members)):
                raise UsageError(
                    f"{self._matrix.shown}: the trial's command cannot be run"
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
                f"{self._matrix.shown}: none of the combinations has an environment",
                tried=reasons[0] if reasons else None,
                remedy="`bisect-env plan` lists every combination with its reason",
            )
        raise NoEnvironmentError(
            f"no environment could be built: {brief(reasons[-1]) if reasons else 'none is solvable'}",
            remedy="`bisect-env report` lists every combination with its reason",
        )

    def put_aside(self, index: Index, status: str, reason: str) -> list[Finding]:
        """Exclude a combination, if it is not excluded already."""
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

    # -- what follows from them ----------------------------------------------------------------------------

    def is_ready(self, index: Index) -> bool:
        """Return whether trials of a combination can be sent off."""
        lock = self._prepared.locks.get(index)
        return lock is not None and lock.content_hash in self.ready

    def is_paid(self, index: Index) -> bool:
        """Return whether a combination's environment costs nothing more: it exists or is being built."""
        lock = self._prepared.locks.get(index)
        if lock is None:
            return False
        return any(lock.content_hash in known for known in (self.ready, self.building, self.seen))

    def pending(self) -> Counter[Index]:
        """Return how many trials of each combination run, here or under other commands."""
        return Counter(self.running.values()) + self.elsewhere
