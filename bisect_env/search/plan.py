"""The interface between a search, which chooses trials, and the runner, which carries them out. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from bisect_env.matrix.grid import Index


class Plan(Protocol):
    """An object that chooses which combinations to try next, and when to stop.

    Its choices depend only on which results were reported, not on their order. A study is therefore resumed
    by reporting all stored results to a new plan.
    """

    @property
    def trials(self) -> int:
        """Return the number of counted trials so far."""
        ...

    @property
    def finished(self) -> bool:
        """Return whether the plan needs no more trials, because it has its answer or cannot get one."""
        ...

    def ask(
        self,
        count: int,
        *,
        pending: Mapping[Index, int] | None = None,
        build_cost: Mapping[Index, float] | None = None,
        only: Collection[Index] | None = None,
        worth: float = 0.0,
    ) -> list[Index]:
        """Choose the combinations to try next, given the trials that are already running.

        Args:
            count: Maximum number of trials.
            pending: Number of running trials of each combination.
            build_cost: Cost of each environment that does not exist yet, expressed as a number of trials, by
                the representative of its group.
            only: Combinations to choose from; None for all.
            worth: With `only`: minimum expected information of the best of these trials, as a share of the
                information of the best trial of all combinations. Below it, the list is empty.

        Returns:
            One entry per trial. The list has fewer than `count` entries, or none, if no further trial is
            worth its time.
        """
        ...

    def foresee(
        self, pending: Mapping[Index, int], build_cost: Mapping[Index, float] | None = None
    ) -> list[Index]:
        """Return the combinations that may be tried after the pending trials, the likeliest first.

        Their environments are worth building while these trials run.

        Args:
            pending: As in `ask`.
            build_cost: As in `ask`.
        """
        ...

    def tell(self, index: Index, *, hit: bool) -> None:
        """Record one trial of the combination `index`: a failure if `hit` is True, otherwise a pass."""
        ...

    def set_aside(self, index: Index) -> None:
        """Exclude a combination from further trials, because no trials of it are possible or useful."""
        ...
