"""Locks conda environments with py-rattler in a helper process, or with conda-lock."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from bisect_env.environments.conda_process import (
    HelperDiedError,
    HelperPool,
    answered,
    channel_failure,
    shared_pool,
    unknown_package,
    with_usual_alias,
)
from bisect_env.environments.lock import LockedPackage, UnsolvableError
from bisect_env.environments.lockfiles import packages_of
from bisect_env.environments.request import EnvironmentRequest
from bisect_env.environments.settings import ChannelPlaces, CondaConfig, channel_places, read_conda_config
from bisect_env.environments.uv_tool import Finished, run_tool
from bisect_env.environments.validation import NONE
from bisect_env.environments.yaml_text import read_yaml
from bisect_env.errors import InfrastructureError, UsageError
from bisect_env.secrets import public_channel
from bisect_env.temporary import temporary

# --------------------------------------------------------------------------------------------------
# `engine: conda-lock`: conda, mamba or micromamba of this machine solve, as conda-lock asks them to.
#
# conda-lock has no solver of its own, and would try to download one: it is only run where one is.

SOLVERS = ("micromamba", "mamba", "conda")

_DROPPED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


def find_solver() -> Path:
    """Return the executable that conda-lock is to use.

    Raises:
        InfrastructureError: There is none.
    """
    for candidate in (os.environ.get("MAMBA_EXE"), os.environ.get("CONDA_EXE"), *SOLVERS):
        if candidate and (found := shutil.which(candidate)):
            return Path(found)
    raise InfrastructureError(
        "`engine: conda-lock` needs conda, mamba or micromamba, and none of them is on this machine",
        tried="MAMBA_EXE, CONDA_EXE and PATH",
        remedy="install micromamba, or remove `engine: conda-lock`: rattler needs nothing",
    )


def solve_by_conda(
    request: EnvironmentRequest, places: ChannelPlaces, timeout: float
) -> tuple[LockedPackage, ...]:
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
    with temporary("conda-lock") as cwd:
        (cwd / "environment.yml").write_text(environment_text(request, places), "utf-8")
        (cwd / "virtual.yml").write_text(virtual_packages_text(request), "utf-8")
        args: list[str | Path] = [sys.executable, "-m", "conda_lock", "lock", "--conda", solver]
        args += ["--file", "environment.yml", "--virtual-package-spec", "virtual.yml"]
        args += ["--platform", request.platform, "--lockfile", "conda-lock.yml"]
        env = {name: value for name, value in os.environ.items() if name not in _DROPPED}
        finished = run_tool(args, env=env, cwd=cwd, timeout=timeout)
        if finished.returncode != 0 or finished.timed_out:
            raise _failure(finished, solver, timeout)
        return read_packages((cwd / "conda-lock.yml").read_text("utf-8"), request.platform)


def read_packages(text: str, platform: str) -> tuple[LockedPackage, ...]:
    """Return the conda packages of a file that conda-lock wrote. Pure.

    Raises:
        InfrastructureError: A package has no sha256.
    """
    packages = []
    for package in packages_of(read_yaml(text), platform):
        if not package.is_conda:
            continue
        if not package.sha256:
            raise InfrastructureError(
                f"conda-lock states no sha256 for {package.url}",
                remedy="leave that version out, or use rattler",
            )
        channel, subdir, file = package.url.rsplit("/", 2)
        url = f"{public_channel(channel)}/{subdir}/{file}"
        packages.append(replace(package, url=url, dependencies=tuple(sorted(package.dependencies))))
    return tuple(packages)


def environment_text(request: EnvironmentRequest, places: ChannelPlaces) -> str:
    """Return a request as the `environment.yml` that conda-lock reads. Pure."""
    import yaml

    assert request.conda is not None
    channels = [next(iter(places.mirrors.get(url, ())), url) for url in places.urls]
    specs = [_conda_spec(spec) for spec in request.conda.specs(request.python)]
    data = {"channels": channels, "dependencies": specs, "platforms": [request.platform]}
    return yaml.safe_dump(data)


def _conda_spec(spec: str) -> str:
    """Return a spec in the form of conda-lock, which splits specs at spaces and expects no operator."""
    name, _, rest = spec.partition(" ")
    return f"{name} {rest.removeprefix('==')}" if rest.startswith("==") and "=" not in rest[2:] else spec


def virtual_packages_text(request: EnvironmentRequest) -> str:
    """Return the virtual packages of a host, as the file that conda-lock reads. Pure."""
    import yaml

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
        remedy="see that the solver works by itself, or remove `engine: conda-lock`",
    )


_NO_SOLUTION = ("nothing provides", "not installable", "Could not solve", "UnsatisfiableError", "conflicts")


def _last(words: str) -> str:
    lines: Sequence[str] = [line for line in words.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"


# --------------------------------------------------------------------------------------------------
# Locking conda environments: py-rattler solves in a helper process, we write what it chose.

_ATTEMPTS = 3
"""Processes that may die of one solution: py-rattler's rare crashes do not repeat."""


@dataclass(frozen=True, slots=True)
class SolvedConda:
    """The conda part of an environment.

    Attributes:
        packages: What is installed, by name.
        records: URL to all that the channel says, as JSON.
    """

    packages: tuple[LockedPackage, ...]
    records: Mapping[str, str]

    @property
    def python(self) -> str:
        """Return the version of its interpreter."""
        return next(package.version for package in self.packages if package.name == "python")


