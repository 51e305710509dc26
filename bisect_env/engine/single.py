"""Trials of one combination of a matrix, for those who ask without a search.

They are recorded in the study of the matrix, as any trial is: what was measured here is evidence there.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from bisect_env.cluster.protocol import (
    BuildFailed,
    Executor,
    PrefixReady,
    PrefixRequest,
    TrialCompleted,
    TrialLost,
    TrialRequest,
)
from bisect_env.engine import events
from bisect_env.engine.amplify import known_perturbation
from bisect_env.engine.prepare import (
    Prepared,
    environment_request,
    environment_warnings,
    group,
    preferences,
)
from bisect_env.engine.reuse import trial_key
from bisect_env.engine.rules import BUILDS_BEFORE_UNBUILDABLE, VOIDS_BEFORE_STOP, Tally, in_flight
from bisect_env.engine.specs import allowed_sources, lost_record, target_of, trial_files, trial_spec
from bisect_env.engine.stored import named_combinations
from bisect_env.engine.study import study_date, study_definition
from bisect_env.engine.target import StudyTarget
from bisect_env.environments.lock import Lock, LockResult, UnsolvableError
from bisect_env.environments.provider import EnvironmentProvider
from bisect_env.errors import InfrastructureError, NoEnvironmentError, UsageError
from bisect_env.matrix.at import find_combination
from bisect_env.matrix.checks import listed_values
from bisect_env.matrix.expand import expand
from bisect_env.matrix.grid import Combination, Grid, Index
from bisect_env.matrix.load import Matrix
from bisect_env.storage.records import CombinationState, CombinationStatus, Study, StudyStatus
from bisect_env.storage.store import Store
from bisect_env.trials.records import NONE, Evidence, Outcome, Perturbation, TrialRecord

# --------------------------------------------------------------------------------------------------
# Trials of one combination, one after another, for those who ask without a search.

LOOK = 0.5
"""Seconds between two looks at whether the user wants to stop."""
CANCEL_GRACE = 30.0
"""Seconds for cancelled trials to be answered."""
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
        self._executor = executor
        self._notify = notify
        self._stopped = stopped
        wanted = matrix.file.trial.bad.signature
        self._target = StudyTarget(target_of(matrix), wanted, store, study_id, _bad_end(matrix))
        self._files = trial_files(matrix)
        self._allow_source = allowed_sources(matrix)
        self._seconds: float | None = None
        self._voids = 0

    @property
    def slots(self) -> int:
        """How many trials can run at the same time."""
        return self._executor.slots

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
        running: set[str] = set()
        ready = False
        self._notify(events.Said(MAKING))
        self._prepare(single)
        try:
            while True:
                if ready:
                    self._submit(single, wanted(tally, len(running)), running, ids)
                if (ready and not running) or self._stopped():
                    return tally
                for completion in self._executor.wait(LOOK):
                    match completion:
                        case PrefixReady():
                            ready = True
                            self._made(single, completion)
                        case BuildFailed(trial_id):
                            ready = False
                            running.discard(trial_id)
                            tally.failed_builds += 1
                            self._build_failed(single, completion, tally.failed_builds)
                        case TrialCompleted(record, build_seconds, notes):
                            running.discard(record.trial_id)
                            self._warn(notes)
                            on_evidence(self._record(single, record, tally, build_seconds))
                        case TrialLost(trial_id, _, host):
                            running.discard(trial_id)
                            tally.lost_on |= {host} - {""}
                            on_evidence(self._record(single, _lost(single, completion), tally))
        finally:
            if running:
                self._cancel(single, running, tally)

    def _submit(self, single: Single, more: int, running: set[str], ids: Iterator[str] | None) -> None:
        if self._stopped():
            return
        room = in_flight(self._executor.slots, self._seconds) - len(running)
        for _ in range(min(more, room)):
            trial_id = uuid.uuid4().hex if ids is None else next(ids)
            spec = trial_spec(
                self._matrix,
                single.combination,
                single.lock,
                trial_id,
                self._files,
                values=single.values,
                perturbation=single.perturbation,
            )
            running.add(trial_id)
            self._executor.submit(TrialRequest(spec, single.lock, self._allow_source))
            self._notify(events.TrialStarted(trial_id, single.combination))

    def _prepare(self, single: Single) -> None:
        self._executor.prepare(PrefixRequest(single.lock, self._allow_source))

    def _made(self, single: Single, answer: PrefixReady) -> None:
        self._warn(answer.notes)
        if answer.build_seconds:
            built = (single.combination,)
            self._notify(events.Built(single.lock.content_hash, built, answer.build_seconds))

    def _build_failed(self, single: Single, failure: BuildFailed, times: int) -> None:
        """Begin again a few times: network trouble passes, and one host's disk is not all hosts'."""
        if times < BUILDS_BEFORE_UNBUILDABLE:
            self._warn([f"building {single.combination}: {failure.message}; it is tried again"])
            self._prepare(single)
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

    def _record(
        self, single: Single, record: TrialRecord, tally: Tally, build_seconds: float = 0.0
    ) -> Evidence:
        evidence = self._target.judge(single.combination, record, repeated=tally.void > 0)
        self._store.record_trial(self._study_id, record, evidence, trial_key=single.key)
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

    def _cancel(self, single: Single, running: set[str], tally: Tally) -> None:
        """End what runs; what had come to its end before that is recorded."""
        self._executor.cancel()
        patience = time.monotonic() + CANCEL_GRACE
        while running and time.monotonic() < patience:
            for completion in self._executor.wait(LOOK):
                if isinstance(completion, TrialCompleted):
                    running.discard(completion.record.trial_id)
                    record = completion.record
                    evidence = self._target.judge(single.combination, record, repeated=tally.void > 0)
                    self._store.record_trial(self._study_id, record, evidence, trial_key=single.key)
                    tally.count(evidence)
                elif not isinstance(completion, PrefixReady):
                    running.discard(completion.trial_id)


def _bad_end(matrix: Matrix) -> Combination | None:
    """The stated bad end; axes with one value need not be stated."""
    stated = matrix.file.bad
    if stated is None:
        return None
    only = {name: values[0] for name, axis in matrix.file.axes.items() if (values := listed_values(axis))}
    return Combination.of({name: stated.get(name, only.get(name, "")) for name in matrix.file.axes})


def _lost(single: Single, lost: TrialLost) -> TrialRecord:
    return lost_record(lost.trial_id, single.combination, single.lock.content_hash, lost.reason, lost.host)


# --------------------------------------------------------------------------------------------------
# One combination of a matrix, with the lock that it has in its study.
#
# Locks lean on their neighbours', so that what a combination gets depends on those before it. To lock one
# as the whole study would, those that it leans on are locked first, and no others.


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
    workers: int = 2,
) -> One:
    """Find a combination and lock it, in the study of its matrix, which is begun if there is none.

    Args:
        matrix: As loaded.
        at: See `bisect_env.matrix.at.find_combination`.
        store: Open for writing.
        provider: Solves.
        notify: Hears of the study and of warnings.
        workers: Solvers at the same time.

    Raises:
        UsageError: No such combination.
        NoEnvironmentError: It has no environment; no study is begun for it.
        InfrastructureError: The index cannot be used.
    """
    named = _named(matrix, at, store, provider)
    lock, warnings = _locked(matrix, named, store, provider, notify, workers)
    study = named.study or _begin(store, matrix, named.grid, named.as_of)
    notify(events.StudyOpened(study.id, study.name, len(store.trials(study.id))))
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
    workers: int = 2,
) -> Looked:
    """The same for trials that are not recorded: what no study knows is locked, and no study is begun.

    Args:
        matrix: As loaded.
        at: As for `open_one`.
        store: Where a study may be.
        provider: Solves.
        notify: Hears of warnings.
        as_of: What "now" is where no study says; the present moment if None.
        workers: Solvers at the same time.

    Raises:
        UsageError: No such combination.
        NoEnvironmentError: It has no environment.
        InfrastructureError: The index cannot be used.
    """
    named = _named(matrix, at, store, provider, as_of)
    lock, _ = _locked(matrix, named, store, provider, notify, workers)
    return Looked(named.study, _single(matrix, named, lock, store))


def _named(
    matrix: Matrix, at: str | None, store: Store, provider: EnvironmentProvider, as_of: datetime | None = None
) -> _Named:
    known = store.find_study(matrix.name, matrix.digest)
    if known is not None or as_of is None:
        as_of = study_date(matrix, store, provider.as_of)
    grid = expand(matrix, provider.catalogue, as_of)
    combination = find_combination(grid, at, named_combinations(known) if known else None)
    return _Named(known, grid, as_of, combination)


def _locked(
    matrix: Matrix,
    named: _Named,
    store: Store,
    provider: EnvironmentProvider,
    notify: Callable[[events.Event], None],
    workers: int,
) -> tuple[Lock, str]:
    """The lock of a combination, as its study has it or else solved now; what it warns of in one line."""
    grid, combination = named.grid, named.combination
    index = grid.index(combination)
    if index in grid.excluded:
        notify(events.Warned(f"{combination} is excluded in the matrix: {grid.excluded[index]}"))
    lock = None if named.study is None else _stored_lock(store, named.study, combination)
    if lock is None:
        notify(events.Said(f"locking {combination}"))
        result = lock_one(matrix, grid, index, provider, named.as_of, workers=workers)
        if isinstance(result, UnsolvableError):
            raise NoEnvironmentError(
                f"{combination} has no environment: {result.message}",
                remedy="`bisect-env plan MATRIX` lists the combinations that have one",
            )
        lock = result
    warnings = environment_warnings(environment_request(matrix, combination, named.as_of), lock)
    for warning in warnings:
        notify(events.Warned(f"{combination}: {warning}"))
    return lock, "; ".join(warnings)


def _single(matrix: Matrix, named: _Named, lock: Lock, store: Store) -> Single:
    index = named.grid.index(named.combination)
    prepared = Prepared(named.grid, {index: lock}, {}, group(named.grid, {index: lock}))
    around = (None if named.study is None else known_perturbation(store, named.study.id)) or NONE
    key = trial_key(matrix, prepared, index, around)
    return Single(named.combination, lock, key, perturbation=around)


def lock_one(
    matrix: Matrix,
    grid: Grid,
    index: Index,
    provider: EnvironmentProvider,
    as_of: datetime,
    *,
    workers: int = 2,
) -> LockResult:
    """Lock one combination as `lock_all` would.

    A model that turns out to have no lock makes its follower lean on the next one, which is then locked as
    well: that is seen only once it is solved, hence the rounds.
    """
    candidates = [one for one in grid.indices() if one not in grid.excluded or one == index]
    models = preferences(matrix, grid, candidates)
    place = {one: position for position, one in enumerate(candidates)}
    results: dict[int, LockResult] = {}
    wanted = {place[index]}
    while True:
        wanted = _leaned_on(wanted, models, results)
        if wanted <= results.keys():
            return results[place[index]]
        chosen = sorted(wanted)
        position = {one: i for i, one in enumerate(chosen)}
        requests = [environment_request(matrix, grid.combination(candidates[i]), as_of) for i in chosen]
        lean = [[position[m] for m in models[i] if m in position] for i in chosen]
        answers = provider.lock_many(requests, workers=workers, prefer=lean)
        results = dict(zip(chosen, answers, strict=True))


def _leaned_on(wanted: set[int], models: list[list[int]], results: dict[int, LockResult]) -> set[int]:
    """Those wanted, and all on which they lean as far as is known by now. Pure."""
    found: set[int] = set()
    todo = list(wanted)
    while todo:
        one = todo.pop()
        if one in found:
            continue
        found.add(one)
        for model in models[one]:
            todo.append(model)
            if not isinstance(results.get(model), UnsolvableError):
                break
    return found


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
