"""Decides which trials, builds and locks a study begins next. Pure: no clock, process or database.

A trial is started only after its environment exists, because a worker that waits for a build would hold its
GPU meanwhile. Combinations are locked and built in the order in which the plan wants them. What it is likely
to want next is prepared while trials run, a few environments at a time, since the plan may change its mind.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from bisect_env.engine.locking import Prepared, of_commits
from bisect_env.engine.state import BUILDS_BEFORE_UNBUILDABLE, StudyState
from bisect_env.matrix.grid import AxisKind, Index
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.schema import CommitAxis
from bisect_env.search.bisect import BUILT_AT_ONCE

UNKNOWN_COST = 5.0
"""Cost of an environment, in trials, before one was built: about that of a small one with a warm cache."""
BACKFILL = 0.03
"""Minimum information of a trial that fills the time until a wanted environment exists, as a share of that of
the wanted trial. An idle GPU costs nothing, but a trial without information would be wasted."""
BACKFILLS, MUCH = 10, 0.2
"""After this many such trials per place since the last environment was built, the minimum rises to this
share: they would pile up where a trial takes a second and a build a minute."""
BUILDERS = 4
"""Places for trials per environment that is built ahead; a host builds about as many at the same time."""
BUILDS_AT_ONCE = (2, BUILT_AT_ONCE)
"""Minimum and maximum number of simultaneous builds. Between them it is the number of places for trials,
because at first each of them waits for an environment; with two, the next build follows at once."""
LOCKS_AT_ONCE = 8
"""Maximum number of combinations handed to the solvers at a time; a solver mostly waits for the index."""
THOUGHT_THROUGH = 20_000
"""Number of combinations above which looking ahead takes longer than it saves."""
_STRETCH = 2
"""L of `expected_builds`: in simulations with intervals of 4 to 10 commits among 50 it takes fewer builds
than 1, 3 or 4."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The work to begin next.

    Attributes:
        start: Combinations to try now, one entry per trial; their environments exist.
        build: Combinations whose environments to build, the most wanted first.
        lock: Combinations to lock, the most wanted first.
    """

    start: tuple[Index, ...] = ()
    build: tuple[Index, ...] = ()
    lock: tuple[Index, ...] = ()


def build_cost(build_seconds: float | None, trial_seconds: float | None) -> float:
    """Return the cost of a new environment in trials, from the measured times.

    Args:
        build_seconds: Mean over builds, None before the first.
        trial_seconds: Mean over trials, None before the first.
    """
    if build_seconds is None or not trial_seconds:
        return UNKNOWN_COST
    return min(build_seconds / trial_seconds, 500.0)


def expected_builds(place: int, failed: Collection[int], built: Collection[int]) -> float:
    """Return the expected number of builds until one succeeds at a place near failed builds.

    Commits that cannot be built form intervals of unknown length: about d in d + L of the commits at
    distance d from one of them can be built. A commit that was built ends the interval.

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
    """Return how many trials to keep submitted.

    For short trials a second one waits at each worker, so that workers do not idle while the plan chooses.
    Long trials need none, and a trial that is chosen early is chosen with less knowledge. If failures look
    certain, each trial decides much, so that none is chosen early.

    Args:
        slots: Number of places for trials.
        trial_seconds: Mean duration, None before the first trial.
        flaky: Whether failures may be uncertain.
    """
    waiting = slots if flaky and trial_seconds is not None and trial_seconds < 0.5 else 0
    return slots + waiting


