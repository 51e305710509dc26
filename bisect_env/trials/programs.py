"""Finds the file to execute for the command of a matrix, and explains why one must not be executed."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection
from pathlib import Path

from bisect_env.matrix.interpreter import is_python
from bisect_env.trials.harness_marks import interpreter_line

SHELLS = frozenset({"sh", "bash", "dash", "env"})
"""Programs that may always come from the host. They bring no Python packages, and look up the programs that
they start on the script's PATH, where the environment comes first."""


def resolve_program(program: str, *, prefix_bin: Path, python: Path, path: str) -> str | None:
    """Return the path of the program that a command names, or None if the program is not found.

    A name with a slash is returned unchanged. Other names are looked up in `prefix_bin`; if they are not
    there, `python` means the interpreter of the environment, and names other than an interpreter's are looked
    up on `path`.

    Args:
        program: Name of the program, as in the matrix.
        prefix_bin: Directory of the environment's commands.
        python: Interpreter of the environment.
        path: PATH of the script.
    """
    if "/" in program:
        return program
    named = shutil.which(program, path=str(prefix_bin))
    if is_python(program):
        # `python2` must not silently start Python 3.
        return named or (str(python) if program == "python" else None)
    return named or shutil.which(program, path=path)


def why_outside(
    program: str,
    named: str,
    *,
    prefix: Path,
    python: Path,
    cwd: Path,
    allowed: Collection[str] = (),
) -> str:
    """Explain why a program would not use the environment's packages, and how to correct this.

    Return "" if it would use them: if the program lies in the environment or is a file of the trial, and the
    interpreter in its `#!` line is the environment's or a shell. Programs in `allowed` and shells are
    accepted, too.

    Args:
        program: File that would be executed, absolute or relative to `cwd`.
        named: Name of the program in the command.
        prefix: Directory of the environment.
        python: Interpreter of the environment.
        cwd: Working directory of the trial.
        allowed: Names and paths of programs that the host may provide (`trial.allow_host`).
    """
    path = Path(os.path.normpath(cwd / program))
    if not {named, path.name, str(path)}.isdisjoint(allowed):
        return ""
    if path == python or _is_below(path, prefix) or (_is_below(path, cwd) and path.exists()):
        return _why_interpreter_outside(path, named, prefix, python, allowed)
    if path.name in SHELLS or not path.exists():
        return ""
    return (
        f"{named} is not in the environment, and {path} would run with this host's packages; "
        f"{how_to_bring(path.name)}, or, if the host's is meant, {allowing(path.name)}"
    )


_OWN_NAME = ("pytest", "nox", "tox", "coverage", "ruff", "mypy", "black", "flake8", "pylint", "ipython")
_PACKAGES = {
    **{name: name for name in (*_OWN_NAME, "accelerate", "asv", "dvc", "invoke", "papermill", "snakemake")},
    "py.test": "pytest",
    "jupyter": "jupyter-core",
    "torchrun": "torch",
    "sphinx-build": "sphinx",
}
"""Programs whose package is well known. An index may have a package of any other name, which can be somebody
else's; `timeout` and `parallel` are no programs there."""
_INTERPRETER = re.compile(r"(?:python|pypy|graalpy)[\d.]*[a-z]*")


def how_to_bring(program: str) -> str:
    """Return advice on how a program comes into the environment.

    Args:
        program: Name of the program, without a directory.
    """
    if is_python(program):
        return "call it `python`, which is the environment's"
    if _INTERPRETER.fullmatch(program):
        return "call it `python`; builds without the GIL, debug builds and PyPy are passed over"
    package = _PACKAGES.get(program)
    if package is None:
        return "name the package that brings it (`--with`, or `packages` in a matrix)"
    return f"add the package that brings it: `--with {package}`, or `packages: [{package}]` in a matrix"


def allowing(program: str) -> str:
    """Return advice on how to allow a program from outside the environment."""
    return f"`--allow-host {program}`, or `allow_host: [{program}]` to `trial` of a matrix"


def _why_interpreter_outside(
    path: Path, named: str, prefix: Path, python: Path, allowed: Collection[str]
) -> str:
    """Explain why a script's `#!` line names an interpreter outside the environment.

    Return "" if it is in the environment, is a shell or allowed, or if the file has no `#!` line.
    """
    words = interpreter_line(path)
    if not words:
        return ""
    interpreter = Path(words[0])
    # `env` looks in the environment first. Installers write a shell with a lookup of Python into the `#!`
    # line if the path of the interpreter is too long.
    if interpreter == python or _is_below(interpreter, prefix) or interpreter.name in SHELLS:
        return ""
    if not {interpreter.name, str(interpreter)}.isdisjoint(allowed):
        return ""
    return (
        f"{named} begins with `#!{interpreter}`, which is not the environment's and has the host's packages; "
        f"write `#!/usr/bin/env {interpreter.name}`, or, if the host's is meant, {allowing(interpreter.name)}"
    )


def _is_below(path: Path, folder: Path) -> bool:
    # Do not resolve `path` itself: Python in a prefix may be a link to a shared interpreter elsewhere.
    return Path(os.path.realpath(path.parent), path.name).is_relative_to(os.path.realpath(folder))
