"""Solves the conda part of an environment, with py-rattler in a helper process or with conda-lock."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from bisect_env.environments.conda_process import (
    NO_ROOM,
    HelperDiedError,
    HelperPool,
    channel_failure,
    last_words,
    shared_pool,
    with_usual_alias,
)
from bisect_env.environments.lock import LockedPackage, PackageNotFoundError, UnsolvableError
from bisect_env.environments.lockfiles import packages_of
from bisect_env.environments.request import EnvironmentRequest
from bisect_env.environments.settings import ChannelPlaces, CondaConfig, channel_places, read_conda_config
from bisect_env.environments.validation import NONE
from bisect_env.environments.yaml_text import read_yaml
from bisect_env.errors import InfrastructureError, UsageError
from bisect_env.running import Finished, run_tool
from bisect_env.secrets import public_channel
from bisect_env.temporary import temporary

# --------------------------------------------------------------------------------------------------
# `engine: conda-lock`: conda-lock runs the conda, mamba or micromamba that is installed on this machine.
#
# conda-lock has no solver of its own and would download one, so it is only run if a solver is installed.

SOLVERS = ("micromamba", "mamba", "conda")

_DROPPED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


def find_solver() -> Path:
    """Return the path of the conda, mamba or micromamba executable for conda-lock to use.

    Raises:
        InfrastructureError: None of them is installed.
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
    """Solve the conda part of a request with conda-lock, and return the packages.

    conda-lock supports neither upload dates nor preferred versions, so both are ignored.

    Args:
        request: A request whose `conda` is set.
        places: Addresses of the request's channels.
        timeout: Time limit in seconds.

    Raises:
        UnsolvableError: The solver found no solution.
        InfrastructureError: No solver is installed, or conda-lock failed.
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
    """Return the conda packages in the text of a lock file that conda-lock wrote.

    This function is pure.

    Args:
        text: Content of the file.
        platform: conda's name of the platform whose packages are returned.

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
    """Return the text of the `environment.yml` that describes a request to conda-lock.

    This function is pure.
    """
    assert request.conda is not None
    channels = [next(iter(places.mirrors.get(url, ())), url) for url in places.urls]
    specs = [_conda_spec(spec) for spec in request.conda.specs(request.python)]
    data = {"channels": channels, "dependencies": specs, "platforms": [request.platform]}
    return yaml.safe_dump(data)


def _conda_spec(spec: str) -> str:
    """Convert a match spec to conda-lock's format: `numpy ==2.1.0` becomes `numpy 2.1.0`."""
    name, _, rest = spec.partition(" ")
    return f"{name} {rest.removeprefix('==')}" if rest.startswith("==") and "=" not in rest[2:] else spec


def virtual_packages_text(request: EnvironmentRequest) -> str:
    """Return the text of the file that describes the request's virtual packages to conda-lock.

    This function is pure.
    """
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
        f"conda-lock ended with status {finished.returncode}: {last_words(words)}",
        tried=str(solver),
        remedy="see that the solver works by itself, or remove `engine: conda-lock`",
    )


_NO_SOLUTION = ("nothing provides", "not installable", "Could not solve", "UnsatisfiableError", "conflicts")


# --------------------------------------------------------------------------------------------------
# `engine: rattler`: py-rattler solves in a helper process.


def python_of(packages: Iterable[LockedPackage]) -> str:
    """Return the version of Python in a list of conda packages."""
    return next(package.version for package in packages if package.name == "python")


