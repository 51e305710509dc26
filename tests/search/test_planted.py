"""Planted worlds: whole studies with a known truth, judged by the share of right answers.

Each test bounds the number of wrong answers so that a search that is wrong as often as it says fails in
less than one run in a thousand (binomial tail), while a search that is broken is wrong far more often.
The seeds are fixed, so that a failure repeats.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

from bisect_env.matrix.grid import Direction, Grid, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.searcher import Search
from bisect_env.search.simulate import Simulated, simulate
from bisect_env.search.space import HypothesisSpace
from bisect_env.search.verdict import Status
from tests.search.replay import Replay, play_case
from tests.search.worlds import (
    EITHER,
    FIXED,
    REGRESSION,
    UNORDERED,
    agrees,
    alone,
    configuration,
    grid,
    rates,
)

CONFIDENCE = 0.95


def wrong_at_most(studies: int, rate: float = 1 - CONFIDENCE) -> int:
    """Wrong answers that chance exceeds less than once in a thousand."""
    return int(binom.ppf(0.999, studies, rate))


def planted(
    seed: int, shape: Sequence[int], directions: Sequence[Direction], missing: float
) -> tuple[Grid, dict[Index, Index], NDArray[np.bool_]]:
    """A world with a random simple truth that shows somewhere among the combinations that can be run."""
    rng = np.random.default_rng(seed)
    lattice = grid(shape, directions)
    space = HypothesisSpace(shape, directions)
    while True:
        groups = alone(lattice, [i for i in lattice.indices() if rng.random() < missing])
        h = space.hypothesis(int(rng.choice(space.size, p=space.prior)))
        bad = h.bad_cells()
        seen = {bool(bad[i]) for i in groups}
        if seen == {True, False} and h.kind == "all" and len(h.culprits) <= 2:
            return lattice, groups, bad


WORLDS = [
    ((20,), [REGRESSION], 0.0),
    ((20,), [REGRESSION], 0.3),
    ((15,), [FIXED], 0.2),
    ((8,), [EITHER], 0.0),
    ((5, 6), [REGRESSION, FIXED], 0.2),
    ((4, 6), [UNORDERED, REGRESSION], 0.1),
    ((3, 4, 3), [REGRESSION, REGRESSION, REGRESSION], 0.2),
    ((3, 3, 2, 2), [REGRESSION, FIXED, REGRESSION, UNORDERED], 0.1),
]


@pytest.mark.parametrize(("shape", "directions", "missing"), WORLDS, ids=str)
@pytest.mark.statistical
@pytest.mark.parametrize(
    ("p0", "p1", "studies"), [(0.0, 1.0, 12), (0.0, 0.3, 8), (0.02, 0.4, 6), (0.05, 1.0, 8)]
)
def test_planted_truths_are_found(
    shape: tuple[int, ...],
    directions: list[Direction],
    missing: float,
    p0: float,
    p1: float,
    studies: int,
) -> None:
    found_planted(shape, directions, missing, p0, p1, studies)


@pytest.mark.parametrize(("shape", "directions", "missing"), WORLDS, ids=str)
@pytest.mark.parametrize(("p0", "p1"), [(0.0, 1.0), (0.0, 0.5)])
def test_a_planted_truth_is_found(
    shape: tuple[int, ...], directions: list[Direction], missing: float, p0: float, p1: float
) -> None:
    found_planted(shape, directions, missing, p0, p1, 1)


def found_planted(
    shape: tuple[int, ...],
    directions: list[Direction],
    missing: float,
    p0: float,
    p1: float,
    studies: int,
) -> None:
    wrong = []
    for seed in range(studies):
        lattice, groups, bad = planted(seed, shape, directions, missing)
        end = simulate(lattice, groups, rates(bad, p1, p0), np.random.default_rng(seed + 1000), workers=2)
        if not agrees(end, bad, groups):
            wrong.append(seed)
    assert len(wrong) <= wrong_at_most(studies), f"wrong for seeds {wrong}"


def ends_of_studies(
    p0: float, p1: NDArray[np.float64] | float, studies: int, **how: float
) -> list[tuple[Simulated, bool]]:
    lattice = grid((16,))
    out = []
    for seed in range(studies):
        rng = np.random.default_rng(seed)
        bad = configuration((16,), {0: int(rng.integers(1, 16))})
        end = simulate(lattice, alone(lattice), np.where(bad, p1, p0), rng, **how)  # type: ignore[arg-type]
        out.append((end, agrees(end, bad, alone(lattice))))
    return out


@pytest.mark.statistical
@pytest.mark.parametrize(("p0", "p1"), [(0.0, 0.02), (0.0, 0.05), (0.01, 0.1), (0.05, 0.3), (0.02, 1.0)])
def test_rare_and_noisy_failures_are_found(p0: float, p1: float) -> None:
    studies = 6
    ends = ends_of_studies(p0, p1, studies, workers=4)
    assert sum(not right for _, right in ends) <= wrong_at_most(studies)
    assert all(end.verdict.status is Status.CONFIRMED for end, right in ends if right)


@pytest.mark.statistical
def test_rates_that_differ_between_combinations() -> None:
    studies = 20
    p1 = np.random.default_rng(11).uniform(0.05, 0.5, 16)
    ends = ends_of_studies(0.0, p1, studies, workers=4)
    assert sum(not right for _, right in ends) <= wrong_at_most(studies)


@pytest.mark.statistical
def test_many_workers_waste_few_trials() -> None:
    alone_, together = (
        np.mean([end.trials for end, _ in ends_of_studies(0.0, 0.3, 20, workers=k)]) for k in (1, 8)
    )
    assert together < 1.5 * alone_


@pytest.mark.statistical
def test_dear_environments_are_spared() -> None:
    free, dear = (ends_of_studies(0.0, 0.3, 15, build_cost=b) for b in (0.0, 90.0))
    environments = [float(np.mean([end.environments for end, _ in ends])) for ends in (free, dear)]
    assert environments[1] < 0.8 * environments[0]
    assert sum(not right for _, right in dear) <= wrong_at_most(15)


def test_one_bad_release_among_many_is_found() -> None:
    lattice = grid((25,), EITHER)
    for position in (0, 7, 24):
        bad = np.arange(25) == position
        end = simulate(lattice, alone(lattice), rates(bad, 1.0), np.random.default_rng(position))
        assert end.verdict.status is Status.CONFIRMED
        assert end.verdict.best.first_bad == (position,)


@pytest.mark.statistical
def test_share_of_right_answers_is_at_least_what_was_said() -> None:
    """Truths drawn from the prior itself: among answers that hold q, at least q are right."""
    studies, said, right = 80, 0.0, 0
    directions = [REGRESSION, REGRESSION]
    space = HypothesisSpace((4, 5), directions)
    lattice = grid((4, 5), directions)
    search_rates = Search(lattice, alone(lattice)).known.counts.grid
    for seed in range(studies):
        rng = np.random.default_rng(seed)
        bad = space.hypothesis(int(rng.choice(space.size, p=space.prior))).bad_cells()
        flat = int(rng.choice(search_rates.joint.size, p=search_rates.joint.ravel()))
        j, k = np.unravel_index(flat, search_rates.joint.shape)
        p1 = rng.choice(search_rates.rates, size=(4, 5), p=search_rates.kernel[j])
        end = simulate(
            lattice,
            alone(lattice),
            np.where(bad, p1, search_rates.p0[k]),
            rng,
            limits=SearchLimits(confidence=0.9, max_trials=200),
            workers=4,
        )
        said += end.verdict.best.probability
        right += bool((end.verdict.best.hypothesis.bad_cells() == bad).all())
    # The sum of the stated probabilities is the expected number of right answers.
    assert right >= said - 3.1 * np.sqrt(studies * 0.25 * 0.4)


CASES = {
    "gevent_date": 20,
    "kombu_entry_points": 8,
    "lark_hashseed": 6,
    "loguru_fork": 5,
    "multidict_setdefault": 4,
    "ormsgpack_python": 4,
    "quickstart": 6,
    "regex_template": 2,
    "robust_laplacian_numpy": 4,
    "shapely_duckdb": 4,
}


@pytest.mark.statistical
@pytest.mark.parametrize("name", CASES)
def test_real_regressions_are_answered_right(name: str) -> None:
    case = Replay.load(name)
    played = [play_case(case, seed) for seed in range(CASES[name])]
    wrong = {seed: p.problems for seed, p in enumerate(played) if p.problems}
    assert len(wrong) <= (0 if len(played) < 5 else 1), wrong
