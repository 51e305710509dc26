"""Lattices with more hypotheses than can be kept one by one: value sets at some values only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Direction, Grid
from bisect_env.search.families import Family, FloatArray, family
from bisect_env.search.space import EXTRA_AXIS_ODDS, Hypothesis

MOST_EXACT = 60_000
"""Hypotheses up to which every one has a row of its own."""


def is_large(shape: Sequence[int], directions: Sequence[Direction]) -> bool:
    """Whether a lattice has more hypotheses than are kept one by one."""
    return 2 * math.prod(_sets(d, n) for d, n in zip(directions, shape, strict=True)) > MOST_EXACT


def _sets(direction: Direction, size: int) -> int:
    """Number of sets in a family without gaps."""
    match direction:
        case Direction.EITHER:
            return 1 + 2 * (size - 1) + (size - 1) * (size - 2) // 2
        case Direction.UNORDERED:
            return 1 + (2 * size if size > 2 else size if size == 2 else 0)
        case _:
            return size


def drawn(grid: Grid, rng: np.random.Generator) -> Hypothesis:
    """A hypothesis drawn from the prior of a large lattice, "never", "always" and *any of* left out."""
    families = [family(axis.direction, len(axis.values), gaps=False) for axis in grid.axes]
    while True:
        chosen = []
        for one in families:
            weights = np.where(np.arange(len(one.sets)) == 0, 1.0, EXTRA_AXIS_ODDS * one.prior)
            chosen.append(int(rng.choice(len(weights), p=weights / weights.sum())))
        if any(chosen):
            sets = tuple(one.sets[row] > 0 for one, row in zip(families, chosen, strict=True))
            return Hypothesis("all", sets, tuple(i for i, row in enumerate(chosen) if row))


@dataclass(frozen=True)
class CoarseAxis:
    """One axis with some of its values active.

    Attributes:
        active: Active values, ascending.
        of: Coarse set of each fine set, shape (fine sets,).
        coarse: What the search over active values takes for the family.
    """

    active: NDArray[np.intp]
    of: NDArray[np.intp]
    coarse: Family

    @classmethod
    def over(cls, fine: Family, active: Sequence[int]) -> CoarseAxis:
        """What is left of a family where only some values are looked at."""
        columns = np.array(sorted(active), dtype=np.intp)
        of = alike(fine.sets, columns)
        first = np.unique(of, return_index=True)[1]
        prior = np.asarray(np.bincount(of, weights=fine.prior), dtype=np.float64)
        return cls(columns, of, Family(fine.sets[np.ix_(first, columns)], prior))


def alike(sets: FloatArray, columns: NDArray[np.intp]) -> NDArray[np.intp]:
    """Class of each set, by what it says of some values; class 0 is "does not matter" alone."""
    of = np.zeros(len(sets) - 1, dtype=np.intp)
    for column in columns:
        code = 2 * of + (sets[1:, column] > 0)
        of = (np.cumsum(np.bincount(code) > 0) - 1)[code]
    return np.concatenate([[0], of + 1]).astype(np.intp)
