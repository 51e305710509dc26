"""What the benchmark of the search plants: kinds of truths, each with its repetitions and its marks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DIFFERING = (0.03, 0.3)
"""Between these the rates of bad combinations are drawn, uniformly, where each has its own."""
CUBE = (6, 6, 4, 4)


@dataclass(frozen=True)
class Row:
    """One kind of planted truth.

    Attributes:
        shape: Of the lattice; every axis is a regression.
        p0: Background rate.
        p1: Rate of bad combinations; None = each its own (`DIFFERING`).
        workers: Trials at a time.
        build_cost: Price of an environment in trials.
        repetitions: Studies of a full run; a short one plays three in a hundred.
        culprits: `some`, or `none` and `all` for truths in which nothing changes.
        marks: Largest allowed mean of a column.
        first_rate: Rate of the first bad version alone, on one axis; None = as of the others.
    """

    shape: tuple[int, ...]
    p0: float
    p1: float | None
    workers: int = 1
    build_cost: float = 0.0
    repetitions: int = 400
    culprits: str = "some"
    marks: tuple[tuple[str, float], ...] = ()
    first_rate: float | None = None

    @property
    def name(self) -> str:
        """Shape, rates, and what else is special: `32:0,0.1:K8`, `32:0,0.1,1` for a first step of 0.1."""
        rates = f"{self.p0:g},{self.p1:g}" if self.p1 is not None else f"{self.p0:g},differing"
        if self.first_rate is not None:
            rates = f"{self.p0:g},{self.first_rate:g},{self.p1:g}"
        rates = {"none": "never", "all": "always"}.get(self.culprits, rates)
        extra = (f":K{self.workers}" if self.workers > 1 else "") + (
            f":B{self.build_cost:g}" if self.build_cost else ""
        )
        return "x".join(map(str, self.shape)) + f":{rates}{extra}"

    @property
    def assumed_rate(self) -> float:
        """What a method that must be told the bad rate is told: the truth, the lowest or the mean of them."""
        if self.first_rate is not None:
            return self.first_rate
        return sum(DIFFERING) / 2 if self.p1 is None else self.p1


RATES: tuple[tuple[float, float | None], ...] = (
    (0.0, 0.1),
    (0.01, 0.1),
    (0.02, 0.3),
    (0.05, 0.15),
    (0.0, 1.0),
    (0.0, None),
)


def rows() -> Iterator[Row]:
    """All rows, the cheap ones with a mark first."""
    line = (32,)
    yield Row(line, 0.0, 0.1, marks=(("trials", 175.0),))
    yield Row(line, 0.01, 0.1, marks=(("trials", 330.0),))
    yield Row(line, 0.02, 0.3, marks=(("trials", 80.0),))
    yield Row(line, 0.05, 0.15, repetitions=200)
    yield Row(line, 0.0, 1.0, marks=(("trials", 8.0),))
    yield Row(line, 0.0, None)
    yield Row(line, 0.0, 0.1, build_cost=20)
    yield Row(line, 0.0, 0.1, build_cost=90, marks=(("total", 1000.0), ("environments", 7.5)))
    yield Row((128,), 0.0, 0.1, build_cost=20, marks=(("total", 520.0), ("environments", 9.5)))
    yield Row(CUBE, 0.0, 0.1, build_cost=20, repetitions=200, marks=(("total", 650.0),))
    yield Row(CUBE, 0.01, 0.1, build_cost=20, repetitions=200, marks=(("total", 950.0),))
    yield Row(line, 0.0, 0.1, workers=8)
    yield Row(line, 0.0, 0.1, workers=64)
    for step in (0.05, 0.1, 0.3):
        yield Row(line, 0.0, 1.0, repetitions=200, first_rate=step)
    yield Row(line, 0.0, 0.0, culprits="none", repetitions=100)
    yield Row(line, 0.1, 0.1, culprits="all", repetitions=100)
    for n in (8, 128):
        for p0, p1 in RATES:
            yield Row((n,), p0, p1, repetitions=100 if (p0, n) == (0.05, 128) else 200)
    yield Row(line, 0.0, 0.5)
    yield Row(line, 0.01, None, repetitions=200)
    yield Row(line, 0.01, 0.1, workers=8, repetitions=200)
    for price in (20.0, 90.0):
        yield Row(line, 0.01, 0.1, build_cost=price, repetitions=200)
    yield Row((128,), 0.0, 0.1, build_cost=90, repetitions=200)
    yield Row(CUBE, 0.0, 0.1, repetitions=100)
    yield Row(CUBE, 0.0, 0.1, build_cost=90, repetitions=100)
    yield Row(CUBE, 0.0, 1.0, repetitions=100)
    yield Row(CUBE, 0.0, None, build_cost=20, repetitions=100)


def plant(row: Row, rng: np.random.Generator) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Which combinations are bad, and how often each shows the target.

    One culprit axis, or with more axes one or two, each bad from a random value on.

    Args:
        row: The kind of truth.
        rng: Draws culprit axes and values, and rates that differ.
    """
    axes = len(row.shape)
    culprits = rng.choice(axes, int(rng.integers(1, min(axes, 2) + 1)), replace=False)
    bad = np.ones(row.shape, dtype=bool)
    for axis in culprits:
        along = np.arange(row.shape[axis]) >= rng.integers(1, row.shape[axis])
        bad &= along.reshape([-1 if a == axis else 1 for a in range(axes)])
    if row.culprits != "some":
        bad = np.full(row.shape, row.culprits == "all")
    shown = rng.uniform(*DIFFERING, row.shape) if row.p1 is None else np.full(row.shape, row.p1)
    if row.first_rate is not None:
        shown[int(bad.argmax())] = row.first_rate
    return bad, np.where(bad, shown, row.p0)
