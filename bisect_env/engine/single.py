"""Choose one combination of a matrix, with its lock from the study of the matrix, and run trials of it.

The trials are recorded in the study of the matrix and are evidence there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass

from bisect_env.engine import events
from bisect_env.engine.amplify import known_perturbation
from bisect_env.engine.locking import Locking, Prepared
from bisect_env.engine.opening import (
    Expansion,
    expand_as_known,
    open_study,
    own_trials,
    save_prepared,
    stored_locks,
)
from bisect_env.engine.plans import BlockRunner, OneCombinationPlan
from bisect_env.engine.requests import environment_request, environment_warnings
from bisect_env.engine.reuse import trial_key
from bisect_env.engine.series import Conditions, RunSetup
from bisect_env.engine.session import Session
from bisect_env.engine.stored import LockedCombination, named_combinations
from bisect_env.environments.lock import UnsolvableError
from bisect_env.environments.provider import EnvironmentProvider
from bisect_env.errors import NoEnvironmentError
from bisect_env.matrix.grid import Grid, Index, find_combination
from bisect_env.matrix.load import Matrix
from bisect_env.storage.entries import EvidenceCounts, Study, StudyStatus
from bisect_env.storage.store import Store
from bisect_env.trials.records import NONE, Perturbation

ENVIRONMENT_NOTICE = "making the environment, unless it is here already"
"""Message shown before the first trial, which may have to wait minutes for its environment."""


@dataclass(frozen=True, slots=True)
class ChosenCombination(LockedCombination):
    """A combination that the user chose, with its lock and the study of its matrix.

    Attributes:
        matrix: The matrix that contains the combination.
        grid: The expanded matrix.
        index: The position of the combination in the grid.
        study: The study of the matrix.
        perturbation: Circumstances under which the study's trials run.
    """

    matrix: Matrix
    grid: Grid
    index: Index
    study: Study
    perturbation: Perturbation


def open_combination(
    matrix: Matrix,
    at: str | None,
    *,
    store: Store,
    provider: EnvironmentProvider,
    notify: Callable[[events.Event], None],
) -> ChosenCombination:
    """Find the combination that the user named, lock it, and open the study of its matrix.

    The study is begun if there is none.

    Args:
        matrix: The matrix.
        at: The user's text that names the combination; see `bisect_env.matrix.grid.find_combination`.
        store: Database, open for writing.
        provider: Locks environments.
        notify: Called with an event for the study and for each warning.

    Raises:
        UsageError: There is no such combination.
        NoEnvironmentError: It has no environment; no study is begun.
        InfrastructureError: The index cannot be reached.
    """
    expansion = expand_as_known(matrix, store, provider)
    found = look_up(expansion, at, store=store, provider=provider, notify=notify)
    grid, study = expansion.grid, expansion.study
    index = grid.index(found.combination)
    if study is None:
        study = open_study(store, expansion)
        # No command is searching for its answer.
        store.update_study(study.id, StudyStatus.INTERRUPTED)
        study = store.study(study.id)
    notify(events.StudyOpened(study.id, study.name, own_trials(store, study)))
    warnings = environment_warnings(environment_request(matrix, found.combination), found.lock)
    save_prepared(store, study.id, Prepared(grid, {index: found.lock}, {}, {}, {index: warnings}), [index])
    around = known_perturbation(store, study.id) or NONE
    return ChosenCombination(found.combination, found.lock, matrix, grid, index, study, around)


def look_up(
    expansion: Expansion,
    at: str | None,
    *,
    store: Store,
    provider: EnvironmentProvider,
    notify: Callable[[events.Event], None],
    flag: str = "--at",
) -> LockedCombination:
    """Find the combination that the user named, and lock it, without beginning a study.

    Args:
        expansion: The expanded matrix.
        at: As for `open_combination`.
        store: Database that may contain the study of the matrix.
        provider: Locks environments.
        notify: Called with an event for each warning.
        flag: Name of the option that names the combination, for messages.

    Raises:
        UsageError: There is no such combination.
        NoEnvironmentError: It has no environment.
        InfrastructureError: The index cannot be reached.
    """
    matrix, grid, known = expansion.matrix, expansion.grid, expansion.study
    combination = find_combination(grid, at, named_combinations(store, known) if known else None, flag=flag)
    index = grid.index(combination)
    if index in grid.excluded:
        notify(events.Warned(f"{combination} is excluded in the matrix: {grid.excluded[index].why}"))
    lock = None if known is None else stored_locks(store, known).get(combination)
    if lock is None:
        notify(events.Said(f"locking {combination}"))
        with closing(Locking(matrix, grid, provider)) as locking:
            result = locking.lock_now(index)
        if isinstance(result, UnsolvableError):
            raise NoEnvironmentError(
                f"{combination} has no environment: {result.message}",
                remedy="`bisect-env plan MATRIX` lists the combinations that have one",
            )
        lock = result
    for warning in environment_warnings(environment_request(matrix, combination), lock):
        notify(events.Warned(f"{combination}: {warning}"))
    return LockedCombination(combination, lock)


def run_trials(
    chosen: ChosenCombination,
    make_plan: Callable[[], OneCombinationPlan],
    session: Session,
    *,
    series: Collection[str] = (),
) -> tuple[OneCombinationPlan, EvidenceCounts, str]:
    """Run trials of one combination until a plan is finished, and return the plan with its results.

    Trials that are still running at the end are waited for, because ending them would favour quick outcomes.

    Args:
        chosen: The combination, from `open_combination`.
        make_plan: Returns a plan without trials.
        session: Database, environments and executor.
        series: Ids of the stored trials that already belong to the plan.

    Returns:
        The plan with all results; the counts of all its trials; and the reason why the combination was
        excluded, "" if it was not.

    Raises:
        NoEnvironmentError: The environment cannot be built.
        InfrastructureError: Too many trials in a row were void.
        UsageError: The command cannot be run.
    """
    matrix, index = chosen.matrix, chosen.index
    locking = Locking(matrix, chosen.grid, session.provider, known={index: chosen.lock}, is_whole=False)

    def conditions(_index: Index) -> Conditions:
        key = trial_key(matrix, chosen.combination, chosen.lock, chosen.perturbation)
        return Conditions(key, None, chosen.perturbation)

    with closing(locking):
        setup = RunSetup(matrix, make_plan, session, chosen.study.id, conditions, set(series))
        runner = BlockRunner(setup, locking)
        runner.replay()
        session.say(ENVIRONMENT_NOTICE)
        runner.run()
    assert isinstance(runner.plan, OneCombinationPlan)
    return runner.plan, runner.state.counts[index], runner.state.aside.get(index, ("", ""))[1]
