"""Runs trials of one combination of a matrix: a number of them, or until its failure rate is known.

They are recorded in the study of the matrix, as any trial is: what was measured here is evidence there.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bisect_env.cluster.protocol import Executor
from bisect_env.engine import events
from bisect_env.engine.amplify import known_perturbation
from bisect_env.engine.locking import Locking, environment_request, environment_warnings, lock_one
from bisect_env.engine.plans import OnePlan, UntilRate
from bisect_env.engine.reuse import trial_key
from bisect_env.engine.runner import Conditions, NewTrials, Runner, Series
from bisect_env.engine.state import Tally
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
from bisect_env.errors import NoEnvironmentError
from bisect_env.matrix.expand import expand
from bisect_env.matrix.grid import Combination, Grid, Index, find_combination
from bisect_env.matrix.load import Matrix
from bisect_env.search.numeric import clopper_pearson
from bisect_env.search.rate_test import RateClaim, RateTest, upper_bound
from bisect_env.storage.entries import CombinationState, CombinationStatus, Study, StudyStatus
from bisect_env.storage.store import Store
from bisect_env.trials.records import NONE, Perturbation

# --------------------------------------------------------------------------------------------------
# One combination of a matrix, with the lock that it has in its study.

MAKING = "making the environment, unless it is here already"
"""Said before the first trial, which may wait for it for minutes."""


@dataclass(frozen=True, slots=True)
class Single:
    """One combination with its environment.

    Attributes:
        combination: The values of its axes.
        lock: Its environment.
        perturbation: Circumstances under which the study's trials run.
    """

    combination: Combination
    lock: Lock
    perturbation: Perturbation = NONE


@dataclass(frozen=True, slots=True)
class ChosenCombination:
    """One combination, and the study to which it belongs.

    Attributes:
        matrix: As loaded.
        grid: As expanded.
        as_of: What "now" is for its study.
        single: The combination.
        known: The study of the matrix; None if there is none.
    """

    matrix: Matrix
    grid: Grid
    as_of: datetime
    single: Single
    known: Study | None

    @property
    def index(self) -> Index:
        """Return the position of the combination in the grid."""
        return self.grid.index(self.single.combination)

    @property
    def study(self) -> Study:
        """Return the study of the matrix.

        Raises:
            ValueError: There is none.
        """
        if self.known is None:
            raise ValueError("the matrix has no study")
        return self.known


def open_one(
    matrix: Matrix,
    at: str | None,
    *,
    store: Store,
    provider: EnvironmentProvider,
    notify: Callable[[events.Event], None],
) -> ChosenCombination:
    """Find a combination and lock it, in the study of its matrix, which is begun if there is none.

    Args:
        matrix: As loaded.
        at: See `bisect_env.matrix.grid.find_combination`.
        store: Open for writing.
        provider: Solves.
        notify: Called with the study and with warnings.

    Raises:
        UsageError: No such combination.
        NoEnvironmentError: It has no environment; no study is begun for it.
        InfrastructureError: The index cannot be used.
    """
    found, warnings = _look_up(matrix, at, store, provider, notify, None)
    study = found.known or _begin(store, matrix, found.grid, found.as_of)
    notify(events.StudyOpened(study.id, study.name, own_trials(store, study)))
    _save(store, study, found.grid, found.index, found.single.lock, warnings)
    return ChosenCombination(matrix, found.grid, found.as_of, found.single, study)


def look_up(
    matrix: Matrix,
    at: str | None,
    *,
    store: Store,
    provider: EnvironmentProvider,
    notify: Callable[[events.Event], None],
    as_of: datetime | None = None,
) -> ChosenCombination:
    """Find a combination and lock it, without beginning a study.

    Args:
        matrix: As loaded.
        at: As for `open_one`.
        store: Where a study may be.
        provider: Solves.
        notify: Called with warnings.
        as_of: What "now" is where no study says; the present moment if None.

    Raises:
        UsageError: No such combination.
        NoEnvironmentError: It has no environment.
        InfrastructureError: The index cannot be used.
    """
    return _look_up(matrix, at, store, provider, notify, as_of)[0]


def _look_up(
    matrix: Matrix,
    at: str | None,
    store: Store,
    provider: EnvironmentProvider,
    notify: Callable[[events.Event], None],
    as_of: datetime | None,
) -> tuple[ChosenCombination, str]:
    """Return a combination with its lock and the lock's warnings in one line."""
    known = store.find_study(matrix.name, matrix.digest)
    if known is not None or as_of is None:
        as_of = study_date(matrix, store, provider.as_of)
    grid = expand(matrix, provider.catalogue, as_of, settled_ends(known))
    if known is not None:
        grid = as_refined_before(matrix, grid, known)
    combination = find_combination(grid, at, named_combinations(known) if known else None)
    index = grid.index(combination)
    if index in grid.excluded:
        notify(events.Warned(f"{combination} is excluded in the matrix: {grid.excluded[index]}"))
    lock = None if known is None else _stored_lock(store, known, combination)
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
    around = (None if known is None else known_perturbation(store, known.id)) or NONE
    return ChosenCombination(matrix, grid, as_of, Single(combination, lock, around), known), "; ".join(
        warnings
    )


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
# Its trials.


