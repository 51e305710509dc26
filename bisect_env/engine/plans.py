"""Plans that want trials of one combination at a time: a number of them, or until a rate is known."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping

from bisect_env.engine.state import Tally
from bisect_env.matrix.grid import Index
from bisect_env.search.rate_test import RateTest


class BlockPlan(ABC):
    """A plan that wants trials of one combination at a time; see `search.plan.Plan`.

    Attributes:
        trials: Number of counted trials so far.
    """

    def __init__(self) -> None:
        self.trials = 0

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Return whether no more trials are wanted."""

    @abstractmethod
    def block(self, places: int, *, is_idle: bool) -> tuple[Index, int] | None:
        """Return which combination to try, and how many trials of it are wanted, those included that run.

        Args:
            places: Trials that could begin now.
            is_idle: Whether no trial runs.
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
        """Return trials of the block; see `Plan.ask`. None where they would only pass the time."""
        running = pending or {}
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
        """Return an empty list: the next block depends on the whole present one."""
        return []

    def tell(self, _index: Index, *, hit: bool) -> None:
        """Count a trial."""
        self.trials += 1

    @abstractmethod
    def set_aside(self, index: Index) -> None:
        """Note that nothing more can be learnt at a combination."""


class OnePlan(BlockPlan):
    """A plan of trials of one combination; subclasses determine their number.

    Args:
        index: The combination.

    Attributes:
        tally: Returns what all of its trials said, those that do not count included.
    """

    def __init__(self, index: Index) -> None:
        super().__init__()
        self._index = index
        self.tally: Callable[[], Tally] = Tally
        self._is_aside = False

    @abstractmethod
    def wanted(self) -> int:
        """Return how many more trials are wanted, those included that run."""

    @property
    def finished(self) -> bool:
        """Return whether no more trials are wanted."""
        return self._is_aside or self.wanted() <= 0

    def block(self, _places: int, *, is_idle: bool) -> tuple[Index, int] | None:
        """Return the combination and the number of trials left."""
        return None if self._is_aside else (self._index, self.wanted())

    def set_aside(self, _index: Index) -> None:
        """Note that nothing can be learnt here."""
        self._is_aside = True


class SoMany(OnePlan):
    """A plan of a number of trials, failures of another kind included; void ones are run again.

    Args:
        index: The combination.
        number: How many.
    """

    def __init__(self, index: Index, number: int) -> None:
        super().__init__(index)
        self._number = number

    def wanted(self) -> int:
        """Return how many are left."""
        return self._number - self.trials - self.tally().other


class UntilRate(OnePlan):
    """A plan that ends when the failure rate is shown to be below a limit, or above it.

    Args:
        index: The combination.
        test: A test without trials.
        limit: Trials after which to give up.

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
