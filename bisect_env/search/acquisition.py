"""Chooses the trial that tells most about culprit and rates for its cost.

For a cell `x` and a block of `k` trials the observation O is "any target outcome in k trials". With Z whether
`x` is bad, and the state S the grid of hypothesis × (m, σ) × p0, the chain rule splits what O tells:

    I(S; O) = I(Z; O) + I(S; O | Z)
    I(Z; O) = H(O) − Σ_z P(z)·H(O | z)        I(S; O) = H(O) − Σ_s P(s)·H(O | s)

(H: binary entropy in bits.) The first term serves the answer, the second, how often bad and good combinations
fail, only serves it later on: it counts with the weight `RATES_WEIGHT`. At 1 many trials refine rates that
are known well enough; at 0 the background is never learnt, and answers are wrong too often. The sums need
only the cell's posterior weight of being bad at each (m, σ), and of being good at each p0.

Once one answer leads, what counts is which hypothesis h is true, and nothing else:

    I(h; O) = H(O) − Σ_h P(h)·H(O | h)

whose sums run over the few hypotheses that are left and the cells that the first score likes best.

Score: `max_k I_k(x) / (k + B_x)`, where B_x is the price, in trials, of an environment that is not built yet.
Single-trial information per cost would keep buying nearly worthless trials in environments that are built.
Where B_x = 0 a single trial always scores best, for I_k ≤ k·I_1: k trials tell at most k times what one does,
and "any of them hit" tells no more than the k outcomes.

Source of the sums: D. V. Lindley, *On a measure of the information provided by an experiment*, Annals of
Mathematical Statistics 27 (1956), 986-1005.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bisect_env.search.families import FloatArray
from bisect_env.search.numeric import entropy
from bisect_env.search.posterior import Belief
from bisect_env.search.space import HypothesisSpace
from bisect_env.search.tallies import Counts

RATES_WEIGHT = 0.5
BLOCKS = np.array([1.0, 4.0, 10.0, 25.0, 50.0])
ONE = BLOCKS[:1]
LEADING = 0.2
"""Posterior of an answer from which on trials are chosen for what they tell about hypotheses alone."""
_HYPOTHESES_LEFT = 64
_CELLS_LIKED = 32
_LN2 = float(np.log(2.0))


def binary_entropy(p: FloatArray) -> FloatArray:
    """Return the entropy, in bits, of a binary outcome with probability p, elementwise."""
    clipped = np.minimum(np.maximum(p, 0.0), 1.0)
    return np.asarray((entropy(clipped) + entropy(1.0 - clipped)) / _LN2, dtype=np.float64)


def any_hit(rates: FloatArray, blocks: FloatArray = BLOCKS) -> FloatArray:
    """Return the probability of at least one hit per block of trials and rate, shape (rates, blocks)."""
    if len(blocks) == 1 and blocks[0] == 1.0:
        return rates[:, None]
    return np.asarray(1.0 - (1.0 - rates[:, None]) ** blocks, dtype=np.float64)


def information(
    space: HypothesisSpace,
    counts: Counts,
    belief: Belief,
    blocks: FloatArray = BLOCKS,
    *,
    bad_cells: tuple[FloatArray, FloatArray] | None = None,
) -> FloatArray:
    """Return the expected information of each block of trials of each cell, in bits.

    Information about the rates counts with the weight `RATES_WEIGHT`.

    Args:
        space: The hypotheses.
        counts: What was seen.
        belief: The posterior.
        blocks: Numbers of trials, shape (B,).
        bad_cells: `belief.bad_cells(space)` if it is known.

    Returns:
        Shape (*lattice, B).
    """
    grid = counts.grid
    bad, not_good = belief.bad_cells(space) if bad_cells is None else bad_cells
    good = np.maximum(belief.backgrounds - not_good, 0.0)
    by_rate = any_hit(grid.rates, blocks)
    if_bad = grid.kernel @ by_rate
    hit = bad @ if_bad
    known = bad @ binary_entropy(if_bad)
    # A cell's own past sharpens its own rate where rates may differ; only cells with trials need it.
    if counts.own_rate:
        tried = tuple(np.array(list(counts.own_rate)).T)
        own = np.stack(list(counts.own_rate.values())) @ by_rate
        weights = bad[tried][:, None, :]
        hit[tried] = (weights @ own)[:, 0]
        known[tried] = (weights @ binary_entropy(own))[:, 0]
    by_p0 = any_hit(grid.p0, blocks)
    hit_good = good @ by_p0
    known = known + good @ binary_entropy(by_p0)
    known_side = _entropy_given_side(hit, bad) + _entropy_given_side(hit_good, good)
    unknown = RATES_WEIGHT * known + (1 - RATES_WEIGHT) * known_side
    return np.asarray(np.maximum(binary_entropy(hit + hit_good) - unknown, 0.0), dtype=np.float64)


def _entropy_given_side(hit: FloatArray, weights: FloatArray) -> FloatArray:
    """Return P(z)·H(O | z) for one side, from P(z, O) of shape (*lattice, blocks) and P(z, rates)."""
    chance = np.maximum(weights.sum(axis=-1), 1e-300)[..., None]
    return np.asarray(chance * binary_entropy(hit / chance), dtype=np.float64)


def information_on_answer(
    space: HypothesisSpace, counts: Counts, belief: Belief, cells: NDArray[np.intp], blocks: FloatArray
) -> FloatArray:
    """Return the expected information of each block of trials about which hypothesis is true, in bits.

    Only the `_HYPOTHESES_LEFT` most probable hypotheses are compared.

    Args:
        space: The hypotheses.
        counts: What was seen.
        belief: The posterior.
        cells: Flat positions on the lattice, shape (X,).
        blocks: Numbers of trials, shape (B,).

    Returns:
        Shape (X, B).
    """
    grid = counts.grid
    left = np.arange(space.size)
    if space.size > _HYPOTHESES_LEFT:
        left = np.argpartition(-belief.hypotheses, _HYPOTHESES_LEFT)[:_HYPOTHESES_LEFT]
    chance = belief.hypotheses[left]
    total = float(chance.sum())
    by_rate = any_hit(grid.rates, blocks)
    shared = grid.kernel @ by_rate
    by_p0 = any_hit(grid.p0, blocks)
    own = np.empty((len(cells), *shared.shape))
    for place, cell in enumerate(zip(*np.unravel_index(cells, space.shape), strict=True)):
        index = tuple(int(i) for i in cell)
        seen = counts.own_rate.get(index)
        own[place] = shared if seen is None else seen @ by_rate
    # P(h, O) if the cell is bad under h, and if it is good; shapes (H, X, B).
    if_bad = np.tensordot(belief.with_bad_rate(left), own, axes=(1, 1))
    if_good = (belief.with_background(left) @ by_p0)[:, None, :]
    calls_bad = space.judged(left, cells)
    joint = np.where(calls_bad[:, :, None], if_bad, if_good) / total
    share = np.maximum(chance / total, 1e-300)[:, None, None]
    given = (share * binary_entropy(joint / share)).sum(axis=0)
    return np.asarray(np.maximum(binary_entropy(joint.sum(axis=0)) - given, 0.0), dtype=np.float64)


def scores(info: FloatArray, build_cost: FloatArray, blocks: FloatArray = BLOCKS) -> FloatArray:
    """Return the highest information per unit of cost over the blocks, for each cell.

    Args:
        info: Shape (*lattice, blocks), bits.
        build_cost: Shape of the lattice: price of the environment in trials, 0 where it exists.
        blocks: Numbers of trials, shape (blocks,).

    Returns:
        Shape of the lattice, bits per trial-equivalent.
    """
    return np.asarray((info / (blocks + build_cost[..., None])).max(axis=-1), dtype=np.float64)


def choose(
    space: HypothesisSpace,
    counts: Counts,
    belief: Belief,
    build_cost: FloatArray,
    visible: NDArray[np.bool_],
    leading: float,
) -> tuple[int, FloatArray, FloatArray]:
    """Return the cell whose next trial has the highest expected information per cost.

    Args:
        space: The hypotheses.
        counts: Counts so far, including trials under way.
        belief: The posterior given these counts.
        build_cost: As for `scores`.
        visible: Cells that may be chosen; at least one.
        leading: Posterior of the best answer.

    Returns:
        The cell's flat position on the lattice; the score of every cell from `information` alone (0 for cells
        that may not be chosen); and the probability that each cell is bad. Both arrays have the shape of the
        lattice.
    """
    blocks = BLOCKS if build_cost.any() else ONE
    bad_cells = belief.bad_cells(space)
    told_by = information(space, counts, belief, blocks, bad_cells=bad_cells)
    every = np.where(visible, scores(told_by, build_cost, blocks), 0.0)
    bad = bad_cells[0].sum(axis=-1)
    score = np.where(visible, every, -np.inf).ravel()
    if leading < LEADING:
        return int(score.argmax()), every, bad
    liked = np.arange(score.size)
    if score.size > _CELLS_LIKED:
        liked = np.sort(np.argpartition(-score, _CELLS_LIKED)[:_CELLS_LIKED])
    told = information_on_answer(space, counts, belief, liked, blocks)
    answers = scores(told, build_cost.ravel()[liked], blocks)
    return int(liked[np.where(np.isfinite(score[liked]), answers, -np.inf).argmax()]), every, bad
