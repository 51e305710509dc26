"""Provides environments to the search: it lists versions, solves locks and installs prefixes.

Packages come from package indexes and conda channels, or, without a network, from a directory that
`bisect-env env fetch` has filled. A *lock* lists the exact packages of an environment; a *prefix* is the
directory in which they are installed.
"""

from __future__ import annotations

import fnmatch
import importlib.metadata
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from bisect_env.environments.bundle import Bundle, NoLock, request_digest
from bisect_env.environments.conda_lock import CondaSolver, python_of
from bisect_env.environments.image_lock import ensure_environment, locked_image, without_image
from bisect_env.environments.index import PypiCatalogue
from bisect_env.environments.integrity import MARKER
from bisect_env.environments.lock import (
    Lock,
    LockedPackage,
    LockResult,
    UnsolvableError,
)
from bisect_env.environments.lockfiles import make_lock, note_solved
from bisect_env.environments.once import OncePerKey
from bisect_env.environments.prefix import Prefix
from bisect_env.environments.pypi_lock import PypiSolver
from bisect_env.environments.repository import Repository
from bisect_env.environments.request import EnvironmentRequest
from bisect_env.environments.settings import default_cache_dir
from bisect_env.errors import InfrastructureError, UsageError
from bisect_env.matrix.history import CommitDetails, History
from bisect_env.matrix.load import Matrix
from bisect_env.matrix.versions import PackageIndex, Release, VersionCatalogue, host_platform
from bisect_env.secrets import public_channel, without_credentials

# --------------------------------------------------------------------------------------------------
# Available versions: releases on a package index and in conda channels, and commits of a repository.


class Catalogue(PypiCatalogue):
    """A catalogue of the versions on a package index, in conda channels and in git repositories.

    Args:
        conda: Lists the versions in conda channels.
        cache_dir: The cache directory of bisect-env, which contains the mirrors of repositories.
        places: Keyword arguments for `PypiCatalogue`.
    """

    def __init__(self, conda: CondaSolver, cache_dir: Path, **places: Any) -> None:
        super().__init__(**places)
        self._conda = conda
        self._cache_dir = cache_dir

    def commits(self, repository: str, first: str, last: str, *, every: bool = False) -> History:
        """Return the commits after `first` up to `last`; see `VersionCatalogue.commits`."""
        return Repository(repository, self._cache_dir).history(first, last, every=every)

    def commit_details(self, repository: str, commits: Sequence[str]) -> tuple[list[CommitDetails], str]:
        """Return the details of commits, and the repository's web address.

        See `VersionCatalogue.commit_details`.
        """
        found = Repository(repository, self._cache_dir)
        # The mirror may have been removed from the cache since.
        found.resolve(*commits)
        return [found.details(commit) for commit in commits], found.forge()

    def conda_versions(
        self, package: str, *, channels: Sequence[str], platform: str, build: str | None = None
    ) -> list[Release]:
        """Return every version of a conda package in the first channel that has the package.

        `Release.uploaded` is the time of the version's first build, or None if the channel does not say.

        Args:
            package: Name of the package.
            channels: Names or addresses of channels, highest priority first.
            platform: conda's name of the platform, such as `linux-64`.
            build: Pattern that build strings must match (`cuda*`); None for any.

        Raises:
            PackageNotFoundError: No channel has the package; the message lists similar names.
            IndexUnavailableError: A channel does not respond or has no valid repodata.
        """
        answer = self._conda.versions(package, channels, platform)
        return conda_releases(answer["records"], answer["elsewhere"], platform, build)


