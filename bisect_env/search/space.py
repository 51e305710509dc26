"""Hypotheses that consist of one set of bad values for each axis, and their prior.

A *cell* is one combination of the lattice: one value per axis. A hypothesis says which cells are *bad* (show
the failure). There are four kinds:

* *all of* (and): a cell is bad iff every axis's value lies in that axis's set of bad values. Example: torch
  is at least 2.6 and Python is at least 3.12.
* *any of* (or): a cell is bad iff at least one axis's value lies in its set; at least two axes matter.
  Examples: two independent causes, or a fix that needs several axes at once.
* *never bad*, *always bad*.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Direction, Grid, Index
from bisect_env.search.families import Family, FloatArray, families_of, family

NEVER_PRIOR = 0.025
ALWAYS_PRIOR = 0.04
_ANY_OF_PRIOR = 0.07
# Odds of one more axis being involved: most regressions have one culprit.
EXTRA_AXIS_ODDS = 0.4
MOST_EXACT = 60_000
"""Maximum number of hypotheses for which each hypothesis has a row of its own."""


@dataclass(frozen=True, slots=True, eq=False)
class Hypothesis:
    """One hypothesis about which combinations are bad, written as sets of values.

    Attributes:
        kind: `all`, `any`, `never` or `always` (see the module); or `frontier`, `pair` or `table`, which sets
            cannot describe. In a `frontier` the bad combinations lie beyond a staircase; a `pair` and a
            `table` have only the attribute `table`.
        sets: For each axis a boolean array over its values: True for the bad values. On axes that do not
            matter it is all True (kind `all`) or all False (kind `any`).
        culprits: Positions of the axes that matter.
        table: Boolean array in the shape of the lattice, True for bad combinations, if sets cannot describe
            the hypothesis; else None. `sets` then contains the values at which at least one combination is
            bad.
    """

    kind: str
    sets: tuple[NDArray[np.bool_], ...]
    culprits: tuple[int, ...]
    table: NDArray[np.bool_] | None = None

    def _key(self) -> tuple[object, ...]:
        # Generated comparison would ask arrays for one truth value.
        table = b"" if self.table is None else self.table.tobytes()
        return (self.kind, self.culprits, table, *(bad.tobytes() for bad in self.sets))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hypothesis) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def is_bad(self, index: Index) -> bool:
        """Return whether the combination at `index` is bad under this hypothesis."""
        if self.kind in ("never", "always"):
            return self.kind == "always"
        if self.table is not None:
            return bool(self.table[index])
        inside = (bool(bad[i]) for bad, i in zip(self.sets, index, strict=True))
        return all(inside) if self.kind == "all" else any(inside)

    def bad_cells(self) -> NDArray[np.bool_]:
        """Return which combinations are bad under this hypothesis, as a boolean array over the lattice."""
        shape = tuple(len(bad) for bad in self.sets)
        if self.kind in ("never", "always"):
            return np.full(shape, self.kind == "always")
        if self.table is not None:
            return self.table.copy()
        combine = np.logical_and if self.kind == "all" else np.logical_or
        cells = np.full(shape, self.kind == "all")
        for axis, bad in enumerate(self.sets):
            cells = combine(cells, bad.reshape([-1 if a == axis else 1 for a in range(len(shape))]))
        return cells


def constant(kind: str, shape: Sequence[int]) -> Hypothesis:
    """Return the hypothesis of the kind `always` (every combination is bad) or `never` (none is)."""
    return Hypothesis(kind, tuple(np.full(n, kind == "always") for n in shape), ())


def described(kind: str, bad: NDArray[np.bool_]) -> Hypothesis:
    """Turn a table that is True at bad combinations into a `Hypothesis` of the given kind.

    Its sets contain, for each axis, the values at which at least one combination is bad.
    """
    axes = range(bad.ndim)
    sets = tuple(np.asarray(bad.any(axis=tuple(a for a in axes if a != axis))) for axis in axes)
    matters = tuple(axis for axis in axes if (np.diff(bad, axis=axis)).any())
    return Hypothesis(kind, sets, matters, bad)


class HypothesisSpace:
    """All hypotheses about which combinations of a lattice are bad, numbered from 0.

    Args:
        shape: Number of values on each axis.
        directions: Where the bad values may lie, one per axis.
        families: Families of value sets, one per axis; None to use `families_of` the directions.

    Attributes:
        prior: Prior probability of each hypothesis, shape (hypotheses,); sums to 1.
        always: Number of the hypothesis that calls every cell bad.
        never: Number of the hypothesis that calls no cell bad.
    """

    def __init__(
        self,
        shape: Sequence[int],
        directions: Sequence[Direction],
        *,
        families: Sequence[Family] | None = None,
    ) -> None:
        self.shape = tuple(shape)
        self._families = list(families or families_of(shape, directions))
        self._set_shape = tuple(len(f.sets) for f in self._families)
        self._all_size = int(np.prod(self._set_shape))
        # "Any of" differs from "all of" only if at least two axes matter.
        self._any = sum(n > 1 for n in self.shape) >= 2
        self.size = self._all_size * (2 if self._any else 1) + 1
        self.always, self.never = 0, self.size - 1
        self.prior = self._prior()

    def _prior(self) -> FloatArray:
        """Return the prior probability of each hypothesis as an array, shape (hypotheses,).

        Hypotheses with fewer culprit axes have a higher prior. Hypotheses with the same culprit axes differ
        by the priors of their value sets, which the families contain.
        """
        weight = functools.reduce(np.multiply.outer, map(_weights, self._families), np.ones(()))
        matters = (np.arange(n) > 0 for n in self._set_shape)
        involved = functools.reduce(np.add.outer, (m.astype(np.int64) for m in matters), np.zeros((), int))
        all_of = np.where(involved >= 1, weight, 0.0)
        any_of = np.where(involved >= 2, weight, 0.0)
        change = 1.0 - NEVER_PRIOR - ALWAYS_PRIOR
        any_share = _ANY_OF_PRIOR * change if self._any else 0.0
        all_of = _normalised(all_of) * (change - any_share)
        all_of.flat[self.always] = ALWAYS_PRIOR
        parts = [all_of.ravel()]
        if self._any:
            parts.append(_normalised(any_of).ravel() * any_share)
        return _normalised(np.concatenate([*parts, np.array([NEVER_PRIOR])]))

    @property
    def tier(self) -> NDArray[np.int8]:
        """Return the tier of each hypothesis as an array, shape (hypotheses,).

        The tier is 1 if a value set of the hypothesis changes more often than the direction of its axis says,
        else 0.
        """
        is_wide = (np.arange(len(one.sets)) >= one.plain for one in self._families)
        chosen = functools.reduce(np.logical_or.outer, is_wide, np.zeros((), dtype=bool)).ravel()
        kinds = [chosen] * (2 if self._any else 1)
        return np.concatenate([*kinds, np.zeros(1, dtype=bool)]).astype(np.int8)

    def says(self, cells: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return, for each hypothesis and each given cell, whether the hypothesis calls the cell bad.

        Args:
            cells: Flat positions of the cells on the lattice, shape (cells,).

        Returns:
            Boolean array, shape (hypotheses, cells).
        """
        places = np.unravel_index(cells, self.shape)

        def within(matrices: Sequence[NDArray[np.bool_]]) -> NDArray[np.bool_]:
            """Return whether all values of each cell lie in the chosen sets, for each choice of sets.

            A choice has one set per axis. The shape is (choices, cells).
            """
            found = np.ones((1, len(cells)), dtype=bool)
            for sets, place in zip(matrices, places, strict=True):
                both = found[:, None] & sets[:, place]
                found = both.reshape(len(found) * len(sets), len(cells))
            return found

        parts = [within([f.sets for f in self._families])]
        if self._any:
            parts.append(~within([f.spared for f in self._families]))
        return np.concatenate([*parts, np.zeros((1, len(cells)), dtype=bool)])

    def hypothesis(self, number: int) -> Hypothesis:
        """Return the hypothesis with the given number, counted from 0, as sets of bad values."""
        if number == self.never:
            return constant("never", self.shape)
        if number == self.always:
            return constant("always", self.shape)
        kind = "all" if number < self._all_size else "any"
        chosen = np.unravel_index(number % self._all_size, self._set_shape)
        culprits = tuple(i for i, s in enumerate(chosen) if s != 0)
        sets = tuple(
            f.sets[s] if s != 0 or kind == "all" else np.zeros(f.sets.shape[1], dtype=bool)
            for f, s in zip(self._families, chosen, strict=True)
        )
        return Hypothesis(kind, sets, culprits)


