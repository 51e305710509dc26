"""What a package index lists: releases with their dates, and files with their hashes."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

import requests
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pypi_simple import (
    ACCEPT_JSON_PREFERRED,
    DistributionPackage,
    ProjectPage,
    RepositoryPage,
    UnsupportedContentTypeError,
    UnsupportedRepoVersionError,
)

from bisect_env.environments.failures import PackageNotFoundError
from bisect_env.environments.interpreters import Interpreters, machine_interpreters, uv_python_versions
from bisect_env.environments.settings import configured_index, without_credentials
from bisect_env.environments.wheels import fits_platform, pythons_of
from bisect_env.errors import IndexUnavailableError, UsageError
from bisect_env.matrix.catalogue import Release
from bisect_env.matrix.versions import Manager

_TIMEOUT = (10.0, 30.0)  # seconds to connect, and between two pieces of an answer


@dataclass(frozen=True, slots=True)
class IndexFile:
    """One file of a release.

    Attributes:
        filename: Its name.
        version: The release it belongs to.
        url: Where it is, without a hash fragment.
        sha256: Hex digest, "" where the index states none.
        uploaded: When it appeared (UTC), if known.
        is_wheel: Whether it is a wheel; a source distribution otherwise.
        yanked: Whether it was withdrawn.
        requires_python: Its demand on Python, if stated.
    """

    filename: str
    version: str
    url: str
    sha256: str
    uploaded: datetime | None
    is_wheel: bool
    yanked: bool
    requires_python: str | None


class PypiCatalogue:
    """Looks up releases in a package index (PEP 503 pages or PEP 691 JSON, over HTTP or `file://`).

    Pages are fetched once in the life of this object. Safe to use from several threads.

    Args:
        index: URL of the index, None for the one that uv and pip are configured with.
        timeout: Seconds to connect, and seconds without any data, before the index is given up.
        interpreters: Where `python_versions` looks.
    """

    def __init__(
        self,
        index: str | None = None,
        *,
        timeout: tuple[float, float] = _TIMEOUT,
        interpreters: Interpreters | None = None,
    ) -> None:
        self._index = index
        self._timeout = timeout
        self._interpreters = interpreters
        self._lock = threading.Lock()
        self._pages: dict[tuple[str, str], tuple[IndexFile, ...]] = {}

    def versions(
        self, package: str, *, manager: Manager = Manager.PYPI, index: str | None = None
    ) -> list[Release]:
        """Every release of a package, oldest version first, withdrawn and pre-releases included.

        Versions that PEP 440 cannot order are left out: no requirement could name them. `uploaded` is the
        time of a release's first file, and `has_wheel` means one that this host's platform can use.

        Returns:
            The releases; none when the index does not know the package.

        Raises:
            IndexUnavailableError: The index does not answer, or not like an index.
            UsageError: Another manager than `pypi` is asked for.
        """
        if manager is not Manager.PYPI:
            raise UsageError(
                f"versions of {package} cannot be listed with {manager}",
                remedy="give that axis a list of versions",
            )
        try:
            return releases(self.files(package, index=index))
        except PackageNotFoundError:
            return []

    def files(self, package: str, *, index: str | None = None) -> tuple[IndexFile, ...]:
        """Every file of a package, in the index's order.

        Raises:
            PackageNotFoundError: The index does not know the package.
            IndexUnavailableError: The index does not answer, or not like an index.
        """
        base = index or self._index or configured_index()
        key = (base, canonicalize_name(package))
        with self._lock:
            if key not in self._pages:
                self._pages[key] = self._page(base, package)
            return self._pages[key]

    def python_versions(self) -> list[str]:
        """Pythons that an environment could have, oldest first.

        All that are installed here, and of the minor versions that are not, the newest that uv could fetch:
        asking for 3.11 means the interpreter that is here, not one that has to be fetched.
        """
        interpreters = self._interpreters or machine_interpreters()
        here = {found.version for found in interpreters.installed() if found.final}
        minors = {version.rpartition(".")[0] for version in here}
        there = {v for v in uv_python_versions() if v.rpartition(".")[0] not in minors}
        return sorted(here | there, key=Version)

    def _page(self, base: str, package: str) -> tuple[IndexFile, ...]:
        shown = without_credentials(base)
        try:
            if urlsplit(base).scheme == "file":
                return _local_page(base, package)
            return _web_page(base, package, self._timeout)
        except FileNotFoundError:
            raise _not_found(package, shown) from None
        except (UnsupportedContentTypeError, UnsupportedRepoVersionError, ValueError, KeyError) as error:
            # requests.JSONDecodeError and pydantic's errors are ValueErrors.
            reason = str(error).partition("\n")[0]
            raise IndexUnavailableError(
                f"{shown} does not answer like a package index: {reason}",
                tried=f"listing the versions of {package}",
                remedy="give the URL of a simple index (it usually ends in /simple) as `index`, "
                "or in uv's or pip's configuration",
            ) from None
        except (requests.RequestException, OSError) as error:
            raise IndexUnavailableError(
                f"the package index {shown} cannot be used: {_reason(error)}",
                tried=f"listing the versions of {package}",
                remedy="check the network, proxy and credentials, then give the same command again; "
                "another index can be named as `index`, or in uv's or pip's configuration",
            ) from error


def releases(files: Iterable[IndexFile]) -> list[Release]:
    """Group files into releases, oldest version first. Pure but for the host's platform."""
    groups: dict[Version, list[IndexFile]] = {}
    for file in files:
        try:
            groups.setdefault(Version(file.version), []).append(file)
        except InvalidVersion:
            continue
    return [
        Release(
            version=str(version),
            uploaded=min((f.uploaded for f in group if f.uploaded is not None), default=None),
            yanked=all(f.yanked for f in group),
            requires_python=next((f.requires_python for f in group if f.requires_python), None),
            has_wheel=any(f.is_wheel and fits_platform(f.filename) for f in group),
            pythons=_pythons(f.filename for f in group if f.is_wheel and fits_platform(f.filename)),
        )
        for version, group in sorted(groups.items())
    ]


