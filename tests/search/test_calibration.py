"""95 % means 95 %: studies with truths from the search's own prior, and with fixed ones.

`heavy` plays 2,000 studies from the prior and 50 for each fixed truth, which takes several minutes; the quick
version is the same with fewer. Seeds are fixed, so that a failure repeats.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.search_calibration import CLAIMS, calibrate


def check(found: dict[str, Any], name: str) -> None:
    """Of the studies that claimed at least q, at least q were right, within three standard errors."""
    for claim in found["claims"]:
        q, count = claim["at_least"], claim["studies"]
        if count:
            slack = 3 * np.sqrt(q * (1 - q) / count)
            assert claim["right"] >= q - slack, f"{name}: {claim}"


def check_intervals(found: dict[str, Any]) -> None:
    """Intervals of 95 % hold the truth at least so often, within three standard errors."""
    assert found["intervals_held"] >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / found["intervals"])


@pytest.mark.statistical
def test_claims_hold_over_the_prior() -> None:
    found = calibrate(studies=60, fixed=2, seed=7, processes=1)
    check(found, "prior")
    check(found["fixed_together"], "fixed truths")
    check_intervals(found)
    # The sum of what was claimed is the expected number of right answers.
    assert found["right"] >= found["expected_right"] - 3 * np.sqrt(60 * 0.25 * 0.5)


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_claims_hold_over_two_thousand_studies_and_a_grid_of_truths() -> None:
    found = calibrate(studies=2000, fixed=50, seed=1, processes=2)
    check(found, "prior")
    for name, one in found["fixed"].items():
        check(one, name)
    check(found["fixed_together"], "fixed truths")
    check_intervals(found)
    check_intervals(found["fixed_together"])
    assert {claim["at_least"] for claim in found["claims"] if claim["studies"] >= 200} == set(CLAIMS)
