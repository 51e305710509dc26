"""Builds a `ForeignEnvironment` from the rows that the readers of other tools' files yield."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, cast

from packaging.markers import (
    InvalidMarker,
    Marker,
    UndefinedComparison,
    UndefinedEnvironmentName,
    default_environment,
)
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from bisect_env.environments.interpreters import installed_pythons
from bisect_env.environments.lock import LockedPackage
from bisect_env.errors import UsageError
from bisect_env.matrix import versions

MAX_BYTES = 64 * 1024 * 1024
_MAX_WORD = 200
"""Maximum number of characters in a name, version or build; indexes and file systems accept no more."""
_LATE_PATCH = 99
"""Patch number assumed for a Python version such as `3.12`, if a marker compares the full version."""


class Why(StrEnum):
    """The usual reasons why a package is left out."""

    NOT_HERE = "not for this Python or platform"
    EDITABLE = "an editable install from a directory of its own"
    LOCAL = "from a local directory or archive"
    VCS = "from a version control system"
    ARCHIVE = "from an archive's address, on no index"


class Listed(NamedTuple):
    """A package that a file of another tool lists.

    Attributes:
        package: The package. Its URL and sha256 are "" if the file does not state them.
        hashes: Hex sha256 of the allowed archives, if not only that of the package itself is.
        why: Why the package cannot be installed from an index or channel; "" if it can.
    """

    package: LockedPackage
    hashes: tuple[str, ...] = ()
    why: str = ""


def wheel(
    name: str, version: str = "", hashes: tuple[str, ...] = (), *, fits: bool = True, why: str = ""
) -> Listed:
    """Return the row of a PyPI package.

    Args:
        name: Name of the package, which is normalised.
        version: Exact version; not used if the package cannot be installed.
        hashes: Hex sha256 of the allowed archives.
        fits: Whether the package is for the requested Python version and this host.
        why: See `Listed`.
    """
    package = LockedPackage(str(canonicalize_name(name)), version, "pip", "", "")
    return Listed(package, hashes, why if fits else Why.NOT_HERE)


def conda(name: str, version: str, build: str = "", sha256: str = "", url: str = "") -> Listed:
    """Return the row of a conda package, whose build, hash and URL may be unknown."""
    return Listed(LockedPackage(name, version, "conda", url, sha256, build))


def unnamed(label: str, why: str) -> Listed:
    """Return the row of an entry that names a file or directory instead of a package."""
    return Listed(LockedPackage(label, "", "", "", ""), why=why)


def fitting_python(requires: Sequence[str], here: str = "") -> str:
    """Return a Python version that satisfies all given ranges, for files that state no version.

    See `versions.fitting_python`.

    Args:
        requires: Ranges of Python versions. The result satisfies all of them; empty texts are ignored.
        here: Version of the running Python, such as `3.12`; "" to ask this process.
    """
    try:
        wanted = SpecifierSet(",".join(text for text in requires if text))
    except InvalidSpecifier:
        wanted = SpecifierSet()  # some tools write ranges that PEP 440 does not know; then any Python fits
    return versions.fitting_python(wanted, here=here, installed=installed_pythons)


class Markers:
    """An evaluator of environment markers (PEP 508) for this host and one Python version.

    Args:
        python: Python version, such as `3.12`.
        extras: Names of the extras that are considered requested.
        groups: Names of the dependency groups that are considered requested.
    """

    def __init__(self, python: str, extras: Iterable[str] = (), groups: Iterable[str] = ()) -> None:
        self.python = python
        self._whole = python if python.count(".") > 1 else f"{python}.{_LATE_PATCH}"
        self._extras = frozenset(extras)
        self._facts: dict[str, str | frozenset[str]] = {
            **cast("dict[str, str]", default_environment()),
            "python_version": ".".join(python.split(".")[:2]),
            "python_full_version": self._whole,
            "implementation_version": self._whole,
            "extras": self._extras,
            "dependency_groups": frozenset(groups),
        }

    def hold(self, text: str, requires: str = "") -> bool:
        """Return whether a marker is true, without an extra or with a requested one, and a range has Python.

        An empty or invalid text counts as true, so that no package is lost.

        Args:
            text: An environment marker.
            requires: A range of Python versions, such as `>=3.9`.
        """
        try:
            if requires and not SpecifierSet(requires).contains(self._whole, prereleases=True):
                return False
        except InvalidSpecifier:
            pass
        try:
            marker = Marker(text) if text else None
            each = ("", *self._extras) if "extra" in text else ("",)
            return marker is None or any(marker.evaluate({**self._facts, "extra": one}) for one in each)
        except (InvalidMarker, UndefinedComparison, UndefinedEnvironmentName, RecursionError):
            return True


@dataclass
class ForeignEnvironment:
    """The packages of an environment, read from a file or directory of another tool such as poetry or pip.

    The reader of a format is a generator of rows. It also sets the attributes from `format` to `loose`.

    Attributes:
        source: File or directory, as the user named it.
        where: Path of the file or directory.
        name: Name of the environment to read if the file has several; "" for the default one.
        for_python: Python version for which markers are evaluated; "" for the version that the file states.
        format: Detected format, for messages, such as `uv.lock 1`.
        python: Python version that the file states; "" if it states none.
        requires_python: Range of supported Python versions; "" if the file states none.
        platform: conda's name of its platform; "" if it is for any platform.
        channels: conda channels, highest priority first.
        notes: Further messages for the user, one sentence each.
        loose: Packages without an exact version, for the error message.
        packages: The packages, sorted by name. They include Python if it is a conda package.
        hashes: Maps manager and name of packages to the hex sha256 of their allowed archives.
        left_out: Maps the packages that cannot be installed elsewhere to the reason, sorted by name.
        extras: Maps packages to the extras with which they are asked for, where the file has them.
    """

    source: str
    where: Path
    name: str = ""
    for_python: str = ""
    format: str = ""
    python: str = ""
    requires_python: str = ""
    platform: str = ""
    channels: Sequence[str] = ()
    notes: list[str] = field(default_factory=list)
    loose: list[str] = field(default_factory=list)
    packages: tuple[LockedPackage, ...] = ()
    hashes: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    extras: dict[str, frozenset[str]] = field(default_factory=dict)

    @property
    def uses_conda(self) -> bool:
        """Return whether any package comes from a conda channel."""
        return any(package.is_conda for package in self.packages)

    def summary(self) -> str:
        """Return one line with the format, and how many packages were found and left out."""
        count = f"{len(self.packages)} package{'' if len(self.packages) == 1 else 's'}"
        python = f", Python {self.python}" if self.python else ""
        platform = f", {self.platform}" if self.platform else ""
        line = f"{self.source}: {self.format}: {count}{python}{platform}"
        return f"{line}; {len(self.left_out)} left out" if self.left_out else line

    def markers(self, extras: Iterable[str] = (), groups: Iterable[str] = ()) -> Markers:
        """Return an evaluator of environment markers for the requested Python version.

        If no version was requested, the version that the file states is used, or one in its range.

        Args:
            extras: See `Markers`.
            groups: See `Markers`.
        """
        python = self.for_python or self.python or fitting_python([self.requires_python])
        return Markers(python, extras, groups)

    def fill(self, rows: Iterable[Listed]) -> None:
        """Set the packages, and what follows from them, from the rows that a reader yields.

        If a package has several versions, the newest is kept and a note is added.

        Args:
            rows: The packages; one may occur more than once.

        Raises:
            UsageError: There is no package, or one without an exact version, or one whose name is too long.
        """
        found: dict[tuple[str, str], Listed] = {}
        left_out: dict[str, str] = {}
        for row in rows:
            package = row.package
            if row.why:
                name = package.name[:_MAX_WORD]
                if name not in left_out or row.why != Why.NOT_HERE:
                    left_out[name] = row.why
                continue
            for word in (package.name, package.version, package.build):
                if len(word) > _MAX_WORD:
                    what = f"{word[:40]!r}… has {len(word)} characters: no package has a name so long"
                    raise self.refused(what, "write the file again with its tool")
            rival = found.get(key := (package.manager, package.name))
            if rival is not None and rival.package.version != package.version:
                row, older = sorted((row, rival), key=_newness, reverse=True)
                both = f"{row.package.version} is taken, not {older.package.version} as well"
                self.notes.append(f"{package.name}: {both}")
            found[key] = row
        if self.loose:
            more = f" and {len(self.loose) - 5} more" if len(self.loose) > 5 else ""
            raise self.refused(
                f"not every package is pinned to one version: {', '.join(self.loose[:5])}{more}",
                "give a lock file, the environment's directory, or the output of `pip freeze` or of `conda "
                "env export` without `--from-history`",
            )
        if not found and not left_out:
            remedy = "name a file that lists an environment's packages"
            raise self.refused(f"{self.format} without any package", remedy)
        self.packages = tuple(found[key].package for key in sorted(found, key=lambda key: (key[1], key[0])))
        stated = {key: row.hashes or (row.package.sha256,) for key, row in found.items()}
        self.hashes = {key: hashes for key, hashes in stated.items() if any(hashes)}
        # A marker may exclude one version of a package while another version fits.
        names = {package.name for package in self.packages}
        kept = {n: why for n, why in left_out.items() if why != Why.NOT_HERE or n not in names}
        self.left_out = dict(sorted(kept.items()))
        conda_packages = [row.package for row in found.values() if row.package.is_conda]
        self.python = next((p.version for p in conda_packages if p.name == "python"), self.python)
        archives = [p.url.rsplit("/", 2) for p in conda_packages if p.url.count("/") > 2]
        subdirs = (subdir for _, subdir, _ in archives if subdir != "noarch")
        self.platform = self.platform or next(subdirs, "")
        self.channels = tuple(dict.fromkeys(self.channels or [channel for channel, _, _ in archives]))

    def refused(self, what: str, remedy: str) -> UsageError:
        """Build the error for an environment that cannot be read, with the reason and a remedy."""
        return UsageError(f"{self.source}: {what}", remedy=remedy)

    def refused_platform(self, theirs: Iterable[str], mine: str) -> UsageError:
        """Build the error for a file that is for other platforms or Python versions than requested."""
        return self.refused(
            f"it is for {', '.join(theirs) or 'no platform'}, and this is {mine}",
            "lock it for this platform too, or give the command on a machine of that platform",
        )


def _newness(row: Listed) -> tuple[bool, Version]:
    version = version_or_none(row.package.version)
    return version is not None, version or Version("0")


def version_or_none(text: str) -> Version | None:
    """Parse a version in the format of PEP 440; return None for any other text."""
    try:
        return Version(text)
    except InvalidVersion:
        return None
