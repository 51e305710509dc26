"""Checks what this host has for studies, and says what each missing thing costs.

Each check answers in a few seconds and changes nothing. What raises is a finding too: a doctor who dies of
the first symptom helps nobody.
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

from bisect_env.environments.settings import default_cache_dir
from bisect_env.errors import BisectEnvError
from bisect_env.trials.stacks import find_tool, run_tool

LITTLE_DISK = 10 * 1024**3
"""Bytes: a CUDA environment takes about so much."""


class Health(StrEnum):
    """The result of a check."""

    OK = "ok"
    MISSING = "missing"
    """Something is not there that studies can do without, at a cost."""
    BROKEN = "broken"
    """No study can run before this is mended."""


@dataclass(frozen=True, slots=True)
class HostCheck:
    """The outcome of one check.

    Attributes:
        name: What was looked at.
        health: How it is.
        detail: What was found.
        cost: What is lost without it, "" if all is well.
        remedy: What to do, "" if all is well.
    """

    name: str
    health: Health
    detail: str
    cost: str = ""
    remedy: str = ""


def findings(cache: Path | None = None, db: str | None = None) -> Iterator[HostCheck]:
    """Run all checks, each when it is asked for.

    Args:
        cache: Our cache directory; the default one if None.
        db: Reference of the results database; the default one if None.
    """
    place = (cache or default_cache_dir()).absolute()
    checks: tuple[tuple[str, Callable[[], HostCheck]], ...] = (
        ("machine", _machine),
        ("cache", lambda: _cache(place)),
        ("database", lambda: _database(db)),
        ("pythons", _pythons),
        ("uv", _uv),
        ("rattler", _rattler),
        ("conda-lock solver", _conda_solver),
        ("package index", _index),
        ("dask", _dask),
        ("gpus", _gpus),
        ("containers", _containers),
        ("gdb", _gdb),
        ("py-spy", _py_spy),
        ("core files", _cores),
        ("cuda tools", _cuda_tools),
        ("browser view", _datasette),
    )
    for name, check in checks:
        try:
            yield check()
        except BisectEnvError as error:
            yield HostCheck(name, Health.BROKEN, error.what, error.tried or "", error.remedy or "")
        except Exception as error:  # noqa: BLE001 - see the module: this is the outermost frame of a check
            yield HostCheck(
                name, Health.BROKEN, f"{type(error).__name__}: {error}", "the check itself failed"
            )


def _machine() -> HostCheck:
    memory = psutil.virtual_memory().total / 1024**3
    cores = len(os.sched_getaffinity(0))
    return HostCheck(
        "machine",
        Health.OK,
        f"{platform.machine()}, {cores} cores, {memory:.0f} GiB of memory, "
        f"Python {platform.python_version()}, {platform.system()} {platform.release()}",
    )


def _cache(place: Path) -> HostCheck:
    existing = next(folder for folder in (place, *place.parents) if folder.exists())
    if not os.access(existing, os.W_OK):
        return HostCheck(
            "cache",
            Health.BROKEN,
            f"{place} cannot be written",
            "no environment can be built",
            "name another directory with BISECT_ENV_CACHE",
        )
    free = shutil.disk_usage(existing).free
    shown = f"{place}, {free / 1024**3:.0f} GiB free"
    if free < LITTLE_DISK:
        return HostCheck(
            "cache",
            Health.MISSING,
            shown,
            "a CUDA environment takes about 10 GiB",
            "name a directory on a larger disk with BISECT_ENV_CACHE, or bound it with --env-cache-size",
        )
    if not _can_hardlink(existing):
        return HostCheck(
            "cache",
            Health.MISSING,
            f"{shown}, without hardlinks",
            "each environment is a full copy of its packages",
            "name a directory on a local file system with BISECT_ENV_CACHE",
        )
    return HostCheck("cache", Health.OK, f"{shown}, with hardlinks")


def _can_hardlink(folder: Path) -> bool:
    with tempfile.TemporaryDirectory(dir=folder, prefix=".bisect-env-doctor-") as made:
        source = Path(made, "a")
        source.touch()
        try:
            Path(made, "b").hardlink_to(source)
        except OSError:
            return False
    return True


def _database(db: str | None) -> HostCheck:
    from bisect_env.storage.backend import database_location, shown_location
    from bisect_env.storage.store import Store

    shown = shown_location(db)
    location = database_location(db)
    if isinstance(location, Path) and not location.exists():
        return HostCheck("database", Health.OK, f"{shown} (made by the first study)")
    with Store.open(db, read_only=True) as store:
        count = len(store.studies())
    return HostCheck("database", Health.OK, f"{shown}, {count} studies")


def _pythons() -> HostCheck:
    from bisect_env.environments.interpreters import machine_interpreters

    found = sorted({i.release[:2] for i in machine_interpreters().installed()})
    versions = ", ".join(".".join(str(part) for part in release) for release in found)
    return HostCheck(
        "pythons", Health.OK, f"{versions or 'none'}; uv fetches others where there is a network"
    )


def _uv() -> HostCheck:
    import uv

    said = run_tool([uv.find_uv_bin(), "--version"])
    if said.ok:
        return HostCheck("uv", Health.OK, said.text.strip())
    return HostCheck(
        "uv", Health.BROKEN, said.why, "no PyPI environment can be locked", "install bisect-env again"
    )


def _rattler() -> HostCheck:
    said = run_tool([sys.executable, "-c", "import rattler; print(rattler.__version__)"])
    if said.ok:
        return HostCheck("rattler", Health.OK, f"py-rattler {said.text.strip()}")
    return HostCheck(
        "rattler",
        Health.MISSING,
        said.why,
        "no conda environment can be locked",
        "install bisect-env again: it brings py-rattler",
    )


def _conda_solver() -> HostCheck:
    from bisect_env.environments.conda_lock import find_solver

    try:
        return HostCheck("conda-lock solver", Health.OK, str(find_solver()))
    except BisectEnvError as error:
        return HostCheck(
            "conda-lock solver",
            Health.MISSING,
            error.what,
            "`solver: conda-lock` cannot be used; the default solver needs nothing",
            error.remedy or "",
        )


def _index() -> HostCheck:
    import requests

    from bisect_env.environments.settings import configured_index
    from bisect_env.matrix.secrets import without_credentials

    address = configured_index(os.environ)
    shown = without_credentials(address)
    if not address.startswith(("http://", "https://")):
        return HostCheck("package index", Health.OK, shown)
    try:
        # Any answer will do: many indexes refuse to list everything they have.
        with requests.get(f"{address.rstrip('/')}/pip/", timeout=(5, 10), stream=True) as answer:
            said = answer.status_code
    except requests.RequestException as error:
        return HostCheck(
            "package index",
            Health.MISSING,
            f"{shown} does not answer ({type(error).__name__})",
            "nothing new can be locked or downloaded",
            "check network and proxy, or run from what `bisect-env fetch` put into a directory (--offline)",
        )
    return HostCheck("package index", Health.OK, f"{shown} answers ({said})")


def _dask() -> HostCheck:
    version = importlib.metadata.version
    return HostCheck("dask", Health.OK, f"dask {version('dask')}, distributed {version('distributed')}")


def _gpus() -> HostCheck:
    from bisect_env.cluster.gpus import open_nvml

    cost = "matrices with `trial.gpus` need a cluster that has some (--scheduler)"
    try:
        nvml = open_nvml()
        gpus = nvml.gpus()
    except BisectEnvError as error:
        return HostCheck("gpus", Health.MISSING, error.what, cost, error.remedy or "")
    if not gpus:
        return HostCheck("gpus", Health.MISSING, "the driver knows of none", cost, "see `nvidia-smi`")
    model, driver = nvml.describe([gpu.uuid for gpu in gpus])
    return HostCheck("gpus", Health.OK, f"{len(gpus)}: {model}, driver {driver}")


def _containers() -> HostCheck:
    from bisect_env.containers.engine import find_engine

    try:
        engine = find_engine()
    except BisectEnvError as error:
        return HostCheck(
            "containers",
            Health.MISSING,
            error.what,
            "matrices with `executor: {kind: container}` cannot run here",
            error.remedy or "",
        )
    return HostCheck("containers", Health.OK, " ".join(engine.command))


def _tool(name: str, cost: str, remedy: str) -> HostCheck:
    found = find_tool(name)
    if found is None:
        return HostCheck(name, Health.MISSING, "not found", cost, remedy)
    said = run_tool([found, "--version"])
    first = next(iter((said.text or said.why).splitlines()), "")
    return HostCheck(name, Health.OK if said.ok else Health.MISSING, first, "" if said.ok else cost)


def _gdb() -> HostCheck:
    return _tool("gdb", "no native stacks of crashes and hangs", "install gdb (apt install gdb)")


def _py_spy() -> HostCheck:
    found = _tool(
        "py-spy", "hangs show Python's own stacks at best, without native frames", "pip install py-spy"
    )
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    # 1 allows one's own children, which is what trials are; more allows nobody but root.
    if found.health is Health.OK and os.geteuid() and scope.exists() and int(scope.read_text()) > 1:
        return HostCheck(
            "py-spy",
            Health.MISSING,
            f"{found.detail}; the kernel forbids looking into processes",
            "no native stacks of hangs",
            "set kernel.yama.ptrace_scope to 1",
        )
    return found


def _cores() -> HostCheck:
    pattern = Path("/proc/sys/kernel/core_pattern").read_text("utf-8").strip()
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    if hard == 0:
        return HostCheck(
            "core files",
            Health.MISSING,
            f"forbidden (limit 0), pattern {pattern!r}",
            "`diagnose` cannot look into the core of a crash",
            "raise the hard limit (`ulimit -Hc unlimited`) before starting",
        )
    if pattern.startswith("|") and "systemd-coredump" not in pattern:
        return HostCheck(
            "core files",
            Health.MISSING,
            f"handed to another program: {pattern!r}",
            "`diagnose` cannot look into the core of a crash",
            "sysctl kernel.core_pattern=core, or install systemd-coredump",
        )
    return HostCheck("core files", Health.OK, f"pattern {pattern!r}")


def _cuda_tools() -> HostCheck:
    names = ("cuda-gdb", "compute-sanitizer")
    missing = [name for name in names if find_tool(name) is None]
    if not missing:
        return HostCheck("cuda tools", Health.OK, ", ".join(names))
    return HostCheck(
        "cuda tools",
        Health.MISSING,
        f"without {', '.join(missing)}",
        "`diagnose` cannot look into GPU code",
        "install the CUDA toolkit if your failures are CUDA faults",
    )


def _datasette() -> HostCheck:
    try:
        version = importlib.metadata.version("datasette")
    except importlib.metadata.PackageNotFoundError:
        return HostCheck(
            "browser view",
            Health.MISSING,
            "datasette is not installed",
            "`bisect-env serve` cannot be used",
            "pip install 'bisect-env[web]'",
        )
    return HostCheck("browser view", Health.OK, f"datasette {version}")
