"""Stores what a search was told. Everything else that a search knows is computed from it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Index


class Tallies:
    """The counts of trials of each group of combinations, and which groups can still be tried.

    Args:
        groups: For each combination that can be run, the one that stands for its group (combinations with the
            same measurement form a group). Combinations that cannot be run are missing.

    Attributes:
        groups: As above.
        told: Hits and counted trials of each group that was tried, by the combination that stands for it.
        aside: Groups of which no more trials are possible. Their counts keep counting, and trials that were
            running are told all the same.
    """

    def __init__(self, groups: Mapping[Index, Index]) -> None:
        self.groups = groups
        self.told: dict[Index, tuple[int, int]] = {}
        self.aside: set[Index] = set()

    def add(self, index: Index, hits: int, trials: int) -> None:
        """Count more trials of a combination, of which `hits` showed the target failure.

        Raises:
            ValueError: The combination could not be run when the search began.
        """
        if trials:
            cell = self.representative(index)
            before = self.told.get(cell, (0, 0))
            self.told[cell] = (before[0] + hits, before[1] + trials)

    def set_aside(self, index: Index) -> None:
        """Exclude the group of a combination from further trials.

        Does nothing if the combination cannot be run anyway.
        """
        if index in self.groups:
            self.aside.add(self.groups[index])

    def representative(self, index: Index) -> Index:
        """Return the representative of a combination's group.

        Raises:
            ValueError: The combination could not be run when the search began.
        """
        if index not in self.groups:
            raise ValueError(f"combination {index} cannot be run")
        return self.groups[index]

    def can_run(self, index: Index) -> bool:
        """Return whether a combination can be run and was not excluded."""
        cell = self.groups.get(index)
        return cell is not None and cell not in self.aside

    def counts(self, index: Index) -> tuple[int, int]:
        """Return (failures, counted trials) of the group of a combination."""
        return self.told.get(self.representative(index), (0, 0))

    @property
    def trials(self) -> int:
        """Return the number of counted trials so far."""
        return sum(trials for _, trials in self.told.values())

    def by_group(self, numbers: Mapping[Index, int]) -> dict[Index, int]:
        """Add up `numbers`, which has one number per combination, for each group that can be run."""
        found: dict[Index, int] = {}
        for index, number in numbers.items():
            if number and self.can_run(index):
                cell = self.groups[index]
                found[cell] = found.get(cell, 0) + number
        return found

    def arrays(self, position: Mapping[Index, int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return failures and trials of some groups as arrays, shape (X,) each.

        Args:
            position: For the representative of each of the X groups, its place in the arrays.
        """
        hits, trials = np.zeros((2, len(position)), dtype=np.int64)
        for cell, (failed, of) in self.told.items():
            if (place := position.get(cell)) is not None:
                hits[place], trials[place] = failed, of
        return hits, trials

    def runnable(self, cells: Sequence[Index]) -> NDArray[np.bool_]:
        """Return which of the given representatives can still be tried, as a boolean array."""
        return np.array([cell not in self.aside for cell in cells], dtype=np.bool_)
