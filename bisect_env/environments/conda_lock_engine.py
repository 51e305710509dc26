"""`solver: conda-lock`: conda, mamba or micromamba of this machine solve, as conda-lock asks them to.

conda-lock has no solver of its own, and would try to download one: it is only run where one is.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from bisect_env.environments.conda_config import ChannelPlaces, public_address
from bisect_env.environments.failures import UnsolvableError
from bisect_env.environments.lock import LockedPackage
from bisect_env.environments.process import Finished, run_tool
from bisect_env.environments.request import EnvironmentRequest
from bisect_env.environments.virtual_packages import NONE
from bisect_env.errors import InfrastructureError

SOLVERS = ("micromamba", "mamba", "conda")

_DROPPED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


def find_solver(environ: Mapping[str, str] | None = None) -> Path:
    """The executable that conda-lock is to use.

    Raises:
        InfrastructureError: There is none.
    """
    environ = os.environ if environ is None else environ
    for candidate in (environ.get("MAMBA_EXE"), environ.get("CONDA_EXE"), *SOLVERS):
        if candidate and (found := shutil.which(candidate, path=environ.get("PATH"))):
            return Path(found)
    raise InfrastructureError(
        "`solver: conda-lock` needs conda, mamba or micromamba, and none of them is on this machine",
        tried="MAMBA_EXE, CONDA_EXE and PATH",
        remedy="install micromamba, or remove `solver: conda-lock`: rattler needs nothing",
    )


def solve(request: EnvironmentRequest, places: ChannelPlaces, timeout: float) -> tuple[LockedPackage, ...]:
    """Solve the conda part of a request.

    Dates and neighbours' locks mean nothing to conda-lock.

    Args:
        request: With a `conda` part.
        places: Its channels.
        timeout: Seconds.

    Raises:
        UnsolvableError: The solver finds no solution.
        InfrastructureError: There is no solver, or it gives no answer.
    """
    assert request.conda is not None
    solver = find_solver()
    with tempfile.TemporaryDirectory(prefix="bisect-env-conda-lock-") as folder:
        cwd = Path(folder)
        (cwd / "environment.yml").write_text(_environment(request, places), "utf-8")
        (cwd / "virtual.yml").write_text(_virtual_packages(request), "utf-8")
        args: list[str | Path] = [sys.executable, "-m", "conda_lock", "lock", "--conda", solver]
        args += ["--file", "environment.yml", "--virtual-package-spec", "virtual.yml"]
        args += ["--platform", request.platform, "--lockfile", "conda-lock.yml"]
        env = {name: value for name, value in os.environ.items() if name not in _DROPPED}
        finished = run_tool(args, env=env, cwd=cwd, timeout=timeout)
        if finished.returncode != 0 or finished.timed_out:
            raise _failure(finished, solver, timeout)
        return read_packages((cwd / "conda-lock.yml").read_text("utf-8"), request.platform)


def read_packages(text: str, platform: str) -> tuple[LockedPackage, ...]:
    """The conda packages of a file that conda-lock wrote. Pure.

    Raises:
        InfrastructureError: A package has no sha256.
    """
    packages = []
    for entry in yaml.safe_load(text)["package"]:
        if entry["manager"] != "conda" or entry["platform"] != platform:
            continue
        url = entry["url"]
        sha256 = entry["hash"].get("sha256")
        if not sha256:
            raise InfrastructureError(
                f"conda-lock states no sha256 for {url}",
                remedy="leave that version out, or use rattler",
            )
        stem = url.rsplit("/", 1)[1].removesuffix(".conda").removesuffix(".tar.bz2")
        channel, subdir, file = url.rsplit("/", 2)
        packages.append(
            LockedPackage(
                name=entry["name"],
                version=entry["version"],
                manager="conda",
                url=f"{public_address(channel)}/{subdir}/{file}",
                sha256=sha256,
                build=stem.rsplit("-", 1)[1],
                md5=entry["hash"].get("md5", ""),
                dependencies=tuple(sorted((str(k), str(v)) for k, v in entry["dependencies"].items())),
            )
        )
    return tuple(packages)


def _environment(request: EnvironmentRequest, places: ChannelPlaces) -> str:
    assert request.conda is not None
    channels = [next(iter(places.mirrors.get(url, ())), url) for url in places.urls]
    specs = [_conda_spec(spec) for spec in request.conda.specs(request.python)]
    data = {"channels": channels, "dependencies": specs, "platforms": [request.platform]}
    return yaml.safe_dump(data)


def _conda_spec(spec: str) -> str:
    """conda-lock splits specs at spaces and wants versions without operators after them."""
    name, _, rest = spec.partition(" ")
    return f"{name} {rest.removeprefix('==')}" if rest.startswith("==") and "=" not in rest[2:] else spec


def _virtual_packages(request: EnvironmentRequest) -> str:
    assert request.conda is not None
    packages: dict[str, Any] = {}
    for name, value in request.conda.virtual_packages.items():
        if value != NONE:
            packages[name] = f"1 {value}" if name == "__archspec" else value
    return yaml.safe_dump({"subdirs": {request.platform: {"packages": packages}}})


def _failure(finished: Finished, solver: Path, timeout: float) -> UnsolvableError | InfrastructureError:
    words = (finished.stderr or finished.stdout).strip()
    if finished.timed_out:
        return InfrastructureError(
            f"conda-lock gave no answer in {timeout:.0f} s", tried=str(solver), remedy="check the network"
        )
    if any(hint in words for hint in _NO_SOLUTION):
        return UnsolvableError(words)
    return InfrastructureError(
        f"conda-lock ended with status {finished.returncode}: {_last(words)}",
        tried=str(solver),
        remedy="see that the solver works by itself, or remove `solver: conda-lock`",
    )


_NO_SOLUTION = ("nothing provides", "not installable", "Could not solve", "UnsatisfiableError", "conflicts")


def _last(words: str) -> str:
    lines: Sequence[str] = [line for line in words.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"
