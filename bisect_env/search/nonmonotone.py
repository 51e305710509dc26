"""Searches histories that change more often than an axis's direction says, such as broken and fixed.

The search believes in directions first: among hypotheses that change once along an ordered axis, few trials
find the change. Whether the belief holds is asked of a wider space in which everything of the narrow one
keeps its proportions, with all but `RARE` of the prior, and other histories share `RARE`:

    P(not monotone | counts) = Σ_{h not monotone} π(h) P(counts | h) / Σ_h π(h) P(counts | h)

Each axis gets as many of them as a step of the search can weigh: windows, fixes where a regression was said
and the other way round, their complements, and two separate bad runs. Along a long axis those that change
most often do so next to values that were tried.
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
from bisect_env.search.families import CoarseAxis, Family, family
from bisect_env.search.numeric import logsumexp
from bisect_env.search.posterior import Belief
from bisect_env.search.space import HypothesisSpace
from bisect_env.search.tallies import Counts

RARE = 0.04
"""Prior of all histories that an axis's direction does not speak of, if the axis matters."""
DOUBT = math.log(20.0)
"""By what log factor some history must be able to explain the counts better before all are weighed."""
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


def times_rarer(size: int, changes: int) -> float:
    """Return how many times rarer a history with some changes is, in the prior, than one with one change.

    Args:
        size: Number of values of the axis.
        changes: Number of changes; more than three count as three.
    """
    changes = min(changes, max(_WEIGHTS))
    share = RARE * _WEIGHTS[changes] / sum(_WEIGHTS.values())
    return (1.0 - RARE) / size * max(1, math.comb(size - 1, changes)) / share


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
    # Several axes have no cheap bound (`could_be_better`): there all are weighed again and again.
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


def looked_at(of: Histories, active: Values) -> Histories:
    """Return histories reduced to some values; sets that agree on these become one.

    Args:
        of: The histories.
        active: The values to keep, per axis.
    """
    axes = [CoarseAxis.over(fine, values) for fine, values in zip(of.families, active, strict=True)]
    plain = tuple(
        np.bincount(axis.of, weights=fine, minlength=len(axis.coarse.sets)) > 0
        for axis, fine in zip(axes, of.plain, strict=True)
    )
    return Histories(tuple(axis.coarse for axis in axes), plain)


def could_be_better(counts: Counts, belief: Belief, space: HypothesisSpace) -> float:
    """Return an upper bound of how much better another history could explain the counts (log factor).

    Each combination is taken as good or bad as suits it best, at every pair of rates:

        log Σ_{j,k} P(m_j, σ_j, p0_k) · Π_x max(B_j(x), G_k(x))  −  log P(counts | best hypothesis)

    No history exceeds that, so that a small value spares weighing them all. On a lattice of one axis the
    best choice that changes `_MOST_CHANGES` times is taken instead, by dynamic programming along the axis:
    noise makes a value that is good here and there look better as bad, but few histories change as often.

    Args:
        counts: What was seen, at one combination at least.
        belief: The posterior of it.
        space: The hypotheses of that belief.
    """
    cells = sorted(counts.own_rate)
    tried = tuple(np.array(cells).T)
    columns, backgrounds = np.nonzero(counts.grid.joint)
    log_prior = np.log(counts.grid.joint[columns, backgrounds])
    # Of each combination if it is bad and if it is good, shape (2, cells, pairs of rates).
    fit = np.stack([counts.log_bad[tried][:, columns], counts.log_good[tried][:, backgrounds]])
    best = int(belief.hypotheses.argmax())
    known = belief.log_evidence + math.log(belief.hypotheses[best] / space.prior[best])
    most = float(logsumexp(fit.max(axis=0).sum(axis=0) + log_prior)) - known
    if most <= DOUBT or sum(size > 1 for size in space.shape) > 1:
        return most
    # By number of changes so far, and whether the last value is bad or good: (changes + 1, 2, pairs).
    reached = np.full((_MOST_CHANGES + 1, 2, len(columns)), -np.inf)
    reached[0] = fit[:, 0]
    for here in fit.transpose(1, 0, 2)[1:]:
        turned = reached[:-1, ::-1].copy()
        np.maximum(reached[1:], turned, out=reached[1:])
        reached += here
    return float(logsumexp(reached.max(axis=(0, 1)) + log_prior)) - known
