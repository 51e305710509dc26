"""The three kinds of axes of a matrix file."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Self

from packaging.utils import canonicalize_name
from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from bisect_env.matrix.dates import cutoff, days_between
from bisect_env.matrix.grid import AxisKind, Direction
from bisect_env.matrix.scalars import (
    BuildPattern,
    DateText,
    DayText,
    PackageName,
    StepText,
    Text,
    Value,
    VersionText,
)
from bisect_env.matrix.versions import Manager, Step, check_version, order_key, parse_range, same_version


class StrictModel(BaseModel):
    """Frozen, and refuses keys that it does not know: a misspelt key must never be ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _list_or_text(value: Any) -> str:
    return "range" if isinstance(value, str) else "list"


def _list_or_mapping(value: Any) -> str:
    return "range" if isinstance(value, Mapping | BaseModel) else "list"


Versions = Annotated[
    Annotated[tuple[VersionText, ...], Field(min_length=1), Tag("list")] | Annotated[Text, Tag("range")],
    Discriminator(_list_or_text),
]


class PackageAxis(StrictModel):
    """An axis whose values are exact versions of one package."""

    package: PackageName = Field(description="Name of the package; `python` is the interpreter itself.")
    manager: Manager = Field(default=Manager.PYPI, description="Where the package comes from.")
    build: BuildPattern | None = Field(
        default=None, description="Of a conda package: a pattern for its build string, such as 'cuda*'."
    )
    versions: Versions = Field(
        description="A list of exact versions (withdrawn ones too), or a range such as '>=2.1,<2.6'."
    )
    step: Step = Field(
        default=Step.MINOR,
        description="Of a range: the newest release of each major, minor or patch version, or every one.",
    )
    prereleases: bool = Field(default=False, description="Of a range: take pre-releases too.")
    yanked: bool = Field(default=False, description="Of a range: take withdrawn releases too.")
    direction: Direction = Field(default=Direction.REGRESSION, description="Where the bad versions may lie.")

    @field_validator("versions")
    @classmethod
    def _versions_make_sense(cls, versions: tuple[str, ...] | str, info: ValidationInfo) -> Any:
        manager = info.data.get("manager", Manager.PYPI)
        if isinstance(versions, str):
            parse_range(versions)
            return versions
        for version in versions:
            check_version(version, manager)
        # Sorting is stable: of two equal versions the one written first comes first.
        ordered = sorted(versions, key=lambda version: order_key(version, manager))
        for earlier, version in itertools.pairwise(ordered):
            if same_version(earlier, version, manager):
                same = "stands twice" if earlier == version else f"is the same as {earlier!r}"
                raise ValueError(f"version {version!r} {same}; remove one")
        return versions

    @model_validator(mode="after")
    def _range_keys_need_a_range(self) -> Self:
        extra = sorted({"step", "prereleases", "yanked"} & self.model_fields_set)
        if extra and not isinstance(self.versions, str):
            raise ValueError(
                f"`{extra[0]}` belongs to a range, and `versions` is a list; remove it, or write a range"
            )
        return self

    @model_validator(mode="after")
    def _builds_are_condas(self) -> Self:
        if self.build is not None and self.manager is not Manager.CONDA:
            raise ValueError("`build` belongs to conda packages; remove it, or add `manager: conda`")
        return self

    @property
    def kind(self) -> AxisKind:
        """Always `AxisKind.PACKAGE`."""
        return AxisKind.PACKAGE

    @property
    def is_python(self) -> bool:
        """Whether this axis is the interpreter."""
        return self.canonical_package == "python"

    @property
    def canonical_package(self) -> str:
        """The package's name as its manager writes it: to conda `a_b` and `a-b` are two packages."""
        return self.package.lower() if self.manager is Manager.CONDA else str(canonicalize_name(self.package))


class ValueAxis(StrictModel):
    """An axis whose values reach the script and leave the environment as it is."""

    values: Annotated[tuple[Value, ...], Field(min_length=1)] = Field(
        description="The values in their order; they reach the script as BISECT_ENV_<AXIS> and as {axis}."
    )
    direction: Direction = Field(default=Direction.REGRESSION, description="Where the bad values may lie.")

    @field_validator("values")
    @classmethod
    def _no_duplicates(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        seen: set[str] = set()
        for value in values:
            if value in seen:
                raise ValueError(f"value {value!r} stands twice; remove one")
            seen.add(value)
        return values

    @property
    def kind(self) -> AxisKind:
        """Always `AxisKind.VALUE`."""
        return AxisKind.VALUE


class DateRange(StrictModel):
    """Every so many days from one day to another, both included."""

    from_: DayText = Field(alias="from", description="First day.")
    to: DayText = Field(description="Last day; it belongs to the axis even where the step would miss it.")
    step: StepText = Field(default="1d", description="Days between two values: 1d, 2w, or a number of days.")

    @model_validator(mode="after")
    def _days_make_sense(self) -> Self:
        days_between(self.from_, self.to, self.step)
        return self

    @property
    def days(self) -> tuple[str, ...]:
        """All days, ascending."""
        return days_between(self.from_, self.to, self.step)


class DateAxis(StrictModel):
    """An axis of days: what is not pinned is resolved as the index stood then."""

    dates: Annotated[
        Annotated[tuple[DateText, ...], Field(min_length=1), Tag("list")]
        | Annotated[DateRange, Tag("range")],
        Discriminator(_list_or_mapping),
    ] = Field(description="A list of days or instants, or {from, to, step}. A day counts whole.")
    direction: Direction = Field(default=Direction.REGRESSION, description="Where the bad days may lie.")

    @field_validator("dates")
    @classmethod
    def _no_duplicates(cls, dates: tuple[str, ...] | DateRange) -> Any:
        seen: dict[datetime, str] = {}
        for i, date in enumerate(() if isinstance(dates, DateRange) else dates):
            earlier = seen.setdefault(cutoff(date), date)
            if len(seen) <= i:
                same = "stands twice" if earlier == date else f"is the same as {earlier!r}"
                raise ValueError(f"date {date!r} {same}; remove one")
        return dates

    @property
    def kind(self) -> AxisKind:
        """Always `AxisKind.DATE`."""
        return AxisKind.DATE

    @property
    def expanded(self) -> tuple[str, ...]:
        """All dates, ascending."""
        if isinstance(self.dates, DateRange):
            return self.dates.days
        return tuple(sorted(self.dates, key=cutoff))


_NEITHER = "neither"
_TELLING_KEYS = (
    ("package", "package-axis"),
    ("values", "value-axis"),
    ("dates", "date-axis"),
    ("versions", "package-axis"),
)
_TAGS: dict[type, str] = {PackageAxis: "package-axis", ValueAxis: "value-axis", DateAxis: "date-axis"}


def _axis_kind(value: Any) -> str:
    """Which kind an axis is, told by the key that only this kind has."""
    if isinstance(value, BaseModel):
        return _TAGS.get(type(value), _NEITHER)
    keys = value if isinstance(value, Mapping) else {}
    for key, kind in _TELLING_KEYS:
        if key in keys:
            return kind
    return _NEITHER


Axis = Annotated[
    Annotated[PackageAxis, Tag("package-axis")]
    | Annotated[ValueAxis, Tag("value-axis")]
    | Annotated[DateAxis, Tag("date-axis")],
    Discriminator(
        _axis_kind,
        custom_error_type="axis_kind",
        custom_error_message="an axis needs one of `package` with `versions`, `values`, or `dates`; add one",
    ),
]
