"""Going on to further failing corners."""

from __future__ import annotations

import numpy as np
import pytest

from bisect_env.search.every import SearchAll
from bisect_env.search.searcher import SearchSettings
from bisect_env.search.verdict import Status
from tests.search.worlds import REGRESSION, UNORDERED, alone, corner, grid, play, rates

RNG = np.random.default_rng


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_two_corners_are_both_found(rate: float) -> None:
    lattice = grid((3, 8), [UNORDERED, REGRESSION])
    search = SearchAll(lattice, alone(lattice))
    first, second = np.zeros((3, 8), dtype=bool), np.zeros((3, 8), dtype=bool)
    first[0, 3:] = second[1, 6:] = True
    play(search, rates(first | second, rate), RNG(1), at_most=4000)
    assert search.verdict.status is Status.CONFIRMED
    found = [search.verdict, *search.others]
    said = np.any([v.best.hypothesis.bad_cells() for v in found], axis=0)
    assert said.tolist() == (first | second).tolist()
    assert len(found) >= 2
    assert search.no_other is not None
    assert search.no_other >= 0.95


def test_a_single_corner_ends_with_no_other() -> None:
    lattice = grid((12,))
    search = SearchAll(lattice, alone(lattice))
    play(search, rates(corner((12,), {0: 7}), 0.5), RNG(2))
    assert search.verdict.best.first_bad == (7,)
    assert search.others == ()
    assert search.no_other is not None
    assert search.no_other >= 0.95


def test_nothing_bad_ends_as_the_plain_search_does() -> None:
    lattice = grid((6,))
    search = SearchAll(lattice, alone(lattice))
    play(search, np.zeros(6), RNG(0))
    assert search.verdict.status is Status.NONE
    assert search.no_other is None


def test_the_budget_is_that_of_all_corners_together() -> None:
    lattice = grid((6, 6))
    search = SearchAll(lattice, alone(lattice), SearchSettings(max_trials=25))
    tried = play(search, rates(corner((6, 6), {0: 4}) | corner((6, 6), {1: 5}), 0.4), RNG(4))
    assert len(tried) == 25


def test_resuming_by_counts_alone_gives_the_same() -> None:
    lattice = grid((5, 5))
    truth = rates(corner((5, 5), {0: 3, 1: 1}) | corner((5, 5), {0: 1, 1: 4}), 1.0)
    search = SearchAll(lattice, alone(lattice))
    tried = play(search, truth, RNG(5))
    again = SearchAll(lattice, alone(lattice))
    for cell in tried:
        again.tell(cell, hit=bool(truth[cell]))
    assert again.finished
    assert [v.best.hypothesis for v in again.others] == [v.best.hypothesis for v in search.others]


def test_combinations_set_aside_stay_so_in_later_searches() -> None:
    lattice = grid((8,))
    search = SearchAll(lattice, alone(lattice))
    search.set_aside((2,))
    tried = play(search, rates(corner((8,), {0: 5}), 1.0), RNG(0))
    assert (2,) not in tried
