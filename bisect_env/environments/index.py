"""Asks a package index for releases, their dates and files, and for similar names."""

from __future__ import annotations

import contextlib
import difflib
import functools
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import requests
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from bisect_env.environments.interpreters import Interpreters, machine_interpreters, uv_python_versions
from bisect_env.environments.lock import PackageNotFoundError
from bisect_env.environments.once import OncePerKey
from bisect_env.environments.settings import configured_index, configured_places
from bisect_env.environments.wheels import MAX_FILENAME, fits_platform, pythons_of
from bisect_env.errors import IndexUnavailableError, UsageError
from bisect_env.matrix.versions import Manager, PackageIndex, Release
from bisect_env.secrets import without_credentials

# --------------------------------------------------------------------------------------------------
# Which packages of an index were perhaps meant by a name that it does not have.
#
# A small index lists all its names on its first page. The large ones have half a million of them, of which
# nobody is asked for; known are some names that differ from what is imported.

_SMALL = 1_000_000
"""Bytes of a first page that are read; what has more is a large index."""
_SHOWN = 3
_NAMES_TIMEOUT = (3.0, 5.0)

IMPORTED_AS = {
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "pil": "pillow",
    "pytorch": "torch",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""What people import, or call it elsewhere, and what it is called on an index."""


@functools.lru_cache(64)
def near_names(package: str, base: str | None = None) -> tuple[str, ...]:
    """Return names on the index that are similar to a missing one, the most similar first.

    Args:
        package: The name that is not there.
        base: URL of the index; None for the configured one.

    Returns:
        At most three; none if the index does not answer: this is advice, and its lack is no failure.
    """
    if configured_places().no_index:
        return ()
    base = (base or configured_index()).rstrip("/")
    name = str(canonicalize_name(package.partition("[")[0]))
    try:
        listed = _listed(base)
    except (requests.RequestException, OSError, ValueError):
        return ()
    known = IMPORTED_AS.get(name)
    if listed is None:
        return () if known is None else (known,)
    near = difflib.get_close_matches(name, sorted(listed), n=_SHOWN, cutoff=0.7)
    return tuple(dict.fromkeys([*([known] if known in listed else []), *near]))[:_SHOWN]


def advice(package: str, base: str | None = None) -> str:
    """Return a hint such as `; did you mean torch?`, or "" if no name is similar."""
    near = near_names(package, base)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _listed(base: str) -> frozenset[str] | None:
    """Return all names of a small index; None of a large one."""
    if urlsplit(base).scheme == "file":
        folder = Path(unquote(urlsplit(base).path))
        return frozenset(path.name for path in folder.iterdir() if path.is_dir())
    with requests.get(
        f"{base}/", headers={"Accept": _JSON_PREFERRED}, timeout=_NAMES_TIMEOUT, stream=True
    ) as answer:
        if not answer.ok:
            return None
        content = b""
        for piece in answer.iter_content(1 << 16):
            content += piece
            if len(content) > _SMALL:
                return None
        is_json = "json" in answer.headers.get("content-type", "")
    from pypi_simple import IndexPage

    page = IndexPage.from_json_data(json.loads(content)) if is_json else IndexPage.from_html(content)
    return frozenset(str(canonicalize_name(name)) for name in page.projects)


# --------------------------------------------------------------------------------------------------
# What a package index lists: releases with their dates, and files with their hashes.

_DIGITS_OF_A_DAY = 8
_TIMEOUT = (10.0, 30.0)  # seconds to connect, and between two pieces of an answer
_LARGEST = 64 << 20
"""Bytes of a page that are read, unpacked; those of projects with ten thousand files take ten million."""
_JSON_PREFERRED = (
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.5, text/html;q=0.1"
)
_SDISTS = (".tar.gz", ".zip", ".tar.bz2", ".tar.xz", ".tgz", ".tar.Z", ".tar")


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
    """A catalogue of a package index (PEP 503 pages or PEP 691 JSON, over HTTP or `file://`).

    Pages are fetched once in the life of this object. Safe to use from several threads.

    Args:
        index: URL of the index, None for the one that uv and pip are configured with.
        indexes: Further indexes, which are asked before it and before those that are configured.
        find_links: Folders and pages with further archives.
        timeout: Seconds to connect, and seconds without any data, before the index is given up.
        interpreters: Where `python_versions` looks.
    """

    def __init__(
        self,
        index: str | None = None,
        *,
        indexes: Sequence[PackageIndex] = (),
        find_links: Sequence[str] = (),
        timeout: tuple[float, float] = _TIMEOUT,
        interpreters: Interpreters | None = None,
    ) -> None:
        self.index = index
        self._indexes = indexes
        self._find_links = find_links
        self._timeout = timeout
        self._interpreters = interpreters
        self._pages: OncePerKey[tuple[str, str], tuple[IndexFile, ...]] = OncePerKey()

    def versions(
        self, package: str, *, manager: Manager = Manager.PYPI, index: str | None = None
    ) -> list[Release]:
        """Return every release of a package, oldest version first, withdrawn and pre-releases included.

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
        """Return every file of a package, in the order of its index.

        The first index that knows the package is taken, or all of them where pip's settings, or
        `UV_INDEX_STRATEGY`, say so; archives of `find_links` come to it.

        Args:
            package: Its name.
            index: URL of the only index to ask; None for all.

        Raises:
            PackageNotFoundError: No index knows the package.
            IndexUnavailableError: An index does not answer, or not like an index.
            UsageError: No folder has it, and no index may be asked.
        """
        configured = configured_places()
        default = [self.index or configured.default]
        further = [one.url for one in configured.indexes if not one.explicit]
        asked = [one.url for one in self._indexes if not one.explicit]
        asked += [*default, *further] if configured.are_pips else [*further, *default]
        takes_all = bool(configured.are_pips and further) or os.environ.get(
            "UV_INDEX_STRATEGY", ""
        ).startswith("unsafe")
        links = (*self._find_links, *configured.find_links)
        unknown: UsageError | None = None
        if index is not None:
            asked, links = [index], ()
        if configured.no_index:
            asked = []
            unknown = UsageError(
                f"no folder of archives has the package {package!r}, and `no-index` in the configuration of "
                "uv or pip forbids to ask an index",
                remedy="remove `no-index` there, or name a folder that has it by `--find-links`",
            )
        found: list[IndexFile] = []
        for base in dict.fromkeys(asked):
            try:
                found += self._files_of(base, package)
            except PackageNotFoundError as error:
                unknown = unknown or error
            if found and not takes_all:
                break
        for place in links:
            found += self._files_of(place, package, is_flat=True)
        if not found and unknown is not None:
            raise unknown
        return tuple(found)

    def _files_of(self, base: str, package: str, *, is_flat: bool = False) -> tuple[IndexFile, ...]:
        key = (base, str(canonicalize_name(package)))
        return self._pages.get(key, lambda: self._page(base, package, is_flat=is_flat))

    def python_versions(self) -> list[str]:
        """Return the Python versions that an environment could have, oldest first.

        All that are installed here, and of the minor versions that are not, the newest that uv could
        fetch: asking for 3.11 means the interpreter that is here, not one that has to be fetched.
        """
        interpreters = self._interpreters or machine_interpreters()
        here = {found.version for found in interpreters.installed() if found.final}
        minors = {version.rpartition(".")[0] for version in here}
        there = {v for v in uv_python_versions() if v.rpartition(".")[0] not in minors}
        return sorted(here | there, key=Version)

    def _page(self, base: str, package: str, *, is_flat: bool) -> tuple[IndexFile, ...]:
        shown = without_credentials(base)
        try:
            if is_flat:
                return _flat_page(base, package, self._timeout)
            if urlsplit(base).scheme == "file":
                return _local_page(base, package)
            return _web_page(base, package, self._timeout)
        except FileNotFoundError:
            raise _not_found(package, shown) from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
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
            uploaded=min((f.uploaded for f in group if f.uploaded is not None), default=day_of(version)),
            yanked=all(f.yanked for f in group),
            requires_python=next((f.requires_python for f in group if f.requires_python), None),
            has_wheel=any(f.is_wheel and fits_platform(f.filename) for f in group),
            pythons=_pythons(f.filename for f in group if f.is_wheel and fits_platform(f.filename)),
        )
        for version, group in sorted(groups.items())
    ]


