"""Builds the data of a matrix file from the options of a command line, or from two environments. Pure.

The data is a dict with the same keys as the YAML of a matrix file. It is validated later.
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
from bisect_env.matrix.grid import parse_at
from bisect_env.matrix.inline import InlineMetadata, read_requirement
from bisect_env.matrix.schema import CommitAxis, WholeEnvironment, braces_kept, placeholders
from bisect_env.matrix.versions import fitting_python, parse_range

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
class AskedQuestion:
    """A bisection as asked on the command line: packages, a command and settings.

    Attributes:
        packages: Packages to bisect, each with a range (`torch>=2.5`), or only a name for all releases.
        command: Program and arguments, as given.
        settings: Further keys of the matrix file, such as `index` or `search`; empty values are left out.
        trial: Further keys of `trial` in the matrix file; empty values are left out.
        name: Name of the study; if "", a name is made from the packages.
        inline: Inline metadata (PEP 723) in the header of the script.
        channels: conda channels; if there are any, packages are taken from them.
        with_packages: Additional requirements of every environment.
        pythons: Versions of Python; empty for the running one.
        good: Normalised name of a package to its version that works.
        bad: Normalised name of a package to its version that fails.
        since: First day of a date axis, such as `2026-01-31`; "" for no date axis.
        until: Last day of the date axis.
        prereleases: Whether pre-releases are included.
        yanked: Whether withdrawn (yanked) releases are included.
        step: Which releases of a range are included; "" for all.
        commits: Commits to bisect instead of releases, not validated yet; None to bisect releases.
    """

    packages: tuple[str, ...]
    command: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    trial: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    inline: InlineMetadata = field(default_factory=InlineMetadata)
    channels: tuple[str, ...] = ()
    with_packages: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()
    good: Mapping[str, str] = field(default_factory=dict)
    bad: Mapping[str, str] = field(default_factory=dict)
    since: str = ""
    until: str = ""
    prereleases: bool = False
    yanked: bool = False
    step: str = ""
    commits: CommitAxis | None = None


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


def package_name(spec: str) -> str:
    """Return the name of the package in a value of the option `-p`, such as `torch>=2.5`.

    Raises:
        UsageError: The value is not a name with an optional range.
    """
    return _name_and_range(spec)[0]


def question_data(
    question: AskedQuestion, *, here: str = "", installed: Callable[[], Iterable[str]] = tuple
) -> dict[str, Any]:
    """Build the content (a dict) of a matrix file from the options of a command line.

    If a package has both a good and a bad version, its axis contains the releases between them, and the
    direction follows from their order. Otherwise the direction is `either`: the failure may begin and end
    within the axis.

    Args:
        question: The options that the user gave.
        here: Version of Python to prefer, such as `3.12`; "" for the one that runs this process.
        installed: Function that returns the Python versions on this machine; called only if the script's
            header excludes the running one.

    Raises:
        UsageError: An option is invalid; the message names it.
    """
    commits = question.commits
    asked = [_name_and_range(spec) for spec in question.packages]
    if not asked and not question.since and commits is None:
        raise UsageError(
            "no package is asked about",
            remedy='name one with its range: `-p "orjson>=3.8"`, or a day: `--since 2026-01-31`',
        )
    names = [_normal(name) for name, _ in asked]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"{twice[0]} is asked about twice", remedy="give one `-p` for each package")
    given = [*question.with_packages, *question.inline.dependencies]
    good, bad = question.good, question.bad
    axes: dict[str, Any] = {}
    if question.since:
        axes["day"] = {"dates": {"from": question.since, "to": question.until, "step": "1d"}}
        given = [*question.packages, *given]
    elif commits is None:
        axes = {_key(name): _asked_axis(name, within, question) for name, within in asked}
    else:
        axes[_key(commits.package)] = data_of(commits)
        package = _normal(commits.package)
        good, bad, names = {package: commits.from_}, {package: commits.to}, [f"{commits.package}-commits"]
        if runs_pytest(question.command):
            # The user hardly thinks of listing pytest as a package of the environment.
            given.append("pytest")
    moving = {_normal(axis["package"]): key for key, axis in axes.items() if "package" in axis}
    pythons = question.pythons or (_python(question.inline.requires_python, here, installed),)
    if "python" not in moving:
        axes = {"python": _python_axis(pythons, conda=bool(question.channels)), **axes}
    wanted = _requirements(given, moving)
    return _document(
        question,
        names,
        axes,
        packages={"conda": wanted} if question.channels and wanted else wanted,
        channels=list(question.channels),
        **{
            end: {moving[name]: value for name, value in stated.items()}
            for end, stated in ((GOOD, good), (BAD, bad))
            if stated.keys() == moving.keys() and len(pythons) < 2
        },
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
        found |= {"crash_rate": rate, "min_crash_rate": float(f"{max(rate / _RARELY, 0.001):.3g}")}
        # At the last good combination, failure rates down to half of the stated rate are ruled out.
        found["clean_rate"] = float(f"{max(rate / 2, 0.001):.3g}")
    return found


def data_of(model: BaseModel) -> dict[str, Any]:
    """Convert a pydantic model to a dict from which an equal model can be built.

    Keys whose values are the defaults are left out.
    """
    return model.model_dump(mode="json", by_alias=True, exclude_defaults=True)


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
        dependencies: `resolve`, or `none` to install the packages although they contradict their metadata.
        allow_source: Whether source distributions may be built.
    """

    good: WholeEnvironment
    bad: WholeEnvironment
    question: AskedQuestion
    channels: tuple[str, ...] = ()
    dependencies: str = "resolve"
    allow_source: bool = False

    @property
    def solver(self) -> dict[str, Any]:
        """Return the content of the key `solver` for a matrix file with these two environments."""
        return _filled({"dependencies": self.dependencies, "allow_source": self.allow_source})


