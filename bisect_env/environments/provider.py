"""Provides environments to the engine: versions, locks and prefixes, from indexes or a fetched directory."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bisect_env.environments.cache import requirements_here
from bisect_env.environments.conda_lock import CondaSolver
from bisect_env.environments.image_lock import ensure_environment, locked_image, without_image
from bisect_env.environments.index import PypiCatalogue, advice
from bisect_env.environments.interpreters import Interpreters, machine_interpreters
from bisect_env.environments.lock import (
    Lock,
    LockedPackage,
    LockResult,
    PackageNotFoundError,
    UnsolvableError,
)
from bisect_env.environments.lockfiles import make_lock, note_solved
from bisect_env.environments.once import OncePerKey
from bisect_env.environments.prefix import Prefix, ensure_prefix
from bisect_env.environments.pypi_lock import PypiSolver
from bisect_env.environments.repository import Repository
from bisect_env.environments.request import EnvironmentRequest
from bisect_env.environments.settings import default_cache_dir
from bisect_env.environments.validation import provided_to_pypi
from bisect_env.errors import InfrastructureError, UsageError
from bisect_env.matrix.history import CommitDetails, History
from bisect_env.matrix.versions import Manager, PackageIndex, Release, VersionCatalogue, host_platform
from bisect_env.secrets import public_channel, without_credentials

if TYPE_CHECKING:
    from bisect_env.environments.bundle import BundledAnswers
    from bisect_env.matrix.load import Matrix

# --------------------------------------------------------------------------------------------------
# What there is to choose from: releases on a PyPI-like index and in conda channels, commits of a repository.


class Catalogue(PypiCatalogue):
    """A catalogue of a package index, conda channels and repositories.

    Args:
        conda: Knows where channels are.
        cache_dir: Our cache directory, which mirrors of repositories are in.
        places: Of `PypiCatalogue`.
    """

    def __init__(self, conda: CondaSolver, cache_dir: Path, **places: Any) -> None:
        super().__init__(**places)
        self._conda = conda
        self._cache_dir = cache_dir

    def versions(
        self, package: str, *, manager: Manager = Manager.PYPI, index: str | None = None
    ) -> list[Release]:
        """See `PypiCatalogue.versions`.

        Raises:
            PackageNotFoundError: The index does not know the package, and has some with near names.
        """
        found = super().versions(package, manager=manager, index=index)
        if not found and (meant := advice(package, index or self.index)):
            raise PackageNotFoundError(
                f"the index has no package {package!r}{meant}", remedy="correct the name in the matrix"
            )
        return found

    def commits(self, repository: str, first: str, last: str, *, every: bool = False) -> History:
        """See `VersionCatalogue.commits`."""
        return Repository(repository, self._cache_dir).history(first, last, every=every)

    def commit_details(self, repository: str, commits: Sequence[str]) -> tuple[list[CommitDetails], str]:
        """See `VersionCatalogue.commit_details`."""
        found = Repository(repository, self._cache_dir)
        # The mirror may have been taken away meanwhile.
        found.require(*commits)
        return [found.details(commit) for commit in commits], found.forge()

    def conda_versions(
        self, package: str, *, channels: Sequence[str], platform: str, build: str | None = None
    ) -> list[Release]:
        """Return every version of a conda package in the first channel that has it, oldest build first.

        `uploaded` is the time of a version's first build, where one is stated.

        Args:
            package: Its name.
            channels: Names or addresses, most important first.
            platform: conda's name of the platform.
            build: Pattern of build strings; None for any.

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


# --------------------------------------------------------------------------------------------------
# From requests to locks: several at once, each like its neighbour.


class Locker:
    """A locker that turns requests into locks.

    Args:
        cache_dir: Our cache directory.
        interpreters: Where Pythons are looked for.
        timeout: Seconds for one solution, builds for metadata included.
        conda: Solves what comes from conda channels.
    """

    def __init__(
        self,
        cache_dir: Path,
        *,
        interpreters: Interpreters | None = None,
        timeout: float = 900.0,
        conda: CondaSolver | None = None,
    ) -> None:
        self._pypi = PypiSolver(cache_dir, interpreters=interpreters, timeout=timeout)
        self._conda = conda or CondaSolver(cache_dir, timeout=timeout)
        self._images: OncePerKey[str, LockedPackage] = OncePerKey()

    def lock(self, request: EnvironmentRequest, prefer: Lock | None = None) -> Lock:
        """Lock one environment; the same request on the same index gives the same text, byte for byte.

        Args:
            request: What is asked for.
            prefer: A neighbour's lock, whose packages are taken again where nothing speaks against it.

        Raises:
            UnsolvableError: Nothing satisfies the request.
            InterpreterNotFoundError: Its Python is not to be had.
            PackageNotFoundError: No conda channel has a package of that name.
            IndexUnavailableError: The index, or a channel, fails.
            InfrastructureError: The solver cannot work here, or the platform is not this machine's.
        """
        lock = self._solve(request, prefer)
        note_solved(lock)
        return lock

    def _solve(self, request: EnvironmentRequest, prefer: Lock | None) -> Lock:
        if request.platform != host_platform():
            raise InfrastructureError(
                f"an environment for {request.platform} cannot be locked on {host_platform()}",
                remedy="leave `platform` out, or lock on a machine of that platform",
            )
        known = without_image(prefer).packages if prefer else ()
        image = self._image(request)
        if image and not request.python and request.conda is None:
            return make_lock("", request.platform, image)
        if request.conda is None:
            packages = self._pypi.solve(request, known)
            return make_lock(
                request.python, request.platform, [*packages, *image], request.exclude_newer_text
            )
        solved = self._conda.solve(request, known)
        packages = list(solved.packages)
        if request.requirements:
            provided = provided_to_pypi(solved.packages)
            packages += self._pypi.solve_upon(request, solved.packages, provided, known)
        return make_lock(
            solved.python,
            request.platform,
            [*packages, *image],
            request.exclude_newer_text,
            records=solved.records,
        )

    def _image(self, request: EnvironmentRequest) -> list[LockedPackage]:
        """Return the image of a request; a name refers to one image for the lifetime of this object."""
        if not request.image:
            return []
        return [self._images.get(request.image, lambda: locked_image(request.image))]


