"""The special functions of our own, against SciPy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from bisect_env.search.numeric import (
    binomial_at_most,
    clopper_pearson,
    rate_of,
    relative_entropy,
    root,
    xlogy,
)

CHANCES = st.floats(1e-6, 1.0 - 1e-6)


@given(st.integers(1, 5000), CHANCES, st.data())
def test_the_rate_at_which_few_trials_fail(trials: int, chance: float, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, trials - 1))
    expected = special.betaincinv(hits + 1, trials - hits, 1.0 - chance)
    assert rate_of(hits, trials, chance) == pytest.approx(expected, rel=1e-6, abs=1e-9)


@given(st.integers(0, 3000), st.data())
def test_intervals(trials: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, trials))
    low, high = clopper_pearson(hits, trials)
    expected = stats.binomtest(hits, trials).proportion_ci() if trials else (0.0, 1.0)
    assert (low, high) == (pytest.approx(expected[0], abs=1e-8), pytest.approx(expected[1], abs=1e-8))


@given(st.integers(1, 500), st.data())
def test_binomial_sums(trials: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(-1, trials))
    rates = np.array([0.0, 1e-4, 0.02, 0.3, 0.99, 1.0])
    expected = special.bdtr(hits, trials, rates) if hits >= 0 else np.zeros_like(rates)
    np.testing.assert_allclose(binomial_at_most(hits, trials, rates), expected, rtol=1e-8, atol=1e-12)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # SciPy's, where a logarithm is infinite
def test_products_with_logarithms() -> None:
    x, y = np.array([0.0, 0.0, 0.5, 2.0]), np.array([0.0, 1.0, 0.25, 3.0])
    np.testing.assert_allclose(xlogy(x, y), special.xlogy(x, y))
    assert relative_entropy(0.2, 0.3) == pytest.approx(special.rel_entr(0.2, 0.3))
    assert relative_entropy(0.0, 0.3) == 0.0


def test_roots() -> None:
    assert root(lambda x: x * x - 2.0, 0.0, 2.0) == pytest.approx(math.sqrt(2.0), abs=1e-12)
    assert root(lambda x: 2.0 - x * x, 0.0, 2.0) == pytest.approx(math.sqrt(2.0), abs=1e-12)
    with pytest.raises(ValueError, match="no root"):
        root(lambda x: x + 1.0, 0.0, 1.0)