class CondaSolver:
    """A solver of conda requests.

    Args:
        cache_dir: Our cache directory.
        timeout: Seconds for one solution, fetching of repodata included.
        config: Of conda; this host's if None.
        pool: Where rattler runs.
    """

    def __init__(
        self,
        cache_dir: Path,
        *,
        timeout: float = 900.0,
        config: CondaConfig | None = None,
        pool: HelperPool | None = None,
    ) -> None:
        self._cache_dir = cache_dir
        self._timeout = timeout
        self._config = config
        self._pool = pool or shared_pool()

    def solve(self, request: EnvironmentRequest, prefer: Sequence[LockedPackage] = ()) -> SolvedConda:
        """Solve the conda part of a request.

        Args:
            request: With a `conda` part.
            prefer: Packages that are taken again where nothing speaks against it: a neighbour's.

        Raises:
            UnsolvableError: Nothing satisfies the request.
            PackageNotFoundError: No channel has a package that it names.
            IndexUnavailableError: A channel cannot be used.
            InfrastructureError: The solver cannot work here.
            UsageError: A spec or a channel cannot be read.
        """
        assert request.conda is not None
        places = self.places(request.conda.channels)
        if request.conda.engine == "conda-lock":
            return SolvedConda(solve_by_conda(request, places, self._timeout), {})
        message = {
            "op": "solve",
            **self.base(places, request.platform),
            "specs": list(request.conda.specs(request.python)),
            "virtual_packages": virtual_package_facts(request.conda.virtual_packages),
            "exclude_newer": milliseconds(request.exclude_newer),
            "prefer": [(package.name, package.url) for package in prefer if package.is_conda],
            "timeout": self._timeout,
        }
        answer = self.ask(message, f"solving {', '.join(message['specs'])}", places)
        if "unsolvable" in answer:
            raise UnsolvableError(answer["unsolvable"])
        packages = tuple(_locked(facts) for facts in answer["records"])
        return SolvedConda(packages, {facts["url"]: facts["record"] for facts in answer["records"]})

    def versions(self, package: str, channels: Sequence[str], platform: str) -> dict[str, Any]:
        """Return the builds of a package (`records`), and versions for other platforms (`elsewhere`).

        Raises:
            PackageNotFoundError: No channel has it.
            IndexUnavailableError: A channel cannot be used.
        """
        places = self.places(channels)
        message = {"op": "versions", **self.base(places, platform), "name": package}
        return self.ask(message, f"listing the versions of {package}", places)

    def places(self, channels: Sequence[str]) -> ChannelPlaces:
        """Return the addresses of channels by their names in a matrix."""
        if self._config is None:
            self._config = read_conda_config()
        if not all("://" in name or name.startswith("/") for name in channels):
            self._config = with_usual_alias(self._config, self._pool)
        return channel_places(channels, self._config)

    def base(self, places: ChannelPlaces, platform: str) -> dict[str, Any]:
        """Return the part that every request about channels has."""
        # Its locks are for processes of this user alone; a helper says what is wrong with the cache.
        with contextlib.suppress(OSError):
            (self._cache_dir / "conda").mkdir(mode=0o700, parents=True, exist_ok=True)
        return {
            "channels": list(places.urls),
            "mirrors": {url: list(addresses) for url, addresses in places.mirrors.items()},
            "platform": platform,
            "cache": str(self._cache_dir / "conda" / "repodata"),
        }

    def ask(self, message: dict[str, Any], tried: str, places: ChannelPlaces) -> dict[str, Any]:
        """Ask a helper; raises errors that do not depend on the request.

        Raises:
            PackageNotFoundError: No channel has the package.
            IndexUnavailableError: A channel cannot be used.
            InfrastructureError: The helpers die, or the cache cannot be written.
            UsageError: A spec cannot be read.
        """
        try:
            answer = self._pool.ask(message, self._timeout, attempts=_ATTEMPTS)
        except HelperDiedError as error:
            if error.timed_out:
                raise channel_failure(f"no answer in {self._timeout:.0f} s", places.urls, tried) from error
            raise InfrastructureError(
                error.text,
                tried=tried,
                remedy="give the same command again; if it stays so, report it to py-rattler",
            ) from error
        if "missing" in answer:
            raise unknown_package(answer["missing"], answer["near"], places.urls)
        if answer.get("failed") == "spec":
            raise UsageError(
                f"a conda spec cannot be read: {answer['text']}",
                tried=tried,
                remedy="write it like 'numpy 2.1.*' or 'pytorch 2.8.* cuda*'",
            )
        return answered(answer, places.urls, tried)


def virtual_package_facts(packages: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return name, version and build of each virtual package.

    The name of a microarchitecture is the build string of `__archspec`, whose version is always 1.
    """
    facts = []
    for name, value in sorted(packages.items()):
        facts.append((name, "1", value) if name == "__archspec" else (name, value, "0"))
    return facts


def milliseconds(moment: datetime | None) -> int | None:
    """Return a moment as repodata counts them."""
    return None if moment is None else round(moment.timestamp() * 1000)


def _locked(facts: Mapping[str, Any]) -> LockedPackage:
    if not facts["sha256"]:
        raise InfrastructureError(
            f"the channel states no sha256 for {facts['url']}",
            remedy="let the channel be indexed again by a current tool, or leave that version out",
        )
    plain = {name: facts[name] for name in ("name", "version", "url", "sha256", "build", "md5")}
    dependencies = tuple((name, spec) for name, spec in facts["dependencies"])
    return LockedPackage(manager="conda", dependencies=dependencies, **plain)