def pair_data(pair: Pair) -> dict[str, Any]:
    """Build the content (a dict) of a matrix file that compares two environments.

    The file has one axis, and the two environments are its values.

    Requirements that are common to both environments are listed under `packages`, the others on the axis.
    """
    ends = {GOOD: data_of(pair.good), BAD: data_of(pair.bad)}
    common = {}
    for manager in ("pypi", "conda"):
        good, bad = (end.get(manager, []) for end in ends.values())
        common[manager] = [text for text in good if text in set(bad)]
        for end in ends.values():
            end[manager] = [text for text in end.get(manager, []) if text not in common[manager]]
    return _document(
        pair.question,
        ["between"],
        {ENVIRONMENT: {"environments": {name: _filled(end) for name, end in ends.items()}}},
        packages=_filled(common),
        solver=pair.solver,
        channels=list(pair.channels),
        **{end: {ENVIRONMENT: end} for end in (GOOD, BAD)},
    )


@dataclass(frozen=True, slots=True)
class Moving:
    """A package whose releases are bisected, with its good and its bad version.

    Attributes:
        name: Name of the package.
        good: Version that works; "" if unknown.
        bad: Version that fails; "" if unknown. With both, only releases between them are included.
        is_conda: Whether the package comes from a conda channel.
        yanked: Whether withdrawn releases are included; needed if one of the two versions is withdrawn.
        within: Range of the releases, such as `>=2.5`; "" for all.
        prereleases: Whether pre-releases are included.
        step: Which releases of the range are included; "" for all.
    """

    name: str
    good: str
    bad: str
    is_conda: bool = False
    yanked: bool = False
    within: str = ""
    prereleases: bool = False
    step: str = ""


def releases_data(moving: Sequence[Moving], rest: WholeEnvironment, pair: Pair) -> dict[str, Any]:
    """Build the content (a dict) of a matrix file that bisects the releases of several packages.

    Each package gets an axis with its releases between the good and the bad version.

    Args:
        moving: Packages to bisect, with their good and bad versions.
        rest: All other packages, which are the same in every environment.
        pair: The two environments from which the versions were taken; it has the command and its settings.

    Raises:
        UsageError: A version is invalid, or the good and the bad version of a package are equal.
    """
    packages = data_of(rest)
    python = packages.pop("python", "")
    axes = {"python": _python_axis([python], conda=False)} if python else {}
    for one in moving:
        axes[_key(one.name)] = _releases_axis(one)
    uses_conda = bool(rest.conda) or any(one.is_conda for one in moving)
    # The given name belongs to the study of the two environments, so this study needs a different one.
    given = pair.question.name
    return _document(
        replace(pair.question, name=f"{given}-releases" if given else ""),
        [*(one.name for one in moving), "releases"],
        axes,
        packages=packages,
        solver=pair.solver,
        channels=list(pair.channels) if uses_conda else [],
        good={_key(one.name): one.good for one in moving},
        bad={_key(one.name): one.bad for one in moving},
    )


# --------------------------------------------------------------------------------------------------
# Parts of the data of a matrix file.


