"""Clopper and Pearson's interval, against tables, its definition, and its promise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from bisect_env.search.numeric import clopper_pearson


@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"),
    [
        # R: binom.test(x, n)$conf.int
        (5, 10, 0.18709, 0.81291),
        (1, 10, 0.00253, 0.44502),
        (9, 10, 0.55498, 0.99747),
    ],
)
def test_known_values(hits: int, trials: int, low: float, high: float) -> None:
    assert clopper_pearson(hits, trials) == pytest.approx((low, high), abs=2e-5)


@pytest.mark.parametrize("trials", [1, 2, 10, 122, 427, 100_000])
def test_the_ends_are_exact(trials: int) -> None:
    # With no hit, (1 - high)^n = α/2; the other way round with hits only.
    low, high = clopper_pearson(0, trials)
    assert low == 0.0
    assert high == pytest.approx(1 - 0.025 ** (1 / trials), rel=1e-9)
    assert clopper_pearson(trials, trials) == (pytest.approx(0.025 ** (1 / trials), rel=1e-9), 1.0)


def test_no_trials_say_nothing() -> None:
    assert clopper_pearson(0, 0) == (0.0, 1.0)


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.999))
def test_its_ends_are_where_the_tails_have_half_of_the_error(
    counts: tuple[int, int], confidence: float
) -> None:
    hits, trials = counts
    low, high = clopper_pearson(hits, trials, confidence)
    tail = (1 - confidence) / 2
    assert low <= hits / trials <= high
    if hits > 0:
        assert binom.sf(hits - 1, trials, low) == pytest.approx(tail, rel=1e-6)
    if hits < trials:
        assert binom.cdf(hits, trials, high) == pytest.approx(tail, rel=1e-6)


@pytest.mark.slow
@given(st.integers(1, 40), st.floats(1e-6, 1 - 1e-6))
def test_it_misses_no_rate_more_often_than_it_says(trials: int, rate: float) -> None:
    misses = 0.0
    for hits in range(trials + 1):
        low, high = clopper_pearson(hits, trials)
        if not low <= rate <= high:
            misses += float(binom.pmf(hits, trials, rate))
    assert misses <= 0.05 + 1e-9


@pytest.mark.parametrize(
    ("hits", "trials", "confidence"), [(-1, 5, 0.95), (6, 5, 0.95), (1, 5, 1.0), (1, 5, 0.0)]
)
def test_counts_that_are_none(hits: int, trials: int, confidence: float) -> None:
    with pytest.raises(ValueError, match="no interval"):
        clopper_pearson(hits, trials, confidence)
