"""Estimates what a study will cost by playing it with truths drawn from the search's prior. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from bisect_env.matrix.grid import Grid, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.simulate import TimeIsUpError, simulate
from bisect_env.search.space import HypothesisSpace, drawn, is_large

_DRAWS = 1000
"""Draws from the prior before a grid counts as one on which nothing can be told apart."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The cost of a study over many played ones.

    Attributes:
        crash_rate: Target rate that bad combinations were given.
        background: Target rate of good ones.
        studies: How many were played.
        trials: Mean number of trials.
        trials_range: 5th and 95th centile of it.
        environments: Mean number of environments.
        environments_range: 5th and 95th centile of it.
    """

    crash_rate: float
    background: float
    studies: int
    trials: float
    trials_range: tuple[float, float]
    environments: float
    environments_range: tuple[float, float] = (0.0, 0.0)

    def gpu_hours(self, trial_seconds: float, gpus: float) -> tuple[float, float, float]:
        """Return the mean, 5th and 95th centile of the time that trials occupy GPUs.

        Args:
            trial_seconds: Of one trial.
            gpus: That one trial holds.
        """
        hours = trial_seconds * gpus / 3600.0
        low, high = self.trials_range
        return self.trials * hours, low * hours, high * hours


_BUILD_COST = 5.0
"""Price of an environment in trials."""


def forecast(
    grid: Grid,
    groups: Mapping[Index, Index],
    rng: np.random.Generator,
    *,
    crash_rate: float,
    background: float = 0.0,
    studies: int = 20,
    limits: SearchLimits | None = None,
    workers: int = 1,
    going_on: Callable[[], bool] = lambda: True,
) -> Forecast | None:
    """Simulate studies to their end.

    Args:
        grid: The lattice.
        groups: As in `Search`.
        rng: Where truths and trials come from.
        crash_rate: Target rate of bad combinations.
        background: Target rate of good ones.
        studies: How many to play.
        limits: When a study stops.
        workers: Trials at the same time.
        going_on: False once there is no more time: what was played by then is the forecast.

    Returns:
        None when no two combinations that can be run could ever differ, or time was up before one study was
        played.
    """
    directions = [axis.direction for axis in grid.axes]
    space = None if is_large(grid.shape, directions) else HypothesisSpace(grid.shape, directions)
    feasible = np.zeros(grid.shape, dtype=bool)
    for index in groups:
        feasible[index] = True
    played = []
    for _ in range(_DRAWS):
        if not going_on():
            break
        bad = (
            drawn(grid, rng)
            if space is None
            else space.hypothesis(int(rng.choice(space.size, p=space.prior)))
        ).bad_cells()
        if not (bad & feasible).any() or not (~bad & feasible).any():
            continue
        rates = np.where(bad, crash_rate, background)
        try:
            played.append(
                simulate(
                    grid,
                    groups,
                    rates,
                    rng,
                    limits=limits,
                    workers=workers,
                    build_cost=_BUILD_COST,
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
        background=background,
        studies=len(played),
        trials=float(trials.mean()),
        trials_range=(float(low), float(high)),
        environments=float(environments.mean()),
        environments_range=(float(fewest), float(most)),
    )
