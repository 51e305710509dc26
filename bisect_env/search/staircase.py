"""Staircases: tables of bad cells that change only a few times from low to high values. Pure.

Each ordered axis gets an orientation, which defines what *upward* (*beyond*) means. Each combination has a
*level*, a whole number that never falls on the way upward. Combinations are bad at every other level:

    one change    a frontier: everything beyond a bad combination is bad, everything before a good one good
    two changes   a band between two frontiers, bad or good; for example, a single broken release
    three         a frontier and a band

The labels bound the level of every combination: from below by labels before it, from above by labels beyond
it. If both bounds of a combination agree, it need not be tried. A frontier through n × m combinations is
known after at most n + m − 1 trials (saddleback search: D. Gries, *The Science of Programming* (1981),
section 17).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Direction, Grid, Index
from bisect_env.search.families import FloatArray

_Number = TypeVar("_Number", bound=np.generic)
_LITTLE, _LITTLE_BITS = 0.75, 0.3
"""Minimum worth of a cell that is tried while others are pending: as the number of cells that it decides, and
in bits. Once the pending cells have labels, another cell may be worth more."""

_STEPS = (1.0, 0.1)
"""Weights of a line at which a frontier moves, for two priors: all frontiers equally likely; and frontiers
with few steps (corners and straight lines) preferred."""


def ordered_axes(grid: Grid) -> list[int]:
    """Return the positions of the axes that have an order and more than one value."""
    return [
        i
        for i, axis in enumerate(grid.axes)
        if len(axis.values) > 1 and axis.direction is not Direction.UNORDERED
    ]


def upward(
    combine: np.ufunc, values: NDArray[_Number], axes: Iterable[int], back: Collection[int]
) -> NDArray[_Number]:
    """Accumulate the values of an array on the way upward: combine each value with all before it.

    Upward means towards higher positions along each axis, but towards lower ones along the axes in `back`.

    Args:
        combine: Function that combines two values; for example `np.add` for sums.
        values: The array, in the shape of the lattice.
        axes: The axes with an order. Values at different positions on other axes are not combined.
        back: Those of `axes` along which upward means towards lower positions.
    """
    for axis in axes:
        turned = np.flip(values, axis) if axis in back else values
        turned = combine.accumulate(turned, axis=axis)
        values = np.flip(turned, axis) if axis in back else turned
    return values


def beyond(cells: NDArray[np.bool_], axes: Sequence[int], back: Collection[int]) -> NDArray[np.bool_]:
    """Return a boolean array in the shape of `cells`: True for these cells and all that lie above them.

    See `upward` for the arguments.
    """
    return upward(np.logical_or, cells, axes, back)


@dataclass(frozen=True, eq=False)
class Staircase:
    """All tables that agree with the labels and change between good and bad at most `changes` times upward.

    The limit holds on every way from low to high values. The tables are described by the bounds of each
    cell's level (see the module).

    Attributes:
        changes: Maximum number of changes.
        begins_bad: Whether the lowest level is bad.
        axes: The ordered axes.
        back: Those of `axes` along which upward means towards lower positions.
        least: Smallest possible level of each cell, shape of the lattice.
        most: Greatest possible level of each cell, shape of the lattice.
        known: True for cells that have a label.
    """

    changes: int
    begins_bad: bool
    axes: tuple[int, ...]
    back: tuple[int, ...]
    least: NDArray[np.int8]
    most: NDArray[np.int8]
    known: NDArray[np.bool_]

    @property
    def decided(self) -> NDArray[np.bool_]:
        """Return which cells have a decided label, as a boolean array in the shape of the lattice.

        A label is decided if it is known or follows from other labels.
        """
        return np.asarray((self.least == self.most) | self.known)

    @property
    def lowest(self) -> NDArray[np.bool_]:
        """Return the table of bad cells in which every cell has its smallest possible level.

        It is a boolean array in the shape of the lattice, True at bad cells.
        """
        return np.asarray((self.least % 2 == 1) != self.begins_bad)

    def next(
        self,
        count: int,
        pending: Collection[Index],
        visible: NDArray[np.bool_],
        allowed: NDArray[np.bool_],
    ) -> list[Index]:
        """Return up to `count` cells whose labels would decide the most other cells.

        Args:
            count: Maximum number of cells.
            pending: Cells that are being tried.
            visible: True for the cells that count: representatives that can be run.
            allowed: True for the cells to choose from.
        """
        weight = (visible & ~self.decided).astype(np.float64)
        allowed = allowed & (weight > 0)
        forth = [axis for axis in self.axes if axis not in self.back]
        chance = self._chance() if self.changes == 1 and len(self.axes) == 2 else None
        little = _LITTLE if chance is None else _LITTLE_BITS
        chosen: list[Index] = []
        waiting = list(pending)
        while len(chosen) < count:
            for cell in waiting:
                point = np.zeros(weight.shape, dtype=bool)
                point[cell] = True
                # Either label of this cell decides about half of the cells that depend on it.
                weight[beyond(point, self.axes, self.back) | beyond(point, self.axes, forth)] *= 0.5
                allowed[cell] = False
            worth = self._worth(weight, forth)
            if chance is not None:
                worth = np.where(worth > 0, weight * 4.0 * chance * (1.0 - chance) + 1e-4 * worth, 0.0)
            score = np.where(allowed, worth, -np.inf)
            place = tuple(int(i) for i in np.unravel_index(int(score.argmax()), score.shape))
            # A cell that decides nothing but itself waits for those that are being looked at.
            if score[place] <= (little if chosen or pending else 0.0):
                break
            chosen.append(place)
            waiting = [place]
        return chosen

    def _worth(self, weight: FloatArray, forth: Sequence[int]) -> FloatArray:
        """Return how many other cells a label of each cell would help to decide, in the shape of the lattice.

        This is the weighted number of cells for which the label rules out a level. The label (good or bad)
        that rules out less counts fully, the other one a little.

        Args:
            weight: Weight of each cell.
            forth: The axes along which upward means towards higher positions.
        """
        raised, lowered = np.zeros_like(weight), np.zeros_like(weight)
        for level in range(self.changes + 1):
            above = upward(np.add, weight * (self.least <= level), self.axes, forth)
            below = upward(np.add, weight * (self.most >= level), self.axes, self.back)
            raised = np.where(self.least == level, above, raised)
            lowered = np.where(self.most == level, below, lowered)
        odd = (self.most - self.least) % 2 == 1
        # Where bounds are an odd number apart, either outcome rules one end out; else one rules out both.
        either = np.where(odd, np.minimum(raised, lowered), 0.0)
        other = np.where(odd, np.maximum(raised, lowered), raised + lowered)
        return np.asarray(either + 1e-3 * other)

    @cached_property
    def bits(self) -> float:
        """Return an upper bound of the information, in bits, that selects this staircase from all others.

        A random table agrees with some staircase on about this many labels by chance.
        """
        sizes = [n for axis, n in enumerate(self.least.shape) if axis in self.axes]
        if self.changes == 1 and len(self.axes) == 2:
            named = self._frontiers[0]
        else:
            slices = self.least.size / math.prod(sizes)
            named = slices * self.changes * _log2_frontiers(sizes)
        return named + len(self.axes)

    @cached_property
    def _places(self) -> FloatArray:
        """Return where the bad values of each line of the lattice may begin: 1 if possible there, else 0.

        The shape is (…, lines, places), with one line per value of the first of two ordered axes. The lattice
        is turned so that upward is towards higher positions.
        """
        turn = tuple(axis for axis in self.axes if axis in self.back)
        both = (np.flip(one, turn) for one in (self.least, self.most))
        least, most = (np.moveaxis(one, self.axes, (-2, -1)) for one in both)
        size = least.shape[-1]
        places = np.arange(size + 1)
        # Above every place that is surely good, and not above one that is surely bad.
        low = np.where((most == 0).any(axis=-1), size - np.argmax((most == 0)[..., ::-1], axis=-1), 0)
        high = np.where((least == 1).any(axis=-1), np.argmax(least == 1, axis=-1), size)
        fits = (places >= low[..., None]) & (places <= high[..., None])
        return np.asarray(fits, dtype=np.float64)

    @cached_property
    def _frontiers(self) -> tuple[float, FloatArray]:
        """Return what the labels reveal about the frontier of good and bad, in bits, and its probable place.

        The lattice has two ordered axes. The array has the shape of `_places`: the probability of each place
        at which the bad values of a line may begin. Half of the prior has all frontiers equally likely, the
        other half prefers frontiers with fewer steps.
        """
        bits, shares = [], []
        for step in _STEPS:
            left, share = _chain(self._places, step)
            bits.append(_chain(np.ones_like(self._places), step)[0] - left)
            shares.append(share)
        weight = 2.0 ** -(np.array(bits) - min(bits))
        named = min(bits) - float(np.log2(weight.mean()))
        weight = weight / weight.sum()
        return named, np.asarray(sum(w * share for w, share in zip(weight, shares, strict=True)))

    def _chance(self) -> FloatArray:
        """Return the probability that each cell of a lattice with two ordered axes is bad.

        It is the average over all frontiers (borders between good and bad that only rise or only fall). The
        result has the shape of the lattice.
        """
        share = self._frontiers[1]
        turn = tuple(axis for axis in self.axes if axis in self.back)
        bad = np.moveaxis(np.cumsum(share, axis=-1)[..., :-1], (-2, -1), self.axes)
        return np.asarray(np.clip(np.flip(bad, turn), 0.0, 1.0))


def _chain(fits: FloatArray, step: float) -> tuple[float, FloatArray]:
    """Sum the weights of all possible frontiers (borders between good and bad) through two axes.

    On line r, bad values begin no higher than on line r − 1.

    Args:
        fits: 1 for each place at which bad values may begin, else 0; shape (…, lines, places).
        step: Weight of a line at which the place moves, relative to a line at which it stays.

    Returns:
        log2 of the total weight, and the share of each place on each line.
    """
    forward, backward = fits.copy(), np.ones_like(fits)
    bits = 0.0
    for line in range(fits.shape[-2]):
        now = fits[..., line, :]
        if line:
            before = forward[..., line - 1, :]
            total = np.cumsum(before[..., ::-1], axis=-1)[..., ::-1]
            now = now * (step * total + (1.0 - step) * before)
        whole = np.maximum(now.sum(axis=-1, keepdims=True), 1e-300)
        bits += float(np.log2(whole).sum())
        forward[..., line, :] = now / whole
    for line in range(fits.shape[-2] - 2, -1, -1):
        after = backward[..., line + 1, :] * fits[..., line + 1, :]
        now = step * np.cumsum(after, axis=-1) + (1.0 - step) * after
        backward[..., line, :] = now / np.maximum(now.sum(axis=-1, keepdims=True), 1e-300)
    share = forward * backward
    return bits, share / np.maximum(share.sum(axis=-1, keepdims=True), 1e-300)


def _log2_frontiers(sizes: Sequence[int]) -> float:
    """Return log2 of the number of possible frontiers (borders between good and bad).

    For more than three axes, the result is an upper bound.

    One axis with n values has n + 1 frontiers. Two axes with n × m values have as many as the binomial
    coefficient of n + m over n. Three axes have as many as there are plane partitions in a box: the product
    of (i + j + k − 1) / (i + j + k − 2) (P. A. MacMahon, *Combinatory Analysis*, 1916).

    Args:
        sizes: Number of values of each ordered axis.
    """
    *rest, a, b, c = [*(1 for _ in range(3 - len(sizes))), *sorted(sizes)]
    places = itertools.product(range(1, a + 1), range(1, b + 1), range(1, c + 1))
    return math.prod(rest) * sum(math.log2((i + j + k - 1) / (i + j + k - 2)) for i, j, k in places)


def staircases(
    table: NDArray[np.int8],
    grid: Grid,
    changes: int,
    visible: NDArray[np.bool_],
) -> list[Staircase]:
    """Find the ways to explain all labels by a staircase: one for each orientation of the axes that fits.

    Orientations that contradict a stated direction come last. Apart from that, those that decide the most
    cells come first. The list is empty if no staircase agrees or no axis is ordered.

    Args:
        table: Labels: 1 bad, 0 good, -1 unknown; shape of the lattice.
        grid: The lattice.
        changes: Maximum number of changes of the table.
        visible: True for the cells that count: representatives that can be run.
    """
    ordered = tuple(ordered_axes(grid))
    found: list[tuple[int, int, Staircase]] = []
    for turned in itertools.product((False, True), repeat=len(ordered)) if ordered else ():
        if changes % 2 == 0 and turned[0]:
            continue  # the same table, with the orientation reversed
        back = tuple(axis for axis, is_back in zip(ordered, turned, strict=True) if is_back)
        against = sum(
            grid.axes[axis].direction is not Direction.EITHER
            and (axis in back) != (grid.axes[axis].direction is Direction.FIXED)
            for axis in ordered
        )
        for begins_bad in (False, True) if changes % 2 == 0 else (False,):
            one = _bounded(table, ordered, back, changes, begins_bad=begins_bad)
            if one is not None:
                decided = int(np.count_nonzero(one.decided & visible))
                found.append((against if changes == 1 else 0, -decided, one))
    return [one for _, _, one in sorted(found, key=lambda item: item[:2])]


def _bounded(
    table: NDArray[np.int8], axes: tuple[int, ...], back: tuple[int, ...], changes: int, *, begins_bad: bool
) -> Staircase | None:
    """Return the staircase whose bounds follow from the labels in one orientation, or None if none fits.

    Args:
        table: Labels: 1 bad, 0 good, -1 unknown; shape of the lattice.
        axes: The ordered axes.
        back: Those of `axes` along which upward means towards lower positions.
        changes: Maximum number of changes.
        begins_bad: Whether the lowest level is bad.
    """
    forth = [axis for axis in axes if axis not in back]
    odd = np.where(table < 0, -1, (table == 1) != begins_bad).astype(np.int8)
    least = np.zeros(table.shape, dtype=np.int8)
    most = np.full(table.shape, changes, dtype=np.int8)
    for level in range(changes):
        # At least one more: what lies at or beyond a cell that is at least here, and is not here.
        least[beyond((least == level) & (odd == 1 - level % 2), axes, back)] = level + 1
        high = changes - level
        most[beyond((most == high) & (odd == 1 - high % 2), axes, forth)] = high - 1
    wrong_top = (least == changes) & (odd == 1 - changes % 2)
    wrong_low = (most == 0) & (odd == 1)
    if (least > most).any() or wrong_top.any() or wrong_low.any():
        return None
    return Staircase(changes, begins_bad, axes, back, least, most, table >= 0)
