"""How far a trial's interpreter came, and what it imported: the harness's side in the worker.

`harness/sitecustomize.py` runs inside the interpreter and leaves marks in a file; this module decides where
it can run, puts it there, and reads what it left.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bisect_env.trials.records import Phase

SOURCE = Path(__file__).parent / "harness" / "sitecustomize.py"
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
_PYTHON = re.compile(r"(?:.*/)?python(?:\d+(?:\.\d+)?)?")
_SHEBANG = re.compile(rb"#!\s*(?:/\S*/env\s+)?(?P<program>\S+)\s*$")
_WITH_VALUE = frozenset("WX")
"""Options of the interpreter that take a value."""
_WITHOUT = frozenset("EISVh?iv")
"""Those under which it reads no PYTHONPATH or runs no `site`, ends at once, waits for input, or tells of
every import: the harness cannot run there, or would be seen."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A package as the script's interpreter really had it.

    Attributes:
        module: As imported.
        stated: Its `__version__`, "" if it states none.
        file: Where it came from.
    """

    module: str
    stated: str
    file: str


@dataclass(frozen=True, slots=True)
class Marks:
    """What the harness left.

    Attributes:
        phase: The last phase that began; unknown when no harness ran, or none that could mark.
        finished: The handlers of `atexit` were done.
        imported: The packages that were looked for and found, `python` itself first.
    """

    phase: Phase = Phase.UNKNOWN
    finished: bool = False
    imported: tuple[Imported, ...] = ()


NO_MARKS = Marks()


def is_watched(program: str, arguments: Sequence[str], env: Mapping[str, str], cwd: Path) -> bool:
    """Whether a command starts a Python that the harness can run in without being noticed.

    Args:
        program: The file that is executed.
        arguments: What follows it.
        env: The child's environment.
        cwd: Its working directory.
    """
    if env.get("PYTHONVERBOSE") or env.get("PYTHONPROFILEIMPORTTIME") or env.get("PYTHONINSPECT"):
        return False
    if _PYTHON.fullmatch(program):
        return _options_allow(arguments)
    return _is_python_script(cwd / program)


def _options_allow(arguments: Sequence[str]) -> bool:
    words = iter(arguments)
    for word in words:
        if word == "-" or not word.startswith("-"):
            return word != "-"
        if word.startswith("--"):
            if word == "--check-hash-based-pycs":
                next(words, None)
                continue
            return False
        for position, letter in enumerate(word[1:], start=1):
            if letter in "cm":
                return True  # all that follows is the script's
            if letter in _WITHOUT:
                return False
            if letter in _WITH_VALUE:
                value = word[position + 1 :] or next(words, "")
                if letter == "X" and value.startswith("importtime"):
                    return False
                break
    return False  # no script: it would read its standard input


def options_end(arguments: Sequence[str]) -> int | None:
    """Where the interpreter's own options end: at the script, at `-m` or at `-c`. Pure.

    Args:
        arguments: What follows the interpreter.

    Returns:
        A position in `arguments`; None where there is no script, or an option that hides where it is.
    """
    skip = False
    for position, word in enumerate(arguments):
        if skip:
            skip = False
        elif word in ("-m", "-c"):
            return position if position + 1 < len(arguments) else None
        elif not word.startswith("-"):
            return position
        elif word == "-" or any(letter in "cm" for letter in word[1:]) or word.startswith("--"):
            return None
        else:
            skip = word[-1] in _WITH_VALUE
    return None


def _is_python_script(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            first = stream.readline(512)
    except OSError:
        return False
    match = _SHEBANG.match(first)
    return match is not None and _PYTHON.fullmatch(os.fsdecode(match["program"])) is not None


@functools.cache
def _source() -> bytes:
    return SOURCE.read_bytes()


def install(
    directory: Path, env: Mapping[str, str], modules: Collection[str], *, gc_threshold: int = 0
) -> tuple[dict[str, str], Path]:
    """Put the harness into a trial's directory.

    Args:
        directory: Where it may write; it makes `harness` there.
        env: The child's environment without it.
        modules: Names to look for among what the script imports.
        gc_threshold: First threshold of the garbage collector that the script is to begin with; 0 leaves it.

    Returns:
        The environment with it, and the file for `read_marks`.
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
    """What the harness left; nothing where the script took the file away."""
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