def _document(
    question: AskedQuestion, names: Sequence[str], axes: Mapping[str, Any], **keys: Any
) -> dict[str, Any]:
    """Assemble the whole content (a dict) of a matrix file from its parts.

    Args:
        question: Question with the command, the settings and perhaps a name of the study.
        names: Words from which the study's name is made if the question has none.
        axes: Axis name to the data of the axis.
        keys: Further keys of the file; empty values are left out.
    """
    name = _UNSAFE.sub("-", (question.name or "-".join(names) or "since").lower()).strip("_-")
    trial = {"command": [_literal(word, axes) for word in question.command], **question.trial}
    # With a date axis, its days limit the releases, so `exclude_newer` must not be set.
    newest = "" if question.since else question.inline.exclude_newer
    known = {"version": 1, "name": (name or "study")[:60], "axes": axes, "exclude_newer": newest}
    return _filled({**known, **_filled(question.settings), **keys, "trial": _filled(trial)})


def _filled(data: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the keys of a dict whose values are empty, None, 0 or False, and return the copy."""
    return {key: value for key, value in data.items() if value not in ("", [], (), {}, None, 0)}


def _name_and_range(spec: str) -> tuple[str, str]:
    found = read_requirement(spec, "-p")
    if found.extras:
        raise UsageError(
            f"-p {spec}: an axis is a package without extras",
            remedy=f"write -p {spec.partition('[')[0]}…, and what the extra brings with `--with`",
        )
    if found.marker is not None or found.url:
        raise UsageError(f"-p {spec}: an axis is a name with a range", remedy="write it like 'torch>=2.5'")
    within = str(found.specifier)
    try:
        return found.name, str(parse_range(within)) if within else ""
    except ValueError as error:
        raise UsageError(f"-p {found.name}: {error}", remedy="correct the range") from None


def _requirements(texts: Iterable[str], axes: Collection[str]) -> list[str]:
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
    return list(found.values())


def _python_axis(versions: Sequence[str], *, conda: bool) -> dict[str, Any]:
    return _filled(
        {
            "package": "python",
            "manager": "conda" if conda else "",
            "versions": list(versions),
            "direction": "either" if len(versions) > 1 else "",
        }
    )


def _asked_axis(name: str, within: str, question: AskedQuestion) -> dict[str, Any]:
    good, bad = (stated.get(_normal(name), "") for stated in (question.good, question.bad))
    for end in filter(None, (good, bad)):
        if not SpecifierSet(within).contains(_version(end), prereleases=True):
            raise UsageError(
                f"{name} {end} is not in the range {within}", remedy="widen the range, or correct the end"
            )
    is_conda = bool(question.channels)
    return _releases_axis(
        Moving(name, good, bad, is_conda, question.yanked, within, question.prereleases, question.step)
    )


def _releases_axis(one: Moving) -> dict[str, Any]:
    """Build the data (a dict) of an axis whose values are the releases of a package.

    Raises:
        UsageError: A version is invalid, or both versions are equal.
    """
    ends = sorted((_version(end), end) for end in (one.good, one.bad) if end)
    bounds, direction = [one.within] if one.within else [], "either"
    if len(ends) == 2:
        (first, oldest), (last, newest) = ends
        if first == last:
            raise UsageError(
                f"{one.name} {one.good} is said to be good and bad", remedy="name two versions, or neither"
            )
        bounds += [f">={oldest}", f"<={newest}"]
        direction = "regression" if oldest == one.good else "fixed"
    return _filled(
        {
            "package": one.name,
            "manager": "conda" if one.is_conda and _normal(one.name) != "python" else "",
            "versions": ",".join(bounds) or ">=0",
            "step": one.step or "every",
            "prereleases": one.prereleases or any(version.is_prerelease for version, _ in ends),
            "yanked": one.yanked,
            "direction": direction,
        }
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


def _key(name: str) -> str:
    """Choose the name of the axis for a package.

    It is the name of the package, with `p` in front if the name does not begin with a letter.
    """
    key = name.lower().replace(".", "-")
    return key if key[:1].isalpha() else f"p{key}"


def _literal(word: str, axes: Collection[str]) -> str:
    """Double the braces in a word of a command, so that they are not taken for placeholders.

    A word in which all placeholders (such as `{python}`) are names of axes is returned unchanged.
    """
    try:
        named = placeholders(word)
    except ValueError:
        named = ()
    return word if named and set(named) <= set(axes) else braces_kept(word)
