"""Labels each cell good or bad by itself, where no rule explains what was seen. Pure.

Without a rule every cell is bad or good by itself, one as likely as the other, and what they share are the
rates: with B_j and G_k as in `belief.py`,

    P(counts) = Σ_{j,k} prior(j, k) · Π_x ½ (B_j(x) + G_k(x))
    P(x is bad) = Σ_{j,k} P(j, k | counts) · B_j(x) / (B_j(x) + G_k(x))

What is asked then is two neighbours of which one is bad and one good. Whatever the rest looks like, on a path
from a bad to a good cell some two neighbours differ, and halving the path finds them: the invariant on which
`git bisect` rests. No truth takes longer than trying every cell as often.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import Direction, Grid, Index
from bisect_env.search.belief import CellCounts
from bisect_env.search.families import FloatArray
from bisect_env.search.numeric import logsumexp


def independent(counts: CellCounts) -> tuple[float, FloatArray]:
    """Return the log evidence of the counts without any rule, and the chance of each tried cell to be bad.

    Args:
        counts: The counts.

    Returns:
        The log of P(counts), and P(x is bad) in the order of `counts.tried`.
    """
    grid = counts.grid
    columns, backgrounds = np.nonzero(grid.joint)
    log_prior = np.log(grid.joint[columns, backgrounds])
    log_bad, log_good, _ = counts.scored
    bad, good = log_bad[:, columns], log_good[:, backgrounds]
    both = np.logaddexp(bad, good)
    log_weight = log_prior + both.sum(axis=0) - len(counts.tried) * np.log(2.0)
    evidence = float(logsumexp(log_weight))
    return evidence, np.asarray(np.exp(bad - both) @ np.exp(log_weight - evidence))


def path(labels: NDArray[np.int8], can_run: NDArray[np.bool_], grid: Grid) -> list[Index] | None:
    """Return the shortest path of neighbours from a bad to a good cell; None if there is not one of each.

    Neighbours differ on one axis, with nothing between them that can be run; on an axis without order any
    two values are neighbours. Where no path joins them, the nearest bad and good cell are the path.

    Args:
        labels: 1 bad, 0 good, -1 not known; shape of the lattice.
        can_run: Which cells can be run, shape of the lattice.
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
    return _nearest(labels, can_run)


def _neighbours(cell: Index, can_run: NDArray[np.bool_], grid: Grid) -> Iterator[Index]:
    for axis, size in enumerate(grid.shape):
        unordered = grid.axes[axis].direction is Direction.UNORDERED
        for places in (range(cell[axis] + 1, size), range(cell[axis] - 1, -1, -1)):
            for place in places:
                near = (*cell[:axis], place, *cell[axis + 1 :])
                if can_run[near]:
                    yield near
                    if not unordered:
                        break


def _nearest(labels: NDArray[np.int8], can_run: NDArray[np.bool_]) -> list[Index] | None:
    bad, good = np.argwhere((labels == 1) & can_run), np.argwhere((labels == 0) & can_run)
    if not len(bad) or not len(good):
        return None
    apart = np.abs(bad[:, None, :] - good[None, :, :])
    rank = np.count_nonzero(apart, axis=2) * 10_000 + apart.sum(axis=2)
    one, other = np.unravel_index(int(rank.argmin()), rank.shape)
    return [tuple(map(int, bad[one])), tuple(map(int, good[other]))]
