"""Grids and planted truths for the tests of the search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import AxisKind, Direction, Grid, GridAxis, Index
from bisect_env.search.rates import RateGrid
from bisect_env.search.searcher import Search
from bisect_env.search.simulate import Simulated

REGRESSION, FIXED = Direction.REGRESSION, Direction.FIXED
EITHER, UNORDERED = Direction.EITHER, Direction.UNORDERED


def grid(
    shape: Sequence[int],
    directions: Direction | Sequence[Direction] = REGRESSION,
    *,
    good: Index | None = None,
    bad: Index | None = None,
) -> Grid:
    """A grid of package axes `a0`, `a1`, … with the values `0`, `1`, …"""
    if isinstance(directions, Direction):
        directions = [directions] * len(shape)
    axes = tuple(
        GridAxis(f"a{i}", AxisKind.PACKAGE, tuple(str(v) for v in range(n)), direction)
        for i, (n, direction) in enumerate(zip(shape, directions, strict=True))
    )
    return Grid(axes, good=good, bad=bad)


def alone(grid: Grid, without: Sequence[Index] = ()) -> dict[Index, Index]:
    """Every combination measured on its own, but for those that cannot be run."""
    return {index: index for index in grid.indices() if index not in set(without)}


def configuration(shape: Sequence[int], start: Mapping[int, int]) -> NDArray[np.bool_]:
    """Bad from `start[axis]` on, along every axis named."""
    bad = np.ones(shape, dtype=bool)
    for axis, first in start.items():
        along = np.arange(shape[axis]) >= first
        bad &= along.reshape([-1 if a == axis else 1 for a in range(len(shape))])
    return bad


def rates(bad: NDArray[np.bool_], p1: float, p0: float = 0.0) -> NDArray[np.float64]:
    return np.where(bad, p1, p0)


def small_rates() -> RateGrid:
    """Three typical rates, shared or spread, and three backgrounds: few enough for plain loops."""
    rates = np.array([0.05, 0.1, 0.3, 0.6, 1.0])
    m = np.array([0.1, 0.3, 1.0, 0.1, 0.3])
    spread = np.array([0.0, 0.0, 0.0, 0.5, 0.5])
    kernel = np.array(
        [
            [0, 1, 0, 0, 0],
            [0, 0, 1, 0, 0],
            [0, 0, 0, 0, 1],
            [0.25, 0.5, 0.25, 0, 0],
            [0, 0.25, 0.5, 0.25, 0],
        ]
    )
    p0 = np.array([0.0, 0.02, 0.25])
    joint = np.where(m[:, None] >= 2 * p0, np.array([0.2, 0.3, 0.1, 0.2, 0.2])[:, None] * [0.5, 0.3, 0.2], 0)
    return RateGrid(m, spread, rates, kernel, p0, joint / joint.sum())


def agrees(end: Simulated, bad: NDArray[np.bool_], groups: Mapping[Index, Index]) -> bool:
    """Whether the verdict calls bad what is bad, wherever something could be learnt."""
    said = end.verdict.best.hypothesis.bad_cells()
    return all(said[cell] == bad[cell] for cell in groups.values())


def play(
    search: Search, truth: NDArray[np.float64], rng: np.random.Generator, *, at_most: int = 3000
) -> list[Index]:
    """Run a search trial by trial to its end; the cells that were tried, in order."""
    tried: list[Index] = []
    while not search.finished:
        assert len(tried) < at_most, f"no end after {at_most} trials: {search.verdict.reason}"
        (cell,) = search.ask(1)
        tried.append(cell)
        search.tell(cell, hit=bool(rng.random() < truth[cell]))
    return tried
