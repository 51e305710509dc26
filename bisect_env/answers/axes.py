"""The axes of a study as they are stored and reported. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from bisect_env.answers.verdict_document import AnswerPart
from bisect_env.matrix.grid import AxisKind, Direction


class AxisInfo(AnswerPart):
    """One axis and its values in ascending order."""

    name: str = Field(description="Name of the axis.")
    kind: AxisKind = Field(default=AxisKind.PACKAGE, description="What it changes.")
    direction: Direction = Field(
        default=Direction.REGRESSION, description="Where the bad values may lie; see the matrix reference."
    )
    values: tuple[str, ...] = Field(min_length=1, description="Values in ascending order.")
    package: str | None = Field(
        default=None, description="Package that it moves; empty for none, null if it is the axis's name."
    )
    passed_over: tuple[str, ...] = Field(
        default=(), description="Releases that the step of its range left out."
    )
    withdrawn: tuple[str, ...] = Field(
        default=(), description="Releases of its range that the index has withdrawn (yanked)."
    )
    labels: dict[str, str] = Field(
        default={}, description="How people read values that are hashes of commits."
    )
    left_out: dict[str, int] = Field(
        default={}, description="How many commits stand directly before a value without being one."
    )


class AxesByName(dict[str, AxisInfo]):
    """Axes by name; of an axis that is not among them nothing but the name is known."""

    @classmethod
    def of(cls, axes: Iterable[AxisInfo]) -> AxesByName:
        """Return the axes by name."""
        return cls({axis.name: axis for axis in axes})

    def __missing__(self, name: str) -> AxisInfo:
        return AxisInfo.model_construct(name=name, values=())
