"""Searches lattices of any size by looking at a few values of each axis first, then closely where it matters.

A *stage* is a `Search` over some values of each axis, no more than its hypotheses can be listed for. The
first stage has values evenly spread from end to end. Once its answer stands, each boundary between values
that are not neighbours is looked into: the next stage has the values between them, and those of the last one
around them. The last stage is the one whose boundaries lie between neighbours; its answer is checked.

Of more than `_MOST_WAYS` axes the first stage ties some together: they change from the good to the bad end at
once. The next stage splits the ties that the answer names, and leaves all other axes as they are there.

The stages follow from the counts alone, so that a study goes on as if it had never stopped. Every stage may
err: with the stated error e and s stages to come at most, each is allowed e / s.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Direction, Grid, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.checks import Check, clean_checks, cleared
from bisect_env.search.families import FloatArray
from bisect_env.search.searcher import Search
from bisect_env.search.space import Hypothesis, is_large
from bisect_env.search.study_search import StudySearch
from bisect_env.search.verdict import Answer, Boundary, Status, Verdict, between

_MOST_CELLS = 400
"""Cells of a stage."""
_MOST_WAYS = 8
"""Axes that a stage looks at separately: with two values of each there are 2^8 cells."""
_MOST_STAGES = 12


def search_for(
    grid: Grid, groups: Mapping[Index, Index], limits: SearchLimits | None = None, *, quick: bool = False
) -> StudySearch:
    """Return a `Search` if the lattice is small enough, otherwise a `ZoomedSearch`.

    Arguments as for `Search`.
    """
    directions = [axis.direction for axis in grid.axes]
    is_small = math.prod(grid.shape) <= 10 * _MOST_CELLS and not is_large(grid.shape, directions)
    return (Search if is_small else ZoomedSearch)(grid, groups, limits, quick=quick)


@dataclass(frozen=True)
class _Way:
    """One axis of a stage: some values of one real axis, or several real axes that change together.

    Attributes:
        axes: The axes of the whole lattice.
        points: The value of each of these axes, at each place on the way.
    """

    axes: tuple[int, ...]
    points: tuple[tuple[int, ...], ...]

    @classmethod
    def along(cls, axis: int, values: Iterable[int]) -> _Way:
        """Create the axis of a stage from some values of one real axis."""
        return cls((axis,), tuple((value,) for value in sorted(values)))

    @property
    def is_tied(self) -> bool:
        """Return whether several real axes change together."""
        return len(self.axes) > 1

    @property
    def values(self) -> tuple[int, ...]:
        """Return the values that this axis takes, if it stands for a single axis of the lattice.

        Tied axes have several values at each place; this property is not defined for them.
        """
        return tuple(value for (value,) in self.points)

    def direction(self, grid: Grid) -> Direction:
        """Return where bad values may lie along this axis of a stage.

        Tied axes lead from the good to the bad end.
        """
        if not self.is_tied:
            return grid.axes[self.axes[0]].direction
        plain = all(
            grid.axes[axis].direction in (Direction.REGRESSION, Direction.FIXED) for axis in self.axes
        )
        return Direction.REGRESSION if plain else Direction.EITHER


@dataclass(frozen=True)
class _Shape:
    """A selection of the combinations of the whole lattice, made for one stage of a search.

    Attributes:
        ways: What each axis of the stage stands for.
        base: A combination that says where all other axes are.
    """

    ways: tuple[_Way, ...]
    base: Index

    def combination(self, cell: Index) -> Index:
        """Return the combination of the whole lattice for a cell of this stage's coarser lattice."""
        found = list(self.base)
        for way, place in zip(self.ways, cell, strict=True):
            for axis, value in zip(way.axes, way.points[place], strict=True):
                found[axis] = value
        return tuple(found)

    def cell(self, combination: Index | None) -> Index | None:
        """Convert a combination of the whole lattice to a cell of the stage, or None if there is none."""
        if combination is None:
            return None
        points = [tuple(combination[axis] for axis in way.axes) for way in self.ways]
        if any(point not in way.points for way, point in zip(self.ways, points, strict=True)):
            return None
        found = tuple(way.points.index(point) for way, point in zip(self.ways, points, strict=True))
        return found if self.combination(found) == combination else None


@dataclass(frozen=True)
class _Stage:
    """A search over selected combinations of a large lattice.

    Attributes:
        shape: Which combinations they are.
        search: The search over the cells of the shape.
        stands_for: The combination that stands for the group of each cell that can be run.
        cells: The cell of each such combination.
    """

    shape: _Shape
    search: Search
    stands_for: Mapping[Index, Index]
    cells: Mapping[Index, Index]


