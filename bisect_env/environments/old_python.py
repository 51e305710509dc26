"""Prefixes for Pythons that uv cannot run (before 3.6), from wheels alone."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

import installer
import requests
from installer.destinations import SchemeDictionaryDestination
from installer.exceptions import InstallerError
from installer.sources import WheelFile

from bisect_env.environments.failures import UnbuildableError
from bisect_env.environments.interpreters import Interpreter
from bisect_env.environments.lock import LockedPackage
from bisect_env.environments.process import run_tool
from bisect_env.environments.settings import without_credentials

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
        wheel = _wheel(package, cache)
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


def _wheel(package: LockedPackage, cache: Path) -> Path:
    folder = cache / "wheels" / package.sha256
    path = folder / PurePosixPath(unquote(urlsplit(package.url).path)).name
    if path.exists() and _digest(path) == package.sha256:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".part-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        _download(package.url, part)
        if (found := _digest(part)) != package.sha256:
            raise UnbuildableError(
                f"Hash mismatch for {package.name} {package.version}: "
                f"the lock says {package.sha256}, the file has {found}",
                transient=True,
            )
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def _download(url: str, target: Path) -> None:
    shown = without_credentials(url)
    if urlsplit(url).scheme == "file":
        try:
            shutil.copyfile(unquote(urlsplit(url).path), target)
        except FileNotFoundError:
            raise UnbuildableError(f"{shown} is gone", transient=False) from None
        return
    try:
        with requests.get(url, stream=True, timeout=(10, 60)) as answer:
            if answer.status_code in (404, 410):
                raise UnbuildableError(f"{shown} is gone ({answer.status_code})", transient=False)
            answer.raise_for_status()
            with target.open("wb") as stream:
                for chunk in answer.iter_content(1 << 20):
                    stream.write(chunk)
    except requests.RequestException as error:
        raise UnbuildableError(f"{shown} cannot be fetched: {error}", transient=True) from error


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
