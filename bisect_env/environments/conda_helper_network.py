"""How a helper process reaches channels: mirrors, credentials, retries, and downloads that fall silent."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import time
from collections.abc import Awaitable
from pathlib import Path
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
from rattler.package_streaming import download_to_path

_RETRIES = 2
_WORTH_ANOTHER_TRY = re.compile(r"HTTP status server error|error (sending request|decoding response body)")
_LOOK = 0.2  # seconds between two looks at a download


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


def client(mirrors: dict[str, list[str]], timeout: int | None, retries: int = _RETRIES) -> Client:
    """HTTP with the user's own credentials: rattler's storage, the keyring and `.netrc`."""
    # A mirror's own user and password are lost by rattler.
    credentials = _Credentials(mirrors)
    return Client(
        [
            *([RetryMiddleware(retries)] if retries else []),
            MirrorMiddleware(credentials.mirrors),
            AddHeadersMiddleware(credentials.header),
            AuthenticationMiddleware(),
            OciMiddleware(),
            GCSMiddleware(),
            S3Middleware(),
        ],
        timeout=timeout,
    )


async def download(url: str, target: Path, mirrors: dict[str, list[str]], stall: float) -> None:
    """Fetch an archive into a file, with the user's own credentials.

    Raises:
        TimeoutError: Nothing came for `stall` seconds; the download goes on, and its process is of no more
            use.
        OSError: It cannot be had.
    """
    for left in reversed(range(_RETRIES + 1)):
        try:
            # rattler's own retries would end in words that hide what happened.
            await _unless_silent(download_to_path(client(mirrors, None, 0), url, target), target, stall)
        except RuntimeError as error:
            if not left or not _WORTH_ANOTHER_TRY.search(str(error)):
                raise OSError(str(error)) from error
        else:
            return


async def _unless_silent(fetching: Awaitable[None], target: Path, stall: float) -> None:
    under_way = asyncio.ensure_future(fetching)
    size, last = 0, time.monotonic()
    while not (await asyncio.wait([under_way], timeout=_LOOK))[0]:
        with contextlib.suppress(FileNotFoundError):
            if (now := target.stat().st_size) != size:
                size, last = now, time.monotonic()
        if (silent := time.monotonic() - last) > stall:
            raise TimeoutError(f"a download timed out: no data for {silent:.0f} s")
    await under_way
