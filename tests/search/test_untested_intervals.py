"""Stretches of versions that an answer says more of than trials do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from bisect_env.matrix.grid import Grid, Index
from bisect_env.search.searcher import Search
from bisect_env.search.space import Hypothesis, HypothesisSpace
from bisect_env.search.tallies import Tallies
from bisect_env.search.untested_intervals import checks, passes, untested_intervals
from bisect_env.search.verdict import Answer, UntestedInterval, answer
from tests.search.worlds import REGRESSION, UNORDERED, alone, configuration, grid, play, rates


def answer_of(lattice: Grid, first: int) -> Answer:
    directions = [axis.direction for axis in lattice.axes]
    space = HypothesisSpace(lattice.shape, directions)
    bad = configuration(lattice.shape, {0: first})

    def says_so(hypothesis: Hypothesis) -> bool:
        return bool(np.array_equal(hypothesis.bad_cells(), bad))

    found = next(h for n in range(space.size) if says_so(h := space.hypothesis(n)))
    nothing = np.zeros(lattice.shape)
    return answer(found, 1.0, np.ones(lattice.shape, dtype=bool), nothing, nothing)


def told_of(lattice: Grid, told: Mapping[int, tuple[int, int]], without: Sequence[Index] = ()) -> Tallies:
    """Counts by position on the first axis; `without` cannot be run."""
    tallies = Tallies(alone(lattice, without))
    for place, (hits, trials) in told.items():
        tallies.add((place,), hits, trials)
    return tallies


def test_the_middle_of_a_long_stretch_is_checked() -> None:
    lattice = grid((32,))
    told = told_of(lattice, {0: (0, 1), 19: (0, 1), 20: (2, 2), 31: (1, 1)})
    assert checks(answer_of(lattice, 20), lattice, told, 0.99) == [
        ((10,), 1),
        ((26,), 1),
    ]


def test_shorter_and_shorter_until_a_quarter_is_left() -> None:
    lattice, told = grid((32,)), {0: (0, 3), 29: (0, 3), 30: (3, 3), 31: (1, 1)}
    asked = []
    while found := checks(answer_of(lattice, 30), lattice, told_of(lattice, told), 0.99):
        (cell,), trials = found[0]
        asked.append(cell)
        told[cell] = (0, trials)
    assert len(asked) <= 3
    assert max(np.diff(sorted(told))) - 1 <= 8


@pytest.mark.parametrize("broken", [range(1, 20), range(3, 28), range(28)])
def test_where_nothing_can_be_learnt_few_looks_are_wasted(broken: range) -> None:
    lattice, told, without = grid((64,)), {0: (0, 3), 59: (0, 3), 60: (3, 3), 63: (1, 1)}, list[Index]()
    asked: list[int] = []
    while found := checks(answer_of(lattice, 60), lattice, told_of(lattice, told, without), 0.99):
        (cell,), trials = found[0]
        asked.append(cell)
        if cell in broken:
            without.append((cell,))
        else:
            told[cell] = (0, trials)
    assert len(asked) == len(set(asked))
    assert len(asked) <= 6
    # What can be run is looked at all the same.
    assert max(np.diff([place for place in sorted(told) if place >= broken[-1]])) - 1 <= 16


def test_a_good_version_needs_passes_and_a_bad_one_a_failure() -> None:
    lattice = grid((16,))
    known = {0: (0, 9), 4: (0, 4), 7: (0, 9), 8: (3, 4), 12: (0, 1), 15: (2, 3)}
    best = answer_of(lattice, 8)
    assert passes(0.5) == 5
    assert checks(best, lattice, told_of(lattice, known), 0.5) == [((12,), 5), ((4,), 5)]
    known |= {4: (0, 5), 12: (1, 2)}
    assert checks(best, lattice, told_of(lattice, known), 0.5) == []


def test_what_few_trials_say_otherwise_is_tried_again() -> None:
    lattice = grid((8,))
    told = {0: (0, 9), 2: (1, 4), 3: (0, 9), 4: (5, 5), 6: (0, 2), 7: (1, 2)}
    best = answer_of(lattice, 4)
    assert checks(best, lattice, told_of(lattice, told), 0.5) == [((2,), 15), ((6,), 5)]
    told |= {2: (1, 15), 6: (0, 5)}
    assert checks(best, lattice, told_of(lattice, told), 0.5) == []


def test_of_rare_failures_only_ends_are_tried_and_short_axes_are_not_checked() -> None:
    lattice = grid((32,))
    assert passes(0.39) is None
    asked = checks(answer_of(lattice, 20), lattice, told_of(lattice, {}), 0.3)
    assert asked == [((0,), 6), ((31,), 6)]
    told = told_of(lattice, {0: (0, 6), 31: (1, 1)})
    assert checks(answer_of(lattice, 20), lattice, told, 0.3) == []
    short = grid((4,))
    assert checks(answer_of(short, 2), short, told_of(short, {}), 1.0) == []


def test_each_value_without_order_is_a_stretch_of_its_own() -> None:
    lattice = grid((9,), UNORDERED)
    space = HypothesisSpace((9,), [UNORDERED])
    one = next(h for n in range(space.size) if (h := space.hypothesis(n)).bad_cells().sum() == 1)
    best = answer(one, 1.0, np.ones(9, dtype=bool), np.zeros(9), np.zeros(9))
    bad = next(iter(one.bad_cells().nonzero()[0].tolist()))
    untried = [value for value in range(9) if value not in (2, bad)]
    told = told_of(lattice, {2: (0, 1), bad: (1, 1)})
    assert checks(best, lattice, told, 1.0) == [((value,), 1) for value in untried]
    found = untested_intervals(best, lattice, told, 1.0)
    assert [(one.first, one.last, one.trials) for one in found] == [((v,), (v,), 0) for v in untried]


def test_the_longest_stretch_that_could_hide_a_window_is_named() -> None:
    lattice = grid((16,))
    told = {0: (0, 5), 5: (0, 1), 9: (0, 9), 10: (4, 4), 15: (1, 1)}
    (found,) = untested_intervals(answer_of(lattice, 10), lattice, told_of(lattice, told), 0.5)
    assert found == UntestedInterval(0, (1,), (8,), False, length=8, trials=1, chance=0.5)


def test_a_failure_ends_a_stretch_of_the_bad_side_and_gaps_do_not_count() -> None:
    lattice = grid((16,))
    told = {0: (0, 9), 1: (0, 9), 2: (4, 4), 9: (1, 1), 15: (1, 1)}
    tallies = told_of(lattice, told, [(4,), (5,), (6,)])
    (found,) = untested_intervals(answer_of(lattice, 2), lattice, tallies, 0.9)
    assert (found.first, found.last, found.called_bad) == ((10,), (14,), True)
    assert (found.length, found.trials, found.chance) == (5, 0, 1.0)


def test_nothing_is_assumed_where_every_version_was_tried() -> None:
    lattice = grid((6,))
    told = {cell: (9, 9) if cell >= 3 else (0, 9) for cell in range(6)}
    assert untested_intervals(answer_of(lattice, 3), lattice, told_of(lattice, told), 0.9) == ()


@pytest.mark.parametrize("rate", [1.0, pytest.param(0.6, marks=pytest.mark.statistical)])
def test_a_confirmed_study_has_no_long_stretch_that_was_not_tried(rate: float) -> None:
    lattice = grid((32,), REGRESSION)
    for seed in range(5):
        search = Search(lattice, alone(lattice))
        play(search, rates(configuration((32,), {0: 3 + 6 * seed}), rate), np.random.default_rng(seed))
        (found,) = search.verdict.untested
        middle = [search.counts((i,))[1] for i in range(found.first[0], found.last[0] + 1)]
        assert found.trials == sum(middle)
        assert found.length <= 16, f"seed {seed}"
