"""Searches lattices of any size by looking at a few values of each axis first, then closely where it matters.

A *stage* is a `Search` over some values of each axis, no more than its hypotheses can be listed for. The
first stage has values evenly spread from end to end. Once its answer stands, each boundary between values
that are not neighbours is looked into: the next stage has the values between them, and those of the last one
around them. The last stage is the one whose boundaries lie between neighbours; its answer is checked.

The stages follow from the counts alone, so that a study goes on as if it had never stopped. Every stage may
err: with the stated error e and s stages to come at most, each is allowed e / s.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from bisect_env.matrix.grid import Direction, Grid, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.checks import Check, clean_checks, cleared
from bisect_env.search.families import FloatArray
from bisect_env.search.searcher import Search, StudySearch
from bisect_env.search.space import Hypothesis, is_large
from bisect_env.search.verdict import Answer, Boundary, Status, Verdict, between

_MOST_CELLS = 400
"""Cells of a stage."""
_MOST_STAGES = 12


def search_for(
    grid: Grid, groups: Mapping[Index, Index], limits: SearchLimits | None = None, *, quick: bool = False
) -> StudySearch:
    """Return a search over the whole lattice if its hypotheses can be listed, else one that zooms in.

    Arguments as for `Search`.
    """
    directions = [axis.direction for axis in grid.axes]
    is_small = math.prod(grid.shape) <= 10 * _MOST_CELLS and not is_large(grid.shape, directions)
    return (Search if is_small else ZoomedSearch)(grid, groups, limits, quick=quick)


@dataclass(frozen=True)
class _Stage:
    """A search over some values of each axis.

    Attributes:
        values: The values, ascending.
        search: The search; its cells are places among the values.
        stands_for: The combination that stands for the group of each cell that can be run.
        cells: The cell of each such combination.
    """

    values: tuple[tuple[int, ...], ...]
    search: Search
    stands_for: Mapping[Index, Index]
    cells: Mapping[Index, Index]

    def combination(self, cell: Index) -> Index:
        """Return a cell as a combination of the whole lattice."""
        return tuple(values[place] for values, place in zip(self.values, cell, strict=True))


class ZoomedSearch(StudySearch):
    """A search over a lattice of any size, with the methods of `Search`.

    Args:
        grid: The lattice.
        groups: As in `Search`; looked up, never listed.
        limits: When to stop.
        quick: Whether the search ends as soon as the answer stands, without checks.
    """

    def __init__(
        self,
        grid: Grid,
        groups: Mapping[Index, Index],
        limits: SearchLimits | None = None,
        *,
        quick: bool = False,
    ) -> None:
        self.limits = limits or SearchLimits()
        self._grid, self._groups = grid, groups
        self._checks_ended = quick
        self._told: dict[Index, tuple[int, int]] = {}
        self._aside: set[Index] = set()
        self._stages = [self._make(self._first_values())]
        self._is_stale = False

    # -- telling -----------------------------------------------------------------------------------------

    def can_be_told(self, index: Index) -> bool:
        """Return whether the combination was one that can be run when the search began."""
        return index in self._groups

    def tell(self, index: Index, *, hit: bool) -> None:
        """Count one trial of a combination."""
        self.tell_counts(index, int(hit), 1)

    def tell_counts(self, index: Index, hits: int, trials: int) -> None:
        """Count several trials of a combination at once."""
        cell = self._representative(index)
        before = self._told.get(cell, (0, 0))
        self._told[cell] = (before[0] + hits, before[1] + trials)
        for stage in self._stages:
            if cell in stage.cells:
                stage.search.tell_counts(stage.cells[cell], hits, trials)
        self._is_stale = True

    def set_aside(self, index: Index) -> None:
        """Exclude a combination: no more trials of its group are possible."""
        cell = self._groups.get(index)
        if cell is not None:
            self._aside.add(cell)
            for stage in self._stages:
                if cell in stage.cells:
                    stage.search.set_aside(stage.cells[cell])
            self._is_stale = True

    def _representative(self, index: Index) -> Index:
        try:
            return self._groups[index]
        except KeyError:
            raise ValueError(f"combination {index} cannot be run") from None

    def end_checks(self) -> None:
        """Skip further checks: the search is finished as soon as the answer stands."""
        self._checks_ended = True

    # -- stages ------------------------------------------------------------------------------------------

    def _first_values(self) -> tuple[tuple[int, ...], ...]:
        ends = [end for end in (self._grid.good, self._grid.bad) if end is not None]
        counts = _values_of_each(self._grid)
        return tuple(
            tuple(
                sorted(
                    {*np.linspace(0, size - 1, count).round().astype(int).tolist(), *(e[axis] for e in ends)}
                )
            )
            for axis, (size, count) in enumerate(zip(self._grid.shape, counts, strict=True))
        )

    def _make(self, values: tuple[tuple[int, ...], ...]) -> _Stage:
        """Return a stage over some values, which knows everything that was told."""
        axes = tuple(
            replace(axis, values=tuple(axis.values[i] for i in some), history=None)
            for axis, some in zip(self._grid.axes, values, strict=True)
        )
        groups: dict[Index, Index] = {}
        cells: dict[Index, Index] = {}
        for cell in itertools.product(*(range(len(some)) for some in values)):
            there = tuple(some[place] for some, place in zip(values, cell, strict=True))
            stands_for = self._groups.get(there)
            if stands_for is not None:
                groups[cell] = cells.setdefault(stands_for, cell)
        places = [{value: place for place, value in enumerate(some)} for some in values]

        def here(end: Index | None) -> Index | None:
            if end is None or any(value not in place for value, place in zip(end, places, strict=True)):
                return None
            return tuple(place[value] for value, place in zip(end, places, strict=True))

        grid = Grid(axes, good=here(self._grid.good), bad=here(self._grid.bad))
        error = (1.0 - self.limits.confidence) / _stages_of(self._grid)
        limits = self.limits.model_copy(update={"confidence": min(1.0 - error, 0.9999)})
        search = Search(grid, groups, limits, quick=True)
        for index, (hits, trials) in self._told.items():
            if index in cells:
                search.tell_counts(cells[index], hits, trials)
        for index in self._aside:
            if index in cells:
                search.set_aside(cells[index])
        return _Stage(values, search, {cell: index for index, cell in cells.items()}, cells)

    @property
    def _stage(self) -> _Stage:
        """Return the last stage; earlier ones have answers that stand."""
        if self._is_stale:
            self._is_stale = False
            for number, stage in enumerate(self._stages):
                if not stage.search.answered:
                    del self._stages[number + 1 :]
                    break
                values = self._closer(stage)
                if values is None:
                    del self._stages[number + 1 :]
                    break
                if number + 1 < len(self._stages) and self._stages[number + 1].values == values:
                    continue
                del self._stages[number + 1 :]
                self._stages.append(self._make(values))
                self._is_stale = len(self._stages) < _MOST_STAGES
        return self._stages[-1] if not self._is_stale else self._stage

    def _closer(self, stage: _Stage) -> tuple[tuple[int, ...], ...] | None:
        """Return the values of the next stage; None if all boundaries lie between neighbours."""
        best = stage.search.verdict.best
        gaps: dict[int, tuple[int, int]] = {}
        for boundary in best.boundaries:
            bad, good = stage.combination(boundary.bad), stage.combination(boundary.good)
            low, high = sorted((bad[boundary.axis], good[boundary.axis]))
            if any(
                self._can_run((*bad[: boundary.axis], value, *bad[boundary.axis + 1 :]))
                for value in range(low + 1, high)
            ):
                gaps[boundary.axis] = low, high
        if not gaps:
            return None
        counts = _values_of_each(self._grid, wanted=tuple(gaps))
        found = []
        for axis, values in enumerate(stage.values):
            keep = (
                {values[0], values[-1]}
                if self._grid.axes[axis].direction is not Direction.UNORDERED
                else {*values}
            )
            keep |= {stage.combination(cell)[axis] for b in best.boundaries for cell in (b.bad, b.good)}
            if axis in gaps:
                low, high = gaps[axis]
                most = min(high - low + 1, max(counts[axis] - len(keep), 3))
                keep |= set(np.linspace(low, high, most).round().astype(int).tolist())
            found.append(tuple(sorted(keep)))
        return tuple(found)

    def _can_run(self, index: Index) -> bool:
        cell = self._groups.get(index)
        return cell is not None and cell not in self._aside

    # -- asking ------------------------------------------------------------------------------------------

    def ask(
        self,
        count: int,
        *,
        pending: Mapping[Index, int] | None = None,
        build_cost: Mapping[Index, float] | None = None,
        only: Collection[Index] | None = None,
        worth: float = 0.0,
    ) -> list[Index]:
        """Choose the next trials; see `Search.ask`."""
        stage = self._stage
        if self.answered:
            running = pending or {}
            checks = [one for one in self.checks if only is None or one.cell in only]
            wanted = [[one.cell] * max(0, one.wanted - running.get(one.cell, 0)) for one in checks]
            return list(itertools.chain(*wanted))[:count]
        prices = build_cost or {}
        chosen = stage.search.ask(
            count,
            pending=self._here(stage, pending or {}),
            build_cost={cell: prices[index] for cell, index in stage.stands_for.items() if index in prices},
            only=None if only is None else {stage.cells[index] for index in only if index in stage.cells},
            worth=worth,
        )
        return [stage.stands_for[cell] for cell in chosen]

    def _here(self, stage: _Stage, pending: Mapping[Index, int]) -> dict[Index, int]:
        here: dict[Index, int] = {}
        for index, number in pending.items():
            cell = stage.cells.get(self._groups.get(index, index))
            if cell is not None:
                here[cell] = here.get(cell, 0) + number
        return here

    def foresee(
        self, pending: Mapping[Index, int], build_cost: Mapping[Index, float] | None = None
    ) -> list[Index]:
        """Return the combinations that would be asked for either result of the pending trials."""
        stage = self._stage
        if self.answered:
            return [check.cell for check in self.checks]
        return [stage.stands_for[cell] for cell in stage.search.foresee(self._here(stage, pending))]

    # -- answering ---------------------------------------------------------------------------------------

    @property
    def trials(self) -> int:
        """Return the number of counted trials so far."""
        return sum(trials for _, trials in self._told.values())

    @property
    def answered(self) -> bool:
        """Return whether the answer stands; later trials only check it."""
        return self._stage.search.answered

    @property
    def finished(self) -> bool:
        """Return whether no more trials are wanted: the answer is checked, or the budget is spent."""
        if self.trials >= self.limits.max_trials:
            return True
        return self.answered and (self._checks_ended or not self.checks)

    @property
    def checks(self) -> tuple[Check, ...]:
        """Return the checks of last good combinations that a standing answer still needs."""
        verdict = self.verdict
        if not self.answered or verdict.status is not Status.CONFIRMED:
            return ()
        found = clean_checks(verdict.best, _CanRun(self._grid.shape, self), self.counts, self.limits)
        return tuple(Check(self._representative(one.cell), one.wanted, one.why) for one in found)

    @property
    def checks_left(self) -> int:
        """Return how many trials the checks still need."""
        return 0 if self._checks_ended else sum(check.wanted for check in self.checks)

    @property
    def verdict(self) -> Verdict:
        """Return the answer so far, on the whole lattice."""
        stage = self._stage
        verdict = stage.search.verdict
        best = self._whole(stage, verdict.best)
        is_confirmed = verdict.status is Status.CONFIRMED
        return replace(
            verdict,
            best=best,
            candidates=tuple(self._whole(stage, one) for one in verdict.candidates),
            cleared=cleared(best, _CanRun(self._grid.shape, self), self.counts, self.limits)
            if is_confirmed
            else (),
            unexplained=tuple(
                replace(one, index=stage.combination(one.index)) for one in verdict.unexplained
            ),
            untested=(),
        )

    def counts(self, index: Index) -> tuple[int, int]:
        """Return hits and counted trials of a combination's group."""
        return self._told.get(self._representative(index), (0, 0))

    def probability_bad(self) -> FloatArray:
        """Return the posterior that each combination is bad, interpolated between the values of the stage."""
        stage = self._stage
        bad = stage.search.probability_bad()
        for axis, (values, size) in enumerate(zip(stage.values, self._grid.shape, strict=True)):
            rows = np.stack([np.interp(np.arange(size), values, unit) for unit in np.eye(len(values))])
            bad = np.moveaxis(np.tensordot(bad, rows, axes=(axis, 0)), -1, axis)
        return np.asarray(bad, dtype=np.float64)

    def _whole(self, stage: _Stage, found: Answer) -> Answer:
        """Return an answer over a stage as one over the whole lattice; values in between count as good."""
        hypothesis = found.hypothesis
        sets = []
        for axis, (values, size) in enumerate(zip(stage.values, self._grid.shape, strict=True)):
            bad = hypothesis.sets[axis]
            whole = np.zeros(size, dtype=bool)
            edges = np.flatnonzero(np.diff(np.concatenate([[False], bad, [False]]).astype(np.int8)))
            for low, high in edges.reshape(-1, 2):
                whole[values[low] : values[high - 1] + 1] = True
            sets.append(whole)
        boundaries = []
        for one in found.boundaries:
            bad_cell, good_cell = stage.combination(one.bad), stage.combination(one.good)
            boundaries.append(Boundary(one.axis, bad_cell, good_cell, between(one.axis, bad_cell, good_cell)))
        kind = hypothesis.kind if hypothesis.table is None else "all"
        return Answer(
            Hypothesis(kind, tuple(sets), hypothesis.culprits),
            tuple(boundaries),
            None if found.first_bad is None else stage.combination(found.first_bad),
            None if found.last_good is None else stage.combination(found.last_good),
            found.probability,
        )


