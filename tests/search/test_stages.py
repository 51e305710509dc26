"""Large lattices: a few values of each axis first, and in the end what a search over all of them says."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from benchmarks.search_worlds import Alone
from bisect_env.matrix.grid import Direction, Grid, GridAxis, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search import stages
from bisect_env.search.searcher import Search
from bisect_env.search.simulate import simulate
from bisect_env.search.space import drawn, is_large
from bisect_env.search.verdict import Status
from tests.search.worlds import EITHER, FIXED, REGRESSION, UNORDERED, alone, configuration, grid, play, rates

RNG = np.random.default_rng


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search even small lattices in stages."""
    monkeypatch.setattr(stages, "_MOST_WHOLE", 0)


def lattice_of(shape: tuple[int, ...], directions: tuple[Direction, ...]) -> Grid:
    axes = grid(shape).axes
    turned = [
        GridAxis(axis.name, axis.kind, axis.values, direction)
        for axis, direction in zip(axes, directions, strict=True)
    ]
    return Grid(tuple(turned))


@pytest.mark.usefixtures("staged")
@pytest.mark.parametrize(
    ("shape", "directions", "bad"),
    [
        ((400,), (REGRESSION,), {0: range(217, 400)}),
        ((400,), (FIXED,), {0: range(31)}),
        ((500,), (EITHER,), {0: range(120, 500)}),
        ((200, 150), (REGRESSION, FIXED), {0: range(81, 200), 1: range(44)}),
        ((60, 50, 3), (FIXED, REGRESSION, UNORDERED), {1: range(17, 50)}),
        ((3000, 1), (REGRESSION, REGRESSION), {0: range(2999, 3000)}),
        # So many axes that some are tied together at first.
        ((2,) * 17, (REGRESSION,) * 17, {3: range(1, 2), 11: range(1, 2)}),
        ((2,) * 17, (REGRESSION,) * 17, {5: range(1, 2), 6: range(1, 2)}),
        ((2, 1) * 12, (FIXED, UNORDERED) * 12, {8: range(1)}),
        ((4,) * 9, (REGRESSION, FIXED, EITHER) * 3, {0: range(2, 4), 4: range(2)}),
    ],
)
def test_a_certain_failure_on_a_large_lattice_is_found_to_the_last_version(
    shape: tuple[int, ...], directions: tuple[Direction, ...], bad: Mapping[int, range]
) -> None:
    search = Search(lattice_of(shape, directions), Alone(shape), quick=True)
    while not search.finished:
        (cell,) = search.ask(1)
        search.tell(cell, hit=all(cell[axis] in places for axis, places in bad.items()))
        assert search.trials <= 80
    best = search.verdict.best
    assert search.verdict.status is Status.LIKELY
    assert set(best.culprits) == set(bad)
    for axis, places in bad.items():
        assert np.flatnonzero(best.hypothesis.sets[axis]).tolist() == list(places)
    for boundary in best.boundaries:
        assert search.counts(boundary.bad)[0] >= 1
        hits, trials = search.counts(boundary.good)
        assert (hits, trials > 0) == (0, True)
    if math.prod(shape) < 300_000:
        chances = search.probability_bad()
        assert chances.shape == shape
        assert chances[best.first_bad] > 0.9
        assert chances[best.last_good] < 0.5


