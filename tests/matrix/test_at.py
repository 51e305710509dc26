"""Which combination `--at` means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_env.errors import UsageError
from bisect_env.matrix.grid import AxisKind, Direction, Grid, GridAxis, find_combination, parse_at

GRID = Grid(
    (
        GridAxis("python", AxisKind.PACKAGE, ("3.11",), Direction.REGRESSION),
        GridAxis(
            "torch",
            AxisKind.PACKAGE,
            ("2.2.2", "2.3.1", "2.10.0"),
            Direction.REGRESSION,
            {"2.4.0": "withdrawn"},
        ),
        GridAxis("order", AxisKind.VALUE, ("cuml only", "a,b", "torch"), Direction.UNORDERED),
    ),
    good=(0, 0, 0),
)


@pytest.mark.parametrize(
    ("text", "torch", "order"),
    [
        ("torch=2.3.1,order=torch", "2.3.1", "torch"),
        ("torch=2.3,order=cuml only", "2.3.1", "cuml only"),
        ("order=a,b torch=2.10.0", "2.10.0", "a,b"),
        ("python=3.11 torch=2.2 order=a,b", "2.2.2", "a,b"),
        ("first-bad", "2.10.0", "torch"),
        ("good", "2.2.2", "cuml only"),
    ],
)
def test_what_is_meant(text: str, torch: str, order: str) -> None:
    named = {"first-bad": {"python": "3.11", "torch": "2.10.0", "order": "torch"}}
    assert find_combination(GRID, text, named).as_dict() == {
        "python": "3.11",
        "torch": torch,
        "order": order,
    }


FLAGS = GridAxis("opts", AxisKind.VALUE, ("--a=1 --b=2", "--a=2, --b=2", "opts=1"), Direction.UNORDERED)


@pytest.mark.parametrize("value", FLAGS.values)
def test_a_value_may_look_like_several(value: str) -> None:
    alone = Grid((GRID.axes[0], FLAGS))
    for text in (value, f"opts={value}", f"python=3.11 opts={value}"):
        assert find_combination(alone, text)["opts"] == value
    grid = Grid((GRID.axes[1], FLAGS))
    for text in (f"torch=2.3 opts={value}", f"opts={value},torch=2.3.1"):
        assert find_combination(grid, text).as_dict() == {"torch": "2.3.1", "opts": value}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("torch", "'torch' is not axis=value"),
        ("", "nothing is named"),
        ("torch=2.3,torch=2.2", "torch is named twice"),
        ("troch=2.3,order=torch", "did you mean 'torch'?"),
        ("torch=2,order=torch", "may be 2.2.2, 2.3.1, 2.10.0"),
        ("torch=2.1,order=torch", "'2.1' is no value of the axis torch"),
        ("torch=2.4.0,order=torch", "was left out: withdrawn"),
        ("torch=2.3", "no value for order"),
        (None, "no value for torch, order"),
        ("last-good", "there is no last-good yet"),
        ("bad", "states no bad end"),
    ],
)
def test_what_cannot_be_meant_has_a_remedy(text: str | None, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        find_combination(GRID, text)
    assert says in str(refused.value)
    assert refused.value.remedy


def test_a_message_names_the_option_that_was_used() -> None:
    for flag, before, example in (
        ("--at", "--at: ", "like --at "),
        ("--good", "--good: ", "like --good "),
        ("", "", "like "),
    ):
        with pytest.raises(UsageError) as refused:
            find_combination(GRID, "torch", flag=flag)
        assert str(refused.value).startswith(f"{before}'torch' is not axis=value")
        assert refused.value.remedy == f"write it {example}torch=2.3.1,cuml=24.04"
        with pytest.raises(UsageError) as refused:
            find_combination(GRID, "torch=2.1,order=torch", flag=flag)
        assert str(refused.value).startswith(f"{before}'2.1' is no value")


@given(
    st.dictionaries(
        st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True),
        st.from_regex(r"[A-Za-z0-9.+!][A-Za-z0-9.+! ]{0,8}[A-Za-z0-9]", fullmatch=True),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([",", " ", ", "]),
)
def test_what_is_written_is_read(pairs: dict[str, str], between: str) -> None:
    assert parse_at(between.join(f"{name}={value}" for name, value in pairs.items())) == pairs