class NextWork:
    """The choice of what a study begins next.

    Args:
        matrix: The matrix of the study.
        prepared: Its combinations; locks may be added at any time.
        state: What is known of the study.
        max_trials: Maximum number of counted trials; None for any number.
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
        self._foreseen_at: tuple[int, int, int, int] | None = None

    def decide(self, slots: int, *, only: Mapping[Index, int] | None = None) -> Wanted:
        """Decide what to begin now.

        Args:
            slots: Number of places for trials.
            only: Combinations to try instead of those that the plan wants, with the maximum number of
                simultaneous trials of each.
        """
        state = self._state
        self._awaited = Counter()
        if state.plan.finished:
            return Wanted()
        most = in_flight(slots, state.trial_seconds.value, flaky=not state.looks_certain)
        # Nothing is begun that would exceed the budget of trials.
        left = self._max_trials - state.plan.trials - len(state.running)
        free = min(most - len(state.running), left)
        if only is not None:
            return self._try_only(only, max(0, free), slots)
        if self._of_commits and state.looks_certain:
            # Building a commit takes long: two at once would need more builds than one after another.
            free = min(free, 1 - len(state.running))
        pending = state.pending()
        chosen = state.plan.ask(free, pending=pending, build_cost=self._costs()) if free > 0 else []
        now = [index for index in chosen if state.is_ready(index)]
        later = self._without_failing([index for index in chosen if not state.is_ready(index)])
        self._awaited = Counter(later)
        if later:
            # Trials that only fill the time leave the cores of running builds alone.
            idle = slots - len(state.building) - len(state.running)
            room = min(len(later), max(0, min(idle, left) - len(now)))
            now += self._backfill(room, pending + Counter(chosen), slots)
        return Wanted(tuple(now), *self._to_make(later, slots))

    def _try_only(self, only: Mapping[Index, int], free: int, slots: int) -> Wanted:
        pending = self._state.pending()
        now = [
            index
            for index, most in only.items()
            if self._state.is_ready(index)
            for _ in range(min(free, most - pending[index]))
        ]
        return Wanted(tuple(now[:free]), *self._to_make([one for one in only if one not in now], slots))

    def ahead(self, slots: int) -> Wanted:
        """Decide what to prepare for the trials that the plan may want after the running ones.

        This takes longer than `decide`, whose trials are therefore started first.

        Args:
            slots: Number of places for trials.
        """
        state = self._state
        if state.plan.finished:
            return Wanted()
        costs, pending = self._costs(), state.pending() + self._awaited
        soon = self._expected(costs, pending)
        build, lock = self._to_make(soon, slots)
        if len(state.building) >= max(BUILDS_AT_ONCE[0], slots // BUILDERS):
            build = ()
        return Wanted((), build, lock)

    def _without_failing(self, wanted: list[Index]) -> list[Index]:
        """Return the wanted combinations, those that often failed to build replaced by near ones.

        If a near one can be built, this host is not the reason for the failures.
        """
        state = self._state

        def failed(index: Index) -> int:
            return state.failed_builds[index]

        often = [index for index in wanted if failed(index) >= BUILDS_BEFORE_UNBUILDABLE]
        if state.ready or not often:
            return wanted
        others = [index for index in state.members if index not in state.aside and index not in wanted]
        for index in often:
            nearest = min(others, key=lambda one: (failed(one), math.dist(one, index)), default=index)
            if failed(nearest) < failed(index):
                wanted[wanted.index(index)] = nearest
        return wanted

    def _costs(self) -> dict[Index, float]:
        """Return the cost, in trials, of each combination whose environment does not exist yet."""
        state = self._state
        cost = build_cost(state.build_seconds.value, state.trial_seconds.value)
        unpaid = [index for index in state.members if not state.is_paid(index)]
        if not self._of_commits:
            return dict.fromkeys(unpaid, cost)
        place = next(i for i, axis in enumerate(self._grid.axes) if axis.kind is AxisKind.COMMIT)
        failed = {i[place] for i, (status, _) in state.aside.items() if status == "env-unbuildable"}
        built = {i[place] for i in state.members if state.is_ready(i)}
        return {index: cost * expected_builds(index[place], failed, built) for index in unpaid}

    def _backfill(self, count: int, pending: Mapping[Index, int], slots: int) -> list[Index]:
        """Return trials in existing environments to run until the wanted environments are built."""
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
        """Return the combinations that are likely to be wanted next; empty if nothing has changed."""
        state = self._state
        known = (state.plan.trials, len(state.running), len(state.ready), sum(pending.values()))
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
        """Return the environments to build and the combinations to lock, within the limits."""
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
