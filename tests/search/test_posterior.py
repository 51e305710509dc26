"""The posterior against the plain sum over every hypothesis and every rate."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

from bisect_env.matrix.grid import Direction
from bisect_env.search.acquisition import BLOCKS, RATES_WEIGHT, binary_entropy, information, scores
from bisect_env.search.posterior import Belief, Counts, update
from bisect_env.search.rates import RateGrid
from bisect_env.search.space import HypothesisSpace
from tests.search.worlds import EITHER, REGRESSION


def small_rates() -> RateGrid:
    """Three typical rates, shared or spread, and three backgrounds: few enough for plain loops."""
    rates = np.array([0.05, 0.1, 0.3, 0.6, 1.0])
    m = np.array([0.1, 0.3, 1.0, 0.1, 0.3])
    spread = np.array([0.0, 0.0, 0.0, 0.5, 0.5])
    kernel = np.array(
        [
            [0, 1, 0, 0, 0],
            [0, 0, 1, 0, 0],
            [0, 0, 0, 0, 1],
            [0.25, 0.5, 0.25, 0, 0],
            [0, 0.25, 0.5, 0.25, 0],
        ]
    )
    p0 = np.array([0.0, 0.02, 0.25])
    joint = np.where(m[:, None] >= 2 * p0, np.array([0.2, 0.3, 0.1, 0.2, 0.2])[:, None] * [0.5, 0.3, 0.2], 0)
    return RateGrid(m, spread, rates, kernel, p0, joint / joint.sum())


def by_loops(space: HypothesisSpace, counts: Counts) -> tuple[list[float], float]:
    """Posterior of every hypothesis and the evidence, summed without logarithms over every rate."""
    grid = counts.grid
    weights = []
    for number in range(space.size):
        bad = space.hypothesis(number).bad_cells()
        total = 0.0
        for j in range(len(grid.m)):
            for k, p0 in enumerate(grid.p0):
                if number == space.never and grid.too_often[k]:
                    continue
                likelihood = 1.0
                for cell in np.ndindex(*space.shape):
                    y, n = int(counts.hits[cell]), int(counts.trials[cell])
                    if bad[cell]:
                        likelihood *= sum(
                            float(share) * r**y * (1 - r) ** (n - y)
                            for share, r in zip(grid.kernel[j], grid.rates, strict=True)
                        )
                    else:
                        likelihood *= p0**y * (1 - p0) ** (n - y)
                total += float(grid.joint[j, k]) * likelihood
        weights.append(float(space.prior[number]) * total)
    evidence = math.fsum(weights)
    return [w / evidence for w in weights], evidence


def randomly_told(space: HypothesisSpace, grid: RateGrid, rng: np.random.Generator) -> Counts:
    counts = Counts(space.shape, grid)
    truth = space.hypothesis(int(rng.integers(space.size))).bad_cells()
    p0, p1 = rng.choice([0.0, 0.1]), rng.choice([0.3, 1.0])
    for cell in np.ndindex(*space.shape):
        for _ in range(int(rng.integers(0, 5))):
            counts.add(cell, int(rng.random() < (p1 if truth[cell] else p0)), 1)
    return counts


@given(st.lists(st.sampled_from(list(Direction)), min_size=1, max_size=3), st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_posterior_equals_plain_sums(directions: list[Direction], seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = [int(rng.integers(1, {1: 6, 2: 4, 3: 3}[len(directions)])) for _ in directions]
    space = HypothesisSpace(shape, directions)
    counts = randomly_told(space, small_rates(), rng)
    expected, evidence = by_loops(space, counts)
    belief = update(space, counts)
    np.testing.assert_allclose(belief.hypotheses, expected, atol=1e-9)
    assert belief.log_evidence == pytest.approx(math.log(evidence), abs=1e-8)
    np.testing.assert_allclose(belief.with_bad_rate().sum(axis=1), expected, atol=1e-9)
    np.testing.assert_allclose(belief.with_background().sum(axis=1), expected, atol=1e-9)


@pytest.mark.parametrize("seed", range(2))
def test_posterior_equals_plain_sums_with_the_rates_in_use(seed: int) -> None:
    rng = np.random.default_rng(seed)
    space = HypothesisSpace((2, 3), [Direction.UNORDERED, REGRESSION])
    counts = randomly_told(space, RateGrid.default(0.2), rng)
    expected, evidence = by_loops(space, counts)
    belief = update(space, counts)
    np.testing.assert_allclose(belief.hypotheses, expected, atol=1e-9)
    assert belief.log_evidence == pytest.approx(math.log(evidence), abs=1e-8)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=25)
def test_order_of_trials_does_not_matter(seed: int) -> None:
    rng = np.random.default_rng(seed)
    space = HypothesisSpace((3, 3), [REGRESSION, EITHER])
    told = [((int(rng.integers(3)), int(rng.integers(3))), int(rng.random() < 0.3)) for _ in range(30)]
    beliefs = []
    for order in (range(30), rng.permutation(30)):
        counts = Counts((3, 3), RateGrid.default())
        for i in order:
            counts.add(told[i][0], told[i][1], 1)
        beliefs.append(update(space, counts))
    np.testing.assert_array_equal(beliefs[0].hypotheses, beliefs[1].hypotheses)


def test_counts_told_at_once_equal_counts_told_one_by_one() -> None:
    grid = RateGrid.default()
    at_once, one_by_one = Counts((2,), grid), Counts((2,), grid)
    at_once.add((1,), 3, 10)
    for i in range(10):
        one_by_one.add((1,), int(i < 3), 1)
    np.testing.assert_array_equal(at_once.log_bad, one_by_one.log_bad)
    np.testing.assert_array_equal(at_once.log_good, one_by_one.log_good)


def test_thousands_of_trials_that_fit_nothing_still_give_a_distribution() -> None:
    # Frequent at the good side, rare at the bad one: the best rates of each side exclude each other.
    space = HypothesisSpace((4,), [REGRESSION])
    counts = Counts((4,), RateGrid.default())
    for cell, hits in enumerate((2500, 2500, 250, 250)):
        counts.add((cell,), hits, 5000)
    belief = update(space, counts)
    assert np.isfinite(belief.hypotheses).all()
    assert belief.hypotheses.sum() == pytest.approx(1)
    assert np.isfinite(belief.log_evidence)


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


def test_good_cells_that_fail_at_times_do_not_stay_suspect_for_ever() -> None:
    """What was seen at background 0.05 and bad rate 0.15: no cell can be bad at the background rate."""
    seen = [(22, 465), (11, 158), (2, 51), (35, 557), (16, 310), (481, 3235), (17, 90), (23, 134)]
    space = HypothesisSpace((8,), [REGRESSION])
    counts = Counts((8,), RateGrid.default())
    for cell, (hits, trials) in enumerate(seen):
        counts.add((cell,), hits, trials)
    from_five_on = next(i for i in range(space.size) if space.hypothesis(i).bad_cells().argmax() == 5)
    assert update(space, counts).hypotheses[from_five_on] > 0.99


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


# -- information -----------------------------------------------------------------------------------------


def information_by_loops(space: HypothesisSpace, counts: Counts) -> np.ndarray:
    """What "any hit in a block" tells about good or bad, and at its weight about hypothesis and rates."""

    def entropy(p: float) -> float:
        return float(binary_entropy(np.array(p)))

    grid = counts.grid
    info = np.zeros((*space.shape, len(BLOCKS)))
    states = []
    for number in range(space.size):
        bad = space.hypothesis(number).bad_cells()
        for j in range(len(grid.m)):
            for k, p0 in enumerate(grid.p0):
                if number == space.never and grid.too_often[k]:
                    continue
                weight = float(space.prior[number] * grid.joint[j, k])
                own = {}
                for cell in np.ndindex(*space.shape):
                    y, n = int(counts.hits[cell]), int(counts.trials[cell])
                    like = (
                        grid.kernel[j] * grid.rates**y * (1 - grid.rates) ** (n - y)
                        if bad[cell]
                        else np.array([p0**y * (1 - p0) ** (n - y)])
                    )
                    weight *= float(like.sum())
                    own[cell] = like / like.sum() if like.sum() > 0 else like
                states.append((weight, bad, p0, own))
    total = sum(s[0] for s in states)
    for cell in np.ndindex(*space.shape):
        for b, block in enumerate(BLOCKS):
            known = 0.0
            chance_of, hit_of = {False: 0.0, True: 0.0}, {False: 0.0, True: 0.0}
            for weight, bad, p0, own in states:
                at = grid.rates if bad[cell] else np.array([p0])
                chance = float(own[cell] @ (1 - (1 - at) ** block))
                chance_of[bool(bad[cell])] += weight / total
                hit_of[bool(bad[cell])] += weight / total * chance
                known += weight / total * entropy(chance)
            by_side = sum(chance_of[z] * entropy(hit_of[z] / chance_of[z]) for z in chance_of if chance_of[z])
            hit = entropy(hit_of[False] + hit_of[True])
            about_side, about_state = hit - by_side, hit - known
            info[(*cell, b)] = about_side + RATES_WEIGHT * (about_state - about_side)
    return info


@pytest.mark.parametrize("seed", range(4))
def test_information_equals_plain_sums(seed: int) -> None:
    rng = np.random.default_rng(seed)
    space = HypothesisSpace((2, 3), [REGRESSION, EITHER])
    counts = randomly_told(space, small_rates(), rng)
    found = information(space, counts, update(space, counts))
    np.testing.assert_allclose(found, information_by_loops(space, counts), atol=1e-9)


def test_nothing_is_learnt_where_all_is_known() -> None:
    space = HypothesisSpace((3,), [REGRESSION])
    counts = Counts((3,), RateGrid.default())
    sure = np.zeros(space.size)
    sure[space.never] = 1.0
    joint = np.zeros((space.size, len(counts.grid.p0)))
    joint[space.never, 0] = 1.0
    of = np.arange(space.size)
    belief = Belief(sure, of, np.zeros((space.size, len(counts.grid.m))), joint, 0.0)
    assert information(space, counts, belief).max() < 1e-12


def test_dear_environments_are_scored_by_long_blocks() -> None:
    info = np.array([[0.02, 0.07, 0.15, 0.3, 0.5], [0.03, 0.1, 0.2, 0.35, 0.55]])
    assert scores(info, np.array([0.0, 0.0])).argmax() == 1
    assert scores(info, np.array([0.0, 90.0])).argmax() == 0
    assert scores(info, np.array([90.0, 0.0]))[0] == pytest.approx(0.5 / 140)