# --------------------------------------------------------------------------------------------------
# Environments as the engine sees them; another package manager stands behind the same four methods.


class EnvironmentProvider(Protocol):
    """An interface that turns requests into locks and locks into prefixes."""

    @property
    def catalogue(self) -> VersionCatalogue:
        """Return the catalogue of available versions."""
        ...

    @property
    def as_of(self) -> datetime | None:
        """Return the only moment that it supports as "now"; None if it supports any."""
        ...

    def lock(self, request: EnvironmentRequest, prefer: Lock | None = None) -> LockResult:
        """Lock one environment, in any thread; see `Locker.lock`."""
        ...

    def ensure_prefix(self, lock: Lock, *, allow_source: bool | frozenset[str] = False) -> Prefix:
        """See `bisect_env.environments.image_lock.ensure_environment`."""
        ...

    def requirements(self, lock: Lock) -> Mapping[str, tuple[str, ...]] | None:
        """Return the requirements of each wheel of a lock, by name.

        None if its prefix is not on this host.
        """
        ...


class Environments:
    """Environments of conda and PyPI packages on this host.

    Args:
        cache_dir: Our cache directory; `BISECT_ENV_CACHE` or the user's cache directory if None.
        index: URL of the package index, None for the one uv and pip are configured with.
        indexes: Further indexes, which are asked before it.
        find_links: Folders and pages with further archives.
    """

    def __init__(
        self,
        cache_dir: Path | None = None,
        *,
        index: str | None = None,
        indexes: Sequence[PackageIndex] = (),
        find_links: Sequence[str] = (),
    ) -> None:
        self.cache_dir = (cache_dir or default_cache_dir()).absolute()
        interpreters, conda = machine_interpreters(), CondaSolver(self.cache_dir)
        places = {"index": index, "indexes": indexes, "find_links": find_links, "interpreters": interpreters}
        self._catalogue = Catalogue(conda, self.cache_dir, **places)
        self._locker = Locker(self.cache_dir, interpreters=interpreters, conda=conda)

    @classmethod
    def of(cls, matrix: Matrix, cache_dir: Path | None = None) -> Environments:
        """Return environments that take packages from the places that a matrix names."""
        file = matrix.file
        return cls(cache_dir, index=file.index, indexes=file.package_indexes, find_links=matrix.find_links)

    @property
    def as_of(self) -> datetime | None:
        """Return None, since indexes support any day."""
        return None

    @property
    def catalogue(self) -> Catalogue:
        """Return the catalogue of releases and Pythons."""
        return self._catalogue

    def lock(self, request: EnvironmentRequest, prefer: Lock | None = None) -> LockResult:
        """Lock one environment; see `Locker.lock`."""
        try:
            return self._locker.lock(request, prefer)
        except UnsolvableError as error:
            return error

    def ensure_prefix(self, lock: Lock, *, allow_source: bool | frozenset[str] = False) -> Prefix:
        """See `bisect_env.environments.image_lock.ensure_environment`."""
        return ensure_environment(lock, cache_dir=self.cache_dir, allow_source=allow_source)

    def requirements(self, lock: Lock) -> Mapping[str, tuple[str, ...]] | None:
        """See `EnvironmentProvider.requirements`."""
        return requirements_here(lock, self.cache_dir)


# --------------------------------------------------------------------------------------------------
# Provides environments from a fetched directory, without any network.

_PYTHONS = "pythons"


