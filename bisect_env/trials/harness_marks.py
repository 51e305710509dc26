"""Reads what the harness in a trial noted: progress, imports and iterations."""

from __future__ import annotations

import csv
import functools
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from bisect_env.matrix.interpreter import is_python, python_options
from bisect_env.trials.records import Phase

# --------------------------------------------------------------------------------------------------
# How far a trial's interpreter came, and what it imported: the harness's side in the worker.
#
# `harness/sitecustomize.py` runs inside the interpreter and leaves marks in a file; this module decides
# where it can run, puts it there, and reads what it left.

HARNESS_SOURCE = Path(__file__).parent / "harness" / "sitecustomize.py"
MARKS = "BISECT_ENV_HARNESS_MARKS"
MODULES = "BISECT_ENV_HARNESS_MODULES"
PYTHONPATH = "BISECT_ENV_HARNESS_PYTHONPATH"
GC = "BISECT_ENV_HARNESS_GC"
LINGER = "BISECT_ENV_HARNESS_LINGER"
NOTES_LIMIT = 200_000
"""Bytes read of what the harness left."""

_PHASES = {
    "S": Phase.START,
    "I": Phase.IMPORT,
    "B": Phase.BODY,
    "T": Phase.TEARDOWN,
    "F": Phase.TEARDOWN,
}
_SHEBANG = re.compile(rb"#!\s*(?:/\S*/env\s+)?(?P<program>\S+)\s*$")
_UNWATCHED = frozenset("EISiv")
"""Options under which the interpreter reads no PYTHONPATH, runs no `site`, waits for input or tells of every
import: the harness cannot run there, or would be seen."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A package that the script's interpreter imported.

    Attributes:
        module: Name of the imported module.
        stated: Its `__version__`, "" if it states none.
    """

    module: str
    stated: str
    file: str


@dataclass(frozen=True, slots=True)
class Marks:
    """The notes of the harness.

    Attributes:
        phase: The last phase that began; unknown if no harness ran, or it could not write marks.
        finished: Whether the handlers of `atexit` have finished.
        imported: The watched packages that were imported, `python` itself first.
    """

    phase: Phase = Phase.UNKNOWN
    finished: bool = False
    imported: tuple[Imported, ...] = ()


NO_MARKS = Marks()


def is_watched(program: str, arguments: Sequence[str], env: Mapping[str, str], cwd: Path) -> bool:
    """Return whether a command starts a Python in which the harness can run without changing the output."""
    if env.get("PYTHONVERBOSE") or env.get("PYTHONPROFILEIMPORTTIME") or env.get("PYTHONINSPECT"):
        return False
    if not is_python(program):
        return _is_python_script(cwd / program)
    options = python_options(arguments)
    return (
        options is not None
        and not options.flags & _UNWATCHED
        and not any(value.startswith("importtime") for value in options.settings)
    )