class ZoomedSearch(StudySearch):
    """A search over a lattice of any size: first it tries a few values of each axis, then it zooms in.

    It has the methods of `Search`.

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
        super().__init__(grid, groups, limits, quick=quick)
        self._stages = [self._make(self._first_shape())]
        self._is_stale = False

    def tell_counts(self, index: Index, hits: int, trials: int) -> None:
        """Record several trials of a combination at once, in all stages that contain the combination."""
        super().tell_counts(index, hits, trials)
        cell = self.tallies.representative(index)
        for stage in self._stages:
            if cell in stage.cells:
                stage.search.tell_counts(stage.cells[cell], hits, trials)

    def set_aside(self, index: Index) -> None:
        """Exclude a combination from further trials, in all stages that contain the combination."""
        super().set_aside(index)
        cell = self.tallies.find(index)
        for stage in self._stages:
            if cell is not None and cell in stage.cells:
                stage.search.set_aside(stage.cells[cell])

    def _changed(self) -> None:
        super()._changed()
        self._is_stale = True

    # -- stages ------------------------------------------------------------------------------------------

    def _first_shape(self) -> _Shape:
        several = [axis for axis, size in enumerate(self._grid.shape) if size > 1]
        low, high = _ends(self._grid)
        if len(several) > _MOST_WAYS:
            parts = np.array_split(several, _MOST_WAYS)
            return _Shape(tuple(_from_end_to_end(part.tolist(), low, high) for part in parts), high)
        stated = [end for end in (self._grid.good, self._grid.bad) if end is not None]
        counts = _values_of_each(self._grid)
        ways = []
        for axis, (size, count) in enumerate(zip(self._grid.shape, counts, strict=True)):
            values = {*np.linspace(0, size - 1, count).round().astype(int).tolist()}
            ways.append(_Way.along(axis, values | {end[axis] for end in stated}))
        return _Shape(tuple(ways), high)

    def _make(self, shape: _Shape) -> _Stage:
        """Create a stage for the combinations of `shape`, and pass all trials so far to the stage."""
        axes = tuple(
            replace(
                self._grid.axes[way.axes[0]],
                values=tuple("/".join(map(str, point)) for point in way.points),
                direction=way.direction(self._grid),
                history=None,
            )
            for way in shape.ways
        )
        groups: dict[Index, Index] = {}
        cells: dict[Index, Index] = {}
        for cell in itertools.product(*(range(len(way.points)) for way in shape.ways)):
            stands_for = self.tallies.find(shape.combination(cell))
            if stands_for is not None:
                groups[cell] = cells.setdefault(stands_for, cell)
        grid = Grid(axes, good=shape.cell(self._grid.good), bad=shape.cell(self._grid.bad))
        error = (1.0 - self.limits.confidence) / _stages_of(self._grid)
        limits = self.limits.model_copy(update={"confidence": min(1.0 - error, 0.9999)})
        search = Search(grid, groups, limits, quick=True)
        for index, (hits, trials) in self.tallies.told.items():
            if index in cells:
                search.tell_counts(cells[index], hits, trials)
        for index in self.tallies.aside:
            if index in cells:
                search.set_aside(cells[index])
        return _Stage(shape, search, {cell: index for index, cell in cells.items()}, cells)

    @property
    def _stage(self) -> _Stage:
        """Return the current stage, which is the last one; all earlier stages have sure answers."""
        if self._is_stale:
            self._is_stale = False
            stages = self._stages[:1]
            while len(stages) < _MOST_STAGES and stages[-1].search.answered:
                shape = self._closer(stages[-1])
                # Combinations that cannot be run may leave no closer ones than a stage already has.
                if shape is None or any(stage.shape == shape for stage in stages):
                    break
                kept = [stage for stage in self._stages if stage.shape == shape]
                stages.append(kept[0] if kept else self._make(shape))
            self._stages = stages
        return self._stages[-1]

    def _closer(self, stage: _Stage) -> _Shape | None:
        """Return the combinations of the next stage, which lie closer to the boundaries of `stage`.

        Returns None if all boundaries lie between neighbours.
        """
        best = stage.search.verdict.best
        ways = stage.shape.ways
        if best.first_bad is not None and any(ways[one].is_tied for one in best.hypothesis.culprits):
            return self._untied([ways[one] for one in best.hypothesis.culprits], stage, best.first_bad)
        gaps: dict[int, tuple[int, int]] = {}
        for boundary in best.boundaries:
            axis = ways[boundary.axis].axes[0]
            bad, good = stage.shape.combination(boundary.bad), stage.shape.combination(boundary.good)
            low, high = sorted((bad[axis], good[axis]))
            if any(
                self.tallies.can_run((*bad[:axis], value, *bad[axis + 1 :])) for value in range(low + 1, high)
            ):
                gaps[axis] = low, high
        if not gaps:
            return None
        looked_at = [way.axes[0] for way in ways if not way.is_tied]
        counts = _values_of_each(self._grid, looked_at, wanted=tuple(gaps))
        found = []
        for way in ways:
            if way.is_tied:
                continue
            axis, values = way.axes[0], way.values
            is_ordered = self._grid.axes[axis].direction is not Direction.UNORDERED
            keep = {values[0], values[-1]} if is_ordered else {*values}
            keep |= {stage.shape.combination(cell)[axis] for b in best.boundaries for cell in (b.bad, b.good)}
            if axis in gaps:
                low, high = gaps[axis]
                most = min(high - low + 1, max(counts[looked_at.index(axis)] - len(keep), 3))
                keep |= set(np.linspace(low, high, most).round().astype(int).tolist())
            found.append(_Way.along(axis, keep))
        base = stage.shape.base if best.first_bad is None else stage.shape.combination(best.first_bad)
        return _Shape(tuple(found), base)

    def _untied(self, ways: Sequence[_Way], stage: _Stage, first_bad: Index) -> _Shape:
        """Split groups of axes that were moved together, and return the next, more detailed stage.

        The next stage has one axis for each smaller group.

        All other axes keep the values of `first_bad`.
        """
        parts = [list(way.axes) for way in ways]
        while any(len(part) > 1 for part in parts):
            parts.sort(key=len)
            longest = parts.pop()
            parts += [longest[: len(longest) // 2], longest[len(longest) // 2 :]]
            if len(parts) >= _MOST_WAYS:
                break
        low, high = _ends(self._grid)
        return _Shape(
            tuple(_from_end_to_end(part, low, high) for part in sorted(parts)),
            stage.shape.combination(first_bad),
        )

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
        """Choose the combinations to try next. See `Plan.ask`."""
        stage = self._stage
        if self.answered:
            return self._checking(count, pending or {}, only)
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
        groups = self.tallies.by_group(pending)
        return {stage.cells[cell]: number for cell, number in groups.items() if cell in stage.cells}

    def foresee(
        self, pending: Mapping[Index, int], build_cost: Mapping[Index, float] | None = None
    ) -> list[Index]:
        """Return the combinations that may be tried after the pending trials. See `Plan.foresee`."""
        stage = self._stage
        if self.answered:
            return self._checking(1, pending)
        return [stage.stands_for[cell] for cell in stage.search.foresee(self._here(stage, pending))]

    # -- answering ---------------------------------------------------------------------------------------

    @property
    def answered(self) -> bool:
        """Return whether the search has a sure answer; later trials only check this answer."""
        return self._stage.search.answered

    def _wanted_checks(self) -> list[Check]:
        return clean_checks(self.verdict.best, self.tallies, self.limits)

    def _make_verdict(self) -> Verdict:
        """Calculate the verdict about combinations of the whole lattice."""
        stage = self._stage
        verdict = stage.search.verdict
        best = self._whole(stage, verdict.best)
        is_confirmed = verdict.status is Status.CONFIRMED
        return replace(
            verdict,
            best=best,
            candidates=tuple(self._whole(stage, one) for one in verdict.candidates),
            cleared=cleared(best, self.tallies, self.limits) if is_confirmed else (),
            unexplained=tuple(
                replace(one, index=stage.shape.combination(one.index)) for one in verdict.unexplained
            ),
            untested=(),
        )

    def probability_bad(self) -> FloatArray:
        """Return the probability that each combination is bad, or 0.5 if no stage has it.

        The shape is that of the grid.
        """
        bad = np.full(self._grid.shape, 0.5)
        last = self._stage
        for stage in (*self._stages[:-1], last):
            found = stage.search.probability_bad()
            for cell, index in stage.stands_for.items():
                bad[index] = found[cell]
        return bad

    def _whole(self, stage: _Stage, found: Answer) -> Answer:
        """Convert an answer about a stage to an answer about the whole lattice.

        Values between a bad and a good value of the stage count as good.
        """
        hypothesis, ways = found.hypothesis, stage.shape.ways
        # Axes that the stage does not look at do not matter.
        sets = [np.full(size, hypothesis.kind not in ("any", "never")) for size in self._grid.shape]
        for way, bad in zip(ways, hypothesis.sets, strict=True):
            for number, axis in enumerate(way.axes):
                values = [point[number] for point in way.points]
                if not bad.all():
                    sets[axis] = _filled(values, bad, self._grid.shape[axis])
        boundaries = []
        for one in found.boundaries:
            if not ways[one.axis].is_tied:
                axis = ways[one.axis].axes[0]
                bad_cell, good_cell = stage.shape.combination(one.bad), stage.shape.combination(one.good)
                boundaries.append(Boundary(axis, bad_cell, good_cell, between(axis, bad_cell, good_cell)))
        culprits = tuple(sorted(axis for one in hypothesis.culprits for axis in ways[one].axes))
        kind = hypothesis.kind if hypothesis.table is None else "all"
        return Answer(
            Hypothesis(kind, tuple(sets), culprits),
            tuple(boundaries),
            None if found.first_bad is None else stage.shape.combination(found.first_bad),
            None if found.last_good is None else stage.shape.combination(found.last_good),
            found.probability,
        )


def _ends(grid: Grid) -> tuple[Index, Index]:
    """Return the good and the bad end of a lattice: as stated, or as the directions of the axes imply."""
    falls = [axis.direction is Direction.FIXED for axis in grid.axes]
    low = tuple(size - 1 if fall else 0 for size, fall in zip(grid.shape, falls, strict=True))
    high = tuple(0 if fall else size - 1 for size, fall in zip(grid.shape, falls, strict=True))
    return grid.good or low, grid.bad or high


def _from_end_to_end(axes: Sequence[int], low: Index, high: Index) -> _Way:
    """Return the axis of a stage that changes all given real axes from the good to the bad end at once.

    If only one real axis is given, its two values are in ascending order.
    """
    points = [tuple(end[axis] for axis in axes) for end in (low, high)]
    return _Way(tuple(axes), tuple(points if len(axes) > 1 else sorted(points)))


def _filled(values: Sequence[int], bad: NDArray[np.bool_], size: int) -> NDArray[np.bool_]:
    """Return which values of an axis are bad, given the few values that a stage has tried.

    Values between two neighbours of the stage that are both bad are bad, too.
    """
    whole = np.zeros(size, dtype=bool)
    if list(values) != sorted(values):
        whole[[value for value, is_bad in zip(values, bad, strict=True) if is_bad]] = True
        return whole
    edges = np.flatnonzero(np.diff(np.concatenate([[False], bad, [False]]).astype(np.int8)))
    for low, high in edges.reshape(-1, 2):
        whole[values[low] : values[high - 1] + 1] = True
    return whole


def _values_of_each(grid: Grid, axes: Sequence[int] | None = None, wanted: tuple[int, ...] = ()) -> list[int]:
    """Return how many values of each axis a stage has.

    There are at least two, and as many as fit into `_MOST_CELLS` cells.

    Args:
        grid: The lattice.
        axes: The axes; None for all.
        wanted: Axes that get more values than others; empty for all alike.
    """
    axes = range(len(grid.axes)) if axes is None else axes
    sizes = [grid.shape[axis] for axis in axes]
    directions = [grid.axes[axis].direction for axis in axes]
    counts = [min(size, 2) for size in sizes]
    order = [place for place, axis in enumerate(axes) if axis in wanted and sizes[place] > 2]
    order = order or list(range(len(counts)))
    while True:
        wider = [
            place
            for place in order
            if counts[place] < sizes[place]
            and math.prod(counts) // counts[place] * (counts[place] + 1) <= _MOST_CELLS
            and not is_large([n + (i == place) for i, n in enumerate(counts)], directions)
        ]
        if not wider:
            return counts
        counts[min(wider, key=lambda place: counts[place])] += 1


def _stages_of(grid: Grid) -> int:
    """Return the maximum number of stages needed to get from the whole lattice to neighbours."""
    several = sum(size > 1 for size in grid.shape)
    untying = 1 + math.ceil(math.log2(several / _MOST_WAYS)) if several > _MOST_WAYS else 0
    counts = [2] * len(grid.shape) if untying else _values_of_each(grid)
    return untying + max(
        1 + math.ceil(math.log(max(size / n, 1.0)) / math.log(max(n - 1, 2)))
        for size, n in zip(grid.shape, counts, strict=True)
    )
