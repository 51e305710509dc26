"""Finds the Python interpreters of this machine, and installs missing ones with uv.

Interpreters are downloaded, or taken from a directory written by `bisect-env env fetch`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bisect_env.environments.download import download
from bisect_env.environments.lock import UnbuildableError
from bisect_env.environments.once import OncePerKey
from bisect_env.environments.uv_tool import Uv, no_room_error, plain_words, usable_cache
from bisect_env.errors import InfrastructureError, InterpreterNotFoundError
from bisect_env.running import Finished
from bisect_env.secrets import without_credentials
from bisect_env.temporary import full_file_system, replacing, temporary

# --------------------------------------------------------------------------------------------------
# Python interpreters on this machine, and those that uv can download.

OLDEST = (3, 6)
"""The oldest supported Python version. uv cannot run older ones."""

_ARCHITECTURES = {"ppc64le": "powerpc64le"}
"""Maps the system's names of processors to uv's names, where they differ."""
_LIST_TIMEOUT = 120.0
_FETCH_TIMEOUT = 600.0


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A CPython interpreter on this machine.

    Attributes:
        path: Absolute path of the real executable; never a pyenv shim or a link of a virtual environment.
        version: Full version, such as `3.11.7`.
        final: False for alpha and beta versions and release candidates.
    """

    path: Path
    version: str
    final: bool = True

    @property
    def release(self) -> tuple[int, ...]:
        """Return the version as a tuple of integers, such as (3, 11, 7)."""
        return tuple(int(part) for part in self.version.split("."))

    @property
    def abi(self) -> str:
        """Return the ABI tag for wheels, such as `cp311` or `cp36m`."""
        major, minor = self.release[:2]
        return f"cp{major}{minor}{'m' if minor < 8 else ''}"


def listed_by_uv() -> tuple[Interpreter, ...]:
    """Return the CPython interpreters of this machine, in the order of `candidate_paths`.

    uv determines the version of each executable and caches it. Free-threaded, debug and 32-bit builds and
    other implementations are left out, because a version in a matrix means an ordinary CPython.

    Raises:
        InfrastructureError: uv fails.
    """
    with temporary("python") as aside:
        cache = usable_cache(aside)
        try:
            ranks = _linked(cache / "pythons")
        except OSError as error:
            if place := full_file_system(cache):
                raise no_room_error(place) from error
            raise InfrastructureError(
                f"the cache {cache} cannot be written: {error.strerror or error}",
                remedy="make it a directory in which you can write, or name another one with --cache",
            ) from error
        own_path = {"PATH": os.pathsep.join(map(str, ranks))}
        answer = _list(cache, aside, "--only-installed", "--all-versions", extra=own_path)
        if answer.returncode == 0:
            return _by_preference(answer, aside, ranks)
    if place := full_file_system(cache):
        raise no_room_error(place)
    # The first line names the place; what an interpreter wrote to stderr follows.
    why = plain_words(answer.stderr).partition("\n")[0] or "no answer in time"
    raise InfrastructureError(
        f"uv cannot list the Pythons here: {why}",
        remedy="remove what it names, or give the same command again",
    )


def _by_preference(answer: Finished, cwd: Path, ranks: Mapping[Path, int]) -> tuple[Interpreter, ...]:
    """Return the interpreters in the output of `uv python list`, the most preferred ones first.

    Args:
        answer: The output.
        cwd: Directory in which uv ran; paths below it are relative in the output.
        ranks: The directories that `_linked` created.
    """
    found: dict[Path, tuple[int, Interpreter]] = {}
    architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
    for entry in _ordinary(answer):
        stated = re.fullmatch(r"(\d+\.\d+\.\d+)(\w*)", entry["version"])
        if stated is None or entry["arch"] != architecture:
            continue
        path = cwd / entry["path"]
        # Interpreters that uv has installed are not in `ranks`. They get the best rank, like those of pyenv.
        rank, real = ranks.get(path.parent, 0), path.resolve()
        if real not in found or rank < found[real][0]:
            found[real] = (rank, Interpreter(real, stated[1], not stated[2]))
    return tuple(one for _, one in sorted(found.values(), key=lambda ranked: ranked[0]))


def _list(cache: Path, cwd: Path, *options: str, extra: Mapping[str, str] | None = None) -> Finished:
    """Run `uv python list` and return the result, whose output is JSON."""
    args = ["python", "list", *options, "--output-format", "json"]
    return Uv(cache).run(args, cwd=cwd, timeout=_LIST_TIMEOUT, builds=False, extra=extra, with_indexes=False)


def _ordinary(answer: Finished) -> list[dict[str, str]]:
    """Return the entries for ordinary CPython builds in the output of `uv python list`."""
    return [
        entry
        for entry in json.loads(answer.stdout)
        if entry["implementation"] == "cpython" and entry.get("variant", "default") == "default"
    ]


