"""Makes the plain data of matrix files from the words of a command line, or from two environments. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import BaseModel

from bisect_env.errors import UsageError
from bisect_env.matrix.grid import parse_at
from bisect_env.matrix.inline import InlineMetadata, read_requirement
from bisect_env.matrix.schema import CommitAxis, WholeEnvironment, braces_kept, placeholders
from bisect_env.matrix.versions import fitting_python

_UNSAFE = re.compile(r"[^a-z0-9_-]+")
GOOD, BAD = "good", "bad"
"""Keys of stated ends, and values of the axis of two environments."""
ENVIRONMENT = "environment"
_RARELY = 4
"""The search looks for failures down to this fraction of the stated rate: a quarter of it."""


# --------------------------------------------------------------------------------------------------
# A question in words.


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """A question given on the command line.

    Attributes:
        packages: Axes: `torch>=2.5`, or a name for every release.
        command: Program and arguments, as given.
        settings: Further keys of the matrix file, such as `index` or `search`; empty ones are left out.
        trial: Further keys of `trial`; empty ones are left out.
        name: Name of the study; "" for one made from the packages.
        inline: The metadata in the script's header.
        channels: conda channels; with any, packages come from there.
        with_packages: Additional requirements of every environment.
        pythons: Versions of Python; empty for the running one.
        good: Normalised package to a version that works.
        bad: Normalised package to a version that fails.
        since: First day of a date axis, "" for none.
        until: Last day of the date axis.
        prereleases: Whether pre-releases are tried.
        yanked: Whether withdrawn releases are tried.
        step: Which releases of a range are tried; "" for every one.
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
    """Read `--good` or `--bad`: `torch=2.6.0,cuml=24.04`, or only a version if there is one axis.

    Args:
        texts: As given.
        axes: Packages of the question.
        flag: The option's name, for messages.

    Returns:
        Normalised package to version.

    Raises:
        UsageError: A text names none of the packages, or no version.
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
    """Return the package name of a `-p` option.

    Raises:
        UsageError: The option is no package with a range.
    """
    return _name_and_range(spec)[0]


def question_data(
    question: AskedQuestion, *, here: str = "", installed: Callable[[], Iterable[str]] = tuple
) -> dict[str, Any]:
    """Return a question as the plain data of a matrix file. Pure.

    Without a good or a bad version, the failure may have come and gone along an axis (`either`). With
    both, the axis goes from one to the other.

    Args:
        question: As given.
        here: The running Python, as `3.12`; that of this process if "".
        installed: Returns the Python versions on this machine; called if the script's header excludes the
            running one.

    Raises:
        UsageError: Some part of the question is not possible; the message names the option.
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
            # The tests of a project ask for it, and nobody thinks of it as a package of the environment.
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
    """Return whether a command is pytest."""
    return command[:1] == ("pytest",) or tuple(command[:3]) == ("python", "-m", "pytest")


def search_data(rate: float | None, confidence: float | None) -> dict[str, float]:
    """Return the value of the key `search`, empty if both arguments are None. Pure.

    Args:
        rate: Approximate failure rate where it fails.
        confidence: Confidence of the answer.
    """
    found = {} if confidence is None else {"confidence": confidence}
    if rate is not None:
        found |= {"crash_rate": rate, "min_crash_rate": float(f"{max(rate / _RARELY, 0.001):.3g}")}
        # What fails half as often as was said is another failure: so much is excluded at the last good one.
        found["clean_rate"] = float(f"{max(rate / 2, 0.001):.3g}")
    return found


def data_of(model: BaseModel) -> dict[str, Any]:
    """Return what a matrix file says to get a model: the keys that differ from their defaults."""
    return model.model_dump(mode="json", by_alias=True, exclude_defaults=True)


# --------------------------------------------------------------------------------------------------
# Two environments, and the releases of what lies between them.


@dataclass(frozen=True, slots=True)
class Pair:
    """Two environments and the command to run in them.

    Attributes:
        good: The environment in which the command works, not validated yet.
        bad: The environment in which it fails, not validated yet.
        question: The command and its options; the question's packages, Pythons and ends are ignored.
        channels: conda channels.
        dependencies: `none` if the installed packages contradict their metadata.
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
        """Return the value of the key `solver`."""
        return _filled({"dependencies": self.dependencies, "allow_source": self.allow_source})


def pair_data(pair: Pair) -> dict[str, Any]:
    """Return the plain data of a matrix file that asks which of two environments fails. Pure.

    Requirements common to both are listed under `packages`, the others on the axis.

    Args:
        pair: The environments.
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
    """A package whose releases are bisected.

    Attributes:
        name: Name of the package.
        good: The version that works.
        bad: The version that fails.
        is_conda: Whether it comes from a conda channel.
        yanked: Whether to include withdrawn releases, because an end is one.
    """

    name: str
    good: str
    bad: str
    is_conda: bool = False
    yanked: bool = False


