"""The worlds that `benchmarks.search` plants: lattices with a known truth, and coins for their trials."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import AxisKind, Direction, Grid, GridAxis, Index

DIFFERING = (0.03, 0.3)
"""Between these the rates of bad combinations are drawn, uniformly, where each has its own."""
CUBE = (6, 6, 4, 4)

Kind = Literal["study", "equal error", "table", "calibration"]
Mark = Literal["trials", "environments", "wrong", "step", "rival", "excess"]


@dataclass(frozen=True)
class Row:
    """One kind of planted truth, and what the search is held to there.

    Attributes:
        name: Name on the command line.
        shape: Values of each axis.
        p0: Failure rate of good combinations.
        p1: Failure rate of bad combinations; None = each has its own (`DIFFERING`).
        kind: `study` is played once at the usual confidence, `equal error` at several, `table` labels every
            combination, `calibration` looks at what is claimed (`search_claims`).
        truth: `some` is a regression along one or two axes, `none` and `all` change nothing; of a table, the
            name of a pattern.
        first_rate: Failure rate of the first bad version alone, on one axis; None = as the others.
        direction: Direction of all axes.
        quick: Whether checks are left out.
        workers: Trials at a time.
        build_cost: Price of an environment in trials.
        seconds: Length of a trial for the time limit of checks; 0 = checks have no limit.
        gate: Largest allowed value of a column: means of `trials`, `environments` and `wrong` (a share),
            `step` in seconds, `excess` of the trials of the worst study over the number of combinations, and
            `rival`, the trials as a multiple of git_bayesect's.
    """

    name: str
    shape: tuple[int, ...]
    p0: float = 0.0
    p1: float | None = 1.0
    kind: Kind = "study"
    truth: str = "some"
    first_rate: float | None = None
    direction: Direction = Direction.REGRESSION
    quick: bool = False
    workers: int = 1
    build_cost: float = 0.0
    seconds: float = 0.0
    gate: Mapping[Mark, float] = field(default_factory=dict, hash=False)

    @property
    def is_line(self) -> bool:
        """Whether rivals that know one axis with a regression can play it."""
        return len(self.shape) == 1 and self.direction is Direction.REGRESSION and self.kind != "calibration"


def rows() -> Iterator[Row]:
    """Yield all rows, those of the gate first."""
    line, step = (32,), 0.02
    yield Row("certain", line, quick=True, gate={"trials": 9})
    for p0, p1 in ((0.0, 0.1), (0.01, 0.1), (0.02, 0.3), (0.0, 0.5)):
        yield Row(f"equal:{p0:g},{p1:g}", line, p0, p1, "equal error", quick=True, gate={"rival": 1.05})
    yield Row("equal:0.05,0.15", line, 0.05, 0.15, "equal error", quick=True, gate={"trials": 714})
    yield Row("differing", line, 0.0, None, gate={"wrong": 0.05})
    for price in (20.0, 90.0):
        yield Row(f"build{price:g}", line, 0.0, 0.1, quick=True, build_cost=price, gate={"environments": 7.5})
    yield Row("cube:0,0.1:build20", CUBE, 0.0, 0.1, build_cost=20, gate={"trials": 415})
    for shape in ((6, 6), (9, 13)):
        for truth in PATTERNS:
            name = f"{shape[0]}x{shape[1]}:{truth}"
            gate: dict[Mark, float] = {"excess": 10, "step": step}
            yield Row(name, shape, kind="table", truth=truth, direction=Direction.EITHER, gate=gate)
    yield Row("100x100:staircase", (100, 100), kind="table", truth="staircase", gate={"step": 0.015})
    for size, rate in itertools.product((16, 32), (0.05, 0.1, 0.3)):
        yield Row(f"steps{size}:{rate:g},1", (size,), first_rate=rate, gate={"wrong": 0.05})
    yield Row("calibration:quick", (), kind="calibration", quick=True)
    for seconds, workers in itertools.product((0.1, 1.0, 20.0), (1, 2, 16)):
        name = f"calibration:{seconds:g}s:{workers}"
        yield Row(name, (), kind="calibration", workers=workers, seconds=seconds)
    yield Row("calibration:sure", (), kind="calibration")
    yield Row("all-bad", line, 0.1, 0.1, truth="all", gate={"trials": 699})
    yield Row("never-bad", line, 0.0, 0.0, truth="none", gate={"trials": 166})
    large: dict[Mark, float] = {"step": 0.1}
    yield Row("512x512", (512, 512), quick=True, gate=large)
    yield Row("20axes", (2,) * 17 + (1,) * 3, quick=True, gate=large)
    yield Row("releases400", (400,), direction=Direction.EITHER, gate=large)
    # What is not in the gate.
    for p0, p1 in ((0.0, 1.0), (0.0, 0.5), (0.0, 0.1), (0.01, 0.1), (0.02, 0.3), (0.05, 0.15)):
        yield Row(f"checked:{p0:g},{p1:g}", line, p0, p1)
    yield Row("cube:0,1", CUBE)
    for workers in (8, 64):
        yield Row(f"workers{workers}:0,0.1", line, 0.0, 0.1, quick=True, workers=workers)
    for truth in PATTERNS:
        yield Row(f"6x6:{truth}:0,0.2", (6, 6), 0.0, 0.2, "table", truth, direction=Direction.EITHER)


PATTERNS = ("staircase", "frontier", "corner", "bands", "checkerboard")
"""Truths of tables."""


def _pattern(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return which combinations of a table are bad."""
    (height, width), (i, j) = shape, np.indices(shape)
    if name == "staircase":
        return np.asarray(i + j >= height)
    if name == "frontier":
        # At least one combination is bad, and one is good.
        return np.asarray(j >= np.sort(rng.integers(1, width, height))[:, None])
    if name == "corner":
        return np.asarray((i >= rng.integers(1, height)) & (j >= rng.integers(1, width)))
    if name == "bands":
        return np.asarray(abs(i - j * height / width) >= height / 3)
    return np.asarray((i + j) % 2 == 1)


