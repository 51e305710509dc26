"""Points of the matrix: combinations, the expanded grid, and which one a user means by `--at`. Pure."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from bisect_env.matrix.history import History, readable

# --------------------------------------------------------------------------------------------------
# One point of the matrix: a value for every axis.


@dataclass(frozen=True, slots=True)
class Combination:
    """One value per axis, in the matrix's axis order; hashable, so that it can key counts.

    Attributes:
        items: Pairs (axis name, value). Values are text: `3.10` is a version, not a number.
    """

    items: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, values: Mapping[str, str]) -> Combination:
        """Take the axes in the mapping's order."""
        return cls(tuple(values.items()))

    @classmethod
    def from_key(cls, key: str) -> Combination:
        """Read back what `key` wrote."""
        return cls(tuple((str(axis), str(value)) for axis, value in json.loads(key)))

    @property
    def key(self) -> str:
        """A canonical JSON text: equal combinations have equal keys, in every process and release."""
        return json.dumps(self.items, separators=(",", ":"), ensure_ascii=False)

    def as_dict(self) -> dict[str, str]:
        """Axis name to value, in axis order."""
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
    """What moving along an axis changes."""

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
    """Where along an axis the bad values may lie."""

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
        dropped: Value to reason, for values that a range named and that were left out
            (withdrawn, no wheel for this platform, pre-release).
        passed_over: Releases of a range that `step` left to the newest of their group, ascending; nothing
            where the range is not to be refined.
        history: Of an axis of commits, all that its values are chosen from.
        unfit: Value to value of the axis of Python to reason, for values that the index has for some of these
            alone.
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
        """Number of values on each axis."""
        return tuple(len(axis.values) for axis in self.axes)

    def indices(self) -> Iterator[Index]:
        """Every index, excluded ones too, in row-major order."""
        return itertools.product(*(range(size) for size in self.shape))

    def combination(self, index: Index) -> Combination:
        """The combination at an index."""
        return Combination(
            tuple((axis.name, axis.values[i]) for axis, i in zip(self.axes, index, strict=True))
        )

    def find(self, combination: Combination) -> Index | None:
        """The index of a combination, None if a value is not on its axis."""
        try:
            return self.index(combination)
        except ValueError:
            return None

    def index(self, combination: Combination) -> Index:
        """The index of a combination of this grid.

        Raises:
            ValueError: A value is not on its axis.
        """
        return tuple(axis.values.index(combination[axis.name]) for axis in self.axes)