def test_a_study_goes_on_as_if_it_had_never_stopped_whatever_the_order() -> None:
    """Half of the trials at once, in another order, before anything was asked."""
    seed = int(np.random.SeedSequence().entropy) % 2**32
    print("seed", seed)
    rng, shape = RNG(seed), (300, 200)
    first_bad = int(rng.integers(1, 300))
    live = Search(grid(shape), Alone(shape), SearchLimits(max_trials=120))
    told: list[tuple[Index, bool]] = []
    while not live.finished:
        (cell,) = live.ask(1)
        told.append((cell, cell[0] >= first_bad and bool(rng.random() < 0.7)))
        live.tell(cell, hit=told[-1][1])
        if len(told) in (10, 30, 60) or live.finished:
            again = Search(grid(shape), Alone(shape), SearchLimits(max_trials=120))
            for place in rng.permutation(len(told)):
                again.tell(told[place][0], hit=told[place][1])
            assert again.ask(3) == live.ask(3)
            mine, its = again.verdict, live.verdict
            assert (mine.status, mine.best.first_bad, mine.best.last_good) == (
                its.status,
                its.best.first_bad,
                its.best.last_good,
            )
            assert mine.best.hypothesis == its.best.hypothesis
            assert mine.best.probability == pytest.approx(its.best.probability)
            assert again.finished == live.finished


@pytest.mark.usefixtures("staged")
def test_what_cannot_be_built_is_learnt_on_the_way() -> None:
    shape = (500,)
    search = Search(grid(shape), Alone(shape), quick=True)
    unbuildable = {(place,) for place in range(230, 240)}
    tried: list[Index] = []
    while not search.finished:
        for cell in search.ask(2):
            assert cell not in unbuildable or cell not in tried
            tried.append(cell)
            if cell in unbuildable:
                search.set_aside(cell)
            else:
                search.tell(cell, hit=cell[0] >= 235)
    best = search.verdict.best
    assert (best.first_bad, best.last_good) == ((240,), (229,))
    (boundary,) = best.boundaries
    assert set(boundary.between) == unbuildable


@pytest.mark.parametrize("first_bad", [{0: 37, 2: 4}])
def test_a_study_of_a_million_combinations(first_bad: dict[int, int]) -> None:
    shape = (100, 100, 10, 10)
    lattice = grid(shape)
    search = Search(lattice, Alone(shape), quick=True)
    assert search.is_staged
    while not search.finished:
        (cell,) = search.ask(1)
        search.tell(cell, hit=all(cell[axis] >= value for axis, value in first_bad.items()))
    best = search.verdict.best
    assert search.verdict.status is Status.LIKELY
    assert {axis: int(best.hypothesis.sets[axis].argmax()) for axis in best.hypothesis.culprits} == first_bad
    assert all(abs(b.bad[b.axis] - b.good[b.axis]) == 1 for b in best.boundaries)
    assert search.trials <= 40


@pytest.mark.statistical
def test_flaky_failures_on_a_large_lattice_with_workers_prices_and_gaps() -> None:
    shape = (1000, 300)
    lattice = grid(shape)
    search = Search(lattice, Alone(shape), SearchLimits(max_trials=3000), quick=True)
    rng, built = RNG(3), set[Index]()
    search.set_aside((617, 0))
    while not search.finished:
        batch = search.ask(4, pending={(500, 150): 1}, build_cost=dict.fromkeys([(0, 0)], 5.0))
        assert (617, 0) not in batch
        for cell in batch:
            built.add(cell)
            search.tell(cell, hit=cell[0] >= 617 and bool(rng.random() < 0.5))
    assert search.verdict.best.hypothesis.sets[0].argmax() == 617
    assert search.foresee({(500, 150): 1})


def test_only_what_is_offered_is_chosen() -> None:
    shape = (300, 300)
    search = Search(grid(shape), Alone(shape))
    search.tell((299, 299), hit=True)
    (cell,) = search.ask(1, only={(0, 0), (299, 299)})
    assert cell in {(0, 0), (299, 299)}


def test_which_lattices_are_large() -> None:
    assert not is_large((20, 20), (REGRESSION, REGRESSION))
    assert not is_large((6, 6, 4, 4), (REGRESSION,) * 4)
    assert is_large((200, 200), (REGRESSION, REGRESSION))
    assert is_large((40, 40), (EITHER, EITHER))
    for small in (grid((20, 20)), grid((400,), EITHER)):
        assert not Search(small, alone(small)).is_staged


