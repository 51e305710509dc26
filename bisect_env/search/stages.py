"""Stages of a search: a large lattice is searched roughly first, then closely around the boundary. Pure.

A *stage* is a selection of combinations, few enough to list all hypotheses about them. A small lattice has
one stage with all its combinations. The first stage of a large one has some values of each axis, evenly
spread from end to end. If a boundary of its answer lies between values that are not neighbours, the next
stage has values between these two, and fewer values far from them. All boundaries of the last stage lie
between neighbours.

If there are more than `_MOST_WAYS` axes, the first stage ties several together into one *way*: their values
change at once, from the good end to the bad end. The next stage splits the ways that the answer blames, and
keeps the values of all other axes fixed.

The stages follow from the counts alone, so that a study goes on as if it had never stopped. Any stage may
have a wrong answer: if the stated error is e, the first stage is allowed e / 2, the second e / 4, and so on.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Direction, Grid, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.belief import CellCounts
from bisect_env.search.families import Family
from bisect_env.search.generators import products
from bisect_env.search.hypotheses import HypothesisRows
from bisect_env.search.known import Known
from bisect_env.search.nonmonotone import histories
from bisect_env.search.rates import RateGrid
from bisect_env.search.space import Hypothesis, is_large
from bisect_env.search.tallies import Tallies
from bisect_env.search.verdict import Answer, Boundary
from bisect_env.search.view import LatticeView

MOST_STAGES = 12
_MOST_CELLS = 400
"""Maximum number of cells of a stage of a large lattice, and of a single axis that has one stage."""
_MOST_WHOLE = 10 * _MOST_CELLS
"""Maximum number of cells of a lattice that has a single stage."""
_MOST_WAYS = 8
"""Maximum number of axes of a stage: with two values of each there are 2^8 cells."""


Way = tuple[int, ...]
"""The axes of the whole lattice that change along one axis of a stage: one axis, or several tied ones."""


@functools.lru_cache(maxsize=16)
def _rates(min_rate: float, stated: float | None) -> RateGrid:
    return RateGrid.default(min_rate, stated)


# --------------------------------------------------------------------------------------------------
# Which combinations of the lattice a stage has.


@dataclass(frozen=True)
class Shape:
    """A selection of the combinations of a large lattice, made for one stage of a search.

    Attributes:
        ways: For each axis of the stage, the axes of the whole lattice that change along it.
        values: For each axis of the whole lattice, its value at each step of its way, or its only value.
    """

    ways: tuple[Way, ...]
    values: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, ways: Iterable[Way], values: Mapping[int, Sequence[int]], base: Index) -> Shape:
        """Create a selection of combinations from the axes that change together and from their values.

        Axes that are not in `values` have only their value in `base`.
        """
        whole = tuple(tuple(values.get(axis, (place,))) for axis, place in enumerate(base))
        return cls(tuple(ways), whole)

    def lattice(self, grid: Grid) -> Grid:
        """Return the lattice of the stage: a grid with one axis per way, whose values are numbered from 0."""
        axes = []
        for way in self.ways:
            first = grid.axes[way[0]]
            directions = {grid.axes[axis].direction for axis in way}
            is_plain = directions <= {Direction.REGRESSION, Direction.FIXED}
            tied = Direction.REGRESSION if is_plain else Direction.EITHER
            places = tuple(map(str, range(len(self.values[way[0]]))))
            direction = tied if len(way) > 1 else first.direction
            axes.append(replace(first, values=places, direction=direction, history=None))
        return Grid(tuple(axes), good=self.cell(grid.good), bad=self.cell(grid.bad))

    def combination(self, cell: Index) -> Index:
        """Convert a cell of the stage's lattice to the same combination of the whole lattice."""
        found = [values[0] for values in self.values]
        for way, place in zip(self.ways, cell, strict=True):
            for axis in way:
                found[axis] = self.values[axis][place]
        return tuple(found)

    def cell(self, combination: Index | None) -> Index | None:
        """Convert a combination of the whole lattice to a cell of the stage's lattice.

        Returns None if the stage does not contain the combination, or if `combination` is None.
        """
        if combination is None:
            return None
        found = []
        for way in self.ways:
            points = [*zip(*(self.values[axis] for axis in way), strict=True)]
            point = tuple(combination[axis] for axis in way)
            if point not in points:
                return None
            found.append(points.index(point))
        cell = tuple(found)
        return cell if self.combination(cell) == combination else None


