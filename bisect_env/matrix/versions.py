"""Parses and compares versions as pip and conda do, and defines the interface of a catalogue of releases."""

from __future__ import annotations

import functools
import itertools
import platform
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from bisect_env.matrix.history import CommitDetails, History


class Manager(StrEnum):
    """A source of packages: conda channels, or PyPI and similar indexes."""

    CONDA = "conda"
    PYPI = "pypi"


class Step(StrEnum):
    """A rule that selects releases of a range: the newest release of each major, minor or patch version."""

    MAJOR = "major"
    MINOR = "minor"
    PATCH = "patch"
    EVERY = "every"
    """All releases of the range."""


_CONDA_VERSION = re.compile(r"(\d+!)?[a-z0-9_.\-]*[a-z0-9][a-z0-9_.\-]*(\+[a-z0-9_.]+)?", re.IGNORECASE)
_CONDA_PIECE = re.compile(r"\d+|[a-z]+")
_LONGEST_SHOWN = 80
"""Maximum number of characters of a wrong version that a message quotes."""


def parse_pypi(text: str) -> Version:
    """Parse a version such as `2.1.0rc1` by the rules of PyPI (PEP 440).

    Raises:
        ValueError: The text is not a PEP 440 version; the message names a remedy.
    """
    try:
        return Version(text)
    except ValueError:
        # Besides `InvalidVersion`: Python reads no number of more than 4,300 digits.
        raise ValueError(f"{_shown(text)!r} is not a version; write one like 2.1.0") from None


def _shown(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


_LONGEST_RANGE = 1000
"""Maximum number of characters of a range. Without it, a version in the range could have a number of more
than 4,300 digits, at which Python would fail later, when versions are compared."""


def check_version(text: str, manager: Manager) -> str:
    """Check that a text is a valid version for a package manager, and return the text unchanged.

    Raises:
        ValueError: The version is not valid; the message names a remedy.
    """
    if manager is Manager.PYPI:
        parse_pypi(text)
        return text
    try:
        if _CONDA_VERSION.fullmatch(text):
            CondaVersion(text)
            return text
    except ValueError:
        pass  # as in `parse_pypi`
    raise ValueError(f"{_shown(text)!r} is not a conda version; write one like 2.1.0")


def parse_range(text: str) -> SpecifierSet:
    """Parse a version range such as `>=2.1,<2.6`.

    Raises:
        ValueError: The text is not a range, or is too long; the message names a remedy.
    """
    if not text.strip():
        raise ValueError("the range is empty; write one like '>=2.1,<2.6', or a list of versions")
    if len(text) > _LONGEST_RANGE:
        raise ValueError(f"the range has {len(text)} characters, and may have {_LONGEST_RANGE}; shorten it")
    try:
        return SpecifierSet(text)
    except InvalidSpecifier:
        raise ValueError(
            f"{text!r} is not a version range; write one like '>=2.1,<2.6', or a list of versions"
        ) from None


def order_key(version: str, manager: Manager) -> Any:
    """Return a sort key for a version, by the rules of a package manager.

    Different spellings of a version (`1.0` and `1.0.0`) have equal keys.

    Raises:
        ValueError: The text is not a PEP 440 version, for `Manager.PYPI`.
    """
    return parse_pypi(version) if manager is Manager.PYPI else CondaVersion(version)


def same_version(a: str, b: str, manager: Manager) -> bool:
    """Return whether two texts mean the same version, as `1.0` and `1.0.0` do."""
    if a == b:
        return True
    try:
        return bool(order_key(a, manager) == order_key(b, manager))
    except ValueError:
        return False


Rank = tuple[int, int, str]
_ZERO: Rank = (2, 0, "")


def _rank(piece: str) -> Rank:
    if piece.isdigit():
        return (2, int(piece), "")
    if piece in {"dev", "post"}:
        return (0 if piece == "dev" else 3, 0, "")
    return (1, 0, piece)


def _ranks(text: str) -> tuple[tuple[Rank, ...], ...]:
    parts = []
    for part in re.split(r"[._\-]", text):
        pieces = _CONDA_PIECE.findall(part) or ["0"]
        if not pieces[0].isdigit():
            pieces.insert(0, "0")
        parts.append(tuple(_rank(piece) for piece in pieces))
    return tuple(parts)


@functools.total_ordering
class CondaVersion:
    """A version that is compared by the rules of conda's `VersionOrder`.

    Example: `1.1.dev1` < `1.1a` < `1.1` = `1.1.0` < `1.1.post1` < `1.1.1`. Versions are compared part by
    part. Within a part, `dev` precedes other letters, letters precede numbers, and numbers precede `post`.
    Missing parts count as 0. A part that begins with letters gets a 0 in front: `1.1.a1` is `1.1.0a1`.

    Args:
        text: Valid conda version (see `check_version`).
    """

    def __init__(self, text: str) -> None:
        epoch, _, rest = text.lower().rpartition("!")
        public, _, local = rest.partition("+")
        self._parts = (_ranks(epoch or "0"), _ranks(public), _ranks(local))

    def _padded(self, other: CondaVersion) -> Iterator[tuple[Rank, Rank]]:
        for mine, theirs in zip(self._parts, other._parts, strict=True):
            for a, b in itertools.zip_longest(mine, theirs, fillvalue=(_ZERO,)):
                yield from itertools.zip_longest(a, b, fillvalue=_ZERO)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CondaVersion) and all(a == b for a, b in self._padded(other))

    def __lt__(self, other: CondaVersion) -> bool:
        return next((a < b for a, b in self._padded(other) if a != b), False)

    # Not hashable: equal versions can have different numbers of zeros, and no caller needs a hash.
    __hash__ = None  # type: ignore[assignment]


