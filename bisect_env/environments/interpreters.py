"""Finds Python interpreters on this machine or in a fetched directory, or has uv fetch one."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from bisect_env.environments.once import OncePerKey
from bisect_env.environments.settings import default_cache_dir
from bisect_env.environments.uv_tool import Uv, plain_words, run_tool
from bisect_env.errors import InfrastructureError, InterpreterNotFoundError
from bisect_env.matrix.secrets import without_credentials
from bisect_env.temporary import full_file_system, replacing, temporary

# --------------------------------------------------------------------------------------------------
# Python interpreters: those on this machine, else fetched by uv.

OLDEST = (3, 6)
"""Of the Pythons that environments are made for: uv cannot run older ones, which have no `-I`."""

# Also run by Pythons that do not serve, back to 2.7, which has no `abiflags`.
_PROBE = r"""
import json, os, sys, sysconfig, platform
v = sys.version_info
flags = getattr(sys, "abiflags", "")
base = getattr(sys, "_base_executable", None) or os.path.realpath(sys.executable)
print(json.dumps({
    "executable": base,
    "version": "%d.%d.%d" % v[:3],
    "final": v[3] == "final",
    "implementation": platform.python_implementation(),
    "flags": flags,
    "bits": 64 if sys.maxsize > 2 ** 32 else 32,
    "stdlib": sysconfig.get_path("stdlib"),
}))
"""

_PROBE_TIMEOUT = 30.0
_FETCH_TIMEOUT = 600.0


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A CPython on this machine.

    Attributes:
        path: Absolute path of the real executable, never a shim or a virtual environment's link.
        version: Full version, such as `3.11.7`.
        abi: Tag of its own ABI, such as `cp311`, `cp36m`.
        stdlib: Where its standard library lies.
        final: False for alphas, betas and candidates.
    """

    path: Path
    version: str
    abi: str
    stdlib: Path
    final: bool = True

    @property
    def release(self) -> tuple[int, ...]:
        """The version as numbers."""
        return tuple(int(part) for part in self.version.split("."))


_SILENT: set[Path] = set()
"""Executables that gave no answer: one that was killed may be a Python all the same."""


def probe(path: Path) -> Interpreter | None:
    """Ask an executable what it is; None when it is not a CPython that could serve.

    Free-threaded, debug and 32-bit builds, and other implementations, do not serve: a version in a matrix
    means the ordinary CPython of that version. Nor do those that are older than `OLDEST`.
    """
    try:
        if not os.access(path, os.X_OK) or _is_script(path):
            return None  # pyenv's shims are scripts that pick an interpreter by the working directory
        with temporary("probe") as empty:
            answer = run_tool(
                [path, "-E", "-s", "-c", _PROBE],
                env={"PATH": os.defpath, "HOME": os.environ.get("HOME", "/")},
                cwd=empty,
                timeout=_PROBE_TIMEOUT,
            )
        facts = json.loads(answer.stdout)
        real = Path(facts["executable"]).resolve(strict=True)
    except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        if place := full_file_system():
            # It could not be asked, which says nothing of it and must not be remembered.
            raise InfrastructureError(
                f"no space left on the file system of {place}",
                remedy="make room there, or name another place for temporary files with TMPDIR",
            ) from error
        _SILENT.add(path)
        return None
    if facts["implementation"] != "CPython" or facts["bits"] != 64 or set(facts["flags"]) & set("td"):
        return None
    major, minor = facts["version"].split(".")[:2]
    if (int(major), int(minor)) < OLDEST:
        return None
    return Interpreter(
        path=real,
        version=facts["version"],
        abi=f"cp{major}{minor}{facts['flags']}",
        stdlib=Path(facts["stdlib"]),
        final=facts["final"],
    )


