"""Ways to find the first bad combination, played side by side: this search and its rivals.

Every method is given the same planted truth and tosses its own coins. What a method leaves out (controls, a
certificate) it also does not pay for; wrong answers tell what that costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from git_bayesect import Bisector
from numpy.typing import NDArray

from benchmarks.search_rows import Row, plant
from bisect_env.matrix.grid import AxisKind, Direction, Grid, GridAxis, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.simulate import simulate
from bisect_env.search.verdict import Status

CONFIDENCE = 0.95
RUNS = 30
"""Runs of one version after which a method that knows no rates believes it good."""
QUICK = "bisect-env --quick"
GIVE_UP = 2000
"""Trials after which git_bayesect, which never ends where nothing changes, is stopped."""


@dataclass(frozen=True)
class Played:
    """What one study cost and whether its answer was wrong."""

    trials: int
    environments: int
    rounds: int
    wrong: bool
    not_confirmed: bool


@dataclass
class Coins:
    """Trials of a planted truth, counted.

    Attributes:
        rates: Of each combination.
        rng: Tosses.
        workers: Trials of one round.
        tried: Combinations with trials.
    """

    rates: NDArray[np.float64]
    rng: np.random.Generator
    workers: int = 1
    trials: int = 0
    rounds: int = 0
    tried: set[Index] = field(default_factory=set)

    def toss(self, index: Index, count: int = 1) -> int:
        """Run a combination `count` times in one round; how many trials showed the target."""
        self.tried.add(index)
        self.trials += count
        self.rounds += 1
        return int(self.rng.binomial(count, self.rates[index]))

    def any_in(self, index: Index, runs: int) -> bool:
        """Run a combination up to `runs` times, as many at once as there are workers, until it fails."""
        left = runs
        while left > 0:
            now = min(left, self.workers)
            if self.toss(index, now):
                return True
            left -= now
        return False

    def played(self, *, wrong: bool, not_confirmed: bool = False) -> Played:
        """What the study came to."""
        return Played(self.trials, len(self.tried), self.rounds, wrong, not_confirmed)


def grid_of(shape: tuple[int, ...]) -> Grid:
    """A lattice of package axes, each a regression."""
    return Grid(
        tuple(
            GridAxis(f"a{i}", AxisKind.PACKAGE, tuple(map(str, range(n))), Direction.REGRESSION)
            for i, n in enumerate(shape)
        )
    )


def this_search(row: Row, seed: int, *, quick: bool = False) -> Played:
    """The search of bisect-env with nothing told but the lattice, checks of the standing answer included.

    Args:
        row: What is planted.
        seed: Of the truth and of the coins.
        quick: Whether to leave the checks out, which the rivals have none of.
    """
    rng = np.random.default_rng(seed)
    bad, rates = plant(row, rng)
    grid = grid_of(row.shape)
    end = simulate(
        grid,
        {i: i for i in grid.indices()},
        rates,
        rng,
        limits=SearchLimits(confidence=CONFIDENCE),
        quick=quick,
        workers=row.workers,
        build_cost=row.build_cost,
    )
    wrong = bool((end.verdict.best.hypothesis.bad_cells() != bad).any())
    return Played(end.trials, end.environments, end.rounds, wrong, end.verdict.status is not Status.CONFIRMED)


def git_bayesect(row: Row, seed: int) -> Played:
    """git_bayesect's own `Bisector`, as its command line drives it: until one commit holds 0.95.

    Its commits are numbered from the newest; a trial that fails is an observation. It asks for one trial at a
    time, whatever the workers, and knows no price of environments.
    """
    rng = np.random.default_rng(seed)
    bad, rates = plant(row, rng)
    (size,) = row.shape
    coins = Coins(rates, rng)
    bisector = Bisector([1] * size)
    while bisector.distribution.max() < CONFIDENCE and coins.trials < GIVE_UP:
        commit = bisector.select()
        bisector.record(commit, bool(coins.toss((size - 1 - commit,))))
    first_bad = size - 1 - int(bisector.distribution.argmax())
    ended = bool(bisector.distribution.max() >= CONFIDENCE)
    # Stopped from outside it has claimed nothing; only an answer can be wrong where nothing changes.
    wrong = bool((np.arange(size) >= first_bad).tolist() != bad.tolist())
    return coins.played(wrong=wrong and (ended or row.culprits == "some"), not_confirmed=not ended)


def _halve(size: int, is_bad: Callable[[int], bool], lowest: int) -> int:
    """Plain bisection for the first bad of `size` values, one of `lowest` to the last."""
    low, high = lowest, size - 1
    while low < high:
        middle = (low + high) // 2
        if is_bad(middle):
            high = middle
        else:
            low = middle + 1
    return low


def sprt_a_step(row: Row, seed: int) -> Played:
    """Bisection with Wald's sequential test at each step, the rates KNOWN to it.

    The stated error is shared out evenly among the steps. Source: A. Wald, *Sequential tests of statistical
    hypotheses*, Annals of Mathematical Statistics 16 (1945), 117-186.
    """
    rng = np.random.default_rng(seed)
    bad, rates = plant(row, rng)
    coins = Coins(rates, rng)
    p0, p1 = row.p0, row.assumed_rate
    error = (1 - CONFIDENCE) / math.ceil(math.log2(row.shape[0]))
    bound = math.log((1 - error) / error)
    hit = math.log(p1 / p0) if p0 else math.inf
    miss = math.log((1 - p1) / (1 - p0)) if p1 < 1 else -math.inf

    def is_bad(value: int) -> bool:
        weight = 0.0
        while abs(weight) < bound:
            weight += hit if coins.toss((value,)) else miss
        return weight > 0

    return _line_answer(coins, bad, _halve(row.shape[0], is_bad, 1))


def thirty_runs_a_step(row: Row, seed: int) -> Played:
    """Bisection that runs each version 30 times and calls it bad on any failure."""
    rng = np.random.default_rng(seed)
    bad, rates = plant(row, rng)
    coins = Coins(rates, rng, row.workers)
    return _line_answer(coins, bad, _halve(row.shape[0], lambda v: coins.any_in((v,), RUNS), 1))


def _line_answer(coins: Coins, bad: NDArray[np.bool_], first_bad: int) -> Played:
    return coins.played(wrong=(np.arange(len(bad)) >= first_bad).tolist() != bad.tolist())


def coordinate_descent(row: Row, seed: int) -> Played:
    """One axis after the other, the others at their newest: 30 runs a step, bad on any failure."""
    rng = np.random.default_rng(seed)
    bad, rates = plant(row, rng)
    coins = Coins(rates, rng, row.workers)
    corner = tuple(n - 1 for n in row.shape)
    found = np.ones(row.shape, dtype=bool)
    for axis, size in enumerate(row.shape):

        def is_bad(value: int, axis: int = axis) -> bool:
            return coins.any_in((*corner[:axis], value, *corner[axis + 1 :]), RUNS)

        along = np.arange(size) >= _halve(size, is_bad, 0)
        found &= along.reshape([-1 if a == axis else 1 for a in range(len(row.shape))])
    return coins.played(wrong=bool((found != bad).any()))


METHODS: dict[str, Callable[[Row, int], Played]] = {
    "bisect-env": this_search,
    QUICK: partial(this_search, quick=True),
    "git_bayesect": git_bayesect,
    "SPRT, rates known": sprt_a_step,
    "30 runs a step": thirty_runs_a_step,
    "coordinate descent": coordinate_descent,
}


def methods_for(row: Row) -> list[str]:
    """Methods that can play a row: those for one axis on a line, coordinate descent on several."""
    if len(row.shape) > 1:
        return ["bisect-env", QUICK, "coordinate descent"]
    if row.culprits != "some":
        # The others cannot say that nothing changes.
        return ["bisect-env", QUICK, "git_bayesect"]
    return ["bisect-env", QUICK, "git_bayesect", "SPRT, rates known", "30 runs a step"]
