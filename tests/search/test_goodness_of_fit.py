"""What a verdict does not explain, and how it compares with other answers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bisect_env.matrix.grid import Direction
from bisect_env.search.belief import CellCounts
from bisect_env.search.goodness_of_fit import Unexplained, log10_bayes_factor, unexplained
from bisect_env.search.rates import RateGrid
from bisect_env.search.searcher import Search
from bisect_env.search.verdict import Status
from tests.search.worlds import EITHER, FIXED, REGRESSION, alone, configuration, grid, play, rates

RNG = np.random.default_rng


def unexplained_from_two_on(*told: tuple[int, int]) -> tuple[Unexplained, ...]:
    """What the answer "bad from the third version on" leaves unexplained."""
    hits, trials = np.array(told).T
    counts = CellCounts(RateGrid.default(), hits, trials)
    return unexplained(np.arange(len(told)) >= 2, counts, [(cell,) for cell in range(len(told))])


def test_counts_as_predicted_surprise_nobody() -> None:
    assert unexplained_from_two_on((0, 40), (0, 50), (5, 40), (4, 40), (6, 50)) == ()


def test_a_good_combination_that_fails_is_named() -> None:
    (found,) = unexplained_from_two_on((0, 400), (9, 40), (5, 40), (4, 40), (6, 50))
    assert (found.index, found.called_bad, found.hits, found.trials) == ((1,), False, 9, 40)
    assert found.chance < 1e-4


def test_a_bad_combination_that_hardly_fails_is_named() -> None:
    (found,) = unexplained_from_two_on(
        (0, 100), (0, 100), (50, 100), (0, 100), (55, 100), (48, 100), (51, 100), (50, 100)
    )
    assert (found.index, found.called_bad) == ((3,), True)


@pytest.mark.statistical
def test_few_right_verdicts_name_anything() -> None:
    named = 0
    for seed in range(40):
        lattice = grid((12,))
        search = Search(lattice, alone(lattice))
        play(search, rates(configuration((12,), {0: 5}), 0.3), RNG(seed))
        named += bool(search.verdict.unexplained)
    assert named <= 3


def test_bayes_factor_is_posterior_odds_over_prior_odds() -> None:
    prior, posterior = np.array([0.1, 0.2, 0.7]), np.array([0.9, 0.05, 0.05])
    these, those = np.array([True, False, False]), np.array([False, True, True])
    expected = math.log10((0.9 / 0.1) / (0.1 / 0.9))
    assert log10_bayes_factor(posterior, prior, these, those) == pytest.approx(expected)
    assert log10_bayes_factor(np.array([1.0, 0.0, 0.0]), prior, these, those) == 300
    assert log10_bayes_factor(posterior, np.array([0.0, 0.5, 0.5]), these, those) is None


def test_a_confirmed_verdict_beats_no_difference_and_the_runner_up() -> None:
    lattice = grid((16,))
    search = Search(lattice, alone(lattice))
    play(search, rates(configuration((16,), {0: 9}), 0.4), RNG(1))
    verdict = search.verdict
    assert verdict.status is Status.CONFIRMED
    assert verdict.against_nothing is not None
    assert verdict.against_nothing > 2
    assert verdict.against_next is not None
    # The two hold at least the stated confidence together, so that the runner-up has at most one twentieth.
    assert verdict.against_next > math.log10(19)


# -- histories that are not monotone ---------------------------------------------------------------------


def broken_fixed_and_broken_again(direction: Direction, rate: float, seed: int) -> tuple[Search, bool]:
    """Return a search of such a history that has ended, and whether its answer is true."""
    lattice = grid((16,), direction)
    search = Search(lattice, alone(lattice))
    bad = np.ones(16, dtype=bool)
    bad[4:11] = False
    play(search, rates(bad, rate), RNG(seed), at_most=1500)
    return search, search.verdict.best.hypothesis.bad_cells().tolist() == bad.tolist()


@pytest.mark.parametrize("direction", [REGRESSION, FIXED, EITHER])
def test_broken_fixed_and_broken_again_is_found_to_be_so(direction: Direction) -> None:
    search, is_true = broken_fixed_and_broken_again(direction, 1.0, 2)
    assert is_true, search.verdict.reason
    assert search.verdict.status is Status.CONFIRMED
    assert search.verdict.monotone is (direction is EITHER)


@pytest.mark.statistical
@pytest.mark.parametrize("direction", [REGRESSION, FIXED, EITHER])
def test_broken_fixed_and_broken_again_at_a_rate_of_one_half(direction: Direction) -> None:
    """A version that was tried a few times may have passed by luck: 5 % of studies may err."""
    ended = [broken_fixed_and_broken_again(direction, 0.5, seed) for seed in range(20)]
    assert all(search.verdict.status is Status.CONFIRMED for search, _ in ended)
    assert sum(not is_true for _, is_true in ended) <= 2


def test_a_window_on_an_axis_that_should_stay_broken_is_found_where_it_shows() -> None:
    """Fixed before the last version: the bad end passes, and what is tried between fails."""
    lattice = grid((16,), REGRESSION)
    search = Search(lattice, alone(lattice))
    bad = (np.arange(16) >= 5) & (np.arange(16) < 12)
    play(search, rates(bad, 1.0), RNG(3), at_most=1500)
    assert search.verdict.best.hypothesis.bad_cells().tolist() == bad.tolist(), search.verdict.reason


@pytest.mark.parametrize("direction", [REGRESSION, FIXED])
def test_of_two_values_the_other_order_than_stated_is_a_history(direction: Direction) -> None:
    lattice = grid((2,), direction)
    search = Search(lattice, alone(lattice))
    bad = np.array([direction is REGRESSION, direction is FIXED])
    play(search, rates(bad, 1.0), RNG(0))
    verdict = search.verdict
    assert verdict.best.hypothesis.bad_cells().tolist() == bad.tolist()
    assert (verdict.best.hypothesis.kind, verdict.monotone) == ("all", False)
    assert verdict.status is Status.CONFIRMED


@pytest.mark.statistical
def test_monotone_histories_stay_so() -> None:
    for seed in range(30):
        lattice = grid((16,))
        search = Search(lattice, alone(lattice))
        play(search, rates(configuration((16,), {0: 6}), 0.3, 0.02), RNG(seed))
        assert search.verdict.monotone, f"seed {seed}"
