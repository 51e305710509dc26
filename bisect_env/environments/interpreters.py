"""Finds Python interpreters on this machine or in a fetched directory, or has uv fetch one."""

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
from urllib.parse import unquote, urlsplit

from bisect_env.environments.once import OncePerKey
from bisect_env.environments.settings import default_cache_dir
from bisect_env.environments.uv_tool import Uv, no_room_error, plain_words
from bisect_env.errors import InfrastructureError, InterpreterNotFoundError
from bisect_env.secrets import without_credentials
from bisect_env.temporary import full_file_system, temporary

# --------------------------------------------------------------------------------------------------
# Python interpreters: those on this machine, else fetched by uv.

OLDEST = (3, 6)
"""Of the Pythons that environments are made for: uv cannot run older ones, which have no `-I`."""

_LIST_TIMEOUT = 120.0
_FETCH_TIMEOUT = 600.0


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A CPython on this machine.

    Attributes:
        path: Absolute path of the real executable, never a shim or a virtual environment's link.
        version: Full version, such as `3.11.7`.
        final: False for alphas, betas and candidates.
    """

    path: Path
    version: str
    final: bool = True

    @property
    def release(self) -> tuple[int, ...]:
        """Return the version as numbers."""
        return tuple(int(part) for part in self.version.split("."))

    @property
    def abi(self) -> str:
        """Return the tag of its ABI, such as `cp311`, `cp36m`."""
        major, minor = self.release[:2]
        return f"cp{major}{minor}{'m' if minor < 8 else ''}"


def listed_by_uv() -> tuple[Interpreter, ...]:
    """Return the CPythons of this machine that uv lists, those in the most trusted places first.

    Free-threaded, debug and 32-bit builds, and other implementations, do not serve: a version in a matrix
    means the ordinary CPython of that version. uv remembers what each executable said.

    Raises:
        InfrastructureError: uv cannot work here.
    """
    with temporary("python") as aside:
        cache = default_cache_dir()
        # Another user's home, from which a process was started, cannot even be looked into.
        if not any(os.access(place, os.W_OK) for place in (cache, cache.parent)):
            cache = aside
        # uv asks each of `python`, `python3` and `python3.11` of a folder. Here it finds one name in each.
        ranks: dict[Path, int] = {}
        for real in dict.fromkeys(path.resolve() for path in candidate_paths() if not _is_script(path)):
            folder = cache / "pythons" / hashlib.sha256(os.fsencode(real)).hexdigest()[:16]
            folder.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                (folder / "python3").symlink_to(real)
            ranks[folder] = len(ranks)
        answer = Uv(cache).run(
            ["python", "list", "--only-installed", "--all-versions", "--output-format", "json"],
            cwd=aside,
            timeout=_LIST_TIMEOUT,
            builds=False,
            extra={"PATH": os.pathsep.join(map(str, ranks))},
        )
    if answer.returncode != 0:
        if place := full_file_system(cache):
            raise no_room_error(place)
        raise InfrastructureError(
            f"uv cannot list the Pythons here: {plain_words(answer.stderr) or 'no answer in time'}",
            remedy="remove what it names, or give the same command again",
        )
    found: dict[Path, tuple[int, Interpreter]] = {}
    for entry in json.loads(answer.stdout):
        stated = re.fullmatch(r"(\d+\.\d+\.\d+)(\w*)", str(entry["version"]))
        is_ordinary = entry["implementation"] == "cpython" and entry.get("variant", "default") == "default"
        if stated is None or not is_ordinary or entry["arch"] != platform.machine():
            continue
        path = Path(entry["path"])
        # uv's own are in no folder of ours; they are as good as those of pyenv.
        rank, real = ranks.get(path.parent, 0), path.resolve()
        if real not in found or rank < found[real][0]:
            found[real] = (rank, Interpreter(real, stated[1], not stated[2]))
    return tuple(one for _, one in sorted(found.values(), key=lambda ranked: ranked[0]))


def candidate_paths() -> Iterator[Path]:
    """Yield executables that may be interpreters, most trusted first: pyenv, this one, PATH, conda."""
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
    """Return whether a file is no program: pyenv's shims choose one by the working directory."""
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
    """The interpreters of this machine, listed once.

    Args:
        listed: Lists them, most trusted place first.
        fetch: Installs a version by uv and returns "" or the reason why it could not.
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
        """Return every usable interpreter, most trusted place first."""
        with self._lock:
            if self._found is None:
                self._found = self.listed()
            return self._found

    def find(self, version: str) -> Interpreter:
        """Return an interpreter of a version.

        Args:
            version: `3.11.7` for exactly that, `3.11` for its newest patch release on this machine.

        Raises:
            InterpreterNotFoundError: It is older than `OLDEST`, or none is here and uv cannot fetch one.
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
        # Fetching takes minutes: those who ask for another version do not wait for it.
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
    # max() keeps the first of equals, which is the one from the most trusted place.
    return max(fitting, key=lambda i: (i.final, i.release), default=None)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def fetch_with_uv(version: str, *, environ: Mapping[str, str] | None = None) -> str:
    """Let uv install a Python; return "" or the reason why it failed.

    Args:
        version: Such as `3.11`.
        environ: The environment to start from, ours by default.
    """
    with temporary("python") as folder:
        # Without --no-bin it would put a command of that name where the user's shell looks for commands.
        args = ["python", "install", "--no-bin", version]
        answer = Uv(folder / "cache", environ=environ).run(
            args, cwd=folder, timeout=_FETCH_TIMEOUT, builds=False
        )
    if answer.timed_out:
        return f"no answer in {_FETCH_TIMEOUT:.0f} s"
    if answer.returncode == 0:
        return ""
    # The first line says what failed, the last one why; between them stand long addresses.
    lines = plain_words(answer.stderr).splitlines() or ["no reason given"]
    return "; ".join(dict.fromkeys((lines[0], lines[-1])))