def _is_script(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(2) == b"#!"


def candidate_paths() -> Iterator[Path]:
    """Executables that may be interpreters, most trusted first: pyenv, uv, this one, PATH, conda."""
    home = Path.home()
    for root in _existing(os.environ.get("PYENV_ROOT"), home / ".pyenv"):
        yield from sorted(root.glob("versions/*/bin/python"))
    data = os.environ.get("XDG_DATA_HOME") or home / ".local" / "share"
    for root in _existing(os.environ.get("UV_PYTHON_INSTALL_DIR"), Path(data) / "uv" / "python"):
        yield from sorted(path for path in root.glob("*/bin/python*") if _NAME.fullmatch(path.name))
    yield Path(sys.executable)
    for folder in _existing(*os.environ.get("PATH", "").split(os.pathsep)):
        yield from sorted(path for path in folder.glob("python*") if _NAME.fullmatch(path.name))
    for environment in _conda_environments(home):
        yield environment / "bin" / "python"


_NAME = re.compile(r"python(\d(\.\d+)?)?")


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
    """The interpreters of this machine, probed once.

    Args:
        candidates: Where to look.
        fetch: Installs a version by uv and returns "" or the reason why it could not.
    """

    def __init__(
        self,
        candidates: Callable[[], Iterable[Path]] = candidate_paths,
        fetch: Callable[[str], str] | None = None,
    ) -> None:
        self.candidates = candidates
        self._fetch = fetch or fetch_with_uv
        self._found: tuple[Interpreter, ...] | None = None
        self._fetched: OncePerKey[str, str] = OncePerKey()
        self._lock = threading.Lock()

    def installed(self) -> tuple[Interpreter, ...]:
        """Return every usable interpreter, most trusted place first."""
        with self._lock:
            return self._installed()

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

    def _installed(self) -> tuple[Interpreter, ...]:
        if self._found is None:
            paths = list(dict.fromkeys(path.absolute() for path in self.candidates()))
            answers = [found for found in _probed(paths) if found is not None]
            unique: dict[Path, Interpreter] = {}
            for found in answers:
                unique.setdefault(found.path, found)
            self._found = tuple(unique.values())
        return self._found


def _probed(paths: Sequence[Path]) -> list[Interpreter | None]:
    """Return what `probe` says of each, asked once as long as the file stays the same.

    Starting a dozen interpreters takes longer than a trial. What they said is kept in the cache of this host,
    by path, file and time; whatever is wrong with that, they are asked again.
    """
    memory = default_cache_dir() / "interpreters.json"
    known: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        known = dict(json.loads(memory.read_text("utf-8")))
    keys = [_fingerprint(path) for path in paths]
    found: dict[int, Interpreter | None] = {}
    for n, key in enumerate(keys):
        if key in known:
            with contextlib.suppress(TypeError, KeyError, ValueError):
                found[n] = _from_memory(known[key])
    asked = [n for n in range(len(paths)) if n not in found]
    if asked:
        with ThreadPoolExecutor(4) as pool:
            found |= zip(asked, pool.map(probe, [paths[n] for n in asked]), strict=True)
        kept = {key: _to_memory(found[n]) for n, key in enumerate(keys) if key and paths[n] not in _SILENT}
        with contextlib.suppress(OSError):
            memory.parent.mkdir(parents=True, exist_ok=True)
            with replacing(memory) as beside:
                beside.write_text(json.dumps(kept), "utf-8")
    return [found[n] for n in range(len(paths))]


def _fingerprint(path: Path) -> str:
    """Return what changes when another interpreter stands at a path; "" where there is none."""
    try:
        real = path.resolve(strict=True)
        facts = real.stat()
    except OSError:
        return ""
    return f"{path}|{real}|{facts.st_ino}|{facts.st_size}|{facts.st_mtime_ns}"


def _to_memory(found: Interpreter | None) -> dict[str, Any] | None:
    return None if found is None else {**asdict(found), "path": str(found.path), "stdlib": str(found.stdlib)}


def _from_memory(facts: dict[str, Any] | None) -> Interpreter | None:
    if facts is None:
        return None
    return Interpreter(**{**facts, "path": Path(facts["path"]), "stdlib": Path(facts["stdlib"])})


def _best(found: Iterable[Interpreter], version: str) -> Interpreter | None:
    wanted = _numbers(version)
    fitting = [i for i in found if i.release[: len(wanted)] == wanted]
    # max() keeps the first of equals, which is the one from the most trusted place.
    return max(fitting, key=lambda i: (i.final, i.release), default=None)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def fetch_with_uv(version: str, *, environ: Mapping[str, str] | None = None) -> str:
    """Let uv install a Python of its own; returns "" or why it could not.

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
    """Full versions of CPython that uv could fetch for this platform, oldest first; newest of each minor."""
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
# Interpreters in a directory that `bisect-env fetch` wrote: put there, and installed from there, by uv.


@functools.cache
def offline_interpreters(root: Path) -> Interpreters:
    """Return the interpreters of this machine, and those that a directory brings."""
    return Interpreters(fetch=lambda version: fetch_with_uv(version, environ=offline_environment(root)))


def offline_environment(root: Path) -> dict[str, str]:
    """Environment in which uv asks no network, and finds interpreters in a directory."""
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
