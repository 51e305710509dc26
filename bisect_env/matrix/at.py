"""Which combination a user means by `--at torch=2.3,cuml=24.04`. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from bisect_env.errors import UsageError
from bisect_env.matrix.grid import AxisKind, Combination, Grid, GridAxis
from bisect_env.matrix.problems import near

NAMED = ("first-bad", "last-good")
"""What a study that has been answered calls by name."""

_BETWEEN = re.compile(r"[,\s]+(?=[\w.-]+=)")


def parse_at(text: str, flag: str = "--at") -> dict[str, str]:
    """Read `axis=value,axis=value`.

    Args:
        text: As the user gave it; blanks may stand instead of commas, as reports write combinations. What
            no `name=` follows belongs to the value.
        flag: The option that it was given by, for messages; "" if by none.

    Returns:
        Axis to value, in the order given.

    Raises:
        UsageError: It cannot be read, or names an axis twice.
    """
    of, option = _words(flag)
    remedy = f"write it like {option}torch=2.3.1,cuml=24.04"
    pairs: dict[str, str] = {}
    for word in filter(None, _BETWEEN.split(text.strip())):
        name, equals, value = word.partition("=")
        if not equals or not name or not value:
            raise UsageError(f"{of}{word!r} is not axis=value", remedy=remedy)
        if name in pairs:
            raise UsageError(f"{of}{name} is named twice", remedy=remedy)
        pairs[name] = value
    if not pairs:
        raise UsageError(f"{of}nothing is named", remedy=remedy)
    return pairs


def find_combination(
    grid: Grid,
    text: str | None,
    named: Mapping[str, Mapping[str, str]] | None = None,
    *,
    flag: str = "--at",
) -> Combination:
    """The combination that a user means.

    An axis with one value need not be named; a version may be shortened where that is unique (`2.3` for
    2.3.1).

    Args:
        grid: As expanded.
        text: `axis=value,...`, `first-bad` or `last-good`, `good` or `bad` for the stated ends of the
            matrix; None where every axis has but one value.
        named: What `first-bad` and `last-good` are, if the study has been answered.
        flag: The option that it was given by, for messages; "" if by none.

    Raises:
        UsageError: No such axis or value, an axis is missing, or there is no answer yet.
    """
    of, option = _words(flag)
    ends = {"good": grid.good, "bad": grid.bad}
    if text in ends:
        index = ends[text]
        if index is None:
            raise UsageError(
                f"{of}the matrix states no {text} end", remedy=f"add `{text}:` to it, or name every axis"
            )
        return grid.combination(index)
    if text in NAMED:
        if not (named and named.get(text)):
            raise UsageError(
                f"{of}there is no {text} yet",
                remedy=f"`bisect-env run MATRIX` finds it; or name every axis, like {option}torch=2.3.1",
            )
        pairs = dict(named[text])
    else:
        pairs = {} if text is None else parse_at(text, flag)
    known = {axis.name: axis for axis in grid.axes}
    for name in pairs:
        if name not in known:
            raise UsageError(f"{of}the matrix has no axis {name!r}", remedy=near(name, known))
    missing = [axis for axis in grid.axes if axis.name not in pairs and len(axis.values) > 1]
    if missing:
        example = ",".join(f"{axis.name}={axis.values[-1]}" for axis in missing)
        names = ", ".join(axis.name for axis in missing)
        raise UsageError(f"{of}no value for {names}", remedy=f"add it, like {option}{example}")
    return Combination(
        tuple((axis.name, _value(axis, pairs.get(axis.name, axis.values[0]), of)) for axis in grid.axes)
    )


def _words(flag: str) -> tuple[str, str]:
    """How messages name an option: before what is wrong, and in an example."""
    return (f"{flag}: ", f"{flag} ") if flag else ("", "")


def _value(axis: GridAxis, wanted: str, of: str) -> str:
    if wanted in axis.values:
        return wanted
    if (why := axis.dropped.get(wanted)) is not None:
        raise UsageError(f"{of}{axis.name}={wanted} was left out: {why}", remedy=near(wanted, axis.values))
    dot = "" if axis.kind is AxisKind.COMMIT else "."
    longer = [value for value in axis.values if value.startswith(wanted + dot)]
    if len(longer) == 1:
        return longer[0]
    if longer:
        raise UsageError(f"{of}{axis.name}={wanted} may be {', '.join(longer)}", remedy="write more of it")
    raise UsageError(f"{of}{wanted!r} is no value of the axis {axis.name}", remedy=near(wanted, axis.values))
