"""Reads lock files of uv, Poetry, PDM, pipenv and PEP 751 (`pylock.toml`).

Such files may contain packages for several Python versions and platforms; those that do not fit are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from packaging.pylock import Pylock, PylockUnsupportedVersionError, PylockValidationError
from packaging.utils import canonicalize_name

from bisect_env.environments.foreign_reading import (
    ARCHIVE,
    EDITABLE,
    LOCAL,
    VCS,
    ForeignEnvironment,
    ForeignReading,
    Markers,
    refused,
)

ITSELF = "the project that the lock belongs to: give its code along with the command"


def pylock(reading: ForeignReading, data: dict[str, Any]) -> ForeignEnvironment:
    """Convert the parsed content of a `pylock.toml` to a `ForeignEnvironment`."""
    try:
        lock = Pylock.from_dict(data)
    except (PylockValidationError, PylockUnsupportedVersionError) as error:
        raise refused(reading.source, f"it is no valid pylock: {error}", "write it again") from None
    requires = str(lock.requires_python or "")
    markers = reading.markers(requires=requires)
    if lock.environments and not any(markers.holds(str(one)) for one in lock.environments):
        raise reading.other_platform("; ".join(str(one) for one in lock.environments), markers)
    markers.extras = frozenset(lock.extras or ())
    markers.groups = frozenset([*(lock.dependency_groups or ()), *(lock.default_groups or ())])
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
        reading.take(package.name, str(package.version), hashes, fits=fits, why=why)
    by = f" by {lock.created_by}" if lock.created_by else ""
    return reading.result(f"pylock.toml {lock.lock_version}{by}", requires_python=requires)


def uv(reading: ForeignReading, data: dict[str, Any]) -> ForeignEnvironment:
    """Convert the parsed content of a `uv.lock` to a `ForeignEnvironment`."""
    requires = str(data.get("requires-python", ""))
    entries: list[dict[str, Any]] = data.get("package", [])
    wanted = _reached(entries, data.get("manifest", {}), reading.markers(requires=requires))
    for position, entry in enumerate(entries):
        name, source = entry["name"], entry.get("source", {})
        own = source.get("editable", source.get("virtual", source.get("directory")))
        if position not in wanted:
            reading.take(name, fits=False)
        elif "registry" in source:
            archives = [*entry.get("wheels", []), *([entry["sdist"]] if "sdist" in entry else [])]
            reading.take(name, entry["version"], _sha256s(archives))
        elif own == "." or "virtual" in source:
            reading.take(name, why=ITSELF)
        elif "editable" in source:
            reading.take(name, why=EDITABLE)
        else:
            reading.take(name, why=VCS if "git" in source else ARCHIVE if "url" in source else LOCAL)
    return reading.result(f"uv.lock {data['version']}", requires_python=requires)


def poetry(reading: ForeignReading, data: dict[str, Any]) -> ForeignEnvironment:
    """Convert the parsed content of a `poetry.lock` to a `ForeignEnvironment`."""
    metadata = data["metadata"]
    requires = _poetry_range(str(metadata.get("python-versions", "")))
    markers = reading.markers(requires=requires)
    markers.extras = frozenset(data.get("extras", {}))
    older = metadata.get("files", {})
    kinds = {"git": VCS, "url": ARCHIVE, "directory": LOCAL, "file": LOCAL}
    for entry in data.get("package", []):
        stated = entry.get("markers", "")
        texts = list(stated.values()) if isinstance(stated, dict) else [stated]
        fits = markers.python_fits(_poetry_range(str(entry.get("python-versions", ""))))
        fits = fits and any(markers.holds(text) for text in texts)
        why = kinds.get(entry.get("source", {}).get("type"), "")
        why = EDITABLE if why == LOCAL and entry.get("develop") else why
        hashes = _sha256s(entry.get("files") or older.get(entry["name"], []))
        reading.take(entry["name"], entry["version"], hashes, fits=fits, why=why)
    kind = f"poetry.lock {metadata.get('lock-version', '')}".rstrip()
    return reading.result(kind, requires_python=requires)


def pdm(reading: ForeignReading, data: dict[str, Any]) -> ForeignEnvironment:
    """Convert the parsed content of a `pdm.lock` to a `ForeignEnvironment`."""
    metadata = data["metadata"]
    stated = [str(one["requires_python"]) for one in metadata.get("targets", []) if "requires_python" in one]
    requires = stated[0] if len(stated) == 1 else ""
    markers = reading.markers(requires=requires)
    for entry in data.get("package", []):
        fits = markers.holds(entry.get("marker", ""))
        fits = fits and markers.python_fits(entry.get("requires_python", ""))
        hashes, why = _sha256s(entry.get("files", [])), _elsewhere(entry, "url")
        reading.take(entry["name"], str(entry.get("version", "")), hashes, fits=fits, why=why)
    return reading.result(f"pdm.lock {metadata['lock_version']}", requires_python=requires)


def pipenv(reading: ForeignReading, data: dict[str, Any]) -> ForeignEnvironment:
    """Convert the parsed content of a `Pipfile.lock` to a `ForeignEnvironment`."""
    requires = data["_meta"].get("requires", {})
    python = str(requires.get("python_full_version") or requires.get("python_version") or "")
    markers = reading.markers(python)
    for section in (key for key in data if key != "_meta"):
        for name, entry in data[section].items():
            version = str(entry.get("version", ""))
            loose = "" if version.startswith("==") else f"not pinned to one version ({version or 'any'})"
            hashes = tuple(h[7:] for h in entry.get("hashes", []) if h.startswith("sha256:"))
            fits = markers.holds(entry.get("markers", ""))
            reading.take(name, version[2:], hashes, fits=fits, why=_elsewhere(entry, "file") or loose)
    kind = f"Pipfile.lock {data['_meta'].get('pipfile-spec', '')}".rstrip()
    return reading.result(kind, python=python)


def _reached(entries: Sequence[dict[str, Any]], manifest: Mapping[str, Any], markers: Markers) -> set[int]:
    """Return the indices of the packages in a `uv.lock` that the lock's projects need.

    The packages of all dependency groups and extras of the projects are included.
    """
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


def _elsewhere(entry: Mapping[str, Any], archive: str) -> str:
    """Return why a package in a lock of PDM or pipenv cannot be installed from a package index.

    Return "" if it can be.

    Args:
        entry: The entry of the lock file.
        archive: Name of the key that states the URL of an archive.
    """
    if "path" in entry:
        return EDITABLE if entry.get("editable") else LOCAL
    return VCS if "git" in entry else ARCHIVE if archive in entry else ""


def _sha256s(files: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    stated = (str(file.get("hash", "")) for file in files)
    return tuple(value[7:] for value in stated if value.startswith("sha256:"))


def _poetry_range(text: str) -> str:
    """Convert a version range of Poetry to PEP 440: `^3.9` becomes `>=3.9,<4`.

    Return "" for `*` and for alternatives (`|`, `||`), which PEP 440 cannot express.
    """
    if text.strip() in ("", "*") or "|" in text:
        return ""
    parts = []
    # An operator may be followed by spaces, as in `>= 3.9`.
    for part in re.split(r"[,\s]+(?=[\^~<>=!\d])", re.sub(r"([\^~<>=!])\s+", r"\1", text.strip())):
        if part.startswith("^") and (found := re.match(r"\^((?:0\.)*)(\d+)", part)):
            parts += [f">={part[1:]}", f"<{found[1]}{int(found[2]) + 1}"]
        elif part.startswith("~") and not part.startswith("~="):
            numbers = part[1:].split(".")
            upper = (
                [*numbers[:1], str(int(numbers[1]) + 1)] if len(numbers) > 1 else [str(int(numbers[0]) + 1)]
            )
            parts += [f">={part[1:]}", f"<{'.'.join(upper)}"]
        else:
            parts.append(part if part[0] in "<>=!~" else f"=={part}")
    return ",".join(parts)
