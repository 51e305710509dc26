"""Labels each combination good or bad by itself, where no rule explains what was seen. Pure.

Without a rule every combination is bad or good by itself, one as likely as the other, and what they share are
the rates: with P(y of n | bad) and P(y of n | good) of each as in `rates.py`,

    w(rates) ∝ prior(rates) · Π_x ½ (P_x(bad) + P_x(good))
    P(x is bad) = Σ over rates of w · P_x(bad) / (P_x(bad) + P_x(good))

A combination whose probability reaches the confidence either way carries a label, and labels are bisected
(`bisect.py`): no truth takes longer than trying every combination as often.
"""

from __future__ import annotations

import numpy as np

from bisect_env.matrix.grid import Index
from bisect_env.search.stopping import clean_trials
from bisect_env.search.tallies import Counts

_PATIENCE = 6
"""A combination that stays in between for so many times the usual trials is called what is likelier."""


def chances(counts: Counts) -> dict[Index, float]:
    """Return the probability that each tried combination is bad, without assuming any rule."""
    cells = list(counts.own_rate)
    if not cells:
        return {}
    where = tuple(np.array(cells).T)
    columns, backgrounds = np.nonzero(counts.grid.joint)
    bad = counts.log_bad[where][:, columns]
    good = counts.log_good[where][:, backgrounds]
    both = np.logaddexp(bad, good)
    log_weight = np.log(counts.grid.joint[columns, backgrounds]) + both.sum(axis=0)
    weight = np.exp(log_weight - log_weight.max())
    probability = np.exp(bad - both) @ (weight / weight.sum())
    return {cell: float(p) for cell, p in zip(cells, probability, strict=True)}


def labels(
    counts: Counts, chance: dict[Index, float], confidence: float, bad_rate: float
) -> dict[Index, bool]:
    """Return the labels of the combinations that have one: true means bad.

    Args:
        counts: Counts so far.
        chance: Probability of being bad, from `chances`.
        confidence: Probability that a label must have; after many trials the likelier label is given anyway.
        bad_rate: Typical target rate of bad combinations.
    """
    enough = _PATIENCE * clean_trials(bad_rate)
    return {
        cell: p >= 0.5
        for cell, p in chance.items()
        if max(p, 1.0 - p) >= confidence or counts.trials[cell] >= enough
    }


def usual_trials(bad_rate: float, background: float) -> int:
    """Return about how many trials a combination needs before it gets a label."""
    return int(np.ceil(clean_trials(bad_rate) * (1.0 + 4.0 * min(background / max(bad_rate, 1e-9), 0.5))))