def day_of(version: Version) -> datetime | None:
    """Return the day that a development release such as `2.9.0.dev20260131` names, None where none does."""
    # `strptime` takes fewer digits, too: it reads dev1234 as a day of the year 123.
    if version.dev is not None and len(str(version.dev)) == _DIGITS_OF_A_DAY:
        with contextlib.suppress(ValueError):
            return datetime.strptime(str(version.dev), "%Y%m%d").replace(tzinfo=UTC)
    return None


def _pythons(wheels: Iterable[str]) -> frozenset[str] | None:
    found: set[str] = set()
    for wheel in wheels:
        pythons = pythons_of(wheel)
        if pythons is None:
            return None
        found |= pythons
    return frozenset(found)


def _web_page(base: str, package: str, timeout: tuple[float, float]) -> tuple[IndexFile, ...]:
    return _fetched_page(f"{base.rstrip('/')}/{canonicalize_name(package)}/", package, timeout)


def _flat_page(place: str, package: str, timeout: tuple[float, float]) -> tuple[IndexFile, ...]:
    """Return the archives of a package in a folder, or on a page that lists archives of several packages."""
    if urlsplit(place).scheme in ("http", "https"):
        return _fetched_page(place, package, timeout)
    folder = Path(unquote(urlsplit(place).path) if place.startswith("file:") else place)
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder")
    listed = ({"filename": path.name, "url": path.as_uri()} for path in sorted(folder.iterdir()))
    return _files_on(package, listed, place)


