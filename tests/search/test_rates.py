"""The prior for failure rates, and what counts say about one cell."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import logsumexp

from bisect_env.search.rates import RateGrid


def test_log_likelihood_of_one_cell_stays_exact_after_many_trials() -> None:
    grid = RateGrid.default()
    log_bad, own_rate = grid.if_bad(3000, 4000)
    with np.errstate(divide="ignore"):
        exact = logsumexp(
            np.log(grid.kernel) + 3000 * np.log(grid.rates) + 1000 * np.log1p(-np.minimum(grid.rates, 1)),
            axis=1,
        )
    finite = exact > -1e6
    np.testing.assert_allclose(log_bad[finite], exact[finite], rtol=1e-9)
    assert (log_bad[~finite] < -1e6).all()
    np.testing.assert_allclose(own_rate.sum(axis=1), 1)


@pytest.mark.parametrize("min_rate", [0.001, 0.02, 0.3])
def test_rate_grid_is_a_prior(min_rate: float) -> None:
    grid = RateGrid.default(min_rate)
    np.testing.assert_allclose(grid.kernel.sum(axis=1), 1)
    assert grid.joint.sum() == pytest.approx(1)
    assert grid.m.min() == pytest.approx(min_rate)
    assert grid.m.max() == 1
    assert ((grid.joint > 0) <= (grid.m[:, None] >= 2 * grid.p0)).all()
    assert (grid.joint.sum(axis=1) > 0).all()
    # Where all cells share one rate, it is the typical one.
    shared = grid.spread == 0
    np.testing.assert_allclose((grid.kernel @ grid.rates)[shared], grid.m[shared])


@pytest.mark.parametrize("min_rate", [0.005, 0.02, 0.1])
def test_no_background_makes_a_good_cell_harder_to_clear(min_rate: float) -> None:
    grid = RateGrid.default(min_rate, two_steps=False)
    for k in range(1, len(grid.p0)):
        believed = (grid.spread > 0) & (grid.joint[:, k] > 0)
        if not believed.any():
            continue
        floor = grid.rates[(grid.kernel[believed] > 0).any(axis=0)].min()
        p0, candidates = grid.p0[k], np.geomspace(min_rate, 0.999, 4000)
        told = p0 * np.log(p0 / candidates) + (1 - p0) * np.log((1 - p0) / (1 - candidates))
        enough = candidates[(candidates > p0) & (told >= -math.log1p(-min_rate))].min()
        exact = max(enough, 2 * p0)
        # To the nearest octave below 1, and the rates of single cells are a grid themselves.
        assert floor >= min(exact / math.sqrt(2), 0.5) * (1 - 1e-3), f"background {p0}"
        assert floor <= exact * math.sqrt(2) * 1.2, f"background {p0}"


@pytest.mark.parametrize("min_rate", [0.001, 0.02, 0.3])
def test_no_bad_cell_fails_about_as_rarely_as_good_ones(min_rate: float) -> None:
    grid = RateGrid.default(min_rate)
    for column, background in zip(*np.nonzero(grid.joint), strict=True):
        possible = grid.rates[grid.kernel[column] > 0]
        assert possible.min() >= min(1.0, 1.4 * grid.p0[background])