class Stage:
    """One stage of a search: a search over a selection of the combinations of a large lattice.

    Args:
        grid: The whole lattice.
        groups: The representative of each combination that can be run, as for `Search`.
        limits: When the search stops.
        shape: The selection of combinations; None for all.
        number: Number of the stage, counted from 1.

    Attributes:
        shape: As above.
        view: The lattice of the stage with its groups of combinations.
        stands_for: For each position of the view, the representative of the group in the whole lattice.
        position: The position of each such representative.
        places: Flat index of each cell in the whole lattice, in the shape of the stage's lattice.
    """

    def __init__(
        self,
        grid: Grid,
        groups: Mapping[Index, Index],
        limits: SearchLimits,
        shape: Shape | None,
        number: int,
    ) -> None:
        self.shape = shape
        self._whole = grid
        self._rows: dict[bool, tuple[tuple[object, ...], HypothesisRows]] = {}
        self._known: Known | None = None
        if shape is None:
            self._limits = limits
            self.view = LatticeView.of(grid, groups)
            self.stands_for = self.view.cells
            self.places = np.arange(math.prod(grid.shape)).reshape(grid.shape)
        else:
            error = (1.0 - limits.confidence) / 2**number
            self._limits = limits.model_copy(update={"confidence": min(1.0 - error, 0.9999)})
            own = shape.lattice(grid)
            of = {cell: shape.combination(cell) for cell in own.indices()}
            first: dict[Index, Index] = {}
            self.view = LatticeView.of(
                own,
                {cell: first.setdefault(groups[one], cell) for cell, one in of.items() if one in groups},
            )
            self.stands_for = tuple(groups[of[cell]] for cell in self.view.cells)
            flat = np.ravel_multi_index(tuple(np.array(list(of.values())).T), grid.shape)
            self.places = flat.reshape(own.shape)
        self.position = {index: place for place, index in enumerate(self.stands_for)}

    def known(self, tallies: Tallies) -> Known:
        """Return the posterior, labels and best answer that follow from all trials of the stage.

        The result is cached until the counts, or the combinations that can be run, change.
        """
        hits, trials = tallies.arrays(self.position)
        can_run = tallies.runnable(self.stands_for)
        if (before := self._known) is not None and (
            np.array_equal(before.counts.hits, hits)
            and np.array_equal(before.counts.trials, trials)
            and np.array_equal(before.can_run, can_run)
        ):
            return before
        limits = self._limits
        counts = CellCounts(_rates(limits.min_crash_rate, limits.crash_rate), hits, trials)
        seen = can_run | (trials > 0)
        rows = self._hypotheses(None, seen)
        self._known = Known(self.view, rows, lambda: self._wider(counts, seen), counts, can_run, limits)
        return self._known

    def _wider(self, counts: CellCounts, seen: NDArray[np.bool_]) -> HypothesisRows | None:
        wide = histories(self.view.grid, [self.view.cells[c] for c in counts.tried])
        return None if wide is None else self._hypotheses(wide, seen)

    def _hypotheses(self, wide: tuple[Family, ...] | None, seen: NDArray[np.bool_]) -> HypothesisRows:
        """Return all hypotheses that consist of one set of bad values for each axis (see `products`).

        The result is cached until an argument changes.
        """
        key = (wide, seen.tobytes())
        kept = self._rows.get(wide is None)
        if kept is None or kept[0] != key:
            kept = self._rows[wide is None] = key, products(self.view, wide, seen)
        return kept[1]

    # -- the whole lattice -------------------------------------------------------------------------------

    def whole(self, found: Answer) -> Answer:
        """Convert an answer about the stage's lattice to an answer about the whole lattice.

        Values between a bad and a good value of the stage count as good.
        """
        if self.shape is None:
            return found
        hypothesis, ways, combination = found.hypothesis, self.shape.ways, self.shape.combination
        # Axes that the stage leaves fixed do not matter.
        sets = [np.full(size, hypothesis.kind not in ("any", "never")) for size in self._whole.shape]
        for way, bad in zip(ways, hypothesis.sets, strict=True):
            for axis in () if bad.all() else way:
                sets[axis] = _filled(self.shape.values[axis], bad, self._whole.shape[axis])
        boundaries = []
        for one in found.boundaries:
            axis, *tied = ways[one.axis]
            if not tied:
                boundaries.append(Boundary(axis, combination(one.bad), combination(one.good)))
        culprits = tuple(sorted(axis for one in hypothesis.culprits for axis in ways[one]))
        kind = hypothesis.kind if hypothesis.table is None else "all"
        return Answer(
            Hypothesis(kind, tuple(sets), culprits),
            tuple(boundaries),
            None if found.first_bad is None else combination(found.first_bad),
            None if found.last_good is None else combination(found.last_good),
            found.probability,
        )


# --------------------------------------------------------------------------------------------------
# Choosing the combinations of a stage.


def first_shape(grid: Grid) -> Shape | None:
    """Choose the combinations of the first stage; return None if the lattice is small enough to have all."""
    directions = [axis.direction for axis in grid.axes]
    several = [axis for axis, size in enumerate(grid.shape) if size > 1]
    cells = math.prod(grid.shape)
    # A single axis gets the same checks whatever its length.
    is_short_axis = len(several) == 1 and cells <= _MOST_CELLS
    if cells <= _MOST_WHOLE and (is_short_axis or not is_large(grid.shape, directions)):
        return None
    if len(several) > _MOST_WAYS:
        ways = [tuple(part.tolist()) for part in np.array_split(several, _MOST_WAYS)]
        return _from_end_to_end(ways, grid, None)
    stated = [end for end in (grid.good, grid.bad) if end is not None]
    values = {}
    for axis, (size, count) in enumerate(zip(grid.shape, _values_of_each(grid), strict=True)):
        spread = np.linspace(0, size - 1, count).round().astype(int).tolist()
        values[axis] = sorted({*spread, *(end[axis] for end in stated)})
    return Shape.of([(axis,) for axis in values], values, (0,) * len(values))


