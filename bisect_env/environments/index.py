"""Queries package indexes for releases, their dates and files, and for packages with similar names."""

from __future__ import annotations

import contextlib
import difflib
import functools
import json
import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import requests
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from bisect_env.environments.download import file_name
from bisect_env.environments.interpreters import installed_pythons, uv_python_versions
from bisect_env.environments.lock import PackageNotFoundError
from bisect_env.environments.once import OncePerKey
from bisect_env.environments.settings import (
    PackagePlaces,
    configured_places,
    http_timeout,
    login_of,
    trusted_by_requests,
)
from bisect_env.environments.uv_tool import public_index
from bisect_env.environments.wheels import MAX_FILENAME, fits_platform, pythons_of, version_in
from bisect_env.errors import BisectEnvError, IndexUnavailableError, UsageError
from bisect_env.matrix.import_names import IMPORTED_AS
from bisect_env.matrix.versions import PackageIndex, Release
from bisect_env.secrets import without_credentials

# --------------------------------------------------------------------------------------------------
# Suggestions for package names that an index does not have.
#
# A small index lists all names on its first page. Large indexes have half a million names, which are not
# downloaded; for them only a built-in table of import names is used.

_SMALL = 1_000_000
"""Size of the first page, in bytes, above which an index counts as large."""
_SHOWN = 3
_NAMES_TIMEOUT = (3.0, 5.0)


@functools.lru_cache(64)
def near_names(package: str, base: str) -> tuple[str, ...]:
    """Return names of packages on an index that are similar to a missing name.

    Args:
        package: The missing name.
        base: URL of the index.

    Returns:
        Up to three names, most similar first; empty if the index does not respond.
    """
    if configured_places().no_index:
        return ()
    base = base.rstrip("/")
    name = str(canonicalize_name(package.partition("[")[0]))
    try:
        listed = _listed(base)
    except (requests.RequestException, OSError, ValueError):
        return ()
    known = IMPORTED_AS.get(name)
    if listed is None:
        return () if known is None else (known,)
    # An index may list a package of which it has no page.
    near = difflib.get_close_matches(name, sorted(listed - {name}), n=_SHOWN, cutoff=0.7)
    return tuple(dict.fromkeys([*([known] if known in listed else []), *near]))[:_SHOWN]


def advice(package: str, base: str) -> str:
    """Return a hint for the error about a missing package, such as `; did you mean torch?`.

    Return "" if no name on the index is similar.
    """
    near = near_names(package, base)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _listed(base: str) -> frozenset[str] | None:
    """Return all package names of an index, or None if the index is too large or does not list them."""
    if urlsplit(base).scheme == "file":
        return frozenset(path.name for path in _folder(base).iterdir() if path.is_dir())
    with _answer(f"{base}/", _NAMES_TIMEOUT) as answer:
        if not answer.ok:
            return None
        if (content := _body(answer, _SMALL)) is None:
            return None
        is_json = "json" in answer.headers.get("content-type", "")
    from pypi_simple import IndexPage, UnsupportedRepoVersionError

    try:
        page = IndexPage.from_json_data(json.loads(content)) if is_json else IndexPage.from_html(content)
    except UnsupportedRepoVersionError as error:
        raise ValueError(str(error)) from None
    return frozenset(str(canonicalize_name(name)) for name in page.projects)


# --------------------------------------------------------------------------------------------------
# Releases and files on a package index.

_DIGITS_OF_A_DAY = 8
_CONNECT_TIMEOUT = 10.0
_LARGEST = 64 << 20
"""Maximum size of a page in bytes, uncompressed. A project with ten thousand files has 10 MB."""
_NO_PAGE = int(requests.codes.not_found)
_WANTS_LOGIN = (requests.codes.unauthorized, requests.codes.forbidden)
LOGIN_HINT = (
    "; a login belongs into ~/.netrc, or into UV_INDEX_CORP_USERNAME and UV_INDEX_CORP_PASSWORD for an index "
    "with a name (`--extra-index corp=https://…`, or `indexes` in the matrix)"
)
"""End of a remedy if an index refuses a request for lack of a login."""
_JSON_PREFERRED = (
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.5, text/html;q=0.1"
)


@dataclass(frozen=True, slots=True)
class IndexFile:
    """A wheel or a source distribution that an index lists.

    Attributes:
        filename: Its name.
        version: The version in its name, which may be invalid under PEP 440.
        yanked: Whether the release was withdrawn.
        requires_python: The versions of Python that it supports; None if they are not stated.
        uploaded: When it was uploaded; None if that is not known.
    """

    filename: str
    version: str
    yanked: bool = False
    requires_python: str | None = None
    uploaded: datetime | None = None


