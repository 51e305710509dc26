"""Tells files, ranges and scripts on the command line apart, and suggests the right spelling of a range."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from bisect_env.answers.untrusted import command_line
from bisect_env.errors import UsageError

RANGE = frozenset("<>=!~[ ;")
"""Characters of a package with a range."""
SCRIPTS = (".py", ".sh")
"""Endings of scripts."""
_NAME = re.compile(r"\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)")
_FLIPPED = {"=>": ">=", "=<": "<=", "=": "==", "=!": "!="}


def is_file(word: str) -> bool:
    """Return whether a word is the path of a file. A word that is too long for a path is not."""
    return os.path.isfile(word)  # noqa: PTH113 - `Path.is_file` raises an error for long names


def names_matrix(word: str) -> bool:
    """Return whether a word is the path of a matrix file rather than a package, study or script."""
    if word.endswith((".yaml", ".yml")):
        return True
    return not word.endswith(SCRIPTS) and (is_file(word) or ("/" in word and not RANGE & set(word)))


def refuse_misspelt(packages: Sequence[str], words: Sequence[str]) -> None:
    """Raise an error that suggests the right spelling if a package range is misspelt.

    Args:
        packages: Package ranges as the user wrote them.
        words: Words of the command line after them.

    Raises:
        UsageError: A package range is misspelt.
    """
    for text in packages:
        if (right := corrected(text)) is not None:
            remedy = f"write it as {command_line(right)}" if right else "write it like 'torch>=2.5,<2.9'"
            if listed := _listed(text):
                lowest, highest = min(listed), max(listed)
                name = _name_of(text)
                shown = command_line(f"{name}>={lowest},<={highest}")
                plan = f"bisect-env plan {shown} repro.py --save matrix.yaml"
                remedy = f"give a range: {shown}; single versions are listed in a matrix file: `{plan}`"
            raise UsageError(f"{text!r} is no package with a range", remedy=remedy)
    if len(packages) == 1 and len(words) > 1 and is_version(words[0]) and not _has_range(packages[0]):
        asked = command_line("bisect-env", "run", f"{packages[0]}=={words[0]}", *words[1:])
        raise UsageError(
            f"{words[0]} looks like a version, and stands where a script or a command is expected",
            remedy=f"write it with its package: {asked}",
        )


def corrected(text: str) -> str | None:
    """Return the right spelling of a requirement, or None if the text is already right.

    Return "" if the right spelling cannot be guessed.
    """
    if _requirement(text) is not None:
        return None
    name, rest = _name_of(text), text.strip()[len(_name_of(text)) :].strip()
    if not name:
        return ""
    sign = re.sub(r"[^<>=!~].*", "", rest)
    guess = f"{name}{_FLIPPED.get(sign, sign) or '=='}{rest[len(sign) :].strip()}"
    return "" if _requirement(guess) is None else guess


def swapped(script: str, words: Sequence[str]) -> str:
    """Return the corrected command for a user who wrote the script before the package."""
    package = next((word for word in words if _has_range(word)), "")
    rest = [word for word in words if word != package]
    return command_line("bisect-env", "run", package or "PACKAGE>=1.0", script, *rest)


def is_version(word: str) -> bool:
    """Return whether a word is a version alone, such as `1.15.0`."""
    try:
        Version(word)
    except InvalidVersion:
        return False
    return not word.endswith(SCRIPTS)


def _listed(text: str) -> list[Version]:
    """Return the versions in a list such as `six==1.15.0,1.16.0`, or [] if the text is not such a list."""
    parts = re.sub(r"^[:<>=!~\s]+", "", text.strip()[len(_name_of(text)) :]).split(",")
    versions = [part.strip().lstrip("=") for part in parts]
    is_list = len(versions) > 1 and all(is_version(version) for version in versions)
    return [Version(version) for version in versions] if is_list else []


def _name_of(text: str) -> str:
    found = _NAME.match(text)
    return found.group(1) if found else ""


def _has_range(text: str) -> bool:
    found = _requirement(text)
    return found is not None and bool(found.specifier)


def _requirement(text: str) -> Requirement | None:
    try:
        return Requirement(text)
    except (InvalidRequirement, RecursionError):
        return None