def between(versions: Iterable[str], one: str, other: str) -> tuple[str, ...]:
    """Return the versions strictly between `one` and `other`, in ascending order.

    Return an empty tuple if `one` or `other` is not a PEP 440 version.

    Args:
        versions: PEP 440 versions in any order.
        one: Lower or upper limit.
        other: The other limit.
    """
    try:
        low, high = sorted((Version(one), Version(other)))
    except InvalidVersion:
        return ()
    parsed = sorted((Version(text), text) for text in versions)
    return tuple(text for version, text in parsed if low < version < high)


def newest_of_each(versions: Iterable[str], step: Step) -> tuple[str, ...]:
    """Keep only the newest version of each group, such as 2.1.3 of all 2.1.x; return them in ascending order.

    Args:
        versions: PEP 440 versions in any order, without duplicates.
        step: Which versions form a group; with `Step.EVERY`, all versions are returned.
    """
    width = {Step.MAJOR: 1, Step.MINOR: 2, Step.PATCH: 3}.get(step)
    parsed = sorted((Version(text), text) for text in versions)
    if width is None:
        return tuple(text for _, text in parsed)
    newest: dict[tuple[int, ...], str] = {}
    for version, text in parsed:
        # In ascending order, the newest version of a group overwrites the others.
        newest[(version.epoch, *(*version.release, 0, 0, 0)[:width])] = text
    return tuple(newest.values())


_PYTHONS = tuple(f"3.{minor}" for minor in range(6, 31))
"""Minor versions of Python for which environments can be made; uv can download those not installed."""
_LATE_PATCH = 99
"""A patch number above all existing ones, to check whether a range includes the newest patch release."""


def fitting_python(
    wanted: SpecifierSet, *, here: str = "", installed: Callable[[], Iterable[str]] = tuple
) -> str:
    """Choose the version of Python to use for a range of allowed versions, such as `>=3.10`.

    In order of preference: the running version, the newest installed version that fits, the nearest older
    minor version, a newer one.

    Args:
        wanted: Range of allowed versions.
        here: Version of the running Python, such as `3.12`; "" to ask this process.
        installed: Function that returns the full versions installed on this machine; called only if the
            running version does not fit.

    Returns:
        A minor version (`3.12`) if the range includes its newest patch releases, else a full version
        (`3.12.1`); "" if no version fits.
    """
    here = here or f"{sys.version_info.major}.{sys.version_info.minor}"
    fitting = [one for one in _PYTHONS if wanted.contains(f"{one}.{_LATE_PATCH}", prereleases=True)]
    if here in fitting:
        return here
    whole = [one for one in installed() if wanted.contains(one) and Version(one) >= Version(_PYTHONS[0])]
    if whole:
        newest = max(whole, key=Version)
        minor = ".".join(newest.split(".")[:2])
        return minor if minor in fitting else newest
    older = [one for one in fitting if Version(one) < Version(here)]
    exact = [one.version for one in wanted if one.operator in ("==", "===")]
    exact = [one for one in exact if re.fullmatch(r"3\.\d+\.\d+", one) and wanted.contains(one)]
    return next(iter([*older[-1:], *fitting, *exact]), "")


