"""Find the packages that cause a failure, by trials in environments between last good and first bad.

These trials belong to a separate study whose axes are the changed packages, so that the results are stored,
shared and resumed like those of any study.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property

from bisect_env.answers.axes import AxisInfo
from bisect_env.answers.explanation import ChangedPackage, Explanation, IntermediateEnvironment
from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.engine import events
from bisect_env.engine.amplify import known_perturbation
from bisect_env.engine.intermediates import (
    Between,
    Changes,
    Demands,
    IntermediateRequests,
    LeaningRequests,
    asked_extras,
    changes_of,
    index_of,
)
from bisect_env.engine.locking import Locking
from bisect_env.engine.opening import forgive_builds, open_derived, stored_locks
from bisect_env.engine.plans import BlockPlan, BlockRunner
from bisect_env.engine.requests import environment_request
from bisect_env.engine.reuse import trial_key
from bisect_env.engine.series import Conditions, RunSetup
from bisect_env.engine.session import Session
from bisect_env.engine.stored import LockedCombination, refuse_local, stored_combination
from bisect_env.environments.lock import Lock, LockedPackage, UnsolvableError
from bisect_env.errors import StudyInterruptedError, UsageError
from bisect_env.matrix.grid import Combination, Index
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.schema import CommitAxis, PackageAxis, ValueAxis
from bisect_env.search.culprits import CulpritSearch, Try
from bisect_env.search.numeric import clopper_pearson
from bisect_env.storage.entries import (
    EXPLAINED,
    StoredTrial,
    Study,
    StudyStatus,
    counts_of,
)
from bisect_env.storage.study_trials import StudyTrials
from bisect_env.trials.judge import kind_of
from bisect_env.trials.records import NONE, Evidence, Perturbation

ABSENT = "absent"
TELL_EVERY = 5.0
"""Seconds after which progress is reported again."""
MAX_TRIALS = 2000
"""Maximum number of trials of the search for culprits."""
_MAX_PARALLEL = 8
"""Maximum number of trials that run in parallel if the search asks for fewer."""
_AXES_SHARE = 1 / 3
"""Prior probability that one of the axes' own packages is the culprit; dependencies that changed along are
more often."""


class CulpritPlan(BlockPlan):
    """A plan that finds the packages to blame, by trials in environments with mixed old and new packages.

    Each environment has some packages of the good and some of the bad environment. The plan tries one
    environment at a time, in a block of several trials.

    Args:
        search: Chooses the environments.
        max_trials: Maximum number of trials.
    """

    def __init__(self, search: CulpritSearch, max_trials: int) -> None:
        super().__init__()
        self.search = search
        self._max_trials = max_trials
        self._block: tuple[Index, int] | None = None

    @property
    def is_sure(self) -> bool:
        """Return whether the found packages are probable enough as the cause for the search to end."""
        return self._next is None and self.search.is_sure

    @property
    def finished(self) -> bool:
        """Return whether no further trial would help, or the maximum number of trials is reached."""
        return self.search.size == 1 or self.trials >= self._max_trials or self._next is None

    def block(self, places: int, *, is_idle: bool) -> tuple[Index, int] | None:
        """Return the environment to try now and the number of trials that it still needs.

        The next environment is chosen only if no trial is running. Returns None if the search is done.
        """
        if not is_idle:
            return self._block
        step = self._next
        if step is None:
            return None
        index = index_of(step.intermediate, self.search.size)
        # Use idle workers for more trials: a block takes as long as its longest trial anyway.
        number = max(step.trials, min(places, _MAX_PARALLEL))
        self._block = index, min(number, self._max_trials - self.trials)
        return self._block

    def tell(self, index: Index, *, hit: bool) -> None:
        """Pass the result of one trial to the search for the packages that cause the failure."""
        super().tell(index, hit=hit)
        self.search.tell(changes_of(index), hits=int(hit), trials=1)
        self.__dict__.pop("_next", None)
        if self._block is not None and self._block[0] == index:
            self._block = index, self._block[1] - 1

    def set_aside(self, index: Index) -> None:
        """Exclude an environment that cannot be built, or whose trials are useless."""
        self.search.set_aside(changes_of(index))
        self.__dict__.pop("_next", None)
        if self._block is not None and self._block[0] == index:
            # While trials of it still run, the block would ask for more of them.
            self._block = None

    @cached_property
    def _next(self) -> Try | None:
        return self.search.next_step(build_cost=self.build_cost)


@dataclass
class CulpritStudy:
    """A study that finds out which of the changed packages cause the failure that another study found.

    Args:
        matrix: The matrix of the other study.
        study: The other study, which has a verdict.
        session: Database, environments and executor.
        good: The combination that passes; None for the last good one.
        bad: The combination that fails; None for the first bad one.
        confidence: Posterior probability at which the search ends.

    Raises:
        UsageError: A combination does not exist or never failed, or no package differs between the two.
    """

    matrix: Matrix
    study: Study
    session: Session
    good: str | None = None
    bad: str | None = None
    confidence: float = 0.95
    _last: Combination | None = None
    _told_at: float = field(init=False, default_factory=time.monotonic)
    _here: int = 0
    _trials: StudyTrials = field(init=False)
    _around: Perturbation = field(init=False)
    _extras: Mapping[str, frozenset[str]] = field(init=False)
    _otherwise: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._good = stored_combination(self.session.store, self.study, self.good or "last-good", "--good")
        self._bad = stored_combination(self.session.store, self.study, self.bad or "first-bad", "--bad")
        for end in (self._good, self._bad):
            refuse_local(end)
        self._between = self._compare()
        self._trials = self.session.store.study_trials(self.study.id)
        self._trials.look()
        self._around = known_perturbation(self.session.store, self.study.id) or NONE
        self._ends = self._counts(self._good), self._counts(self._bad)
        if not self._ends[1][0]:
            raise UsageError(
                f"{self._bad.combination} was never seen to fail", remedy="name another with `--bad`"
            )
        self._changed = [
            ChangedPackage(
                name=change.name,
                old=_label(change.before, change.after),
                new=_label(change.after, change.before),
                of_axis=change.of_axis,
            )
            for change in self._between.changes
        ]

    @property
    def changes(self) -> int:
        """Return the number of packages that differ between the good and the bad environment."""
        return len(self._changed)

    def run(self) -> Explanation:
        """Run trials until the packages that cause the failure are known, and return them.

        The search also ends if no trial would help, or the maximum number of trials is reached.

        Returns:
            The result, which is stored with the other study unless the user stopped the command.
        """
        own = self._open()
        if self.changes > 1:
            self._say(f"comparing two environments, which differ in {self.changes} packages")
        demands = Demands.of(self._between, self.session.provider)
        if demands is not None:
            forced, released = demands.closures()
        else:
            forced, released = self._closures(own)

        def search() -> CulpritSearch:
            return CulpritSearch(
                self.changes,
                *self._ends,
                forced=forced,
                released=released,
                weights=self._weights(),
                confidence=self.confidence,
                min_rate=self.matrix.file.search.min_crash_rate,
                stated_rate=self.matrix.file.search.crash_rate,
                is_sound=lambda intermediate: demands is None or not demands.unmet(intermediate),
            )

        self._extras = asked_extras(self._between.request) if demands is None else demands.extras
        with closing(self._locking(own, demands)) as locking:
            plan = self._pursue(own, locking, search)
        trials = self.session.store.trials(own.id)
        counts = counts_of(trials).values()
        self._otherwise = sum(not one.counted and one.other > 0 for one in counts)
        found = self._explanation(plan.search, is_sure=plan.is_sure)
        if self.session.stopped():
            self.session.store.update_study(own.id, StudyStatus.INTERRUPTED)
            return found
        self.session.store.record_decision(self.study.id, EXPLAINED, found.model_dump(mode="json"))
        verdict = VerdictDocument(
            kind="explanation", reason=found.sentence, sentence=found.sentence, culprit_axes=found.blamed
        )
        self.session.store.update_study(own.id, StudyStatus.FINISHED, verdict)
        return found

    def _pursue(self, own: Study, locking: Locking, search: Callable[[], CulpritSearch]) -> CulpritPlan:
        def make_plan() -> CulpritPlan:
            plan = CulpritPlan(search(), MAX_TRIALS)
            for index in locking.prepared.unsolvable:
                plan.set_aside(index)
            return plan

        setup = RunSetup(
            self.matrix,
            make_plan,
            replace(self.session, notify=self._on_event),
            own.id,
            lambda index: self._conditions(index, locking.prepared.locks[index]),
        )
        forgive_builds(self.session.store, own.id)
        runner = BlockRunner(setup, locking)
        runner.replay()
        runner.take_unbuildable()
        if self.changes > 1:
            runner.run()
        assert isinstance(runner.plan, CulpritPlan)
        return runner.plan

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
                "a commit leads `bisect-env explain --git`",
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
                remedy="`bisect-env report --diff last-good first-bad` shows what does",
            )
        return between

    def _counts(self, one: LockedCombination) -> tuple[int, int]:
        """Return how many trials of one environment were bad, and how many were counted.

        Trials of other combinations with the same lock and the same values of value axes are included.
        """
        values = {n for n, axis in self.matrix.file.axes.items() if isinstance(axis, ValueAxis)}
        same = [
            state.combination
            for state in self.session.store.combinations(self.study.id)
            if state.lock_hash == one.lock.content_hash
            and all(state.combination[name] == one.combination[name] for name in values)
        ]
        counts = counts_of(self._trials.everything())
        found = [counts[combination] for combination in same if combination in counts]
        return sum(c.bad for c in found), sum(c.counted for c in found)

    @property
    def failure_kinds(self) -> tuple[str, ...]:
        """Return the kinds of failure of the bad environment, sorted; see `kind_of`."""
        return failure_kinds(self._trials.everything(), self._bad.combination.as_dict())

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
        # Use the target of the study to explain, even if its trials determined that target. What fails in
        # another way than the bad environment did is another failure.
        target = self._trials.target
        if not target.signature:
            target = replace(target, kinds=frozenset(self.failure_kinds))
        facts = (
            *(self.matrix.digest, target.signature, *sorted(target.kinds)),
            *(self._good.lock.content_hash, self._bad.lock.content_hash),
        )
        ends = {frozenset[int](): self._good.lock, self._between.everything: self._bad.lock}
        definition = {
            "name": f"{self.matrix.name}: culprit",
            "digest": hashlib.sha256("|".join(("culprit", *facts)).encode()).hexdigest(),
            "description": f"packages between {self._good.combination} and {self._bad.combination}",
            "grid": tuple(AxisInfo(name=one.name, values=(one.old, one.new)) for one in self._changed),
            "target": target,
            "exclude_newer": self.study.definition.exclude_newer,
        }
        locks = {index_of(changes, self.changes): lock for changes, lock in ends.items()}
        return open_derived(self.session.store, self.matrix, self.study.id, definition, locks)

    def _locking(self, own: Study, demands: Demands | None) -> Locking:
        """Return a `Locking` for environments that mix packages of the good and of the bad environment.

        Locks that earlier commands stored are passed to it.
        """
        states = self.session.store.combinations(own.id)
        known = {own.grid.index(one): lock for one, lock in stored_locks(self.session.store, own).items()}
        unsolvable = {
            own.grid.index(state.combination): UnsolvableError(state.reason)
            for state in states
            if state.lock_hash is None
        }
        return Locking(
            self.matrix,
            own.grid,
            self.session.provider,
            known=known,
            unsolvable=unsolvable,
            is_whole=False,
            requests=IntermediateRequests(self._between, demands),
        )

    def _closures(self, own: Study) -> tuple[list[Changes], list[Changes]]:
        """Ask a solver which other changes each package change needs; see `LeaningRequests.closures`.

        Raises:
            StudyInterruptedError: The user stopped the command.
        """
        requests = LeaningRequests(self._between)
        asked = requests.indices if self.changes > 1 else []

        def on_progress(done: int, total: int) -> None:
            if self.session.stopped():
                self.session.store.update_study(own.id, StudyStatus.INTERRUPTED)
                raise StudyInterruptedError(
                    f"stopped while asking the solver what changes need ({done} of {total})",
                    remedy="start the same command again; it begins with that anew",
                )

        if asked:
            self._say(f"asking the solver what each of {self.changes} changes needs")
        with closing(
            Locking(self.matrix, own.grid, self.session.provider, is_whole=False, requests=requests)
        ) as locking:
            locking.lock_every(asked, on_progress)
        return requests.closures(locking.prepared.locks)

    def _conditions(self, index: Index, lock: Lock) -> Conditions:
        key = trial_key(self.matrix, self._bad.combination, lock, self._around)
        return Conditions(key, self._values(changes_of(index)), self._around)

    def _values(self, intermediate: Changes) -> Combination:
        """Return the axis values for a trial in an intermediate environment.

        Some of its packages are those of the good environment, the others those of the bad one. The value of
        a package axis is the version that it contains.
        """
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

    def _on_event(self, event: events.Event) -> None:
        is_due = time.monotonic() >= self._told_at + TELL_EVERY
        match event:
            case events.TrialStarted(_, combination) if combination != self._last:
                self._last, self._here = combination, 0
                self._say(f"trying {self._in_words(combination)}")
            case events.TrialFinished(record):
                self._here += record.combination == self._last
                if is_due and self._last is not None:
                    self._say(f"{self._here} trials of {self._in_words(self._last)}")
            case events.SetAside(combinations, _, reason):
                self.session.warn(f"{self._in_words(combinations[0])}: {reason}")
        self.session.notify(event)

    def _say(self, text: str) -> None:
        self._told_at = time.monotonic()
        self.session.say(text)

    def _in_words(self, combination: Combination) -> str:
        values = combination.as_dict()
        names = [one.name for one in self._changed if values[one.name] == one.new]
        return f"{', '.join(names)} as in the bad one ({len(names)} of {self.changes})"

    def _explanation(self, search: CulpritSearch, *, is_sure: bool) -> Explanation:
        answer = search.answer
        found = Explanation(
            study=self.study.id,
            good=self._good.combination.as_dict(),
            bad=self._bad.combination.as_dict(),
            changes=tuple(self._changed),
            kind=answer.kind,
            culprits=tuple(sorted(answer.changes)),
            tied=tuple(tuple(sorted(other)) for other in answer.tied),
            perhaps=tuple(sorted(answer.perhaps)),
            required=tuple(sorted(answer.perhaps & search.along(answer.changes))),
            probability=1.0 if self.changes == 1 else answer.probability,
            is_sure=is_sure or self.changes == 1,
            intermediates=tuple(
                IntermediateEnvironment(
                    moved=tuple(sorted(one)), bad=hits, trials=trials, interval=clopper_pearson(hits, trials)
                )
                for one, (hits, trials) in search.counts_with_ends().items()
                if trials
            ),
            unsolvable=search.infeasible,
            otherwise=self._otherwise,
            extras={name: tuple(sorted(extras)) for name, extras in self._extras.items()},
        )
        return found.model_copy(update={"sentence": found.in_words()})


def failure_kinds(trials: Sequence[StoredTrial], bad: Mapping[str, str]) -> tuple[str, ...]:
    """Return the kinds of failure that were seen in the bad trials of a combination, sorted.

    Args:
        trials: Trials of a study, with their evidence.
        bad: The combination, axis name to value.
    """
    there = (t for t in trials if t.evidence is Evidence.BAD and t.combination.as_dict() == bad)
    return tuple(sorted({kind_of(one) for one in there}))


def _moves(axis: object) -> str:
    return axis.canonical_package if isinstance(axis, PackageAxis) else ""


def _label(state: LockedPackage | None, other: LockedPackage | None) -> str:
    if state is None:
        return ABSENT
    if other is not None and other.label == state.label:
        return f"{state.label} ({state.source or state.manager}, {state.sha256[:8]})"
    return state.label
