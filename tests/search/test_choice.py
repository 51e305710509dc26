"""What a trial is expected to tell, against the same sums spelled out."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from bisect_env.search.belief import Belief, CellCounts, believe
from bisect_env.search.choice import BLOCKS, LEADING, RATES_WEIGHT, Choice, binary_entropy
from bisect_env.search.generators import products
from bisect_env.search.rates import RateGrid
from bisect_env.search.view import LatticeView
from tests.search.worlds import EITHER, REGRESSION, alone, grid, small_rates

RNG = np.random.default_rng


def belief_of(
    shape: tuple[int, ...], counts: tuple[list[int], list[int]], rates: RateGrid | None = None
) -> Belief:
    lattice = grid(shape, [REGRESSION, EITHER][: len(shape)])
    view = LatticeView.of(lattice, alone(lattice))
    rows = products(view, None, np.ones(len(view.cells), dtype=bool))
    hits, trials = (np.array(of) for of in counts)
    return believe(rows, CellCounts(rates or RateGrid.default(), hits, trials))


def entropy(p: float) -> float:
    return float(binary_entropy(np.array(p)))


def information_by_loops(belief: Belief, block: int) -> NDArray[np.float64]:
    """What "some trial of a block fails" tells about the answer and, while none leads, about the rates."""
    counts, rates, rows = belief.counts, belief.counts.grid, belief.rows
    found = np.zeros(rows.says.shape[1])
    rates_matter = belief.answers.max() < LEADING
    for cell in range(len(found)):
        fails = given_answer = given_rates = 0.0
        y, n = int(counts.hits[cell]), int(counts.trials[cell])
        for row, weight in enumerate(belief.answers):
            if weight <= 0:
                continue
            pattern = belief.patterns.of[row]
            chance = known = 0.0
            if rows.says[row, cell]:
                columns = belief.rates(np.array([pattern]))[0][0]
                for j, share in enumerate(columns):
                    own = rates.kernel[j] * rates.rates**y * (1 - rates.rates) ** (n - y)
                    if own.sum() <= 0:
                        assert share < 1e-12
                        continue
                    for p, r in zip(own / own.sum(), rates.rates, strict=True):
                        chance += share * p * (1 - (1 - r) ** block)
                        known += share * p * entropy(1 - (1 - r) ** block)
            else:
                backgrounds = belief.rates(np.array([pattern]))[1][0]
                for share, p0 in zip(backgrounds, rates.p0, strict=True):
                    chance += share * (1 - (1 - p0) ** block)
                    known += share * entropy(1 - (1 - p0) ** block)
            fails += weight * chance
            given_answer += weight * entropy(chance)
            given_rates += weight * known
        about_answer, about_all = entropy(fails) - given_answer, entropy(fails) - given_rates
        found[cell] = about_answer
        if rates_matter:
            found[cell] += RATES_WEIGHT * (about_all - about_answer)
    return found


@pytest.mark.parametrize("block", BLOCKS[:3])
@pytest.mark.parametrize("seed", range(4))
def test_information_equals_plain_sums(seed: int, block: int) -> None:
    rng = RNG(seed)
    trials = rng.integers(0, 4, 6)
    hits = rng.binomial(trials, np.where(np.arange(6) >= 3, 0.5, 0.0))
    belief = belief_of((2, 3), (hits.tolist(), trials.tolist()), small_rates())
    found = Choice(belief, np.arange(6)).information(block)
    np.testing.assert_allclose(found, information_by_loops(belief, block), atol=1e-6)


def test_where_the_answer_is_known_little_is_left_to_learn() -> None:
    sure = belief_of((4,), ([0, 0, 60, 60], [500, 500, 120, 120]))
    assert sure.answers.max() > 1 - 1e-7
    assert Choice(sure, np.arange(4)).information().max() < 1e-6


def test_the_middle_tells_most_where_a_certain_failure_begins() -> None:
    belief = belief_of((33,), ([0] * 32 + [3], [3] + [0] * 31 + [3]))
    assert 12 <= int(Choice(belief, np.arange(33)).information().argmax()) <= 20


def test_dear_environments_are_scored_by_long_blocks() -> None:
    belief = belief_of((9,), ([0] * 8 + [3], [6] + [0] * 7 + [6]))
    choice, prices = Choice(belief, np.arange(9)), np.zeros(9)
    np.testing.assert_allclose(choice.scores(prices), choice.information())
    prices[4] = 90.0
    dear = choice.scores(prices)
    assert dear[4] == pytest.approx(max(choice.information(k)[4] / (k + 90.0) for k in BLOCKS))
    assert dear[4] < dear[3]
    assert dear[3] >= choice.information()[3]


def test_trials_of_a_batch_are_spread_and_worth_what_was_asked() -> None:
    belief = belief_of((33,), ([0] * 32 + [3], [3] + [0] * 31 + [3]))
    choice, free = Choice(belief, np.arange(33)), np.zeros(33)
    together = choice.batch(4, [], free, 0.0)
    assert len(together) == 4
    assert len(set(together)) >= 3
    assert together[0] == int(choice.information().argmax())
    assert choice.batch(1, together[:1], free, 0.0) != together[:1]
    assert len(choice.batch(60, [], free, 0.5)) < 60
    assert choice.batch(0, [], free, 0.0) == []
