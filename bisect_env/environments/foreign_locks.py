"""Reads lock files of uv, Poetry, PDM, pipenv and PEP 751: what fits a Python and a platform. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from packaging.markers import InvalidMarker, Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.pylock import Pylock
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

_LATE_PATCH = 99
"""Stands for "the newest patch release" where a marker asks for a whole version of Python."""
ITSELF = "the project that the lock belongs to: give its code along with the command"
EDITABLE = "an editable install from a directory of its own"
LOCAL = "from a local directory or archive"
VCS = "from a version control system"
ARCHIVE = "from an archive's address, on no index"


@dataclass
class Markers:
    """An evaluator of environment markers for a Python and a platform, with all extras and groups."""

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
        """Return whether a marker holds for some extra.

        An unreadable marker holds, so that nothing is lost.
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
        """Return whether the Python is in a range."""
        try:
            return not requires or SpecifierSet(requires).contains(_whole(self.python), prereleases=True)
        except InvalidSpecifier:
            return True


def _whole(python: str) -> str:
    return python if python.count(".") > 1 else f"{python}.{_LATE_PATCH}"


def _reached(entries: Sequence[dict[str, Any]], manifest: Mapping[str, Any], markers: Markers) -> set[int]:
    """Return the positions of the packages of a `uv.lock` that its projects need, with groups and extras."""
    by_name: dict[str, list[int]] = {}
    for position, entry in enumerate(entries):
        by_name.setdefault(str(canonicalize_name(entry["name"])), []).append(position)

    def named(dependency: Mapping[str, Any]) -> list[int]:
        positions = by_name.get(str(canonicalize_name(dependency["name"])), [])
        version = dependency.get("version")
        exact = [p for p in positions if version is None or entries[p].get("version") == version]
        forks = [p for p in exact if _fork_holds(entries[p], markers)]
        return forks or exact

    members = {str(canonicalize_name(name)) for name in manifest.get("members", [])}
    roots = [
        position
        for position, entry in enumerate(entries)
        if canonicalize_name(entry["name"]) in members
        or {entry.get("source", {}).get(key) for key in ("editable", "virtual", "directory")} & {"."}
    ]
    asked = [*manifest.get("requirements", []), *manifest.get("overrides", [])]
    todo: list[tuple[int, frozenset[str]]] = [
        (position, frozenset(entries[position].get("optional-dependencies", {}))) for position in roots
    ]
    todo += [
        (position, frozenset(dependency.get("extras", ())))
        for dependency in asked
        if markers.holds(dependency.get("marker", ""))
        for position in named(dependency)
    ]
    if not todo:
        return {p for p, entry in enumerate(entries) if _fork_holds(entry, markers)}
    seen: set[tuple[int, frozenset[str]]] = set()
    while todo:
        position, extras = todo.pop()
        if (position, extras) in seen:
            continue
        seen.add((position, extras))
        entry = entries[position]
        edges = list(entry.get("dependencies", []))
        for extra in extras:
            edges += entry.get("optional-dependencies", {}).get(extra, [])
        if position in roots:
            for group in entry.get("dev-dependencies", {}).values():
                edges += group
        for edge in edges:
            if markers.holds(edge.get("marker", "")):
                todo += [(p, frozenset(edge.get("extra", ()))) for p in named(edge)]
    return {position for position, _ in seen}


def _fork_holds(entry: Mapping[str, Any], markers: Markers) -> bool:
    forks = entry.get("resolution-markers", [])
    return not forks or any(markers.holds(fork) for fork in forks)


class Stated(NamedTuple):
    """A package as a lock states it: `why` says why it cannot be installed from an index, "" if it can."""

    name: str
    version: str = ""
    hashes: tuple[str, ...] = ()
    fits: bool = True
    why: str = ""


def of_pylock(lock: Pylock, markers: Markers) -> Iterator[Stated]:
    """Yield the packages of a `pylock.toml`."""
    for package in lock.packages:
        stated = [wheel.hashes for wheel in package.wheels or ()]
        stated += [package.sdist.hashes] if package.sdist is not None else []
        hashes = tuple(found for one in stated if (found := one.get("sha256")))
        fits = package.marker is None or markers.holds(str(package.marker))
        why = "" if package.version is not None else "without a version"
        if package.directory is not None:
            why = EDITABLE if package.directory.editable else LOCAL
        elif package.vcs is not None or package.archive is not None:
            why = VCS if package.vcs is not None else ARCHIVE
        yield Stated(package.name, str(package.version), hashes, fits, why)


