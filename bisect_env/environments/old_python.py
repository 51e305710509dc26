"""Prefixes for Pythons that uv cannot run (before 3.6), from wheels alone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import installer
from installer.destinations import SchemeDictionaryDestination
from installer.exceptions import InstallerError
from installer.sources import WheelFile

from bisect_env.environments.download import obtain
from bisect_env.environments.interpreters import Interpreter
from bisect_env.environments.lock import LockedPackage, UnbuildableError
from bisect_env.environments.uv_tool import run_tool

OLDEST_FOR_UV = (3, 6)
"""Older interpreters cannot be run by uv (they have no `-I`)."""

_PACKAGE_FOLDERS = ("site-packages", "dist-packages", "ensurepip")


def fill(
    place: Path, final: Path, interpreter: Interpreter, packages: Iterable[LockedPackage], cache: Path
) -> None:
    """Make an isolated environment and install wheels into it.

    Args:
        place: Where it is made; must not exist.
        final: Where it will be renamed to; scripts name that interpreter.
        interpreter: Its Python.
        packages: Wheels.
        cache: Our cache directory, where the wheels are kept.

    Raises:
        UnbuildableError: A wheel cannot be had or installed, or the interpreter does not work.
    """
    if interpreter.release < (3, 3):
        _mirror(place, interpreter)
    else:
        _run(interpreter.path, ["-m", "venv", "--without-pip", str(place)], place.parent)
    python = place / "bin" / "python"
    site = _run(python, ["-c", "import site; print(site.getsitepackages()[0])"], place)
    folder = Path(site.strip())
    if place not in folder.parents:
        raise UnbuildableError(
            f"Python {interpreter.version} looks for packages in {folder}", transient=False
        )
    folder.mkdir(parents=True, exist_ok=True)
    scheme = {
        "purelib": str(folder),
        "platlib": str(folder),
        "scripts": str(place / "bin"),
        "data": str(place),
        "headers": str(place / "include"),
    }
    for package in packages:
        wheel = obtain(package, cache / "wheels" / package.sha256)
        target = SchemeDictionaryDestination(scheme, str(final / "bin" / "python"), "posix")
        try:
            with WheelFile.open(wheel) as source:
                installer.install(source, target, {"INSTALLER": b"bisect-env\n"})
        except (InstallerError, ValueError, KeyError, FileExistsError, AssertionError) as error:
            raise UnbuildableError(f"{wheel.name} cannot be installed: {error}", transient=False) from error


def _mirror(place: Path, interpreter: Interpreter) -> None:
    # Python 2 has no pyvenv.cfg: it takes as its home the folder above its executable that holds
    # lib/pythonX.Y/os.py. So it gets a copy of the executable (a link would lead back) and a standard
    # library of links, without the packages installed there.
    version = ".".join(interpreter.version.split(".")[:2])
    (place / "bin").mkdir(parents=True)
    shutil.copy2(interpreter.path, place / "bin" / "python")
    for name in (f"python{version[0]}", f"python{version}"):
        (place / "bin" / name).symlink_to("python")
    library = place / "lib" / f"python{version}"
    library.mkdir(parents=True)
    for entry in interpreter.stdlib.iterdir():
        if entry.name not in _PACKAGE_FOLDERS:
            (library / entry.name).symlink_to(entry)
    (library / "site-packages").mkdir()


def _run(python: Path, args: list[str], cwd: Path) -> str:
    env = {"PATH": os.defpath, "HOME": os.environ.get("HOME", "/"), "PYTHONDONTWRITEBYTECODE": "1"}
    finished = run_tool([python, *args], env=env, cwd=cwd, timeout=120)
    if finished.returncode != 0 or finished.timed_out:
        raise UnbuildableError(f"{python.name} {args[0]} failed: {finished.stderr}", transient=False)
    return finished.stdout
