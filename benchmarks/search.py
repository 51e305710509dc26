"""What the search costs and how often it is wrong, on planted truths; controls and certificate count.

`python -m benchmarks.search [--scale S] [--seed N] [--processes P] [ROW ...]` prints one line a row, each
figure with its standard error; without names all rows. `--list` names them.
"""

# ruff: noqa: E402

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import Pool

# One study is small: threads inside a matrix product only get in each other's way.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

import numpy as np
from numpy.typing import NDArray

from bisect_env.matrix.grid import AxisKind, Direction, Grid, GridAxis
from bisect_env.search.searcher import SearchSettings
from bisect_env.search.simulate import simulate
from bisect_env.search.verdict import Status


@dataclass(frozen=True)
class Row:
    """One kind of planted truth.

    Attributes:
        shape: Of the lattice; every axis is a regression.
        p0: Background rate.
        p1: Rate of bad combinations; None = each its own, uniform between .03 and .3.
        workers: Trials at a time.
        build_cost: Price of an environment in trials.
        repetitions: Studies at scale 1.
    """

    shape: tuple[int, ...]
    p0: float
    p1: float | None
    workers: int = 1
    build_cost: float = 0.0
    repetitions: int = 400

    @property
    def name(self) -> str:
        """Shape, rates, and what else is special: `32:0,0.1:K8`."""
        rates = f"{self.p0:g},{self.p1:g}" if self.p1 is not None else f"{self.p0:g},differing"
        extra = (f":K{self.workers}" if self.workers > 1 else "") + (
            f":B{self.build_cost:g}" if self.build_cost else ""
        )
        return "x".join(map(str, self.shape)) + f":{rates}{extra}"


def rows() -> Iterator[Row]:
    """All rows, those with a mark first."""
    line, cube = (32,), (6, 6, 4, 4)
    for p0, p1 in ((0.0, 0.1), (0.01, 0.1), (0.02, 0.3), (0.05, 0.15), (0.0, 1.0), (0.0, None)):
        yield Row(line, p0, p1)
    yield Row(line, 0.0, 0.1, workers=8)
    yield Row(line, 0.0, 0.1, build_cost=90)
    yield Row((128,), 0.0, 0.1, build_cost=20, repetitions=200)
    yield Row(cube, 0.0, 0.1, build_cost=20, repetitions=100)
    yield Row(cube, 0.01, 0.1, build_cost=20, repetitions=100)
    for n in (8, 128):
        for p0, p1 in ((0.0, 0.1), (0.01, 0.1), (0.02, 0.3), (0.05, 0.15), (0.0, 1.0), (0.0, None)):
            yield Row((n,), p0, p1, repetitions=200)
    for p0, p1 in ((0.0, 0.03), (0.0, 0.5), (0.01, None)):
        yield Row(line, p0, p1)
    for p0, p1 in ((0.0, 0.1), (0.0, 1.0), (0.0, None)):
        yield Row((8, 8), p0, p1, repetitions=200)
    yield Row(cube, 0.0, 0.1, repetitions=100)
    yield Row(cube, 0.0, 1.0, repetitions=100)
    yield Row(line, 0.0, 0.1, workers=64)


def plant(row: Row, rng: np.random.Generator) -> NDArray[np.bool_]:
    """One culprit axis, or with more axes one or two, each from a random value on."""
    axes = len(row.shape)
    culprits = rng.choice(axes, int(rng.integers(1, min(axes, 2) + 1)), replace=False)
    bad = np.ones(row.shape, dtype=bool)
    for axis in culprits:
        along = np.arange(row.shape[axis]) >= rng.integers(1, row.shape[axis])
        bad &= along.reshape([-1 if a == axis else 1 for a in range(axes)])
    return bad


def study(work: tuple[Row, int, float]) -> tuple[float, ...]:
    """Trials, environments, rounds, wrong, not confirmed, seconds of one study."""
    row, seed, confidence = work
    rng = np.random.default_rng(seed)
    bad = plant(row, rng)
    shown = rng.uniform(0.03, 0.3, row.shape) if row.p1 is None else np.full(row.shape, row.p1)
    axes = tuple(
        GridAxis(f"a{i}", AxisKind.PACKAGE, tuple(map(str, range(n))), Direction.REGRESSION)
        for i, n in enumerate(row.shape)
    )
    grid = Grid(axes)
    started = time.perf_counter()
    end = simulate(
        grid,
        {i: i for i in grid.indices()},
        np.where(bad, shown, row.p0),
        rng,
        settings=SearchSettings(confidence=confidence),
        workers=row.workers,
        build_cost=row.build_cost,
    )
    right = bool((end.verdict.best.hypothesis.bad_cells() == bad).all())
    unconfirmed = end.verdict.status is not Status.CONFIRMED
    return end.trials, end.environments, end.rounds, not right, unconfirmed, time.perf_counter() - started


def line(row: Row, results: NDArray[np.float64]) -> str:
    """The results of one row, each with its standard error."""
    count = len(results)
    mean, error = results.mean(axis=0), results.std(axis=0) / np.sqrt(count)
    total = results[:, 0] + row.build_cost * results[:, 1]
    return (
        f"{row.name:26} trials {mean[0]:6.1f} ± {error[0]:4.1f}"
        f"  environments {mean[1]:5.1f} ± {error[1]:3.1f}"
        f"  rounds {mean[2]:5.0f}  total {total.mean():6.0f} ± {total.std() / np.sqrt(count):3.0f}"
        f"  wrong {100 * mean[3]:4.1f} ± {100 * error[3]:3.1f} %  not confirmed {100 * mean[4]:4.1f} %"
        f"  n {count}  {1e3 * results[:, 5].sum() / results[:, 0].sum():.1f} ms a trial"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the rows that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help="a row's name, or how it begins")
    parser.add_argument("--scale", type=float, default=1.0, help="repetitions, times this")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--confidence", type=float, default=0.95)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--list", action="store_true", help="name the rows")
    options = parser.parse_args(arguments)
    wanted = [r for r in rows() if not options.rows or r.name.startswith(tuple(options.rows))]
    if options.list:
        print(*(row.name for row in wanted), sep="\n")
        return
    print(f"seed {options.seed}, confidence {options.confidence:g}", flush=True)
    with Pool(options.processes) as pool:
        for row in wanted:
            count = max(2, round(row.repetitions * options.scale))
            work = [(row, options.seed * 1_000_000 + i, options.confidence) for i in range(count)]
            print(line(row, np.array(pool.map(study, work, chunksize=4), dtype=float)), flush=True)


if __name__ == "__main__":
    main()
