"""From the command as the matrix writes it to the file that is executed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")


def resolve_program(program: str, *, prefix_bin: Path, python: Path, path: str) -> str | None:
    """Where `command[0]` is, or None when it is nowhere.

    `python`, `python3` and `python3.11` are the prefix's interpreter, whatever its directory calls it; other
    names are looked up beside it, then on the child's PATH. What contains a slash is taken as it is,
    relative to the trial's working directory.

    Args:
        program: First word of the command.
        prefix_bin: The prefix's directory of commands.
        python: The prefix's interpreter.
        path: The child's PATH.
    """
    if "/" in program:
        return program
    named = shutil.which(program, path=str(prefix_bin))
    if _PYTHON.fullmatch(program):
        # `python2` in a Python 3 prefix must not quietly be Python 3.
        return named or (str(python) if program == "python" else None)
    return named or shutil.which(program, path=path)
