"""The interface between what chooses trials and the runner that carries them out. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from bisect_env.matrix.grid import Index


class Plan(Protocol):
    """An object that chooses which combinations to try next, and when to stop.

    The same results, reported in any order, lead to the same choices, so that a plan is resumed by reporting
    what is stored.
    """

    @property
    def trials(self) -> int:
        """Return the number of counted trials so far."""
        ...

    @property
    def finished(self) -> bool:
        """Return whether no more trials are wanted."""
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
        """Return the combinations of the next trials.

        Args:
            count: Maximum number of trials.
            pending: Number of running trials of each combination.
            build_cost: Cost of each environment that does not exist yet, in trials.
            only: The combinations to choose among; None for all.
            worth: Omit trials with less than this share of the best trial's expected information.

        Returns:
            One entry per trial; fewer than `count`, or none, if no further trial is worth its time.
        """
        ...

    def foresee(
        self, pending: Mapping[Index, int], build_cost: Mapping[Index, float] | None = None
    ) -> list[Index]:
        """Return the combinations that may follow the pending trials, the likeliest first.

        Their environments are worth building while those trials run.

        Args:
            pending: As in `ask`.
            build_cost: As in `ask`.
        """
        ...

    def tell(self, index: Index, *, hit: bool) -> None:
        """Count one trial of a combination, which was bad (`hit`) or good."""
        ...

    def set_aside(self, index: Index) -> None:
        """Exclude a combination: no more trials of it are possible or useful."""
        ...
