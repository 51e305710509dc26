"""Which combination a user means by `--at torch=2.3,cuml=24.04`. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from bisect_env.errors import UsageError
from bisect_env.matrix.combination import Combination
from bisect_env.matrix.grid import Grid, GridAxis
from bisect_env.matrix.problems import near

NAMED = ("first-bad", "last-good")
"""What a study that has been answered calls by name."""

_BETWEEN = re.compile(r"[,\s]+(?=[\w.-]+=)")


def parse_at(text: str) -> dict[str, str]:
    """Read `axis=value,axis=value`.

    Args:
        text: As the user gave it; blanks may stand instead of commas, as reports write combinations. What
            no `name=` follows belongs to the value.

    Returns:
        Axis to value, in the order given.

    Raises:
        UsageError: It cannot be read, or names an axis twice.
    """
    remedy = "write it like --at torch=2.3.1,cuml=24.04"
    pairs: dict[str, str] = {}
    for word in filter(None, _BETWEEN.split(text.strip())):
        name, equals, value = word.partition("=")
        if not equals or not name or not value:
            raise UsageError(f"--at: {word!r} is not axis=value", remedy=remedy)
        if name in pairs:
            raise UsageError(f"--at: {name} is named twice", remedy=remedy)
        pairs[name] = value
    if not pairs:
        raise UsageError("--at: nothing is named", remedy=remedy)
    return pairs


def find_combination(
    grid: Grid, text: str | None, named: Mapping[str, Mapping[str, str]] | None = None
) -> Combination:
    """The combination that a user means.

    An axis with one value need not be named; a version may be shortened where that is unique (`2.3` for
    2.3.1).

    Args:
        grid: As expanded.
        text: `axis=value,...`, `first-bad` or `last-good`, `good` or `bad` for the stated ends of the
            matrix; None where every axis has but one value.
        named: What `first-bad` and `last-good` are, if the study has been answered.

    Raises:
        UsageError: No such axis or value, an axis is missing, or there is no answer yet.
    """
    ends = {"good": grid.good, "bad": grid.bad}
    if text in ends:
        index = ends[text]
        if index is None:
            raise UsageError(
                f"--at: the matrix states no {text} end", remedy=f"add `{text}:` to it, or name every axis"
            )
        return grid.combination(index)
    if text in NAMED:
        if not (named and named.get(text)):
            raise UsageError(
                f"--at: there is no {text} yet",
                remedy="`bisect-env run MATRIX` finds it; or name every axis, like --at torch=2.3.1",
            )
        pairs = dict(named[text])
    else:
        pairs = {} if text is None else parse_at(text)
    known = {axis.name: axis for axis in grid.axes}
    for name in pairs:
        if name not in known:
            raise UsageError(f"--at: the matrix has no axis {name!r}", remedy=near(name, known))
    missing = [axis for axis in grid.axes if axis.name not in pairs and len(axis.values) > 1]
    if missing:
        example = ",".join(f"{axis.name}={axis.values[-1]}" for axis in missing)
        names = ", ".join(axis.name for axis in missing)
        raise UsageError(f"--at: no value for {names}", remedy=f"add it, like --at {example}")
    return Combination(
        tuple((axis.name, _value(axis, pairs.get(axis.name, axis.values[0]))) for axis in grid.axes)
    )


def _value(axis: GridAxis, wanted: str) -> str:
    if wanted in axis.values:
        return wanted
    if (why := axis.dropped.get(wanted)) is not None:
        raise UsageError(f"--at: {axis.name}={wanted} was left out: {why}", remedy=near(wanted, axis.values))
    longer = [value for value in axis.values if value.startswith(f"{wanted}.")]
    if len(longer) == 1:
        return longer[0]
    if longer:
        raise UsageError(
            f"--at: {axis.name}={wanted} may be {', '.join(longer)}", remedy="give the whole version"
        )
    raise UsageError(
        f"--at: {wanted!r} is no value of the axis {axis.name}", remedy=near(wanted, axis.values)
    )