def test_drawn_truths_involve_an_axis() -> None:
    rng = RNG(1)
    lattice = lattice_of((300, 40), (REGRESSION, UNORDERED))
    for _ in range(20):
        found = drawn(lattice, rng)
        assert found.culprits
        assert found.bad_cells().any()
        assert not found.bad_cells().all()


def test_an_impossible_combination_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be run"):
        Search(grid((300, 300)), Alone((300, 300))).tell((300, 0), hit=True)


@pytest.mark.slow
def test_played_to_the_end_like_a_search_of_all_combinations(request: pytest.FixtureRequest) -> None:
    lattice = grid((128,))
    search = Search(lattice, alone(lattice))
    play(search, rates(configuration((128,), {0: 61}), 1.0), RNG(1))
    request.getfixturevalue("staged")
    in_stages = Search(lattice, alone(lattice))
    while not in_stages.finished:
        (cell,) = in_stages.ask(1)
        in_stages.tell(cell, hit=cell[0] >= 61)
    assert in_stages.verdict.best.hypothesis == search.verdict.best.hypothesis
    assert in_stages.trials <= search.trials + 6


def test_a_certain_failure_among_forty_thousand_combinations_takes_a_few_dozen_trials() -> None:
    """Without the checks of the answer, which cost as much as those of a small lattice."""
    seed = int(np.random.SeedSequence().entropy) % 2**32
    print("seed", seed)
    rng, lattice, taken = RNG(seed), grid((200, 200)), []
    while len(taken) < 10:
        bad = drawn(lattice, rng).bad_cells()
        if bad.any() and not bad.all():
            cells = np.where(bad, 1.0, 0.0)
            taken.append(simulate(lattice, alone(lattice), cells, rng, quick=True).trials)
    assert np.mean(taken) < 60


@pytest.mark.slow
@pytest.mark.parametrize("quick", [False, True])
def test_a_long_axis_that_may_change_either_way_is_checked_like_a_short_one(quick: bool) -> None:
    cleared = []
    for size in (240, 300):
        lattice = grid((size,), EITHER)
        search = Search(lattice, alone(lattice), quick=quick)
        while not search.finished:
            for cell in search.ask(4):
                search.tell(cell, hit=cell[0] >= 187)
        assert search.verdict.best.first_bad == (187,)
        cleared.append([(one.index, one.wanted) for one in search.verdict.cleared])
        assert (search.counts((186,))[1] >= 60) is not quick
        assert search.checks_left == 0
    assert quick or cleared[0] == cleared[1] == [((186,), 0)]


@pytest.mark.slow
@pytest.mark.parametrize("size", [240, 300, 400])
def test_a_gap_of_good_versions_on_a_long_axis_is_found_as_on_a_short_one(size: int) -> None:
    """Three tenths of the axis, in the middle of its bad part: halving towards the boundary never sees it."""
    versions = np.arange(size)
    bad = (versions >= size // 10) & ~((versions >= size // 2) & (versions < size * 8 // 10))
    lattice = grid((size,), EITHER)
    search = Search(lattice, alone(lattice))
    while not search.finished:
        (cell,) = search.ask(1)
        search.tell(cell, hit=bool(bad[cell]))
    first_bad = size // 10
    assert search.verdict.status is Status.CONFIRMED
    assert search.verdict.best.first_bad == (first_bad,)
    assert search.verdict.best.last_good == (first_bad - 1,)
    assert search.trials <= 250


def test_what_a_large_lattice_leaves_untested_is_named() -> None:
    shape = (300, 300)
    search = Search(grid(shape), Alone(shape), quick=True)
    assert search.is_staged
    while not search.finished:
        for cell in search.ask(1):
            search.tell(cell, hit=cell[0] >= 120)
    (interval,) = [one for one in search.verdict.untested if one.axis == 0]
    assert interval.length > 50
    tried = {index[0] for index in search.tallies.per_group if index[1] == interval.first[1]}
    assert not any(interval.first[0] <= value <= interval.last[0] for value in tried)