def of_uv(data: Mapping[str, Any], markers: Markers) -> Iterator[Stated]:
    """Yield the packages of a `uv.lock`."""
    entries: list[dict[str, Any]] = data.get("package", [])
    wanted = _reached(entries, data.get("manifest", {}), markers)
    for position, entry in enumerate(entries):
        name, source = str(canonicalize_name(entry["name"])), entry.get("source", {})
        own = source.get("editable", source.get("virtual", source.get("directory")))
        if position not in wanted:
            yield Stated(name, fits=False)
        elif "registry" in source:
            archives = [*entry.get("wheels", []), *([entry["sdist"]] if "sdist" in entry else [])]
            yield Stated(name, entry["version"], _sha256s(archives, "hash"))
        elif own == "." or "virtual" in source:
            yield Stated(name, why=ITSELF)
        elif "editable" in source:
            yield Stated(name, why=EDITABLE)
        else:
            yield Stated(name, why=VCS if "git" in source else ARCHIVE if "url" in source else LOCAL)


def of_poetry(data: Mapping[str, Any], markers: Markers) -> Iterator[Stated]:
    """Yield the packages of a `poetry.lock`."""
    older = data["metadata"].get("files", {})
    kinds = {"git": VCS, "url": ARCHIVE, "directory": LOCAL, "file": LOCAL}
    for entry in data.get("package", []):
        stated = entry.get("markers", "")
        texts = list(stated.values()) if isinstance(stated, dict) else [stated]
        fits = markers.python_fits(poetry_range(str(entry.get("python-versions", ""))))
        fits = fits and any(markers.holds(text) for text in texts)
        why = kinds.get(entry.get("source", {}).get("type"), "")
        why = EDITABLE if why == LOCAL and entry.get("develop") else why
        hashes = _sha256s(entry.get("files") or older.get(entry["name"], []), "hash")
        yield Stated(str(canonicalize_name(entry["name"])), entry["version"], hashes, fits, why)


def of_pdm(data: Mapping[str, Any], markers: Markers) -> Iterator[Stated]:
    """Yield the packages of a `pdm.lock`."""
    for entry in data.get("package", []):
        fits = markers.holds(entry.get("marker", "")) and markers.python_fits(
            entry.get("requires_python", "")
        )
        hashes = _sha256s(entry.get("files", []), "hash")
        yield Stated(
            str(canonicalize_name(entry["name"])),
            str(entry.get("version", "")),
            hashes,
            fits,
            _elsewhere(entry, "url"),
        )


def of_pipenv(data: Mapping[str, Any], markers: Markers) -> Iterator[Stated]:
    """Yield the packages of a `Pipfile.lock`."""
    for section in (key for key in data if key != "_meta"):
        for raw, entry in data[section].items():
            version = str(entry.get("version", ""))
            loose = "" if version.startswith("==") else f"not pinned to one version ({version or 'any'})"
            hashes = tuple(h[7:] for h in entry.get("hashes", []) if h.startswith("sha256:"))
            fits = markers.holds(entry.get("markers", ""))
            why = _elsewhere(entry, "file") or loose
            yield Stated(str(canonicalize_name(raw)), version[2:], hashes, fits, why)


def _elsewhere(entry: Mapping[str, Any], archive: str) -> str:
    """Return why an entry of pdm or pipenv comes from no index, "" if it does."""
    if "path" in entry:
        return EDITABLE if entry.get("editable") else LOCAL
    return VCS if "git" in entry else ARCHIVE if archive in entry else ""


def _sha256s(files: Iterable[Mapping[str, Any]], key: str) -> tuple[str, ...]:
    stated = (str(file.get(key, "")) for file in files)
    return tuple(value[7:] for value in stated if value.startswith("sha256:"))


def poetry_range(text: str) -> str:
    """Return Poetry's `^3.9` and `~3.9` in PEP 440 notation; "" if that is impossible or adds nothing."""
    if text.strip() in ("", "*") or "||" in text:
        return ""
    parts = []
    for part in re.split(r"[,\s]+(?=[\^~<>=!\d])", text.strip()):
        if part.startswith("^") and (found := re.match(r"\^(\d+)", part)):
            parts += [f">={part[1:]}", f"<{int(found[1]) + 1}"]
        elif part.startswith("~") and not part.startswith("~="):
            numbers = part[1:].split(".")
            upper = (
                [*numbers[:1], str(int(numbers[1]) + 1)] if len(numbers) > 1 else [str(int(numbers[0]) + 1)]
            )
            parts += [f">={part[1:]}", f"<{'.'.join(upper)}"]
        else:
            parts.append(part if part[0] in "<>=!~" else f"=={part}")
    return ",".join(parts)
