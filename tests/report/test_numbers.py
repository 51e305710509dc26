from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_env.answers.phrases import interval, percent, probability


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (0.0, "0 %"),
        (1.0, "100 %"),
        (0.164, "16 %"),
        (0.0164, "1.6 %"),
        (0.03, "3 %"),
        (1e-9, "< 0.1 %"),
        (0.9999, "> 99.9 %"),
        (0.995, "99.5 %"),
        (0.0999, "10 %"),
    ],
)
def test_rates(rate: float, expected: str) -> None:
    assert percent(rate) == expected


def test_intervals() -> None:
    assert interval(0.107, 0.236) == "11–24 %"
    assert interval(0.0, 0.0298) == "0–3 %"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.9712, "97 %"),
        (0.9799, "97 %"),
        (0.9949, "99.4 %"),
        (0.99951, "> 99.9 %"),
        (1.0, "> 99.9 %"),
        (0.0, "0 %"),
    ],
)
def test_probabilities_are_never_rounded_up(value: float, expected: str) -> None:
    assert probability(value) == expected


@given(st.floats(0.0, 1.0))
def test_certainty_is_never_shown_where_there_is_none(value: float) -> None:
    assert (percent(value) == "100 %") == (value == 1.0)
    assert (percent(value) == "0 %") == (value == 0.0)
    assert probability(value) != "100 %"