def _pythons(wheels: Iterable[str]) -> frozenset[str] | None:
    found: set[str] = set()
    for wheel in wheels:
        pythons = pythons_of(wheel)
        if pythons is None:
            return None
        found |= pythons
    return frozenset(found)


def _web_page(base: str, package: str, timeout: tuple[float, float]) -> tuple[IndexFile, ...]:
    url = f"{base.rstrip('/')}/{canonicalize_name(package)}/"
    answer = requests.get(url, headers={"Accept": ACCEPT_JSON_PREFERRED}, timeout=timeout)
    if answer.status_code == requests.codes.not_found:
        raise FileNotFoundError(url)
    answer.raise_for_status()
    kind, _, parameters = answer.headers.get("content-type", "text/html").partition(";")
    if kind.strip().endswith("html"):
        # Without a stated character set requests would assume Latin 1, where pages say their own.
        return _html_files(package, answer.content, answer.url, answer.encoding if parameters else None)
    page = ProjectPage.from_response(answer, package)
    return tuple(_index_file(p, p.upload_time) for p in page.packages if _is_release(p))


def _local_page(base: str, package: str) -> tuple[IndexFile, ...]:
    folder = Path(unquote(urlsplit(base).path))
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder")
    name = canonicalize_name(package)
    url = f"{base.rstrip('/')}/{name}/"
    return _html_files(package, (folder / name / "index.html").read_bytes(), url, None)


def _html_files(package: str, page: bytes, url: str, charset: str | None) -> tuple[IndexFile, ...]:
    files = []
    for link in RepositoryPage.from_html(page, url, charset).links:
        found = DistributionPackage.from_link(link, package)
        if _is_release(found):
            # No standard names this attribute, but uv reads it, and solves by it.
            uploaded = link.get_str_attrib("data-upload-time")
            files.append(_index_file(found, datetime.fromisoformat(uploaded) if uploaded else None))
    return tuple(files)


def _is_release(package: DistributionPackage) -> bool:
    return package.package_type in ("wheel", "sdist") and package.version is not None


def _index_file(package: DistributionPackage, uploaded: datetime | None) -> IndexFile:
    if uploaded is not None:
        uploaded = uploaded.replace(tzinfo=UTC) if uploaded.tzinfo is None else uploaded.astimezone(UTC)
    return IndexFile(
        filename=package.filename,
        version=package.version or "",
        url=package.url,
        sha256=package.digests.get("sha256", "").lower(),
        uploaded=uploaded,
        is_wheel=package.package_type == "wheel",
        yanked=package.is_yanked,
        requires_python=package.requires_python,
    )


def _not_found(package: str, index: str) -> PackageNotFoundError:
    return PackageNotFoundError(
        f"the index {index} has no package {package!r}",
        remedy="check how it is spelt, and whether it lives in another index (`index` in the matrix)",
    )


@functools.singledispatch
def _reason(error: Exception) -> str:
    return str(error)


@_reason.register
def _(error: requests.Timeout) -> str:
    return "no answer in time"


@_reason.register
def _(error: requests.HTTPError) -> str:
    status = error.response.status_code
    return f"it answers {status} {error.response.reason or ''}".rstrip()


@_reason.register
def _(error: requests.ConnectionError) -> str:
    # The chain below holds addresses of objects; only its innermost words mean something to a person.
    inner = error.args[0] if error.args else error
    return str(getattr(inner, "reason", inner)).rpartition(": ")[2] or "no connection"
