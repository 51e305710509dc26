"""The expanded matrix: concrete values on every axis, and which combinations a rule takes out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from bisect_env.matrix.combination import Combination

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
    """

    name: str
    kind: AxisKind
    values: tuple[str, ...]
    direction: Direction
    dropped: Mapping[str, str] = field(default_factory=dict)


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

    def index(self, combination: Combination) -> Index:
        """The index of a combination of this grid.

        Raises:
            ValueError: A value is not on its axis.
        """
        return tuple(axis.values.index(combination[axis.name]) for axis in self.axes)
