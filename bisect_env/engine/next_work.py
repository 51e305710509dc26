"""Decide which trials, builds and locks a study begins next. Pure: no clock, process or database.

A trial is started only after its environment exists, because a worker that waits for a build would occupy its
GPU. Combinations are locked and built in the order in which the plan wants them. Environments that the plan
will probably want next are prepared while trials run; only a few at a time, because new results may change
the plan.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from bisect_env.engine.locking import Prepared, of_commits
from bisect_env.engine.state import StudyState
from bisect_env.matrix.grid import AxisKind, Index
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.schema import CommitAxis
from bisect_env.search.choice import BUILT_AT_ONCE
from bisect_env.storage.entries import CombinationStatus

UNKNOWN_COST = 5.0
"""Cost of an environment, in trials, before one was built. This is about right for a small environment whose
packages are in the cache."""
BACKFILL = 0.03
"""Minimum information of a trial that fills the time until a wanted environment exists, as a share of the
information of the wanted trial. An idle GPU costs nothing; a trial without information would be wasted."""
BACKFILLS, MUCH = 10, 0.2
"""After this many such trials per place since the last environment was built, the minimum rises to this
share: they would pile up where a trial takes a second and a build a minute."""
BUILDS_AT_ONCE = (2, BUILT_AT_ONCE)
"""Minimum and maximum number of simultaneous builds. Between them it is the number of places for trials,
because at first each of them waits for an environment; with two, the next build follows at once."""
LOCKS_AT_ONCE = 8
"""Maximum number of combinations handed to the solvers at a time; a solver mostly waits for the index."""
THOUGHT_THROUGH = 20_000
"""Number of combinations above which looking ahead takes longer than it saves."""
_STRETCH = 2
"""The constant L of `expected_builds`. In simulations with intervals of 4 to 10 unbuildable commits among 50,
the value 2 needs fewer builds than 1, 3 or 4."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The next work of a study: the trials, builds and locks that it should begin now.

    Attributes:
        start: Combinations to try now, one entry per trial; their environments exist.
        build: Combinations whose environments to build, the most wanted first.
        lock: Combinations to lock, the most wanted first.
    """

    start: tuple[Index, ...] = ()
    build: tuple[Index, ...] = ()
    lock: tuple[Index, ...] = ()


def build_cost(build_seconds: float | None, trial_seconds: float | None) -> float:
    """Return how many trials take as long as building a new environment.

    The result is `UNKNOWN_COST` before the first build or trial, and at most 500.

    Args:
        build_seconds: Mean duration of builds, None before the first.
        trial_seconds: Mean duration of trials, None before the first.
    """
    if build_seconds is None or not trial_seconds:
        return UNKNOWN_COST
    return min(build_seconds / trial_seconds, 500.0)


def expected_builds(place: int, failed: Collection[int], built: Collection[int]) -> float:
    """Return how many builds of commits at and around a position are expected until one succeeds.

    Commits that cannot be built form intervals of unknown length. The probability that a commit can be built
    is about d / (d + L) at the distance d from a failed build. A successful build between the two ends the
    interval.

    Args:
        place: Position on the axis of commits.
        failed: Positions of failed builds.
        built: Positions of successful builds.
    """
    worst = 1.0
    for other in failed:
        low, high = sorted((place, other))
        if not any(low < between < high for between in built):
            worst = max(worst, 1.0 + _STRETCH / max(1, high - low))
    return worst


def in_flight(slots: int, trial_seconds: float | None, *, flaky: bool = True) -> int:
    """Return how many trials should be submitted to the workers at a time, including those that wait.

    If trials are short, a second one waits at each worker, so that no worker idles while the plan chooses.
    Long trials need none waiting, and choosing a trial early means choosing it with less information. If
    failures look certain, none waits either, because each result matters much.

    Args:
        slots: Number of trials that can run at the same time.
        trial_seconds: Mean duration of trials, None before the first.
        flaky: Whether failures may occur at random.
    """
    waiting = slots if flaky and trial_seconds is not None and trial_seconds < 0.5 else 0
    return slots + waiting


class NextWork:
    """The rules by which a study decides which trials, builds and locks to begin next.

    Args:
        matrix: The matrix of the study.
        prepared: Its combinations and their locks; locks may be added at any time.
        state: The state of the study.
        max_trials: Maximum number of counted trials; None for no limit.
    """

    def __init__(
        self, matrix: Matrix, prepared: Prepared, state: StudyState, *, max_trials: int | None = None
    ) -> None:
        self._prepared = prepared
        self._grid = prepared.grid
        self._state = state
        self._max_trials = sys.maxsize if max_trials is None else max_trials
        self._of_commits = of_commits(prepared.grid)
        axes = matrix.file.axes.values()
        self._builds_ahead = any(isinstance(axis, CommitAxis) and axis.build.ahead for axis in axes)
        self._backfilled, self._backfilled_at = 0, 0
        # Trials that `decide` wanted and could not start, because their environments do not exist yet.
        self._awaited: Counter[Index] = Counter()
        self._foreseen_at: tuple[int, ...] | None = None

    def decide(self, slots: int, *, only: Mapping[Index, int] | None = None) -> Wanted:
        """Decide which trials, builds and locks the study should begin now.

        Args:
            slots: Number of trials that can run at the same time.
            only: Combinations to try instead of those that the plan wants, with the maximum number of
                simultaneous trials of each.
        """
        state = self._state
        self._awaited = Counter()
        if state.plan.finished and not only:
            return Wanted()
        most = in_flight(slots, state.trial_seconds.value, flaky=not state.looks_certain)
        # Nothing is begun that would exceed the budget of trials.
        left = self._max_trials - state.plan.trials - len(state.running)
        free = min(most - len(state.running), left)
        pending = state.pending()
        if only is not None:
            chosen = [i for i, most in only.items() for _ in range(min(free, most - pending[i]))]
        else:
            chosen = state.plan.ask(free, pending=pending, build_cost=self._costs()) if free > 0 else []
            if self._of_commits and state.looks_certain:
                chosen = self._one_build_at_a_time(chosen)
        now = [index for index in chosen if state.is_ready(index)][: max(0, free)]
        later = [index for index in chosen if not state.is_ready(index)]
        self._awaited = Counter(later)
        if later and only is None:
            # Trials that only fill the time leave the cores of running builds alone.
            idle = slots - len(state.building) - len(state.running)
            room = min(len(later), max(0, min(idle, left) - len(now)))
            now += self._backfill(room, pending + Counter(chosen), slots)
        return Wanted(tuple(now), *self._to_make(later, slots))

    def _one_build_at_a_time(self, chosen: list[Index]) -> list[Index]:
        """Choose the trials to begin such that only one commit is built at a time.

        This is the rule while failures of commits look certain. Building a commit takes long, and two at once
        would need more builds than one after another. A commit is therefore built alone, while nothing runs.
        Trials of built commits run at the same time.

        Args:
            chosen: The trials that the plan wants, the most wanted first.
        """
        paid = [index for index in chosen if self._state.is_paid(index)]
        if len(paid) == len(chosen) or self._state.is_paid(chosen[0]):
            return paid
        return [] if self._state.running else chosen[:1]

    def ahead(self, slots: int) -> Wanted:
        """Return which environments to lock and build while trials run, because they may be needed next.

        This takes longer than `decide`; start the trials of `decide` first.

        Args:
            slots: Number of trials that can run at the same time.
        """
        state = self._state
        if state.plan.finished:
            return Wanted()
        costs, pending = self._costs(), state.pending() + self._awaited
        return Wanted((), *self._to_make(self._expected(costs, pending), slots))

    def _costs(self) -> dict[Index, float]:
        """Return the expected build time of each environment that does not exist yet, as a number of trials.

        The result contains each combination whose environment is missing.
        """
        state = self._state
        cost = build_cost(state.build_seconds.value, state.trial_seconds.value)
        unpaid = [index for index in state.members if not state.is_paid(index)]
        if not self._of_commits:
            return dict.fromkeys(unpaid, cost)
        place = next(i for i, axis in enumerate(self._grid.axes) if axis.kind is AxisKind.COMMIT)
        failed = {
            i[place] for i, (status, _) in state.aside.items() if status is CombinationStatus.UNBUILDABLE
        }
        built = {i[place] for i in state.members if state.is_ready(i)}
        return {index: cost * expected_builds(index[place], failed, built) for index in unpaid}

    def _backfill(self, count: int, pending: Mapping[Index, int], slots: int) -> list[Index]:
        """Choose trials in existing environments to fill the time while the wanted environments are built."""
        state = self._state
        ready = {index for index in state.members if state.is_ready(index)}
        if count <= 0 or not ready or not state.plan.trials or state.looks_certain:
            return []
        if (known := len(state.ready)) != self._backfilled_at:
            self._backfilled, self._backfilled_at = 0, known
        worth = BACKFILL if self._backfilled < BACKFILLS * slots else MUCH
        chosen = state.plan.ask(count, pending=pending, only=ready, worth=worth)
        self._backfilled += len(chosen)
        return chosen

    def _expected(self, costs: Mapping[Index, float], pending: Counter[Index]) -> list[Index]:
        """Return the combinations that the plan will probably ask for after the running trials.

        The list is empty if nothing has changed since the last call, or if looking ahead would cost more time
        than it saves.
        """
        state = self._state
        environments = len(self._prepared.locks), len(state.ready)
        known = (state.plan.trials, len(state.running), *environments, sum(pending.values()))
        if not pending or not costs or known == self._foreseen_at or len(state.members) > THOUGHT_THROUGH:
            return []
        if self._of_commits and not self._builds_ahead:
            # A build takes longer than a trial, and every second build would be for nothing.
            return []
        self._foreseen_at = known
        again: list[Index] = []
        if not self._awaited:
            again = state.plan.ask(max(1, len(state.running)), pending=pending, build_cost=costs)
        return [*again, *state.plan.foresee(pending, costs)]

    def _to_make(self, wanted: Iterable[Index], slots: int) -> tuple[tuple[Index, ...], tuple[Index, ...]]:
        """Choose which wanted environments to build now, and which combinations to lock now.

        The number of builds is limited by `BUILDS_AT_ONCE`, that of locks by `LOCKS_AT_ONCE`.
        """
        state, locks = self._state, self._prepared.locks
        least, most = BUILDS_AT_ONCE
        room = min(max(least, slots), most) - len(state.building)
        build: list[Index] = []
        lock: list[Index] = []
        begun = set(state.building)
        for index in dict.fromkeys(wanted):
            if index not in locks:
                lock.append(index)
            elif locks[index].content_hash not in state.ready | begun and len(build) < room:
                begun.add(locks[index].content_hash)
                build.append(index)
        return tuple(build), tuple(lock[:LOCKS_AT_ONCE])