def releases_data(moving: Sequence[Moving], rest: WholeEnvironment, pair: Pair) -> dict[str, Any]:
    """Return the plain data of a matrix file over the releases of some packages. Pure.

    All other packages stay as they are.

    Args:
        moving: The packages, with their versions at both ends.
        rest: The other packages of every environment.
        pair: The two environments that contain the versions.

    Raises:
        UsageError: A version is invalid.
    """
    packages = data_of(rest)
    python = packages.pop("python", "")
    axes = {"python": _python_axis([python], conda=False)} if python else {}
    for one in moving:
        axes[_key(one.name)] = _releases_axis(
            one.name, "", one.good, one.bad, conda=one.is_conda, yanked=one.yanked
        )
    uses_conda = bool(rest.conda) or any(one.is_conda for one in moving)
    # The study of the two environments has the name that was given; this one needs another.
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
# Pieces of the data.


def _document(
    question: AskedQuestion, names: Sequence[str], axes: Mapping[str, Any], **keys: Any
) -> dict[str, Any]:
    """Return the data of a matrix file.

    Args:
        question: Has the command, its settings, and perhaps the name.
        names: What the study is named after if the question has no name.
        axes: The axes.
        keys: Further keys of the file; empty ones are left out.
    """
    name = _UNSAFE.sub("-", (question.name or "-".join(names) or "since").lower()).strip("_-")
    trial = {"command": [_literal(word, axes) for word in question.command], **question.trial}
    # The days of an axis say what is newest.
    newest = "" if question.since else question.inline.exclude_newer
    known = {"version": 1, "name": (name or "study")[:60], "axes": axes, "exclude_newer": newest}
    return _filled({**known, **_filled(question.settings), **keys, "trial": _filled(trial)})


def _filled(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data without keys that say nothing."""
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
    return found.name, str(found.specifier)


def _requirements(texts: Iterable[str], axes: Collection[str]) -> list[str]:
    """Return one requirement per package, the first that names it, without the packages of axes."""
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
    return _releases_axis(
        name,
        within,
        good,
        bad,
        conda=bool(question.channels),
        yanked=question.yanked,
        prereleases=question.prereleases,
        step=question.step,
    )


def _releases_axis(
    name: str,
    within: str,
    good: str,
    bad: str,
    *,
    conda: bool,
    yanked: bool,
    prereleases: bool = False,
    step: str = "",
) -> dict[str, Any]:
    """Return an axis of releases: those within a range, and between both ends if both are stated."""
    ends = sorted((_version(end), end) for end in (good, bad) if end)
    bounds, direction = [within] if within else [], "either"
    if len(ends) == 2:
        (first, oldest), (last, newest) = ends
        if first == last:
            raise UsageError(
                f"{name} {good} is said to be good and bad", remedy="name two versions, or neither"
            )
        bounds += [f">={oldest}", f"<={newest}"]
        direction = "regression" if oldest == good else "fixed"
    return _filled(
        {
            "package": name,
            "manager": "conda" if conda and _normal(name) != "python" else "",
            "versions": ",".join(bounds) or ">=0",
            "step": step or "every",
            "prereleases": prereleases or any(version.is_prerelease for version, _ in ends),
            "yanked": yanked,
            "direction": direction,
        }
    )


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion as error:
        raise UsageError(f"--good, --bad: {error}", remedy="write a version such as 2.6.0") from None


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
    """Return the axis name of a package; a name that does not begin with a letter gets the prefix `p`."""
    key = name.lower().replace(".", "-")
    return key if key[:1].isalpha() else f"p{key}"


def _literal(word: str, axes: Collection[str]) -> str:
    """Return a word with its braces doubled, unless the braces hold only names of axes."""
    try:
        named = placeholders(word)
    except ValueError:
        named = ()
    return word if named and set(named) <= set(axes) else braces_kept(word)
