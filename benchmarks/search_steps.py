"""What a decision of the search costs: milliseconds of processor time of one step, on one core.

`python -m benchmarks.search_steps [--trials N]` plays studies and prints the median and the 90th percentile
of a step: `ask` for one worker or for eight, `tell`, and whether it is finished. Limits are those that the
search is held to, for one worker; eight may take twice as long.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass

# Before numpy is imported, as the commands do.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from bisect_env.matrix.grid import AxisKind, Direction, Grid, GridAxis
from bisect_env.search.coarsening import search_for

REGRESSION, EITHER = Direction.REGRESSION, Direction.EITHER


@dataclass(frozen=True)
class Case:
    """What is played.

    Attributes:
        shape: Of the lattice.
        direction: Of all axes.
        rate: Of bad combinations.
        limit: Milliseconds that the median step may take.
    """

    shape: tuple[int, ...]
    direction: Direction
    rate: float
    limit: float


CASES = (
    Case((32,), REGRESSION, 0.1, 5),
    Case((32,), EITHER, 0.1, 5),
    Case((128,), REGRESSION, 0.1, 5),
    Case((128,), EITHER, 0.1, 5),
    Case((128,), EITHER, 1.0, 5),
    Case((12, 12), REGRESSION, 0.3, 20),
    Case((12, 12), EITHER, 0.3, 20),
    Case((6, 6, 4, 4), REGRESSION, 0.3, 20),
    Case((6, 6, 4, 4), EITHER, 0.3, 20),
    Case((500, 500), REGRESSION, 0.3, 100),
)


def steps(case: Case, workers: int, trials: int, seed: int = 0) -> list[float]:
    """Milliseconds of each step of a study."""
    rng = np.random.default_rng(seed)
    axes = (
        GridAxis(f"a{i}", AxisKind.PACKAGE, tuple(map(str, range(n))), case.direction)
        for i, n in enumerate(case.shape)
    )
    grid = Grid(tuple(axes))
    first = [int(rng.integers(1, n)) for n in case.shape]
    search = search_for(grid, {index: index for index in grid.indices()})
    found: list[float] = []
    while not search.finished and search.trials < trials:
        started = time.process_time()
        batch = search.ask(workers)
        for cell in batch:
            bad = all(place >= begin for place, begin in zip(cell, first, strict=True))
            search.tell(cell, hit=bool(rng.random() < case.rate * bad))
        search.finished  # noqa: B018 - a part of the step
        found.append(1e3 * (time.process_time() - started))
    return found


def main(arguments: list[str] | None = None) -> None:
    """Play all cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=150)
    options = parser.parse_args(arguments)
    print("| lattice | direction | rate | limit | one worker: median, 90 % | eight: median, 90 % |")
    print("|---|---|---|---|---|---|")
    for case in CASES:
        shown = []
        for workers in (1, 8):
            took = steps(case, workers, options.trials)
            shown.append(f"{np.median(took):.1f}, {np.percentile(took, 90):.1f}")
        name = "x".join(map(str, case.shape))
        print(f"| {name} | {case.direction} | {case.rate:g} | {case.limit:g} ms | {shown[0]} | {shown[1]} |")


if __name__ == "__main__":
    main()
