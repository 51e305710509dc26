"""Histories that change more often than an axis's direction says, such as broken and fixed. Pure.

A *history* is the order of good and bad values along an axis; it *changes* where good turns to bad or back.
Sets of bad values that the direction allows (*plain* sets) keep their proportions, with all but `RARE` of the
prior; other histories share `RARE`. Each axis gets as many of these as a step of the search can weigh:
windows, fixes where a regression was stated and the other way round, their complements, and two separate bad
runs. Along a long axis, the histories that change most often may change only next to values that were tried.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Direction, Grid, Index
from bisect_env.search.families import MOST_SETS, Family, families_of

RARE = 0.04
"""Prior of all histories that change more often than an axis's direction says, if the axis matters."""
_MOST_NEAR = 40_000
"""Replaces `MOST_SETS` as the maximum if histories may change only next to tried values."""
_MOST_SEVERAL = 1_500
"""Replaces `MOST_SETS` and `_MOST_NEAR` for a lattice of several axes."""
_LONGEST = 1000
"""Maximum number of values of an axis that gets further histories."""

# By the number of changes: once but the other way round, twice, three times. A window is the common story.
_WEIGHTS = {1: 1.0, 2: 5.0, 3: 4.0}


def histories(grid: Grid, tried: Iterable[Index]) -> tuple[Family, ...] | None:
    """Return the possible bad sets of each axis, including ones that turn bad and good several times.

    Args:
        grid: The lattice.
        tried: Cells with trials. On long axes, sets change more often only next to these and to stated ends.

    Returns:
        A family (possible sets of bad values) for each axis. It begins with the sets of `families_of`; the
        sets added after them change more often than the direction says. None if no axis gets further sets.
        Equal calls return equal tuples, because each family is cached.
    """
    shape, directions = grid.shape, [axis.direction for axis in grid.axes]
    cells = [*tried, *(end for end in (grid.good, grid.bad) if end is not None)]
    plain = families_of(shape, directions)
    wide = list(plain)
    # With several axes there is no cheap bound: all sets are weighed after each trial.
    several = sum(n > 1 for n in shape) > 1
    all_sets, near_sets = (_MOST_SEVERAL, _MOST_SEVERAL) if several else (MOST_SETS, _MOST_NEAR)
    longest = sorted(range(len(shape)), key=lambda axis: -shape[axis])
    for changes, axis in itertools.product((2, 3), longest):
        size = shape[axis]
        if directions[axis] is Direction.UNORDERED or not changes < max(size, 3) <= _LONGEST:
            continue
        others = math.prod(len(f.sets) for i, f in enumerate(wide) if i != axis)
        beside = {place for cell in cells for place in (cell[axis], cell[axis] + 1)}
        near = tuple(sorted(place for place in beside if 0 < place < size))
        # At any position; with this many changes or more, only next to tried values.
        for limit, most in ((changes + 1, all_sets), (changes, near_sets), (2, near_sets)):
            places = [size - 1 if k < limit else len(near) for k in range(1, changes + 1)]
            if others * (1 + 2 * sum(math.comb(n, k) for k, n in enumerate(places, start=1))) <= most:
                wide[axis] = _wider(plain[axis], changes, near if limit <= changes else (), limit)
                break
    return None if wide == plain else tuple(wide)


@functools.lru_cache(maxsize=16)
def _wider(plain: Family, changes: int, near: tuple[int, ...], limit: int) -> Family:
    """Add sets of bad values to a family: those that change up to `changes` times along the axis.

    The added sets share the prior `RARE`. If there are none, `plain` itself is returned.

    Args:
        plain: The family that the direction of the axis allows.
        changes: Maximum number of changes, 2 or 3.
        near: Positions at which sets with `limit` or more changes may change.
        limit: Number of changes below which a set may change at any position.
    """
    size = plain.sets.shape[1]
    known = {row.tobytes() for row in plain.sets}
    often = set(np.count_nonzero(np.diff(plain.sets), axis=1).tolist())
    sets, weights = [plain.sets], [(1.0 - RARE) * plain.prior]
    rare = 0.0
    for k in range(1, changes + 1):
        rows = _changing(size, k, tuple(range(1, size)) if k < limit else near)
        if k in often:
            rows = rows[[row.tobytes() not in known for row in rows]]
        if len(rows):
            sets.append(rows)
            weights.append(np.full(len(rows), RARE * _WEIGHTS[k] / len(rows)))
            rare += _WEIGHTS[k]
    if not rare:
        return plain
    prior = np.concatenate([weights[0], *(w / rare for w in weights[1:])])
    return Family(np.concatenate(sets), prior, len(plain.sets))


def _changing(size: int, changes: int, places: tuple[int, ...]) -> NDArray[np.bool_]:
    """List every sequence of good and bad values that changes exactly `changes` times.

    The sequences have `size` values. All changes are at positions in `places`. The result is a boolean array,
    True at bad values, shape (histories, size).
    """
    chosen = np.array(list(itertools.combinations(places, changes)), dtype=np.intp).reshape(-1, changes)
    values = np.arange(size)
    odd = np.zeros((len(chosen), size), dtype=bool)
    for column in chosen.T:
        odd ^= values >= column[:, None]
    return np.concatenate([odd, ~odd])