class PypiCatalogue:
    """A catalogue of the releases and files on package indexes (PEP 503 or PEP 691).

    Indexes are read over HTTP or from `file://` URLs.

    Each page is fetched once in the lifetime of this object, also if that fails. Thread-safe.

    Args:
        index: URL of the index; None for the one that uv and pip are configured with.
        indexes: Additional indexes with higher priority than `index` and the configured ones.
        find_links: Directories and web pages with additional archives.
    """

    def __init__(
        self,
        index: str | None = None,
        *,
        indexes: Sequence[PackageIndex] = (),
        find_links: Sequence[str] = (),
    ) -> None:
        self._configured = functools.partial(
            configured_places, index=index, indexes=indexes, find_links=find_links
        )
        self._further: dict[str, bool] = {}
        """Maps the URL of each further index that was asked to whether it had files of any package."""
        self._pages: OncePerKey[tuple[str, str], tuple[IndexFile, ...] | BisectEnvError] = OncePerKey()

    def versions(self, package: str, *, index: str | None = None) -> list[Release]:
        """Return all releases of a package, lowest version first, including yanked ones and pre-releases.

        Versions that are invalid under PEP 440 are left out. `Release.uploaded` is the time of the release's
        first file. `Release.has_wheel` is True if a wheel fits this host's platform.

        Args:
            package: Name of the package.
            index: URL of the only index to query; None for all.

        Returns:
            The releases; empty if no index knows the package or a package with a similar name.

        Raises:
            PackageNotFoundError: No index knows the package, but the index has packages with similar names.
            IndexUnavailableError: An index does not respond or is not a package index.
        """
        try:
            return releases(self.files(package, index=index))
        except PackageNotFoundError:
            if meant := advice(package, self._address(index)):
                raise PackageNotFoundError(
                    f"the index has no package {package!r}{meant}", remedy="correct the name in the matrix"
                ) from None
            return []

    @functools.cached_property
    def _places(self) -> PackagePlaces:
        return self._configured()

    def _address(self, index: str | None) -> str:
        """Return the URL, with its login, of an index of the matrix; None stands for the default index."""
        return self._places.with_login(index or self._places.default or public_index())

    def files(self, package: str, *, index: str | None = None) -> tuple[IndexFile, ...]:
        """Return all files of a package, in the order in which the index lists them.

        The files come from the first index that knows the package. If additional indexes come from pip's
        configuration, or uv's `index-strategy` is set accordingly, they come from all indexes. Files of
        `find_links` are added.

        Args:
            package: Name of the package.
            index: URL of the only index to query; None for all.

        Raises:
            PackageNotFoundError: No index knows the package.
            IndexUnavailableError: An index does not respond or is not a package index.
            UsageError: The configuration forbids indexes (`no-index`), and no directory has the package.
        """
        configured = self._places
        takes_all = configured.strategy.startswith("unsafe")
        links = () if index is not None else configured.find_links
        default = self._address(index)
        unknown: UsageError | None = None
        if configured.no_index:
            asked = []
            unknown = UsageError(
                f"no folder of archives has the package {package!r}, and `no-index` in the configuration of "
                "uv or pip forbids to ask an index",
                remedy="remove `no-index` there, or name a folder that has it by `--find-links`",
            )
        elif index is not None:
            asked = [default]
        else:
            asked = [one.url for one in configured.indexes(default) if not one.explicit]
        found: list[IndexFile] = []
        for base in dict.fromkeys(asked):
            here: tuple[IndexFile, ...] = ()
            try:
                here = self._files_of(base, package)
            except PackageNotFoundError as error:
                unknown = unknown or error
            found += here
            if base != default:
                self._further[base] = bool(here) or self._further.get(base, False)
            if found and not takes_all:
                break
        for place in links:
            found += self._files_of(place, package, is_flat=True)
        if not found and unknown is not None:
            raise unknown
        return tuple(found)

    def indexes_without_pages(self) -> list[str]:
        """Return the URLs, without credentials, of further indexes that had no page of any package so far.

        An index that lacks a package is passed over without an error, and so is a wrong address.
        """
        return [without_credentials(base) for base, is_known in list(self._further.items()) if not is_known]

    def _files_of(self, base: str, package: str, *, is_flat: bool = False) -> tuple[IndexFile, ...]:
        key = (base, str(canonicalize_name(package)))
        found = self._pages.get(key, lambda: self._page_or_error(base, package, is_flat=is_flat))
        if isinstance(found, BisectEnvError):
            raise found
        return found

    def _page_or_error(
        self, base: str, package: str, *, is_flat: bool
    ) -> tuple[IndexFile, ...] | BisectEnvError:
        """Return the files on a page, or the error that there is no such page or that the index fails."""
        try:
            return self._page(base, package, is_flat=is_flat)
        except (PackageNotFoundError, IndexUnavailableError) as error:
            return error

    def python_versions(self) -> list[str]:
        """Return the Python versions that an environment can have, oldest first.

        These are all installed versions and, for each minor version that is not installed, the newest
        version that uv can download.
        """
        here = set(installed_pythons())
        minors = {version.rpartition(".")[0] for version in here}
        there = {v for v in uv_python_versions() if v.rpartition(".")[0] not in minors}
        return sorted(here | there, key=Version)

    def _page(self, base: str, package: str, *, is_flat: bool) -> tuple[IndexFile, ...]:
        shown = without_credentials(base)
        try:
            scheme = urlsplit(base).scheme
            if is_flat and scheme in ("http", "https"):
                return _fetched_page(base, package)
            if is_flat:
                names = sorted(path.name for path in _folder(base).iterdir())
                return _files_on(package, ({"filename": name} for name in names))
            if scheme == "file":
                page = _folder(base) / canonicalize_name(package) / "index.html"
                return _html_files(package, page.read_bytes(), None)
            url = f"{base.rstrip('/')}/{canonicalize_name(package)}/"
            return _fetched_page(url, package)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = str(error).partition("\n")[0]
            raise IndexUnavailableError(
                f"{shown} does not answer like a package index: {reason}",
                tried=f"listing the versions of {package}",
                remedy="give the URL of a simple index (it usually ends in /simple) as `index`, "
                "or in uv's or pip's configuration",
            ) from None
        except (requests.RequestException, OSError) as error:
            if isinstance(error, FileNotFoundError) and not is_flat:
                raise PackageNotFoundError(
                    f"the index {shown} has no package {package!r}",
                    remedy="check how it is spelt, and whether it lives in another index (`index` in the "
                    "matrix)",
                ) from None
            if is_flat and isinstance(error, FileNotFoundError | NotADirectoryError):
                raise IndexUnavailableError(
                    f"the place of archives {shown} cannot be used: {_reason(error)}",
                    tried=f"listing the versions of {package}",
                    remedy="correct `--find-links`, `find_links` in the matrix, or the setting of uv or pip",
                ) from error
            answer = error.response if isinstance(error, requests.HTTPError) else None
            wants_login = answer is not None and answer.status_code in _WANTS_LOGIN
            raise IndexUnavailableError(
                f"the package index {shown} cannot be used: {_reason(error)}",
                tried=f"listing the versions of {package}",
                remedy="check the network, proxy and credentials, then give the same command again; "
                "another index can be named as `index`, or in uv's or pip's configuration"
                f"{LOGIN_HINT if wants_login else ''}",
            ) from error


