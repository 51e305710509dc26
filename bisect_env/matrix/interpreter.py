"""Reads a command line of Python: where its own options end, and which it has. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_PYTHON = re.compile(r"(?:.*/)?python(?:\d+(?:\.\d+)?|\{\w+\})?")
"""In a matrix file the version may be the placeholder of an axis."""
_WITH_VALUE = frozenset("WX")
_RUNS_NOTHING = frozenset("Vh?")


@dataclass(frozen=True, slots=True)
class PythonOptions:
    """The interpreter's own options on a command line that runs a script, a module or code.

    Attributes:
        end: Position of the script, of `-m` or of `-c`; None where `-m` or `-c` shares its word with
            something else (`-uc`, `-mmodule`), so that nothing can be put before it.
        flags: Letters of the options without a value.
        settings: Values of `-X`.
    """

    end: int | None
    flags: frozenset[str]
    settings: tuple[str, ...]


def is_python(program: str) -> bool:
    """Return whether a first word names the interpreter: `python`, `python3`, `/p/bin/python3.11`."""
    return _PYTHON.fullmatch(program) is not None


def python_options(arguments: Sequence[str]) -> PythonOptions | None:
    """Parse the words after the interpreter; None if it would run no script, module or code."""
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


def can_repeat(command: Sequence[str]) -> bool:
    """Return whether a command is Python code that can be run again in the same process."""
    options = python_options(command[1:])
    return is_python(command[0]) and options is not None and options.end is not None
