"""Check what this host offers to studies, and report what is not possible without each missing thing.

Each check takes at most a few seconds and changes nothing. An unexpected error in a check is reported as a
result, too.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psutil
import requests
import uv

from bisect_env.cluster.gpus import open_nvml
from bisect_env.containers.engine import find_engine
from bisect_env.environments.cache import is_noexec, refuse_noexec
from bisect_env.environments.conda_lock import find_solver
from bisect_env.environments.interpreters import machine_interpreters
from bisect_env.environments.settings import default_cache_dir
from bisect_env.environments.uv_tool import configured_index
from bisect_env.errors import BisectEnvError
from bisect_env.secrets import without_credentials
from bisect_env.storage.backend import database_location, shown_location
from bisect_env.storage.store import Store
from bisect_env.trials.stacks import find_tool, run_tool

LITTLE_DISK = 10 * 1024**3
"""Free disk space, in bytes, below which a warning is given: about the size of a CUDA environment."""


class Health(StrEnum):
    """The outcome of one check of this host: usable, missing, or broken."""

    OK = "ok"
    MISSING = "missing"
    """Studies can run without it, with a restriction."""
    BROKEN = "broken"
    """No study can run until this is corrected."""


@dataclass(frozen=True, slots=True)
class HostCheck:
    """What one check of this host has found, such as whether GPUs can be used.

    Attributes:
        name: What was checked, such as `uv` or `gpus`.
        health: Whether it is usable.
        detail: What was found.
        cost: What is not possible without it, "" if it is usable.
        remedy: What to do about it, "" if it is usable.
    """

    name: str
    health: Health
    detail: str
    cost: str = ""
    remedy: str = ""


class _MissingError(Exception):
    """Raised by a check of this host if something cannot be used; contains the fields of a `HostCheck`."""

    def __init__(self, detail: str, cost: str, remedy: str = "", health: Health = Health.MISSING) -> None:
        super().__init__(detail)
        self.detail, self.cost, self.remedy, self.health = detail, cost, remedy, health


def findings(cache: Path | None = None, db: str | None = None) -> Iterator[HostCheck]:
    """Check what this host offers to studies, and yield the result of each check.

    A check runs only when its result is requested.

    Args:
        cache: The cache directory; None for the default one.
        db: Reference of the results database; None for the default one.
    """
    place = (cache or default_cache_dir()).absolute()
    # Name, check, and what is not possible if the check itself fails; "" if no study can run then.
    checks: tuple[tuple[str, Callable[[], str], str], ...] = (
        ("machine", _machine, ""),
        ("cache", lambda: _cache(place), ""),
        ("temporary files", _temporary, ""),
        ("database", lambda: _database(db), ""),
        ("pythons", _pythons, ""),
        ("uv", _uv, ""),
        ("rattler", _rattler, ""),
        (
            "conda-lock solver",
            lambda: str(find_solver()),
            "`engine: conda-lock` cannot be used; the default solver needs nothing",
        ),
        ("package index", _index, ""),
        ("dask", _dask, ""),
        ("gpus", _gpus, _NO_GPUS),
        (
            "containers",
            lambda: " ".join(find_engine().command),
            "matrices with `executor: {kind: container}` cannot run here",
        ),
        ("gdb", lambda: _tool("gdb", _NO_GDB, "install gdb (apt install gdb)"), ""),
        ("py-spy", _py_spy, ""),
        ("core files", _cores, ""),
        ("cuda tools", _cuda_tools, ""),
        ("browser view", _datasette, ""),
    )
    for name, check, cost in checks:
        try:
            yield HostCheck(name, Health.OK, check())
        except _MissingError as missing:
            yield HostCheck(name, missing.health, missing.detail, missing.cost, missing.remedy)
        except BisectEnvError as error:
            health = Health.MISSING if cost else Health.BROKEN
            yield HostCheck(name, health, error.what, cost or error.tried or "", error.remedy or "")
        except Exception as error:  # noqa: BLE001 - the outermost frame of a check: the others still run
            what = f"{type(error).__name__}: {error}"
            yield HostCheck(name, Health.BROKEN, what, "the check itself failed")


_NO_GPUS = "matrices with `trial.gpus` need a cluster that has some (--scheduler)"
_NO_GDB = "no native stacks of crashes and hangs"
_NO_CORES = "`trial --debug` cannot look into the core of a crash"


def _machine() -> str:
    memory = psutil.virtual_memory().total / 1024**3
    cores = len(os.sched_getaffinity(0))
    return (
        f"{platform.machine()}, {cores} cores, {memory:.0f} GiB of memory, "
        f"Python {platform.python_version()}, {platform.system()} {platform.release()}"
    )


def _cache(place: Path) -> str:
    existing = next(folder for folder in (place, *place.parents) if folder.exists())
    if not os.access(existing, os.W_OK):
        raise _MissingError(
            f"{place} cannot be written",
            "no environment can be built",
            "name another directory with BISECT_ENV_CACHE",
            Health.BROKEN,
        )
    refuse_noexec(place)
    free = shutil.disk_usage(existing).free
    shown = f"{place}, {free / 1024**3:.0f} GiB free"
    if free < LITTLE_DISK:
        raise _MissingError(
            shown,
            "a CUDA environment takes about 10 GiB",
            "name a directory on a larger disk with BISECT_ENV_CACHE, or bound it with --env-cache-size",
        )
    if not _can_hardlink(existing):
        raise _MissingError(
            f"{shown}, without hardlinks",
            "each environment is a full copy of its packages",
            "name a directory on a local file system with BISECT_ENV_CACHE",
        )
    return f"{shown}, with hardlinks"


def _temporary() -> str:
    place = Path(tempfile.gettempdir())
    if is_noexec(place):
        raise _MissingError(
            f"{place} is mounted noexec",
            "scripts that compile something and load it fail in every trial",
            "name a directory on another file system with TMPDIR",
        )
    return f"{place}, {shutil.disk_usage(place).free / 1024**3:.0f} GiB free"


def _can_hardlink(folder: Path) -> bool:
    with tempfile.TemporaryDirectory(dir=folder, prefix=".bisect-env-doctor-") as made:
        source = Path(made, "a")
        source.touch()
        try:
            Path(made, "b").hardlink_to(source)
        except OSError:
            return False
    return True


def _database(db: str | None) -> str:
    shown = shown_location(db)
    location = database_location(db)
    if isinstance(location, Path) and not location.exists():
        return f"{shown} (made by the first study)"
    with Store.open(db, read_only=True) as store:
        return f"{shown}, {len(store.studies())} studies"


def _pythons() -> str:
    found = sorted({i.release[:2] for i in machine_interpreters().installed()})
    versions = ", ".join(".".join(str(part) for part in release) for release in found)
    return f"{versions or 'none'}; uv fetches others where there is a network"


def _uv() -> str:
    said = run_tool([uv.find_uv_bin(), "--version"])
    if not said.ok:
        cost = "no PyPI environment can be locked"
        raise _MissingError(said.why, cost, "install bisect-env again", Health.BROKEN)
    return said.text.strip()


def _rattler() -> str:
    said = run_tool([sys.executable, "-c", "import rattler; print(rattler.__version__)"])
    if not said.ok:
        cost = "no conda environment can be locked"
        raise _MissingError(said.why, cost, "install bisect-env again: it brings py-rattler")
    return f"py-rattler {said.text.strip()}"


def _index() -> str:
    address = configured_index()
    shown = without_credentials(address)
    if not address.startswith(("http://", "https://")):
        return shown
    try:
        # Any answer will do: many indexes refuse to list everything they have.
        with requests.get(f"{address.rstrip('/')}/pip/", timeout=(5, 10), stream=True) as answer:
            return f"{shown} answers ({answer.status_code})"
    except requests.RequestException as error:
        raise _MissingError(
            f"{shown} does not answer ({type(error).__name__})",
            "nothing new can be locked or downloaded",
            "check network and proxy, or use a directory that `bisect-env env fetch` made (--offline)",
        ) from error


def _dask() -> str:
    version = importlib.metadata.version
    return f"dask {version('dask')}, distributed {version('distributed')}"


def _gpus() -> str:
    nvml = open_nvml()
    gpus = nvml.gpus()
    if not gpus:
        raise _MissingError("the driver knows of none", _NO_GPUS, "see `nvidia-smi`")
    model, driver = nvml.describe([gpu.uuid for gpu in gpus])
    return f"{len(gpus)}: {model}, driver {driver}"


def _tool(name: str, cost: str, remedy: str) -> str:
    found = find_tool(name)
    if found is None:
        raise _MissingError("not found", cost, remedy)
    said = run_tool([found, "--version"])
    first = next(iter((said.text or said.why).splitlines()), "")
    if not said.ok:
        raise _MissingError(first, cost)
    return first


def _py_spy() -> str:
    cost = "hangs show Python's own stacks at best, without native frames"
    found = _tool("py-spy", cost, "pip install py-spy")
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    # With 1, a process may trace its own children, such as trials; with higher values, only root may.
    if os.geteuid() and scope.exists() and int(scope.read_text()) > 1:
        raise _MissingError(
            f"{found}; the kernel forbids looking into processes",
            "no native stacks of hangs",
            "set kernel.yama.ptrace_scope to 1",
        )
    return found


def _cores() -> str:
    pattern = Path("/proc/sys/kernel/core_pattern").read_text("utf-8").strip()
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    if hard == 0:
        raise _MissingError(
            f"forbidden (limit 0), pattern {pattern!r}",
            _NO_CORES,
            "raise the hard limit (`ulimit -Hc unlimited`) before starting",
        )
    if pattern.startswith("|") and "systemd-coredump" not in pattern:
        raise _MissingError(
            f"handed to another program: {pattern!r}",
            _NO_CORES,
            "sysctl kernel.core_pattern=core, or install systemd-coredump",
        )
    return f"pattern {pattern!r}"


def _cuda_tools() -> str:
    names = ("cuda-gdb", "compute-sanitizer")
    if missing := [name for name in names if find_tool(name) is None]:
        raise _MissingError(
            f"without {', '.join(missing)}",
            "`trial --debug` cannot look into GPU code",
            "install the CUDA toolkit if your failures are CUDA faults",
        )
    return ", ".join(names)


def _datasette() -> str:
    try:
        return f"datasette {importlib.metadata.version('datasette')}"
    except importlib.metadata.PackageNotFoundError as error:
        raise _MissingError(
            "datasette is not installed", "`bisect-env serve` cannot be used", "pip install 'bisect-env[web]'"
        ) from error
