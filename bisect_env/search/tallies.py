"""Stores what a search was told. Everything else that a search knows is computed from it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Index
from bisect_env.search.belief import CellCounts
from bisect_env.search.families import FloatArray
from bisect_env.search.rates import RateGrid
from bisect_env.search.view import LatticeView


class Tallies:
    """The counts of trials of each group of combinations, and which groups can still be tried.

    Args:
        groups: For each combination that can be run, the one that stands for its group (combinations with the
            same measurement form a group). Combinations that cannot be run are missing.

    Attributes:
        told: Hits and counted trials of each group that was tried, by the combination that stands for it.
        aside: Groups of which no more trials are possible. Their counts keep counting, and trials that were
            running are told all the same.
    """

    def __init__(self, groups: Mapping[Index, Index]) -> None:
        self._groups = groups
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
        if index in self._groups:
            self.aside.add(self._groups[index])

    def find(self, index: Index) -> Index | None:
        """Return the representative of the group of `index`, or None if `index` could never be run."""
        return self._groups.get(index)

    def representative(self, index: Index) -> Index:
        """Return the representative of a combination's group.

        Raises:
            ValueError: The combination could not be run when the search began.
        """
        found = self.find(index)
        if found is None:
            raise ValueError(f"combination {index} cannot be run")
        return found

    def can_run(self, index: Index) -> bool:
        """Return whether a combination can be run and was not excluded."""
        cell = self._groups.get(index)
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
                cell = self._groups[index]
                found[cell] = found.get(cell, 0) + number
        return found

    def in_view(self, view: LatticeView, rates: RateGrid) -> CellCounts:
        """Return the counts as arrays with one element per group, in the order of `view`."""
        hits, trials = (np.zeros(len(view.cells), dtype=np.int64) for _ in range(2))
        for cell, (failed, of) in self.told.items():
            hits[view.position[cell]], trials[view.position[cell]] = failed, of
        return CellCounts(rates, hits, trials)

    def runnable(self, view: LatticeView) -> NDArray[np.bool_]:
        """Return which groups can still be tried, as a boolean array in the order of `view`."""
        return np.array([cell not in self.aside for cell in view.cells], dtype=np.bool_)

    def prices(self, view: LatticeView, build_cost: Mapping[Index, float] | None) -> FloatArray:
        """Return the price of each group's environment, expressed as a number of trials.

        The shape is (X,).

        Args:
            view: The view.
            build_cost: Cost of each combination's environment that does not exist yet; all others cost 0.
        """
        prices = np.zeros(len(view.cells))
        for index, price in (build_cost or {}).items():
            if index in self._groups:
                prices[view.position[self._groups[index]]] = price
        return prices
