"""Runs trials of one combination of a matrix, so many or until its rate is known, without a search.

They are recorded in the study of the matrix, as any trial is: what was measured here is evidence there.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bisect_env.cluster.protocol import (
    BuildFailed,
    Executor,
    PrefixChange,
    PrefixProgress,
    PrefixReady,
    TrialCompleted,
    TrialLost,
)
from bisect_env.engine import events
from bisect_env.engine.amplify import known_perturbation
from bisect_env.engine.locking import (
    Prepared,
    environment_request,
    environment_warnings,
    group,
    lock_one,
)
from bisect_env.engine.reuse import trial_key
from bisect_env.engine.runner import Runner
from bisect_env.engine.specs import lost_record
from bisect_env.engine.state import BUILDS_BEFORE_UNBUILDABLE, VOIDS_BEFORE_STOP, Tally, in_flight
from bisect_env.engine.stored import named_combinations
from bisect_env.engine.study import (
    as_refined_before,
    own_trials,
    settled_ends,
    study_date,
    study_definition,
)
from bisect_env.environments.lock import Lock, UnsolvableError
from bisect_env.environments.lockfiles import may_be_installed
from bisect_env.environments.provider import EnvironmentProvider
from bisect_env.errors import InfrastructureError, NoEnvironmentError, UsageError
from bisect_env.matrix.expand import expand
from bisect_env.matrix.grid import Combination, Grid, Index, find_combination
from bisect_env.matrix.load import Matrix
from bisect_env.search.numeric import clopper_pearson
from bisect_env.search.rate_test import RateClaim, RateTest, upper_bound
from bisect_env.storage.entries import CombinationState, CombinationStatus, Study, StudyStatus
from bisect_env.storage.store import Store
from bisect_env.trials.judge import ChangedEnvironment
from bisect_env.trials.records import NONE, Evidence, Outcome, Perturbation, TrialRecord

# --------------------------------------------------------------------------------------------------
# Trials of one combination, one after another, for those who ask without a search.

MAKING = "making the environment, unless it is here already"
"""Said before the first trial, which may wait for it for minutes."""


@dataclass(frozen=True, slots=True)
class Single:
    """One combination, ready to be tried.

    Attributes:
        combination: Under which its trials are recorded.
        lock: Its environment.
        key: What makes trials of other studies the same measurement.
        values: What the command sees of the axes, if that is something else than `combination`.
        perturbation: Circumstances under which the study's trials run.
    """

    combination: Combination
    lock: Lock
    key: str
    values: Combination | None = None
    perturbation: Perturbation = NONE


Wanted = Callable[[Tally, int], int]
"""From what trials have said and how many run to how many more are wanted now; 0 when none run ends it."""


class SingleTrials:
    """Runs trials of single combinations.

    Args:
        matrix: What is run.
        store: Where trials are recorded.
        study_id: Their study.
        executor: Where they run; the caller closes it.
        notify: Hears of every trial once it is recorded.
        stopped: Looked at twice a second; true ends what runs.
    """

    def __init__(
        self,
        matrix: Matrix,
        store: Store,
        study_id: str,
        executor: Executor,
        *,
        notify: Callable[[events.Event], None],
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._matrix = matrix
        self._store = store
        self._study_id = study_id
        self._runner = Runner(matrix, executor, lambda text: self._warn([text]))
        self._notify = notify
        self._stopped = stopped
        self._trials = store.study_trials(study_id)
        self._trials.look()
        self._said: dict[str, Evidence] = {}
        self._seconds: float | None = None
        self._voids = 0

    @property
    def slots(self) -> int:
        """How many trials can run at the same time."""
        return self._runner.slots

    def run(
        self,
        single: Single,
        wanted: Wanted,
        ids: Iterator[str] | None = None,
        on_evidence: Callable[[Evidence], None] = lambda _evidence: None,
    ) -> Tally:
        """Run trials until no more are wanted.

        What runs then comes to its end and is recorded, too: to cut it off would favour quick outcomes.

        Args:
            single: What to try.
            wanted: Decides how many.
            ids: Of the trials; random ones if None.
            on_evidence: Hears what each trial says, in the order of recording, before more are wanted.

        Returns:
            What they said.

        Raises:
            NoEnvironmentError: The environment cannot be built.
            InfrastructureError: Too many trials in a row were spoilt.
            UsageError: The command cannot be run.
        """
        tally = Tally()
        runner = self._runner

        def start() -> None:
            self._submit(single, wanted(tally, len(runner.running)), ids)

        self._notify(events.Said(MAKING))
        try:
            for completion in runner.answers(single.lock, start, self._stopped):
                match completion:
                    case PrefixProgress(lock_hash, step):
                        self._notify(events.Building(lock_hash, step, 0, 1))
                    case PrefixReady():
                        self._made(single, completion)
                    case BuildFailed():
                        tally.failed_builds += 1
                        self._build_failed(single, completion, tally.failed_builds)
                    case TrialCompleted(record, build_seconds, notes):
                        self._warn(notes)
                        on_evidence(self._record(single, record, tally, build_seconds))
                    case TrialLost(_, _, host, crowded):
                        if crowded:
                            # Our own doing, and of all that shared the GPU at once: not a row of voids.
                            self._voids = -1
                        elif completion.under_trial:
                            tally.lost_on |= {host} - {""}
                        on_evidence(self._record(single, _lost(single, completion), tally))
                        if completion.change is not None:
                            self._note_change(single, completion.change)
        finally:
            # What had come to its end before it could be ended is recorded, too.
            for ended in runner.end():
                if isinstance(ended, TrialCompleted):
                    tally.count(self._judged(single, ended.record))
        return tally

    def _submit(self, single: Single, more: int, ids: Iterator[str] | None) -> None:
        room = in_flight(self.slots, self._seconds) - len(self._runner.running)
        for _ in range(min(more, room)):
            trial_id = uuid.uuid4().hex if ids is None else next(ids)
            self._runner.submit(
                trial_id,
                single.combination,
                single.lock,
                values=single.values,
                perturbation=single.perturbation,
            )
            self._notify(events.TrialStarted(trial_id, single.combination))

    def _made(self, single: Single, answer: PrefixReady) -> None:
        self._warn(answer.notes)
        if answer.build_seconds:
            built = (single.combination,)
            self._notify(events.Built(single.lock.content_hash, built, answer.build_seconds))

    def _build_failed(self, single: Single, failure: BuildFailed, times: int) -> None:
        """Begin again a few times: network trouble passes, and one host's disk is not all hosts'."""
        if times < BUILDS_BEFORE_UNBUILDABLE:
            self._warn([f"building {single.combination}: {failure.message}; it is tried again"])
            self._runner.prepare(single.lock)
            return
        if failure.transient:
            raise InfrastructureError(
                f"{single.combination}: its environment cannot be made: {failure.message}",
                tried=f"{times} times",
                remedy="mend that, then start the same command again",
            )
        raise NoEnvironmentError(
            f"{single.combination}: its environment cannot be built: {failure.message}",
            tried=f"{times} times",
            remedy="try another combination; `bisect-env plan MATRIX` lists them",
        )

    def _warn(self, texts: Sequence[str]) -> None:
        for text in texts:
            self._notify(events.Warned(text))

    def _judged(self, single: Single, record: TrialRecord) -> Evidence:
        """Record a trial; return what it is evidence of.

        Raises:
            UsageError: Another command has shown which failure is meant, and earlier trials mean something
                else now.
        """
        before = self._trials.target
        news = self._trials.record([(record, single.key)])
        is_changed = self._trials.target != before
        known = self._trials.everything() if is_changed else news
        by_now = {one.trial_id: one.evidence for one in known}
        if is_changed and any(by_now[trial_id] is not said for trial_id, said in self._said.items()):
            raise UsageError(
                "another command has shown meanwhile which failure is meant, and trials that were counted "
                "here mean something else now",
                remedy="start the same command again: what it has measured is stored",
            )
        self._said[record.trial_id] = by_now[record.trial_id]
        return by_now[record.trial_id]

    def _note_change(self, single: Single, change: PrefixChange) -> None:
        """Void the trials of an environment since it was last seen as it was made.

        Raises:
            InfrastructureError: Always: what was counted here does not count any more.
        """
        until = datetime.now(UTC)
        self._trials.note_change(ChangedEnvironment(change.lock_hash, change.host, change.since, until))
        raise InfrastructureError(
            f"{single.combination}: files of its environment were changed while trials ran",
            tried="its trials since it was last seen as it was made are not counted",
            remedy="see to it that the script changes no installed file, then start the same command again",
        )

    def _record(
        self, single: Single, record: TrialRecord, tally: Tally, build_seconds: float = 0.0
    ) -> Evidence:
        evidence = self._judged(single, record)
        tally.count(evidence)
        if evidence in (Evidence.GOOD, Evidence.BAD):
            self._seconds = record.duration
        self._notify(events.TrialFinished(record, evidence, build_seconds))
        if record.outcome is Outcome.NOT_RUNNABLE:
            raise UsageError(
                f"{self._matrix.path}: the trial's command cannot be run: {record.detail}",
                tried=" ".join(self._matrix.command(single.values or single.combination)),
                remedy="correct `trial.command` or `trial.files`, then start the same command again",
            )
        self._voids = self._voids + 1 if evidence is Evidence.VOID else 0
        if self._voids >= VOIDS_BEFORE_STOP:
            raise InfrastructureError(
                f"{self._voids} trials in a row were spoilt; the last: {record.outcome}: {record.detail}",
                tried="each was run again",
                remedy="mend that, then start the same command again",
            )
        return evidence


def _lost(single: Single, lost: TrialLost) -> TrialRecord:
    return lost_record(lost.trial_id, single.combination, single.lock.content_hash, lost.reason, lost.host)


# --------------------------------------------------------------------------------------------------
# One combination of a matrix, with the lock that it has in its study.


@dataclass(frozen=True, slots=True)
class One:
    """One combination and where its trials belong.

    Attributes:
        study: Of the matrix.
        grid: As expanded.
        index: Of the combination.
        single: What is to be tried.
    """

    study: Study
    grid: Grid
    index: Index
    single: Single


@dataclass(frozen=True, slots=True)
class Looked:
    """One combination for those whose trials belong to no study.

    Attributes:
        study: Of the matrix; None if there is none.
        single: What is to be tried.
    """

    study: Study | None
    single: Single


@dataclass(frozen=True, slots=True)
class _Named:
    """A combination that a user has named, before it is locked."""

    study: Study | None
    grid: Grid
    as_of: datetime
    combination: Combination


def open_one(
    matrix: Matrix,
    at: str | None,
    *,
    store: Store,
    provider: EnvironmentProvider,
    notify: Callable[[events.Event], None],
) -> One:
    """Find a combination and lock it, in the study of its matrix, which is begun if there is none.

    Args:
        matrix: As loaded.
        at: See `bisect_env.matrix.grid.find_combination`.
        store: Open for writing.
        provider: Solves.
        notify: Hears of the study and of warnings.

    Raises:
        UsageError: No such combination.
        NoEnvironmentError: It has no environment; no study is begun for it.
        InfrastructureError: The index cannot be used.
    """
    named = _named(matrix, at, store, provider)
    lock, warnings = _locked(matrix, named, store, provider, notify)
    study = named.study or _begin(store, matrix, named.grid, named.as_of)
    notify(events.StudyOpened(study.id, study.name, own_trials(store, study)))
    index = named.grid.index(named.combination)
    _save(store, study, named.grid, index, lock, warnings)
    return One(study, named.grid, index, _single(matrix, named, lock, store))


def look_up(
    matrix: Matrix,
    at: str | None,
    *,
    store: Store,
    provider: EnvironmentProvider,
    notify: Callable[[events.Event], None],
    as_of: datetime | None = None,
) -> Looked:
    """Look up and lock a combination without recording a study.

    Args:
        matrix: As loaded.
        at: As for `open_one`.
        store: Where a study may be.
        provider: Solves.
        notify: Hears of warnings.
        as_of: What "now" is where no study says; the present moment if None.

    Raises:
        UsageError: No such combination.
        NoEnvironmentError: It has no environment.
        InfrastructureError: The index cannot be used.
    """
    named = _named(matrix, at, store, provider, as_of)
    lock, _ = _locked(matrix, named, store, provider, notify)
    return Looked(named.study, _single(matrix, named, lock, store))


def _named(
    matrix: Matrix, at: str | None, store: Store, provider: EnvironmentProvider, as_of: datetime | None = None
) -> _Named:
    known = store.find_study(matrix.name, matrix.digest)
    if known is not None or as_of is None:
        as_of = study_date(matrix, store, provider.as_of)
    grid = expand(matrix, provider.catalogue, as_of, settled_ends(known))
    if known is not None:
        grid = as_refined_before(matrix, grid, known)
    combination = find_combination(grid, at, named_combinations(known) if known else None)
    return _Named(known, grid, as_of, combination)


def _locked(
    matrix: Matrix,
    named: _Named,
    store: Store,
    provider: EnvironmentProvider,
    notify: Callable[[events.Event], None],
) -> tuple[Lock, str]:
    """The lock of a combination, as its study has it or else solved now; what it warns of in one line."""
    grid, combination = named.grid, named.combination
    index = grid.index(combination)
    if index in grid.excluded:
        notify(events.Warned(f"{combination} is excluded in the matrix: {grid.excluded[index]}"))
    lock = None if named.study is None else _stored_lock(store, named.study, combination)
    if lock is None or not may_be_installed(lock):
        notify(events.Said(f"locking {combination}"))
        result = lock_one(matrix, grid, index, provider)
        if isinstance(result, UnsolvableError):
            raise NoEnvironmentError(
                f"{combination} has no environment: {result.message}",
                remedy="`bisect-env plan MATRIX` lists the combinations that have one",
            )
        lock = result
    warnings = environment_warnings(environment_request(matrix, combination), lock)
    for warning in warnings:
        notify(events.Warned(f"{combination}: {warning}"))
    return lock, "; ".join(warnings)


def _single(matrix: Matrix, named: _Named, lock: Lock, store: Store) -> Single:
    index = named.grid.index(named.combination)
    prepared = Prepared(named.grid, {index: lock}, {}, group(named.grid, {index: lock}))
    around = (None if named.study is None else known_perturbation(store, named.study.id)) or NONE
    key = trial_key(matrix, prepared, index, around)
    return Single(named.combination, lock, key, perturbation=around)


def _begin(store: Store, matrix: Matrix, grid: Grid, as_of: datetime) -> Study:
    study = store.open_study(study_definition(matrix, grid, as_of))
    # Nobody is at work on its answer.
    store.finish_study(study.id, StudyStatus.INTERRUPTED, None)
    return store.study(study.id)


def _stored_lock(store: Store, study: Study, combination: Combination) -> Lock | None:
    for state in store.combinations(study.id):
        if state.combination == combination and state.lock_hash is not None:
            return store.lock(state.lock_hash)
    return None


def _save(store: Store, study: Study, grid: Grid, index: Index, lock: Lock, warnings: str) -> None:
    if _stored_lock(store, study, grid.combination(index)) is not None:
        return
    store.save_locks(study.id, [lock])
    excluded = grid.excluded.get(index)
    status = CombinationStatus.SOLVABLE if excluded is None else CombinationStatus.EXCLUDED
    reason = warnings if excluded is None else excluded
    state = CombinationState(grid.combination(index), status, reason, lock.content_hash)
    store.save_combinations(study.id, [state])


# --------------------------------------------------------------------------------------------------
# Runs one combination until its failure rate is shown to be below a limit, or above it.
#
# A test that was interrupted goes on where it stopped. The ids of its trials are made from the id of the test
# and their number, so that the database itself says which they are.

BEGUN, ENDED = "verify", "verified"
"""Kinds of decisions."""
PATIENCE = 10
"""Trials at most, in those that a flawless combination would need, unless the user says otherwise."""


@dataclass(frozen=True, slots=True)
class Verification:
    """How a test of a rate ended.

    Attributes:
        combination: Axis to value.
        claim: What was shown; None if nothing was.
        max_rate: The limit.
        confidence: Of the claim.
        trials: That are evidence.
        hits: Bad ones among them.
        rate: Their share, 0 without trials.
        interval: 95 % interval of the rate, by itself, without regard to the test.
        below: One-sided upper bound of the rate at the confidence, by itself.
        why_stopped: Why there is no claim, "" if there is one.
    """

    combination: dict[str, str]
    claim: RateClaim | None
    max_rate: float
    confidence: float
    trials: int
    hits: int
    rate: float
    interval: tuple[float, float]
    below: float
    why_stopped: str = ""

    def document(self) -> dict[str, Any]:
        """Return the verification as a JSON object."""
        return {
            "event": "verified",
            "combination": self.combination,
            "claim": None if self.claim is None else str(self.claim),
            "max_rate": self.max_rate,
            "confidence": self.confidence,
            "trials": self.trials,
            "bad": self.hits,
            "rate": self.rate,
            "interval": list(self.interval),
            "below": self.below,
            "why_stopped": self.why_stopped,
        }


class Verifier:
    """One test of a rate, in the database and in memory.

    Args:
        one: The combination.
        store: Where its trials are.
        max_rate: The limit.
        confidence: Of the claim.
        max_trials: Where to give up; None for ten times what a flawless combination would need.
        fresh: Begin a new test, even where one was interrupted.

    Attributes:
        resumed: Trials of an interrupted test that count on.
    """

    def __init__(
        self,
        one: One,
        store: Store,
        *,
        max_rate: float,
        confidence: float,
        max_trials: int | None = None,
        fresh: bool = False,
    ) -> None:
        self._one = one
        self._store = store
        self._test = RateTest(max_rate, confidence)
        self.limit = max_trials or PATIENCE * self._test.clean_needed
        self._facts = {
            "combination": one.single.combination.as_dict(),
            "lock": one.single.lock.content_hash,
            "max_rate": max_rate,
            "confidence": confidence,
        }
        unfinished = None if fresh else self._unfinished()
        self._id = unfinished or uuid.uuid4().hex
        if unfinished is None:
            store.record_decision(one.study.id, BEGUN, {"id": self._id, **self._facts})
        self._known = {trial.trial_id: trial for trial in store.trials(one.study.id)}
        mine = [self._known[trial_id] for trial_id in self._names() if trial_id in self._known]
        for trial in sorted(mine, key=lambda trial: trial.sequence):
            self._tell(trial.evidence)
        self.resumed = len(mine)

    @property
    def clean_needed(self) -> int:
        """Trials without a failure that show a rate below the limit."""
        return self._test.clean_needed

    def run(self, trials: SingleTrials) -> Verification:
        """Run trials until something is shown, nothing can be learnt, or the limit is reached."""
        names = (trial_id for trial_id in self._names(endless=True) if trial_id not in self._known)
        tally = trials.run(self._one.single, self._wanted, names, on_evidence=self._tell)
        return self.end(tally.why_aside() or "")

    def _wanted(self, tally: Tally, running: int) -> int:
        if self._test.claim is not None or tally.why_aside() is not None:
            return 0
        # As long as nothing failed it is known where the end would be; what runs beyond it runs for nothing.
        end = self.limit if self._test.hits else min(self.limit, self._test.clean_needed)
        return max(0, end - self._test.trials - running)

    def end(self, why: str = "") -> Verification:
        """Return the result so far; it is stored if the test has ended."""
        test = self._test
        if test.claim is None and not why and test.trials >= self.limit:
            why = f"the limit of {self.limit} trials is reached"
        if test.claim is not None or why:
            said = None if test.claim is None else str(test.claim)
            self._store.record_decision(self._one.study.id, ENDED, {"id": self._id, "claim": said})
        return Verification(
            self._one.single.combination.as_dict(),
            test.claim,
            test.max_rate,
            test.confidence,
            test.trials,
            test.hits,
            test.hits / test.trials if test.trials else 0.0,
            clopper_pearson(test.hits, test.trials),
            upper_bound(test.hits, test.trials, test.confidence),
            why,
        )

    def _tell(self, evidence: Evidence) -> None:
        if evidence in (Evidence.GOOD, Evidence.BAD):
            self._test.tell(evidence is Evidence.BAD)

    def _unfinished(self) -> str | None:
        ended, found = set(), None
        for decision in self._store.decisions(self._one.study.id):
            payload = decision.payload
            if decision.kind == ENDED:
                ended.add(payload.get("id"))
            elif decision.kind == BEGUN and all(payload.get(k) == v for k, v in self._facts.items()):
                found = str(payload["id"])
        return None if found in ended else found

    def _names(self, *, endless: bool = False) -> Iterator[str]:
        """Ids of this test's trials; trials were started in this order, and some may never have ended."""
        space = uuid.UUID(self._id)
        names = (uuid.uuid5(space, str(number)).hex for number in itertools.count())
        return names if endless else itertools.islice(names, 2 * self.limit + _LOST)


_LOST = 1000
"""Numbers that cancelled and lost trials may have used up."""
