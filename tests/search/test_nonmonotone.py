"""Histories that change more often than their axis's direction says: found, checked for, or admitted."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bisect_env.matrix.grid import Direction
from bisect_env.search.families import MOST_SETS, families_of
from bisect_env.search.nonmonotone import RARE, histories
from bisect_env.search.searcher import Search
from bisect_env.search.space import HypothesisSpace
from bisect_env.search.verdict import Status, Verdict
from tests.search.worlds import EITHER, FIXED, REGRESSION, UNORDERED, alone, configuration, grid, play, rates

RNG = np.random.default_rng


def runs(size: int, *changes: int, bad_first: bool = False) -> NDArray[np.bool_]:
    """Versions that turn from good to bad, or back, at each of some places."""
    turned = np.isin(np.arange(size), changes).cumsum() % 2 == 1
    return ~turned if bad_first else turned


# -- the hypotheses --------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", [REGRESSION, FIXED, EITHER])
def test_wider_families_have_every_history_of_three_changes_once(direction: Direction) -> None:
    found = histories(grid((9,), direction), [])
    assert found is not None
    sets = found[0].sets
    patterns = {row.tobytes() for row in sets > 0}
    assert len(patterns) == len(sets) == 1 + 2 * (8 + 28 + 56)
    assert runs(9, 2, 5, 7).tobytes() in patterns
    assert runs(9, 2, 5, 7, bad_first=True).tobytes() in patterns
    prior = found[0].prior
    assert prior.sum() == pytest.approx(1.0)
    assert prior[len(families_of((9,), [direction])[0].sets) :].sum() == pytest.approx(RARE)


def test_plain_histories_keep_their_proportions() -> None:
    found = histories(grid((12,), EITHER), [])
    assert found is not None
    plain = HypothesisSpace((12,), [EITHER])
    wide = HypothesisSpace((12,), [EITHER], families=found)
    mine, its = wide.prior[wide.tier == 0], plain.prior
    # All but "always" and "never", whose share is the same in both.
    np.testing.assert_allclose(mine[1:-1] / mine[1:-1].sum(), its[1:-1] / its[1:-1].sum())


def test_sets_stay_bearable() -> None:
    for shape in ((6, 6, 4, 4), (32, 8), (40,), (128,), (300,), (20, 20, 3)):
        tried = zip(*((0, size // 2, size - 1) for size in shape), strict=True)
        found = histories(grid(shape), tried)
        if found is None:
            # On several axes each step weighs them all, so that few are too many.
            assert len(shape) > 1
            continue
        assert np.prod([len(f.sets) for f in found]) <= 2 * MOST_SETS, shape


def test_along_a_long_axis_two_runs_begin_and_end_next_to_what_was_tried() -> None:
    found = histories(grid((128,)), [(0,), (40,), (70,), (100,), (127,)])
    assert found is not None
    patterns = {row.tobytes() for row in found[0].sets > 0}
    assert runs(128, 41, 70, 101).tobytes() in patterns
    assert runs(128, 45, 70, 101).tobytes() not in patterns


def test_two_values_have_one_history_more_than_stated() -> None:
    families = histories(grid((2,)), [])
    assert families is not None
    (family,) = families
    assert family.sets[family.plain :].tolist() == [[True, False]]


def test_axes_without_order_have_no_other_histories() -> None:
    assert histories(grid((7,), UNORDERED), []) is None
    assert histories(grid((1,)), []) is None


# -- whole studies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "changes", "bad_first"),
    [
        (32, (6, 16, 26), False),
        (32, (20, 25), True),
        (32, (4, 20, 28), False),
        (32, (9, 19, 29), True),
        (64, (15, 35, 55), False),
    ],
)
def test_two_bad_runs_are_found(size: int, changes: tuple[int, ...], bad_first: bool) -> None:
    lattice = grid((size,))
    search = Search(lattice, alone(lattice))
    bad = runs(size, *changes, bad_first=bad_first)
    play(search, rates(bad, 1.0), RNG(0), at_most=300)
    verdict = search.verdict
    assert verdict.status is Status.CONFIRMED, verdict.reason
    assert verdict.best.hypothesis.bad_cells().tolist() == bad.tolist()
    assert not verdict.monotone
    # Every change is a boundary that was tried on both sides.
    assert sorted(max(b.bad, b.good)[0] for b in verdict.best.boundaries) == list(changes)
    for boundary in verdict.best.boundaries:
        assert search.counts(boundary.bad)[0] >= 2
        assert search.counts(boundary.good)[1] >= 1


@pytest.mark.slow
def test_a_window_of_a_quarter_is_never_overlooked_at_a_certain_failure() -> None:
    for first in range(2, 15, 4):
        bad = runs(24, first, first + 7, 22)
        lattice = grid((24,))
        search = Search(lattice, alone(lattice))
        play(search, rates(bad, 1.0), RNG(first), at_most=300)
        found = search.verdict.best.first_bad, search.verdict.monotone
        # From a boundary at the window's beginning on, only good versions after it say otherwise.
        assert not search.verdict.monotone or found[0] == (first,), f"window from {first}"


def test_monotone_studies_that_nothing_contradicts_stay_monotone() -> None:
    for seed in range(12):
        lattice = grid((32,))
        search = Search(lattice, alone(lattice))
        play(search, rates(configuration((32,), {0: 2 + 2 * seed}), 1.0), RNG(seed))
        assert search.verdict.monotone, f"seed {seed}"
        assert search.verdict.status is Status.CONFIRMED


def _contradicted(search: Search, verdict: Verdict, bad: NDArray[np.bool_]) -> list[int]:
    tried = [cell for cell in range(len(bad)) if search.counts((cell,))[1]]
    said = verdict.best.hypothesis.bad_cells()
    return [cell for cell in tried if said[cell] != bad[cell]]


@pytest.mark.slow
@settings(max_examples=15)
@given(
    size=st.integers(5, 18),
    changes=st.sets(st.integers(1, 22), min_size=1, max_size=3),
    bad_first=st.booleans(),
    direction=st.sampled_from([REGRESSION, FIXED, EITHER]),
)
def test_no_confirmed_verdict_contradicts_a_version_that_was_tried(
    size: int, changes: set[int], bad_first: bool, direction: Direction
) -> None:
    bad = runs(size, *{1 + place % (size - 1) for place in changes}, bad_first=bad_first)
    lattice = grid((size,), direction)
    search = Search(lattice, alone(lattice))
    play(search, rates(bad, 1.0), RNG(0), at_most=400)
    verdict = search.verdict
    if verdict.status is Status.CONFIRMED:
        assert _contradicted(search, verdict, bad) == []


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_the_verdict_does_not_depend_on_the_order_of_trials(rate: float) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    lattice = grid((16,))
    live = Search(lattice, alone(lattice))
    rng, truth = RNG(seed), rates(runs(16, 4, 9, 13), rate)
    told = []
    while not live.finished and len(told) < 60:
        (cell,) = live.ask(1)
        told.append((cell, bool(rng.random() < truth[cell])))
        live.tell(cell, hit=told[-1][1])
    random.Random(seed).shuffle(told)
    again = Search(lattice, alone(lattice))
    for cell, hit in told:
        again.tell(cell, hit=hit)
    mine, its = again.verdict, live.verdict
    assert (mine.status, mine.monotone, mine.untested) == (
        its.status,
        its.monotone,
        its.untested,
    )
    assert mine.best.hypothesis == its.best.hypothesis
    assert mine.best.boundaries == its.best.boundaries
    assert mine.best.probability == pytest.approx(its.best.probability)
    assert again.finished == live.finished
    assert again.finished or again.ask(1) == live.ask(1)
