"""What to try next: the trial that tells most about culprit and rates together, for its cost.

For a cell `x` and a block of `k` trials the observation is "any target outcome in k trials". Its information
about (hypothesis, rates) is

    I_k(x) = H(P(hit)) − Σ_states P(state)·H(P(hit | state))

with H the binary entropy in bits and the states the grid of hypothesis × (m, σ) × p0. The sums need only the
cell's posterior weight of being bad at each (m, σ), and of being good at each p0.

Score: `max_k I_k(x) / (k + B_x)`, where B_x is the price, in trials, of an environment that is not built yet.
Single-trial information per cost would keep buying nearly worthless trials in environments that are built.
"""

from __future__ import annotations

import numpy as np
from scipy.special import entr

from bisect_env.search.families import FloatArray
from bisect_env.search.posterior import Belief, Counts
from bisect_env.search.space import HypothesisSpace

BLOCKS = np.array([1.0, 4.0, 10.0, 25.0, 50.0])


def binary_entropy(p: FloatArray) -> FloatArray:
    """Entropy in bits of a yes/no with probability p, elementwise."""
    clipped = np.clip(p, 0.0, 1.0)
    return np.asarray((entr(clipped) + entr(1.0 - clipped)) / np.log(2.0), dtype=np.float64)


def any_hit(rates: FloatArray) -> FloatArray:
    """Chance of at least one hit in each block at each rate, shape (rates, blocks)."""
    return np.asarray(1.0 - (1.0 - rates[:, None]) ** BLOCKS, dtype=np.float64)


def information(space: HypothesisSpace, counts: Counts, belief: Belief) -> FloatArray:
    """Bits that each block of trials of each cell tells about culprit and rates, shape (*lattice, blocks)."""
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
    hit = hit + good @ if_good
    known = known + good @ binary_entropy(if_good)
    return np.asarray(np.maximum(binary_entropy(hit) - known, 0.0), dtype=np.float64)


def scores(info: FloatArray, build_cost: FloatArray) -> FloatArray:
    """Best information per unit of cost over the blocks.

    Args:
        info: Shape (*lattice, blocks), bits.
        build_cost: Shape of the lattice: price of the environment in trials, 0 where it exists.

    Returns:
        Shape of the lattice, bits per trial-equivalent.
    """
    return np.asarray((info / (BLOCKS + build_cost[..., None])).max(axis=-1), dtype=np.float64)
