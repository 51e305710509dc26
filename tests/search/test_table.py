"""The whole table: every combination called what it is, in few environments, and never in more than all."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bisect_env.matrix.grid import Direction, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.goals import Goal, search_towards
from bisect_env.search.table import exception
from bisect_env.search.table_search import TableSearch
from bisect_env.search.verdict import Status
from tests.search.worlds import EITHER, REGRESSION, UNORDERED, alone, grid, play


class Mapped:
    """A table that was asked for, trial by trial."""

    def __init__(
        self,
        bad: NDArray[np.bool_],
        directions: Direction | list[Direction] = EITHER,
        *,
        rate: float = 1.0,
        background: float = 0.0,
        workers: int = 1,
        without: tuple[Index, ...] = (),
        unbuildable: tuple[Index, ...] = (),
        seed: int = 0,
        confidence: float = 0.95,
    ) -> None:
        lattice = grid(bad.shape, directions)
        self.search = TableSearch(lattice, alone(lattice, without), SearchLimits(confidence=confidence))
        self.bad = bad
        self.tried: set[Index] = set()
        tosses = np.random.default_rng(seed)
        while not self.search.finished:
            batch = self.search.ask(workers)
            assert batch, f"nothing asked, not finished: {self.search.verdict.reason}"
            assert len(batch) <= workers
            for cell in batch:
                if cell in unbuildable:
                    self.search.set_aside(cell)
                else:
                    self.tried.add(cell)
                    self.search.tell(cell, hit=bool(tosses.random() < (rate if bad[cell] else background)))

    @property
    def environments(self) -> int:
        return len(self.tried)

    @property
    def wrong(self) -> int:
        return sum(one.bad != self.bad[cell] for cell, one in self.search.table.called.items())


def frontiers() -> list[NDArray[np.bool_]]:
    """Staircases both ways, a corner, one line, and some at random; 12 × 12."""
    i, j = np.indices((12, 12))
    tables = [j > i + 4, i + j >= 12, (i >= 4) & (j >= 6), (i < 3) | (j < 8), i >= 5]
    for seed in range(15):
        steps = np.sort(np.random.default_rng(seed).integers(0, 13, 12))
        table = np.arange(12)[None, :] >= steps[:, None]
        tables.append(table[::-1] if seed % 2 else table)
    return [table for table in tables if table.any() and not table.all()]


@pytest.mark.parametrize("direction", [REGRESSION, EITHER])
def test_a_monotone_table_takes_a_quarter_of_its_environments(direction: Direction) -> None:
    for bad in frontiers():
        one = Mapped(bad, direction)
        assert one.search.verdict.status is not Status.NONE
        assert one.wrong == 0
        assert len(one.search.table.called) == 144
        assert one.environments <= 144 / 4, bad.astype(int)
        assert one.search.trials <= one.environments + 10


@pytest.mark.slow
@settings(max_examples=40)
@given(
    st.one_of(
        st.tuples(st.integers(2, 8), st.integers(2, 8)),
        st.tuples(st.integers(2, 4), st.integers(2, 4), st.integers(2, 4)),
        st.tuples(st.integers(2, 30)),
    ),
    st.sampled_from([0.03, 0.5, 0.8]),
    st.integers(0, 2**32 - 1),
    st.sampled_from([EITHER, REGRESSION, UNORDERED]),
    st.integers(1, 5),
)
@example((30,), 0.5, 1, EITHER, 1)  # one that alone speaks against a description, and then another
def test_no_table_takes_more_than_trying_everything(
    shape: tuple[int, ...], share: float, seed: int, direction: Direction, workers: int
) -> None:
    bad = np.random.default_rng(seed).random(shape) < share
    one = Mapped(bad, direction, workers=workers)
    assert len(one.search.table.called) == bad.size
    # Where nothing failed, corners, or all values of axes without order, pass until `clean_rate` is excluded.
    ends = sum(shape) if direction is UNORDERED else 2 ** len(shape)
    again = 10 if any(bad[cell] for cell in one.tried) else ends * 58
    assert one.search.trials <= one.environments + again + workers
    # What was tried is always called what it is.
    assert all(one.search.table.called[cell].bad == bad[cell] for cell in one.tried)


@pytest.mark.statistical
def test_tables_without_order_are_tried_until_they_are_known() -> None:
    """Of 40 random tables at most two pass for a frontier; what is said of combinations is mostly right."""
    wrong = [Mapped(np.random.default_rng(seed).random((12, 12)) < 0.5).wrong for seed in range(40)]
    assert sum(number > 0 for number in wrong) <= 2
    assert sum(wrong) <= 0.05 * 40 * 144


def test_bands_and_broken_releases_are_seen() -> None:
    i, j = np.indices((12, 12))
    broken = (j > i + 2) | (i == 6)
    for bad in (abs(i - j) >= 4, abs(i - j) < 3, broken):
        one = Mapped(bad)
        assert one.wrong == 0
        assert one.environments < 120


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "background"), [(0.5, 0.0), (0.2, 0.0), (0.3, 0.02)])
def test_flaky_failures_are_told_from_good_ones(rate: float, background: float) -> None:
    seeds = random.Random(7).sample(range(1000), 3)
    i, j = np.indices((8, 8))
    wrong = trials = 0
    for seed in seeds:
        one = Mapped(j > i + 2, rate=rate, background=background, seed=seed)
        wrong += one.wrong
        trials += one.search.trials
        assert one.environments < 40, seed
    assert wrong <= 0.05 * 64 * len(seeds), seeds


def test_an_axis_without_order_that_does_not_matter_costs_little() -> None:
    i, j = np.indices((6, 6))
    bad = np.repeat((i + j >= 6)[:, :, None], 3, axis=2)
    one = Mapped(bad, [REGRESSION, REGRESSION, UNORDERED])
    assert one.wrong == 0
    assert one.environments <= 24


def test_where_an_axis_without_order_matters_each_of_its_values_has_a_frontier() -> None:
    bad = np.stack([np.arange(12) >= first for first in (3, 8, 12)], axis=1)
    one = Mapped(bad, [REGRESSION, UNORDERED])
    assert one.wrong == 0
    assert one.environments < 36


def test_nothing_fails() -> None:
    one = Mapped(np.zeros((6, 6), dtype=bool))
    assert one.search.verdict.status is Status.CONFIRMED
    assert one.search.verdict.best.hypothesis.kind == "never"
    # The corners pass until a rate of 0.05 is excluded.
    assert one.search.counts((5, 5))[1] >= 58


def test_each_value_without_order_passes_often_before_nothing_is_said_to_fail() -> None:
    """Passes of one value say nothing about another: a rare failure of that one would not have shown."""
    lattice = grid((4,), [UNORDERED])
    search = TableSearch(lattice, alone(lattice))
    play(search, np.zeros(4), np.random.default_rng(0), at_most=5000)
    assert search.verdict.best.hypothesis.kind == "never"
    assert search.verdict.status is Status.CONFIRMED
    assert min(search.counts((value,))[1] for value in range(4)) >= 58


def test_rare_failures_of_values_without_order_are_found() -> None:
    lattice, rates = grid((4,), [UNORDERED]), np.array([0.0, 0.1, 0.0, 0.1])
    wrong = 0
    for seed in range(20):
        search = TableSearch(lattice, alone(lattice))
        play(search, rates, np.random.default_rng(seed), at_most=5000)
        confirmed = search.verdict.status is Status.CONFIRMED
        wrong += confirmed and any(one.bad != (rates[cell] > 0) for cell, one in search.table.called.items())
    assert wrong <= 4


def test_what_cannot_be_run_is_not_called_anything() -> None:
    i, j = np.indices((8, 8))
    one = Mapped(j > i + 2, without=((0, 0), (3, 3)), unbuildable=((7, 7), (4, 4)))
    assert one.wrong == 0
    assert not {(0, 0), (3, 3), (7, 7)} & set(one.search.table.called)


def test_many_workers_ask_for_different_combinations() -> None:
    i, j = np.indices((12, 12))
    one = Mapped(i + j >= 12, workers=8)
    assert one.wrong == 0
    assert one.environments <= 60


def test_the_order_of_trials_does_not_matter() -> None:
    i, j = np.indices((8, 8))
    one = Mapped(j > i + 2)
    told = [(cell, *one.search.counts(cell)) for cell in sorted(one.tried)]
    again = TableSearch(grid((8, 8), EITHER), alone(grid((8, 8), EITHER)))
    for cell, hits, trials in random.Random(3).sample(told, len(told)):
        for number in range(trials):
            again.tell(cell, hit=number < hits)
    assert again.finished
    assert again.table.called == one.search.table.called


def test_more_proofs_leave_less_doubt() -> None:
    doubts = [exception(0.5, proofs) for proofs in range(10)]
    assert doubts == sorted(doubts, reverse=True)
    assert exception(0.5, 0) == pytest.approx(0.25)
    assert (
        Mapped(np.arange(40)[:, None] >= np.array([9, 9]), confidence=0.99).environments
        > Mapped(np.arange(40)[:, None] >= np.array([9, 9]), confidence=0.9).environments
    )


@pytest.mark.slow
def test_a_table_of_ten_thousand_combinations_is_found_by_a_fortieth_of_them() -> None:
    lattice = grid((100, 100))
    search = TableSearch(lattice, alone(lattice))
    tried = 0
    while not search.finished:
        for cell in search.ask(1):
            search.tell(cell, hit=cell[0] > cell[1])
            tried += 1
    assert all(one.bad is (cell[0] > cell[1]) for cell, one in search.table.called.items())
    assert tried <= 10_000 / 40


def test_a_lone_failure_that_cannot_be_tried_again_does_not_keep_a_table_open() -> None:
    lattice = grid((6,))
    search = TableSearch(lattice, alone(lattice))
    for index in lattice.indices():
        search.tell(index, hit=index == (1,))
    search.set_aside((1,))
    while not search.finished:
        asked = search.ask(1)
        assert asked, "a search that asks for nothing is finished"
        search.tell(asked[0], hit=False)
    # One failure in one trial: nobody knows whether it always fails.
    assert search.verdict.status is Status.LIKELY


@pytest.mark.parametrize("goal", [Goal.TABLE, Goal.EVERY_CONFIGURATION, Goal.FIRST_BAD])
def test_where_nothing_can_be_tried_there_is_no_answer(goal: Goal) -> None:
    lattice = grid((3,))
    search = search_towards(goal, lattice, alone(lattice), SearchLimits())
    while not search.finished:
        for cell in search.ask(1):
            search.set_aside(cell)
    assert (search.verdict.status, search.verdict.reason) == (Status.NONE, "no combination can be tried")
