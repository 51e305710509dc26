"""What a package index lists: releases with their dates, and files with their hashes."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import requests
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pypi_simple import (
    DistributionPackage,
    NoSuchProjectError,
    ProjectPage,
    PyPISimple,
    UnsupportedContentTypeError,
    UnsupportedRepoVersionError,
)

from bisect_env.environments.failures import PackageNotFoundError
from bisect_env.environments.interpreters import Interpreters, machine_interpreters, uv_python_versions
from bisect_env.environments.settings import configured_index, without_credentials
from bisect_env.environments.wheels import fits_platform
from bisect_env.errors import IndexUnavailableError, UsageError

_TIMEOUT = (10.0, 30.0)  # seconds to connect, and between two pieces of an answer


@dataclass(frozen=True, slots=True)
class Release:
    """One version of a package, as far as an index tells.

    Attributes:
        version: As the index writes it.
        uploaded: When its first file appeared (UTC); None where the index keeps no dates.
        yanked: Whether every file was withdrawn.
        requires_python: Its demand on Python, if it states one.
        has_wheel: Whether one of its wheels can be used on this host's platform by some Python.
    """

    version: str
    uploaded: datetime | None
    yanked: bool
    requires_python: str | None
    has_wheel: bool


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

    def versions(self, package: str, *, manager: str = "pypi", index: str | None = None) -> list[Release]:
        """Every release of a package, oldest version first, withdrawn and pre-releases included.

        Versions that PEP 440 cannot order are left out: no requirement could name them.

        Raises:
            PackageNotFoundError: The index does not know the package.
            IndexUnavailableError: The index does not answer, or not like an index.
            UsageError: Another manager than `pypi` is asked for.
        """
        if manager != "pypi":
            raise UsageError(
                f"versions of {package} cannot be listed for the manager {manager!r}",
                remedy="give that axis a list of versions",
            )
        return releases(self.files(package, index=index))

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
                self._pages[key] = _index_files(self._page(base, package))
            return self._pages[key]

    def python_versions(self) -> list[Release]:
        """Pythons that a prefix could have, oldest first.

        All that are installed here, and of the minor versions that are not, the newest that uv could fetch:
        asking for 3.11 means the interpreter that is here, not one that has to be fetched.
        """
        interpreters = self._interpreters or machine_interpreters()
        here = {found.version for found in interpreters.installed() if found.final}
        minors = {version.rpartition(".")[0] for version in here}
        there = {v for v in uv_python_versions() if v.rpartition(".")[0] not in minors}
        return [
            Release(version, uploaded=None, yanked=False, requires_python=None, has_wheel=True)
            for version in sorted(here | there, key=Version)
        ]

    def _page(self, base: str, package: str) -> ProjectPage:
        shown = without_credentials(base)
        try:
            if urlsplit(base).scheme == "file":
                return _local_page(base, package)
            with requests.Session() as session:
                client = PyPISimple(base.rstrip("/") + "/", session=session)
                return client.get_project_page(package, timeout=self._timeout)
        except (NoSuchProjectError, FileNotFoundError):
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
        )
        for version, group in sorted(groups.items())
    ]


def _index_files(page: ProjectPage) -> tuple[IndexFile, ...]:
    return tuple(_index_file(p) for p in page.packages if p.package_type in ("wheel", "sdist") and p.version)


def _index_file(package: DistributionPackage) -> IndexFile:
    uploaded = package.upload_time
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


def _local_page(base: str, package: str) -> ProjectPage:
    folder = Path(unquote(urlsplit(base).path))
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder")
    name = canonicalize_name(package)
    page = folder / name / "index.html"
    return ProjectPage.from_html(
        package, page.read_bytes(), base_url=urljoin(base.rstrip("/") + "/", f"{name}/")
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
