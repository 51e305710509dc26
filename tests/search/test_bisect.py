"""Certain failures: few trials, cuts at many places at once, frontiers, and an answer for any truth."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections import Counter
from collections.abc import Collection

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import binom

from bisect_env.matrix.grid import Direction, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.choice import BUILT_AT_ONCE
from bisect_env.search.searcher import Search, StudySearch
from bisect_env.search.table_search import TableSearch
from bisect_env.search.verdict import Status, Verdict
from tests.search.worlds import EITHER, FIXED, REGRESSION, UNORDERED, alone, configuration, grid

RNG = np.random.default_rng
ANY = [REGRESSION, REGRESSION, FIXED, EITHER, EITHER, UNORDERED]


class Played:
    """A study of a certain failure: what it asked for, until its answer stood and until it ended."""

    def __init__(
        self,
        bad: NDArray[np.bool_],
        directions: Direction | list[Direction] = REGRESSION,
        *,
        workers: int = 1,
        without: tuple[Index, ...] = (),
        unbuildable: tuple[Index, ...] = (),
        quick: bool = False,
        confidence: float = 0.95,
        price: float = 0.0,
    ) -> None:
        lattice = grid(bad.shape, directions)
        self.search = Search(
            lattice, alone(lattice, without), SearchLimits(confidence=confidence), quick=quick
        )
        self.tried: list[Index] = []
        self.rounds = self.stood_after = 0
        self.time = 0.0
        """In trials: all of a round run at once, once its new environments were made, a few at a time."""
        limit = 3 * bad.size + 400
        while not self.search.finished:
            new = set(alone(lattice, without).values()) - {*self.tried}
            batch = self.search.ask(workers, build_cost=dict.fromkeys(new, price) if price else None)
            self.time += 1 + math.ceil(len(new & {*batch}) / BUILT_AT_ONCE) * price
            assert batch, f"nothing asked, not finished: {self.search.verdict.reason}"
            assert len(batch) <= workers
            self.rounds += 1
            for cell in batch:
                if cell in unbuildable:
                    self.search.set_aside(cell)
                else:
                    self.tried.append(cell)
                    self.search.tell(cell, hit=bool(bad[cell]))
            if not self.stood_after and self.search.answered:
                self.stood_after = len(self.tried)
            assert len(self.tried) <= limit, self.search.verdict.reason

    @property
    def verdict(self) -> Verdict:
        return self.search.verdict

    @property
    def environments(self) -> int:
        return len(set(self.tried))

    @property
    def environments_before(self) -> int:
        return len(set(self.tried[: self.stood_after]))


def is_true(verdict: Verdict, bad: NDArray[np.bool_]) -> bool:
    """Whether each pair that a verdict names is a bad and a good combination."""
    best = verdict.best
    pairs = [(b.bad, b.good) for b in best.boundaries]
    if best.first_bad is not None and best.last_good is not None:
        pairs.append((best.first_bad, best.last_good))
    return all(bad[one] and not bad[other] for one, other in pairs)


# -- one axis ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_nine_trials_at_32_versions_on_average() -> None:
    played = [Played(configuration((32,), {0: first}), quick=True) for first in range(1, 32)]
    checked = [Played(configuration((32,), {0: first})) for first in range(5, 32, 5)]
    for one, first in zip([*played, *checked], [*range(1, 32), *range(5, 32, 5)], strict=True):
        assert one.verdict.best.first_bad == (first,)
    assert {one.verdict.status for one in played} == {Status.LIKELY}
    assert {one.verdict.status for one in checked} == {Status.CONFIRMED}
    assert np.mean([one.stood_after for one in played]) <= 9
    assert max(one.stood_after for one in played) <= 11
    # What follows checks, in environments that exist, but for both ends and the middle of a long interval.
    assert max(one.environments - one.environments_before for one in checked) <= 3
    assert {one.search.counts(one.verdict.best.last_good or ())[1] for one in checked} == {62}


@pytest.mark.parametrize(("rates", "most"), [((0.0, 0.5), 0.10), ((0.0, 0.8), 0.10), ((0.02, 0.3), 0.05)])
def test_a_flaky_failure_seldom_looks_like_a_certain_one(rates: tuple[float, float], most: float) -> None:
    """How likely it is, over all first bad versions, that trials end as another certain failure's would."""
    background, rate = rates
    misread = 0.0
    for said in range(1, 32):
        seen = Counter(Played(configuration((32,), {0: said}), quick=True).tried)
        for true in {*range(1, 32)} - {said}:
            fails = {cell: rate if cell[0] >= true else background for cell in seen}
            misread += math.prod(
                (fails[cell] if cell[0] >= said else 1 - fails[cell]) ** n for cell, n in seen.items()
            )
    assert misread / 31 <= most


