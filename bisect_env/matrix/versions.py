"""Versions: parsed, ordered and compared as pip and conda do, and the contract of indexes that list them."""

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
from packaging.version import InvalidVersion, Version

from bisect_env.matrix.history import CommitDetails, History


class Manager(StrEnum):
    """A package manager that packages can come from."""

    CONDA = "conda"
    PYPI = "pypi"


class Step(StrEnum):
    """A size of groups of releases; the newest release of each group represents the group."""

    MAJOR = "major"
    MINOR = "minor"
    PATCH = "patch"
    EVERY = "every"
    """Every release."""


_CONDA_VERSION = re.compile(r"(\d+!)?[a-z0-9_.\-]*[a-z0-9][a-z0-9_.\-]*(\+[a-z0-9_.]+)?", re.IGNORECASE)
_CONDA_PIECE = re.compile(r"\d+|[a-z]+")


def parse_pypi(text: str) -> Version:
    """Read a PEP 440 version.

    Raises:
        ValueError: The text is no version; the message names a remedy.
    """
    try:
        return Version(text)
    except InvalidVersion:
        raise ValueError(f"{text!r} is not a version; write one like 2.1.0") from None


_LONGEST_RANGE = 1000
"""Characters. Python refuses numbers of more than 4,300 digits, but only when versions are compared."""


def check_version(text: str, manager: Manager) -> str:
    """Return the text if it is a version in the manager's format.

    Raises:
        ValueError: It is not; the message names a remedy.
    """
    if manager is Manager.PYPI:
        parse_pypi(text)
    elif not _CONDA_VERSION.fullmatch(text):
        raise ValueError(f"{text!r} is not a conda version; write one like 2.1.0")
    return text


def parse_range(text: str) -> SpecifierSet:
    """Read a range such as `>=2.1,<2.6`.

    Raises:
        ValueError: The text is no range; the message names a remedy.
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
    """Return a sort key, comparable with keys of the same manager and equal for the same version."""
    return parse_pypi(version) if manager is Manager.PYPI else CondaVersion(version)


def same_version(a: str, b: str, manager: Manager) -> bool:
    """Return whether two texts name one version (`1.0` and `1.0.0` do)."""
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
    """A version in conda's order: within a part, dev < letters < numbers < post, and what is missing is 0.

    A part that begins with letters gets a 0 before them (`1.1.a1` is `1.1.0a1`), as in conda's own
    `VersionOrder`; so `1.1.dev1` < `1.1a` < `1.1` = `1.1.0` < `1.1.post1` < `1.1.1`.

    Args:
        text: Checked with `check_version`.
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

    # Equal versions may be written with different numbers of zeros; nothing here needs them as keys.
    __hash__ = None  # type: ignore[assignment]


def between(versions: Iterable[str], one: str, other: str) -> tuple[str, ...]:
    """Return the versions strictly between two others, ascending; empty if an end is no version.

    Args:
        versions: PEP 440 versions in any order.
        one: One end.
        other: The other end.
    """
    try:
        low, high = sorted((Version(one), Version(other)))
    except InvalidVersion:
        return ()
    parsed = sorted((Version(text), text) for text in versions)
    return tuple(text for version, text in parsed if low < version < high)


def newest_of_each(versions: Iterable[str], step: Step) -> tuple[str, ...]:
    """Return the newest version of each group that `step` defines.

    Args:
        versions: PEP 440 versions in any order, without duplicates.
        step: The size of a group.

    Returns:
        The versions, ascending.
    """
    width = {Step.MAJOR: 1, Step.MINOR: 2, Step.PATCH: 3}.get(step)
    parsed = sorted((Version(text), text) for text in versions)
    if width is None:
        return tuple(text for _, text in parsed)
    newest: dict[tuple[int, ...], str] = {}
    for version, text in parsed:
        # Ascending, so that the last one of a group stays; dicts keep the place of the first.
        newest[(version.epoch, *(*version.release, 0, 0, 0)[:width])] = text
    return tuple(newest.values())


_PYTHONS = tuple(f"3.{minor}" for minor in range(6, 31))
"""Minor versions of Python that environments can be made for; uv may fetch those that are not here."""
_LATE_PATCH = 99


def fitting_python(
    wanted: SpecifierSet, *, here: str = "", installed: Callable[[], Iterable[str]] = tuple
) -> str:
    """Return the Python version to use for a stated range.

    Args:
        wanted: The range.
        here: The running Python, as `3.12`; that of this process if "". It is used if it fits.
        installed: Returns the full versions on this machine, called only if needed; the newest that fits is
            used. If none fits, the nearest older minor version is used, else a newer one.

    Returns:
        A minor version if the range includes its late patch releases, else a full one; "" if none fits.
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


def host_platform() -> str:
    """Return conda's name of the platform that this process runs on, such as `linux-64`."""
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
# The contract of the package indexes that a matrix is expanded with; `environments` fulfils it.


@dataclass(frozen=True, slots=True)
class Release:
    """One version of a package on an index.

    Attributes:
        version: As the index writes it.
        uploaded: Upload time of its first file, with a time zone; None if the index does not give it.
        yanked: Whether it was withdrawn.
        requires_python: The range of interpreters that its metadata names, or None.
        has_wheel: Whether any built archive exists for the platform.
        pythons: Minor versions (`3.11`) that it has built archives for; None if it has one for any.
        lacks: Why it cannot be installed, in the catalogue's words, or "".
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
    """A package index used in addition to the default one.

    Attributes:
        name: Its name in matrix files and uv's settings; "" for none.
        url: Its address.
        explicit: Whether it is used only for packages that name it.
    """

    name: str
    url: str
    explicit: bool = False


class VersionCatalogue(Protocol):
    """An interface that lists available versions; used for ranges only, so that lists need no network."""

    def versions(self, package: str, *, manager: Manager, index: str | None) -> list[Release]:
        """Return every release of a package, in any order; empty when the index does not know it.

        Args:
            package: Normalised name.
            manager: Which kind of index.
            index: Address of the only PyPI-like index to ask, or None for all that the matrix and this host
                name.

        Raises:
            IndexUnavailableError: The index cannot be reached or read.
        """
        ...

    def conda_versions(
        self, package: str, *, channels: Sequence[str], platform: str, build: str | None
    ) -> list[Release]:
        """Return every version of a conda package, in any order; empty when no channel has it.

        Args:
            package: As conda writes it.
            channels: Names or addresses, most important first.
            platform: conda's name of it.
            build: Pattern that build strings have to match, or None.

        Raises:
            IndexUnavailableError: A channel cannot be reached or read.
        """
        ...

    def python_versions(self) -> list[str]:
        """Return every interpreter version that trials can have here (`3.11.7`), in any order."""
        ...

    def commits(self, repository: str, first: str, last: str, *, every: bool) -> History:
        """Return the commits of a repository between two of them.

        Args:
            repository: Address, or absolute path of a clone.
            first: Tag, branch, hash or day of the older end.
            last: Tag, branch, hash or day of the newer end.
            every: Whether what was merged is looked at, too.

        Raises:
            UsageError: There is no such repository or commit, or nothing lies between the two.
            InfrastructureError: The repository cannot be reached, or git is missing.
        """
        ...

    def commit_details(self, repository: str, commits: Sequence[str]) -> tuple[list[CommitDetails], str]:
        """Return commits as git describes them, and the web address of their repository.

        Args:
            repository: As for `commits`, which must have been called before.
            commits: Hashes.

        Raises:
            InfrastructureError: The mirror cannot be read.
        """
        ...
