"""Installs the harness into a trial and reads its notes: phases, imports and iterations.

The *harness* is a small `sitecustomize.py` that runs inside the script's interpreter.
"""

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
from bisect_env.temporary import read_limited
from bisect_env.trials.records import Phase

# --------------------------------------------------------------------------------------------------
# The worker's side of the harness: which phase the interpreter reached, and what it imported.
#
# `harness/sitecustomize.py` runs inside the interpreter and writes marks to a file. This module decides
# whether it can run in a command, installs it, and reads the file.

HARNESS_SOURCE = Path(__file__).parent / "harness" / "sitecustomize.py"
MARKS = "BISECT_ENV_HARNESS_MARKS"
MODULES = "BISECT_ENV_HARNESS_MODULES"
PYTHONPATH = "BISECT_ENV_HARNESS_PYTHONPATH"
GC = "BISECT_ENV_HARNESS_GC"
LINGER = "BISECT_ENV_HARNESS_LINGER"
NOTES_LIMIT = 4 << 20
"""Maximum size in bytes of a file of the harness; a script can write anything to it."""

_PHASES = {
    "S": Phase.START,
    "I": Phase.IMPORT,
    "B": Phase.BODY,
    "T": Phase.TEARDOWN,
    "U": Phase.TEARDOWN,
    "F": Phase.TEARDOWN,
    "V": Phase.TEARDOWN,
}
_UNWATCHED = frozenset("EISiv")
"""Interpreter options with which the harness cannot run (no PYTHONPATH, no `site`), or would change the
output (`-i` and `-v`, which print every import)."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A module that the script's interpreter imported, with its stated version and its file.

    Attributes:
        module: Name of the imported module.
        stated: Its `__version__`; "" if it has none.
        file: File from which the module was imported.
    """

    module: str
    stated: str
    file: str


@dataclass(frozen=True, slots=True)
class Marks:
    """What was observed inside the interpreter during one run of a script.

    The harness, which is code that the interpreter runs before the script, noted this in a file.

    Attributes:
        phase: Last phase that began; unknown if the harness did not run or could not write.
        finished: Whether all `atexit` handlers had finished.
        unhandled: Whether an exception that nobody handled ended the script; None if not known.
        imported: Watched modules that were imported; the first entry is `python` itself.
    """

    phase: Phase = Phase.UNKNOWN
    finished: bool = False
    unhandled: bool | None = None
    imported: tuple[Imported, ...] = ()


NO_MARKS = Marks()


def is_watched(program: str, arguments: Sequence[str], env: Mapping[str, str], cwd: Path) -> bool:
    """Return whether a command starts a Python interpreter in which the harness can observe the script.

    Return False if options of Python would keep the harness from being loaded, or show it in the output.
    """
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


def interpreter_line(path: Path) -> list[str]:
    """Return the words after `#!` in the first line of a script; an empty list if there is no such line."""
    try:
        with path.open("rb") as stream:
            first = stream.readline(512)
    except OSError:
        return []
    return os.fsdecode(first[2:]).split() if first.startswith(b"#!") else []


def _is_python_script(path: Path) -> bool:
    words = interpreter_line(path)
    if len(words) > 1 and words[0].startswith("/") and words[0].endswith("/env"):
        words = words[1:]
    return len(words) == 1 and is_python(words[0])


def install(
    directory: Path, env: Mapping[str, str], modules: Collection[str], *, gc_threshold: int = 0
) -> tuple[dict[str, str], Path]:
    """Write the harness into a trial's directory; return environment variables that make Python load it.

    Args:
        directory: Writable directory; the harness goes into its new subdirectory `harness`.
        env: Environment variables of the script without the harness.
        modules: Names of the modules whose import the harness notes.
        gc_threshold: First threshold of Python's garbage collector at the start of the script; 0 keeps the
            default.

    Returns:
        The environment variables with the harness, and the file to pass to `read_marks` after the trial.
    """
    place = directory / "harness"
    place.mkdir()
    (place / "sitecustomize.py").write_bytes(HARNESS_SOURCE.read_bytes())
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
    """Read the notes of the harness from a file; return `NO_MARKS` if the script removed or replaced it."""
    try:
        text = read_limited(path, NOTES_LIMIT, errors="replace")
    except OSError:
        return NO_MARKS
    letter, *lines = text.split("\n")
    found = [fields for line in lines if len(fields := line.split("\t")) == 3]
    return Marks(
        _PHASES.get(letter, Phase.UNKNOWN),
        finished=letter in ("F", "V"),
        unhandled={"T": False, "F": False, "U": True, "V": True}.get(letter),
        imported=tuple(Imported(*fields) for fields in found),
    )


