"""What is said where a failure is rarer, or more frequent, than the user told."""

from __future__ import annotations

import pytest

from bisect_env.report.doubts import rate_warnings


@pytest.mark.parametrize(
    ("stated", "bad", "trials", "warns"),
    [
        (None, 1, 100, False),
        (1.0, 10, 10, False),
        (1.0, 9, 10, True),
        (0.5, 10, 10, False),
        (0.1, 10, 10, True),
        (0.1, 3, 40, False),
        (0.5, 3, 60, True),
        (0.5, 0, 0, False),
    ],
)
def test_only_a_clear_difference_is_told(stated, bad, trials, warns):
    found = rate_warnings(stated, bad, trials)
    assert bool(found) == warns
    assert all("the answer uses the latter" in text for text in found)
