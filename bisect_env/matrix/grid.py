"""Combinations, the expanded grid, and the selection of one by `--at`. Pure."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from bisect_env.errors import UsageError
from bisect_env.matrix.history import History, readable
from bisect_env.matrix.problems import near

# --------------------------------------------------------------------------------------------------
# One point of the matrix: a value for every axis.


@dataclass(frozen=True, slots=True)
class Combination:
    """One value per axis, in the matrix's axis order; hashable.

    Attributes:
        items: Pairs (axis name, value). Values are text: `3.10` is a version, not a number.
    """

    items: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, values: Mapping[str, str]) -> Combination:
        """Return a combination with the axes in the mapping's order."""
        return cls(tuple(values.items()))

    @property
    def key(self) -> str:
        """Return a canonical JSON text, equal for equal combinations in every process and release."""
        return json.dumps(self.items, separators=(",", ":"), ensure_ascii=False)

    def as_dict(self) -> dict[str, str]:
        """Return axis name to value, in axis order."""
        return dict(self.items)

    def __getitem__(self, axis: str) -> str:
        for name, value in self.items:
            if name == axis:
                return value
        raise KeyError(axis)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.items)

    def __str__(self) -> str:
        return readable(" ".join(f"{name}={value}" for name, value in self.items))


# --------------------------------------------------------------------------------------------------
# The expanded matrix: concrete values on every axis, and which combinations a rule takes out.

Index = tuple[int, ...]
"""A combination as positions on the axes, in axis order."""


class AxisKind(StrEnum):
    """A kind of axis: what changes along it."""

    PACKAGE = "package"
    """The exact version of one package (or of Python itself)."""
    VALUE = "value"
    """A value handed to the script; the environment stays the same."""
    DATE = "date"
    """The day as of which everything not pinned is resolved."""
    ENVIRONMENT = "environment"
    """A whole list of packages, such as what a lock of another tool says."""
    COMMIT = "commit"
    """The commit that one package is built from."""


class Direction(StrEnum):
    """A direction of an axis: where along it the bad values may lie."""

    REGRESSION = "regression"
    """From some value on."""
    FIXED = "fixed"
    """Up to some value."""
    EITHER = "either"
    """Any run of neighbouring values: broken, then fixed."""
    UNORDERED = "unordered"
    """Values without an order: one of them, all but one, or all."""


@dataclass(frozen=True, slots=True)
class GridAxis:
    """One axis with its values in ascending order (oldest version or date first).

    Attributes:
        name: The axis's name in the matrix file.
        kind: What it changes.
        values: At least one, without duplicates.
        direction: Where the bad values may lie.
        dropped: Value to reason, for values of a range that were left out (withdrawn, no wheel for this
            platform, pre-release).
        passed_over: Releases of a range that `step` skipped in favour of the newest of their group,
            ascending; empty if the range is not to be refined.
        history: For an axis of commits, the history that its values are chosen from.
        unfit: Value to Python version to reason, for values that have no release for that Python.
    """

    name: str
    kind: AxisKind
    values: tuple[str, ...]
    direction: Direction
    dropped: Mapping[str, str] = field(default_factory=dict)
    passed_over: tuple[str, ...] = ()
    history: History | None = field(default=None, compare=False, repr=False)
    unfit: Mapping[str, Mapping[str, str]] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Grid:
    """The lattice of combinations that a study is about.

    Attributes:
        axes: In matrix order.
        excluded: Index to reason, for combinations that an `exclude` rule takes out.
        good: Index of the stated good end, if the matrix states one.
        bad: Index of the stated bad end, if the matrix states one.
    """

    axes: tuple[GridAxis, ...]
    excluded: Mapping[Index, str] = field(default_factory=dict)
    good: Index | None = None
    bad: Index | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the number of values on each axis."""
        return tuple(len(axis.values) for axis in self.axes)

    @property
    def ends(self) -> tuple[Index, Index] | None:
        """Return the good and the bad end, stated or else implied by the directions.

        None if neither applies.
        """
        good, bad = self.good, self.bad
        if good is None or bad is None:
            sides = {Direction.REGRESSION: (0, -1), Direction.FIXED: (-1, 0)}
            if any(axis.direction not in sides and len(axis.values) > 1 for axis in self.axes):
                return None
            places = [sides.get(axis.direction, (0, 0)) for axis in self.axes]
            found = [
                tuple(range(len(axis.values))[at[end]] for axis, at in zip(self.axes, places, strict=True))
                for end in (0, 1)
            ]
            good = found[0] if good is None else good
            bad = found[1] if bad is None else bad
        return (good, bad) if good != bad else None

    def indices(self) -> Iterator[Index]:
        """Return every index, including excluded ones, in row-major order."""
        return itertools.product(*(range(size) for size in self.shape))

    def combination(self, index: Index) -> Combination:
        """Return the combination at an index."""
        return Combination(
            tuple((axis.name, axis.values[i]) for axis, i in zip(self.axes, index, strict=True))
        )

    def find(self, combination: Combination) -> Index | None:
        """Return the index of a combination, None if it has other axes or a value is not on its axis."""
        try:
            return self.index(combination)
        except (KeyError, ValueError):
            return None

    def index(self, combination: Combination) -> Index:
        """Return the index of a combination of this grid.

        Raises:
            ValueError: A value is not on its axis.
        """
        return tuple(axis.values.index(combination[axis.name]) for axis in self.axes)


# --------------------------------------------------------------------------------------------------
# Which combination a user means by `--at torch=2.3,cuml=24.04`.

NAMED = ("first-bad", "last-good")
"""Names of combinations of a study that has an answer."""

_BETWEEN = re.compile(r"[,\s]+(?=[\w.-]+=)")


def parse_at(text: str, flag: str = "--at") -> dict[str, str]:
    """Read `axis=value,axis=value`.

    Args:
        text: As the user gave it; blanks may replace commas, as reports write combinations. Text that no
            `name=` follows belongs to the value.
        flag: The option's name, for messages; "" if there is none.

    Returns:
        Axis to value, in the order given.

    Raises:
        UsageError: The text cannot be read, or names an axis twice.
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
    """Return the combination that a user means.

    An axis with one value need not be named; a version may be shortened where that is unique (`2.3` for
    2.3.1).

    Args:
        grid: As expanded.
        text: `axis=value,...`, or a value alone if one axis has several; `first-bad` or `last-good`; `good`
            or `bad` for the stated ends of the matrix; None if every axis has only one value.
        named: The combinations `first-bad` and `last-good`, if the study has an answer.
        flag: The option's name, for messages; "" if there is none.

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
        several = [axis.name for axis in grid.axes if len(axis.values) > 1]
        if text is not None and len(several) == 1 and "=" not in text:
            text = f"{several[0]}={text}"
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
    """Return how messages refer to an option: a prefix of the problem, and a prefix of an example."""
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
