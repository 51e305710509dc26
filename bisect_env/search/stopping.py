"""Decides when an answer is sure, when it is confirmed, and what is said until then. Pure."""

from __future__ import annotations

import math

import numpy as np

from bisect_env.search.families import FloatArray
from bisect_env.search.verdict import Answer, Status

MISS = 0.05
"""How likely a bad combination may still have shown nothing where a confirmed verdict says last good."""
CAUTION = 0.05
"""Quantile of the bad rate at which that is reckoned. The mean would let a failure that was seen in three
trials of three count as certain, and one pass at the last good combination as proof."""
FAILURES = 2
"""How often the first bad combination must have failed: one failure of one trial convinces no reader."""

# The posterior averages over rates. Where background and bad rate lie close together, the truth is on the
# unlucky side of that average more often than the stated error: the error allowed shrinks with their ratio,
# to a fifth (0.99 for a stated 0.95) at a ratio of one third.
_NOISE_SLOPE = 2.4
_LEAST_ERROR_SHARE = 0.2


def quantile(values: FloatArray, chances: FloatArray, share: float) -> float:
    """Return the smallest of ascending values at which the cumulative chance reaches a share of the whole."""
    cumulative = np.cumsum(chances)
    place = int(np.searchsorted(cumulative, share * cumulative[-1]))
    return float(values[min(place, len(values) - 1)])


def required_confidence(stated: float, bad_rate: float, background: float) -> float:
    """Return the posterior that an answer must reach: the stated confidence, or more where noise is high.

    Args:
        stated: Confidence that the user asked for.
        bad_rate: Typical target rate of bad combinations, above 0.
        background: Target rate of good ones.
    """
    share = max(_LEAST_ERROR_SHARE, 1.0 - _NOISE_SLOPE * background / bad_rate)
    return 1.0 - (1.0 - stated) * share


def clean_trials(rate: float) -> int:
    """Return how many passes in a row show that a combination does not fail at `rate`.

    At that rate it would have failed with probability 1 − `MISS`: `(1 − rate)^n ≤ MISS`. The number is at
    least one.
    """
    # One trial is exactly enough at the highest rate, whatever rounding makes of the quotient.
    return math.ceil(math.log(MISS) / math.log1p(-min(rate, 1.0 - MISS)) - 1e-9)


def judge(
    best: Answer, *, required: float, stands: bool, certain: bool, rule: bool, tried: bool = True
) -> tuple[Status, str]:
    """Return the status of an answer and the reason for it.

    Args:
        best: The most probable answer.
        required: Posterior at which the answer counts as sure.
        stands: Whether the answer is sure and both sides of its boundary were tried.
        certain: Whether each tried combination always failed or always passed.
        rule: Whether a rule describes what fails.
        tried: Whether anything was tried.
    """
    kind, chance = best.hypothesis.kind, best.probability
    if not tried:
        return Status.NONE, "nothing was tried yet"
    if kind == "never":
        return Status.NONE, (
            "never bad: no combination shows the failure" if stands else "no failure was seen often enough"
        )
    if kind == "always":
        return Status.NONE, (
            "always bad: every combination shows the failure" if stands else "no combination was seen to pass"
        )
    if stands and not best.boundaries:
        return Status.LIKELY, (
            "of combinations that can be run, no two that differ on one axis alone lie on both sides"
        )
    if stands and not rule:
        return Status.CONFIRMED, (
            "no simple rule describes what fails; these two neighbours differ, whatever the rest does"
        )
    if stands and certain:
        return Status.CONFIRMED, "every bad combination failed and every good one passed"
    if stands:
        return Status.CONFIRMED, f"probability {chance:.3f}, and both sides of the boundary were tried"
    if chance <= 0.5:
        return Status.NONE, "no answer is likely enough yet"
    if chance < required:
        return Status.LIKELY, f"probability {chance:.3f}, below the {required:.3g} asked for"
    return Status.LIKELY, "both sides of the boundary, or versions far from it, need more trials"
