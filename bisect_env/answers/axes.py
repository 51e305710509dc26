"""The axes of a study, in the form in which they are stored and reported. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from bisect_env.answers.verdict_document import AnswerPart
from bisect_env.matrix.grid import AxisKind, Direction


class AxisInfo(AnswerPart):
    """One axis of a matrix, such as a package, with its values in ascending order."""

    name: str = Field(description="Name of the axis.")
    kind: AxisKind = Field(default=AxisKind.PACKAGE, description="Kind of the axis: what its values change.")
    direction: Direction = Field(
        default=Direction.REGRESSION,
        description="Assumption about which values of the axis are bad; see the matrix reference.",
    )
    values: tuple[str, ...] = Field(min_length=1, description="Values in ascending order.")
    package: str | None = Field(
        default=None,
        description="Package whose version the axis changes; empty for none, null if it has the axis's name.",
    )
    passed_over: tuple[str, ...] = Field(
        default=(), description="Releases that `step` left out of the range."
    )
    withdrawn: tuple[str, ...] = Field(default=(), description="Withdrawn (yanked) releases of the range.")
    labels: dict[str, str] = Field(default={}, description="Commit hash to a readable name.")
    left_out: dict[str, int] = Field(
        default={},
        description="Value to the number of commits directly before it that are not values of the axis.",
    )


class AxesByName(dict[str, AxisInfo]):
    """Axes by name. Looking up an unknown name returns an `AxisInfo` with this name and no values."""

    @classmethod
    def of(cls, axes: Iterable[AxisInfo]) -> AxesByName:
        """Make a lookup of axes by name."""
        return cls({axis.name: axis for axis in axes})

    def __missing__(self, name: str) -> AxisInfo:
        return AxisInfo.model_construct(name=name, values=())