class RememberedCatalogue:
    """A catalogue that keeps the answers of another one, or returns kept answers where there is no other.

    It has no commits, whose build requirements cannot be known beforehand.

    Args:
        answers: Where answers are kept.
        place: What to call it in messages.
        inner: The one that is asked; None to return what was kept.
    """

    def __init__(self, answers: dict[str, Any], place: Path, inner: VersionCatalogue | None = None) -> None:
        self._answers = answers
        self._place = place
        self._inner = inner

    def versions(self, package: str, *, manager: Manager, index: str | None) -> list[Release]:
        """See `VersionCatalogue.versions`."""
        question = [package, str(manager), index and without_credentials(index)]

        def ask(inner: VersionCatalogue) -> list[Release]:
            return inner.versions(package, manager=manager, index=index)

        return self._releases(question, package, ask)

    def conda_versions(
        self, package: str, *, channels: Sequence[str], platform: str, build: str | None
    ) -> list[Release]:
        """See `VersionCatalogue.conda_versions`."""
        places = [public_channel(channel) for channel in channels]
        return self._releases(
            [package, str(Manager.CONDA), places, platform, build],
            package,
            lambda one: one.conda_versions(package, channels=channels, platform=platform, build=build),
        )

    def python_versions(self) -> list[str]:
        """See `VersionCatalogue.python_versions`."""
        return list(self._answer(_PYTHONS, "the versions of Python", lambda one: one.python_versions()))

    def commits(self, repository: str, first: str, last: str, *, every: bool) -> History:
        """Raise an error; arguments as for `VersionCatalogue.commits`.

        Raises:
            UsageError: Always.
        """
        raise _no_commits(repository)

    def commit_details(self, repository: str, commits: Sequence[str]) -> tuple[list[CommitDetails], str]:
        """Raise an error, as `commits` does.

        Raises:
            UsageError: Always.
        """
        raise _no_commits(repository)

    def _releases(
        self, question: list[Any], package: str, ask: Callable[[VersionCatalogue], list[Release]]
    ) -> list[Release]:
        what = f"the versions of {package}"
        found = self._answer(json.dumps(question), what, lambda one: [_as_data(r) for r in ask(one)])
        return [_from_data(entry) for entry in found]

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


class OfflineEnvironments:
    """An `EnvironmentProvider` that uses nothing but a directory that `bisect-env env fetch` wrote.

    Args:
        root: The directory.
        matrix: Name of the study.
        cache_dir: Our cache directory, `default_cache_dir()` if None.

    Raises:
        UsageError: The directory holds nothing for that study.
        InfrastructureError: Not everything has been copied yet, or it cannot be read.
    """

    def __init__(self, root: Path, matrix: str, cache_dir: Path | None = None) -> None:
        # Imported here, and below: a study with a network has nothing to do with what was fetched.
        from bisect_env.environments.bundle import Bundle

        self._bundle = Bundle(root)
        self._cache_dir = (cache_dir or default_cache_dir()).absolute()
        self._answers: BundledAnswers = self._bundle.read(matrix)
        if missing := self._bundle.missing(self._answers, pythons=False):
            count = len(self._answers.archives)
            raise InfrastructureError(
                f"{root} is not complete: {len(missing)} files are missing or cut short, of {count} archives "
                "and their locks",
                tried=f"looking for {', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''}",
                remedy="copy the rest; `bisect-env env fetch MATRIX -o DIR --check` compares everything",
            )

    @property
    def as_of(self) -> datetime:
        """Return the moment when the directory was fetched, which is "now" for studies."""
        return self._answers.as_of

    @property
    def catalogue(self) -> RememberedCatalogue:
        """Return a catalogue of the kept answers."""
        return RememberedCatalogue(self._answers.catalogue, self._bundle.root)

    def lock(self, request: EnvironmentRequest, prefer: Lock | None = None) -> LockResult:
        """Return the lock that was made with the network, which took `prefer` into account.

        Raises:
            InfrastructureError: The directory was fetched for another matrix.
        """
        from bisect_env.environments.bundle import request_digest

        answer = self._answers.locks.get(request_digest(request))
        if answer is None:
            wanted = ", ".join(request.requirements) or "no packages"
            raise _changed(self._bundle.root, f"Python {request.python} with {wanted}")
        result = self._bundle.result(answer)
        if isinstance(result, Lock):
            note_solved(result)
        return result

    def ensure_prefix(self, lock: Lock, *, allow_source: bool | frozenset[str] = False) -> Prefix:
        """See `bisect_env.environments.prefix.ensure_prefix`."""
        return ensure_prefix(
            lock, cache_dir=self._cache_dir, allow_source=allow_source, offline=self._bundle.root
        )

    def requirements(self, lock: Lock) -> Mapping[str, tuple[str, ...]] | None:
        """See `EnvironmentProvider.requirements`."""
        return requirements_here(lock, self._cache_dir)


def _as_data(release: Release) -> dict[str, Any]:
    data = asdict(release)
    data["uploaded"] = release.uploaded and release.uploaded.isoformat()
    data["pythons"] = None if release.pythons is None else sorted(release.pythons)
    return data


def _from_data(data: dict[str, Any]) -> Release:
    pythons = data.get("pythons")
    return Release(
        **{
            **data,
            "uploaded": data["uploaded"] and datetime.fromisoformat(data["uploaded"]),
            "pythons": None if pythons is None else frozenset(pythons),
        }
    )


def _changed(place: Path, what: str) -> InfrastructureError:
    return InfrastructureError(
        f"{place} has no answer for {what}: it was fetched for another state of the matrix",
        remedy="`bisect-env env fetch MATRIX -o DIR` again, on a machine with a network",
    )
