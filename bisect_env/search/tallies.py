"""The counts of all recorded trials, from which a search computes everything else. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Index


class Tallies:
    """The failures and trials of each group of combinations, and the groups that can still be tried.

    Args:
        groups: The representative of the group of each combination that can be run (combinations whose trials
            would be equal form a group). Combinations that cannot be run are missing.

    Attributes:
        groups: As above.
        per_group: (failures, counted trials) of each group that was tried, by its representative.
        aside: Representatives of the groups that are excluded from further trials. Their earlier trials, and
            trials that were already running, still count.
    """

    def __init__(self, groups: Mapping[Index, Index]) -> None:
        self.groups = groups
        self.per_group: dict[Index, tuple[int, int]] = {}
        self.aside: set[Index] = set()

    def add(self, index: Index, hits: int, trials: int) -> None:
        """Add `trials` trials of a combination, of which `hits` showed the target failure.

        Raises:
            ValueError: The combination could not be run when the search began.
        """
        if trials:
            cell = self.representative(index)
            before = self.per_group.get(cell, (0, 0))
            self.per_group[cell] = (before[0] + hits, before[1] + trials)

    def set_aside(self, index: Index) -> None:
        """Exclude a combination, and all equivalent ones, from further trials.

        Does nothing if the combination cannot be run anyway.
        """
        if index in self.groups:
            self.aside.add(self.groups[index])

    def representative(self, index: Index) -> Index:
        """Return the combination that is tried for all combinations equivalent to a given one.

        Raises:
            ValueError: The combination could not be run when the search began.
        """
        if index not in self.groups:
            raise ValueError(f"combination {index} cannot be run")
        return self.groups[index]

    def can_run(self, index: Index) -> bool:
        """Return whether a combination can still be tried: it can be run and was not excluded."""
        cell = self.groups.get(index)
        return cell is not None and cell not in self.aside

    def is_known(self, index: Index) -> bool:
        """Return whether a combination can still be tried, or has counted trials."""
        return self.can_run(index) or self.groups.get(index) in self.per_group

    def counts(self, index: Index) -> tuple[int, int]:
        """Return (failures, counted trials) of the group of a combination.

        Raises:
            ValueError: The combination could not be run when the search began.
        """
        return self.per_group.get(self.representative(index), (0, 0))

    @property
    def trials(self) -> int:
        """Return the number of counted trials so far."""
        return sum(trials for _, trials in self.per_group.values())

    @property
    def untried(self) -> int:
        """Return the number of groups that can be tried and have no counted trial."""
        return len({*self.groups.values()} - self.per_group.keys() - self.aside)

    def by_group(self, numbers: Mapping[Index, int]) -> dict[Index, int]:
        """Add up `numbers` within each group of equivalent combinations that can still be run.

        Returns each sum by the representative of its group.

        Args:
            numbers: One number per combination.
        """
        found: dict[Index, int] = {}
        for index, number in numbers.items():
            if number and self.can_run(index):
                cell = self.groups[index]
                found[cell] = found.get(cell, 0) + number
        return found

    def arrays(self, position: Mapping[Index, int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return two arrays: the failures and the trials of each group in `position`, shape (groups,).

        Args:
            position: The place of each group in the arrays, by its representative.
        """
        hits, trials = np.zeros((2, len(position)), dtype=np.int64)
        for cell, (failed, of) in self.per_group.items():
            if (place := position.get(cell)) is not None:
                hits[place], trials[place] = failed, of
        return hits, trials

    def runnable(self, cells: Sequence[Index]) -> NDArray[np.bool_]:
        """Return which of the given combinations can still be tried, as a boolean array in their order.

        Args:
            cells: Representatives of groups.
        """
        return np.array([cell not in self.aside for cell in cells], dtype=np.bool_)
