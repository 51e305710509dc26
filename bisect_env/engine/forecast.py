"""Estimate the cost of a study by simulating it with truths drawn from the search's prior. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from bisect_env.engine.next_work import UNKNOWN_COST
from bisect_env.matrix.grid import Grid, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.simulate import TimeIsUpError, simulate
from bisect_env.search.space import drawn

_DRAWS = 1000
"""Maximum number of draws from the prior. If none of them has a good and a bad combination, there is no
forecast."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The estimated numbers of trials and environments of a study, computed by simulating many studies.

    Attributes:
        crash_rate: Failure rate of bad combinations in the simulations; good ones never fail there.
        studies: Number of simulated studies.
        trials: Mean number of trials.
        trials_range: 5th and 95th percentile of the number of trials.
        environments: Mean number of environments.
        environments_range: 5th and 95th percentile of the number of environments.
    """

    crash_rate: float
    studies: int
    trials: float
    trials_range: tuple[float, float]
    environments: float
    environments_range: tuple[float, float] = (0.0, 0.0)

    def gpu_hours(self, trial_seconds: float, gpus: float) -> tuple[float, float, float]:
        """Return how many GPU hours the trials take: the mean, the 5th and the 95th percentile.

        Args:
            trial_seconds: Duration of one trial in seconds.
            gpus: Number of GPUs that one trial occupies.
        """
        hours = trial_seconds * gpus / 3600.0
        low, high = self.trials_range
        return self.trials * hours, low * hours, high * hours


def forecast(
    grid: Grid,
    groups: Mapping[Index, Index],
    rng: np.random.Generator,
    *,
    crash_rate: float,
    studies: int = 20,
    limits: SearchLimits | None = None,
    workers: int = 1,
    going_on: Callable[[], bool] = lambda: True,
) -> Forecast | None:
    """Simulate many studies, and return how many trials and environments they need.

    Args:
        grid: The lattice of combinations.
        groups: As in `Search`.
        rng: Random generator for truths and results of trials.
        crash_rate: Failure rate of bad combinations.
        studies: Number of studies to simulate.
        limits: When a study stops.
        workers: Number of trials that run at the same time.
        going_on: Returns False when the time is over; the studies that were finished by then are used.

    Returns:
        None if no truth with good and bad combinations was drawn, or the time was over before one study was
        finished.
    """
    if math.prod(grid.shape) < 2:
        return None
    feasible = np.zeros(grid.shape, dtype=bool)
    for index in groups:
        feasible[index] = True
    played = []
    for _ in range(_DRAWS):
        if not going_on():
            break
        bad = drawn(grid, rng).bad_cells()
        if not (bad & feasible).any() or not (~bad & feasible).any():
            continue
        rates = np.where(bad, crash_rate, 0.0)
        try:
            played.append(
                simulate(
                    grid,
                    groups,
                    rates,
                    rng,
                    limits=limits,
                    workers=workers,
                    build_cost=UNKNOWN_COST,
                    going_on=going_on,
                )
            )
        except TimeIsUpError:
            break
        if len(played) == studies:
            break
    if not played:
        return None
    trials = np.array([p.trials for p in played], dtype=np.float64)
    low, high = np.quantile(trials, [0.05, 0.95])
    environments = np.array([p.environments for p in played], dtype=np.float64)
    fewest, most = np.quantile(environments, [0.05, 0.95])
    return Forecast(
        crash_rate=crash_rate,
        studies=len(played),
        trials=float(trials.mean()),
        trials_range=(float(low), float(high)),
        environments=float(environments.mean()),
        environments_range=(float(fewest), float(most)),
    )
