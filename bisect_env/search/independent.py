"""Label each cell good or bad by its own trials, if no hypothesis explains the counts. Pure.

Here the label of a cell tells nothing about other cells: each is bad with probability ½. Cells only share the
failure rates. With B_j and G_k as in `belief.py`,

    P(counts) = Σ_{j,k} prior(j, k) · Π_x ½ (B_j(x) + G_k(x))
    P(x is bad) = Σ_{j,k} P(j, k | counts) · B_j(x) / (B_j(x) + G_k(x))

The search then looks for two neighbours of which one is bad and one good. Every path from a bad to a good
cell has two such neighbours, whatever the other cells are, and halving the path finds them; `git bisect`
relies on the same invariant. This never takes longer than trying every cell as often.

X in array shapes is the number of groups of combinations.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Direction, Grid, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.belief import CellCounts
from bisect_env.search.families import FloatArray
from bisect_env.search.stopping import clean_trials
from bisect_env.search.verdict import further, nearest

_LABEL_ERROR = 0.4
"""Share of the allowed error that one label may have, because it also determines the labels of others."""
_RARE = 0.1
"""A combination that was tried so often that a failure at this rate would have shown gets the likelier label,
so that others are tried."""


def independent(counts: CellCounts) -> tuple[float, FloatArray]:
    """Calculate how probably each combination is bad if its label says nothing about other combinations.

    Args:
        counts: The failures and trials of each group of combinations.

    Returns:
        The log of P(counts) (see the module), and P(x is bad) of each group x, shape (X,), which is one half
        for groups without trials.
    """
    log_prior, bad, good = _by_rates(counts)
    both = np.logaddexp(bad, good)
    log_weight = log_prior + both.sum(axis=0) - len(counts.tried) * np.log(2.0)
    evidence = float(np.logaddexp.reduce(log_weight))
    chances = np.full(len(counts.trials), 0.5)
    chances[counts.tried] = np.exp(bad - both) @ np.exp(log_weight - evidence)
    return evidence, chances


def own_labels(counts: CellCounts, chances: FloatArray, limits: SearchLimits) -> NDArray[np.int8]:
    """Return the label of each combination by its own trials: 1 bad, 0 good, -1 unknown; shape (X,).

    If no combination both failed and passed, one trial is enough for a label. Otherwise a label needs a small
    error (`_LABEL_ERROR`), or so many trials that rare failures would have shown (`_RARE`).

    Args:
        counts: The failures and trials of each group of combinations.
        chances: Probability that each group is bad, from `independent`, shape (X,).
        limits: The confidence, and the smallest failure rate to search for.
    """
    hits, trials = counts.hits, counts.trials
    if counts.unanimous:
        return np.where(trials > 0, hits > 0, -1).astype(np.int8)
    is_sure = np.minimum(chances, 1.0 - chances) <= _LABEL_ERROR * (1.0 - limits.confidence)
    # Before anything is known to be bad, a background looks like a rare failure: then others say more.
    enough = 2 * clean_trials(max(_RARE, limits.min_crash_rate))
    is_known = (trials > 0) & (is_sure | (trials >= enough))
    return np.where(is_known, chances >= 0.5, -1).astype(np.int8)


def best_fit(counts: CellCounts) -> float:
    """Return how well the counts could be explained if each combination had the label that fits it best.

    This is an upper bound of their log likelihood. At each pair of rates (of bad and good cells), every cell
    has the label that explains its counts better.

    Args:
        counts: The failures and trials of each group of combinations.
    """
    log_prior, bad, good = _by_rates(counts)
    return float(np.logaddexp.reduce(log_prior + np.maximum(bad, good).sum(axis=0)))


def _by_rates(counts: CellCounts) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return all pairs of bad and good failure rates: their log priors, and the log likelihoods at each.

    A pair is a column (typical failure rate and spread of bad combinations) and a background rate. The log
    likelihoods are log B (the combination is bad) and log G (it is good) of each tried combination. The
    shapes are (pairs,), (tried, pairs) and (tried, pairs).
    """
    columns, backgrounds = np.nonzero(counts.grid.joint)
    log_bad, log_good, _ = counts.scored
    return (
        np.log(counts.grid.joint[columns, backgrounds]),
        log_bad[:, columns],
        log_good[:, backgrounds],
    )


def path(labels: NDArray[np.int8], can_run: NDArray[np.bool_], grid: Grid) -> list[Index] | None:
    """Return the shortest path of neighbours from a combination labelled bad to one labelled good.

    Neighbours differ on one axis, with nothing between them that can be run; on an axis without order, any
    two values are neighbours. If no path joins bad and good combinations, only the closest pair is returned.
    Returns None if no combination that can be run is labelled bad, or none is labelled good.

    Args:
        labels: 1 bad, 0 good, -1 not known; shape of the lattice.
        can_run: True for cells that can be run, shape of the lattice.
        grid: The lattice. A path from the stated bad end is preferred.
    """
    starts = [tuple(map(int, cell)) for cell in np.argwhere((labels == 1) & can_run)]
    if grid.bad is not None and grid.bad in starts:
        starts.sort(key=lambda cell: cell != grid.bad)
    before: dict[Index, Index | None] = dict.fromkeys(starts)
    waiting = deque(starts)
    while waiting:
        cell = waiting.popleft()
        if labels[cell] == 0:
            found = [cell]
            while (back := before[found[-1]]) is not None:
                found.append(back)
            return found[::-1]
        for near in _neighbours(cell, can_run, grid):
            if near not in before:
                before[near] = cell
                waiting.append(near)
    pair = nearest((labels == 1) & can_run, (labels == 0) & can_run)
    return None if pair is None else list(pair)


def _neighbours(cell: Index, can_run: NDArray[np.bool_], grid: Grid) -> Iterator[Index]:
    for axis, size in enumerate(grid.shape):
        unordered = grid.axes[axis].direction is Direction.UNORDERED
        for step in (1, -1):
            near = (one for one in further(cell, axis, step, size) if can_run[one])
            yield from near if unordered else itertools.islice(near, 1)
