"""Decide whether an answer is sure and whether it is confirmed, and give the reason in words. Pure."""

from __future__ import annotations

import math

import numpy as np

from bisect_env.search.families import FloatArray
from bisect_env.search.numeric import passes_to_exclude
from bisect_env.search.verdict import Answer, Status

MISS = 0.05
"""Maximum probability that a combination reported as last good is bad and only passed by chance."""
CAUTION = 0.05
"""Quantile of the posterior of the bad rate with which `MISS` is computed. With the mean, three failures in
three trials would count as a rate of 100 %, and one pass of the last good combination as proof."""
NO_NEIGHBOURS = "of combinations that can be run, no two that differ on one axis alone lie on both sides"
"""Reason why an answer without a boundary is not confirmed."""
NOTHING_RUNS = "no combination can be tried"
"""Reason why there is no answer if no combination is left to be tried, and none was."""
FAILURES = 2
"""Minimum number of failures of the first bad combination before a verdict is confirmed."""

PRUDENCE = 0.95
"""Quantile of the posterior of the background rate that `required_confidence` is given. While little is known
about the background, the quantile is high: the most wrong answers are those of short studies in which good
combinations have passed by luck."""
_LEAST_ERROR_SHARE = 0.2
"""Minimum share of the stated error that remains allowed, however often good combinations fail."""


def quantile(values: FloatArray, chances: FloatArray, share: float) -> float:
    """Return the smallest of `values` at which their cumulative probability reaches `share` of the total.

    Args:
        values: Ascending values.
        chances: Probability of each value, up to a common factor.
        share: The share, between 0 and 1.
    """
    cumulative = np.cumsum(chances)
    place = int(np.searchsorted(cumulative, share * cumulative[-1]))
    return float(values[min(place, len(values) - 1)])


def required_confidence(stated: float, bad_rate: float, background: float) -> float:
    """Return the posterior probability that an answer must reach to count as sure.

    This is the stated confidence, or more if good combinations may fail nearly as often as bad ones: a
    posterior averages over rates, and rates that lie close together are on the unlucky side of that average.

    Args:
        stated: Confidence that the user asked for.
        bad_rate: Typical failure rate of bad combinations, above 0.
        background: Failure rate of good combinations that is not likely to be exceeded (see `PRUDENCE`).
    """
    share = max(_LEAST_ERROR_SHARE, 1.0 - background / bad_rate)
    return 1.0 - (1.0 - stated) * share


def clean_trials(rate: float) -> int:
    """Return how many passes in a row show, with error `MISS`, that a combination does not fail at `rate`."""
    return passes_to_exclude(rate, MISS)


def usual_trials(rate: float, background: float) -> int:
    """Return the approximate number of trials that a combination needs to be called good or bad.

    Args:
        rate: Failure rate of bad combinations.
        background: Failure rate of good combinations.
    """
    return math.ceil(clean_trials(rate) * (1.0 + 4.0 * min(background / max(rate, 1e-9), 0.5)))


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def judge(
    best: Answer,
    *,
    required: float,
    stands: bool,
    checks: int,
    certain: bool,
    rule: bool,
    tried: bool = True,
    can_run: bool = True,
    untried: int = 0,
) -> tuple[Status, str]:
    """Return whether an answer is confirmed, likely or neither, and the reason in words.

    Args:
        best: The most probable answer.
        required: Posterior that a confirmed answer must reach.
        stands: Whether the search may end with the answer, and both sides of its boundary were tried.
        checks: Number of trials of last good combinations that are missing.
        certain: Whether each tried combination failed in every trial or passed in every trial.
        rule: Whether a hypothesis explains the counts.
        tried: Whether any trial was counted.
        can_run: Whether any combination can be run.
        untried: Number of combinations that can be run and were not tried.
    """
    kind, chance = best.hypothesis.kind, best.probability
    if not tried:
        return Status.NONE, "nothing was tried yet" if can_run else NOTHING_RUNS
    if kind == "never":
        said = "no combination shows the failure"
        if untried:
            said = f"none of those tried shows the failure, and {untried} {_were(untried)} not tried"
        return Status.NONE, f"never bad: {said}" if stands else "no failure was seen often enough"
    if kind == "always":
        said = "every combination shows the failure"
        if untried:
            said = f"all of those tried show the failure, and {untried} {_were(untried)} not tried"
        return Status.NONE, f"always bad: {said}" if stands else "no combination was seen to pass"
    if stands and not best.boundaries:
        return Status.LIKELY, NO_NEIGHBOURS
    if not stands and chance <= 0.5:
        return Status.NONE, "no answer is likely enough yet"
    if chance < required:
        return Status.LIKELY, f"probability {chance:.3f}, below the {required:.3g} asked for"
    if not stands:
        return Status.LIKELY, "both sides of the boundary, or versions far from it, need more trials"
    if checks:
        return Status.LIKELY, f"passes that the last good side still wants: {checks}"
    if not rule:
        return Status.CONFIRMED, (
            "no simple rule describes what fails; these two neighbours differ, whatever the rest does"
        )
    if certain:
        return Status.CONFIRMED, "every bad combination failed and every good one passed"
    return Status.CONFIRMED, f"probability {chance:.3f}, and both sides of the boundary were tried"
