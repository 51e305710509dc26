"""Choose the combinations to try so that every combination gets a label from few environments. Pure.

After each trial, a `Table` (`table.py`) with the labels is made anew from the counts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Grid, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.belief import CellCounts
from bisect_env.search.families import FloatArray
from bisect_env.search.rates import RateGrid
from bisect_env.search.staircase import Staircase
from bisect_env.search.study_search import Situation, StudySearch
from bisect_env.search.table import Table, along, cells_of
from bisect_env.search.verdict import Verdict
from bisect_env.search.view import LatticeView


class TableSearch(StudySearch):
    """A search that labels every combination good or bad.

    Args:
        grid: The lattice; may contain a stated good and bad end.
        groups: The representative of the group of each combination that can be run, as for `Search`.
        limits: When to stop.
    """

    def __init__(self, grid: Grid, groups: Mapping[Index, Index], limits: SearchLimits | None = None) -> None:
        super().__init__(grid, groups, limits)
        self._view = LatticeView.of(grid, groups)
        self._rates = RateGrid.default(self.limits.min_crash_rate, self.limits.crash_rate)

    @cached_property
    def table(self) -> Table:
        """Return the table of labels that follows from all trials so far."""
        counts = CellCounts(self._rates, *self.tallies.arrays(self._view.position))
        return Table(self._view, counts, self.tallies.runnable(self._view.cells), self.limits)

    # -- answering ---------------------------------------------------------------------------------------

    @property
    def answered(self) -> bool:
        """Return whether every combination that can be run has a label with the stated confidence."""
        return self.table.is_complete

    @property
    def finished(self) -> bool:
        """Return True if the table is complete, no more trials are possible, or their maximum is reached."""
        return super().finished or not self.table.can_run.any()

    @property
    def verdict(self) -> Verdict:
        """Return the verdict about all combinations as a whole: which are bad, and how sure that is."""
        return self.table.verdict

    def probability_bad(self) -> FloatArray:
        """Return the probability that each combination is bad, in the shape of the grid.

        It is 0.5 for combinations without a label.
        """
        return self.table.probability_bad()

    # -- asking ------------------------------------------------------------------------------------------

    def _choose(self, count: int, now: Situation) -> list[Index]:
        table, cells = self.table, self._view.cells
        allowed = self._view.standing(table.can_run & now.allowed(cells))
        chosen: list[Index] = []

        def take(cell: Index, wanted: int) -> None:
            if allowed[cell] and len(chosen) < count:
                room = count - len(chosen)
                chosen.extend([cell] * min(max(wanted - now.running.get(cell, 0), 0), room))

        for cell, wanted in table.again:
            take(cell, wanted - table.trials(cell))
        chunk = max(1, table.usual_trials // 2)
        looking = {cell for cell in (*now.running, *chosen) if table.labelled[cell] < 0}
        for cell in self._new(-(-(count - len(chosen)) // chunk), looking, now.prices(cells), allowed):
            take(cell, chunk)
        if not chosen and not looking:
            for cell in table.suspects:
                take(cell, table.enough_passes - table.trials(cell))
            if left := table.repeats_left:
                take(table.least_repeated, left)
        return chosen

    def _new(
        self,
        count: int,
        looking: Collection[Index],
        cost: FloatArray,
        allowed: NDArray[np.bool_],
    ) -> list[Index]:
        """Return at most `count` combinations to try next, of those not yet called good or bad.

        Args:
            count: Maximum number of combinations.
            looking: Combinations that are being tried.
            cost: Price of the environment of each group as a number of trials, shape (groups,).
            allowed: True for the combinations to choose from.
        """
        if count <= 0:
            return []
        table = self.table
        unknown = allowed & (table.labelled < 0)
        for cell in looking:
            unknown[cell] = False
        first = [cell for cell in table.first if table.labelled[cell] < 0]
        if waiting := [cell for cell in first if cell not in looking]:
            return [cell for cell in waiting if unknown[cell]][:count]
        if any(cell in looking for cell in first):
            return []
        description = table.description
        if description is None:
            return sorted(cells_of(unknown), key=lambda cell: cost[self._view.position[cell]])[:count]
        open_ = table.visible & (table.labelled < 0) & ~description.decided
        if not open_.any():
            return [cell for cell in table.checks[0] if unknown[cell]][:count]
        chosen: list[Index] = []
        for stairs in description.stairs:
            if len(chosen) < count:
                taken = [*looking, *chosen]
                chosen += self._cuts(count - len(chosen), stairs, description.alike, taken, unknown & open_)
        return chosen

    def _cuts(
        self,
        count: int,
        stairs: Staircase,
        alike: tuple[int, ...],
        taken: Collection[Index],
        open_: NDArray[np.bool_],
    ) -> list[Index]:
        """Return the combinations to try next: those whose labels would decide the most others.

        The labels follow from each other by the staircase. If the description is the same at all values of
        unordered axes, each combination gets the values of these axes that were tried least.

        Args:
            count: Maximum number of combinations.
            stairs: The staircase.
            alike: Unordered axes along which the description is constant.
            taken: Combinations that are being tried or were chosen already.
            open_: True for the combinations to choose from, shape of the lattice.
        """
        flat = [tuple(0 if i in alike else place for i, place in enumerate(cell)) for cell in taken]
        visible = along(self.table.visible, alike)
        allowed = open_.copy()
        for cell in taken:
            allowed[cell] = False
        cells = stairs.next(count, list(dict.fromkeys(flat)), visible, along(allowed, alike))
        chosen: list[Index] = []
        for cell in cells:
            line = tuple(slice(None) if i in alike else place for i, place in enumerate(cell))
            here = np.zeros_like(allowed)
            here[line] = allowed[line]
            tried = [*self.table.cells_with_label, *taken, *chosen]
            chosen.append(
                min(
                    cells_of(here),
                    key=lambda one: sum(one[i] == other[i] for other in tried for i in alike),
                )
            )
        return chosen

    def _foresee(self, now: Situation) -> list[Index]:
        """Return the combination that may be tried after the running trials, as a list of at most one."""
        return self._new(1, now.running, now.prices(self._view.cells), self.table.visible)
