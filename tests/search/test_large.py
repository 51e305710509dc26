"""The path for large lattices equals the plain one, on numpy and on another array library."""

from __future__ import annotations

from typing import Any

import array_api_strict
import numpy as np
import pytest

from bisect_env.matrix.grid import Direction
from bisect_env.search.acquisition import ONE, information
from bisect_env.search.large import LargeLattice
from bisect_env.search.posterior import Counts, update
from bisect_env.search.rates import RateGrid
from bisect_env.search.space import HypothesisSpace
from tests.search.worlds import EITHER, FIXED, REGRESSION, UNORDERED

WORLDS = [
    ((9,), [REGRESSION]),
    ((5, 4), [REGRESSION, FIXED]),
    ((4, 3, 3), [UNORDERED, REGRESSION, FIXED]),
    ((3, 3, 2, 2), [REGRESSION, FIXED, REGRESSION, UNORDERED]),
    ((6, 1), [REGRESSION, REGRESSION]),
]


def told(shape: tuple[int, ...], seed: int, cells: int) -> Counts:
    rng = np.random.default_rng(seed)
    counts = Counts(shape, RateGrid.default())
    bad = rng.random(shape) < 0.5
    for _ in range(cells):
        cell = tuple(int(rng.integers(n)) for n in shape)
        for _ in range(int(rng.integers(1, 6))):
            counts.add(cell, int(rng.random() < (0.4 if bad[cell] else 0.02)), 1)
    return counts


def large(shape: tuple[int, ...], directions: list[Direction], counts: Counts, like: Any = None) -> Any:
    lattice = LargeLattice(shape, directions, counts.grid, like=like)
    cells = list(counts.own_rate)
    belief = lattice.belief(
        cells,
        np.array([counts.log_bad[cell] for cell in cells]),
        np.array([counts.log_good[cell] for cell in cells]),
    )
    return lattice, belief, lattice.information(belief, cells, [counts.own_rate[cell] for cell in cells])


@pytest.mark.parametrize(("shape", "directions"), WORLDS, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_plain_path(shape: tuple[int, ...], directions: list[Direction], seed: int) -> None:
    counts = told(shape, seed, 6)
    space = HypothesisSpace(shape, directions, any_of=False)
    plain = update(space, counts)
    _, belief, bits = large(shape, directions, counts)
    by_bad, by_good = np.eye(len(counts.grid.m)), np.eye(len(counts.grid.p0))
    np.testing.assert_allclose(
        belief.bad(by_bad), np.moveaxis(space.bad_mass(plain.with_bad_rate), -1, 0), atol=1e-9
    )
    np.testing.assert_allclose(
        belief.good(by_good),
        np.moveaxis(plain.with_background.sum(axis=0) - space.bad_mass(plain.with_background), -1, 0),
        atol=1e-9,
    )
    assert belief.never == pytest.approx(plain.hypotheses[space.never], abs=1e-9)
    assert belief.always == pytest.approx(plain.hypotheses[space.always], abs=1e-9)
    assert belief.log_evidence == pytest.approx(plain.log_evidence, abs=1e-9)
    np.testing.assert_allclose(bits, information(space, counts, plain, ONE)[..., 0], atol=1e-9)


def test_without_gaps_either_equals_the_plain_path_too() -> None:
    counts = told((6, 3), 5, 5)
    space = HypothesisSpace((6, 3), [EITHER, REGRESSION], any_of=False, most=0)
    plain = update(space, counts)
    _, belief, _ = large((6, 3), [EITHER, REGRESSION], counts)
    np.testing.assert_allclose(
        belief.probability_bad, space.bad_mass(plain.hypotheses[:, None])[..., 0], atol=1e-9
    )


@pytest.mark.parametrize(("shape", "directions"), WORLDS, ids=str)
def test_another_array_library_gives_the_same(shape: tuple[int, ...], directions: list[Direction]) -> None:
    """array-api-strict has what the standard has and nothing else."""
    counts = told(shape, 7, 6)
    _, belief, bits = large(shape, directions, counts)
    _, its_belief, its_bits = large(shape, directions, counts, like=array_api_strict.zeros(1))
    np.testing.assert_allclose(
        np.asarray(its_belief.probability_bad), belief.probability_bad, rtol=1e-9, atol=1e-12
    )
    np.testing.assert_allclose(np.asarray(its_bits), bits, rtol=1e-9, atol=1e-12)


def test_a_sharp_belief_on_a_larger_lattice_is_finite() -> None:
    counts = Counts((30, 30, 5), RateGrid.default())
    counts.add((0, 0, 0), 0, 400)
    counts.add((29, 29, 4), 200, 400)
    counts.add((15, 15, 2), 190, 400)
    _, belief, bits = large((30, 30, 5), [REGRESSION] * 3, counts)
    assert np.isfinite(bits).all()
    assert belief.probability_bad[15, 15, 2] > 0.999
    assert belief.probability_bad[0, 0, 0] < 0.001
