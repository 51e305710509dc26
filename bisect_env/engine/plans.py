"""Plans that try one combination at a time: a number of trials, or trials until a rate is known."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping

from bisect_env.engine.next_work import UNKNOWN_COST
from bisect_env.engine.runner import Runner
from bisect_env.matrix.grid import Index
from bisect_env.search.rate_test import RateTest
from bisect_env.storage.entries import StoredTrial
from bisect_env.trials.records import Evidence


class BlockPlan(ABC):
    """A `Plan` that tries one combination at a time.

    In addition to what a `Plan` is told, it receives every trial with all that is stored of it (`observe`).

    Attributes:
        trials: Number of counted trials so far.
        build_cost: Cost of a new environment, in trials, at the last call of `ask`.
    """

    def __init__(self) -> None:
        self.trials = 0
        self.build_cost = UNKNOWN_COST

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Return whether no more trials are wanted."""

    @abstractmethod
    def block(self, places: int, *, is_idle: bool) -> tuple[Index, int] | None:
        """Return a combination and how many more trials of it are wanted, including the running ones.

        Args:
            places: Number of trials that could begin now.
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
        """Return trials of the block; see `Plan.ask`. Empty if `only` asks for trials to fill the time."""
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
        """Return an empty list: the next block depends on the results of the whole current one."""
        return []

    def observe(self, index: Index, trial: StoredTrial) -> None:
        """Receive a trial with any evidence, before `tell` if it counts."""
        return

    def tell(self, _index: Index, *, hit: bool) -> None:
        """Count a trial."""
        self.trials += 1

    @abstractmethod
    def set_aside(self, index: Index) -> None:
        """Exclude a combination: nothing more can be learnt there."""


class BlockRunner(Runner):
    """A runner of a `BlockPlan`, which receives every trial of its series."""

    plan: BlockPlan

    def _observe(self, index: Index, trial: StoredTrial) -> None:
        self.plan.observe(index, trial)


class OnePlan(BlockPlan):
    """A plan of trials of one combination; subclasses determine their number.

    Args:
        index: The combination.
    """

    def __init__(self, index: Index) -> None:
        super().__init__()
        self._index = index
        self._is_aside = False

    @abstractmethod
    def wanted(self) -> int:
        """Return how many more trials are wanted, including the running ones."""

    @property
    def finished(self) -> bool:
        """Return whether no more trials are wanted."""
        return self._is_aside or self.wanted() <= 0

    def block(self, _places: int, *, is_idle: bool) -> tuple[Index, int] | None:
        """Return the combination and the number of trials left."""
        return None if self._is_aside else (self._index, self.wanted())

    def set_aside(self, _index: Index) -> None:
        """End the plan."""
        self._is_aside = True


class SoMany(OnePlan):
    """A plan of a number of trials. Failures of another kind are included; void trials are run again.

    Args:
        index: The combination.
        number: Number of trials.
    """

    def __init__(self, index: Index, number: int) -> None:
        super().__init__(index)
        self._left = number

    def wanted(self) -> int:
        """Return how many trials are left."""
        return self._left

    def observe(self, _index: Index, trial: StoredTrial) -> None:
        """Count a trial that passed or failed in any way."""
        self._left -= trial.evidence in (Evidence.GOOD, Evidence.BAD, Evidence.OTHER)


class UntilRate(OnePlan):
    """A plan that ends when the failure rate is shown to be below a limit, or above it.

    Args:
        index: The combination.
        test: A test without trials.
        limit: Maximum number of trials.

    Attributes:
        test: As given.
    """

    def __init__(self, index: Index, test: RateTest, limit: int) -> None:
        super().__init__(index)
        self.test = test
        self._limit = limit

    def wanted(self) -> int:
        """Return how many trials are left until the test ends, if no further trial fails."""
        if self.test.claim is not None:
            return 0
        end = self._limit if self.test.hits else min(self._limit, self.test.clean_needed)
        return max(0, end - self.test.trials)

    def tell(self, index: Index, *, hit: bool) -> None:
        """Count a trial, and test."""
        super().tell(index, hit=hit)
        self.test.tell(hit)