def releases(files: Iterable[IndexFile]) -> list[Release]:
    """Group files by version, and return one release per version, lowest version first."""
    groups: dict[Version, list[IndexFile]] = {}
    for file in files:
        with contextlib.suppress(InvalidVersion):
            groups.setdefault(Version(file.version), []).append(file)
    found = []
    for version, group in sorted(groups.items()):
        wheels = [file.filename for file in group if fits_platform(file.filename)]
        release = Release(
            version=str(version),
            uploaded=min((file.uploaded for file in group if file.uploaded), default=day_of(version)),
            yanked=all(file.yanked for file in group),
            requires_python=next((file.requires_python for file in group if file.requires_python), None),
            has_wheel=bool(wheels),
            pythons=_pythons(wheels),
        )
        found.append(release)
    return found


def day_of(version: Version) -> datetime | None:
    """Return the date in a development version such as `2.9.0.dev20260131`, or None for other versions."""
    # `strptime` takes fewer digits, too: it reads dev1234 as a day of the year 123.
    if version.dev is not None and len(str(version.dev)) == _DIGITS_OF_A_DAY:
        with contextlib.suppress(ValueError):  # eight digits that are no date
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


def _folder(place: str) -> Path:
    """Return the directory with the given path or `file:` URL.

    Raises:
        NotADirectoryError: There is no such directory.
    """
    folder = Path(unquote(urlsplit(place).path) if place.startswith("file:") else place)
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder")
    return folder


def _fetched_page(url: str, package: str) -> tuple[IndexFile, ...]:
    """Return the files of a package on a web page, in HTML (PEP 503) or JSON (PEP 691).

    Raises:
        FileNotFoundError: There is no such page.
        ValueError: The answer is not such a page.
        requests.RequestException: The request failed.
    """
    seconds = http_timeout(os.environ)
    with _answer(url, (min(_CONNECT_TIMEOUT, seconds), seconds)) as answer:
        if answer.status_code == _NO_PAGE:
            raise FileNotFoundError("it has no such page")
        answer.raise_for_status()
        kind, _, parameters = answer.headers.get("content-type", "text/html").partition(";")
        if (content := _body(answer, _LARGEST)) is None:
            raise ValueError(f"its page of {package} has more than {_LARGEST >> 20} MiB")
    if kind.strip().endswith("html"):
        # If the header states no character set, requests assumes Latin 1, but the page itself states one.
        return _html_files(package, content, answer.encoding if parameters else None)
    if not kind.strip().endswith("+json"):
        raise ValueError(f"it answers with {kind.strip() or 'no content type'}")
    page = json.loads(content)
    if str(page["meta"]["api-version"]).partition(".")[0] != "1":
        raise ValueError(f"it speaks version {page['meta']['api-version']} of the simple API")
    return _files_on(package, page["files"])