@dataclass(frozen=True)
class _CanRun:
    """A lookup of which combinations of a large lattice can be run."""

    shape: tuple[int, ...]
    search: ZoomedSearch

    def __getitem__(self, index: Index) -> bool:
        return self.search._can_run(index)


def _values_of_each(grid: Grid, wanted: tuple[int, ...] = ()) -> list[int]:
    """Return how many values of each axis a stage has: as many as make `_MOST_CELLS` cells, at least two.

    Args:
        grid: The lattice.
        wanted: Axes that get more values than others; empty for all alike.
    """
    counts = [min(size, 2) for size in grid.shape]
    order = [axis for axis in wanted if grid.shape[axis] > 2] or list(range(len(counts)))
    while True:
        wider = [
            axis
            for axis in order
            if counts[axis] < grid.shape[axis]
            and math.prod(counts) // counts[axis] * (counts[axis] + 1) <= _MOST_CELLS
            and not _too_many([n + (i == axis) for i, n in enumerate(counts)], grid)
        ]
        if not wider:
            return counts
        counts[min(wider, key=lambda axis: counts[axis])] += 1


def _too_many(counts: list[int], grid: Grid) -> bool:
    return is_large(counts, [axis.direction for axis in grid.axes])


def _stages_of(grid: Grid) -> int:
    """Return how many stages it takes at most to come from the whole lattice to neighbours."""
    counts = _values_of_each(grid)
    return max(
        1 + math.ceil(math.log(max(size / n, 1.0)) / math.log(max(n - 1, 2)))
        for size, n in zip(grid.shape, counts, strict=True)
    )
