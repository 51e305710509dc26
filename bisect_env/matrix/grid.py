"""Combinations of versions, the grid of all combinations of a matrix, and the option `--at`. Pure."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from bisect_env.errors import UsageError
from bisect_env.matrix.history import History, readable
from bisect_env.matrix.problems import Path, near

# --------------------------------------------------------------------------------------------------
# One combination of a matrix: a value for every axis.


@dataclass(frozen=True, slots=True)
class Combination:
    """One value for each axis of a matrix, such as `python=3.11 torch=2.3.1`.

    Instances are hashable.

    Attributes:
        items: Pairs of axis name and value, in the order of the axes. Values are text (`3.10` is a version,
            not a number).
    """

    items: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, values: Mapping[str, str]) -> Combination:
        """Build a combination from a mapping of axis name to value, in the order of the mapping."""
        return cls(tuple(values.items()))

    @property
    def key(self) -> str:
        """Return JSON text that identifies the combination, for example in the database.

        It contains the axis names and values. Equal combinations have equal text in all releases of
        bisect-env.
        """
        return json.dumps(self.items, separators=(",", ":"), ensure_ascii=False)

    def as_dict(self) -> dict[str, str]:
        """Return a dict of axis name to value, in the order of the axes."""
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
# The grid: the values of every axis, and the combinations that rules exclude.

Index = tuple[int, ...]
"""The place of a combination in a grid: the position of its value on each axis, in the order of the axes."""


class AxisKind(StrEnum):
    """The kind of an axis, which says what changes along it."""

    PACKAGE = "package"
    """The exact version of one package (or of Python itself)."""
    VALUE = "value"
    """A value that is passed to the script; the environment stays the same."""
    DATE = "date"
    """A day; packages are resolved as if it were that day, unless their version is pinned."""
    ENVIRONMENT = "environment"
    """A whole list of packages, for example from the lock file of another tool."""
    COMMIT = "commit"
    """A commit of a repository from which one package is built."""


class Direction(StrEnum):
    """The assumption about which values of an axis are bad."""

    REGRESSION = "regression"
    """All values from some value on are bad."""
    FIXED = "fixed"
    """All values up to some value are bad."""
    EITHER = "either"
    """Any run of neighbouring values may be bad: the failure may begin and end within the axis."""
    UNORDERED = "unordered"
    """The values have no order. One of them is bad, or all but one, or all."""


@dataclass(frozen=True, slots=True)
class GridAxis:
    """An axis of a grid with its values. Versions and dates are in ascending order.

    Attributes:
        name: Name of the axis in the matrix file.
        kind: Kind of the axis.
        values: Values, without duplicates.
        direction: Assumption about which values are bad.
        dropped: Release of the range that was left out to the reason (such as withdrawn, pre-release or no
            wheel for this platform).
        passed_over: Releases of the range, ascending, that `step` left out because a newer release
            represents their group.
        history: For a commit axis, the history from which its values are chosen; else None.
        unfit: Value, then Python version, to the reason why the value cannot be installed for that Python.
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
class Exclusion:
    """The reason why a combination is excluded, and the key of the matrix file that excludes it.

    Attributes:
        key: Path of the key in the matrix file, such as `("exclude", 0)`.
        why: Reason to show to the user.
    """

    key: Path
    why: str


@dataclass(frozen=True, slots=True)
class Grid:
    """The axes of a matrix with all combinations of their values, and the excluded combinations.

    Attributes:
        axes: Axes in the order of the matrix.
        excluded: Index of each combination that a rule of the matrix excludes to the rule and the reason.
        good: Index of the good end, the combination that the matrix says works; None if it names none.
        bad: Index of the bad end, the combination that the matrix says fails; None if it names none.
    """

    axes: tuple[GridAxis, ...]
    excluded: Mapping[Index, Exclusion] = field(default_factory=dict)
    good: Index | None = None
    bad: Index | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the number of values on each axis."""
        return tuple(len(axis.values) for axis in self.axes)

    @property
    def ends(self) -> tuple[Index, Index] | None:
        """Return the two combinations assumed to work (good end) and to fail (bad end), as indices.

        An end that the matrix does not name follows from the directions of the axes: for `regression` the
        oldest value is good and the newest bad, for `fixed` the reverse. Return None if an end is unknown, or
        if both are the same combination.
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
        """Return the indices of all combinations, including the excluded ones.

        The position on the last axis changes fastest.
        """
        return itertools.product(*(range(size) for size in self.shape))

    def combination(self, index: Index) -> Combination:
        """Return the combination (a value for each axis) at a position of the grid."""
        return Combination(
            tuple((axis.name, axis.values[i]) for axis, i in zip(self.axes, index, strict=True))
        )

    def find(self, combination: Combination) -> Index | None:
        """Return the index of a combination, or None if the combination is not in this grid.

        A combination is not in the grid if it lacks an axis, or if one of its values is not on the axis.
        """
        try:
            return self.index(combination)
        except (KeyError, ValueError):
            return None

    def index(self, combination: Combination) -> Index:
        """Return the index of a combination, which must be in this grid.

        Raises:
            KeyError: The combination lacks an axis.
            ValueError: A value is not on its axis.
        """
        return tuple(axis.values.index(combination[axis.name]) for axis in self.axes)


