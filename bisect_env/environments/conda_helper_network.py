"""How a helper process reaches channels: mirrors, credentials, retries, and downloads that fall silent."""

from __future__ import annotations

import base64
import time
from urllib.parse import unquote, urlsplit, urlunsplit

import rattler
from rattler.networking import (
    AddHeadersMiddleware,
    AuthenticationMiddleware,
    Client,
    GCSMiddleware,
    MirrorMiddleware,
    OciMiddleware,
    RetryMiddleware,
    S3Middleware,
)

_RETRIES = 2


class Downloads(rattler.InstallerReporter):
    """Notes when anything last happened: rattler itself waits for ever for a server that falls silent."""

    def __init__(self) -> None:
        self._under_way: set[int] = set()
        self._last = time.monotonic()

    def on_populate_cache_start(self, operation: int, package_name: str) -> int:
        """See `InstallerReporter`; what is in the cache already is complete at once."""
        self._last = time.monotonic()
        self._under_way.add(operation)
        return operation

    def on_download_progress(self, download_idx: int, progress: int, total: int | None) -> None:
        """See `InstallerReporter`."""
        self._last = time.monotonic()

    def on_populate_cache_complete(self, cache_entry: int) -> None:
        """See `InstallerReporter`."""
        self._last = time.monotonic()
        self._under_way.discard(cache_entry)

    def silence(self) -> float:
        """Seconds since any of the archives that are waited for got data; 0.0 without one."""
        return time.monotonic() - self._last if self._under_way else 0.0


class _Credentials:
    """User names and passwords that addresses in the user's configuration hold, as HTTP wants them.

    Args:
        mirrors: Address to the addresses that are asked in its place.
    """

    def __init__(self, mirrors: dict[str, list[str]]) -> None:
        self.mirrors: dict[str, list[str]] = {}
        self._headers: list[tuple[str, str, str]] = []
        for url, places in mirrors.items():
            self.mirrors[url] = [self._without(place) for place in places]

    def header(self, host: str, path: str) -> dict[str, str] | None:
        """What a request gets on top."""
        for known, start, value in self._headers:
            if host == known and path.startswith(start):
                return {"Authorization": value}
        return None

    def _without(self, place: str) -> str:
        parts = urlsplit(place)
        if "@" not in parts.netloc:
            return place
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        value = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._headers.append((parts.hostname or "", f"{parts.path.rstrip('/')}/", f"Basic {value}"))
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def client(mirrors: dict[str, list[str]], timeout: int | None) -> Client:
    """HTTP with the user's own credentials: rattler's storage, the keyring and `.netrc`."""
    # A mirror's own user and password are lost by rattler.
    credentials = _Credentials(mirrors)
    return Client(
        [
            RetryMiddleware(_RETRIES),
            MirrorMiddleware(credentials.mirrors),
            AddHeadersMiddleware(credentials.header),
            AuthenticationMiddleware(),
            OciMiddleware(),
            GCSMiddleware(),
            S3Middleware(),
        ],
        timeout=timeout,
    )
