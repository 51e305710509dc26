"""Stages of a search: a large lattice is looked at roughly first, then closely where it matters. Pure.

A *stage* is a selection of combinations, no more than their hypotheses can be listed for. A small lattice has
one stage, with all its combinations. The first stage of a larger one has values of each axis evenly spread
from end to end. Once its answer stands, each boundary between values that are not neighbours is looked into:
the next stage has the values between them, and those of the last one around them. The last stage is the one
whose boundaries lie between neighbours.

Of more than `_MOST_WAYS` axes the first stage ties some together: they change from the good to the bad end at
once. The next stage splits the ties that the answer names, and leaves all other axes as they are there.

The stages follow from the counts alone, so that a study goes on as if it had never stopped. Every stage may
err: with the stated error e and s stages to come at most, each is allowed e / s.
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
"""Cells of a stage of a large lattice."""
_MOST_WHOLE = 10 * _MOST_CELLS
"""Cells of a lattice that has a single stage."""
_MOST_WAYS = 8
"""Axes that a stage looks at separately: with two values of each there are 2^8 cells."""


Way = tuple[int, ...]
"""The axes of the whole lattice that change along one axis of a stage: one, or several that are tied."""


@functools.lru_cache(maxsize=16)
def _rates(min_rate: float, stated: float | None, two_steps: bool) -> RateGrid:
    return RateGrid.default(min_rate, stated, two_steps=two_steps)


# --------------------------------------------------------------------------------------------------
# Which combinations of the lattice a stage has.


@dataclass(frozen=True)
class Shape:
    """A selection of the combinations of a large lattice, made for one stage of a search.

    Attributes:
        ways: For each axis of the stage, what changes along it.
        values: For each axis of the whole lattice, its value at each place on its way, or its only value.
    """

    ways: tuple[Way, ...]
    values: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, ways: Iterable[Way], values: Mapping[int, Sequence[int]], base: Index) -> Shape:
        """Create a shape from its ways and values; an axis without `values` keeps its value in `base`."""
        whole = tuple(tuple(values.get(axis, (place,))) for axis, place in enumerate(base))
        return cls(tuple(ways), whole)

    def lattice(self, grid: Grid) -> Grid:
        """Return the lattice of the stage. Tied axes lead from the good to the bad end."""
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
        """Return the combination of the whole lattice for a cell of this stage's coarser lattice."""
        found = [values[0] for values in self.values]
        for way, place in zip(self.ways, cell, strict=True):
            for axis in way:
                found[axis] = self.values[axis][place]
        return tuple(found)

    def cell(self, combination: Index | None) -> Index | None:
        """Convert a combination of the whole lattice to a cell of the stage, or None if there is none."""
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
    """The combinations that a search looks at, and what is known of them.

    Args:
        grid: The whole lattice.
        groups: As for `Search`; only looked up if the stage has a shape.
        limits: When the search stops.
        shape: Which combinations these are; None for all.

    Attributes:
        shape: As above.
        view: The lattice of the stage. Its cells are numbered anew if there is a shape.
        stands_for: For each position of the view, the combination that stands for its group.
        position: The position of each such combination.
        places: Flat index in the whole lattice of each cell, shape of the stage's lattice.
    """

    def __init__(
        self, grid: Grid, groups: Mapping[Index, Index], limits: SearchLimits, shape: Shape | None
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
            error = (1.0 - limits.confidence) / _stages_of(grid)
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
        """Return the posterior, labels and best answer that follow from the trials of these combinations."""
        hits, trials = tallies.arrays(self.position)
        can_run = tallies.runnable(self.stands_for)
        if (before := self._known) is not None and (
            np.array_equal(before.counts.hits, hits)
            and np.array_equal(before.counts.trials, trials)
            and np.array_equal(before.can_run, can_run)
        ):
            return before
        limits = self._limits
        # Bad cells that fail rarely among such as always fail are asked about once one did both.
        both = bool(((hits > 0) & (hits < trials)).any())
        counts = CellCounts(_rates(limits.min_crash_rate, limits.crash_rate, both), hits, trials)
        seen = can_run | (trials > 0)
        rows = self._hypotheses(None, seen)
        self._known = Known(self.view, rows, lambda: self._wider(counts, seen), counts, can_run, limits)
        return self._known

    def _wider(self, counts: CellCounts, seen: NDArray[np.bool_]) -> HypothesisRows | None:
        wide = histories(self.view.grid, [self.view.cells[c] for c in counts.tried])
        return None if wide is None else self._hypotheses(wide, seen)

    def _hypotheses(self, wide: tuple[Family, ...] | None, seen: NDArray[np.bool_]) -> HypothesisRows:
        """Return all hypotheses that consist of one set of bad values for each axis.

        The result is cached until an argument changes.
        """
        key = (wide, seen.tobytes())
        kept = self._rows.get(wide is None)
        if kept is None or kept[0] != key:
            kept = self._rows[wide is None] = key, products(self.view, wide, seen)
        return kept[1]

    # -- the whole lattice -------------------------------------------------------------------------------

    def whole(self, found: Answer) -> Answer:
        """Convert an answer about this stage's part of the lattice to an answer about the whole lattice.

        Values between a bad and a good value of the stage count as good.
        """
        if self.shape is None:
            return found
        hypothesis, ways, combination = found.hypothesis, self.shape.ways, self.shape.combination
        # Axes that the stage does not look at do not matter.
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
    """Return the combinations of the first stage; None if the lattice is small enough for all of them."""
    directions = [axis.direction for axis in grid.axes]
    if math.prod(grid.shape) <= _MOST_WHOLE and not is_large(grid.shape, directions):
        return None
    several = [axis for axis, size in enumerate(grid.shape) if size > 1]
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
    """Return the combinations of the next stage, which lie closer to the boundaries of the answer.

    Returns None if all boundaries lie between neighbours.

    Args:
        stage: The present stage.
        known: What is known of it.
        grid: The whole lattice.
        tallies: Which combinations can be run.
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
    """Split groups of axes that were moved together into smaller groups, the longest groups first."""
    parts = [*ways]
    while any(len(part) > 1 for part in parts):
        parts.sort(key=len)
        longest = parts.pop()
        parts += [longest[: len(longest) // 2], longest[len(longest) // 2 :]]
        if len(parts) >= _MOST_WAYS:
            break
    return sorted(parts)


def _from_end_to_end(ways: Sequence[Way], grid: Grid, base: Index | None) -> Shape:
    """Return the shape in which all axes of a way move together, from their good to their bad values.

    A way is a set of axes.

    The ends are as stated, or as the directions of the axes imply. If only one axis changes along a way, its
    values are in ascending order.

    Args:
        ways: The axes of the stage.
        grid: The whole lattice.
        base: A combination with the values of all other axes; None for the bad end.
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


def _stages_of(grid: Grid) -> int:
    """Return the maximum number of stages needed to get from the whole lattice to neighbours."""
    several = sum(size > 1 for size in grid.shape)
    untying = 1 + math.ceil(math.log2(several / _MOST_WAYS)) if several > _MOST_WAYS else 0
    counts = [2] * len(grid.shape) if untying else _values_of_each(grid)
    return untying + max(
        1 + math.ceil(math.log(max(size / n, 1.0)) / math.log(max(n - 1, 2)))
        for size, n in zip(grid.shape, counts, strict=True)
    )