def run_trials(
    chosen: ChosenCombination,
    make_plan: Callable[[], OnePlan],
    *,
    store: Store,
    provider: EnvironmentProvider,
    start: Callable[[], Executor],
    notify: Callable[[events.Event], None],
    stopped: Callable[[], bool] = lambda: False,
    series: Series | None = None,
) -> tuple[OnePlan, Tally, str]:
    """Run trials of one combination until its plan is finished.

    Trials that run then come to their end and are recorded, too: to end them would favour quick outcomes.

    Args:
        chosen: From `open_one`.
        make_plan: Returns a plan without trials.
        store: Open for writing.
        provider: As for `open_one`.
        start: Starts the place where trials run; the caller closes it.
        notify: Called with everything that happens.
        stopped: True ends what runs.
        series: Trials of the study that belong to the plan; those that are started now if None.

    Returns:
        The plan, which was told everything; all that the trials said; and why nothing can be learnt here, or
        "".

    Raises:
        NoEnvironmentError: The environment cannot be built.
        InfrastructureError: Too many trials in a row were void.
        UsageError: The command cannot be run.
    """
    matrix, index, single = chosen.matrix, chosen.index, chosen.single
    locking = Locking(matrix, chosen.grid, provider, known={index: single.lock}, among=[index])

    def conditions(_index: Index) -> Conditions:
        key = trial_key(matrix, locking.prepared, index, single.perturbation)
        return Conditions(key, None, single.perturbation)

    runner: Runner | None = None

    def plan() -> OnePlan:
        made = make_plan()
        made.tally = lambda: Tally() if runner is None else runner.state.tallies[index]
        return made

    with closing(locking):
        runner = Runner(
            matrix,
            locking,
            plan,
            store,
            chosen.study.id,
            conditions=conditions,
            notify=notify,
            stopped=stopped,
            series=NewTrials() if series is None else series,
            waits=True,
        )
        runner.replay()
        notify(events.Said(MAKING))
        runner.run(start)
    assert isinstance(runner.plan, OnePlan)
    return runner.plan, runner.state.tallies[index], runner.state.aside.get(index, ("", ""))[1]


# --------------------------------------------------------------------------------------------------
# Runs one combination until its failure rate is shown to be below a limit, or above it.
#
# A test that was interrupted goes on where it stopped. The ids of its trials are made from the id of the test
# and their number, so that the database itself says which they are.

BEGUN, ENDED = "verify", "verified"
"""Kinds of decisions."""
GIVE_UP_AFTER = 10
"""Trials at most, in those that a flawless combination would need, unless the user says otherwise."""


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a test of a rate.

    Attributes:
        combination: Axis to value.
        claim: What was shown; None if nothing was.
        max_rate: The limit.
        confidence: Confidence of the claim.
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


