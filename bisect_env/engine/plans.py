"""Plans that try one combination at a time: a fixed number of trials, or until a failure rate is known."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from copy import deepcopy
from datetime import datetime

from bisect_env.engine.next_work import UNKNOWN_COST
from bisect_env.engine.runner import TrialRunner
from bisect_env.matrix.grid import Index
from bisect_env.search.rate_test import RateClaim, RateTest
from bisect_env.storage.entries import StoredTrial
from bisect_env.trials.records import Evidence


class BlockPlan(ABC):
    """Base class of plans that try one combination at a time, in a block of several trials.

    A plan chooses the trials to run. In addition to the methods of a `Plan`, `observe` receives every stored
    trial, including those that do not count.

    Attributes:
        trials: Number of counted trials so far.
        build_cost: Cost of a new environment, as a number of trials, at the last call of `ask`.
    """

    def __init__(self) -> None:
        self.trials = 0
        self.build_cost = UNKNOWN_COST

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Return True if no more trials are wanted."""

    @abstractmethod
    def block(self, places: int, *, is_idle: bool) -> tuple[Index, int] | None:
        """Return the combination to try now and the number of trials that it still needs.

        The number includes running trials. Returns None if no trial should be started now.

        Args:
            places: Number of trials that could start now.
            is_idle: Whether no trial is running.
        """

    def ask(
        self,
        count: int,
        *,
        pending: Mapping[Index, int] | None = None,
        build_cost: Mapping[Index, float] | None = None,
        only: Collection[Index] | None = None,
        worth: float = 0.0,
    ) -> list[Index]:
        """Return up to `count` trials to start now, all of them of the current combination.

        The result is always empty if `only` is given. See `Plan.ask`.
        """
        running = pending or {}
        self.build_cost = max((build_cost or {}).values(), default=self.build_cost)
        if only is not None or count <= 0:
            return []
        wanted = self.block(count, is_idle=not any(running.values()))
        if wanted is None:
            return []
        index, number = wanted
        return [index] * max(0, min(count, number - running.get(index, 0)))

    def foresee(
        self, _pending: Mapping[Index, int], _build_cost: Mapping[Index, float] | None = None
    ) -> list[Index]:
        """Return an empty list, because such a plan cannot predict which combination it tries next."""
        return []

    def observe(self, index: Index, trial: StoredTrial) -> None:
        """Receive each stored trial, even one that does not count because it is void.

        If the trial is good or bad, the caller passes its result to `tell` afterwards.
        """
        return

    def tell(self, _index: Index, *, hit: bool) -> None:
        """Count one trial that was good or bad."""
        self.trials += 1

    @abstractmethod
    def set_aside(self, index: Index) -> None:
        """Exclude a combination from further trials."""


class BlockRunner(TrialRunner):
    """A runner for plans that try one combination at a time (`BlockPlan`).

    It also passes trials that do not count, such as void ones, to the plan. Trials that still run when the
    plan is finished come to their end.
    """

    plan: BlockPlan
    waits = True

    def _observe(self, index: Index, trial: StoredTrial) -> None:
        self.plan.observe(index, trial)


class OneCombinationPlan(BlockPlan):
    """A plan that tries one combination a given number of times.

    Failures other than the target failure count as well; void trials are repeated.

    Args:
        index: The combination.
        number: Number of trials.
    """

    def __init__(self, index: Index, number: int) -> None:
        super().__init__()
        self._index = index
        self._left = number
        self._is_aside = False

    def wanted(self) -> int:
        """Return how many more trials are wanted, including the running ones."""
        return self._left

    @property
    def finished(self) -> bool:
        """Return True if no more trials are wanted."""
        return self._is_aside or self.wanted() <= 0

    def block(self, _places: int, *, is_idle: bool) -> tuple[Index, int] | None:
        """Return the combination and the number of trials that it still needs.

        Returns None if the combination was excluded.
        """
        return None if self._is_aside else (self._index, self.wanted())

    def observe(self, _index: Index, trial: StoredTrial) -> None:
        """Count a stored trial, unless it was void or skipped."""
        self._left -= trial.evidence in (Evidence.GOOD, Evidence.BAD, Evidence.OTHER)

    def set_aside(self, _index: Index) -> None:
        """End the plan, because its only combination is excluded from further trials."""
        self._is_aside = True


class UntilRatePlan(OneCombinationPlan):
    """A plan that tries one combination until its failure rate is known to be below or above a limit.

    Passes may end sooner than failures that began earlier (a hang ends at its time limit). A test in the
    order in which trials end would then see too few failures, and state wrongly that the rate is below the
    limit. The plan therefore starts no more trials once such a test has a result, waits until all trials have
    ended, and repeats the test in the order in which the trials began. Only that result counts.

    Args:
        index: The combination.
        test: The test of the rate, without trials.
        limit: Maximum number of trials.

    Attributes:
        hits: Number of failures among the trials.
        claim: The result of the test; None as long as there is none.
    """

    def __init__(self, index: Index, test: RateTest, limit: int) -> None:
        super().__init__(index, limit)
        self._limit = limit
        self._in_order_of_start = test
        self._in_order_of_end = deepcopy(test)
        self._new: list[tuple[datetime, str, bool]] = []
        self.hits = 0
        self.claim: RateClaim | None = None

    def wanted(self) -> int:
        """Return how many more trials the test needs if none of them fails.

        Returns 0 if a test in the order in which trials ended has a result.
        """
        if self._in_order_of_end.claim is not None:
            return 0
        end = self._limit if self.hits else min(self._limit, self._in_order_of_end.clean_needed)
        return max(0, end - self._in_order_of_end.trials)

    @property
    def finished(self) -> bool:
        """Return True if no more trials are wanted, and the result of the test is final."""
        return super().finished and not self._new

    def block(self, places: int, *, is_idle: bool) -> tuple[Index, int] | None:
        """Return the combination and the number of trials that it still needs.

        If no trial is running and no more are wanted, first repeat the test in the order in which the trials
        began. If this test has no result, the plan asks for more trials.
        """
        if is_idle and super().finished:
            self._repeat_test()
        return super().block(places, is_idle=is_idle)

    def observe(self, index: Index, trial: StoredTrial) -> None:
        """Count a stored trial, and add its result to the tests if it is good or bad."""
        super().observe(index, trial)
        if trial.evidence in (Evidence.GOOD, Evidence.BAD):
            hit = trial.evidence is Evidence.BAD
            self._new.append((trial.started_at, trial.trial_id, hit))
            self._in_order_of_end.tell(hit)

    def tell(self, index: Index, *, hit: bool) -> None:
        """Count one trial that was good or bad."""
        super().tell(index, hit=hit)
        self.hits += hit

    @property
    def lacking(self) -> int:
        """Return how many more trials would show a rate below the limit if all of them pass."""
        test, number = deepcopy(self._in_order_of_start), 0
        while test.claim is None:
            test.tell(False)
            number += 1
        return number

    def _repeat_test(self) -> None:
        """Repeat the test with the trials in the order in which they began, now that all have ended."""
        # Trials of earlier calls had ended before these began.
        for _, _, hit in sorted(self._new):
            self._in_order_of_start.tell(hit)
        self._new = []
        self.claim = self._in_order_of_start.claim
        self._in_order_of_end = deepcopy(self._in_order_of_start)
