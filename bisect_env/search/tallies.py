"""Keeps what a study was told: counts, groups of combinations, and what was set aside. Pure.

This is all of a search that changes. Everything else is worked out from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Grid, Index
from bisect_env.search.families import FloatArray
from bisect_env.search.rates import RateGrid
from bisect_env.search.space import Hypothesis


class Counts:
    """Target outcomes and counted trials of every cell, with their log likelihoods kept up to date.

    Args:
        shape: Shape of the lattice.
        grid: Rates to score.

    Attributes:
        hits: Target outcomes per cell, shape of the lattice.
        trials: Counted trials per cell, shape of the lattice.
        log_bad: Log likelihood of each cell if it is bad, shape (*lattice, J).
        log_good: Log likelihood of each cell if it is good, shape (*lattice, K).
        own_rate: For cells with trials: posterior of the cell's own rate if bad, shape (J, R).
    """

    def __init__(self, shape: tuple[int, ...], grid: RateGrid) -> None:
        self.grid = grid
        self.hits = np.zeros(shape)
        self.trials = np.zeros(shape)
        self.log_bad = np.zeros((*shape, len(grid.m)))
        self.log_good = np.zeros((*shape, len(grid.p0)))
        self.own_rate: dict[Index, FloatArray] = {}

    def add(self, index: Index, hits: int, trials: int) -> None:
        """Count `trials` more trials of a cell, `hits` of which showed the target."""
        self.hits[index] += hits
        self.trials[index] += trials
        y, n = float(self.hits[index]), float(self.trials[index])
        self.log_bad[index], self.own_rate[index] = self.grid.if_bad(y, n)
        self.log_good[index] = self.grid.if_good(y, n)

    def at(self, values: Sequence[Sequence[int]]) -> Counts:
        """Return the counts on some values of each axis, read-only, for computing a posterior.

        Args:
            values: Per axis, positions.
        """
        part = object.__new__(Counts)
        part.grid = self.grid
        here = np.ix_(*values)
        part.hits, part.trials = self.hits[here], self.trials[here]
        part.log_bad, part.log_good = self.log_bad[here], self.log_good[here]
        part.own_rate = {}
        return part

    def copy(self) -> Counts:
        """Return an independent copy, for looking ahead."""
        twin = object.__new__(Counts)
        twin.grid = self.grid
        twin.hits, twin.trials = self.hits.copy(), self.trials.copy()
        twin.log_bad, twin.log_good = self.log_bad.copy(), self.log_good.copy()
        twin.own_rate = dict(self.own_rate)
        return twin


class Tallies:
    """The counts of each combination, and which combinations can still be tried.

    Args:
        grid: The lattice of combinations.
        groups: For each cell the cell that stands for it (combinations with one measurement share a group),
            missing for cells that cannot be run.
        rates: Rates by which counts are scored.

    Attributes:
        rates: The same rates.
        seen: The counts so far.
        group: For each cell the flat position of the cell that stands for it, -1 where nothing can be learnt.
    """

    def __init__(self, grid: Grid, groups: Mapping[Index, Index], rates: RateGrid) -> None:
        self._grid = grid
        self.rates = rates
        self.seen = Counts(grid.shape, rates)
        self.group: NDArray[np.intp] = np.full(grid.shape, -1, dtype=np.intp)
        for index, stands_for in groups.items():
            self.group[index] = np.ravel_multi_index(stands_for, grid.shape)
        # Trials that were under way when their combination was set aside are told all the same, and what was
        # counted there stays on record.
        self._stands_for = dict(groups)

    # -- telling -----------------------------------------------------------------------------------------

    def tell(self, index: Index, *, hit: bool) -> None:
        """Count one trial of a combination, good or bad.

        Other outcomes and void trials must not be counted.
        """
        self.tell_counts(index, int(hit), 1)

    def tell_counts(self, index: Index, hits: int, trials: int) -> None:
        """Count several trials of a combination at once."""
        self.seen.add(self.representative_of(index), hits, trials)
        self.forget(classes=False)

    def set_aside(self, index: Index) -> None:
        """Exclude a combination from further trials (unbuildable, skipped, always failing another way).

        Its whole group is excluded. Trials of it that were counted, or still will be, keep counting.
        """
        if self.group[index] >= 0:
            self.group[self.group == self.group[index]] = -1
            self.forget()

    def forget(self, *, classes: bool = True) -> None:
        """Drop cached results that depend on the counts.

        With `classes` also those that depend on the groups.
        """
        if classes:
            self.__dict__.pop("visible", None)

    # -- asking --------------------------------------------------------------------------------------------

    def can_be_told(self, index: Index) -> bool:
        """Return whether the combination was one that can be run when the search began."""
        return index in self._stands_for

    def representative_of(self, index: Index) -> Index:
        """Return the cell that stands for a combination's group.

        Raises:
            ValueError: The combination could not be run when the search began.
        """
        try:
            return self._stands_for[index]
        except KeyError:
            raise ValueError(f"combination {index} cannot be run") from None

    def can_run(self, index: Index) -> bool:
        """Return whether something can still be learnt at a combination."""
        return bool(self.group[index] >= 0)

    def by_cell(self, numbers: Mapping[Index, int]) -> dict[Index, int]:
        """Return numbers per combination as numbers per representative cell, for runnable ones only."""
        found: dict[Index, int] = {}
        for index, number in numbers.items():
            if self.can_run(index):
                cell = self.representative_of(index)
                found[cell] = found.get(cell, 0) + number
        return found

    def unanimous(self) -> dict[Index, bool] | None:
        """Return whether each tried cell always failed; None if some cell both failed and passed."""
        labels: dict[Index, bool] = {}
        for cell in self.seen.own_rate:
            hits = self.seen.hits[cell]
            if 0 < hits < self.seen.trials[cell]:
                return None
            labels[cell] = bool(hits)
        return labels

    @cached_property
    def visible(self) -> NDArray[np.bool_]:
        """Return which cells stand for a group that can be run."""
        flat = np.arange(self.group.size).reshape(self.group.shape)
        return np.asarray(self.group == flat)

    @property
    def total_hits(self) -> int:
        """Return the number of trials that showed the target so far."""
        return int(self.seen.hits.sum())

    @property
    def visible_count(self) -> int:
        """Return the number of groups of combinations that can still be tried."""
        return int(np.count_nonzero(self.visible))

    def rates_under(self, hypothesis: Hypothesis) -> tuple[float, float]:
        """Return the posterior mean target rates of bad and of good combinations if a hypothesis is true."""
        log_weight = np.log(np.maximum(self.rates.joint, 1e-300))
        for cell in self.seen.own_rate:
            if hypothesis.is_bad(cell):
                log_weight = log_weight + self.seen.log_bad[cell][:, None]
            else:
                log_weight = log_weight + self.seen.log_good[cell][None, :]
        weight = np.exp(log_weight - log_weight.max())
        weight /= weight.sum()
        bad_rate = float(weight.sum(axis=1) @ (self.rates.kernel @ self.rates.rates))
        return bad_rate, float(weight.sum(axis=0) @ self.rates.p0)

    @property
    def trials(self) -> int:
        """Return the number of counted trials so far."""
        return int(self.seen.trials.sum())

    def counts(self, index: Index) -> tuple[int, int]:
        """Return hits and counted trials of a combination's group."""
        cell = self.representative_of(index)
        return int(self.seen.hits[cell]), int(self.seen.trials[cell])

    def prices(self, build_cost: Mapping[Index, float] | None) -> FloatArray:
        """Return the price of each cell's environment in trials, shape of the lattice; 0 where it exists."""
        cost = np.zeros(self._grid.shape)
        for index, price in (build_cost or {}).items():
            if self.group[index] >= 0:
                cost[self.representative_of(index)] = price
        return cost


def position(flat: np.intp | int, shape: tuple[int, ...]) -> Index:
    """Return a flat position on the lattice as an index."""
    return tuple(int(i) for i in np.unravel_index(int(flat), shape))