# --------------------------------------------------------------------------------------------------
# Finding the combination for a value of `--at`, such as `torch=2.3,cuml=24.04`.

NAMED = ("first-bad", "last-good", "last-bad", "first-good")
"""Names that a user can give instead of values: the combinations of a study's verdict, or of a fix."""


def parse_at(text: str, flag: str = "--at", names: Iterable[str] = ()) -> dict[str, str]:
    """Parse a text that names the values of a combination, such as `torch=2.3.1,cuml=24.04`.

    Args:
        text: Text from the user. Pairs are separated by commas or, as in reports, by blanks. A comma or blank
            that is not followed by `name=` is part of the value.
        flag: Name of the option, for messages; "" if there is none.
        names: Names of the axes, if a pair begins only with one of them; empty for any name.

    Returns:
        A dict of axis name to value, in the order of the text.

    Raises:
        UsageError: The text has another form, or names an axis twice.
    """
    of, option = _words(flag)
    remedy = f"write it like {option}torch=2.3.1,cuml=24.04"
    pairs: dict[str, str] = {}
    known = "|".join(map(re.escape, names)) or r"[\w.-]+"
    for word in filter(None, re.split(rf"[,\s]+(?=(?:{known})=)", text.strip())):
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
    """Return the combination that a text from the user names, such as the value of `--at`.

    An axis with one value need not be named. A version may be shortened if the result is unique (`2.3` for
    `2.3.1`).

    Args:
        grid: Grid with the combinations.
        text: Text from the user: `axis=value,...`; only a value, if just one axis has several; one of
            `NAMED`, from the study's verdict; or `good` or `bad`, as stated in the matrix. None means the
            only combination, if every axis has one value.
        named: Names from `NAMED` to their combinations, if the study has a verdict.
        flag: Name of the option, for messages; "" if there is none.

    Raises:
        UsageError: An axis or value does not exist, an axis is missing, or the study has no verdict yet.
    """
    of, option = _words(flag)
    ends = {"good": grid.good, "bad": grid.bad}
    if text in ends:
        index = ends[text]
        if index is None:
            raise UsageError(
                f"{of}the question states no {text} end",
                remedy=f"state it (`--{text}`, or `{text}:` in a matrix file), or name every axis",
            )
        return grid.combination(index)
    if text in NAMED:
        if not (named and named.get(text)):
            if named:
                raise UsageError(f"{of}the study has no {text}", remedy=f"it has {', '.join(named)}")
            raise UsageError(
                f"{of}there is no {text} yet",
                remedy=f"`bisect-env run MATRIX` finds it; or name every axis, like {option}torch=2.3.1",
            )
        pairs = dict(named[text])
    else:
        pairs = {} if text is None else _pairs(grid, text, flag)
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
    """Return an option's name in two forms: `--at: ` to begin a message and `--at ` for an example.

    Both are "" if `flag` is "".
    """
    return (f"{flag}: ", f"{flag} ") if flag else ("", "")


def _pairs(grid: Grid, text: str, flag: str) -> dict[str, str]:
    """Return the values that a text names, by axis. Values may contain text that looks like `axis=value`."""
    several = [axis for axis in grid.axes if len(axis.values) > 1]
    if len(several) == 1:
        (axis,) = several
        for whole in (text, text.removeprefix(f"{axis.name}=")):
            if whole in axis.values:
                return {axis.name: whole}
        text = text if "=" in text else f"{axis.name}={text}"
    known = {axis.name: axis for axis in grid.axes}
    with contextlib.suppress(UsageError, KeyError):
        pairs = parse_at(text, flag, known)
        for name, value in pairs.items():
            _value(known[name], value, "")
        return pairs
    return parse_at(text, flag)


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
