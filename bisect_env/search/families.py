"""Sets of values on one axis that may be bad, as 0/1 matrices.

A hypothesis picks one set per axis. The first set of every family is the whole axis ("this axis does not
matter"), so that simple hypotheses are those with many first sets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Direction

FloatArray = NDArray[np.float64]

# Of a broken-then-fixed axis: how likely it is that the window touches an end. A release that broke
# something and was never mended, or was never good, is as common a story as a true window.
_SUFFIX_SHARE = 0.35
_PREFIX_SHARE = 0.25
# Broken, fixed, and broken again: rare, but a history that is so must not be reported as something else.
_GAP_SHARE = 0.04


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """Candidate sets of bad values on one axis.

    Attributes:
        sets: 0/1, shape (sets, values); row 0 is all ones.
        prior: Shape (sets,); `prior[0]` is 0 and the others, the sets that do matter, sum to 1
            (an axis with a single value has the first row alone).
    """

    sets: FloatArray
    prior: FloatArray

    @property
    def spared(self) -> FloatArray:
        """Return which values each set leaves good in an *any of* hypothesis: 0/1, shape (sets, values).

        Each row is the complement of the set. Row 0 is all ones: an axis that does not matter makes no
        value bad.
        """
        spared = 1.0 - self.sets
        spared[0] = 1.0
        return spared


def family(direction: Direction, size: int, *, gaps: bool = True) -> Family:
    """Return the candidate sets of bad values for a direction.

    Args:
        direction: Where the bad values may lie.
        size: Number of values on the axis, at least 1.
        gaps: Whether `either` has the complements of intervals, too: broken, fixed, broken again.

    Returns:
        Suffixes {>= a} for a regression, prefixes {< a} for a fix, all intervals [a, b) for either, and
        for values without order every single value and every all-but-one.
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
            # With two values "all but one" says the same as "the other one".
            others = [values != a for a in range(size)] if size > 2 else []
            rows = singles + others
            weights = [1.0] * len(singles) + [0.5] * len(others)
    sets = np.vstack([np.ones(size), *[row.astype(np.float64) for row in rows]])
    prior = np.array([0.0, *weights])
    if len(rows):
        prior /= prior.sum()
    return Family(sets, prior)