class NumberedTrials:
    """The trials of one test, whose ids follow from that of the test.

    Args:
        test_id: Hexadecimal.
        stored: Ids of the trials of the study.

    Attributes:
        resumed: Trials of the test that are stored already.
    """

    def __init__(self, test_id: str, stored: Collection[str]) -> None:
        self._space = uuid.UUID(test_id)
        # Trials were started in the order of their numbers, and some may never have ended.
        known = set(stored)
        names = (self._named(number) for number in range(len(known) + _LOST))
        self._ids = {name for name in names if name in known}
        self.resumed = len(self._ids)
        self._numbers = itertools.count()

    def _named(self, number: int) -> str:
        return uuid.uuid5(self._space, str(number)).hex

    def new_id(self) -> str:
        """Return the next id that no stored trial has."""
        trial_id = next(name for n in self._numbers if (name := self._named(n)) not in self._ids)
        self._ids.add(trial_id)
        return trial_id

    def __contains__(self, trial_id: object) -> bool:
        return trial_id in self._ids


_LOST = 1000
"""Numbers that cancelled and lost trials may have used up."""


class Verifier:
    """One test of a rate, in the database and in memory.

    Args:
        chosen: The combination.
        store: Where its trials are.
        max_rate: The limit.
        confidence: Confidence of the claim.
        max_trials: Where to give up; None for ten times what a flawless combination would need.
        fresh: Begin a new test, even where one was interrupted.

    Attributes:
        resumed: Trials of an interrupted test that count on.
        clean_needed: Trials without a failure that show a rate below the limit.
    """

    def __init__(
        self,
        chosen: ChosenCombination,
        store: Store,
        *,
        max_rate: float,
        confidence: float,
        max_trials: int | None = None,
        fresh: bool = False,
    ) -> None:
        self._chosen = chosen
        self._store = store
        self._max_rate, self._confidence = max_rate, confidence
        self.clean_needed = RateTest(max_rate, confidence).clean_needed
        self.limit = max_trials or GIVE_UP_AFTER * self.clean_needed
        self._facts = {
            "combination": chosen.single.combination.as_dict(),
            "lock": chosen.single.lock.content_hash,
            "max_rate": max_rate,
            "confidence": confidence,
        }
        unfinished = None if fresh else self._unfinished()
        self._id = unfinished or uuid.uuid4().hex
        if unfinished is None:
            store.record_decision(chosen.study.id, BEGUN, {"id": self._id, **self._facts})
        self._series = NumberedTrials(self._id, [one.trial_id for one in store.trials(chosen.study.id)])
        self.resumed = self._series.resumed

    def run(
        self,
        *,
        provider: EnvironmentProvider,
        start: Callable[[], Executor],
        notify: Callable[[events.Event], None],
        stopped: Callable[[], bool] = lambda: False,
    ) -> Verification:
        """Run trials until something is shown, nothing can be learnt, or the limit is reached.

        Args:
            provider: As for `run_trials`.
            start: As for `run_trials`.
            notify: As for `run_trials`.
            stopped: As for `run_trials`.
        """

        def make_plan() -> OnePlan:
            test = RateTest(self._max_rate, self._confidence)
            return UntilRate(self._chosen.index, test, self.limit)

        plan, _, why = run_trials(
            self._chosen,
            make_plan,
            store=self._store,
            provider=provider,
            start=start,
            notify=notify,
            stopped=stopped,
            series=self._series,
        )
        assert isinstance(plan, UntilRate)
        return self._end(plan.test, why)

    def _end(self, test: RateTest, why: str) -> Verification:
        """Return the result so far; it is stored if the test has ended."""
        if test.claim is None and not why and test.trials >= self.limit:
            why = f"the limit of {self.limit} trials is reached"
        if test.claim is not None or why:
            said = None if test.claim is None else str(test.claim)
            self._store.record_decision(self._chosen.study.id, ENDED, {"id": self._id, "claim": said})
        return Verification(
            self._chosen.single.combination.as_dict(),
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

    def _unfinished(self) -> str | None:
        ended, found = set(), None
        for decision in self._store.decisions(self._chosen.study.id):
            payload = decision.payload
            if decision.kind == ENDED:
                ended.add(payload.get("id"))
            elif decision.kind == BEGUN and all(payload.get(k) == v for k, v in self._facts.items()):
                found = str(payload["id"])
        return None if found in ended else found