def uv_python_versions() -> tuple[str, ...]:
    """Return full CPython versions that uv can download here, oldest first; the newest of each minor."""
    with temporary("python") as folder:
        answer = Uv(folder / "cache").run(
            ["python", "list", "--only-downloads", "--output-format", "json"],
            cwd=folder,
            timeout=60,
            builds=False,
        )
    if answer.returncode != 0:
        return ()
    versions = {
        str(entry["version"])
        for entry in json.loads(answer.stdout)
        if entry["implementation"] == "cpython" and entry.get("variant", "default") == "default"
    }
    return tuple(sorted((v for v in versions if re.fullmatch(r"\d+\.\d+\.\d+", v)), key=_numbers))


@functools.cache
def machine_interpreters() -> Interpreters:
    """Return the one `Interpreters` of this process."""
    return Interpreters()


def installed_pythons() -> list[str]:
    """Return the whole versions of the released Pythons on this machine."""
    return [found.version for found in machine_interpreters().installed() if found.final]


# --------------------------------------------------------------------------------------------------
# Interpreters in a directory that `bisect-env env fetch` wrote: put there, and installed from there, by uv.


@functools.cache
def offline_interpreters(root: Path) -> Interpreters:
    """Return the interpreters of this machine, and those that a directory brings."""
    return Interpreters(fetch=lambda version: fetch_with_uv(version, environ=offline_environment(root)))


def offline_environment(root: Path) -> dict[str, str]:
    """Return an environment in which uv works offline and finds interpreters in a directory."""
    environ = {**os.environ, "UV_OFFLINE": "1", "UV_PYTHON_CACHE_DIR": str(root / "pythons")}
    own = root / "pythons" / "downloads.json"
    if own.exists():
        environ["UV_PYTHON_DOWNLOADS_JSON_URL"] = str(own)
    return environ


def fetch_python(version: str, root: Path) -> str:
    """Put the archive of an interpreter into a directory; returns "" or why it could not be had.

    uv compares it with the hash that it knows, here and again where it is installed.
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
        return _keep_list(own, root)
    return reason


def _keep_list(source: str, root: Path) -> str:
    """Keep the user's own list of interpreters: elsewhere uv would know only those that it came with."""
    # Imported here: hardly anybody has a list of their own, and most that use this module ask nobody.
    import requests

    try:
        if "://" in source and not source.startswith("file:"):
            answer = requests.get(source, timeout=30)
            answer.raise_for_status()
            content = answer.content
        else:
            content = Path(unquote(urlsplit(source).path)).read_bytes()
    except (OSError, requests.RequestException) as error:
        return f"the list of interpreters {without_credentials(source)} cannot be read: {error}"
    (root / "pythons" / "downloads.json").write_bytes(content)
    return ""