def _linked(folder: Path) -> dict[Path, int]:
    """Create one directory per Python interpreter of this machine, with a link to that interpreter.

    uv queries each of `python`, `python3` and `python3.11` in a directory. The new directories have only one
    such name.

    Returns:
        The directories, each with the rank of its interpreter: 0 for the most trusted place.
    """
    ranks: dict[Path, int] = {}
    for real in dict.fromkeys(path.resolve() for path in candidate_paths() if not _is_script(path)):
        one = folder / hashlib.sha256(os.fsencode(real)).hexdigest()[:16]
        one.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # an earlier command made the link
            (one / "python3").symlink_to(real)
        ranks[one] = len(ranks)
    return ranks


def candidate_paths() -> Iterator[Path]:
    """Yield paths that may be Python interpreters, in order of preference.

    The order is: interpreters of pyenv, the running interpreter, interpreters on `PATH`, and conda's.
    """
    home = Path.home()
    for root in _existing(os.environ.get("PYENV_ROOT"), home / ".pyenv"):
        yield from sorted(root.glob("versions/*/bin/python"))
    yield Path(sys.executable)
    for folder in _existing(*os.environ.get("PATH", "").split(os.pathsep)):
        yield from sorted(path for path in folder.glob("python*") if _NAME.fullmatch(path.name))
    for environment in _conda_environments(home):
        yield environment / "bin" / "python"


_NAME = re.compile(r"python(\d(\.\d+)?)?")


def _is_script(path: Path) -> bool:
    """Return whether a file is a script (such as a shim of pyenv) or is not executable."""
    try:
        with path.open("rb") as stream:
            return stream.read(2) == b"#!" or not os.access(path, os.X_OK)
    except OSError:
        return True


def _conda_environments(home: Path) -> Iterator[Path]:
    roots = [home / name for name in ("miniconda3", "anaconda3", "miniforge3", "mambaforge", "micromamba")]
    executable = os.environ.get("CONDA_EXE")
    for root in _existing(
        os.environ.get("CONDA_PREFIX"),
        os.environ.get("MAMBA_ROOT_PREFIX"),
        Path(executable).parent.parent if executable else None,
        *roots,
    ):
        yield root
        yield from sorted(root.glob("envs/*"))
    registry = home / ".conda" / "environments.txt"
    if registry.is_file():
        yield from _existing(*registry.read_text("utf-8", errors="replace").splitlines())


def _existing(*folders: str | Path | None) -> Iterator[Path]:
    return (Path(folder) for folder in folders if folder and Path(folder).is_dir())


class Interpreters:
    """The Python interpreters of this machine, which are listed once and cached.

    A missing version is installed when it is requested. Thread-safe.

    Args:
        listed: Function that lists the interpreters in order of preference.
        fetch: Function that installs a version, and returns "" or the reason why it failed. If None,
            `fetch_with_uv`.
    """

    def __init__(
        self,
        listed: Callable[[], tuple[Interpreter, ...]] = listed_by_uv,
        fetch: Callable[[str], str] | None = None,
    ) -> None:
        self.listed = listed
        self._fetch = fetch or fetch_with_uv
        self._found: tuple[Interpreter, ...] | None = None
        self._fetched: OncePerKey[str, str] = OncePerKey()
        self._lock = threading.Lock()

    def installed(self) -> tuple[Interpreter, ...]:
        """Return all usable Python interpreters of this machine, in order of preference."""
        with self._lock:
            if self._found is None:
                self._found = self.listed()
            return self._found

    def find(self, version: str) -> Interpreter:
        """Return an interpreter of the given version. If none is installed, install it with uv.

        Args:
            version: `3.11.7` for exactly that version; `3.11` for its newest patch release on this machine.

        Raises:
            InterpreterNotFoundError: The version is older than `OLDEST`, or uv cannot install it.
        """
        if not re.fullmatch(r"\d+\.\d+(\.\d+)?", version):
            raise InterpreterNotFoundError(
                f"{version!r} is not a Python version", remedy="write it like 3.11 or 3.11.7, in quotes"
            )
        if _numbers(version) < OLDEST:
            raise InterpreterNotFoundError(
                f"Python {version} is too old: environments are made for 3.6 and newer",
                remedy="leave it out of the matrix, or run its trials in a container image that has it",
            )
        if (found := _best(self.installed(), version)) is not None:
            return found
        # A download takes minutes. Threads that need another version do not wait for it.
        reason = self._fetched.get(version, lambda: self._fetch_now(version))
        if not reason and (found := _best(self.installed(), version)) is not None:
            return found
        here = ", ".join(sorted({i.version for i in self.installed()}, key=_numbers)) or "none"
        raise InterpreterNotFoundError(
            f"there is no Python {version} on this machine; found: {here}",
            tried="pyenv, uv, PATH and conda, then fetching it with uv: "
            + (reason or "uv installed it, and yet it was not found"),
            remedy=f"install Python {version} (for instance `pyenv install {version}`), "
            "or leave it out of the matrix",
        )

    def _fetch_now(self, version: str) -> str:
        reason = self._fetch(version)
        if not reason:
            with self._lock:
                self._found = None
        return reason


