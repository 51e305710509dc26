"""A stated probability is the posterior given all trials, in every mode."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from bisect_env.matrix.grid import Direction, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.rates import RateGrid
from bisect_env.search.searcher import Search
from bisect_env.search.table_search import TableSearch
from bisect_env.search.verdict import Status
from tests.search.worlds import EITHER, REGRESSION, alone, grid


def played(size: int, direction: Direction, rate: dict[int, float], seed: int, *, quick: bool) -> Search:
    """Play a study in which releases fail at the given rates, and those that are not named never."""
    chance, lattice = random.Random(seed), grid((size,), direction)
    search = Search(lattice, alone(lattice), quick=quick)
    while not search.finished:
        (cell,) = search.ask(1)
        search.tell(cell, hit=chance.random() < rate.get(cell[0], 0.0))
    return search


def posterior(search: Search, size: int, first_bad: int) -> float:
    """Sum the prior times the likelihood of all first bad releases, pair of rates by pair of rates."""
    rates = RateGrid.default(search.limits.min_crash_rate)
    space = search.known.rows
    weights = np.zeros(size + 1)
    for first in range(size + 1):
        says = np.arange(size) >= first
        (row,) = np.flatnonzero((space.says == says).all(axis=1))
        for column, background in zip(*np.nonzero(rates.joint), strict=True):
            p0 = float(rates.p0[background])
            if first == size and p0 >= rates.rates.min():
                continue  # Where everything fails alike, all is bad.
            likely = float(space.prior[row] * rates.joint[column, background])
            for place in range(size):
                hits, trials = search.counts((place,))
                if place < first:
                    likely *= p0**hits * (1 - p0) ** (trials - hits)
                else:
                    of_each = rates.rates**hits * (1 - rates.rates) ** (trials - hits)
                    likely *= float(rates.kernel[column] @ of_each)
            weights[first] += likely
    return float(weights[first_bad] / weights.sum())


@pytest.mark.parametrize("first_bad", [2, 3, 4])
def test_the_stated_probability_is_the_posterior_under_the_published_prior(first_bad: int) -> None:
    search = played(5, REGRESSION, dict.fromkeys(range(first_bad, 5), 1.0), 0, quick=True)
    best = search.verdict.best
    assert best.first_bad == (first_bad,)
    # Histories that change more often are left out here, and have a hundredth of the prior.
    assert best.probability == pytest.approx(posterior(search, 5, first_bad), abs=0.01)
    # First steps that fail rarely are part of the prior before any was seen.
    assert best.probability < 0.96


def test_a_certain_window_is_not_called_proven_after_two_passes_beside_it() -> None:
    search = played(10, EITHER, dict.fromkeys((4, 5, 6), 1.0), 0, quick=True)
    assert (search.verdict.best.first_bad, search.verdict.status) == ((4,), Status.LIKELY)
    assert search.trials <= 15
    assert 0.5 < search.verdict.best.probability < 0.95


@pytest.mark.parametrize("width", [3, 99])
def test_few_sure_claims_are_wrong_where_a_first_release_fails_rarely(width: int) -> None:
    sure = wrong = 0
    for seed in range(15):
        first = 2 + seed % 4
        always = range(first + 1, min(first + width, 10))
        search = played(10, EITHER, {first: 0.1, **dict.fromkeys(always, 1.0)}, seed, quick=True)
        best = search.verdict.best
        sure += best.probability >= 0.99
        wrong += best.probability >= 0.99 and best.first_bad != (first,)
    assert wrong <= 0.01 * sure


def test_the_last_good_release_passes_twice_before_an_answer_stands_and_is_checked_first() -> None:
    lattice = grid((16,))
    search = Search(lattice, alone(lattice))
    while not search.answered:
        (cell,) = search.ask(1)
        search.tell(cell, hit=cell[0] >= 9)
    assert search.counts((8,))[1] >= 2
    assert search.trials <= 10
    assert search.ask(20) == [(8,)] * 20


def test_a_first_release_that_fails_in_a_tenth_of_runs_is_found_before_an_answer_is_confirmed() -> None:
    for seed in range(8):
        search = played(10, REGRESSION, {5: 0.1, **dict.fromkeys(range(6, 10), 1.0)}, seed, quick=False)
        assert search.verdict.status is Status.CONFIRMED
        assert search.verdict.best.first_bad == (5,), seed


def test_a_label_from_one_pass_is_no_surer_than_one_pass_makes_it() -> None:
    lattice = grid((6, 6))
    search = TableSearch(lattice, alone(lattice), SearchLimits())
    while not search.finished:
        for cell in search.ask(1):
            search.tell(cell, hit=cell[0] >= 3 and cell[1] >= 2)
    called = search.table.called
    passed: list[Index] = [cell for cell in called if search.counts(cell) == (0, 1)]
    assert passed
    assert all(0.8 < called[cell].probability < 0.99 for cell in passed)
    # What follows from labels is no surer than these are.
    least = min(one.probability for one in called.values() if one.tried)
    assert all(one.probability <= least for one in called.values() if not one.tried)
    assert math.isclose(search.verdict.best.probability, min(one.probability for one in called.values()))
