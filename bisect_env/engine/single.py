"""Chooses one combination of a matrix, with the lock that it has in its study, and runs trials of it.

They are recorded in the study of the matrix like all trials: what is measured here is evidence there.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime

from bisect_env.engine import events
from bisect_env.engine.amplify import known_perturbation
from bisect_env.engine.locking import Locking, Prepared, environment_request, environment_warnings
from bisect_env.engine.opening import (
    Expansion,
    expand_as_known,
    open_study,
    own_trials,
    stored_locks,
)
from bisect_env.engine.plans import BlockRunner, OnePlan
from bisect_env.engine.reuse import trial_key
from bisect_env.engine.runner import Conditions, Series
from bisect_env.engine.session import Session
from bisect_env.engine.stored import LockedCombination, named_combinations
from bisect_env.environments.lock import UnsolvableError
from bisect_env.environments.provider import EnvironmentProvider
from bisect_env.errors import NoEnvironmentError
from bisect_env.matrix.grid import Index, find_combination
from bisect_env.matrix.load import Matrix
from bisect_env.storage.entries import EvidenceCounts, Study, StudyStatus
from bisect_env.storage.store import Store
from bisect_env.trials.records import NONE, Perturbation

MAKING = "making the environment, unless it is here already"
"""Reported before the first trial, which may wait minutes for it."""


@dataclass(frozen=True, slots=True)
class ChosenCombination(LockedCombination):
    """A combination of an expanded matrix, with its lock.

    Attributes:
        expansion: The expanded matrix, and its study if there is one.
        perturbation: Circumstances under which the study's trials run.
        warnings: Warnings about the environment.
    """

    expansion: Expansion
    perturbation: Perturbation = NONE
    warnings: tuple[str, ...] = ()

    @property
    def matrix(self) -> Matrix:
        """Return the matrix."""
        return self.expansion.matrix

    @property
    def index(self) -> Index:
        """Return the position of the combination in the grid."""
        return self.expansion.grid.index(self.combination)

    @property
    def study(self) -> Study:
        """Return the study of the matrix.

        Raises:
            ValueError: There is none.
        """
        if self.expansion.study is None:
            raise ValueError("the matrix has no study")
        return self.expansion.study


def open_one(
    matrix: Matrix,
    at: str | None,
    *,
    store: Store,
    provider: EnvironmentProvider,
    notify: Callable[[events.Event], None],
) -> ChosenCombination:
    """Choose a combination of a matrix and lock it; begin the study of the matrix if there is none.

    Args:
        matrix: The matrix.
        at: See `bisect_env.matrix.grid.find_combination`.
        store: Database, open for writing.
        provider: Solves.
        notify: Called with the study and with warnings.

    Raises:
        UsageError: There is no such combination.
        NoEnvironmentError: It has no environment; no study is begun for it.
        InfrastructureError: The index cannot be used.
    """
    chosen = look_up(matrix, at, store=store, provider=provider, notify=notify)
    expansion, grid, index = chosen.expansion, chosen.expansion.grid, chosen.index
    study = expansion.study
    if study is None:
        study = open_study(store, expansion)
        # No command is searching for its answer.
        store.finish_study(study.id, StudyStatus.INTERRUPTED, None)
        study = store.study(study.id)
    notify(events.StudyOpened(study.id, study.name, own_trials(store, study)))
    store.save_locks(study.id, [chosen.lock])
    prepared = Prepared(grid, {index: chosen.lock}, {}, {}, {index: chosen.warnings})
    store.save_combinations(study.id, [prepared.state(index)])
    known = Expansion(matrix, grid, expansion.as_of, study)
    return ChosenCombination(chosen.combination, chosen.lock, known, chosen.perturbation, chosen.warnings)


def look_up(
    matrix: Matrix,
    at: str | None,
    *,
    store: Store,
    provider: EnvironmentProvider,
    notify: Callable[[events.Event], None],
    as_of: datetime | None = None,
    flag: str = "--at",
) -> ChosenCombination:
    """Choose a combination of a matrix and lock it, without beginning a study.

    Args:
        matrix: The matrix.
        at: As for `open_one`.
        store: Database that may have its study.
        provider: Solves.
        notify: Called with warnings.
        as_of: Uploads after this date are ignored, if there is no study; the present moment if None.
        flag: Name of the option that names the combination, for messages.

    Raises:
        UsageError: There is no such combination.
        NoEnvironmentError: It has no environment.
        InfrastructureError: The index cannot be used.
    """
    expansion = expand_as_known(matrix, store, provider, as_of=as_of)
    grid, known = expansion.grid, expansion.study
    combination = find_combination(grid, at, named_combinations(known) if known else None, flag=flag)
    index = grid.index(combination)
    if index in grid.excluded:
        notify(events.Warned(f"{combination} is excluded in the matrix: {grid.excluded[index]}"))
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
    warnings = environment_warnings(environment_request(matrix, combination), lock)
    for warning in warnings:
        notify(events.Warned(f"{combination}: {warning}"))
    around = None if known is None else known_perturbation(store, known.id)
    return ChosenCombination(combination, lock, expansion, around or NONE, warnings)


def run_trials(
    chosen: ChosenCombination,
    make_plan: Callable[[], OnePlan],
    session: Session,
    *,
    series: Series | None = None,
) -> tuple[OnePlan, EvidenceCounts, str]:
    """Run trials of one combination until its plan is finished.

    Trials that still run at that moment are waited for: ending them would favour quick outcomes.

    Args:
        chosen: From `open_one`.
        make_plan: Returns a plan without trials.
        session: Database, environments and executor.
        series: Trials of the study that belong to the plan; those that are started now if None.

    Returns:
        The plan, with all results; the counts of all its trials; and why nothing can be learnt here, or "".

    Raises:
        NoEnvironmentError: The environment cannot be built.
        InfrastructureError: Too many trials in a row were void.
        UsageError: The command cannot be run.
    """
    matrix, index, grid = chosen.matrix, chosen.index, chosen.expansion.grid
    locking = Locking(matrix, grid, session.provider, known={index: chosen.lock}, among=[index])

    def conditions(_index: Index) -> Conditions:
        key = trial_key(matrix, locking.prepared, index, chosen.perturbation)
        return Conditions(key, None, chosen.perturbation)

    with closing(locking):
        runner = BlockRunner(
            matrix,
            locking,
            make_plan,
            session,
            chosen.study.id,
            conditions=conditions,
            series=series or Series(),
            waits=True,
        )
        runner.replay()
        session.say(MAKING)
        runner.run()
    assert isinstance(runner.plan, OnePlan)
    return runner.plan, runner.state.counts[index], runner.state.aside.get(index, ("", ""))[1]