def _best(found: Iterable[Interpreter], version: str) -> Interpreter | None:
    wanted = _numbers(version)
    fitting = [i for i in found if i.release[: len(wanted)] == wanted]
    # If several are equal, max() returns the first one, which has the highest preference.
    return max(fitting, key=lambda i: (i.final, i.release), default=None)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def fetch_with_uv(version: str, *, environ: Mapping[str, str] | None = None) -> str:
    """Install a Python version with uv.

    Args:
        version: The version, such as `3.11`.
        environ: Environment variables for uv; None to use the variables of this process.

    Returns:
        "" if the installation succeeded, else the reason why it failed.
    """
    with temporary("python") as folder:
        # Without --no-bin, uv would add a `python3.x` command to the user's PATH.
        args = ["python", "install", "--no-bin", version]
        answer = Uv(folder / "cache", environ=environ).run(
            args, cwd=folder, timeout=_FETCH_TIMEOUT, builds=False, with_indexes=False
        )
    if answer.timed_out:
        return f"no answer in {_FETCH_TIMEOUT:.0f} s"
    if answer.returncode == 0:
        return ""
    # The first line says what failed, the last one why; between them stand long addresses.
    lines = plain_words(answer.stderr).splitlines() or ["no reason given"]
    return "; ".join(dict.fromkeys((lines[0], lines[-1])))


def uv_python_versions() -> tuple[str, ...]:
    """Return the newest CPython version that uv can download for each minor version, oldest first.

    Return an empty tuple if uv fails.
    """
    with temporary("python") as folder:
        answer = _list(folder / "cache", folder, "--only-downloads")
    if answer.returncode != 0:
        return ()  # ranges of Python then hold the installed versions only
    versions = {entry["version"] for entry in _ordinary(answer)}
    return tuple(sorted((v for v in versions if re.fullmatch(r"\d+\.\d+\.\d+", v)), key=_numbers))


@functools.cache
def machine_interpreters() -> Interpreters:
    """Return the one `Interpreters` object that all code of this process uses."""
    return Interpreters()


def installed_pythons() -> list[str]:
    """Return the versions, such as `3.11.7`, of the released Pythons that this machine has."""
    return [found.version for found in machine_interpreters().installed() if found.final]


# --------------------------------------------------------------------------------------------------
# Interpreters in a directory of `bisect-env env fetch`. uv downloads them to it and installs them from it.


_LIST = "downloads.json"
"""Name of the list of interpreters that uv reads instead of its built-in one."""


@functools.cache
def offline_interpreters(root: Path) -> Interpreters:
    """Return an `Interpreters` object that installs missing versions from the directory `root`.

    The directory was written by `bisect-env env fetch`.
    """
    return Interpreters(fetch=lambda version: fetch_with_uv(version, environ=offline_environment(root)))


def offline_environment(root: Path) -> dict[str, str]:
    """Return environment variables with which uv works offline and installs interpreters from `root`."""
    environ = {**os.environ, "UV_OFFLINE": "1", "UV_PYTHON_CACHE_DIR": str(root / "pythons")}
    own = root / "pythons" / _LIST
    if own.exists():
        environ["UV_PYTHON_DOWNLOADS_JSON_URL"] = str(own)
    return environ


def fetch_python(version: str, root: Path) -> str:
    """Download the archive of a Python interpreter into a directory.

    Args:
        version: The version, such as `3.11`.
        root: A directory of `bisect-env env fetch`.

    Returns:
        "" if the download succeeded, else the reason why it failed.
    """
    with temporary("python") as aside:
        environ = {
            **os.environ,
            "UV_PYTHON_CACHE_DIR": str(root / "pythons"),
            "UV_PYTHON_INSTALL_DIR": str(aside),
        }
        reason = fetch_with_uv(version, environ=environ)
    own = os.environ.get("UV_PYTHON_DOWNLOADS_JSON_URL")
    if own and not reason:
        # Copy the user's list of interpreters; otherwise uv would use its built-in list there.
        url = own if ":/" in own else Path(own).absolute().as_uri()
        try:
            with replacing(root / "pythons" / _LIST) as beside:
                download(url, beside)
        except (OSError, UnbuildableError) as error:
            return f"the list of interpreters {without_credentials(own)} cannot be read: {error}"
    return reason