# --------------------------------------------------------------------------------------------------
# Comparison of the packages that a script really imported with the lock.

MODULES_EACH = 6
"""Maximum number of watched modules per distribution; some distributions install hundreds."""
_KEPT = 64
"""Number of environments whose modules are cached."""
_INFO = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)\.dist-info")
_MODULE_FILE = re.compile(r"(?P<name>[A-Za-z_]\w*)(?:\.py|\.(?:cpython|abi3)[^/]*\.so|\.so)")
_SHARED_NAMES = frozenset(
    {"test", "tests", "testing", "doc", "docs", "example", "examples", "benchmarks", "src"}
)
"""Module names that are not watched: some distributions install them by mistake, and a script's own directory
often has them, too."""


@dataclass(frozen=True, slots=True)
class LockedDistribution:
    """A distribution (package) of a lock whose modules a script can import.

    Attributes:
        name: Normalised PyPI name; `python` for the interpreter.
        version: Exact version; for Python, the requested part, such as `3.11`.
        cuda: Whether the lock has a CUDA build of the distribution.
    """

    name: str
    version: str
    cuda: bool = False


@dataclass(frozen=True, slots=True)
class Expected:
    """The distribution (package) in the lock that should provide a module.

    Attributes:
        locked: The distribution in the lock.
        site: Site directory of the prefix in which it is installed; "" for the interpreter.
        installed: Version in the metadata in that directory; "" for the interpreter.
    """

    locked: LockedDistribution
    site: str = ""
    installed: str = ""


@functools.lru_cache(_KEPT)
def expected_imports(prefix: Path, locked: tuple[LockedDistribution, ...]) -> Mapping[str, Expected]:
    """Map the name of each module to watch to the distribution that should provide this module.

    The result is cached. Module names are read from the `RECORD` files of the distributions; no code of the
    environment is run.

    Args:
        prefix: Directory of the environment.
        locked: Distributions of the lock; others are left out.
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
    """Return the names of the top-level modules in a `RECORD` file, at most `MODULES_EACH`.

    A package without `__init__.py` is replaced by its outermost subpackages that have one.
    """
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
    """Map the name of each imported distribution to its version.

    The version is `unknown` for a module from outside the prefix that has no `__version__`. The function only
    computes; it does no input or output.

    Args:
        expected: Module to the distribution that should provide it (see `expected_imports`).
        imported: Modules that the harness noted.
    """
    versions: dict[str, str] = {}
    for one in imported:
        if (wanted := expected.get(one.module)) is not None:
            versions.setdefault(wanted.locked.name, _version(wanted, one))
    return versions


def _version(wanted: Expected, one: Imported) -> str:
    if not wanted.site or not _is_inside(wanted, one):
        return one.stated or "unknown"
    # Prefer a more exact `__version__`: torch 2.4.0 states 2.4.0+cu121. A different one is out of date.
    return one.stated if _same_public(one.stated, wanted.installed) else wanted.installed


def mismatch(expected: Mapping[str, Expected], imported: Iterable[Imported]) -> str:
    """Return one line that lists the imports whose version differs from the lock; "" if there are none.

    For a module in the prefix, the version in the distribution's metadata is compared, not `__version__`. A
    module from elsewhere differs only if its `__version__` does; without one it is accepted, because some
    modules of the standard library share their names with backports. The function only computes; it does no
    input or output.

    Args:
        expected: Module to the distribution that should provide it (see `expected_imports`).
        imported: Modules that the harness noted.
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
# Running a script several times within one process.

REPEAT_SOURCE = Path(__file__).parent / "harness" / "repeat.py"
NOTES = "bodies"


def repeated(arguments: Sequence[str], count: int, place: Path) -> tuple[list[str], Path]:
    """Return interpreter arguments that run the same script several times in one process.

    Args:
        arguments: Arguments of the interpreter, such as `["script.py", "--fast"]`.
        count: How often to run the script.
        place: Writable directory; the runner script goes into its new subdirectory `repeat`.

    Returns:
        The new arguments, and the file to pass to `iterations_begun` after the trial.

    Raises:
        ValueError: The arguments name no Python script that could be repeated.
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
    """Return how many iterations of a repeated script have begun.

    The number is 0 if the interpreter failed before the first iteration.
    """
    try:
        return int(read_limited(notes, NOTES_LIMIT))
    except (OSError, ValueError):
        return 0
