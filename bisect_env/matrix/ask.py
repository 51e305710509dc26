"""Builds the data of a matrix file from the options of a command line, or from two environments. Pure.

The data is a dict with the same keys as the YAML of a matrix file. Its axes and packages are made with the
models of the schema. All values are validated later, together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from pydantic import BaseModel

from bisect_env.errors import UsageError
from bisect_env.matrix.grid import Direction, parse_at
from bisect_env.matrix.inline import InlineMetadata, read_requirement
from bisect_env.matrix.scalars import placeholders
from bisect_env.matrix.schema import (
    LEAST_RATE,
    AxisModel,
    CommitAxis,
    DateAxis,
    DateRange,
    EnvironmentAxis,
    PackageAxis,
    Packages,
    Solver,
    WholeEnvironment,
    braces_kept,
)
from bisect_env.matrix.versions import Manager, Step, fitting_python, parse_range

_UNSAFE = re.compile(r"[^a-z0-9_-]+")
GOOD, BAD = "good", "bad"
"""Keys of a matrix file for the combination that works and the one that fails. They are also the values of
the axis of two environments."""
ENVIRONMENT = "environment"
"""Name of the axis whose values are two environments."""
_LONGEST_SHOWN = 200
"""Maximum number of characters of a wrong value that a message quotes."""
_RARELY = 4
"""The search looks for failures down to the stated failure rate divided by this number."""


# --------------------------------------------------------------------------------------------------
# A matrix from the options of a command line.


@dataclass(frozen=True, slots=True)
class Moving:
    """A package whose releases or commits are bisected, with its good and its bad end.

    Attributes:
        axis: Axis of the package, not validated yet. If it is a package axis, its `versions` are a range, or
            "" for all releases.
        good: Version or commit that works; "" if unknown.
        bad: Version or commit that fails; "" if unknown.
    """

    axis: PackageAxis | CommitAxis
    good: str = ""
    bad: str = ""

    @property
    def name(self) -> str:
        """Return the normalised name of the package."""
        return _normal(self.axis.package)

    @property
    def key(self) -> str:
        """Return the name of the axis in the matrix file.

        It is the name of the package, with `p` in front if the name does not begin with a letter.
        """
        key = self.axis.package.lower().replace(".", "-")
        return key if key[:1].isalpha() else f"p{key}"

    def narrowed(self) -> PackageAxis | CommitAxis:
        """Return the axis, reduced to the releases between the good and the bad version if both are known.

        The direction then follows from their order. Otherwise the direction is `either`: the failure may
        begin and end within the axis. A commit axis is returned unchanged.

        Raises:
            UsageError: A version is invalid or not in the range, or both versions are equal.
        """
        if isinstance(self.axis, CommitAxis):
            return self.axis
        name, within = self.axis.package, str(self.axis.versions)
        ends = sorted((_version(end), end) for end in (self.good, self.bad) if end)
        for version, end in ends:
            if not SpecifierSet(within).contains(version, prereleases=True):
                raise UsageError(
                    f"{name} {end} is not in the range {within}", remedy="widen the range, or correct the end"
                )
        bounds, direction = [within] if within else [], Direction.EITHER
        if len(ends) == 2:
            (first, oldest), (last, newest) = ends
            if first == last:
                raise UsageError(
                    f"{name} {self.good} is said to be good and bad", remedy="name two versions, or neither"
                )
            bounds += [f">={oldest}", f"<={newest}"]
            direction = Direction.REGRESSION if oldest == self.good else Direction.FIXED
        prereleases = self.axis.prereleases or any(version.is_prerelease for version, _ in ends)
        changed = {"versions": ",".join(bounds) or ">=0", "direction": direction, "prereleases": prereleases}
        return self.axis.model_copy(update=changed)


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """A bisection as asked on the command line: packages, a command and settings.

    Attributes:
        moving: Packages to bisect, in the order of the axes. With `since`, their releases are not bisected:
            they are requirements of every environment.
        command: Program and arguments, as given.
        settings: Further keys of the matrix file, such as `index` or `search`; empty values are left out.
        trial: Further keys of `trial` in the matrix file; empty values are left out.
        name: Name of the study; if "", a name is made from the packages.
        inline: Inline metadata (PEP 723) in the header of the script.
        channels: conda channels; if there are any, packages are taken from them.
        with_packages: Additional requirements of every environment.
        pythons: Versions of Python; empty for the running one.
        since: First day of a date axis, such as `2026-01-31`; "" for no date axis.
        until: Last day of the date axis.
    """

    moving: tuple[Moving, ...]
    command: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    trial: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    inline: InlineMetadata = field(default_factory=InlineMetadata)
    channels: tuple[str, ...] = ()
    with_packages: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()
    since: str = ""
    until: str = ""


def stated_ends(texts: Iterable[str], axes: Sequence[str], flag: str) -> dict[str, str]:
    """Parse the values of the option `--good` or `--bad` into a dict of package name to version.

    Args:
        texts: Values of the option, such as `torch=2.6.0,cuml=24.04`; with one package, also only a version.
        axes: Names of the packages that are bisected.
        flag: Name of the option, for messages.

    Returns:
        A dict from the normalised name of each package to its version.

    Raises:
        UsageError: A value names a package that is not bisected, or no version.
    """
    known = [_normal(name) for name in axes]
    found: dict[str, str] = {}
    for text in texts:
        is_version = "=" not in text and len(known) == 1
        for name, value in ({known[0]: text} if is_version else parse_at(text, flag)).items():
            package, version = _normal(name), value.lstrip("=").strip()
            if package not in known or not version:
                example = f"{known[0]}=1.2.3" if known else "PACKAGE=1.2.3"
                raise UsageError(
                    f"{flag} {text}: this names no package that is asked about "
                    f"({', '.join(known) or 'none'})",
                    remedy=f"write {flag} {example}, and the package with `-p`",
                )
            found[package] = version
    return found


def releases_of_package(
    spec: str, is_conda: bool = False, step: str = "", prereleases: bool = False, yanked: bool = False
) -> PackageAxis:
    """Build the axis of a package from a value of the option `-p`.

    The range of the axis is "" if the value has none.

    Args:
        spec: Package with a range, such as `torch>=2.5`, or only its name for all releases.
        is_conda: Whether the package comes from a conda channel.
        step: Which releases of the range are included, not validated yet; "" for all.
        prereleases: Whether pre-releases are included.
        yanked: Whether withdrawn (yanked) releases are included.

    Raises:
        UsageError: `spec` is not a name with an optional range.
    """
    found = read_requirement(spec, "-p")
    if found.extras:
        raise UsageError(
            f"-p {spec}: an axis is a package without extras",
            remedy=f"write -p {spec.partition('[')[0]}…, and what the extra brings with `--with`",
        )
    if found.marker is not None or found.url:
        raise UsageError(f"-p {spec}: an axis is a name with a range", remedy="write it like 'torch>=2.5'")
    try:
        within = str(parse_range(str(found.specifier))) if found.specifier else ""
    except ValueError as error:
        raise UsageError(f"-p {found.name}: {error}", remedy="correct the range") from None
    values: dict[str, Any] = {"versions": within, "step": step or Step.EVERY}
    return PackageAxis.model_construct(
        package=found.name,
        manager=Manager.CONDA if is_conda else Manager.PYPI,
        prereleases=prereleases,
        yanked=yanked,
        **values,
    )


def question_data(
    question: AskedQuestion, *, here: str = "", installed: Callable[[], Iterable[str]] = tuple
) -> dict[str, Any]:
    """Build the content (a dict) of a matrix file from the options of a command line.

    Args:
        question: The options that the user gave.
        here: Version of Python to prefer, such as `3.12`; "" for the one that runs this process.
        installed: Function that returns the Python versions on this machine; called only if the script's
            header excludes the running one.

    Raises:
        UsageError: An option is invalid; the message names it.
    """
    moving = question.moving
    if not moving and not question.since:
        raise UsageError(
            "no package is asked about",
            remedy='name one with its range: `-p "orjson>=3.8"`, or a day: `--since 2026-01-31`',
        )
    packages = [one.name for one in moving]
    if twice := [name for name in packages if packages.count(name) > 1]:
        raise UsageError(f"{twice[0]} is asked about twice", remedy="give one `-p` for each package")
    given = [*question.with_packages, *question.inline.dependencies]
    names = [f"{one.name}-commits" if isinstance(one.axis, CommitAxis) else one.name for one in moving]
    axes: dict[str, AxisModel] = {}
    if question.since:
        days = DateRange.model_construct(from_=question.since, to=question.until)
        axes["day"] = DateAxis.model_construct(dates=days)
        fixed = [one.axis for one in moving if isinstance(one.axis, PackageAxis)]
        given, moving = [*(f"{axis.package}{axis.versions}" for axis in fixed), *given], ()
    if any(isinstance(one.axis, CommitAxis) for one in moving) and runs_pytest(question.command):
        # The user hardly thinks of listing pytest as a package of the environment.
        given.append("pytest")
    axes |= {one.key: one.narrowed() for one in moving}
    pythons = question.pythons or (_python(question.inline.requires_python, here, installed),)
    if "python" not in packages or question.since:
        axes = {"python": _python_axis(pythons, is_conda=bool(question.channels)), **axes}
    wanted = _requirements(given, [one.name for one in moving])
    return _document(
        question,
        names,
        axes,
        packages=Packages.model_construct(
            pypi=() if question.channels else wanted, conda=wanted if question.channels else ()
        ),
        channels=question.channels,
        **_ends(moving if len(pythons) < 2 else ()),
    )


def runs_pytest(command: Sequence[str]) -> bool:
    """Return whether a command starts pytest, as `pytest` or `python -m pytest`."""
    return command[:1] == ("pytest",) or tuple(command[:3]) == ("python", "-m", "pytest")


def search_data(rate: float | None, confidence: float | None) -> dict[str, float]:
    """Build the content (a dict) of the key `search` of a matrix file from a rate and a confidence.

    The dict is empty if both arguments are None.

    Args:
        rate: Approximate failure rate (0 to 1) of bad combinations.
        confidence: Probability (0 to 1) that the verdict must reach.
    """
    found = {} if confidence is None else {"confidence": confidence}
    if rate is not None:
        found |= {"crash_rate": rate, "min_crash_rate": float(f"{max(rate / _RARELY, LEAST_RATE):.3g}")}
        # At the last good combination, failure rates down to half of the stated rate are ruled out.
        found["clean_rate"] = float(f"{max(rate / 2, LEAST_RATE):.3g}")
    return found


def data_of(model: BaseModel) -> dict[str, Any]:
    """Convert a pydantic model to a dict from which an equal model can be built.

    Keys whose values are the defaults are left out. The values may be of other types than the model states,
    if they were not validated.
    """
    return model.model_dump(mode="json", by_alias=True, exclude_defaults=True, warnings=False)


# --------------------------------------------------------------------------------------------------
# A matrix from two environments, and one over the releases of packages that differ between them.


@dataclass(frozen=True, slots=True)
class Pair:
    """A question about two environments: both environments, and the command to run in them.

    Attributes:
        good: Environment in which the command works, not validated yet.
        bad: Environment in which the command fails, not validated yet.
        question: The command and its settings; its packages, Pythons and good and bad versions are ignored.
        channels: conda channels.
        solver: How environments are solved. With `dependencies: none`, packages are installed although they
            contradict their metadata.
    """

    good: WholeEnvironment
    bad: WholeEnvironment
    question: AskedQuestion
    channels: tuple[str, ...] = ()
    solver: Solver = field(default_factory=Solver)


def pair_data(pair: Pair) -> dict[str, Any]:
    """Build the content (a dict) of a matrix file that compares two environments.

    The file has one axis, and the two environments are its values.

    Requirements that are common to both environments are listed under `packages`, the others on the axis.
    """
    common = {
        manager: tuple(
            text for text in getattr(pair.good, manager) if text in set(getattr(pair.bad, manager))
        )
        for manager in Packages.model_fields
    }
    environments = {}
    for name, end in ((GOOD, pair.good), (BAD, pair.bad)):
        rest = {
            manager: tuple(text for text in getattr(end, manager) if text not in texts)
            for manager, texts in common.items()
        }
        environments[name] = end.model_copy(update=rest)
    return _document(
        pair.question,
        ["between"],
        {ENVIRONMENT: EnvironmentAxis.model_construct(environments=environments)},
        packages=Packages.model_construct(pypi=common["pypi"], conda=common["conda"]),
        solver=pair.solver,
        channels=pair.channels,
        **{end: {ENVIRONMENT: end} for end in (GOOD, BAD)},
    )


def releases_data(
    moving: Sequence[Moving], rest: WholeEnvironment, pair: Pair, kinds: Sequence[str] = ()
) -> dict[str, Any]:
    """Build the content (a dict) of a matrix file that bisects the releases of several packages.

    Each package gets an axis with its releases between the good and the bad version.

    Args:
        moving: Packages to bisect, with their good and bad versions.
        rest: All other packages, which are the same in every environment.
        pair: The two environments from which the versions were taken; it has the command and its settings.
        kinds: Kinds of failure of the bad environment; a release that fails in another way is not bad.

    Raises:
        UsageError: A version is invalid, or the good and the bad version of a package are equal.
    """
    axes: dict[str, AxisModel] = {}
    if rest.python:
        axes["python"] = _python_axis([rest.python], is_conda=False)
    axes |= {one.key: one.narrowed() for one in moving}
    uses_conda = bool(rest.conda) or any(one.axis.uses_conda for one in moving)
    # The given name belongs to the study of the two environments, so this study needs a different one.
    given = pair.question.name
    data = _document(
        replace(pair.question, name=f"{given}-releases" if given else ""),
        [*(one.axis.package for one in moving), "releases"],
        axes,
        packages=Packages.model_construct(pypi=rest.pypi, conda=rest.conda),
        solver=pair.solver,
        channels=pair.channels if uses_conda else (),
        **_ends(moving),
    )
    bad = data["trial"].get("bad", {})
    if kinds and not bad.get("signature"):
        data["trial"]["bad"] = {**bad, "kinds": list(kinds)}
    return data


# --------------------------------------------------------------------------------------------------
# Parts of the data of a matrix file.


def _document(
    question: AskedQuestion, names: Sequence[str], axes: Mapping[str, AxisModel], **keys: Any
) -> dict[str, Any]:
    """Assemble the whole content (a dict) of a matrix file from its parts.

    Args:
        question: Question with the command, the settings and perhaps a name of the study.
        names: Words from which the study's name is made if the question has none.
        axes: Axis name to the axis.
        keys: Further keys of the file, as data or models; empty values are left out.
    """
    name = _UNSAFE.sub("-", (question.name or "-".join(names) or "since").lower()).strip("_-")
    trial = {"command": [_literal(word, axes) for word in question.command], **question.trial}
    # With a date axis, its days limit the releases, so `exclude_newer` must not be set.
    newest = "" if question.since else question.inline.exclude_newer
    known = {
        "version": 1,
        "name": (name or "study")[:60],
        "axes": {key: data_of(axis) for key, axis in axes.items()},
        "exclude_newer": newest,
    }
    data = {key: data_of(value) if isinstance(value, BaseModel) else value for key, value in keys.items()}
    return _filled({**known, **_filled(question.settings), **data, "trial": _filled(trial)})


def _ends(moving: Sequence[Moving]) -> dict[str, dict[str, str]]:
    """Return the keys `good` and `bad` of a matrix file. An end that an axis lacks is left out."""
    ends = {GOOD: {one.key: one.good for one in moving}, BAD: {one.key: one.bad for one in moving}}
    return {end: stated for end, stated in ends.items() if all(stated.values())}


def _filled(data: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the keys of a dict whose values are empty, None, 0 or False, and return the copy."""
    return {key: value for key, value in data.items() if value not in ("", [], (), {}, None, 0)}