@pytest.mark.parametrize("workers", [1, 2, 8])
@pytest.mark.parametrize(("good", "bad"), [(None, None), ((0,), None), ((0,), (31,))])
def test_neither_workers_nor_stated_ends_make_such_an_answer_likelier(
    workers: int, good: Index | None, bad: Index | None
) -> None:
    lattice = grid((32,), good=good, bad=bad)
    misread = Counter[float]()
    for said in range(1, 32):
        search = Search(lattice, alone(lattice), quick=True)
        while not search.finished:
            for cell in search.ask(workers):
                search.tell(cell, hit=cell[0] >= said)
        seen = {cell: search.counts(cell)[1] for cell in lattice.indices()}
        for true, (background, rate) in itertools.product(range(1, 32), [(0, 0.5), (0, 0.8), (0.02, 0.3)]):
            fails = [rate if place >= true else background for place in range(32)]
            likely = math.prod(
                (fails[cell[0]] if cell[0] >= said else 1 - fails[cell[0]]) ** n for cell, n in seen.items()
            )
            misread[rate] += likely / 31 * (true != said)
    assert misread[0.5] <= 0.10
    assert misread[0.8] <= 0.10
    assert misread[0.3] <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("direction", [REGRESSION, FIXED])
@pytest.mark.parametrize("stated", [False, True])
def test_without_checks_a_change_takes_six_trials_more_than_halving_at_most(
    direction: Direction, stated: bool
) -> None:
    for size in (3, 8, 21, 33, 57, 64, 100):
        for first in {*range(1, size, max(1, size // 12)), size - 1}:
            ends = (0, size - 1) if direction is REGRESSION else (size - 1, 0)
            lattice = grid((size,), direction, good=(ends[0],) if stated else None)
            search = Search(lattice, alone(lattice), quick=True)
            while not search.finished:
                (cell,) = search.ask(1)
                search.tell(cell, hit=(cell[0] >= first) is (direction is REGRESSION))
            assert search.trials <= math.ceil(math.log2(size)) + 6
            last = first if direction is REGRESSION else first - 1
            assert search.verdict.best.first_bad == (last,)


@pytest.mark.parametrize(("size", "workers"), [(32, 2), (71, 16), (71, 64), (300, 16)])
def test_many_workers_cut_an_interval_at_many_places(size: int, workers: int) -> None:
    """As many rounds as the logarithm says, one for the ends and three to look again, and few trials."""
    for first in range(1, size, size // 5):
        one = Played(configuration((size,), {0: first}), workers=workers, quick=True)
        assert one.verdict.best.first_bad == (first,)
        rounds = math.ceil(math.log(size) / math.log(workers + 1))
        assert one.rounds <= rounds + 3
        places = math.ceil(size ** (1 / rounds))
        assert len(one.tried) <= 6 + rounds * places


@pytest.mark.parametrize("price", [0.05, 0.5, 2.0, 50.0])
def test_more_workers_never_take_longer_whatever_an_environment_costs(price: float) -> None:
    times = [
        np.mean(
            [
                Played(configuration((71,), {0: first}), workers=workers, quick=True, price=price).time
                for first in range(1, 71, 9)
            ]
        )
        for workers in (1, 2, 6, 16, 64)
    ]
    # Which places are tried at the same time differs: by a tenth at most.
    assert all(more <= 1.1 * fewer for fewer, more in itertools.pairwise(times))
    assert times[-1] < 0.5 * times[0]


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_everything_bad_is_said_without_trying_all_of_a_long_axis(workers: int) -> None:
    lattice = grid((71,), EITHER)
    search = Search(lattice, alone(lattice))
    while not search.finished:
        for cell in search.ask(workers):
            search.tell(cell, hit=True)
    assert search.trials <= 50
    assert search.verdict.reason.startswith("always bad")
    assert search.verdict.best.probability >= 0.95


def wrong_beside_many_workers(rates: tuple[float, float], workers: int, seeds: Collection[int]) -> int:
    """How many quick studies of 32 versions, whose trials end in any order, name a false first bad one."""
    wrong = 0
    for seed in seeds:
        chance = random.Random(seed)
        first = chance.randrange(1, 32)
        lattice = grid((32,))
        search = Search(lattice, alone(lattice), quick=True)
        running: list[Index] = []
        while not search.finished:
            running += search.ask(workers - len(running), pending=Counter(running))
            cell = running.pop(chance.randrange(len(running)))
            search.tell(cell, hit=chance.random() < rates[cell[0] >= first])
        wrong += search.verdict.best.first_bad != (first,)
    return wrong


@pytest.mark.statistical
@pytest.mark.parametrize(("rates", "most"), [((0.0, 0.5), 0.10), ((0.0, 0.8), 0.10), ((0.02, 0.3), 0.05)])
def test_a_flaky_failure_seldom_looks_like_a_certain_one_to_many_workers(
    rates: tuple[float, float], most: float
) -> None:
    """What many look at together often changes more often than said, which certain failures seldom do."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    assert wrong_beside_many_workers(rates, 8, range(seed, seed + 60)) <= binom.ppf(0.999, 60, most)


@pytest.mark.parametrize("good", [{21}, {20, 21, 22}, {15}])
def test_good_versions_among_bad_ones_are_tried_again_before_they_are_believed(good: set[int]) -> None:
    """A history that changes more often than said is rarer than a flaky failure that passed there."""
    lattice = grid((32,))
    search = Search(lattice, alone(lattice), quick=True)
    bad = set(range(8, 32)) - good
    while not search.answered:
        for cell in search.ask(8):
            search.tell(cell, hit=cell[0] in bad)
    tried = [search.counts((place,))[1] for place in good if search.counts((place,))[1]]
    assert sum(tried) != 1, "one pass alone is no good version among bad ones"
    assert all(trials >= 2 for trials in tried)
    assert search.verdict.best.first_bad == (8,)
    assert search.trials <= 32 + 10


@pytest.mark.parametrize("direction", [REGRESSION, FIXED, EITHER])
def test_a_trial_that_tells_nothing_is_not_started(direction: Direction) -> None:
    lattice = grid((16,), direction, good=(0,), bad=(15,))
    if direction is FIXED:
        lattice = grid((16,), direction, good=(15,), bad=(0,))
    search = Search(lattice, alone(lattice), quick=True)
    pending: dict[Index, int] = {}
    for _ in range(10):
        for cell in search.ask(64, pending=pending):
            assert cell not in pending
            pending[cell] = 1
    assert len(pending) <= 16
    # Nothing more is worth trying before one of them ends.
    assert search.ask(64, pending=pending) == []


def test_what_could_come_next_is_known_while_a_trial_runs() -> None:
    search = Search(grid((32,)), alone(grid((32,))))
    search.tell((0,), hit=False)
    search.tell((31,), hit=True)
    (running,) = search.ask(1)
    ahead = search.foresee({running: 1})
    assert any(cell < running for cell in ahead)
    assert any(cell > running for cell in ahead)
    search.tell(running, hit=True)
    assert set(search.ask(1)) <= set(ahead)


# -- any truth ---------------------------------------------------------------------------------------------


def random_tables(shapes: st.SearchStrategy[tuple[int, ...]]) -> st.SearchStrategy[NDArray[np.bool_]]:
    def table(shape: tuple[int, ...], share: float, seed: int) -> NDArray[np.bool_]:
        return np.random.default_rng(seed).random(shape) < share

    return st.builds(
        table, shapes, st.sampled_from([0.03, 0.2, 0.5, 0.8, 0.97]), st.integers(0, 2**32 - 1)
    ).filter(lambda bad: bool(bad.any() and not bad.all()))


SHAPES = st.one_of(
    st.tuples(st.integers(2, 64)),
    st.tuples(st.integers(2, 8), st.integers(2, 8)),
    st.tuples(st.integers(2, 4), st.integers(2, 4), st.integers(2, 4)),
)


@settings(max_examples=25)
@given(
    random_tables(SHAPES),
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 2, 5]),
    st.sampled_from([0.95, 0.95, 0.99]),
)
# The bad end passes, and is tried again before others are.
@example(np.array([0, 0, 0, 1, 0, 0, 1], dtype=bool), 7, 5, 0.95)
# All but four fail, and the one of these that is tried passes in its only trial.
@example(np.random.default_rng(4_294_967_294).random((3, 3, 4)) < 0.8, 0, 1, 0.95)
def test_no_truth_takes_longer_than_trying_everything(
    bad: NDArray[np.bool_], seed: int, workers: int, confidence: float
) -> None:
    rng = random.Random(seed)
    directions = [rng.choice(ANY) for _ in bad.shape]
    one = Played(bad, directions, workers=workers, quick=True, confidence=confidence)
    assert len(one.tried) <= bad.size + 10
    verdict = one.verdict
    assert is_true(verdict, bad)
    seen = {bool(bad[cell]) for cell in one.tried}
    # Where a good and a bad one were seen there is an answer.
    assert (verdict.status is not Status.NONE) == (seen == {True, False})
    said = verdict.best.hypothesis.bad_cells()
    if verdict.best.hypothesis.kind != "pair":
        assert all(said[cell] == bad[cell] for cell in one.tried)


def shaped_tables() -> st.SearchStrategy[NDArray[np.bool_]]:
    """Staircases, bands, checkerboards and random tables of two and three axes."""

    def table(shape: tuple[int, ...], kind: str, seed: int) -> NDArray[np.bool_]:
        rng = np.random.default_rng(seed)
        places = np.indices(shape)
        steps = places.sum(axis=0)
        if kind == "random":
            return np.asarray(rng.random(shape) < rng.choice([0.2, 0.5, 0.8]))
        if kind == "checkerboard":
            return np.asarray(steps % 2 == 1)
        if kind == "band":
            low = int(rng.integers(0, steps.max() + 1))
            return np.asarray((steps >= low) & (steps < low + 2))
        corners = rng.integers(0, shape, (3, len(shape)))
        beyond = [(places >= corner.reshape(-1, *[1] * len(shape))).all(axis=0) for corner in corners]
        return np.asarray(np.any(beyond, axis=0))

    kinds = st.sampled_from(["random", "checkerboard", "band", "staircase", "staircase"])
    shapes = st.one_of(
        st.tuples(st.integers(2, 7), st.integers(2, 7)),
        st.tuples(st.integers(2, 4), st.integers(2, 4), st.integers(2, 4)),
    )
    return st.builds(table, shapes, kinds, st.integers(0, 2**32 - 1)).filter(
        lambda bad: bool(bad.any() and not bad.all())
    )


def in_any_order(search: StudySearch, bad: NDArray[np.bool_], workers: int, chance: random.Random) -> None:
    """Play a study of a certain failure with workers whose trials take any time."""
    running: list[Index] = []
    while not search.finished:
        running += search.ask(workers - len(running), pending=Counter(running))
        assert running, f"nothing asked, not finished: {search.verdict.reason}"
        cell = running.pop(chance.randrange(len(running)))
        search.tell(cell, hit=bool(bad[cell]))


@pytest.mark.slow
@settings(max_examples=25)
@given(shaped_tables(), st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 8, 64]))
# The only bad one ends last: passes of the others must not be repeated meanwhile.
@example(np.array([[[0, 0], [0, 0]], [[0, 0], [0, 1]]], dtype=bool), 493, 8)
@example(np.indices((4, 4, 4)).min(axis=0) == 3, 3300370560, 64)
# Nor failures, while others are looked at for the first time.
@example(np.indices((2, 2, 2)).sum(axis=0) % 2 == 1, 617, 8)
# Nor sides of a likely boundary, once each combination could have had its trial.
@example(np.isin(np.arange(32).reshape(4, 2, 4), [23, 25, 26, 27, 29, 30, 31]), 514, 64)
def test_no_order_in_which_trials_end_makes_an_answer_false_or_late(
    bad: NDArray[np.bool_], seed: int, workers: int
) -> None:
    chance = random.Random(seed)
    directions = [chance.choice(ANY) for _ in bad.shape]
    lattice = grid(bad.shape, directions)
    search = Search(lattice, alone(lattice), quick=True)
    in_any_order(search, bad, workers, chance)
    assert search.trials <= bad.size + 10
    assert is_true(search.verdict, bad)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 8])
def test_a_checked_answer_about_a_staircase_is_right_everywhere(workers: int) -> None:
    """On axes that may change either way what seems not to matter is tried at both ends."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    first, second, third = np.indices((3, 3, 3))
    flat, other = np.indices((7, 6))
    tables = [
        (third == 2) & (second == 0) | (third == 2) & (first == 2),
        (flat >= 6) | ((flat == 5) & (other <= 2)),
        (flat + other >= 7),
    ]
    wrong = 0
    for bad in tables * 3:
        lattice = grid(bad.shape, EITHER)
        search = Search(lattice, alone(lattice))
        in_any_order(search, bad, workers, chance)
        assert is_true(search.verdict, bad)
        wrong += bool((search.verdict.best.hypothesis.bad_cells() != bad).any())
    assert wrong <= 1


@pytest.mark.slow
@settings(max_examples=25)
@given(random_tables(SHAPES), st.integers(0, 2**32 - 1))
# Two good combinations in doubt beside one bad one: another failure of that one speaks for both.
@example(np.array([[0, 0, 1], [0, 0, 0], [1, 1, 0]], dtype=bool), 1052657)
def test_what_cannot_be_built_is_learnt_on_the_way(bad: NDArray[np.bool_], seed: int) -> None:
    rng = random.Random(seed)
    cells = [tuple(int(i) for i in cell) for cell in np.ndindex(bad.shape)]
    without = tuple(cell for cell in cells if rng.random() < 0.1)
    unbuildable = tuple(cell for cell in cells if rng.random() < 0.2)
    directions = [rng.choice(ANY) for _ in bad.shape]
    assume(any(bad[cell] for cell in cells if cell not in {*without, *unbuildable}))
    one = Played(bad, directions, workers=2, without=without, unbuildable=unbuildable, quick=True)
    assert len(one.tried) <= bad.size + 10
    assert is_true(one.verdict, bad)
    for boundary in one.verdict.best.boundaries:
        assert not {boundary.bad, boundary.good} & {*without, *unbuildable}


@pytest.mark.slow
@settings(max_examples=20)
@given(random_tables(SHAPES), st.integers(0, 2**32 - 1))
def test_the_answer_does_not_depend_on_the_order_of_trials(bad: NDArray[np.bool_], seed: int) -> None:
    rng = random.Random(seed)
    directions = [rng.choice(ANY) for _ in bad.shape]
    one = Played(bad, directions, quick=True)
    lattice = grid(bad.shape, directions)
    again = Search(lattice, alone(lattice), quick=True)
    for cell in rng.sample(one.tried, len(one.tried)):
        again.tell(cell, hit=bool(bad[cell]))
    assert again.finished
    mine, its = again.verdict, one.verdict
    assert (mine.status, mine.reason) == (its.status, its.reason)
    assert mine.best.hypothesis == its.best.hypothesis
    assert mine.best.boundaries == its.best.boundaries
    assert mine.best.probability == pytest.approx(its.best.probability)


def test_one_failure_is_looked_into_where_everything_else_passes() -> None:
    """A table without a rule whose stated direction makes its last combination bad, which is good."""
    lattice = grid((5, 5), REGRESSION)
    search = Search(lattice, alone(lattice))
    search.tell((1, 4), hit=True)
    for cell, passes in (((4, 4), 89), ((1, 4), 1), ((0, 0), 1), ((2, 2), 1), ((3, 1), 1)):
        for _ in range(passes):
            search.tell(cell, hit=False)
    assert not search.finished
    rng = RNG(0)
    while not search.finished:
        (cell,) = search.ask(1)
        search.tell(cell, hit=cell == (1, 4) and bool(rng.random() < 0.5))
        assert search.trials <= 600
    assert search.verdict.best.first_bad == (1, 4)


def test_not_everything_is_bad_where_one_combination_never_failed() -> None:
    lattice = grid((5, 3), REGRESSION)
    search = Search(lattice, alone(lattice))
    seen = [[(4, 7), (0, 1), (2, 2)], [(1, 4), (3, 8), (0, 2)], [(0, 5), (2, 3), (2, 4)]]
    seen += [[(0, 2), (0, 3), (1, 3)], [(0, 1), (4, 7), (0, 41)]]
    for cell, (hits, trials) in zip(lattice.indices(), itertools.chain(*seen), strict=True):
        for trial in range(trials):
            search.tell(cell, hit=trial < hits)
    assert search.verdict.best.hypothesis.kind != "always"
    assert not search.answered or is_true(search.verdict, np.arange(15).reshape(5, 3) != 14)


def confirmed_of_flaky_tables(
    rate: float, direction: Direction, seeds: Collection[int]
) -> tuple[list[int], int]:
    """Seeds of random tables whose confirmed and checked answer names a false pair, and how many had one."""
    wrong, confirmed = [], 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        shape = rng.integers(2, 5, 3) if seed % 3 == 2 else rng.integers(2, 9, 2)
        bad = rng.random(tuple(map(int, shape))) < [0.5, 0.2, 0.8][seed % 3]
        lattice = grid(bad.shape, direction)
        search = Search(lattice, alone(lattice))
        while not search.finished:
            for cell in search.ask(2):
                search.tell(cell, hit=bool(rng.random() < rate * bad[cell]))
        if search.verdict.status is Status.CONFIRMED:
            confirmed += 1
            wrong += [] if is_true(search.verdict, bad) else [seed]
    return wrong, confirmed


@pytest.mark.statistical
@pytest.mark.parametrize("direction", [REGRESSION, EITHER, UNORDERED])
@pytest.mark.parametrize("rate", [0.5, 0.2])
def test_a_confirmed_pair_of_a_flaky_table_is_a_true_one(rate: float, direction: Direction) -> None:
    wrong, confirmed = confirmed_of_flaky_tables(rate, direction, range(10))
    assert confirmed >= 8
    assert len(wrong) <= binom.ppf(0.99, confirmed, 0.05), wrong


@pytest.mark.statistical
@pytest.mark.parametrize("direction", [REGRESSION, EITHER])
@pytest.mark.parametrize("rate", [0.5, 0.2])
def test_flaky_tables_take_fewer_trials_than_trying_everything(rate: float, direction: Direction) -> None:
    """Trying everything: each combination until it carries a label, at the same confidence."""
    ours = everything = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        bad = rng.random([(4, 4), (3, 3, 2), (5, 5)][seed % 3]) < 0.5
        ours += played_flaky(Search, bad, rate, direction, seed)
        everything += played_flaky(TableSearch, bad, rate, UNORDERED, seed)
    assert ours <= everything


def played_flaky(
    make: type[Search] | type[TableSearch],
    bad: NDArray[np.bool_],
    rate: float,
    direction: Direction,
    seed: int,
) -> int:
    lattice = grid(bad.shape, direction)
    if make is Search:
        search: StudySearch = Search(lattice, alone(lattice), quick=True)
    else:
        search = make(lattice, alone(lattice))
    rng = np.random.default_rng(seed + 7)
    while not search.finished:
        for cell in search.ask(1):
            search.tell(cell, hit=bool(rng.random() < rate * bad[cell]))
    return search.trials


# -- frontiers ---------------------------------------------------------------------------------------------


def staircase(shape: tuple[int, int], slope: int, offset: int) -> NDArray[np.bool_]:
    first, second = np.indices(shape)
    return np.asarray(second + slope * first >= offset)


@pytest.mark.slow
@pytest.mark.parametrize("direction", [REGRESSION, EITHER])
@pytest.mark.parametrize(
    ("bad", "most"),
    [
        (staircase((6, 6), 1, 6), 24),
        (staircase((6, 6), -1, 2), 24),
        (staircase((9, 13), -1, 5), 45),
    ],
    ids=["sum", "difference", "wide"],
)
def test_frontiers_are_found_to_the_last_combination(
    bad: NDArray[np.bool_], most: int, direction: Direction
) -> None:
    one = Played(bad, direction)
    assert one.verdict.status is Status.CONFIRMED
    # Each of the two last good ones passes a second time.
    assert one.stood_after <= most + 2
    assert one.verdict.best.hypothesis.kind == "frontier"
    assert (one.verdict.best.hypothesis.bad_cells() == bad).all()
    assert is_true(one.verdict, bad)


@pytest.mark.parametrize("direction", [REGRESSION, EITHER])
def test_a_configuration_stays_a_configuration(direction: Direction) -> None:
    for first in ({0: 2, 1: 4}, {0: 3}, {1: 1}):
        bad = configuration((6, 6), first)
        one = Played(bad, direction)
        assert one.verdict.best.hypothesis.kind == "all"
        assert (one.verdict.best.hypothesis.bad_cells() == bad).all()
        assert one.stood_after <= 20


@pytest.mark.slow
def test_a_corner_of_a_frontier_is_not_the_answer_in_whatever_order_trials_end() -> None:
    """Two workers, whose trials take any time: the corner (1, 3) of it fits what they show first."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    first, second = np.indices((4, 5))
    bad = ((first >= 2) & (second >= 1)) | ((first >= 1) & (second >= 3))
    lattice = grid(bad.shape)
    for _ in range(25):
        search = Search(lattice, alone(lattice))
        in_any_order(search, bad, 2, chance)
        assert search.verdict.best.hypothesis.kind == "frontier"
        assert is_true(search.verdict, bad)


# -- the last good side ------------------------------------------------------------------------------------


def two_steps(size: int, first: int, rate: float) -> NDArray[np.float64]:
    """Bad from `first` on, in so many runs there and always after it."""
    places = np.arange(size)
    return np.where(places > first, 1.0, np.where(places == first, rate, 0.0))


def confirmed_of_two_steps(rate: float, studies: int) -> tuple[int, int]:
    wrong = confirmed = 0
    for seed in range(studies):
        rng = np.random.default_rng(1000 + seed)
        truth = two_steps(16, int(rng.integers(1, 15)), rate)
        lattice = grid((16,))
        search = Search(lattice, alone(lattice))
        while not search.finished:
            for cell in search.ask(2):
                search.tell(cell, hit=bool(rng.random() < truth[cell]))
        confirmed += search.verdict.status is Status.CONFIRMED
        first_bad = search.verdict.best.first_bad
        wrong += search.verdict.status is Status.CONFIRMED and first_bad != (int((truth > 0).argmax()),)
    return wrong, confirmed


@pytest.mark.parametrize("rate", [0.3, 0.1])
def test_a_first_release_that_fails_rarely_is_found(rate: float) -> None:
    wrong, confirmed = confirmed_of_two_steps(rate, 2)
    assert confirmed >= 1
    assert wrong <= binom.ppf(0.999, 2, 0.05)


@pytest.mark.statistical
@pytest.mark.parametrize("rate", [0.3, 0.1, 0.05])
def test_a_first_release_that_fails_rarely_is_found_in_many_studies(rate: float) -> None:
    wrong, confirmed = confirmed_of_two_steps(rate, 60)
    assert confirmed >= 57
    assert wrong <= binom.ppf(0.999, 60, 0.05)


def test_checks_come_after_the_answer_and_can_be_ended() -> None:
    lattice = grid((16,))
    search = Search(lattice, alone(lattice))
    while not search.answered:
        for cell in search.ask(1):
            search.tell(cell, hit=cell[0] >= 9)
    assert not search.finished
    assert search.verdict.status is Status.LIKELY
    assert search.checks_left >= 28
    (cleared,) = search.verdict.cleared
    assert cleared.index == (8,)
    assert cleared.wanted > 0
    assert set(search.ask(40)) <= {(8,), *(check.cell for check in search.checks)}
    assert len(search.ask(100)) == search.checks_left
    search.end_checks()
    assert search.finished
    search.resume_checks()
    while not search.finished:
        for cell in search.ask(1):
            search.tell(cell, hit=cell[0] >= 9)
    assert search.verdict.status is Status.CONFIRMED
    assert search.verdict.cleared[0].wanted == 0


def test_a_failure_during_the_checks_opens_the_question_again() -> None:
    lattice = grid((16,))
    search = Search(lattice, alone(lattice))
    while not search.finished:
        for cell in search.ask(1):
            _, trials = search.counts(cell)
            search.tell(cell, hit=cell[0] >= 9 or (cell == (8,) and trials % 6 == 5))
    assert search.verdict.best.first_bad == (8,)
    assert search.verdict.best.last_good == (7,)
    assert not search.verdict.certain
    assert all(one.below <= 0.1 for one in search.verdict.cleared)


def test_two_stated_ends_have_a_verdict_before_any_trial() -> None:
    lattice = dataclasses.replace(grid((2,), REGRESSION), good=(0,), bad=(1,))
    search = Search(lattice, alone(lattice, ()))
    assert search.verdict.status is not Status.CONFIRMED


@pytest.mark.parametrize("size", [20, 136, 722])
def test_no_boundary_lies_within_one_environment(size: int) -> None:
    """Days, or releases that change nothing, share environments: the sides of an answer do not."""
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    chance = random.Random(seed)
    starts = sorted({0, *chance.sample(range(1, size), chance.randrange(2, 5))})
    stands_for = [max(start for start in starts if start <= day) for day in range(size)]
    first_bad = chance.choice(starts[1:])
    lattice = grid([size])
    search = Search(lattice, {(day,): (stands_for[day],) for day in range(size)})
    while wanted := search.ask(2):
        for cell in wanted:
            search.tell(cell, hit=cell[0] >= first_bad)
    best = search.verdict.best
    assert (best.first_bad, best.last_good) == ((first_bad,), (first_bad - 1,))