def _weights(one: Family) -> FloatArray:
    """Return the prior weight of each possible set of bad values of one axis, shape (sets,).

    The first set, which means that the axis does not matter, has weight 1.
    """
    return np.where(np.arange(len(one.sets)) == 0, 1.0, EXTRA_AXIS_ODDS * one.prior)


def _normalised(weights: FloatArray) -> FloatArray:
    total = weights.sum()
    return weights / total if total > 0 else weights


def is_large(shape: Sequence[int], directions: Sequence[Direction]) -> bool:
    """Return whether a lattice may have more than `MOST_EXACT` hypotheses, too many for one row each."""
    return 2 * math.prod(_sets(d, n) for d, n in zip(directions, shape, strict=True)) > MOST_EXACT


def _sets(direction: Direction, size: int) -> int:
    """Return the number of candidate sets of bad values on an axis with `size` values.

    Complements of intervals are not counted.
    """
    match direction:
        case Direction.EITHER:
            return 1 + 2 * (size - 1) + (size - 1) * (size - 2) // 2
        case Direction.UNORDERED:
            return 1 + (2 * size if size > 2 else size if size == 2 else 0)
        case _:
            return size


def drawn(grid: Grid, rng: np.random.Generator) -> Hypothesis:
    """Draw a random hypothesis of the kind *all of*, in which at least one axis matters.

    Each hypothesis is drawn with a probability proportional to its prior.

    Args:
        grid: The lattice.
        rng: Random generator.
    """
    families = [family(axis.direction, len(axis.values), gaps=False) for axis in grid.axes]
    while True:
        chosen = []
        for one in families:
            weights = _weights(one)
            chosen.append(int(rng.choice(len(weights), p=weights / weights.sum())))
        if any(chosen):
            sets = tuple(one.sets[row] for one, row in zip(families, chosen, strict=True))
            return Hypothesis("all", sets, tuple(i for i, row in enumerate(chosen) if row))
