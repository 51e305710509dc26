"""Compares two locks package by package, and finds the home pages of projects.

The packages of the matrix's axes are listed first. Other packages that changed along with them follow; one of
these may be the real cause of a failure.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.utils import canonicalize_name

from bisect_env.environments.lock import Lock, LockedPackage

# --------------------------------------------------------------------------------------------------
# Home pages of projects, read from the metadata of installed environments on this host. The network is not
# used, so projects that are not installed have no home page.

_LABELS = ("homepage", "home", "source", "repository", "source code", "github", "documentation")
"""Labels of `Project-URL` entries in order of preference. Projects may use any label."""


def project_urls(prefixes: Iterable[Path]) -> dict[str, str]:
    """Return the home pages of the packages that are installed in `prefixes`.

    Args:
        prefixes: Directories of environments; those that do not exist are ignored.

    Returns:
        A map from normalised package names to URLs. Only `http` and `https` URLs are included.
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
            continue  # its metadata is gone or invalid, so the report shows no link for this package
        # Some recipes state a list of home pages.
        yield str(record.get("name", "")), str(home[0] if isinstance(home, list) and home else home)


# --------------------------------------------------------------------------------------------------
# What changed between two locks, package by package. Pure.

ChangeKind = Literal["changed", "rebuilt", "moved", "added", "removed"]
"""Kind of a change between two locks.

`changed` means another version, `rebuilt` the same version from another archive, and `moved` the same archive
from another channel or host.
"""


@dataclass(frozen=True, slots=True)
class PackageChange:
    """The difference of one package between two locks.

    Attributes:
        name: Normalised name.
        kind: Kind of the change.
        before: State in the first lock; None if the package was added.
        after: State in the second lock; None if the package was removed.
        of_axis: Whether the package belongs to an axis of the matrix.
        home: URL of the project's home page; "" if unknown.
    """

    name: str
    kind: ChangeKind
    before: LockedPackage | None = None
    after: LockedPackage | None = None
    of_axis: bool = False
    home: str = ""


def difference(
    before: Lock, after: Lock, axis_packages: Collection[str] = (), urls: Mapping[str, str] | None = None
) -> tuple[PackageChange, ...]:
    """Return the packages that differ between two locks.

    A package that comes from PyPI in one lock and from conda in the other counts as the same package. The
    interpreter is treated as a package named `python`.

    Args:
        before: The first lock.
        after: The second lock.
        axis_packages: Names of the packages that belong to axes of the matrix.
        urls: Home pages by normalised name (see `project_urls`).

    Returns:
        The changes: first of `axis_packages`, in the given order, then of the other packages, by name.
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


def _packages(lock: Lock) -> Mapping[str, LockedPackage]:
    found = {} if lock.is_conda else {"python": LockedPackage("python", lock.python, "", "", "")}
    # Sorted so that a wheel on top of a conda package of the same name has the last word, as in the prefix.
    for package in sorted(lock.packages, key=lambda package: not package.is_conda):
        found[canonicalize_name(package.name)] = package
    return found


def _kind(old: LockedPackage | None, new: LockedPackage | None) -> ChangeKind | None:
    if old is None:
        return "added"
    if new is None:
        return "removed"
    if old.version != new.version:
        return "changed"
    if old.sha256 != new.sha256 or old.manager != new.manager:
        return "rebuilt"
    return "moved" if old.source != new.source else None


def counted(changes: Sequence[PackageChange]) -> str:
    """Return a summary of changes, such as `3 packages changed (the one you asked about, and 2 more)`."""
    own = sum(change.of_axis for change in changes)
    rest = len(changes) - own
    if not changes:
        return "no package differs"
    number = f"{len(changes)} {'package' if len(changes) == 1 else 'packages'} changed"
    if not own:
        return f"{number} (none of those you asked about)"
    asked = "the one you asked about" if own == 1 else f"{own} that you asked about"
    return f"{number} ({asked}{f', and {rest} more' if rest else ''})"
