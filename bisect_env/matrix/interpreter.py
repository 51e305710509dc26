"""Parses command lines that start Python, such as `python -u script.py`. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_PYTHON = re.compile(r"(?:.*/)?python(?:\d+(?:\.\d+)?|\{\w+\})?")
"""Names of the interpreter; in a matrix file the version may be a placeholder, as in `python{python}`."""
_WITH_VALUE = frozenset("WX")
_RUNS_NOTHING = frozenset("Vh?")


@dataclass(frozen=True, slots=True)
class PythonOptions:
    """The options in a command line of the Python interpreter, such as `-u` in `python -u script.py`.

    The command line runs a script, a module or code.

    Attributes:
        end: Index of the script, of `-m` or of `-c` in the arguments. None if `-m` or `-c` is part of a
            longer word (`-uc`, `-mmodule`), so that no argument can be inserted before it.
        flags: Letters of the options that take no value, such as `u` for `-u`.
        settings: Values of the option `-X`.
    """

    end: int | None
    flags: frozenset[str]
    settings: tuple[str, ...]


def is_python(program: str) -> bool:
    """Return whether a program is a Python interpreter, judging by a name such as `/usr/bin/python3.11`."""
    return _PYTHON.fullmatch(program) is not None


_OTHER = re.compile(
    r"(?P<other>pypy|pp\d|graalpy|jython|micropython|pyodide)[\w.@-]*"
    r"|(?:c?python|cp)?-?\d+(?:\.\d+)*(?:(?P<suffix>td?|d)|\+(?P<variant>\w[\w+]*))",
    re.IGNORECASE,
)


def other_build(text: str) -> str:
    """Return what kind of Python a name stands for, if it is not CPython's default build; else "".

    Args:
        text: What somebody calls a Python: `3.14t`, `3.14+freethreaded`, `python3.14d`, `pypy3.11`.

    Returns:
        A phrase such as `a build without the GIL`, or "".
    """
    match = _OTHER.fullmatch(text.strip())
    if match is None:
        return ""
    if match["other"]:
        return "another implementation than CPython"
    said = (match["suffix"] or match["variant"]).lower()
    if said == "gil":
        return ""  # uv's name for the default build
    if said.startswith(("t", "free")):
        return "a build without the GIL"
    return "a debug build" if said in ("d", "debug") else "an unknown build"


def check_build(text: str) -> str:
    """Return a name of a Python version unchanged, if it stands for CPython's default build.

    Raises:
        ValueError: It stands for another build or implementation.
    """
    if kind := other_build(text):
        raise ValueError(f"Python {text} is {kind}, which is not supported; name another, such as 3.14")
    return text


def python_options(arguments: Sequence[str]) -> PythonOptions | None:
    """Parse the arguments of a Python interpreter, such as `-u script.py`.

    Return None if the arguments run no script, module or code.
    """
    flags: set[str] = set()
    settings: list[str] = []
    position = 0
    while position < len(arguments):
        word = arguments[position]
        if not word.startswith("-"):
            return PythonOptions(position, frozenset(flags), tuple(settings))
        position += 1
        if word == "--check-hash-based-pycs":
            position += 1
            continue
        if word == "-" or word.startswith("--"):
            return None
        for place, letter in enumerate(word[1:], start=2):
            rest = word[place:]
            if letter in _RUNS_NOTHING:
                return None
            if letter in "cm":
                if not rest and position == len(arguments):
                    return None
                end = position - 1 if word in ("-c", "-m") else None
                return PythonOptions(end, frozenset(flags), tuple(settings))
            if letter in _WITH_VALUE:
                value = rest or next(iter(arguments[position:]), "")
                position += not rest
                if letter == "X":
                    settings.append(value)
                break
            flags.add(letter)
    return None


_SHELLS = re.compile(r"(?:.*/)?(?:ba|da|z|k)?sh")


def script_place(command: Sequence[str]) -> int | None:
    """Return the position of the script in a command line, or None if no word must be one.

    It is the program itself unless that is an interpreter or a shell, whose first argument beside options is
    the script. Arguments of other programs may be files that exist, patterns, or files that they write.
    """
    arguments = command[1:]
    if is_python(command[0]):
        options = python_options(arguments)
        if options is None or options.end is None or arguments[options.end].startswith("-"):
            return None
        return 1 + options.end
    if _SHELLS.fullmatch(command[0]):
        for place, word in enumerate(arguments, start=1):
            if not word.startswith("-"):
                return place
            if "c" in word and not word.startswith("--"):
                return None
        return None
    return 0


def can_repeat(command: Sequence[str]) -> bool:
    """Return whether a command is Python code that can be run again in the same process."""
    options = python_options(command[1:])
    return is_python(command[0]) and options is not None and options.end is not None
