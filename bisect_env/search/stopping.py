"""Decides when an answer is sure, when it is confirmed, and what is said until then. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bisect_env.search.families import FloatArray
from bisect_env.search.verdict import Answer, Status

MOST_CONFIDENCE = 0.9999
"""Beyond it an answer would rest on the tails of the priors, and no number of trials makes those right."""
LEAST_RATE, MOST_RATE = 0.0001, 0.5
"""Rates that can be looked for or excluded. Some 30,000 passes clear one combination of the smallest, and
from one half on all rates cost nearly the same."""
MISS = 0.05
"""How likely a bad combination may still have shown nothing where a confirmed verdict says last good."""
CAUTION = 0.05
"""Quantile of the bad rate at which that is reckoned. The mean would let a failure that was seen in three
trials of three count as certain, and one pass at the last good combination as proof."""

# The posterior averages over rates. Where background and bad rate lie close together, the truth is on the
# unlucky side of that average more often than the stated error: the error allowed shrinks with their ratio,
# to a fifth (0.99 for a stated 0.95) at a ratio of one third.
_NOISE_SLOPE = 2.4
_LEAST_ERROR_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """When to stop.

    Attributes:
        confidence: Posterior that the answer must hold, above 0.5 and up to `MOST_CONFIDENCE`.
        min_crash_rate: Smallest crash rate that is looked for, `LEAST_RATE` to `MOST_RATE`.
        max_trials: Counted trials after which the search ends whatever is known.
        clean_rate: Rate that is to be excluded at the last good combination once the answer stands,
            `LEAST_RATE` to `MOST_RATE`.
        quick: Whether the search ends as soon as the answer stands, without checks.
        crash_rate: About how often it fails where it does, if the user says so.
        thrifty: Whether an environment costs so much that none is made to be on the safe side alone: where
            failures are certain, it is looked where `git bisect` would look, and a stated good end is tried
            only when the answer rests on it, like a stated bad one that is said to fail always; nothing is
            looked at once the answer stands that was not tried before.
        careful: Whether both stated ends are tried all the same, and before anything else.
        leaves: Whether a thrifty search may ask for commits that are no values of its axis; whoever lets it
            has to make it anew then (`Search.laid_out`).

    Raises:
        ValueError: A value is out of range.
    """

    confidence: float = 0.95
    min_crash_rate: float = 0.02
    max_trials: int = 5000
    crash_rate: float | None = None
    clean_rate: float = 0.05
    quick: bool = False
    thrifty: bool = False
    careful: bool = False
    leaves: bool = False

    def __post_init__(self) -> None:
        if not 0.5 < self.confidence <= MOST_CONFIDENCE:
            raise ValueError(f"confidence {self.confidence} is not above 0.5 and up to {MOST_CONFIDENCE}")
        for name, rate in (("min_crash_rate", self.min_crash_rate), ("clean_rate", self.clean_rate)):
            if not LEAST_RATE <= rate <= MOST_RATE:
                raise ValueError(f"{name} {rate} is not from {LEAST_RATE} to {MOST_RATE}")


def quantile(values: FloatArray, chances: FloatArray, share: float) -> float:
    """Return the smallest of ascending values at which the cumulative chance reaches a share of the whole."""
    cumulative = np.cumsum(chances)
    place = int(np.searchsorted(cumulative, share * cumulative[-1]))
    return float(values[min(place, len(values) - 1)])


def required_confidence(stated: float, bad_rate: float, background: float) -> float:
    """Posterior that an answer must hold: the stated confidence, or more where noise is high.

    Args:
        stated: Confidence that the user asked for.
        bad_rate: Typical target rate of bad combinations, above 0.
        background: Target rate of good ones.
    """
    share = max(_LEAST_ERROR_SHARE, 1.0 - _NOISE_SLOPE * background / bad_rate)
    return 1.0 - (1.0 - stated) * share


def clean_trials(rate: float) -> int:
    """Passes in a row after which a combination of this rate would have failed with probability 1 - `MISS`.

    `(1 − rate)^n ≤ miss`, at least one; rates above `1 − miss` ask for no more than that.
    """
    # One trial is exactly enough at the highest rate, whatever rounding makes of the quotient.
    return math.ceil(math.log(MISS) / math.log1p(-min(rate, 1.0 - MISS)) - 1e-9)


def judge(best: Answer, *, required: float, agreed: bool, lacking: bool) -> tuple[Status, str]:
    """Return the status of an answer and the reason for it.

    Args:
        best: The most probable answer.
        required: Posterior at which it is sure.
        agreed: Whether it is the best one under every model of the rates that is still believed.
        lacking: Whether a side of its boundary, or an interval far from it, was tried too little.
    """
    sure = best.probability >= required
    if best.hypothesis.kind == "never":
        return Status.NONE, (
            "never bad: no combination shows the failure" if sure else "no failure was seen often enough"
        )
    if best.hypothesis.kind == "always":
        return Status.NONE, (
            "always bad: every combination shows the failure" if sure else "no combination was seen to pass"
        )
    if best.probability <= 0.5:
        return Status.NONE, "no answer is likely enough yet"
    if not best.boundaries:
        return Status.LIKELY, (
            "of combinations that can be run, no two that differ on one axis alone lie on both sides"
        )
    if not sure:
        return Status.LIKELY, f"probability {best.probability:.3f}, below the {required:.3g} asked for"
    if lacking:
        return Status.LIKELY, "both sides of the boundary, or versions far from it, need more trials"
    if not agreed:
        return Status.LIKELY, "the answer depends on whether bad combinations share one crash rate"
    return Status.CONFIRMED, f"probability {best.probability:.3f}, and both sides of the boundary were tried"