def conda_releases(
    records: Sequence[Mapping[str, Any]], elsewhere: Sequence[str], platform: str, build: str | None
) -> list[Release]:
    """Group the builds of a conda package by version, and return one release per version.

    This function is pure.

    Args:
        records: One mapping per build, with its `version`, `build` string, `timestamp` (ms) and `pythons`
            (minor versions of Python).
        elsewhere: Versions that exist for other platforms.
        platform: conda's name of the requested platform.
        build: Pattern that build strings must match; None for any.

    Returns:
        The releases. Versions without a matching build are included, and `Release.lacks` says why they cannot
        be used.
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


# --------------------------------------------------------------------------------------------------
# The interface through which the search uses environments, and its implementation for a host with a network.


class EnvironmentProvider(ABC):
    """Base class of providers, which list versions, turn requests into locks, and turn locks into prefixes.

    Attributes:
        cache_dir: The cache directory of bisect-env.
        catalogue: The catalogue of available versions.
        as_of: The time that studies must use as "now"; None if they may use any time.
        offline: Directory of `bisect-env env fetch` from which prefixes are installed; None to download.
        indexes: Further indexes of the matrix, whose logins are used.
    """

    cache_dir: Path
    catalogue: VersionCatalogue
    as_of: datetime | None = None
    offline: Path | None = None
    indexes: Sequence[PackageIndex] = ()

    def lock(self, request: EnvironmentRequest, prefer: Lock | None = None) -> LockResult:
        """Return the lock of a request, or the error that there is no solution; see `solve`. Thread-safe."""
        try:
            lock = self.solve(request, prefer)
        except UnsolvableError as error:
            return error
        note_solved(lock)
        return lock

    @abstractmethod
    def solve(self, request: EnvironmentRequest, prefer: Lock | None = None) -> Lock:
        """Choose the exact packages of an environment, and return them as a lock.

        Args:
            request: The environment to solve.
            prefer: Lock of a neighbouring combination. Its package versions are reused where possible.

        Raises:
            UnsolvableError: No environment satisfies the request.
            InterpreterNotFoundError: The requested Python is neither installed nor downloadable.
            PackageNotFoundError: No conda channel has a requested package.
            IndexUnavailableError: The package index or a channel fails.
            InfrastructureError: The solver does not work here, or the platform is not this machine's.
        """

    def ensure_prefix(self, lock: Lock, *, allow_source: bool | frozenset[str] = False) -> Prefix:
        """Return the installed environment of a lock; see `image_lock.ensure_environment`.

        The environment is installed if it does not exist yet.
        """
        return ensure_environment(
            lock,
            cache_dir=self.cache_dir,
            allow_source=allow_source,
            offline=self.offline,
            indexes=self.indexes,
        )

    def requirements(self, lock: Lock) -> Mapping[str, tuple[str, ...]] | None:
        """Return a map from each package of a lock to its requirements (PEP 508 texts).

        They are read from the metadata in the prefix of the lock. Return None if the lock is not installed on
        this host.
        """
        prefix = self.cache_dir / "prefixes" / lock.content_hash
        if not (prefix / MARKER).exists():
            return None
        sites = [str(site) for site in prefix.glob("lib/python*/site-packages")]
        return {
            str(canonicalize_name(name)): tuple(distribution.requires or ())
            for distribution in importlib.metadata.distributions(path=sites)
            if (name := distribution.metadata["Name"])
        }


class Environments(EnvironmentProvider):
    """A provider of environments that gets packages from package indexes and conda channels.

    Args:
        cache_dir: The cache directory; `BISECT_ENV_CACHE` or the user's cache directory if None.
        index: URL of the package index; None for the one that uv and pip are configured with.
        indexes: Additional indexes with higher priority than `index`.
        find_links: Directories and web pages with additional archives.
        timeout: Time limit in seconds for solving one request, including builds that are needed for metadata.
        conda: Solves the conda part of requests, and lists conda packages.
    """

    def __init__(
        self,
        cache_dir: Path | None = None,
        *,
        index: str | None = None,
        indexes: Sequence[PackageIndex] = (),
        find_links: Sequence[str] = (),
        timeout: float = 900.0,
        conda: CondaSolver | None = None,
    ) -> None:
        self.cache_dir = (cache_dir or default_cache_dir()).absolute()
        self.indexes = indexes
        self._timeout = timeout
        self._conda = conda or CondaSolver(self.cache_dir, timeout=timeout)
        # Each image name is looked up only once in the lifetime of this object.
        self._images: OncePerKey[str, LockedPackage] = OncePerKey()
        places = {"index": index, "indexes": indexes, "find_links": find_links}
        self.catalogue = Catalogue(self._conda, self.cache_dir, **places)

    @classmethod
    def of(cls, matrix: Matrix, cache_dir: Path | None = None) -> Environments:
        """Create a provider that uses the package index and other package sources named in a matrix."""
        file = matrix.file
        return cls(cache_dir, index=file.index, indexes=file.package_indexes, find_links=matrix.find_links)

    def solve(self, request: EnvironmentRequest, prefer: Lock | None = None) -> Lock:
        """Solve a request and return its lock; see `EnvironmentProvider.solve`.

        The same request on the same index gives the same lock text, byte for byte.
        """
        if request.platform != host_platform():
            raise InfrastructureError(
                f"an environment for {request.platform} cannot be locked on {host_platform()}",
                remedy="leave `platform` out, or lock on a machine of that platform",
            )
        known = without_image(prefer).packages if prefer else ()
        packages: list[LockedPackage] = []
        python = request.python
        if request.image:
            packages.append(self._images.get(request.image, lambda: locked_image(request.image)))
        if request.conda is not None:
            conda = self._conda.solve(request, known)
            packages += conda
            python = python_of(conda)
            if request.requirements:
                packages += PypiSolver(request, self.cache_dir, self._timeout, conda).solve(known)
        elif python or not packages:
            packages += PypiSolver(request, self.cache_dir, self._timeout).solve(known)
        return make_lock(python, request.platform, packages, request.exclude_newer_text)


# --------------------------------------------------------------------------------------------------
# Provides environments from a fetched directory, without any network.

_PYTHONS = "pythons"


class RememberedCatalogue:
    """A catalogue that records the responses of another catalogue, or replays recorded responses.

    It does not support commits, because their build requirements are not known in advance.

    Args:
        answers: The recorded responses; new ones are added to this dict.
        place: Directory of the recording, for messages.
        inner: The catalogue to record; None to replay.
    """

    def __init__(
        self,
        answers: dict[str, list[Release] | list[str]],
        place: Path,
        inner: VersionCatalogue | None = None,
    ) -> None:
        self._answers = answers
        self._place = place
        self._inner = inner

    def versions(self, package: str, *, index: str | None) -> list[Release]:
        """Return the releases of a package; see `VersionCatalogue.versions`."""
        return self._answer(
            json.dumps([package, index and without_credentials(index)]),
            f"the versions of {package}",
            lambda one: one.versions(package, index=index),
        )

    def indexes_without_pages(self) -> list[str]:
        """Return the further indexes that had no package; none is known without a network."""
        return self._inner.indexes_without_pages() if self._inner is not None else []

    def conda_versions(
        self, package: str, *, channels: Sequence[str], platform: str, build: str | None
    ) -> list[Release]:
        """Return the releases of a conda package; see `VersionCatalogue.conda_versions`."""
        places = [public_channel(channel) for channel in channels]
        return self._answer(
            json.dumps([package, places, platform, build]),
            f"the versions of {package}",
            lambda one: one.conda_versions(package, channels=channels, platform=platform, build=build),
        )

    def python_versions(self) -> list[str]:
        """Return the available Python versions; see `VersionCatalogue.python_versions`."""
        return self._answer(_PYTHONS, "the versions of Python", lambda one: one.python_versions())

    def commits(self, repository: str, first: str, last: str, *, every: bool) -> History:
        """Raise an error, because commits are not supported without a network.

        Args:
            repository: See `VersionCatalogue.commits`.
            first: See `VersionCatalogue.commits`.
            last: See `VersionCatalogue.commits`.
            every: See `VersionCatalogue.commits`.

        Raises:
            UsageError: Always.
        """
        raise _no_commits(repository)

    def commit_details(self, repository: str, commits: Sequence[str]) -> tuple[list[CommitDetails], str]:
        """Raise an error, because commits are not supported without a network.

        Raises:
            UsageError: Always.
        """
        raise _no_commits(repository)

    def _answer(self, key: str, what: str, ask: Callable[[VersionCatalogue], list[Any]]) -> list[Any]:
        if self._inner is not None:
            self._answers[key] = ask(self._inner)
        if key not in self._answers:
            raise _changed(self._place, what)
        return list(self._answers[key])


def _no_commits(repository: str) -> UsageError:
    return UsageError(
        f"commits of {without_credentials(repository)} cannot be taken along to a host without a network: "
        "each is built with what it asks for",
        remedy="run the study where the package index can be reached; the repository may be a local clone",
    )


class OfflineEnvironments(EnvironmentProvider):
    """A provider of environments that uses a fetched directory instead of the network.

    The directory was written by `bisect-env env fetch`.

    Args:
        root: The directory.
        matrix: Name of the matrix whose study is run.
        cache_dir: The cache directory; `default_cache_dir()` if None.

    Raises:
        UsageError: The directory contains nothing for that matrix.
        InfrastructureError: The directory is incomplete or cannot be read.
    """

    def __init__(self, root: Path, matrix: str, cache_dir: Path | None = None) -> None:
        self._bundle = Bundle(root)
        self._answers = self._bundle.read(matrix)
        self.cache_dir = (cache_dir or default_cache_dir()).absolute()
        self.catalogue = RememberedCatalogue(self._answers.catalogue, root)
        self.as_of = self._answers.as_of
        self.offline = root
        if missing := self._bundle.missing(self._answers, pythons=False):
            count = len(self._answers.files)
            raise InfrastructureError(
                f"{root} is not complete: {len(missing)} files are missing or cut short, of {count} "
                "and their locks",
                tried=f"looking for {', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''}",
                remedy="copy the rest; `bisect-env env fetch MATRIX -o DIR --check` compares everything",
            )

    def solve(self, request: EnvironmentRequest, prefer: Lock | None = None) -> Lock:
        """Return the lock that `bisect-env env fetch` recorded for a request.

        `prefer` is ignored, because a preferred lock was taken into account then.

        Raises:
            UnsolvableError: The solver found no solution then.
            InfrastructureError: The directory has no lock for the request: the matrix has changed since.
        """
        answer = self._answers.locks.get(request_digest(request))
        if answer is None:
            wanted = ", ".join(request.requirements) or "no packages"
            raise _changed(self._bundle.root, f"Python {request.python} with {wanted}")
        if isinstance(answer, NoLock):
            raise UnsolvableError(answer.message, building=answer.building)
        return self._bundle.lock(answer)


def _changed(place: Path, what: str) -> InfrastructureError:
    return InfrastructureError(
        f"{place} has no answer for {what}: it was fetched for another state of the matrix",
        remedy="`bisect-env env fetch MATRIX -o DIR` again, on a machine with a network",
    )