def _requirements(texts: Iterable[str], axes: Collection[str]) -> tuple[str, ...]:
    """Return the additional requirements of an environment, except those for packages that have an axis.

    If several requirements name the same package, only the first is kept, unless their environment markers
    differ.
    """
    found: dict[str, str] = {}
    for text in texts:
        requirement = read_requirement(text, "--with")
        name = _normal(requirement.name)
        if name not in axes:
            found.setdefault(f"{name};{requirement.marker}" if requirement.marker else name, text.strip())
    return tuple(found.values())


def _python_axis(versions: Sequence[str], *, is_conda: bool) -> PackageAxis:
    return PackageAxis.model_construct(
        package="python",
        manager=Manager.CONDA if is_conda else Manager.PYPI,
        versions=tuple(versions),
        direction=Direction.EITHER if len(versions) > 1 else Direction.REGRESSION,
    )


def _version(text: str) -> Version:
    try:
        return Version(text)
    except ValueError:
        # Beside `InvalidVersion`: Python reads no number of more than 4,300 digits.
        raise UsageError(
            f"--good, --bad: Invalid version: {text[:_LONGEST_SHOWN]!r}",
            remedy="write a version such as 2.6.0",
        ) from None


def _python(requires: str, here: str, installed: Callable[[], Iterable[str]]) -> str:
    found = fitting_python(SpecifierSet(requires), here=here, installed=installed)
    if not found:
        raise UsageError(
            f"no Python is {requires}, which the script's header asks for", remedy="name one with `--python`"
        )
    return found


def _normal(name: str) -> str:
    return str(canonicalize_name(name))


def _literal(word: str, axes: Collection[str]) -> str:
    """Double the braces in a word of a command, so that they are not taken for placeholders.

    A word in which all placeholders (such as `{python}`) are names of axes is returned unchanged.
    """
    try:
        named = placeholders(word)
    except ValueError:
        named = ()
    return word if named and set(named) <= set(axes) else braces_kept(word)
