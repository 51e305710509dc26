"""What an answer that stands still wants where only its own failures tell the first bad combination apart."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import pytest

from bisect_env.matrix.grid import Grid, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.checks import apart_checks, clean_checks
from bisect_env.search.searcher import Search
from bisect_env.search.simulate import simulate
from bisect_env.search.tallies import Tallies
from bisect_env.search.verdict import Answer
from tests.search.worlds import FIXED, UNORDERED, alone, grid, play, rates

GOOD, BAD = (0,), (1,)


def pair() -> Answer:
    """The answer that one of two combinations is bad and the other good."""
    lattice = grid((2,), UNORDERED)
    search = Search(lattice, alone(lattice), quick=True)
    while not search.answered:
        for cell in search.ask(1):
            search.tell(cell, hit=cell == BAD)
    (boundary,) = search.verdict.best.boundaries
    assert (boundary.bad, boundary.good) == (BAD, GOOD)
    return search.verdict.best


def told(seen: Mapping[Index, tuple[int, int]], lattice: Grid) -> Tallies:
    tallies = Tallies(alone(lattice))
    for cell, counts in seen.items():
        tallies.add(cell, *counts)
    return tallies


@pytest.mark.parametrize(
    ("good", "bad", "wanted"),
    [
        # As often as the good one: that is luck in half of all cases.
        ((93, 186), (3, 6), True),
        ((93, 186), (40, 40), False),
        # Five in a row at one half are one in 32, and any of ten combinations may have had that luck.
        ((93, 186), (5, 5), True),
        ((0, 60), (3, 6), False),
    ],
)
def test_a_first_bad_combination_is_told_from_a_last_good_one_that_failed_too(
    good: tuple[int, int], bad: tuple[int, int], wanted: bool
) -> None:
    seen = {GOOD: good, BAD: bad}
    checks = apart_checks(pair(), told(seen, grid((2,), UNORDERED)), SearchLimits(), 10)
    assert bool(checks) is wanted
    assert all(check.cell == BAD and check.wanted >= 1 for check in checks)


def test_telling_apart_what_fails_alike_comes_to_an_end() -> None:
    seen: dict[Index, tuple[int, int]] = {GOOD: (93, 186), BAD: (3, 6)}
    for _ in range(100):
        if not (checks := apart_checks(pair(), told(seen, grid((2,), UNORDERED)), SearchLimits(), 10)):
            break
        hits, trials = seen[BAD]
        more = checks[0].wanted
        seen[BAD] = (hits + more // 2, trials + more)
    assert not checks


def test_what_also_fails_where_it_should_be_good_is_compared_with_other_values_of_other_axes() -> None:
    """The last good combination failed: a background would show wherever else the answer says good."""
    lattice = grid((2, 9), FIXED)
    search = Search(lattice, alone(lattice), quick=True)
    while not search.answered:
        for cell in search.ask(1):
            search.tell(cell, hit=cell[0] == 0)
    best = search.verdict.best
    (boundary,) = best.boundaries
    seen: dict[Index, tuple[int, int]] = {boundary.good: (9, 70)}
    asked = clean_checks(best, told(seen, lattice), SearchLimits())
    (control,) = [check for check in asked if check.cell != boundary.good]
    assert control.cell[0] == 1
    assert abs(control.cell[1] - boundary.good[1]) >= 4
    assert control.wanted == 70
    seen = {boundary.good: (0, 70)}
    assert not clean_checks(best, told(seen, lattice), SearchLimits())


@pytest.mark.statistical
def test_one_of_two_causes_is_not_taken_for_a_background_of_the_other() -> None:
    """On the old Python everything fails, on the new one old releases do, less often."""
    lattice = grid((2, 21), FIXED)
    rates = np.zeros(lattice.shape)
    rates[0], rates[1, :12] = 0.4, 0.15
    wrong = 0
    for seed in range(12):
        end = simulate(
            lattice,
            alone(lattice),
            rates,
            np.random.default_rng(seed),
            workers=2,
            limits=SearchLimits(confidence=0.99),
        )
        wrong += bool((end.verdict.best.hypothesis.bad_cells() != (rates > 0)).any())
    # Without controls at other values of the other axis it was half of them.
    assert wrong <= 2


@pytest.mark.parametrize(
    ("values", "from_", "always_bad"), [(2, 9, False), (3, 15, True)], ids=["oldest alone", "oldest always"]
)
def test_an_axis_that_is_not_blamed_is_checked_at_its_ends(values: int, from_: int, always_bad: bool) -> None:
    """The oldest value of the first axis matters, against the direction: no plain hypothesis says so."""
    lattice = grid((values, 20))
    search = Search(lattice, alone(lattice))
    bad = np.zeros((values, 20), dtype=bool)
    bad[slice(None) if always_bad else 0, from_:] = True
    bad[0] |= always_bad
    play(search, rates(bad, 1.0), np.random.default_rng(0))
    assert search.verdict.best.hypothesis.bad_cells().tolist() == bad.tolist()
    assert search.verdict.best.culprits


@pytest.mark.parametrize("shape", [(3, 20), pytest.param((3, 2, 20), marks=pytest.mark.slow)])
@pytest.mark.parametrize("from_", [4, 15])
def test_the_middle_of_an_axis_that_is_not_blamed_is_checked(shape: tuple[int, ...], from_: int) -> None:
    """With the middle value failures begin elsewhere, although both ends of the axis are alike."""
    lattice = grid(shape)
    search = Search(lattice, alone(lattice))
    bad = np.zeros(shape, dtype=bool)
    bad[..., 10:] = True
    bad[1] = np.arange(20) >= from_
    play(search, rates(bad, 1.0), np.random.default_rng(0))
    assert search.verdict.best.hypothesis.bad_cells()[1].tolist() == bad[1].tolist()


def test_values_of_an_axis_that_is_not_blamed_are_named_if_they_were_not_tried() -> None:
    """Ten values of it are too many to try each."""
    lattice = grid((10, 20))
    search = Search(lattice, alone(lattice))
    bad = np.zeros(lattice.shape, dtype=bool)
    bad[:, 10:] = True
    play(search, rates(bad, 1.0), np.random.default_rng(0))
    (boundary,) = search.verdict.best.boundaries
    for side in (boundary.good, boundary.bad):
        line = {(row, side[1]) for row in range(10)}
        untried = {cell for cell in line if not search.counts(cell)[1]}
        beside = [one for one in search.verdict.untested if one.axis == 0 and one.first in line]
        named = {(row, side[1]) for one in beside for row in range(one.first[0], one.last[0] + 1)}
        assert named == untried != set()


def test_each_value_without_order_is_tried_before_one_is_blamed() -> None:
    """Two of six values fail: one was blamed alone, and the other one called good without a trial."""
    lattice = grid((6,), UNORDERED)
    for seed, (one, other) in enumerate(itertools.combinations(range(6), 2)):
        bad = np.isin(np.arange(6), (one, other))
        search = Search(lattice, alone(lattice))
        play(search, rates(bad, 1.0), np.random.default_rng(seed))
        # Two of six are no hypothesis: the answer is a pair of neighbours, and does not claim more.
        assert search.verdict.best.hypothesis.kind == "pair", (seed, search.verdict)


def test_a_value_without_order_that_was_not_tried_is_named() -> None:
    lattice = grid((6,), UNORDERED)
    search = Search(lattice, alone(lattice), quick=True)
    bad = np.arange(6) == 0
    play(search, rates(bad, 1.0), np.random.default_rng(0))
    untried = {(value,) for value in range(6) if not search.counts((value,))[1]}
    assert untried
    assert untried <= {one.first for one in search.verdict.untested}
