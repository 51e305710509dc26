"""Environments as the engine sees them; another package manager stands behind the same four methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol

from bisect_env.environments.catalogue import Catalogue
from bisect_env.environments.conda_lock import CondaSolver
from bisect_env.environments.images import ensure_environment
from bisect_env.environments.index import PypiCatalogue
from bisect_env.environments.interpreters import Interpreters, machine_interpreters
from bisect_env.environments.lock import Lock, LockResult
from bisect_env.environments.locker import Locker
from bisect_env.environments.prefix import Prefix
from bisect_env.environments.request import EnvironmentRequest
from bisect_env.environments.settings import default_cache_dir
from bisect_env.matrix.catalogue import VersionCatalogue


class EnvironmentProvider(Protocol):
    """Turns requests into locks and locks into prefixes."""

    @property
    def catalogue(self) -> VersionCatalogue:
        """What can be asked for."""
        ...

    @property
    def as_of(self) -> datetime | None:
        """The only "now" for which it can answer; None where any will do."""
        ...

    def lock_many(
        self,
        requests: Sequence[EnvironmentRequest],
        workers: int = 2,
        on_done: Callable[[int, LockResult], None] | None = None,
        *,
        prefer: Sequence[Sequence[int]] | None = None,
    ) -> list[LockResult]:
        """See `Locker.lock_many`."""
        ...

    def ensure_prefix(self, lock: Lock, *, allow_source: bool | frozenset[str] = False) -> Prefix:
        """See `bisect_env.environments.images.ensure_environment`."""
        ...


class Environments:
    """Environments of conda and PyPI packages on this host.

    Args:
        cache_dir: Our cache directory; `BISECT_ENV_CACHE` or the user's cache directory if None.
        index: URL of the package index, None for the one uv and pip are configured with.
        interpreters: Where Pythons are looked for.
        lock_timeout: Seconds for one solution.
        build_timeout: Seconds for one prefix.
    """

    def __init__(
        self,
        cache_dir: Path | None = None,
        *,
        index: str | None = None,
        interpreters: Interpreters | None = None,
        lock_timeout: float = 900.0,
        build_timeout: float = 1800.0,
    ) -> None:
        self.cache_dir = (cache_dir or default_cache_dir()).absolute()
        self._interpreters = interpreters or machine_interpreters()
        conda = CondaSolver(self.cache_dir, timeout=lock_timeout)
        self._catalogue = Catalogue(PypiCatalogue(index, interpreters=self._interpreters), conda)
        self._locker = Locker(
            self.cache_dir, interpreters=self._interpreters, timeout=lock_timeout, conda=conda
        )
        self._build_timeout = build_timeout

    @property
    def as_of(self) -> datetime | None:
        """None: indexes can be asked about any day."""
        return None

    @property
    def catalogue(self) -> Catalogue:
        """Lists releases and Pythons."""
        return self._catalogue

    def lock_many(
        self,
        requests: Sequence[EnvironmentRequest],
        workers: int = 2,
        on_done: Callable[[int, LockResult], None] | None = None,
        *,
        prefer: Sequence[Sequence[int]] | None = None,
    ) -> list[LockResult]:
        """See `Locker.lock_many`."""
        return self._locker.lock_many(requests, workers, on_done, prefer=prefer)

    def ensure_prefix(self, lock: Lock, *, allow_source: bool | frozenset[str] = False) -> Prefix:
        """See `bisect_env.environments.images.ensure_environment`."""
        return ensure_environment(
            lock,
            cache_dir=self.cache_dir,
            allow_source=allow_source,
            timeout=self._build_timeout,
            interpreters=self._interpreters,
        )
