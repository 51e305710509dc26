"""Families: the sets of values of one axis that may be the bad ones, as boolean arrays.

A hypothesis picks one set from the family of each axis. The first set of every family contains all values of
the axis, which means "this axis does not matter". In a simple hypothesis most axes have their first set.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Direction

FloatArray = NDArray[np.float64]

# Probability that the window of a broken-then-fixed axis touches an end. A release that broke something
# and was never repaired, or that was never good, is as common as a true window.
_SUFFIX_SHARE = 0.35
_PREFIX_SHARE = 0.25
# Broken, fixed, and broken again: rare, but a history that is so must not be reported as something else.
_GAP_SHARE = 0.04
MOST_SETS = 20_000
"""Maximum number of combinations of value sets in a space that is recomputed after every trial."""


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """The sets of values of one axis that may be the bad ones, with their prior probabilities.

    Attributes:
        sets: One row per set, True for each value in it; shape (sets, values). Row 0 is True everywhere.
        prior: Prior of each set if the axis matters, shape (sets,). `prior[0]` is 0 and the others sum to 1.
            An axis with a single value has only row 0.
        plain: Number of sets that the direction of the axis allows; these come first.
    """

    sets: NDArray[np.bool_]
    prior: FloatArray
    plain: int

    @property
    def spared(self) -> NDArray[np.bool_]:
        """Return the complement of each set: True for each value outside the set, shape (sets, values).

        Hypotheses of the kind *any of* use these rows. Row 0 is True everywhere instead, because an axis that
        does not matter makes no combination bad.
        """
        spared = ~self.sets
        spared[0] = True
        return spared


def families_of(shape: Sequence[int], directions: Sequence[Direction]) -> list[Family]:
    """Return the family of each axis of a lattice: the sets of its values that may be the bad ones.

    If there would be more than `MOST_SETS` combinations of one set per axis, no family contains complements
    of intervals.

    Args:
        shape: Number of values on each axis.
        directions: Where the bad values may lie, one per axis.
    """
    found = [family(d, n) for d, n in zip(directions, shape, strict=True)]
    if math.prod(len(one.sets) for one in found) > MOST_SETS:
        found = [family(d, n, gaps=False) for d, n in zip(directions, shape, strict=True)]
    return found


@functools.lru_cache(maxsize=64)
def family(direction: Direction, size: int, *, gaps: bool = True) -> Family:
    """Return the possible sets of bad values of one axis (its family), as its direction allows them.

    Args:
        direction: Where the bad values may lie.
        size: Number of values on the axis, at least 1.
        gaps: Whether the family of `EITHER` also contains the complements of intervals (broken, fixed, broken
            again).

    Returns:
        The whole axis, followed by: for `REGRESSION` all suffixes (from some value on); for `FIXED` all
        prefixes (below some value); for `EITHER` all suffixes, prefixes and inner intervals; for `UNORDERED`
        each single value and each set of all values but one.
    """
    values = np.arange(size)
    rows: list[NDArray[np.bool_]] = []
    weights: list[float] = []
    match direction:
        case Direction.REGRESSION:
            rows = [values >= a for a in range(1, size)]
            weights = [1.0] * len(rows)
        case Direction.FIXED:
            rows = [values < a for a in range(1, size)]
            weights = [1.0] * len(rows)
        case Direction.EITHER:
            suffixes = [values >= a for a in range(1, size)]
            prefixes = [values < a for a in range(1, size)]
            windows = [(values >= a) & (values < b) for a in range(1, size) for b in range(a + 1, size)]
            holes = [~window for window in windows] if gaps else []
            gap_share = _GAP_SHARE if holes else 0.0
            window_share = 1.0 - _SUFFIX_SHARE - _PREFIX_SHARE - gap_share if windows else 0.0
            rows = suffixes + prefixes + windows + holes
            weights = (
                [_SUFFIX_SHARE / max(1, len(suffixes))] * len(suffixes)
                + [_PREFIX_SHARE / max(1, len(prefixes))] * len(prefixes)
                + [window_share / max(1, len(windows))] * len(windows)
                + [gap_share / max(1, len(holes))] * len(holes)
            )
        case Direction.UNORDERED:
            singles = [values == a for a in range(size)] if size > 1 else []
            # With two values, "all but one" is the same set as "the other one".
            others = [values != a for a in range(size)] if size > 2 else []
            rows = singles + others
            weights = [1.0] * len(singles) + [0.5] * len(others)
    sets = np.vstack([np.ones(size, dtype=bool), *rows])
    prior = np.array([0.0, *weights])
    if len(rows):
        prior /= prior.sum()
    return Family(sets, prior, len(sets))
