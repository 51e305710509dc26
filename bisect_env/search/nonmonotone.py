"""Histories that change more often than an axis's direction says, such as broken and fixed. Pure.

Hypotheses that change once along an ordered axis keep their proportions, with all but `RARE` of the prior;
other histories share `RARE`. Each axis gets as many of them as a step of the search can weigh: windows, fixes
where a regression was said and the other way round, their complements, and two separate bad runs. Along a
long axis those that change most often do so next to values that were tried.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Direction
from bisect_env.search.families import Family, family

RARE = 0.04
"""Prior of all histories that an axis's direction does not speak of, if the axis matters."""
MOST_SETS = 20_000
"""Combinations of value sets up to which a space is weighed trial after trial."""
_MOST_NEAR = 40_000
"""The same for histories that change next to what was tried alone."""
_MOST_SEVERAL = 1_500
"""Both, on a lattice of several axes."""
_MOST_CHANGES = 3
_LONGEST = 1000
"""Values of an axis on which other histories are looked for."""

# By the number of changes: once but the other way round, twice, three times. A window is the common story.
_WEIGHTS = {1: 1.0, 2: 5.0, 3: 4.0}

Values = tuple[tuple[int, ...], ...]
"""Per axis the positions of some of its values, ascending."""


@dataclass(frozen=True, slots=True, eq=False)
class Histories:
    """Families of value sets that may change more often, one per axis.

    Attributes:
        families: The families, as `HypothesisSpace` takes them.
        plain: Per axis, which of its sets follow the direction, shape (sets,).
    """

    families: tuple[Family, ...]
    plain: tuple[NDArray[np.bool_], ...]


def histories(shape: Sequence[int], directions: Sequence[Direction], tried: Values) -> Histories | None:
    """Return the histories that can be compared with the plain ones; None where there are none.

    Args:
        shape: Number of values of each axis.
        directions: Where the bad values may lie, one per axis.
        tried: Values that were tried.

    Returns:
        The same object as before where nothing else was tried that matters.
    """
    # As the space itself has them: of too many sets the complements of windows are left out.
    plain = [_plain(d, n, True) for d, n in zip(directions, shape, strict=True)]
    if math.prod(len(f.sets) for f in plain) > MOST_SETS:
        plain = [_plain(d, n, False) for d, n in zip(directions, shape, strict=True)]
    wide = list(plain)
    # Several axes have no cheap bound : there all are weighed again and again.
    several = sum(n > 1 for n in shape) > 1
    all_sets, near_sets = (_MOST_SEVERAL, _MOST_SEVERAL) if several else (MOST_SETS, _MOST_NEAR)
    longest = sorted(range(len(shape)), key=lambda axis: -shape[axis])
    for changes, axis in itertools.product((2, 3), longest):
        size = shape[axis]
        if directions[axis] is Direction.UNORDERED or not changes < size <= _LONGEST:
            continue
        others = math.prod(len(f.sets) for i, f in enumerate(wide) if i != axis)
        near = tuple(sorted({place for v in tried[axis] for place in (v, v + 1) if 0 < place < size}))
        # Everywhere, or from so many changes on next to what was tried alone.
        for limit, most in ((changes + 1, all_sets), (changes, near_sets), (2, near_sets)):
            places = [size - 1 if k < limit else len(near) for k in range(1, changes + 1)]
            if others * (1 + 2 * sum(math.comb(n, k) for k, n in enumerate(places, start=1))) <= most:
                wide[axis] = _wider(plain[axis], changes, near if limit <= changes else (), limit)
                break
    return None if wide == plain else _together(tuple(wide), tuple(len(f.sets) for f in plain))


@functools.lru_cache(maxsize=64)
def _plain(direction: Direction, size: int, gaps: bool) -> Family:
    return family(direction, size, gaps=gaps)


@functools.lru_cache(maxsize=16)
def _together(families: tuple[Family, ...], plain: tuple[int, ...]) -> Histories:
    return Histories(
        families, tuple(np.arange(len(f.sets)) < n for f, n in zip(families, plain, strict=True))
    )


@functools.lru_cache(maxsize=16)
def _wider(plain: Family, changes: int, near: tuple[int, ...], limit: int) -> Family:
    """Return a family extended by all sets with at most `changes` changes; the family's own sets come first.

    Args:
        plain: The family.
        changes: Maximum number of changes, 2 or 3.
        near: Places where sets with `limit` or more changes may change.
        limit: Sets with fewer changes may change anywhere.
    """
    size = plain.sets.shape[1]
    known = {row.tobytes() for row in plain.sets > 0}
    often = set(np.count_nonzero(np.diff(plain.sets), axis=1).tolist())
    sets, weights = [plain.sets], [(1.0 - RARE) * plain.prior]
    rare = 0.0
    for k in range(1, changes + 1):
        rows = _changing(size, k, tuple(range(1, size)) if k < limit else near)
        if k in often:
            rows = rows[[row.tobytes() not in known for row in rows]]
        if len(rows):
            sets.append(rows.astype(np.float64))
            weights.append(np.full(len(rows), RARE * _WEIGHTS[k] / len(rows)))
            rare += _WEIGHTS[k]
    if not rare:
        return plain
    return Family(np.concatenate(sets), np.concatenate([weights[0], *(w / rare for w in weights[1:])]))


def _changing(size: int, changes: int, places: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return every set of values with exactly `changes` changes between good and bad, at the given places."""
    chosen = np.array(list(itertools.combinations(places, changes)), dtype=np.intp).reshape(-1, changes)
    values = np.arange(size)
    odd = np.zeros((len(chosen), size), dtype=bool)
    for column in chosen.T:
        odd ^= values >= column[:, None]
    return np.concatenate([odd, ~odd])
