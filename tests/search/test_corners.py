"""Going on to further failing configurations."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations

import numpy as np
import pytest
from numpy.typing import NDArray

from bisect_env.matrix.grid import Direction, Index
from bisect_env.matrix.schema import SearchLimits
from bisect_env.search.corners import CornerSearch
from bisect_env.search.families import family
from bisect_env.search.verdict import Status
from tests.search.worlds import FIXED, REGRESSION, UNORDERED, alone, configuration, grid, play, rates

RNG = np.random.default_rng
MOST = 600


def starts(search: CornerSearch) -> set[Index]:
    """Where the configurations begin that were found on a lattice of regressions."""
    verdicts = [search.verdict, *search.others] if search.no_other is not None else []
    return {tuple(int(bad.argmax()) for bad in v.best.hypothesis.sets) for v in verdicts}


def planted(shape: tuple[int, ...], configurations: Iterable[Index]) -> NDArray[np.bool_]:
    return np.any([configuration(shape, dict(enumerate(start))) for start in configurations], axis=0)


def drawn(shape: tuple[int, ...], count: int, rng: np.random.Generator) -> list[Index]:
    """Configurations none of which lies inside another."""
    while True:
        cells = [tuple(int(rng.integers(n)) for n in shape) for _ in range(count)]
        apart = all(
            any(a > b for a, b in zip(one, other, strict=True)) for one, other in permutations(cells, 2)
        )
        if apart and all(any(cell) for cell in cells):
            return cells


@pytest.mark.parametrize("rate", [1.0, pytest.param(0.5, marks=pytest.mark.statistical)])
def test_two_configurations_are_both_found(rate: float) -> None:
    lattice = grid((3, 8), [UNORDERED, REGRESSION])
    search = CornerSearch(lattice, alone(lattice))
    first, second = np.zeros((3, 8), dtype=bool), np.zeros((3, 8), dtype=bool)
    first[0, 3:] = second[1, 6:] = True
    play(search, rates(first | second, rate), RNG(4), at_most=4000)
    assert search.verdict.status is not Status.NONE
    found = [search.verdict, *search.others]
    said = np.any([v.best.hypothesis.bad_cells() for v in found], axis=0)
    assert said.tolist() == (first | second).tolist()
    assert len(found) >= 2
    assert search.no_other is not None
    assert search.no_other >= 0.8


def test_a_single_configuration_ends_with_no_other() -> None:
    lattice = grid((12,))
    search = CornerSearch(lattice, alone(lattice))
    play(search, rates(configuration((12,), {0: 7}), 0.5), RNG(2))
    assert search.verdict.best.first_bad == (7,)
    assert search.others == ()
    assert search.no_other is not None
    assert search.no_other >= 0.8


def test_nothing_bad_ends_as_the_plain_search_does() -> None:
    lattice = grid((6,))
    search = CornerSearch(lattice, alone(lattice))
    play(search, np.zeros(6), RNG(0))
    assert search.verdict.status is Status.NONE
    assert search.no_other is None


def test_the_budget_is_that_of_all_configurations_together() -> None:
    lattice = grid((6, 6))
    search = CornerSearch(lattice, alone(lattice), SearchLimits(max_trials=25))
    tried = play(search, rates(configuration((6, 6), {0: 4}) | configuration((6, 6), {1: 5}), 0.4), RNG(4))
    assert len(tried) == 25


def test_resuming_by_counts_alone_gives_the_same() -> None:
    lattice = grid((5, 5))
    truth = rates(configuration((5, 5), {0: 3, 1: 1}) | configuration((5, 5), {0: 1, 1: 4}), 1.0)
    search = CornerSearch(lattice, alone(lattice))
    tried = play(search, truth, RNG(5))
    again = CornerSearch(lattice, alone(lattice))
    for cell in tried:
        again.tell(cell, hit=bool(truth[cell]))
    assert again.finished
    assert [v.best.hypothesis for v in again.others] == [v.best.hypothesis for v in search.others]


def test_combinations_set_aside_stay_so_in_later_searches() -> None:
    lattice = grid((8,))
    search = CornerSearch(lattice, alone(lattice))
    search.set_aside((2,))
    tried = play(search, rates(configuration((8,), {0: 5}), 1.0), RNG(0))
    assert (2,) not in tried


@pytest.mark.parametrize(
    "configurations",
    [
        # Each explains the failures of the overlap as well as the other.
        [(3, 1), (1, 3)],
        # A failure of the first makes it look as if axis 0 did not matter to the second.
        [(0, 4), (3, 2)],
        [(2, 3), (3, 2), (0, 5)],
        # All but three combinations fail.
        [(2, 0), (1, 1), (0, 2)],
    ],
)
def test_certain_configurations_that_overlap_are_told_apart(configurations: list[Index]) -> None:
    lattice = grid((6, 6))
    search = CornerSearch(lattice, alone(lattice))
    play(search, rates(planted((6, 6), configurations), 1.0), RNG(0), at_most=MOST)
    assert starts(search) == set(configurations)
    assert search.no_other is not None
    assert search.no_other >= 0.8


@pytest.mark.statistical
@pytest.mark.parametrize("seed", range(4))
def test_random_certain_configurations_are_found_and_nothing_else_is_named(seed: int) -> None:
    print(f"seed {seed}")
    rng = RNG(seed)
    shape = [(5, 5), (3, 7), (3, 3, 3), (4, 5)][seed % 4]
    configurations = drawn(shape, 2, rng)
    lattice = grid(shape)
    # A tenth cannot be run, but for where a configuration begins.
    without = [i for i in lattice.indices() if i not in configurations and rng.random() < 0.1]
    groups = alone(lattice, without)
    bad = planted(shape, configurations)
    search = CornerSearch(lattice, groups)
    tried = play(search, rates(bad, 1.0), rng, at_most=MOST)
    assert not set(tried) & set(without)
    found = [v.best.hypothesis for v in (search.verdict, *search.others)]
    assert search.verdict.status is not Status.NONE
    assert all(bad[cell] for one in found for cell in groups if one.is_bad(cell)), "names what passes"
    missed = [cell for cell in groups if bad[cell] and not any(one.is_bad(cell) for one in found)]
    assert search.no_other is not None
    assert not missed or search.no_other < 0.95
    if not without:
        assert starts(search) == set(configurations)


@pytest.mark.statistical
@pytest.mark.parametrize("seed", range(3))
def test_configurations_of_axes_of_other_directions(seed: int) -> None:
    """Axes without order, with fixes; combinations that cannot be run, and some that share a measurement."""
    print(f"seed {seed}")
    rng = RNG(seed)
    shape = [(5, 4), (3, 6), (3, 3, 3)][seed % 3]
    directions = [(REGRESSION, FIXED, UNORDERED)[int(rng.integers(3))] for _ in shape]
    lattice = grid(shape, directions)
    bad = np.zeros(shape, dtype=bool)
    for _ in range(2):
        bad |= box(directions, shape, rng)
    groups = alone(lattice, [i for i in lattice.indices() if rng.random() < 0.1])
    for index in list(groups):
        before = (max(0, index[0] - 1), *index[1:])
        if before in groups and rng.random() < 0.15:
            groups[index] = groups[before]
    cells = set(groups.values())
    search = CornerSearch(lattice, groups)
    play(search, rates(bad, 1.0), rng, at_most=MOST)
    found = (
        [v.best.hypothesis for v in (search.verdict, *search.others)] if search.no_other is not None else []
    )
    assert all(bad[cell] for one in found for cell in cells if one.is_bad(cell)), "names what passes"
    if found:
        missed = [cell for cell in cells if bad[cell] and not any(one.is_bad(cell) for one in found)]
        assert not missed or (search.no_other is not None and search.no_other < 0.95)
    else:
        assert search.verdict.best.hypothesis.kind == ("always" if all(bad[c] for c in cells) else "never")


def box(directions: list[Direction], shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.bool_]:
    """Bad combinations of one random configuration, which at least the first axis matters to."""
    bad = np.ones(shape, dtype=bool)
    for axis, (direction, size) in enumerate(zip(directions, shape, strict=True)):
        sets = family(direction, size).sets
        row = int(rng.integers(1, len(sets))) if axis == 0 or rng.random() < 0.6 else 0
        bad &= (sets[row] > 0).reshape([-1 if a == axis else 1 for a in range(len(shape))])
    return bad


def test_a_bad_end_that_another_configuration_explains_is_not_wrong() -> None:
    """With axes without order a stated bad end need not belong to the configuration that is found first."""
    lattice = grid((3, 6), [UNORDERED, REGRESSION], good=(2, 0), bad=(1, 5))
    bad = np.zeros((3, 6), dtype=bool)
    bad[0, 1:] = bad[1, 4:] = True
    search = CornerSearch(lattice, alone(lattice))
    play(search, rates(bad, 1.0), RNG(0), at_most=MOST)
    found = [v.best.hypothesis.bad_cells() for v in (search.verdict, *search.others)]
    assert search.verdict.ends_wrong == ()
    assert np.any(found, axis=0).tolist() == bad.tolist()


@pytest.mark.parametrize("shape", [(6, 6), (4, 6), (8, 8), (3, 7)])
def test_certain_configurations_take_fewer_trials_than_trying_everything(shape: tuple[int, ...]) -> None:
    rng = RNG(1)
    for _ in range(6):
        configurations = drawn(shape, 2, rng)
        lattice = grid(shape)
        search = CornerSearch(lattice, alone(lattice))
        tried = play(search, rates(planted(shape, configurations), 1.0), rng, at_most=MOST)
        assert starts(search) == set(configurations)
        # Six failures are repeated before they are taken to be certain.
        assert len(tried) <= min(shape[0] * shape[1], 4 * sum(shape)) + 8


def test_a_configuration_without_a_good_neighbour_is_likely() -> None:
    """The good and the bad combination differ on both axes: neither axis is known to be the culprit."""
    lattice = grid((2, 2))
    search = CornerSearch(lattice, alone(lattice, [(0, 1), (1, 0)]))
    play(search, rates(configuration((2, 2), {0: 1, 1: 1}), 1.0), RNG(0))
    assert search.verdict.best.first_bad == (1, 1)
    assert search.verdict.best.last_good is None
    assert search.verdict.status is Status.LIKELY


@pytest.mark.parametrize("seed", [0, 2, 12])
def test_a_table_with_a_doubtful_label_is_likely(seed: int) -> None:
    """Failures as rare as these are given up after some trials, and the likelier label is taken."""
    lattice = grid((4,), [UNORDERED])
    search = CornerSearch(lattice, alone(lattice))
    play(search, rates(RNG(seed).random(4) < 0.5, 0.1), RNG(seed), at_most=5000)
    verdict = search.table.verdict
    assert search.finished
    assert verdict.best.probability < 0.95
    assert verdict.status is Status.LIKELY
    assert "the most doubtful combination" in verdict.reason