def _fetched_page(url: str, package: str, timeout: tuple[float, float]) -> tuple[IndexFile, ...]:
    with requests.get(url, headers={"Accept": _JSON_PREFERRED}, timeout=timeout, stream=True) as answer:
        if answer.status_code == requests.codes.not_found:
            raise FileNotFoundError(url)
        answer.raise_for_status()
        kind, _, parameters = answer.headers.get("content-type", "text/html").partition(";")
        content = bytearray()
        for piece in answer.iter_content(1 << 16):
            content += piece
            if len(content) > _LARGEST:
                raise ValueError(f"its page of {package} has more than {_LARGEST >> 20} MiB")
    if kind.strip().endswith("html"):
        # Without a stated character set requests would assume Latin 1, where pages say their own.
        return _html_files(package, bytes(content), answer.url, answer.encoding if parameters else None)
    if not kind.strip().endswith("+json"):
        raise ValueError(f"it answers with {kind.strip() or 'no content type'}")
    return _json_files(package, json.loads(content), answer.url)


def _json_files(package: str, page: Mapping[str, Any], url: str) -> tuple[IndexFile, ...]:
    """Return the files of a project page of PEP 691.

    Raises:
        ValueError: It is of a later major version, or no such page.
    """
    major = str(page["meta"]["api-version"]).partition(".")[0]
    if major != "1":
        raise ValueError(f"it speaks version {page['meta']['api-version']} of the simple API")
    return _files_on(package, page["files"], url)


def _files_on(package: str, entries: Iterable[Mapping[str, Any]], base: str) -> tuple[IndexFile, ...]:
    """Return the files of a package on a page.

    Args:
        package: Its name. A page may list archives of other packages: a mirror's, or a page made by hand.
        entries: Files as PEP 691 describes them; `hashes` may be missing.
        base: Address of the page.
    """
    files = []
    for entry in entries:
        filename = str(entry["filename"])
        if (release := _release_of(filename, package)) is None:
            continue
        version, is_wheel = release
        uploaded = entry.get("upload-time")
        files.append(
            IndexFile(
                filename=filename,
                version=version,
                url=urljoin(base, str(entry["url"])),
                sha256=str(entry.get("hashes", {}).get("sha256", "")).lower(),
                uploaded=_utc(datetime.fromisoformat(uploaded)) if uploaded else None,
                is_wheel=is_wheel,
                yanked=entry.get("yanked", False) is not False,
                requires_python=entry.get("requires-python"),
            )
        )
    return tuple(files)


def _release_of(filename: str, package: str) -> tuple[str, bool] | None:
    """Return the version of a package's archive and whether it is a wheel; None for other files."""
    if len(filename) > MAX_FILENAME:
        return None
    wanted = canonicalize_name(package)
    if filename.endswith(".whl"):
        parts = filename[: -len(".whl")].split("-")
        is_own = len(parts) in (5, 6) and canonicalize_name(parts[0]) == wanted
        return (parts[1], True) if is_own else None
    stem = next((filename.removesuffix(end) for end in _SDISTS if filename.endswith(end)), None)
    if stem is None:
        return None
    # Names of old source distributions are not normal: `zope.interface-5.0`, `a-b-1.0`.
    for place in (m.start() for m in re.finditer("-", stem)):
        if canonicalize_name(stem[:place]) == wanted:
            return stem[place + 1 :], False
    return None


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _local_page(base: str, package: str) -> tuple[IndexFile, ...]:
    folder = Path(unquote(urlsplit(base).path))
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder")
    name = canonicalize_name(package)
    url = f"{base.rstrip('/')}/{name}/"
    return _html_files(package, (folder / name / "index.html").read_bytes(), url, None)


def _html_files(package: str, page: bytes, url: str, charset: str | None) -> tuple[IndexFile, ...]:
    # Here, because few indexes have nothing but such pages: importing an HTML parser takes half a second.
    from pypi_simple import RepositoryPage

    entries = []
    for link in RepositoryPage.from_html(page, url, charset).links:
        address, _, fragment = link.url.partition("#")
        entry = {
            "filename": link.text,
            "url": address,
            "hashes": dict([fragment.split("=", 1)]) if "=" in fragment else {},
            "yanked": link.get_str_attrib("data-yanked") is not None,
            "requires-python": link.get_str_attrib("data-requires-python"),
            # No standard names this attribute, but uv reads it, and solves by it.
            "upload-time": link.get_str_attrib("data-upload-time"),
        }
        entries.append(entry)
    return _files_on(package, entries, url)


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
def _(error: requests.exceptions.SSLError) -> str:
    if found := re.search(r"certificate verify failed: ([^(]+)", str(error)):
        return (
            f"its certificate is not trusted ({found[1].strip()}); REQUESTS_CA_BUNDLE names other authorities"
        )
    return "it does not speak TLS as https:// promises"


@_reason.register
def _(error: requests.ConnectionError) -> str:
    # The chain below holds addresses of objects; only its innermost words mean something to a person.
    inner = error.args[0] if error.args else error
    return str(getattr(inner, "reason", inner)).rpartition(": ")[2] or "no connection"
