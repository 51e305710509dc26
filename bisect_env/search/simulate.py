"""Simulate whole studies with a known truth, to measure their cost and how often their verdict is wrong.

The search is the real one; only the trials are random numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from bisect_env.matrix.grid import Grid, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.families import FloatArray
from bisect_env.search.searcher import Search
from bisect_env.search.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Simulated:
    """The result of one simulated study: its verdict and its cost.

    Attributes:
        verdict: The final verdict.
        trials: Number of trials that ran, including controls and checks.
        environments: Number of distinct environments in which trials ran.
    """

    verdict: Verdict
    trials: int
    environments: int


class TimeIsUpError(Exception):
    """Raised if a simulated study is stopped because `going_on` returned False."""


def simulate(
    grid: Grid,
    groups: Mapping[Index, Index],
    rates: FloatArray,
    rng: np.random.Generator,
    *,
    limits: SearchLimits | None = None,
    quick: bool = False,
    workers: int = 1,
    build_cost: float = 0.0,
    going_on: Callable[[], bool] = lambda: True,
) -> Simulated:
    """Simulate one study to its end, with random results of trials at known failure rates.

    Args:
        grid: The lattice of combinations.
        groups: As in `Search`.
        rates: True failure rate of each cell, shape of the grid.
        rng: Random generator for the results of trials.
        limits: When to stop.
        quick: Whether to end the study as soon as there is an answer, without checks.
        workers: Number of trials that run at the same time.
        build_cost: Cost of building an environment, expressed as a number of trials.
        going_on: Called before each round; the simulation stops if it returns False.

    Returns:
        The verdict and the cost of the study.

    Raises:
        TimeIsUpError: `going_on` returned False before the study ended.
    """
    search = Search(grid, groups, limits, quick=quick)
    costs = dict.fromkeys(groups.values(), build_cost) if build_cost else {}
    built: set[Index] = set()
    trials = 0
    while not search.finished:
        if not going_on():
            raise TimeIsUpError
        batch = search.ask(workers, build_cost=costs)
        if not batch:
            break  # no trial could change the answer, as in a study that ends so
        for index, count in Counter(batch).items():
            built.add(index)
            costs.pop(index, None)
            trials += count
            for _ in range(count):
                search.tell(index, hit=bool(rng.random() < rates[index]))
    return Simulated(search.verdict, trials, len(built))