def _answer(url: str, timeout: tuple[float, float]) -> requests.Response:
    """Request a page of a package index, and return the response as soon as its headers have arrived."""
    login = login_of(url)
    return requests.get(
        url,
        headers={"Accept": _JSON_PREFERRED},
        timeout=timeout,
        stream=True,
        verify=trusted_by_requests(),
        auth=None if login is None else requests.auth.HTTPBasicAuth(*login),
    )


@functools.lru_cache(64)
def has_first_page(base: str) -> bool:
    """Return whether an index has the page that lists its packages; True if the index does not respond."""
    try:
        if urlsplit(base).scheme == "file":
            return _folder(base).is_dir()
        with _answer(f"{configured_places().with_login(base).rstrip('/')}/", _NAMES_TIMEOUT) as answer:
            return answer.status_code != _NO_PAGE
    except NotADirectoryError:
        return False
    except (requests.RequestException, OSError, ValueError):
        return True


def _body(answer: requests.Response, limit: int) -> bytes | None:
    """Return the body of a response, or None if it has more than `limit` bytes."""
    content = bytearray()
    for piece in answer.iter_content(1 << 16):
        content += piece
        if len(content) > limit:
            return None
    return bytes(content)


def _files_on(package: str, entries: Iterable[Mapping[str, Any]]) -> tuple[IndexFile, ...]:
    """Return the wheels and source distributions of a package among the entries of a page.

    Args:
        package: Name of the package. Files of other packages, which some pages list too, are left out.
        entries: Files in the format of PEP 691; only `filename` is required.

    Raises:
        ValueError: The time of an upload is not one.
    """
    files = []
    for entry in entries:
        filename = entry["filename"]
        if len(filename) > MAX_FILENAME or (version := version_in(filename, package)) is None:
            continue
        uploaded = entry.get("upload-time")
        file = IndexFile(
            filename,
            version,
            yanked=entry.get("yanked", False) not in (False, None),  # a text is the reason, and may be empty
            requires_python=entry.get("requires-python") or None,
            uploaded=_utc(datetime.fromisoformat(uploaded)) if uploaded else None,
        )
        files.append(file)
    return tuple(files)


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _html_files(package: str, page: bytes, charset: str | None) -> tuple[IndexFile, ...]:
    if b"\0" in page and charset is None:
        raise ValueError("its page is no text")
    # The parser would write on the screen that a page has characters of an unknown encoding.
    logging.getLogger("bs4").setLevel(logging.ERROR)
    # Imported here because it takes 0.1 s, and most indexes answer with JSON.
    from pypi_simple import RepositoryPage, UnsupportedRepoVersionError

    try:
        links = RepositoryPage.from_html(page, from_encoding=charset).links
    except UnsupportedRepoVersionError as error:
        raise ValueError(str(error)) from None
    entries = []
    for link in links:
        entry = {
            "filename": file_name(link.url),  # the text may be shortened, or hold a path
            "yanked": link.get_str_attrib("data-yanked") is not None,
            "requires-python": link.get_str_attrib("data-requires-python"),
            # This attribute is not standard, but uv uses it to solve.
            "upload-time": link.get_str_attrib("data-upload-time"),
        }
        entries.append(entry)
    return _files_on(package, entries)


def _reason(error: Exception) -> str:
    """Return why a request failed, in words for users."""
    match error:
        case requests.Timeout():
            return "no answer in time"
        case requests.HTTPError():
            return f"it answers {error.response.status_code} {error.response.reason or ''}".rstrip()
        case requests.exceptions.SSLError():
            if found := re.search(r"certificate verify failed: ([^(]+)", str(error)):
                why, trusted = found[1].strip(), trusted_by_requests()
                now = f", now {trusted}" if isinstance(trusted, str) else ""
                return f"its certificate is not trusted ({why}); SSL_CERT_FILE names other authorities{now}"
            return "it does not speak TLS as https:// promises"
        case requests.ConnectionError():
            # The outer messages contain addresses of objects; only the innermost one is meaningful to users.
            inner = error.args[0] if error.args else error
            return str(getattr(inner, "reason", inner)).rpartition(": ")[2] or "no connection"
    return str(error)
