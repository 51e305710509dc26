"""Reads lock files of uv, Poetry, PDM, pipenv and PEP 751 (`pylock.toml`).

Such files may contain packages for several Python versions and platforms; those that do not fit are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from packaging.pylock import Pylock, PylockUnsupportedVersionError, PylockValidationError

from bisect_env.environments.foreign_reading import ForeignEnvironment, Listed, Markers, Why, wheel
from bisect_env.matrix.versions import host_platform

ITSELF = "the project that the lock belongs to: give its code along with the command"
_UV_KINDS = {"editable": Why.EDITABLE, "git": Why.VCS, "url": Why.ARCHIVE}
_POETRY_KINDS = {"git": Why.VCS, "url": Why.ARCHIVE, "directory": Why.LOCAL, "file": Why.LOCAL}
_Data = Mapping[str, Any]


def pylock(environment: ForeignEnvironment, data: _Data) -> Iterator[Listed]:
    """Yield the packages of a `pylock.toml` (PEP 751)."""
    try:
        lock = Pylock.from_dict(data)
    except (PylockValidationError, PylockUnsupportedVersionError) as error:
        raise environment.refused(f"it is no valid pylock: {error}", "write it again") from None
    environment.format = (
        f"pylock.toml {lock.lock_version}{f' by {lock.created_by}' if lock.created_by else ''}"
    )
    environment.requires_python = str(lock.requires_python or "")
    groups = [*(lock.dependency_groups or ()), *(lock.default_groups or ())]
    markers = environment.markers(lock.extras or (), groups)
    environments = [str(one) for one in lock.environments or ()]
    if environments and not any(map(markers.hold, environments)):
        mine = f"Python {markers.python} on {host_platform()}"
        raise environment.refused_platform(environments, mine)
    # Not `Pylock.select`: it chooses one archive, and returns neither the others nor what does not fit.
    for package in lock.packages:
        stated = [one.hashes for one in package.wheels or ()]
        stated += [package.sdist.hashes] if package.sdist is not None else []
        hashes = tuple(one["sha256"] for one in stated if "sha256" in one)
        why = "" if package.version is not None else "without a version"
        if package.directory is not None:
            why = Why.EDITABLE if package.directory.editable else Why.LOCAL
        elif package.vcs is not None or package.archive is not None:
            why = Why.VCS if package.vcs is not None else Why.ARCHIVE
        fits = markers.hold(str(package.marker or ""))
        yield wheel(package.name, str(package.version), hashes, fits=fits, why=why)


def uv(environment: ForeignEnvironment, data: _Data) -> Iterator[Listed]:
    """Yield the packages of a `uv.lock`."""
    environment.format = f"uv.lock {data['version']}"
    environment.requires_python = str(data.get("requires-python", ""))
    entries: list[dict[str, Any]] = data.get("package", [])
    needed = _needed(entries, data.get("manifest", {}), environment.markers())
    for position, entry in enumerate(entries):
        source, why = entry.get("source", {}), ""
        if _is_own(entry) or "virtual" in source:
            why = ITSELF
        elif "registry" not in source:
            why = next((kind for key, kind in _UV_KINDS.items() if key in source), Why.LOCAL)
        hashes = _sha256s([*entry.get("wheels", []), entry.get("sdist", {})])
        yield wheel(entry["name"], entry.get("version", ""), hashes, fits=position in needed, why=why)


def _is_own(entry: _Data) -> bool:
    return any(entry.get("source", {}).get(key) == "." for key in ("editable", "virtual", "directory"))


def _needed(entries: Sequence[_Data], manifest: _Data, markers: Markers) -> set[int]:
    """Return the indices of the packages in a `uv.lock` that the lock's projects need.

    The packages of all dependency groups and extras of the projects are included.
    """
    forks = [any(map(markers.hold, entry.get("resolution-markers") or [""])) for entry in entries]
    named: dict[str, list[int]] = {}
    for position, entry in enumerate(entries):
        named.setdefault(entry["name"], []).append(position)

    def followed(dependencies: Iterable[_Data], extras: str = "extra") -> Iterator[tuple[int, str]]:
        """Yield the indices of dependencies, with "" for the package itself and the names of its extras."""
        for one in dependencies:
            if markers.hold(one.get("marker", "")):
                version, found = one.get("version"), named.get(one["name"], [])
                exact = [p for p in found if version is None or entries[p].get("version") == version]
                for position in [p for p in exact if forks[p]] or exact:
                    yield from ((position, extra) for extra in ("", *one.get(extras, ())))

    members = manifest.get("members", [])
    roots = {p for p, entry in enumerate(entries) if entry["name"] in members or _is_own(entry)}
    todo = [(p, extra) for p in roots for extra in ("", *entries[p].get("optional-dependencies", {}))]
    todo += followed([*manifest.get("requirements", []), *manifest.get("overrides", [])], "extras")
    if not todo:
        return {position for position, holds in enumerate(forks) if holds}
    seen: set[tuple[int, str]] = set()
    while todo:
        position, extra = node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        entry = entries[position]
        if extra:
            todo += followed(entry.get("optional-dependencies", {}).get(extra, []))
            continue
        todo += followed(entry.get("dependencies", []))
        for group in entry.get("dev-dependencies", {}).values() if position in roots else ():
            todo += followed(group)
    return {position for position, _ in seen}


def poetry(environment: ForeignEnvironment, data: _Data) -> Iterator[Listed]:
    """Yield the packages of a `poetry.lock`."""
    metadata = data["metadata"]
    environment.format = f"poetry.lock {metadata['lock-version']}"
    environment.requires_python = _poetry_range(str(metadata.get("python-versions", "")))
    markers = environment.markers(data.get("extras", {}))
    older = metadata.get("files", {})
    for entry in data.get("package", []):
        stated = entry.get("markers", "")
        pythons = _poetry_range(str(entry.get("python-versions", "")))
        texts = stated.values() if isinstance(stated, dict) else [stated]
        fits = any(markers.hold(text, pythons) for text in texts)
        why = _POETRY_KINDS.get(entry.get("source", {}).get("type"), "")
        why = Why.EDITABLE if why == Why.LOCAL and entry.get("develop") else why
        hashes = _sha256s(entry.get("files") or older.get(entry["name"], []))
        yield wheel(entry["name"], entry["version"], hashes, fits=fits, why=why)


def _poetry_range(text: str) -> str:
    """Convert a version range of Poetry to PEP 440: `^3.9` becomes `>=3.9,<4`.

    Return "" for `*` and for alternatives (`|`, `||`), which PEP 440 cannot express.
    """
    parts = []
    # An operator may be followed by spaces, as in `>= 3.9`.
    for operator, version in re.findall(r"([\^~<>=!]*)\s*([^\s,\^~<>=!]+)", "" if "|" in text else text):
        if operator in ("^", "~"):
            numbers = [int(number) for number in re.findall(r"\d+", version)]
            # `^` lets the numbers behind the first that is not 0 grow, `~` those behind the second.
            first = next((i for i, number in enumerate(numbers) if number), len(numbers) - 1)
            last = first if operator == "^" else min(1, len(numbers) - 1)
            upper = [*numbers[:last], numbers[last] + 1]
            parts += [f">={version}", f"<{'.'.join(map(str, upper))}"]
        elif version != "*":
            parts.append(f"{operator or '=='}{version}")
    return ",".join(parts)


def pdm(environment: ForeignEnvironment, data: _Data) -> Iterator[Listed]:
    """Yield the packages of a `pdm.lock`."""
    metadata = data["metadata"]
    environment.format = f"pdm.lock {metadata['lock_version']}"
    stated = [str(one["requires_python"]) for one in metadata.get("targets", []) if "requires_python" in one]
    environment.requires_python = stated[0] if len(stated) == 1 else ""
    markers = environment.markers()
    for entry in data.get("package", []):
        fits = markers.hold(entry.get("marker", ""), entry.get("requires_python", ""))
        hashes, why = _sha256s(entry.get("files", [])), _elsewhere(entry, "url")
        yield wheel(entry["name"], str(entry.get("version", "")), hashes, fits=fits, why=why)


def pipenv(environment: ForeignEnvironment, data: _Data) -> Iterator[Listed]:
    """Yield the packages of a `Pipfile.lock`."""
    requires = data["_meta"].get("requires", {})
    environment.format = f"Pipfile.lock {data['_meta'].get('pipfile-spec', '')}".rstrip()
    environment.python = str(requires.get("python_full_version") or requires.get("python_version") or "")
    markers = environment.markers()
    for section in (key for key in data if key != "_meta"):
        for name, entry in data[section].items():
            version = str(entry.get("version", ""))
            loose = "" if version.startswith("==") else f"not pinned to one version ({version or 'any'})"
            hashes = _sha256s({"hash": text} for text in entry.get("hashes", []))
            fits = markers.hold(entry.get("markers", ""))
            yield wheel(name, version[2:], hashes, fits=fits, why=_elsewhere(entry, "file") or loose)


def _elsewhere(entry: _Data, archive: str) -> str:
    """Return why a package in a lock of PDM or pipenv cannot be installed from a package index.

    Return "" if it can be.

    Args:
        entry: The entry of the lock file.
        archive: Name of the key that states the URL of an archive.
    """
    if "path" in entry:
        return Why.EDITABLE if entry.get("editable") else Why.LOCAL
    return Why.VCS if "git" in entry else Why.ARCHIVE if archive in entry else ""


def _sha256s(files: Iterable[_Data]) -> tuple[str, ...]:
    stated = (str(file.get("hash", "")) for file in files)
    return tuple(text.removeprefix("sha256:") for text in stated if text.startswith("sha256:"))
