"""What a decision of the search costs: milliseconds of processor time of one step, on one core.

`python -m benchmarks.search_steps [--trials N]` plays studies and prints the median and the 90th percentile
of a step: `ask`, `tell`, and whether it is finished; of `ask` alone for one worker and for eight in the same
states; and the share of time in which a worker is free while the search thinks, with two workers and trials
of 0.3 s. Limits are those that the search is held to.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from dataclasses import dataclass

# Before numpy is imported, as the commands do.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray

from bisect_env.engine.next_work import in_flight
from bisect_env.matrix.grid import AxisKind, Direction, Grid, GridAxis, Index
from bisect_env.search.searcher import StudySearch
from bisect_env.search.zoom import search_for

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


@dataclass(frozen=True)
class Study:
    """A study of a case that can be asked and told.

    Attributes:
        search: The search.
        rates: How often each combination fails.
        rng: Tosses the coins.
    """

    search: StudySearch
    rates: NDArray[np.float64]
    rng: np.random.Generator

    @classmethod
    def of(cls, case: Case, seed: int = 0) -> Study:
        """Planted at random."""
        rng = np.random.default_rng(seed)
        axes = (
            GridAxis(f"a{i}", AxisKind.PACKAGE, tuple(map(str, range(n))), case.direction)
            for i, n in enumerate(case.shape)
        )
        grid = Grid(tuple(axes))
        bad = np.ones(case.shape, dtype=bool)
        for axis, n in enumerate(case.shape):
            first = int(rng.integers(1, n))
            bad &= (np.arange(n) >= first).reshape([-1 if a == axis else 1 for a in range(len(case.shape))])
        search = search_for(grid, {index: index for index in grid.indices()})
        return cls(search, np.where(bad, case.rate, 0.0), rng)

    def tell(self, cell: Index) -> None:
        """Run a trial of a combination."""
        self.search.tell(cell, hit=bool(self.rng.random() < self.rates[cell]))


def steps(case: Case, trials: int, seed: int = 0) -> list[float]:
    """Milliseconds of each step of a study with one worker."""
    study = Study.of(case, seed)
    found: list[float] = []
    while not study.search.finished and study.search.trials < trials:
        started = time.process_time()
        for cell in study.search.ask(1):
            study.tell(cell)
        study.search.finished  # noqa: B018 - a part of the step
        found.append(1e3 * (time.process_time() - started))
    return found


def asking(case: Case, trials: int, seed: int = 0) -> dict[int, list[float]]:
    """Milliseconds of `ask` for one and for eight workers, in the same states of a study with either.

    Which of them comes first alternates, since the second may find what the first has worked out.
    """
    took: dict[int, list[float]] = {1: [], 8: []}
    for workers in took:
        study = Study.of(case, seed)
        turn = 0
        while not study.search.finished and study.search.trials < trials:
            turn += 1
            batch: list[Index] = []
            for count in (1, 8) if turn % 2 else (8, 1):
                started = time.process_time()
                asked = study.search.ask(count)
                took[count].append(1e3 * (time.process_time() - started))
                batch = asked if count == workers else batch
            for cell in batch:
                study.tell(cell)
    return took


TRIAL_SECONDS = 0.3
WORKERS = 2


def free_while_thinking(case: Case, trials: int, seed: int = 0) -> float:
    """Share of time in which some worker is free and the search thinks.

    Played: trials last `TRIAL_SECONDS`, the search thinks as long as it takes here, one thought after the
    other, and as many trials are submitted as the engine keeps submitted.
    """
    study = Study.of(case, seed)
    clock = free = 0.0
    ends: list[tuple[float, Index]] = []
    waiting: list[Index] = []
    while study.search.trials < trials:
        started = time.process_time()
        if study.search.finished:
            break
        pending = Counter([*(cell for _, cell in ends), *waiting])
        flaky = 0 < study.search.verdict.bad_rate < 0.999
        room = in_flight(WORKERS, TRIAL_SECONDS, flaky=flaky) - sum(pending.values())
        asked = study.search.ask(room, pending=pending) if room > 0 else []
        thought = time.process_time() - started
        # What ends while the search thinks is replaced by what waits; without that the worker is free.
        until = clock + thought
        idle_from = [clock] * (WORKERS - len(ends))
        for end, _ in sorted(ends):
            if end < until:
                if waiting:
                    ends.append((end + TRIAL_SECONDS, waiting.pop(0)))
                else:
                    idle_from.append(end)
        if idle_from:
            free += until - min(idle_from)
        clock = until
        waiting += asked
        running = sum(end > clock for end, _ in ends)
        while waiting and running < WORKERS:
            ends.append((clock + TRIAL_SECONDS, waiting.pop(0)))
            running += 1
        if not ends:
            break
        ends.sort()
        done, cell = ends.pop(0)
        clock = max(clock, done)
        if waiting and done >= until:
            ends.append((clock + TRIAL_SECONDS, waiting.pop(0)))
        study.tell(cell)
    return free / clock if clock else 0.0


def main(arguments: list[str] | None = None) -> None:
    """Play all cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=150)
    options = parser.parse_args(arguments)
    print(
        "| lattice | direction | rate | limit | a step: median, 90 % | ask(1) | ask(8) | "
        "two workers, trials of 0.3 s: free while it thinks |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for case in CASES:
        took, asked = steps(case, options.trials), asking(case, options.trials)
        name = "x".join(map(str, case.shape))
        print(
            f"| {name} | {case.direction} | {case.rate:g} | {case.limit:g} ms "
            f"| {np.median(took):.1f}, {np.percentile(took, 90):.1f} | {np.median(asked[1]):.2f} "
            f"| {np.median(asked[8]):.2f} | {free_while_thinking(case, options.trials):.2%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
