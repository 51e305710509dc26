"""The special functions of our own, against SciPy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from bisect_env.search.numeric import (
    beta_binomial,
    beta_cdf,
    beta_quantile,
    binomial_at_most,
    clopper_pearson,
    entropy,
    logsumexp,
    relative_entropy,
    root,
    xlog1py,
    xlogy,
)

SHAPES = st.floats(0.5, 5000.0)
CHANCES = st.floats(1e-6, 1.0 - 1e-6)


@given(SHAPES, SHAPES, st.floats(0.0, 1.0))
def test_the_beta_distribution(a: float, b: float, x: float) -> None:
    assert beta_cdf(a, b, x) == pytest.approx(special.betainc(a, b, x), rel=1e-8, abs=1e-12)


@given(SHAPES, SHAPES, CHANCES)
def test_its_quantiles(a: float, b: float, chance: float) -> None:
    assert beta_quantile(a, b, chance) == pytest.approx(special.betaincinv(a, b, chance), rel=1e-6, abs=1e-9)


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


@given(st.integers(0, 300), st.floats(1e-3, 1e4), st.floats(1e-3, 1e4))
def test_hits_of_a_rate_that_is_drawn(trials: int, a: float, b: float) -> None:
    expected = stats.betabinom.pmf(np.arange(trials + 1), trials, a, b)
    np.testing.assert_allclose(beta_binomial(trials, a, b), expected, rtol=1e-6, atol=1e-12)


def test_hits_of_a_rate_that_hardly_varies_are_binomial() -> None:
    expected = stats.binom.pmf(np.arange(41), 40, 0.03)
    np.testing.assert_allclose(beta_binomial(40, 3e12, 97e12), expected, rtol=1e-9)


@given(st.lists(st.floats(-700.0, 700.0) | st.just(-math.inf), min_size=1, max_size=20))
def test_sums_of_logarithms(values: list[float]) -> None:
    array = np.array([values, values[::-1]])
    with np.errstate(divide="ignore"):
        expected = special.logsumexp(array, axis=1)
        whole = special.logsumexp(array)
    np.testing.assert_allclose(logsumexp(array, axis=1), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(logsumexp(array), whole, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(
        logsumexp(array, axis=0), special.logsumexp(array, axis=0), rtol=1e-12, atol=1e-12
    )


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # SciPy's, where a logarithm is infinite
def test_products_with_logarithms() -> None:
    x, y = np.array([0.0, 0.0, 0.5, 2.0]), np.array([0.0, 1.0, 0.25, 3.0])
    np.testing.assert_allclose(xlogy(x, y), special.xlogy(x, y))
    np.testing.assert_allclose(xlog1py(x, -y / 3.0), special.xlog1py(x, -y / 3.0))
    np.testing.assert_allclose(entropy(x), special.entr(x))
    assert relative_entropy(0.2, 0.3) == pytest.approx(special.rel_entr(0.2, 0.3))
    assert relative_entropy(0.0, 0.3) == 0.0


def test_roots() -> None:
    assert root(lambda x: x * x - 2.0, 0.0, 2.0) == pytest.approx(math.sqrt(2.0), abs=1e-12)
    assert root(lambda x: 2.0 - x * x, 0.0, 2.0) == pytest.approx(math.sqrt(2.0), abs=1e-12)
    with pytest.raises(ValueError, match="no root"):
        root(lambda x: x + 1.0, 0.0, 1.0)
