"""Defines `ForeignEnvironment`, the common form of environments that are read from other tools' files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.markers import InvalidMarker, Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from bisect_env.environments.interpreters import installed_pythons
from bisect_env.errors import UsageError
from bisect_env.matrix import versions

MAX_BYTES = 64 * 1024 * 1024
_MAX_WORD = 200
"""Maximum number of characters in a name, version or build; indexes and file systems accept no more."""
NOT_HERE = "not for this Python or platform"
EDITABLE = "an editable install from a directory of its own"
LOCAL = "from a local directory or archive"
VCS = "from a version control system"
ARCHIVE = "from an archive's address, on no index"
_LATE_PATCH = 99
"""Patch number assumed for a Python version such as `3.12`, if a marker compares the full version."""


@dataclass(frozen=True, slots=True)
class ForeignPackage:
    """A package with an exact version that a file of another tool, such as `poetry.lock`, lists.

    It is no `LockedPackage`, because the file may state several archives, or none, and need not state URLs.

    Attributes:
        name: Normalised name of a PyPI package; name of a conda package as in its channel.
        version: Exact version.
        manager: `pip` or `conda`.
        build: conda's build string; "" for wheels and if it is unknown.
        hashes: Hex sha256 of the allowed archives; empty if the file states none.
    """

    name: str
    version: str
    manager: str = "pip"
    build: str = ""
    hashes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the lengths of name, version and build, because a file may contain any text.

        Raises:
            ValueError: A text is too long.
        """
        for word in (self.name, self.version, self.build):
            if len(word) > _MAX_WORD:
                raise ValueError(
                    f"{word[:40]!r}… has {len(word)} characters, and none of a package has more "
                    f"than {_MAX_WORD}"
                )

    @property
    def spec(self) -> str:
        """Return the package in its manager's syntax, such as `click==8.1.8` or `numpy ==2.0 py311_0`."""
        if self.manager == "pip":
            return f"{self.name}=={self.version}"
        return f"{self.name} =={self.version} {self.build}".rstrip()


@dataclass(frozen=True, slots=True)
class ForeignEnvironment:
    """The packages of an environment, as read from a file of another tool such as poetry or pip.

    Attributes:
        source: File or directory, as the user named it.
        format: Detected format, for messages, such as `uv.lock 1`.
        python: Python version that the file states; "" if it states none.
        requires_python: Range of supported Python versions; "" if the file states none.
        platform: conda's name of its platform; "" if it is for any platform.
        packages: The packages, sorted by name. They include Python if it is a conda package.
        left_out: Maps the packages that cannot be installed elsewhere to the reason, sorted by name.
        channels: conda channels, highest priority first.
        notes: Further messages for the user, one sentence each.
    """

    source: str
    format: str
    python: str
    packages: tuple[ForeignPackage, ...]
    requires_python: str = ""
    platform: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)
    channels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def uses_conda(self) -> bool:
        """Return whether any package comes from a conda channel."""
        return any(package.manager == "conda" for package in self.packages)

    def of(self, manager: str) -> tuple[ForeignPackage, ...]:
        """Return the packages of one manager (`pip` or `conda`), without Python itself."""
        return tuple(p for p in self.packages if p.manager == manager and p.name != "python")

    def summary(self) -> str:
        """Return one line with the format, and how many packages were found and left out."""
        count = f"{len(self.packages)} package{'' if len(self.packages) == 1 else 's'}"
        python = f", Python {self.python}" if self.python else ""
        platform = f", {self.platform}" if self.platform else ""
        line = f"{self.source}: {self.format}: {count}{python}{platform}"
        return f"{line}; {len(self.left_out)} left out" if self.left_out else line


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


@dataclass
class Markers:
    """An evaluator of environment markers (PEP 508) for one Python version and platform.

    Attributes:
        python: Python version, such as `3.12`.
        platform: conda's name of the platform, such as `linux-64`.
        extras: Names of the extras that are considered requested.
        groups: Names of the dependency groups that are considered requested.
    """

    python: str
    platform: str
    extras: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()

    @property
    def _facts(self) -> dict[str, str | frozenset[str]]:
        system = self.platform.partition("-")[0]
        machine = self.platform.partition("-")[2]
        names = {"linux": ("linux", "Linux", "posix"), "osx": ("darwin", "Darwin", "posix")}
        sys_platform, platform_system, os_name = names.get(system, ("win32", "Windows", "nt"))
        machines = {"64": "AMD64" if os_name == "nt" else "x86_64", "32": "i686"}
        return {
            "python_version": ".".join(self.python.split(".")[:2]),
            "python_full_version": _whole(self.python),
            "implementation_version": _whole(self.python),
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
            "sys_platform": sys_platform,
            "platform_system": platform_system,
            "os_name": os_name,
            "platform_machine": machines.get(machine, machine),
            "platform_release": "",
            "platform_version": "",
        }

    def holds(self, text: str) -> bool:
        """Return whether an environment marker is true, without an extra or with one of `extras`.

        An empty or invalid marker counts as true, so that no package is lost.
        """
        if not text:
            return True
        try:
            marker = Marker(text)
            if "extras" in text or "dependency_groups" in text:
                facts = {**self._facts, "extras": self.extras, "dependency_groups": self.groups}
                return marker.evaluate(facts, context="lock_file")
            each = ["", *self.extras] if "extra" in text else [""]
            return any(marker.evaluate({**self._facts, "extra": extra}) for extra in each)
        except (InvalidMarker, UndefinedComparison, UndefinedEnvironmentName, RecursionError):
            return True

    def python_fits(self, requires: str) -> bool:
        """Return whether the Python version satisfies a specifier such as `>=3.9`.

        An empty or invalid specifier counts as satisfied.
        """
        try:
            return not requires or SpecifierSet(requires).contains(_whole(self.python), prereleases=True)
        except InvalidSpecifier:
            return True


