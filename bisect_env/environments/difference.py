"""Compares two locks package by package, and finds the projects' pages.

The packages that the matrix moves itself come first: they are what was asked for. What moved along with
them comes after, for it is there that the surprise often is.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from packaging.utils import canonicalize_name

from bisect_env.environments.lock import Lock, LockedPackage
from bisect_env.matrix.history import SHORT

# --------------------------------------------------------------------------------------------------
# Where projects live, as they say themselves: read from environments that exist on this host.
#
# No network is asked: what is not installed here has no page.

_LABELS = ("homepage", "home", "source", "repository", "source code", "github", "documentation")
"""Labels of `Project-URL` in order of preference; they are free text."""


def project_urls(prefixes: Iterable[Path]) -> dict[str, str]:
    """Return the home pages of the projects whose packages are installed in these prefixes.

    Args:
        prefixes: Directories of environments; those that do not exist are passed over.

    Returns:
        Normalised name to address, https and http alone.
    """
    found: dict[str, str] = {}
    for prefix in prefixes:
        for name, home in (*_of_wheels(prefix), *_of_conda(prefix)):
            if home.startswith(("https://", "http://")):
                found.setdefault(canonicalize_name(name), home)
    return found


def _of_wheels(prefix: Path) -> Iterator[tuple[str, str]]:
    sites = sorted(str(site) for site in prefix.glob("lib/python*/site-packages"))
    for distribution in importlib.metadata.distributions(path=sites):
        headers = distribution.metadata
        labelled: dict[str, str] = {}
        for value in headers.get_all("Project-URL", ()):
            label, _, address = str(value).partition(",")
            labelled.setdefault(label.strip().lower(), address.strip())
        home = next((labelled[label] for label in _LABELS if label in labelled), "")
        yield str(headers["Name"] or ""), home or "".join(headers.get_all("Home-page") or ())


def _of_conda(prefix: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(prefix.glob("conda-meta/*.json")):
        try:
            record = json.loads(path.read_text("utf-8"))
            about = Path(record.get("extracted_package_dir") or "", "info", "about.json")
            home = json.loads(about.read_text("utf-8")).get("home") or ""
        except (OSError, ValueError, AttributeError):
            continue
        # A list in some recipes.
        yield str(record.get("name", "")), str(home[0] if isinstance(home, list) and home else home)


# --------------------------------------------------------------------------------------------------
# What changed between two locks, package by package. Pure.

ChangeKind = Literal["changed", "rebuilt", "moved", "added", "removed"]
"""`rebuilt`: the same version from another archive; `moved`: the same archive from another place."""


@dataclass(frozen=True, slots=True)
class PackageState:
    """One package on one side of a difference.

    Attributes:
        version: Exact version.
        build: conda's build string, "" for wheels.
        manager: `pip` or `conda`; "" for an interpreter that no package manager brings.
        source: Channel or host that it comes from.
        sha256: Hex digest of the archive, "" for such an interpreter.
        url: Address of the archive.
    """

    version: str
    build: str = ""
    manager: str = ""
    source: str = ""
    sha256: str = ""
    url: str = ""

    @property
    def label(self) -> str:
        """Return the version with its build or commit, if any."""
        if self.url.startswith("git+"):
            return f"{self.version} at {self.url.partition('#')[0].rpartition('@')[2][:SHORT]}"
        return f"{self.version} {self.build}".rstrip()


@dataclass(frozen=True, slots=True)
class PackageChange:
    """The change of one package between two locks.

    Attributes:
        name: Normalised name.
        kind: What became of it.
        before: In the first lock, None where it is added.
        after: In the second lock, None where it is removed.
        of_axis: Whether an axis of the matrix moves it.
        home: Address of the project's own page, "" when it is not known.
    """

    name: str
    kind: ChangeKind
    before: PackageState | None = None
    after: PackageState | None = None
    of_axis: bool = False
    home: str = ""


def difference(
    before: Lock, after: Lock, axis_packages: Collection[str] = (), urls: Mapping[str, str] | None = None
) -> tuple[PackageChange, ...]:
    """Return the packages that differ between two locks.

    A package that a wheel brings here and conda there is one that changed. The interpreter counts as the
    package `python`, also where it is none.

    Args:
        before: The first lock.
        after: The second one.
        axis_packages: Names of the packages that axes of the matrix move; they come first, in this order.
        urls: Pages of projects by normalised name (see `project_urls`).

    Returns:
        The changes: those of axes first, the others by name.
    """
    first = [str(canonicalize_name(name.partition("[")[0])) for name in axis_packages]
    rank = {name: position for position, name in enumerate(dict.fromkeys(first))}
    sides = _packages(before), _packages(after)
    changes = []
    for name in sorted(sides[0].keys() | sides[1].keys()):
        old, new = sides[0].get(name), sides[1].get(name)
        if (kind := _kind(old, new)) is not None:
            home = (urls or {}).get(name, "")
            changes.append(PackageChange(name, kind, old, new, name in rank, home))
    return tuple(sorted(changes, key=lambda change: rank.get(change.name, len(rank))))


def _packages(lock: Lock) -> Mapping[str, PackageState]:
    found = {} if lock.is_conda else {"python": PackageState(lock.python)}
    # Sorted so that a wheel on top of a conda package of the same name has the last word, as in the prefix.
    for package in sorted(lock.packages, key=lambda package: not package.is_conda):
        found[canonicalize_name(package.name)] = PackageState(
            package.version, package.build, package.manager, _source(package), package.sha256, package.url
        )
    return found


def _kind(old: PackageState | None, new: PackageState | None) -> ChangeKind | None:
    if old is None:
        return "added"
    if new is None:
        return "removed"
    if old.version != new.version:
        return "changed"
    if old.sha256 != new.sha256 or old.manager != new.manager:
        return "rebuilt"
    return "moved" if old.source != new.source else None


def _source(package: LockedPackage) -> str:
    if package.is_conda:
        return package.url.rsplit("/", 2)[0]
    parts = urlsplit(package.url)
    return parts.hostname or parts.scheme


def counted(changes: Sequence[PackageChange]) -> str:
    """Return the difference in a few words: `3 packages changed (the one you asked about, and 2 more)`."""
    own = sum(change.of_axis for change in changes)
    rest = len(changes) - own
    if not changes:
        return "no package differs"
    number = f"{len(changes)} {'package' if len(changes) == 1 else 'packages'} changed"
    if not own:
        return f"{number} (none of those you asked about)"
    asked = "the one you asked about" if own == 1 else f"{own} that you asked about"
    return f"{number} ({asked}{f', and {rest} more' if rest else ''})"
