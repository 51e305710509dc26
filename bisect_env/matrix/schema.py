"""The matrix file, version 1, as a whole.

What one key alone can get wrong is refused here; what two keys get wrong together is in `checks`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from packaging.utils import canonicalize_name
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    Tag,
    WithJsonSchema,
)
from pydantic_core import CoreSchema

from bisect_env.matrix.axes import Axis, PackageAxis, StrictModel, ValueAxis
from bisect_env.matrix.scalars import (
    ChannelName,
    CondaSpec,
    DateText,
    IndexUrl,
    PackageName,
    PypiRequirement,
    Seconds,
    Slug,
    Text,
    Value,
    VirtualPackage,
    check_axis_name,
)
from bisect_env.matrix.trial import Trial
from bisect_env.matrix.versions import Manager

Platform = Literal["linux-64", "linux-aarch64", "linux-ppc64le", "osx-64", "osx-arm64", "win-64"]


class Packages(StrictModel):
    """What stands in every environment, beside the axes."""

    pypi: tuple[PypiRequirement, ...] = Field(default=(), description="Requirements such as 'numpy<2'.")
    conda: tuple[CondaSpec, ...] = Field(default=(), description="Specs such as 'cuda-version 12.8'.")


def _list_is_pypi(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError(f"this should be a list, not {value!r}; write [{value}]")  # noqa: TRY004
    return {"pypi": value} if isinstance(value, list | tuple) else value


def _names_or_flag(value: Any) -> Any:
    """Refuse early what is neither, so that a union does not report one mistake twice."""
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value.lower(), value)
    if not isinstance(value, bool | list | tuple):
        raise ValueError(  # noqa: TRY004 -- pydantic turns ValueError alone into a finding
            f"{value!r} is neither true, false nor a list of package names; write one of them"
        )
    return value


class ContainerExecutor(StrictModel):
    """Trials run in containers."""

    kind: Literal["container"] = Field(description="In containers of podman or docker.")
    image: Text = Field(
        description="Name of the image, such as 'rapidsai/base:{rapids}-cuda{cuda}-py{python}'; `{axis}` "
        "stands for the axis's value. Without package axes, dates and packages it is the environment; "
        "with them the locked environment is mounted into it."
    )
    network: bool = Field(default=False, description="Whether trials have a network.")


class _OrListOfRequirements:
    """Says in the JSON schema what `_list_is_pypi` allows."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [handler(core), {"type": "array", "items": {"type": "string"}}]}


Engine = Literal["rattler", "conda-lock"]


class Solver(StrictModel):
    """How a combination becomes an environment."""

    engine: Engine = Field(
        default="rattler",
        description="What solves conda packages: rattler, or conda-lock with the conda or micromamba here.",
    )

    dependencies: Literal["resolve", "newest", "none"] = Field(
        default="resolve",
        description="`resolve` keeps what a neighbour has where that fits, `newest` solves each combination "
        "afresh, as an upgrade does, `none` installs the axes and `packages` alone, for combinations that "
        "metadata forbids.",
    )
    overrides: tuple[PypiRequirement, ...] = Field(
        default=(), description="Requirements that replace whatever packages ask for under the same name."
    )
    allow_source: Annotated[
        Annotated[bool, Tag("flag")] | Annotated[tuple[PackageName, ...], Tag("names")],
        Discriminator(lambda value: "flag" if isinstance(value, bool) else "names"),
        BeforeValidator(_names_or_flag),
        WithJsonSchema({"anyOf": [{"type": "boolean"}, {"type": "array", "items": {"type": "string"}}]}),
    ] = Field(
        default=False,
        description="Whether source distributions may be built: for all packages, or for those listed.",
    )

    def allows_source(self, package: str) -> bool:
        """Whether a source distribution of this package (normalised name) may be built."""
        if isinstance(self.allow_source, bool):
            return self.allow_source
        return package in {canonicalize_name(name) for name in self.allow_source}


def _text_is_engine(value: Any) -> Any:
    return {"engine": value} if isinstance(value, str) else value