def _is_python_script(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            first = stream.readline(512)
    except OSError:
        return False
    match = _SHEBANG.match(first)
    return match is not None and is_python(os.fsdecode(match["program"]))


@functools.cache
def _source() -> bytes:
    return HARNESS_SOURCE.read_bytes()


def install(
    directory: Path, env: Mapping[str, str], modules: Collection[str], *, gc_threshold: int = 0
) -> tuple[dict[str, str], Path]:
    """Put the harness into a trial's directory.

    Args:
        directory: A writable directory; the harness is put into `harness` there.
        env: The child's environment without the harness.
        modules: Names of modules to watch for.
        gc_threshold: First threshold of the garbage collector at the script's start; 0 keeps the default.

    Returns:
        The environment with the harness, and the file for `read_marks`.
    """
    place = directory / "harness"
    place.mkdir()
    (place / "sitecustomize.py").write_bytes(_source())
    marks = place / "marks"
    marks.write_bytes(b"S\n")
    changed = dict(env)
    if "PYTHONPATH" in env:
        changed[PYTHONPATH] = env["PYTHONPATH"]
    changed["PYTHONPATH"] = os.pathsep.join(filter(None, (str(place), env.get("PYTHONPATH", ""))))
    changed[MARKS] = str(marks)
    if gc_threshold:
        changed[GC] = str(gc_threshold)
    changed[MODULES] = " ".join(sorted(modules))
    return changed, marks


def read_marks(path: Path) -> Marks:
    """Read the notes of the harness; they are empty if the script removed the file."""
    try:
        with path.open("rb") as stream:
            text = stream.read(NOTES_LIMIT).decode("utf-8", "replace")
    except OSError:
        return NO_MARKS
    letter, *lines = text.split("\n")
    found = [fields for line in lines if len(fields := line.split("\t")) == 3]
    return Marks(
        _PHASES.get(letter, Phase.UNKNOWN), letter == "F", tuple(Imported(*fields) for fields in found)
    )


# --------------------------------------------------------------------------------------------------
# Whether the packages that a script really imported are those of the lock.

MODULES_EACH = 6
"""Modules of one distribution that are looked for; some install hundreds side by side."""
_KEPT = 64
"""Environments whose modules a worker remembers."""
_INFO = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)\.dist-info")
_MODULE_FILE = re.compile(r"(?P<name>[A-Za-z_]\w*)(?:\.py|\.(?:cpython|abi3)[^/]*\.so|\.so)")
_SHARED_NAMES = frozenset(
    {"test", "tests", "testing", "doc", "docs", "example", "examples", "benchmarks", "src"}
)
"""Names that carelessly packed distributions install and that a script's own directory has as well."""


@dataclass(frozen=True, slots=True)
class LockedDistribution:
    """A distribution of a lock that can be imported.

    Attributes:
        name: Normalised PyPI name; `python` for the interpreter.
        version: Exact version; for Python, as much of it as was requested.
    """

    name: str
    version: str
    cuda: bool = False


@dataclass(frozen=True, slots=True)
class Expected:
    """The distribution that importing a module should give.

    Attributes:
        site: Directory of the distribution in the prefix, "" for the interpreter.
        installed: Version in the metadata in that directory.
    """

    locked: LockedDistribution
    site: str = ""
    installed: str = ""


@functools.lru_cache(_KEPT)
def expected_imports(prefix: Path, locked: tuple[LockedDistribution, ...]) -> Mapping[str, Expected]:
    """Return the modules of an environment by name, as its distributions list them. Runs no code of it."""
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
    """Return the outermost packages and modules of a distribution that contain code."""
    try:
        with record.open(encoding="utf-8", errors="replace", newline="") as stream:
            names = set(_named(row[0] for row in csv.reader(stream) if row))
    except (OSError, csv.Error):
        return []
    outermost = [
        name
        for name in names
        if not any(name.startswith(other + ".") for other in names if other != name)
        and name.partition(".")[0] not in _SHARED_NAMES
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
    """Map each distribution to the version that the script imported. Pure."""
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
    """Return one line on imports that differ from the lock; "" if none does. Pure.

    A module from the prefix has the version in the metadata beside it, regardless of its `__version__`. A
    module from elsewhere counts only if it states another version: the standard library has modules that
    share their names with backports.
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


# --------------------------------------------------------------------------------------------------
# Running a script several times within one process: how it is asked for, and what it notes.

REPEAT_SOURCE = Path(__file__).parent / "harness" / "repeat.py"
NOTES = "bodies"


def repeated(arguments: Sequence[str], count: int, place: Path) -> tuple[list[str], Path]:
    """Return arguments for the interpreter that run the script several times.

    Returns:
        The arguments, and the file for `iterations_begun`.

    Raises:
        ValueError: This command cannot be repeated.
    """
    options = python_options(arguments)
    if options is None or (end := options.end) is None:
        raise ValueError("this command cannot be run again in its process: it is no Python script")
    folder = place / "repeat"
    folder.mkdir()
    runner, notes = folder / "repeat.py", folder / NOTES
    runner.write_bytes(REPEAT_SOURCE.read_bytes())
    notes.write_text(f"{0:9d}")
    return [*arguments[:end], str(runner), str(count), str(notes), *arguments[end:]], notes


def iterations_begun(notes: Path) -> int:
    """Return how many iterations were begun; 0 if the interpreter did not get that far."""
    try:
        return int(notes.read_text("utf-8"))
    except (OSError, ValueError):
        return 0