def plant(row: Row, rng: np.random.Generator) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return which combinations are bad, and how often each fails.

    Args:
        row: The kind of truth.
        rng: Draws culprit axes and values, and rates that differ.
    """
    bad = np.ones(row.shape, dtype=bool)
    if row.kind == "table":
        bad = _pattern(row.truth, row.shape, rng)
    elif row.truth == "some":
        # One culprit axis, or with more axes one or two, each bad from a random value on.
        axes = [axis for axis, size in enumerate(row.shape) if size > 1]
        for axis in rng.choice(axes, int(rng.integers(1, min(len(axes), 2) + 1)), replace=False):
            along = np.arange(row.shape[axis]) >= rng.integers(1, row.shape[axis])
            bad &= along.reshape([-1 if a == axis else 1 for a in range(len(row.shape))])
    elif row.truth == "none":
        bad = ~bad
    shown = rng.uniform(*DIFFERING, row.shape) if row.p1 is None else np.full(row.shape, row.p1)
    if row.first_rate is not None:
        shown[int(bad.argmax())] = row.first_rate
    return bad, np.where(bad, shown, row.p0)


class Alone(Mapping[Index, Index]):
    """The groups of a lattice whose combinations all differ, without an entry for each."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape

    def __getitem__(self, index: Index) -> Index:
        if all(0 <= place < size for place, size in zip(index, self._shape, strict=True)):
            return index
        raise KeyError(index)

    def __len__(self) -> int:
        return math.prod(self._shape)

    def __iter__(self) -> Iterator[Index]:
        return itertools.product(*map(range, self._shape))


def grid_of(shape: tuple[int, ...], direction: Direction = Direction.REGRESSION) -> Grid:
    """Return a lattice of package axes."""
    return Grid(
        tuple(
            GridAxis(f"a{i}", AxisKind.PACKAGE, tuple(map(str, range(n))), direction)
            for i, n in enumerate(shape)
        )
    )


class World:
    """A planted truth, and coins that fall alike for every method.

    Attributes:
        bad: Which combinations are bad.
        rates: How often each fails.
        trials: Trials so far.
        tried: Combinations with trials.
    """

    def __init__(self, row: Row, seed: int) -> None:
        self.bad, self.rates = plant(row, np.random.default_rng(seed))
        self.trials = 0
        self.tried: set[Index] = set()
        self._seed = seed
        self._coins: dict[Index, np.random.Generator] = {}

    def fails(self, index: Index) -> bool:
        """Run a trial; the n-th trial of a combination ends alike whoever runs it."""
        if index not in self._coins:
            self._coins[index] = np.random.default_rng((self._seed, *index))
        self.trials += 1
        self.tried.add(index)
        return bool(self._coins[index].random() < self.rates[index])
