"""Whether the packages that a script really imported are those of the lock."""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from bisect_env.trials.phases import Imported

MODULES_EACH = 6
"""Modules of one distribution that are looked for; some install hundreds side by side."""
_KEPT = 64
"""Environments whose modules a worker remembers."""
_INFO = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)\.dist-info")
_MODULE_FILE = re.compile(r"(?P<name>[A-Za-z_]\w*)(?:\.py|\.(?:cpython|abi3)[^/]*\.so|\.so)")
_NOBODYS = frozenset({"test", "tests", "testing", "doc", "docs", "example", "examples", "benchmarks", "src"})
"""Names that carelessly packed distributions install and that a script's own directory has as well."""


@dataclass(frozen=True, slots=True)
class Locked:
    """What a lock says of a distribution that can be imported.

    Attributes:
        name: Normalised name, PyPI's; `python` for the interpreter.
        version: Exact; of Python as much of it as was asked for.
        cuda: Whether it is a build for CUDA.
    """

    name: str
    version: str
    cuda: bool = False


@dataclass(frozen=True, slots=True)
class Expected:
    """What importing a module should give.

    Attributes:
        locked: Its distribution in the lock.
        site: Directory that the prefix has it in, "" for the interpreter.
        installed: Version by the metadata in that directory.
    """

    locked: Locked
    site: str = ""
    installed: str = ""


@functools.lru_cache(_KEPT)
def expected_imports(prefix: Path, locked: tuple[Locked, ...]) -> Mapping[str, Expected]:
    """Modules of an environment, by name, as its distributions list them. Nothing in it is run.

    Args:
        prefix: Of the environment.
        locked: Its distributions by the lock.
    """
    by_name = {one.name: one for one in locked}
    found = {"python": Expected(by_name["python"])} if "python" in by_name else {}
    for site in sorted(prefix.glob("lib/python*/site-packages")):
        for info in sorted(site.glob("*.dist-info")):
            match = _INFO.fullmatch(info.name)
            one = by_name.get(canonicalize_name(match["name"])) if match else None
            if match is None or one is None:
                continue
            for module in _modules(info / "RECORD"):
                found.setdefault(module, Expected(one, str(site.resolve()), match["version"]))
    return found


def _modules(record: Path) -> list[str]:
    """The packages and modules that a distribution consists of: the outermost that have code of their own."""
    try:
        with record.open(encoding="utf-8", errors="replace", newline="") as stream:
            names = set(_named(row[0] for row in csv.reader(stream) if row))
    except (OSError, csv.Error):
        return []
    outermost = [
        name
        for name in names
        if not any(name.startswith(other + ".") for other in names if other != name)
        and name.partition(".")[0] not in _NOBODYS
    ]
    return sorted(outermost, key=lambda name: (name.count("."), name))[:MODULES_EACH]


def _named(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        directory, _, file = path.rpartition("/")
        parts = directory.split("/") if directory else []
        if file == "__init__.py" and all(part.isidentifier() for part in parts):
            yield ".".join(parts)
        elif not parts and (match := _MODULE_FILE.fullmatch(file)):
            yield match["name"]


def imported_versions(expected: Mapping[str, Expected], imported: Iterable[Imported]) -> dict[str, str]:
    """Distribution to the version that the script really had. Pure."""
    versions: dict[str, str] = {}
    for one in imported:
        if (wanted := expected.get(one.module)) is not None:
            versions.setdefault(wanted.locked.name, _version(wanted, one))
    return versions


def _version(wanted: Expected, one: Imported) -> str:
    if not wanted.site or not _is_inside(wanted, one):
        return one.stated or "unknown"
    # torch 2.4.0 states 2.4.0+cu121, which tells more; what states another version has not been kept up.
    return one.stated if _same_public(one.stated, wanted.installed) else wanted.installed


def mismatch(expected: Mapping[str, Expected], imported: Iterable[Imported]) -> str:
    """What was imported and is not what was locked, one line; "" when nothing speaks against it. Pure.

    A module from the prefix has the version that the metadata beside it states, whatever it says itself. One
    from elsewhere counts only if it states another version: the standard library has modules that backports
    are named after.
    """
    said = []
    for one in imported:
        wanted = expected.get(one.module)
        if wanted is None:
            continue
        name, locked = wanted.locked.name, wanted.locked.version
        if name == "python":
            if not _begins_with(one.stated, locked):
                said.append(f"Python {locked} was locked, and {one.stated} ran ({one.file})")
        elif not _is_inside(wanted, one):
            if one.stated and not _same_public(one.stated, locked):
                said.append(f"{name} {locked} was locked, and {one.stated} was imported from {one.file}")
        elif not _same_public(wanted.installed, locked):
            said.append(f"{name} {locked} was locked, and {wanted.installed} was imported from {one.file}")
        elif wanted.locked.cuda and one.stated.partition("+")[2].startswith("cpu"):
            said.append(f"{name} {locked} for CUDA was locked, and {one.stated} was imported")
    return "; ".join(dict.fromkeys(said))


def _is_inside(wanted: Expected, one: Imported) -> bool:
    return Path(one.file).resolve().is_relative_to(wanted.site)


def _begins_with(version: str, locked: str) -> bool:
    try:
        wanted = Version(locked).release
        return Version(version).release[: len(wanted)] == wanted
    except InvalidVersion:
        return version == locked


def _same_public(one: str, other: str) -> bool:
    try:
        # Directory names write `1.0+cu128` as `1.0_cu128` in old wheels.
        return Version(one.replace("_", "+")).public == Version(other.replace("_", "+")).public
    except InvalidVersion:
        return one == other
