"""What to try next: the trial that tells most about culprit and rates, for its cost.

For a cell `x` and a block of `k` trials the observation O is "any target outcome in k trials". With Z whether
`x` is bad, and the state S the grid of hypothesis × (m, σ) × p0, the chain rule splits what O tells:

    I(S; O) = I(Z; O) + I(S; O | Z)
    I(Z; O) = H(O) − Σ_z P(z)·H(O | z)        I(S; O) = H(O) − Σ_s P(s)·H(O | s)

(H: binary entropy in bits.) The first term serves the answer, the second, how often bad and good combinations
fail, only serves it later on: it counts with the weight `RATES_WEIGHT`. At 1 many trials refine rates that
are known well enough; at 0 the background is never learnt, and answers are wrong too often. The sums need
only the cell's posterior weight of being bad at each (m, σ), and of being good at each p0.

Score: `max_k I_k(x) / (k + B_x)`, where B_x is the price, in trials, of an environment that is not built yet.
Single-trial information per cost would keep buying nearly worthless trials in environments that are built.
"""

from __future__ import annotations

import numpy as np
from scipy.special import entr

from bisect_env.search.families import FloatArray
from bisect_env.search.posterior import Belief, Counts
from bisect_env.search.space import HypothesisSpace

RATES_WEIGHT = 0.5
BLOCKS = np.array([1.0, 4.0, 10.0, 25.0, 50.0])


def binary_entropy(p: FloatArray) -> FloatArray:
    """Entropy in bits of a yes/no with probability p, elementwise."""
    clipped = np.clip(p, 0.0, 1.0)
    return np.asarray((entr(clipped) + entr(1.0 - clipped)) / np.log(2.0), dtype=np.float64)


def any_hit(rates: FloatArray) -> FloatArray:
    """Chance of at least one hit in each block at each rate, shape (rates, blocks)."""
    return np.asarray(1.0 - (1.0 - rates[:, None]) ** BLOCKS, dtype=np.float64)


def information(space: HypothesisSpace, counts: Counts, belief: Belief) -> FloatArray:
    """Bits that each block of trials of each cell tells, rates at their weight, shape (*lattice, blocks)."""
    grid = counts.grid
    bad = space.bad_mass(belief.with_bad_rate)
    good = belief.with_background.sum(axis=0) - space.bad_mass(belief.with_background)
    by_rate = any_hit(grid.rates)
    if_bad = grid.kernel @ by_rate
    hit = bad @ if_bad
    known = bad @ binary_entropy(if_bad)
    # A cell's own past sharpens its own rate where rates may differ; only cells with trials need it.
    for index, own_rate in counts.own_rate.items():
        own = own_rate @ by_rate
        hit[index] = bad[index] @ own
        known[index] = bad[index] @ binary_entropy(own)
    if_good = any_hit(grid.p0)
    hit_good = good @ if_good
    known = known + good @ binary_entropy(if_good)
    known_side = _entropy_given_side(hit, bad) + _entropy_given_side(hit_good, good)
    unknown = RATES_WEIGHT * known + (1 - RATES_WEIGHT) * known_side
    return np.asarray(np.maximum(binary_entropy(hit + hit_good) - unknown, 0.0), dtype=np.float64)


def _entropy_given_side(hit: FloatArray, weights: FloatArray) -> FloatArray:
    """P(z)·H(O | z) for one side, from P(z, O) of shape (*lattice, blocks) and P(z, rates)."""
    chance = np.maximum(weights.sum(axis=-1), 1e-300)[..., None]
    return np.asarray(chance * binary_entropy(hit / chance), dtype=np.float64)


def scores(info: FloatArray, build_cost: FloatArray) -> FloatArray:
    """Best information per unit of cost over the blocks.

    Args:
        info: Shape (*lattice, blocks), bits.
        build_cost: Shape of the lattice: price of the environment in trials, 0 where it exists.

    Returns:
        Shape of the lattice, bits per trial-equivalent.
    """
    return np.asarray((info / (BLOCKS + build_cost[..., None])).max(axis=-1), dtype=np.float64)
