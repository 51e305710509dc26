"""One combination of a matrix, with the lock that it has in its study.

Locks lean on their neighbours', so that what a combination gets depends on those before it. To lock one as
the whole study would, those that it leans on are locked first, and no others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

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
from bisect_env.engine.single import Single
from bisect_env.engine.stored import named_combinations
from bisect_env.engine.study import study_date, study_definition
from bisect_env.environments.failures import UnsolvableError
from bisect_env.environments.lock import Lock, LockResult
from bisect_env.environments.provider import EnvironmentProvider
from bisect_env.errors import NoEnvironmentError
from bisect_env.matrix.at import find_combination
from bisect_env.matrix.combination import Combination
from bisect_env.matrix.expand import expand
from bisect_env.matrix.grid import Grid, Index
from bisect_env.matrix.load import Matrix
from bisect_env.storage.records import CombinationState, CombinationStatus, Study, StudyStatus
from bisect_env.storage.store import Store
from bisect_env.trials.perturbation import NONE


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