def _whole(python: str) -> str:
    return python if python.count(".") > 1 else f"{python}.{_LATE_PATCH}"


@dataclass
class ForeignReading:
    """The settings, and the packages found so far, while an environment of another tool is read.

    Attributes:
        source: File or directory, as the user named it.
        where: Path of the file or directory.
        name: Name of the environment to read if the file has several; "" for the default one.
        python: Python version for which markers are evaluated; "" for the version that the file states.
        platform: conda's name of the platform to read.
        packages: The packages that were read; a package may occur more than once.
        left_out: Maps names of packages that are left out to the reason.
        notes: Further messages for the user, one sentence each.
    """

    source: str
    where: Path
    name: str
    python: str
    platform: str
    packages: list[ForeignPackage] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def take(
        self, name: str, version: str = "", hashes: tuple[str, ...] = (), *, fits: bool = True, why: str = ""
    ) -> None:
        """Add a PyPI package to `packages`, or to `left_out` if it cannot be installed.

        Args:
            name: Name of the package.
            version: Exact version; not used if the package is left out.
            hashes: Hex sha256 of the allowed archives; empty if the file states none.
            fits: Whether the package is for the requested Python version and platform.
            why: Why the package cannot be installed from an index; "" if it can.
        """
        name = str(canonicalize_name(name))
        if not fits:
            self.left_out.setdefault(name, NOT_HERE)
        elif why:
            self.left_out[name] = why
        else:
            self.packages.append(ForeignPackage(name, version, hashes=hashes))

    def result(self, kind: str, **more: Any) -> ForeignEnvironment:
        """Build the `ForeignEnvironment` from the packages that were read.

        Args:
            kind: Value of the attribute `format`.
            more: Values of further attributes of `ForeignEnvironment`.

        Raises:
            UsageError: The file lists no package.
        """
        found = by_name(self._once())
        if not found and not self.left_out:
            raise refused(
                self.source, f"{kind} without any package", "name a file that lists an environment's packages"
            )
        return ForeignEnvironment(
            source=self.source,
            format=kind,
            python=more.pop("python", ""),
            packages=found,
            left_out={name[:_MAX_WORD]: why for name, why in sorted(self.left_out.items())},
            notes=tuple(self.notes),
            **more,
        )

    def markers(self, stated: str = "", requires: str = "") -> Markers:
        """Return an evaluator of environment markers for the requested Python version and platform.

        Args:
            stated: Python version that the file states, used if none was requested.
            requires: Range of supported Python versions, used if the file states no version.
        """
        return Markers(self.python or stated or fitting_python([requires]), self.platform)

    def conda_result(self, kind: str, platform: str, channels: Iterable[str]) -> ForeignEnvironment:
        """Build the `ForeignEnvironment` from the packages read; its Python is the conda package `python`."""
        conda = (package for package in self.packages if package.manager == "conda")
        python = next((package.version for package in conda if package.name == "python"), "")
        return self.result(kind, python=python, platform=platform, channels=tuple(dict.fromkeys(channels)))

    def other_platform(self, theirs: str, markers: Markers | None) -> UsageError:
        """Build the error for a file that is only for other platforms or Python versions."""
        mine = self.platform if markers is None else f"Python {markers.python} on {self.platform}"
        return refused(
            self.source,
            f"it is for {theirs or 'no platform'}, and this is {mine}",
            "lock it for this platform too, or give the command on a machine of that platform",
        )

    def _once(self) -> list[ForeignPackage]:
        """Return the packages that were read, without duplicates.

        If a package was read in several versions, the newest is kept and a note is added.
        """
        found: dict[tuple[str, str], ForeignPackage] = {}
        for package in self.packages:
            key = (package.manager, package.name)
            other = found.get(key)
            if other is not None and other.version != package.version:
                newest, older = sorted((package, other), key=_newness, reverse=True)
                self.notes.append(f"{package.name}: {newest.version} is taken, not {older.version} as well")
                package = newest
            found[key] = package
        for _, name in found:
            # A marker may exclude one version of a package while another version fits.
            if self.left_out.get(name) == NOT_HERE:
                del self.left_out[name]
        return list(found.values())


def by_name(packages: Iterable[ForeignPackage]) -> tuple[ForeignPackage, ...]:
    """Return the packages sorted by name."""
    return tuple(sorted(packages, key=lambda package: (package.name, package.manager)))


def is_version(text: str) -> bool:
    """Return whether a text is a version number in the format of PEP 440."""
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def _newness(package: ForeignPackage) -> tuple[bool, Version]:
    if is_version(package.version):
        return True, Version(package.version)
    return False, Version("0")


def refused(source: str, what: str, remedy: str) -> UsageError:
    """Build the error for an environment that cannot be read, with the reason and a remedy."""
    return UsageError(f"{source}: {what}", remedy=remedy)


def unknown(source: str) -> UsageError:
    """Build the error for a file whose format is not supported."""
    return refused(
        source,
        "this is no list of an environment's packages that is known here",
        "give `pip freeze` output, uv.lock, pylock.toml, poetry.lock, pdm.lock, Pipfile.lock, conda list "
        "--explicit or --export, conda env export, conda-lock.yml, pixi.lock, or an environment's directory",
    )