def closer_shape(stage: Stage, known: Known, grid: Grid, tallies: Tallies) -> Shape | None:
    """Choose the combinations of the next stage, closer to the boundaries of the answer.

    Returns None if all boundaries lie between neighbours, if the answer has no first bad combination, or if
    the present stage has all combinations of the lattice.

    Args:
        stage: The present stage.
        known: The posterior, labels and best answer of the present stage.
        grid: The whole lattice.
        tallies: The counts, and the combinations that can be run.
    """
    best, shape = known.best, stage.shape
    if shape is None or best.first_bad is None:
        return None
    culprits = [shape.ways[one] for one in best.hypothesis.culprits]
    if any(len(way) > 1 for way in culprits):
        return _from_end_to_end(_split(culprits), grid, shape.combination(best.first_bad))
    gaps: dict[int, tuple[int, int]] = {}
    boundaries = stage.whole(best).boundaries
    for one in boundaries:
        if any(map(tallies.can_run, one.between)):
            low, high = sorted((one.bad[one.axis], one.good[one.axis]))
            gaps[one.axis] = low, high
    if not gaps:
        return None
    looked_at = [way[0] for way in shape.ways if len(way) == 1]
    found = {}
    for axis, count in zip(looked_at, _values_of_each(grid, looked_at, wanted=tuple(gaps)), strict=True):
        values = shape.values[axis]
        is_ordered = grid.axes[axis].direction is not Direction.UNORDERED
        keep = {values[0], values[-1]} if is_ordered else {*values}
        keep |= {cell[axis] for one in boundaries for cell in (one.bad, one.good)}
        if axis in gaps:
            low, high = gaps[axis]
            most = min(high - low + 1, max(count - len(keep), 3))
            keep |= set(np.linspace(low, high, most).round().astype(int).tolist())
        found[axis] = sorted(keep)
    return Shape.of([(axis,) for axis in looked_at], found, shape.combination(best.first_bad))


def _split(ways: Iterable[Way]) -> list[Way]:
    """Divide groups of tied axes (ways) in two, the longest groups first.

    Stops when there are `_MOST_WAYS` ways, or when each way has one axis.
    """
    parts = [*ways]
    while any(len(part) > 1 for part in parts):
        parts.sort(key=len)
        longest = parts.pop()
        parts += [longest[: len(longest) // 2], longest[len(longest) // 2 :]]
        if len(parts) >= _MOST_WAYS:
            break
    return sorted(parts)


def _from_end_to_end(ways: Sequence[Way], grid: Grid, base: Index | None) -> Shape:
    """Select the good and the bad end of each way (axes that change together), and nothing between.

    Each way gets these two values. The ends are the stated ones, or those that the directions of the axes
    imply. If only one axis changes along a way, its two values are in ascending order.

    Args:
        ways: For each axis of the stage, the axes of the whole lattice that change along it.
        grid: The whole lattice.
        base: A combination with the values of all other axes; None to use the bad end.
    """
    falls = [axis.direction is Direction.FIXED for axis in grid.axes]
    low = tuple(size - 1 if fall else 0 for size, fall in zip(grid.shape, falls, strict=True))
    high = tuple(0 if fall else size - 1 for size, fall in zip(grid.shape, falls, strict=True))
    good, bad = grid.good or low, grid.bad or high
    values: dict[int, Sequence[int]] = {}
    for way in ways:
        for axis in way:
            ends = good[axis], bad[axis]
            values[axis] = ends if len(way) > 1 else sorted(ends)
    return Shape.of(ways, values, base or bad)


def _filled(values: Sequence[int], bad: NDArray[np.bool_], size: int) -> NDArray[np.bool_]:
    """Extend the bad values of a stage to the whole axis: True for each bad value, shape (size,).

    Values between two successive values of the stage that are both bad count as bad, too.

    Args:
        values: The values of the axis that the stage has.
        bad: Whether each of `values` is bad.
        size: Number of values of the axis.
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
    """Choose how many values of each axis a stage of the search looks at.

    Each axis has two values (or its only one), and then as many as fit into `_MOST_CELLS` cells.

    Args:
        grid: The whole lattice.
        axes: The axes; None for all.
        wanted: The axes that get more than two values, unless none of them has more; empty for all axes.
    """
    axes = range(len(grid.axes)) if axes is None else axes
    sizes = [grid.shape[axis] for axis in axes]
    directions = [grid.axes[axis].direction for axis in axes]
    counts = [min(size, 2) for size in sizes]
    order = [place for place, axis in enumerate(axes) if axis in wanted and sizes[place] > 2]
    order = order or list(range(len(counts)))
    while True:
        growing = [
            place
            for place in order
            if counts[place] < sizes[place]
            and math.prod(counts) // counts[place] * (counts[place] + 1) <= _MOST_CELLS
            and not is_large([n + (i == place) for i, n in enumerate(counts)], directions)
        ]
        if not growing:
            return counts
        counts[min(growing, key=lambda place: counts[place])] += 1