def may_build(allowed: bool | Iterable[str], package: str) -> bool:
    """Return whether a package may be built from source.

    Args:
        allowed: True for all packages, False for none, else the names of the packages that may be built.
        package: Name of the package.
    """
    if isinstance(allowed, bool):
        return allowed
    return canonicalize_name(package) in {canonicalize_name(name) for name in allowed}


def host_platform() -> str:
    """Return conda's name of this machine's platform, such as `linux-64`."""
    system = {"linux": "linux", "darwin": "osx", "win32": "win"}.get(sys.platform, sys.platform)
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64"):
        return f"{system}-64"
    if machine in ("i386", "i686", "x86"):
        return f"{system}-32"
    if machine == "arm64" and system == "linux":
        return "linux-aarch64"
    return f"{system}-{machine}"


# --------------------------------------------------------------------------------------------------
# The interface through which releases and commits are looked up. The package `environments` implements it.


@dataclass(frozen=True, slots=True)
class Release:
    """One release of a package on an index or a conda channel.

    Attributes:
        version: Version, as the index writes it.
        uploaded: Upload time of its first file, with a time zone; None if the index does not state it.
        yanked: Whether the release was withdrawn.
        requires_python: Range of Python versions in its metadata; None if there is none.
        has_wheel: Whether a built archive for the platform exists.
        pythons: Minor versions of Python (`3.11`) for which built archives exist; None if one fits all.
        lacks: Reason why the release cannot be installed; "" if it can.
    """

    version: str
    uploaded: datetime | None = None
    yanked: bool = False
    requires_python: str | None = None
    has_wheel: bool = True
    pythons: frozenset[str] | None = None
    lacks: str = ""


@dataclass(frozen=True, slots=True)
class PackageIndex:
    """A package index that is asked for packages in addition to the default one.

    Attributes:
        name: Name of the index in matrix files and in uv's settings; "" if it has none.
        url: Address of the index.
        explicit: Whether the index is used only for packages that name it.
    """

    name: str
    url: str
    explicit: bool = False


class VersionCatalogue(Protocol):
    """The interface for looking up the releases of packages and the commits of repositories.

    It is called only for axes that do not list their values, so that other matrices need no network.
    """

    def versions(self, package: str, *, index: str | None) -> list[Release]:
        """Look up all releases of a package in package indexes; they come in any order.

        The list is empty if the index does not know the package.

        Args:
            package: Normalised name of the package.
            index: Address of the only index to query; None for all indexes that are configured in the matrix
                and on this host.

        Raises:
            IndexUnavailableError: The index cannot be reached or read.
        """
        ...

    def indexes_without_pages(self) -> list[str]:
        """Return the addresses of further indexes that had none of the packages looked up so far."""
        ...

    def conda_versions(
        self, package: str, *, channels: Sequence[str], platform: str, build: str | None
    ) -> list[Release]:
        """Look up all releases of a conda package in the given channels; they come in any order.

        The list is empty if no channel has the package.

        Args:
            package: Name of the package in conda.
            channels: Names or addresses of channels, most important first.
            platform: conda's name of the platform, such as `linux-64`.
            build: Pattern that the build string must match, such as `cuda*`; None for any.

        Raises:
            IndexUnavailableError: A channel cannot be reached or read.
        """
        ...

    def python_versions(self) -> list[str]:
        """Return all versions of Python (`3.11.7`) that trials on this host can use, in any order."""
        ...

    def commits(self, repository: str, first: str, last: str, *, every: bool) -> History:
        """Return the commits of a repository between an older and a newer commit.

        Args:
            repository: Address of the repository, or absolute path of a clone.
            first: Tag, branch, hash or day of the older commit.
            last: Tag, branch, hash or day of the newer commit.
            every: Whether commits of merged branches are included.

        Raises:
            UsageError: The repository or a commit does not exist, or no commits lie between the two.
            InfrastructureError: The repository cannot be reached, or git is missing.
        """
        ...

    def commit_details(self, repository: str, commits: Sequence[str]) -> tuple[list[CommitDetails], str]:
        """Return details of some commits, and the web address of their repository.

        The details are the author, dates, subject, parents, changed files and tags of each commit.

        Args:
            repository: Repository, as for `commits`, which must have been called before.
            commits: Hashes of the commits.

        Raises:
            InfrastructureError: The local mirror of the repository cannot be read.
        """
        ...
