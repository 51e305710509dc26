"""Provides environments from a fetched directory, without any network."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from bisect_env.environments.bundle import Bundle, BundledAnswers, request_digest
from bisect_env.environments.cache import requirements_here
from bisect_env.environments.lock import Lock, LockResult
from bisect_env.environments.prefix import Prefix, ensure_prefix
from bisect_env.environments.request import EnvironmentRequest
from bisect_env.environments.settings import default_cache_dir
from bisect_env.errors import InfrastructureError, UsageError
from bisect_env.matrix.catalogue import Release, VersionCatalogue
from bisect_env.matrix.history import CommitDetails, History
from bisect_env.matrix.secrets import public_channel, without_credentials
from bisect_env.matrix.versions import Manager

_PYTHONS = "pythons"


def _no_commits(repository: str) -> UsageError:
    return UsageError(
        f"commits of {without_credentials(repository)} cannot be taken along to a host without a network: "
        "each is built with what it asks for",
        remedy="run the study where the package index can be reached; the repository may be a local clone",
    )


class _WithoutCommits:
    """A catalogue that has no commits: they are built, with what is not known beforehand."""

    def commits(self, repository: str, first: str, last: str, *, every: bool) -> History:
        """None; arguments as for `VersionCatalogue`.

        Raises:
            UsageError: Always.
        """
        raise _no_commits(repository)

    def commit_details(self, repository: str, commits: Sequence[str]) -> tuple[list[CommitDetails], str]:
        """As for `commits`.

        Raises:
            UsageError: Always.
        """
        raise _no_commits(repository)


class RecordingCatalogue(_WithoutCommits):
    """Asks another catalogue, and keeps what it answers.

    Args:
        inner: The one that is asked.
        answers: Where answers are kept.
    """

    def __init__(self, inner: VersionCatalogue, answers: dict[str, Any]) -> None:
        self._inner = inner
        self._answers = answers

    def versions(self, package: str, *, manager: Manager, index: str | None) -> list[Release]:
        """See `VersionCatalogue.versions`."""
        found = self._inner.versions(package, manager=manager, index=index)
        self._answers[_question(package, manager, index)] = [_as_data(release) for release in found]
        return found

    def conda_versions(
        self, package: str, *, channels: Sequence[str], platform: str, build: str | None
    ) -> list[Release]:
        """See `VersionCatalogue.conda_versions`."""
        found = self._inner.conda_versions(package, channels=channels, platform=platform, build=build)
        self._answers[_conda_question(package, channels, platform, build)] = [_as_data(r) for r in found]
        return found

    def python_versions(self) -> list[str]:
        """See `VersionCatalogue.python_versions`."""
        found = self._inner.python_versions()
        self._answers[_PYTHONS] = found
        return found


class OfflineCatalogue(_WithoutCommits):
    """Answers what a `RecordingCatalogue` kept.

    Args:
        answers: What was kept.
        place: What to call it in messages.
    """

    def __init__(self, answers: dict[str, Any], place: Path) -> None:
        self._answers = answers
        self._place = place

    def versions(self, package: str, *, manager: Manager, index: str | None) -> list[Release]:
        """See `VersionCatalogue.versions`."""
        return self._releases(_question(package, manager, index), package)

    def conda_versions(
        self, package: str, *, channels: Sequence[str], platform: str, build: str | None
    ) -> list[Release]:
        """See `VersionCatalogue.conda_versions`."""
        return self._releases(_conda_question(package, channels, platform, build), package)

    def python_versions(self) -> list[str]:
        """See `VersionCatalogue.python_versions`."""
        return list(self._answer(_PYTHONS, "the versions of Python"))

    def _releases(self, key: str, package: str) -> list[Release]:
        return [_from_data(entry) for entry in self._answer(key, f"the versions of {package}")]

    def _answer(self, key: str, what: str) -> Any:
        if key not in self._answers:
            raise _changed(self._place, what)
        return self._answers[key]


class OfflineEnvironments:
    """An `EnvironmentProvider` that uses nothing but a directory that `bisect-env fetch` wrote.

    Args:
        root: The directory.
        matrix: Name of the study.
        cache_dir: Our cache directory, `default_cache_dir()` if None.

    Raises:
        UsageError: The directory holds nothing for that study.
        InfrastructureError: Not everything has been copied yet, or it cannot be read.
    """

    def __init__(self, root: Path, matrix: str, cache_dir: Path | None = None) -> None:
        self._bundle = Bundle(root)
        self._cache_dir = (cache_dir or default_cache_dir()).absolute()
        self._answers: BundledAnswers = self._bundle.read(matrix)
        if missing := self._bundle.missing(self._answers, pythons=False):
            count = len(self._answers.archives)
            raise InfrastructureError(
                f"{root} is not complete: {len(missing)} files are missing or cut short, of {count} archives "
                "and their locks",
                tried=f"looking for {', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''}",
                remedy="copy the rest; `bisect-env fetch MATRIX --to DIR --check` compares everything",
            )

    @property
    def as_of(self) -> datetime:
        """The moment when the directory was fetched, which is "now" for studies."""
        return self._answers.as_of

    @property
    def catalogue(self) -> OfflineCatalogue:
        """Answers what the indexes answered."""
        return OfflineCatalogue(self._answers.catalogue, self._bundle.root)

    def lock_many(
        self,
        requests: Sequence[EnvironmentRequest],
        workers: int = 2,
        on_done: Callable[[int, LockResult], None] | None = None,
        *,
        prefer: Sequence[Sequence[int]] | None = None,
    ) -> list[LockResult]:
        """See `Locker.lock_many`; what was locked with the network took `prefer` into account.

        Raises:
            InfrastructureError: The directory was fetched for another matrix.
        """
        results: list[LockResult] = []
        for position, request in enumerate(requests):
            results.append(self.lock(request))
            if on_done is not None:
                on_done(position, results[-1])
        return results

    def lock(self, request: EnvironmentRequest, prefer: Lock | None = None) -> LockResult:
        """The lock that was made with the network, which took `prefer` into account.

        Raises:
            InfrastructureError: The directory was fetched for another matrix.
        """
        answer = self._answers.locks.get(request_digest(request))
        if answer is None:
            wanted = ", ".join(request.requirements) or "no packages"
            raise _changed(self._bundle.root, f"Python {request.python} with {wanted}")
        return self._bundle.result(answer)

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


def _conda_question(package: str, channels: Sequence[str], platform: str, build: str | None) -> str:
    places = [public_channel(channel) for channel in channels]
    return json.dumps([package, str(Manager.CONDA), places, platform, build])


def _question(package: str, manager: Manager, index: str | None) -> str:
    return json.dumps([package, str(manager), index and without_credentials(index)])


def _changed(place: Path, what: str) -> InfrastructureError:
    return InfrastructureError(
        f"{place} has no answer for {what}: it was fetched for another state of the matrix",
        remedy=f"`bisect-env fetch MATRIX --to {place}` again, on a machine with a network",
    )
