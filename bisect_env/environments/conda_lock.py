"""Locking conda environments: py-rattler solves in a helper process, we write what it chose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from bisect_env.environments import conda_lock_engine
from bisect_env.environments.conda_config import (
    ChannelPlaces,
    CondaConfig,
    channel_places,
    read_conda_config,
)
from bisect_env.environments.conda_failures import answered, channel_failure, unknown_package
from bisect_env.environments.conda_process import HelperDiedError, HelperPool, shared_pool, with_usual_alias
from bisect_env.environments.failures import UnsolvableError
from bisect_env.environments.lock import LockedPackage
from bisect_env.environments.request import EnvironmentRequest
from bisect_env.errors import InfrastructureError, UsageError

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
        """Version of its interpreter."""
        return next(package.version for package in self.packages if package.name == "python")


class CondaSolver:
    """Solves conda requests.

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
            return SolvedConda(conda_lock_engine.solve(request, places, self._timeout), {})
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
        """Builds of a package (`records`), and versions for other platforms (`elsewhere`).

        Raises:
            PackageNotFoundError: No channel has it.
            IndexUnavailableError: A channel cannot be used.
        """
        places = self.places(channels)
        message = {"op": "versions", **self.base(places, platform), "name": package}
        return self.ask(message, f"listing the versions of {package}", places)

    def places(self, channels: Sequence[str]) -> ChannelPlaces:
        """Where channels are, by their names in a matrix."""
        if self._config is None:
            self._config = read_conda_config()
        if not all("://" in name or name.startswith("/") for name in channels):
            self._config = with_usual_alias(self._config, self._pool)
        return channel_places(channels, self._config)

    def base(self, places: ChannelPlaces, platform: str) -> dict[str, Any]:
        """What every request about channels says."""
        return {
            "channels": list(places.urls),
            "mirrors": {url: list(addresses) for url, addresses in places.mirrors.items()},
            "platform": platform,
            "cache": str(self._cache_dir / "conda" / "repodata"),
        }

    def ask(self, message: dict[str, Any], tried: str, places: ChannelPlaces) -> dict[str, Any]:
        """Ask a helper; whatever is no property of the request is raised.

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
    """Name, version and build of each virtual package.

    The name of a microarchitecture is the build string of `__archspec`, whose version is always 1.
    """
    facts = []
    for name, value in sorted(packages.items()):
        facts.append((name, "1", value) if name == "__archspec" else (name, value, "0"))
    return facts


def milliseconds(moment: datetime | None) -> int | None:
    """A moment as repodata counts them."""
    return None if moment is None else round(moment.timestamp() * 1000)


def _locked(facts: Mapping[str, Any]) -> LockedPackage:
    if not facts["sha256"]:
        raise InfrastructureError(
            f"the channel states no sha256 for {facts['url']}",
            remedy="let the channel be indexed again by a current tool, or leave that version out",
        )
    return LockedPackage(
        name=facts["name"],
        version=facts["version"],
        manager="conda",
        url=facts["url"],
        sha256=facts["sha256"],
        build=facts["build"],
        md5=facts["md5"],
        dependencies=tuple((name, spec) for name, spec in facts["dependencies"]),
    )
