"""Plans that try one combination at a time: a fixed number of trials, or until a failure rate is known."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping

from bisect_env.engine.next_work import UNKNOWN_COST
from bisect_env.engine.runner import TrialRunner
from bisect_env.matrix.grid import Index
from bisect_env.search.rate_test import RateTest
from bisect_env.storage.entries import StoredTrial
from bisect_env.trials.records import Evidence


class BlockPlan(ABC):
    """A `Plan` (it chooses the trials to run) that tries one combination at a time.

    In addition to the methods of a `Plan`, `observe` receives every stored trial, including those that do not
    count.

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
        """Receive a stored trial of any kind, even a void one.

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
    """A `TrialRunner` for a `BlockPlan`. It also tells the plan of trials that do not count.

    Trials that still run when the plan is finished come to their end.
    """

    plan: BlockPlan
    waits = True

    def _observe(self, index: Index, trial: StoredTrial) -> None:
        self.plan.observe(index, trial)


class OneCombinationPlan(BlockPlan):
    """A plan that tries one combination a number of times.

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

    Args:
        index: The combination.
        test: The test of the rate, without trials.
        limit: Maximum number of trials.

    Attributes:
        test: The test, to which the results are added.
    """

    def __init__(self, index: Index, test: RateTest, limit: int) -> None:
        super().__init__(index, limit)
        self.test = test
        self._limit = limit

    def wanted(self) -> int:
        """Return how many more trials the test needs if none of them fails."""
        if self.test.claim is not None:
            return 0
        end = self._limit if self.test.hits else min(self._limit, self.test.clean_needed)
        return max(0, end - self.test.trials)

    def tell(self, index: Index, *, hit: bool) -> None:
        """Count one trial, and add its result to the test of the failure rate."""
        super().tell(index, hit=hit)
        self.test.tell(hit)
