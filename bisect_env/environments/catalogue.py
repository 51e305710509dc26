"""What there is to choose from: releases on a PyPI-like index and in conda channels."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from bisect_env.environments.conda_lock import CondaSolver
from bisect_env.environments.failures import PackageNotFoundError
from bisect_env.environments.index import PypiCatalogue
from bisect_env.environments.near_names import advice
from bisect_env.matrix.catalogue import Release
from bisect_env.matrix.versions import Manager


class Catalogue:
    """Lists releases of both managers; each is looked up when it is asked for.

    Args:
        pypi: The index.
        conda: Knows where channels are.
    """

    def __init__(self, pypi: PypiCatalogue, conda: CondaSolver) -> None:
        self.pypi = pypi
        self._conda = conda

    def versions(
        self, package: str, *, manager: Manager = Manager.PYPI, index: str | None = None
    ) -> list[Release]:
        """See `PypiCatalogue.versions`.

        Raises:
            PackageNotFoundError: The index does not know the package, and has some with near names.
        """
        found = self.pypi.versions(package, manager=manager, index=index)
        if not found and (meant := advice(package, index)):
            raise PackageNotFoundError(
                f"the index has no package {package!r}{meant}", remedy="correct the name in the matrix"
            )
        return found

    def python_versions(self) -> list[str]:
        """See `PypiCatalogue.python_versions`."""
        return self.pypi.python_versions()

    def conda_versions(
        self, package: str, *, channels: Sequence[str], platform: str, build: str | None = None
    ) -> list[Release]:
        """Every version of a conda package in the first channel that has it, oldest build first.

        `uploaded` is the time of a version's first build, where one is stated.

        Raises:
            PackageNotFoundError: No channel has it; the message has near names.
            IndexUnavailableError: A channel does not answer, or not with repodata.
        """
        answer = self._conda.versions(package, channels, platform)
        return conda_releases(answer["records"], answer["elsewhere"], platform, build)


def conda_releases(
    records: Sequence[Mapping[str, Any]], elsewhere: Sequence[str], platform: str, build: str | None
) -> list[Release]:
    """Group builds into releases. Pure.

    Args:
        records: Version, build string, timestamp (ms) and minor versions of Python of each build.
        elsewhere: Versions that other platforms have.
        platform: The one that is asked about.
        build: Pattern that build strings have to match, or None.
    """
    versions: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        versions.setdefault(record["version"], []).append(record)
    releases = []
    for version, builds in versions.items():
        fitting = [r for r in builds if build is None or fnmatch.fnmatchcase(r["build"], build)]
        stamps = [r["timestamp"] for r in fitting or builds if r["timestamp"]]
        bound = all(r["pythons"] is not None for r in fitting)
        releases.append(
            Release(
                version,
                uploaded=datetime.fromtimestamp(min(stamps) / 1000, UTC) if stamps else None,
                pythons=frozenset(p for r in fitting for p in r["pythons"]) if bound else None,
                lacks="" if fitting else f"no build matches {build}",
            )
        )
    missing = [version for version in elsewhere if version not in versions]
    return [*releases, *(Release(v, has_wheel=False, lacks=f"no build for {platform}") for v in missing)]
