"""The state of a running study: environments, trials, and excluded combinations. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from bisect_env.answers.phrases import brief
from bisect_env.engine.locking import Prepared
from bisect_env.errors import InfrastructureError, NoEnvironmentError, UsageError
from bisect_env.matrix.grid import Index
from bisect_env.matrix.load import Matrix
from bisect_env.search.plan import Plan
from bisect_env.storage.entries import CombinationStatus, EvidenceCounts
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
"""Number of passes of one combination from which on failures are not considered certain, as long as nothing
has failed: the combination may fail rarely."""
OTHER_BEFORE_ASIDE = 3
"""Number of failures of another kind after which a combination without counted trials is excluded."""
OTHER_PER_COUNTED, OTHER_MANY = 4.0, 20
"""Number of failures of another kind per counted trial above which a combination gets no more trials; and the
number of such failures from which on this applies."""
SKIPS_MANY = 3
"""Number of skipped trials from which on a combination gets no more trials, if fewer were counted.
Without a limit, a combination that is skipped from now on would be tried for ever."""
LOSSES_FOR_FINDING = 3
"""Number of hosts lost during trials of one combination after which a warning is shown."""
HOST_PROGRAM = "allow_host:"
"""Part of the message about a program of the host that may not be run. It does not depend on the
combination."""


@dataclass(slots=True)
class Mean:
    """A running mean, to which values can be added one at a time."""

    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        """Add a value to those of which the mean is taken."""
        self.total += value
        self.count += 1

    @property
    def value(self) -> float | None:
        """Return the mean of the values so far, or None if there are none."""
        return self.total / self.count if self.count else None


@dataclass(frozen=True, slots=True)
class PutAside:
    """A decision that a combination gets no more trials, with the reason.

    Attributes:
        index: The representative of the combination's group.
        status: `UNSOLVABLE`, `UNBUILDABLE` or `SET_ASIDE`.
        reason: Why, in words.
    """

    index: Index
    status: CombinationStatus
    reason: str


Finding = PutAside | str
"""A conclusion from a new fact: a decision about a combination, or a sentence that is shown to the user."""


def many_lost(hosts: Collection[str]) -> str | None:
    """Return a phrase that lists the hosts lost during trials of a combination, if there are many.

    Returns None if there are fewer than `LOSSES_FOR_FINDING` such hosts.
    """
    if len(hosts) < LOSSES_FOR_FINDING:
        return None
    return f"its trials were lost on {len(hosts)} hosts ({', '.join(sorted(hosts))})"


def why_aside(counts: EvidenceCounts, hosts: Collection[str] = ()) -> str | None:
    """Return the reason (text) why a combination should get no more trials, or None if there is none.

    A combination that always fails in another way than the target failure cannot tell good from bad. After a
    few such trials it is excluded, like with `git bisect skip`. If it fails in another way only sometimes, it
    is kept, and these failures are reported but not counted. Where trials were good or bad, a skipped trial
    costs no more than itself, because its cause (a server that is down) may pass.

    Args:
        counts: The results of its trials.
        hosts: Names of hosts that were lost, or lost their GPU, during these trials.
    """
    if counts.counted == 0:
        if lost := many_lost(hosts):
            return lost
        if counts.skip:
            return "the script cannot run here, or skips it (exit code 125)"
        if counts.other >= OTHER_BEFORE_ASIDE:
            return f"always fails in another way ({counts.other} of {counts.other} trials)"
        return None
    if counts.skip >= SKIPS_MANY and counts.skip > counts.counted:
        return f"is mostly skipped ({counts.skip} of {counts.skip + counts.counted} trials)"
    if counts.other >= OTHER_MANY and counts.other > OTHER_PER_COUNTED * counts.counted:
        return f"mostly fails in another way ({counts.other} of {counts.other + counts.counted} trials)"
    return None


class StudyState:
    """What a running study knows: existing environments, results of trials, and excluded combinations.

    In this class, `index` is always the representative of a group of combinations.

    Args:
        matrix: The matrix of the study.
        prepared: Its combinations; locks may be added to it at any time.
        plan: Chooses trials; this object passes results on to it.

    Attributes:
        counts: Results of the trials of each combination.
        aside: Status and reason of each combination that gets no more trials. Its earlier trials still count.
        running: Combination of each running trial, by trial id.
        elsewhere: Number of trials of each combination that other commands are running.
        members: All combinations of each group.
        seen: Content hashes of environments in which trials ran, maybe before this command began. They
            probably still exist.
        ready: Content hashes of environments that exist on at least one host.
        building: Content hashes of environments that are being built.
        build_seconds: Mean duration of builds.
        trial_seconds: Mean duration of counted trials.
        pass_seconds: Mean duration of good trials.
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
        self._failures: Counter[str] = Counter()
        self._lost_on: defaultdict[Index, set[str]] = defaultdict(set)
        self.aside: dict[Index, tuple[CombinationStatus, str]] = {}
        self.running: dict[str, Index] = {}
        self.elsewhere: Counter[Index] = Counter()
        self.seen: set[str] = set()
        self.ready: set[str] = set()
        self.building: set[str] = set()
        self.build_seconds = Mean()
        self.trial_seconds = Mean()
        self.pass_seconds = Mean()
        self._voids_in_a_row = 0
        self._failed_builds = 0
        self._last_void = ""
        self._said: set[str] = set()
        self._last_skip: dict[Index, str] = {}
        self._broken: dict[str, str] = {}
        self._changes: Counter[str] = Counter()

    def begin_again(self, plan: Plan) -> None:
        """Forget the results of all trials and use a new plan, so that the results can be added again.

        Environments and running trials are kept.

        Args:
            plan: The new plan, which receives results from now on.
        """
        self.plan = plan
        self.aside = {i: why for i, why in self.aside.items() if why[0] is not CombinationStatus.SET_ASIDE}
        for index in self.aside:
            plan.set_aside(index)
        self.counts.clear()
        self.trial_seconds = Mean()
        self.pass_seconds = Mean()

    @property
    def hits(self) -> int:
        """Return the number of trials that showed the target failure."""
        return sum(counts.bad for counts in self.counts.values())

    @property
    def looks_certain(self) -> bool:
        """Return whether the results so far are consistent with combinations that always fail or always pass.

        This is False if some combination has both failed and passed. As long as none has failed, it is also
        False if some combination has passed often: then it may fail rarely.
        """
        counts = self.counts.values()
        if any(c.good and c.bad for c in counts):
            return False
        return any(c.bad for c in counts) or all(c.good < FLAKY_FROM for c in counts)

    def missing(self) -> dict[Index, tuple[str, str]]:
        """Return, for each combination that could not be tried, its status and the reason."""
        known = {}
        for index in (*self._grid.excluded, *self._prepared.unsolvable):
            state = self._prepared.state(index)
            known[index] = (str(state.status), state.reason)
        for index, (status, reason) in self.aside.items():
            if not self.counts[index].counted:
                known |= dict.fromkeys(self.members[index], (str(status), reason))
        return known

    # -- facts: environments -------------------------------------------------------------------------------

    def locked(self, index: Index) -> list[Finding]:
        """Record that a solver has finished a combination; exclude the combination if it has no environment.

        Returns what to tell the user about the combination.

        Raises:
            NoEnvironmentError: The combination is a stated end and has no environment.
        """
        error = self._prepared.unsolvable.get(index)
        if self._prepared.groups.get(index) == index and index not in self.members:
            self.members[index].append(index)
        if error is None:
            if index not in self.members:
                return []
            why = self._broken.get(self._prepared.locks[index].content_hash)
            return [] if why is None else self.put_aside(index, CombinationStatus.UNBUILDABLE, why)
        for name, end in (("good", self._grid.good), ("bad", self._grid.bad)):
            if index == end:
                raise NoEnvironmentError(
                    f"{self._matrix.shown}: the stated {name} end, {self._grid.combination(index)}, has no "
                    f"environment: {error.message}",
                    remedy=f"state another `{name}`, or leave it out",
                )
        return self.put_aside(index, CombinationStatus(self._prepared.state(index).status), error.message)

    def built(self, lock_hash: str, seconds: float) -> None:
        """Record that an environment exists, and how long building it took.

        Args:
            lock_hash: Content hash of its lock.
            seconds: Duration of the build, 0 if the environment existed before.
        """
        self.building.discard(lock_hash)
        self.ready.add(lock_hash)
        self._failed_builds = 0
        if seconds:
            self.build_seconds.add(seconds)

    def build_failed(self, lock_hash: str, message: str, *, transient: bool) -> list[Finding]:
        """Record that building an environment failed. After several failures, exclude its combinations.

        If the reason may be transient, they are excluded only if some other environment could be built, and
        only in this command. Otherwise the host or the network may be the cause.

        Args:
            lock_hash: Content hash of its lock.
            message: The error message.
            transient: Whether the reason may be temporary.

        Raises:
            InfrastructureError: Many builds failed in a row, and none has succeeded yet.
        """
        self.building.discard(lock_hash)
        # The environment may be broken on some host, so check it again before more trials run there.
        self.ready.discard(lock_hash)
        indices = self.combinations_in(lock_hash)
        findings: list[Finding] = []
        self._failures[lock_hash] += 1
        if self._failures[lock_hash] >= BUILDS_BEFORE_UNBUILDABLE and (not transient or self.ready):
            self._broken[lock_hash] = message
            for index in indices:
                findings += self.put_aside(index, CombinationStatus.UNBUILDABLE, message)
            if transient and findings:
                text = "what could not be built for a reason that may pass is tried again by the next command"
                findings += self._remark("may pass", text)
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
        """Return the combinations that use an environment; of those that share all trials only the first."""
        locks = self._prepared.locks.items()
        return [index for index, lock in locks if lock.content_hash == lock_hash and index in self.members]

    def changed(self, lock_hash: str, name: str) -> None:
        """Record that trials changed the files of an environment. Raise an error if this happens repeatedly.

        Args:
            lock_hash: Content hash of the environment's lock.
            name: A combination that uses it, for the message.

        Raises:
            InfrastructureError: Trials changed the environment repeatedly.
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

    def lost(self, index: Index, host: str) -> None:
        """Record that a host (or "" if it is unknown) was lost during a trial of a combination."""
        if host:
            self._lost_on[index].add(host)

    def learn(
        self, index: Index, outcome: Outcome, evidence: Evidence, *, duration: float, detail: str
    ) -> None:
        """Add the result of a recorded trial; call `weigh` when all recorded trials were added.

        Args:
            index: Its combination.
            outcome: What the script did.
            evidence: What the outcome means for the study.
            duration: Duration in seconds.
            detail: The outcome in words.
        """
        self.counts[index].add(evidence, outcome)
        # Failures of another kind, void trials and skipped trials never influence the posterior.
        if evidence in (Evidence.GOOD, Evidence.BAD):
            self.trial_seconds.add(duration)
            if evidence is Evidence.GOOD:
                self.pass_seconds.add(duration)
            self.plan.tell(index, hit=evidence is Evidence.BAD)
        elif evidence is Evidence.SKIP:
            self._last_skip[index] = f"{outcome}: {detail}; "

    def weigh(self, index: Index) -> list[Finding]:
        """Give a combination no more trials if all results so far show that these would be useless.

        The decision depends on the counts alone, not on the order of trials. Returns what to tell the user
        about the combination.
        """
        counts, lost_on = self.counts[index], self._lost_on[index]
        if index in self.aside:
            return []
        if (why := why_aside(counts, lost_on)) is not None:
            reason = self._last_skip[index] + why if counts.skip else why
            found = self.put_aside(index, CombinationStatus.SET_ASIDE, reason)
            if not counts.counted:
                return found
            kept = f"no more trials of {self._grid.combination(index)}, which {why}; the others count"
            return self._remark(f"aside-{index}", kept)
        if (lost := many_lost(lost_on)) is not None:
            return self._remark(f"lost-{index}", f"{self._grid.combination(index)}: {lost}")
        if counts.other >= OTHER_BEFORE_ASIDE and counts.other > counts.counted:
            outcome = max(
                (n, str(outcome))
                for (said, outcome), n in counts.by_outcome.items()
                if said is Evidence.OTHER
            )[1]
            return self._remark(
                f"other-{index}",
                f"{self._grid.combination(index)} often fails in another way ({outcome}); "
                "that can hide the answer",
            )
        return []

    def is_wrongly_aside(self, index: Index) -> bool:
        """Return whether a combination gets no more trials although its results no longer justify that.

        This is the case if another command has recorded a good or bad trial since it was set aside.
        """
        status, _ = self.aside.get(index, (None, ""))
        is_set_aside = status is CombinationStatus.SET_ASIDE
        return is_set_aside and why_aside(self.counts[index], self._lost_on[index]) is None

    def check(self, record: TrialRecord, evidence: Evidence) -> None:
        """Raise an error if the latest trial shows that further trials would be useless.

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
        if nowhere and HOST_PROGRAM in record.detail:
            raise UsageError(
                f"{self._matrix.shown}: {record.detail}",
                tried=" ".join(self._matrix.command(record.combination)),
                remedy="add that line, then start the same command again",
            )
        if record.outcome is Outcome.NOT_RUNNABLE:
            tried = [c for c in self.counts.values() if c.counted + c.other + c.skip]
            never = all(not c.counted and c.by_outcome[Evidence.SKIP, Outcome.NOT_RUNNABLE] for c in tried)
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
        """Raise an error if no trial could run because no environment could be built.

        Raises:
            NoEnvironmentError: No combination has an environment that can be built.
        """
        if self.plan.trials or any(index not in self.aside for index in self.members):
            return
        trials = CombinationStatus.SET_ASIDE
        reasons = [reason for status, reason in self.aside.values() if status is not trials]
        if len(reasons) < len(self.members):
            return
        if all(status is CombinationStatus.UNSOLVABLE for status, _ in self.aside.values()):
            # Where all were locked before the state was made, none of them is a member.
            unsolvable = (self._prepared.state(index).reason for index in self._prepared.unsolvable)
            raise NoEnvironmentError(
                f"{self._matrix.shown}: none of the combinations has an environment",
                tried=reasons[0] if reasons else next(unsolvable, None),
                remedy="`bisect-env plan` lists every combination with its reason",
            )
        raise NoEnvironmentError(
            f"no environment could be built: {brief(reasons[-1]) if reasons else 'none is solvable'}",
            remedy="`bisect-env report` lists every combination with its reason",
        )

    def put_aside(self, index: Index, status: CombinationStatus, reason: str) -> list[Finding]:
        """Exclude a combination from further trials, unless it is excluded already."""
        if index in self.aside:
            return []
        self.aside[index] = (status, reason)
        self.plan.set_aside(index)
        return [PutAside(index, status, reason)]

    def _remark(self, key: str, text: str) -> list[Finding]:
        if key in self._said:
            return []
        self._said.add(key)
        return [text]

    # -- what follows from them ----------------------------------------------------------------------------

    def is_ready(self, index: Index) -> bool:
        """Return whether the environment of a combination exists, so that its trials can start."""
        lock = self._prepared.locks.get(index)
        return lock is not None and lock.content_hash in self.ready

    def is_paid(self, index: Index) -> bool:
        """Return whether a combination can be tried without paying for a new build.

        This is the case if its environment exists, is being built, or was used by earlier trials.
        """
        lock = self._prepared.locks.get(index)
        if lock is None:
            return False
        return any(lock.content_hash in known for known in (self.ready, self.building, self.seen))

    def pending(self) -> Counter[Index]:
        """Return the number of running trials of each combination, including those of other commands."""
        return Counter(self.running.values()) + self.elsewhere