class CondaSolver:
    """A solver for the conda part of environment requests.

    Args:
        cache_dir: The cache directory of bisect-env.
        timeout: Time limit in seconds for solving one request, including downloads of repodata.
        config: conda's configuration; read from this host's files if None.
        pool: Helper processes that run rattler; None for the pool that this process shares.
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

    def solve(
        self, request: EnvironmentRequest, prefer: Sequence[LockedPackage] = ()
    ) -> tuple[LockedPackage, ...]:
        """Choose the conda packages that satisfy a request.

        Args:
            request: A request whose `conda` is set.
            prefer: Packages of a neighbouring lock, which are reused where possible.

        Raises:
            UnsolvableError: No set of packages satisfies the request.
            PackageNotFoundError: No channel has a requested package.
            IndexUnavailableError: A channel cannot be used.
            InfrastructureError: The solver does not work here.
            UsageError: A match spec or a channel name is invalid.
        """
        assert request.conda is not None
        places = self.places(request.conda.channels)
        if request.conda.engine == "conda-lock":
            return solve_by_conda(request, places, self._timeout)
        newest = request.exclude_newer
        message = {
            "op": "solve",
            **self.base(places, request.platform),
            "specs": list(request.conda.specs(request.python)),
            "virtual_packages": dict(request.conda.virtual_packages),
            "exclude_newer": newest and round(newest.timestamp() * 1000),  # ms since 1970, as in repodata
            "prefer": [(package.name, package.url) for package in prefer if package.is_conda],
            "timeout": self._timeout,
        }
        answer = self.ask(message, f"solving {', '.join(message['specs'])}", places)
        if "unsolvable" in answer:
            raise UnsolvableError(answer["unsolvable"])
        return tuple(_locked(facts) for facts in answer["records"])

    def versions(self, package: str, channels: Sequence[str], platform: str) -> dict[str, Any]:
        """List the versions of a conda package.

        Returns:
            A dict with `records`, one dict per build for `platform`, and `elsewhere`, the versions that exist
            for other platforms.

        Raises:
            PackageNotFoundError: No channel has the package.
            IndexUnavailableError: A channel cannot be used.
        """
        places = self.places(channels)
        message = {"op": "versions", **self.base(places, platform), "name": package}
        return self.ask(message, f"listing the versions of {package}", places)

    def places(self, channels: Sequence[str]) -> ChannelPlaces:
        """Return the URLs of the channels with the given names, using conda's configuration."""
        if self._config is None:
            self._config = read_conda_config()
        if not all("://" in name or name.startswith("/") for name in channels):
            self._config = with_usual_alias(self._config, self._pool)
        return channel_places(channels, self._config)

    def base(self, places: ChannelPlaces, platform: str) -> dict[str, Any]:
        """Return the fields that every request to a helper process needs, such as channels and platform."""
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
        """Send a request to a helper process and return the response.

        Some failures are part of the response, such as packages that conflict. All others raise an error.

        Args:
            message: The request.
            tried: Description of the task, for error messages.
            places: URLs of the channels, for error messages.

        Raises:
            PackageNotFoundError: No channel has the package.
            IndexUnavailableError: A channel cannot be used.
            InfrastructureError: Helper processes crashed repeatedly, or the cache cannot be written.
            UsageError: A match spec is invalid.
        """
        try:
            answer = self._pool.ask(message, self._timeout)
        except HelperDiedError as error:
            if error.timed_out:
                raise channel_failure(f"no answer in {self._timeout:.0f} s", places.urls, tried) from error
            error.tried = tried
            raise
        if "missing" in answer:
            name, near = answer["missing"], answer["near"]
            hint = f"did you mean {' or '.join(near)}?" if near else "nothing there has a similar name"
            raise PackageNotFoundError(
                f"no conda channel has a package {name!r}; {hint}",
                tried=", ".join(places.urls),
                remedy="correct the name, or add the channel that has it to `channels`",
            )
        if answer.get("failed") == "spec":
            raise UsageError(
                f"a conda spec cannot be read: {answer['text']}",
                tried=tried,
                remedy="write it like 'numpy 2.1.*' or 'pytorch 2.8.* cuda*'",
            )
        if "failed" in answer:
            text = str(answer["text"])
            if answer["failed"] == "install" or NO_ROOM.search(text):
                raise InfrastructureError(
                    f"repodata cannot be kept in the cache: {last_words(text)}",
                    tried=tried,
                    remedy="free some space, or name another cache with BISECT_ENV_CACHE",
                )
            raise channel_failure(text, places.urls, tried)
        return answer


def _locked(facts: Mapping[str, Any]) -> LockedPackage:
    if not facts["sha256"]:
        raise InfrastructureError(
            f"the channel states no sha256 for {facts['url']}",
            remedy="let the channel be indexed again by a current tool, or leave that version out",
        )
    plain = {name: facts[name] for name in ("name", "version", "url", "sha256", "build", "md5")}
    dependencies = tuple((name, spec) for name, spec in facts["dependencies"])
    return LockedPackage(manager="conda", dependencies=dependencies, **plain)