class _OrEngine:
    """Says in the JSON schema what `_text_is_engine` allows."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [handler(core), {"type": "string", "enum": list(get_args(Engine))}]}


def _texts(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Condition = Annotated[
    tuple[Value, ...],
    BeforeValidator(_texts),
    Field(min_length=1),
    WithJsonSchema({"type": ["string", "number", "array"], "items": {"type": ["string", "number"]}}),
]
"""One value, a list of values, or a comparison such as `<3.10`; several mean any of them."""


class Rule(StrictModel):
    """Takes combinations out of the matrix, or wins them back."""

    when: Annotated[dict[str, Condition], Field(min_length=1)] = Field(
        description="Axis to a value, a list of values, or a comparison; all axes named must match."
    )
    why: Text = Field(description="The reason, shown wherever the combination is missing.")


class Search(StrictModel):
    """When the search may stop."""

    confidence: float = Field(
        default=0.95,
        gt=0.5,
        le=0.9999,
        description="Probability with which the verdict should be right: above 0.5 and up to 0.9999.",
    )
    min_crash_rate: float = Field(
        default=0.02,
        ge=0.0001,
        le=0.5,
        description="Failure rates below this need not be found: from 0.0001 to 0.5.",
    )
    clean_rate: float = Field(
        default=0.1,
        ge=0.0001,
        le=0.5,
        description="Once the answer stands, the last good combination is tried until a failure rate as high "
        "as this is excluded: from 0.0001 to 0.5.",
    )
    max_trials: int = Field(default=5000, ge=1, description="Trials after which the search gives up.")
    budget: Seconds | None = Field(
        default=None, description="Wall-clock time after which it gives up: seconds, or a text like 2h."
    )
    amplify: bool = Field(
        default=False,
        description="Find first what makes the failure more frequent without changing the script's meaning "
        "(copies at once, load, allocators, ...), and run all trials under it.",
    )


def _known_version(value: Any) -> Any:
    if value in (1, "1") and not isinstance(value, bool):
        return 1
    raise ValueError(f"{value!r} is not a format that this release reads; write version: 1")


AxisName = Annotated[str, AfterValidator(check_axis_name)]


class MatrixFile(StrictModel):
    """A matrix file for bisect-env: which versions to combine, what to run, and what counts as bad."""

    version: Annotated[Literal[1], BeforeValidator(_known_version)] = Field(
        description="Version of this format."
    )
    name: Slug = Field(description="Names the study and its folder of locks.")
    description: str = Field(default="", description="What is being looked for, for people.")
    axes: Annotated[dict[AxisName, Axis], Field(min_length=1)] = Field(
        description="The axes in their order: name to package axis, value axis or date axis."
    )
    packages: Annotated[
        Packages,
        BeforeValidator(_list_is_pypi),
        _OrListOfRequirements(),
    ] = Field(
        default_factory=Packages,
        description="In every environment: a list of PyPI requirements, or {pypi: [...], conda: [...]}.",
    )
    solver: Annotated[Solver, BeforeValidator(_text_is_engine), _OrEngine()] = Field(
        default_factory=Solver, description="How environments are solved; a text is short for `engine`."
    )
    channels: tuple[ChannelName, ...] = Field(
        default=(), description="conda channels, most important first; a package comes from the first."
    )
    virtual_packages: dict[VirtualPackage, Value] = Field(
        default_factory=dict,
        description="What conda takes the hosts to have, such as {__glibc: 2.17}; `none` takes one away. "
        "Default: __cuda as the CUDA axis says, and a Linux of today.",
    )
    index: IndexUrl | None = Field(
        default=None, description="Address of the PyPI-like index; default: the one uv and pip use."
    )
    platform: Platform | None = Field(
        default=None, description="conda's name of the platform; default: this machine's."
    )
    exclude_newer: DateText | None = Field(
        default=None, description="Ignore what was uploaded later: a day (counted whole) or an instant."
    )
    exclude: tuple[Rule, ...] = Field(default=(), description="Combinations to leave out.")
    include: tuple[Rule, ...] = Field(
        default=(),
        description="Combinations to win back from `exclude`; without `exclude`, the only ones to keep.",
    )
    good: dict[str, Value] | None = Field(
        default=None, description="A combination known to be good; axes with one value may be left out."
    )
    bad: dict[str, Value] | None = Field(
        default=None, description="A combination known to be bad; axes with one value may be left out."
    )
    executor: ContainerExecutor | None = Field(
        default=None, description="Run trials in containers: {kind: container, image: NAME}."
    )
    trial: Trial = Field(description="How the script is run once.")
    search: Search = Field(default_factory=Search, description="When the search may stop.")

    @property
    def image_is_environment(self) -> bool:
        """Whether trials run in what an image holds, so that nothing is locked but the image."""
        return self.executor is not None and not (
            any(not isinstance(axis, ValueAxis) for axis in self.axes.values())
            or self.packages.pypi
            or self.packages.conda
        )

    @property
    def uses_conda(self) -> bool:
        """Whether environments are conda's: Python then comes from there, too."""
        axes = self.axes.values()
        return bool(self.packages.conda) or any(
            isinstance(axis, PackageAxis) and axis.manager is Manager.CONDA for axis in axes
        )
