"""The program of the helper processes that solve and install with py-rattler; only they import it.

py-rattler can die of SIGSEGV while Python shuts down, and a tool that judges processes by how they end must
not do so itself. Requests come as JSON lines on standard input, answers go as JSON lines to what standard
output was at the start; when the input ends, the process leaves by `os._exit`, which shuts nothing down.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import difflib
import fcntl
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import rattler
from rattler.exceptions import GatewayError, InstallerError, InvalidMatchSpecError, IoError, SolverError
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
from rattler.package import BuildString, PackageName
from rattler.package_streaming import download_to_path

# --------------------------------------------------------------------------------------------------
# How a helper process reaches channels: mirrors, credentials, retries, and downloads that fall silent.

_RETRIES = 2
_WORTH_ANOTHER_TRY = re.compile(r"HTTP status server error|error (sending request|decoding response body)")
_SERVER_LOOK = 0.2  # seconds between two looks at a download


class Downloads(rattler.InstallerReporter):
    """A monitor of download activity, because rattler waits for ever for a silent server."""

    def __init__(self) -> None:
        self._under_way: set[int] = set()
        self._last = time.monotonic()

    def on_populate_cache_start(self, operation: int, package_name: str) -> int:
        """Start to watch an archive; see `InstallerReporter`. A cached archive is complete at once."""
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
        """Return the seconds since any awaited archive received data; 0.0 if none is awaited."""
        return time.monotonic() - self._last if self._under_way else 0.0


class _Credentials:
    """The user names and passwords of configured addresses, as HTTP headers.

    Args:
        mirrors: Address to the addresses that are asked in its place.
    """

    def __init__(self, mirrors: dict[str, list[str]]) -> None:
        self.mirrors: dict[str, list[str]] = {}
        self._headers: list[tuple[str, str, str]] = []
        for url, places in mirrors.items():
            self.mirrors[url] = [self._without(place) for place in places]

    def header(self, host: str, path: str) -> dict[str, str] | None:
        """Return the additional headers of a request."""
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
    """Return an HTTP client with the user's own credentials: rattler's storage, the keyring and `.netrc`."""
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

    Args:
        url: The archive's address as a lock names it.
        target: The file to write.
        mirrors: Such an address's beginning to the addresses that are asked in its place.
        stall: Seconds without data after which the download is given up.

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
    while not (await asyncio.wait([under_way], timeout=_SERVER_LOOK))[0]:
        with contextlib.suppress(FileNotFoundError):
            if (now := target.stat().st_size) != size:
                size, last = now, time.monotonic()
        if (silent := time.monotonic() - last) > stall:
            raise TimeoutError(f"a download timed out: no data for {silent:.0f} s")
    await under_way


# --------------------------------------------------------------------------------------------------
# The program of the processes in which py-rattler solves and installs; no other process imports rattler.

Message = dict[str, Any]

_NEAR_NAMES = 3
# Seconds for one request of repodata, its last byte included; archives may take as long as they need.
_REPODATA_TIMEOUT = 180
_PLATFORMS = ("linux-64", "linux-aarch64", "linux-ppc64le", "osx-64", "osx-arm64", "win-64")
_MINORS = ("2.7", *(f"3.{minor}" for minor in range(4, 31)))
_LOOK = 0.5  # seconds between two looks at downloads
_HASHED_AT_ONCE = 1 << 20


class _Channels:
    """Repodata of some channels, fetched once in the life of this process.

    Args:
        urls: Most important first.
        mirrors: Address to the addresses that are asked in its place.
        platform: conda's name of it.
        cache: Where repodata is kept between processes.
        timeout: Seconds for one request.
    """

    def __init__(
        self,
        urls: Sequence[str],
        mirrors: dict[str, list[str]],
        platform: str,
        cache: str,
        timeout: int | None,
    ) -> None:
        self.sources = [rattler.Channel(url) for url in urls]
        self.platforms: list[Any] = [platform, "noarch"]
        # Relations that a channel declares by itself would let a lock depend on more than the matrix.
        self.options: dict[str, Any] = {"channel_relations": "disabled"}
        self.gateway = rattler.Gateway(cache_dir=Path(cache), client=client(mirrors, timeout))
        self._known: dict[str, rattler.RepoDataRecord] = {}

    async def solve(self, request: Message) -> list[rattler.RepoDataRecord]:
        limit = request["exclude_newer"]
        # rattler lets in what was made at the very moment; ours is the first that is too new.
        newest = (
            None if limit is None else datetime.fromtimestamp(limit / 1000, UTC) - timedelta(milliseconds=1)
        )
        records = await rattler.solve(
            self.sources,
            [rattler.MatchSpec(spec) for spec in request["specs"]],
            gateway=self.gateway,
            platforms=self.platforms,
            locked_packages=await self.find(request["prefer"]),
            virtual_packages=[_virtual(*facts) for facts in request["virtual_packages"]],
            channel_priority=rattler.ChannelPriority.Strict,
            exclude_newer=newest,
            # What has no date is taken to have been there always: whole channels of the past state none.
            timestamp_policy="allow-missing",
            timeout=timedelta(seconds=request["timeout"]),
            **self.options,
        )
        self._known |= {record.url: record for record in records}
        return records

    async def find(self, wanted: Iterable[Sequence[str]]) -> list[rattler.RepoDataRecord]:
        """Return records by (name, URL), without those that the channels no longer have."""
        pairs = [(name, url) for name, url in wanted]
        unknown = {name for name, url in pairs if url not in self._known}
        if unknown:
            for record in await self.records(sorted(unknown)):
                self._known[record.url] = record
        return [self._known[url] for _, url in pairs if url in self._known]

    async def records(self, names: Sequence[str]) -> list[rattler.RepoDataRecord]:
        found = await self.gateway.query(
            self.sources,
            self.platforms,
            list(names),
            recursive=False,
            **self.options,
        )
        return [record for group in found for record in group]

    async def elsewhere(self, name: str) -> list[str]:
        """Return versions that are built for other platforms, as far as the channels list them."""
        others: list[Any] = [platform for platform in _PLATFORMS if platform not in self.platforms]
        try:
            found = await self.gateway.query(self.sources, others, [name], recursive=False, **self.options)
        except GatewayError:
            # It only explains why a version is not there; many private channels have one platform.
            return []
        return sorted({str(record.version) for group in found for record in group})

    async def near(self, name: str) -> list[str]:
        names = await self.gateway.names(self.sources, self.platforms)
        return difflib.get_close_matches(name, sorted({n.normalized for n in names}), _NEAR_NAMES)


class Helper:
    """A server of requests that caches the channels it has read."""

    def __init__(self) -> None:
        self._channels: dict[str, _Channels] = {}
        self._operations: dict[str, Callable[[Message], Awaitable[Message]]] = {
            "solve": self._solve,
            "versions": self._versions,
            "install": self._install,
            "download": self._download,
            "alias": self._alias,
            "read_lock": self._read_lock,
        }

    async def answer(self, request: Message) -> Message:
        """Return the result of a request; its key `failed` names the kind of failure."""
        try:
            return await self._operations[request["op"]](request)
        except InvalidMatchSpecError as error:
            return {"failed": "spec", "text": str(error)}
        except GatewayError as error:
            return {"failed": "channel", "text": str(error)}
        except (InstallerError, IoError, OSError) as error:
            return {"failed": "install", "text": str(error)}

    def _channels_of(self, request: Message) -> _Channels:
        facts = {key: request[key] for key in ("channels", "mirrors", "platform", "cache")}
        key = json.dumps(facts, sort_keys=True)
        if key not in self._channels:
            timeout = request.get("request_timeout", _REPODATA_TIMEOUT)
            self._channels[key] = _Channels(
                facts["channels"], facts["mirrors"], facts["platform"], facts["cache"], timeout
            )
        return self._channels[key]

    async def _alias(self, _request: Message) -> Message:
        """Return the default prefix of a channel's bare name."""
        return {"alias": str(rattler.Channel("name").base_url).rstrip("/").removesuffix("/name")}

    async def _read_lock(self, request: Message) -> Message:
        """Return a lock file of pixi, as plain data."""
        try:
            lock = rattler.LockFile.from_path(Path(request["path"]))
        except Exception as error:  # noqa: BLE001 -- its errors share no class of their own
            return {"failed": "lock", "text": str(error)}
        return {
            "environments": {name: _locked(one, request["platform"]) for name, one in lock.environments()}
        }

    async def _solve(self, request: Message) -> Message:
        try:
            records = await self._channels_of(request).solve(request)
        except SolverError as error:
            return await self._missing(request) or {"unsolvable": str(error)}
        return {"records": [describe(record) for record in records]}

    async def _missing(self, request: Message) -> Message | None:
        """Return which of the packages that were asked for by name no channel has at all."""
        channels = self._channels_of(request)
        names = [rattler.MatchSpec(spec).name.normalized for spec in request["specs"]]
        known = {record.name.normalized for record in await channels.records(names)}
        for name in names:
            if name not in known and not name.startswith("__"):
                return {"missing": name, "near": await channels.near(name)}
        return None

    async def _versions(self, request: Message) -> Message:
        channels = self._channels_of(request)
        name = request["name"]
        records = await channels.records([name])
        if not records:
            return {"missing": name, "near": await channels.near(name)}
        # Strict priority: what a more important channel has under this name hides all others.
        first = next(s.base_url for s in channels.sources if any(_is_from(r, s.base_url) for r in records))
        found = [_build_of(record) for record in records if _is_from(record, first)]
        return {"records": found, "elsewhere": await channels.elsewhere(name)}

    async def _download(self, request: Message) -> Message:
        """Download one archive; the caller checks its hash."""
        try:
            await download(request["url"], Path(request["target"]), request["mirrors"], request["stall"])
        except TimeoutError as error:
            return {"failed": "stalled", "text": str(error)}
        return {}

    async def _install(self, request: Message) -> Message:
        records = [_record(facts, request["archives"]) for facts in request["packages"]]
        for record in records:
            if wrong := _wrong_hash(record, Path(request["verified"])):
                return {"failed": "hash", "text": wrong}
        # The caller may be killed meanwhile; the next builder of this prefix waits until this is done.
        lock = os.open(request["lock"], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return await self._fill(request, records)
        finally:
            os.close(lock)

    async def _fill(self, request: Message, records: list[rattler.RepoDataRecord]) -> Message:
        # mypy takes methods without a body for abstract ones; of these most are to do nothing.
        downloads = Downloads()  # type: ignore[abstract]
        installing = asyncio.ensure_future(
            rattler.install(
                records,
                request["place"],
                installed_packages=[],
                execute_link_scripts=False,
                client=client(request["mirrors"], None),
                reporter=downloads,
                package_cache=rattler.PackageCache(request["package_cache"]),
            )
        )
        while not (await asyncio.wait([installing], timeout=_LOOK))[0]:
            if (silent := downloads.silence()) > request["stall"]:
                # What rattler is still waiting for goes on: this process is of no more use.
                return {"failed": "stalled", "text": f"a download timed out: no data for {silent:.0f} s"}
        await installing
        return {}


def _locked(environment: rattler.Environment, platform: str) -> Message:
    """Return an environment of a lock file: its platforms, and for one of them its packages."""
    wanted = next((p for p in environment.platforms() if str(p.name) == platform), None)
    packages = []
    for package in (environment.packages(wanted) or []) if wanted is not None else []:
        facts: tuple[str, str, str, str]
        if isinstance(package, rattler.CondaLockedPackage):
            record = package.package_record
            assert record is not None
            facts = ("conda", record.name.normalized, str(record.version), str(record.build))
        else:
            assert isinstance(package, rattler.PypiLockedPackage)
            facts = ("pypi", package.name, str(package.version), "")
        packages.append([*facts, _stated_sha256(package), package.location])
    return {
        "platforms": [str(one.name) for one in environment.platforms()],
        "packages": packages,
    }


def _stated_sha256(package: rattler.LockedPackage) -> str:
    try:
        hashes = package.hashes
        return hashes.sha256.hex() if hashes is not None and hashes.sha256 is not None else ""
    except AttributeError:  # none are stated, for which py-rattler 0.28 has no word
        return ""


def describe(record: rattler.RepoDataRecord) -> Message:
    """Return a record in the form of a lock, and the whole record as JSON."""
    facts = json.loads(record.to_json())
    return {
        "name": record.name.normalized,
        "version": str(record.version),
        "build": facts.get("build", ""),
        "url": record.url,
        "sha256": facts.get("sha256", ""),
        "md5": facts.get("md5", ""),
        "dependencies": merged(facts.get("depends", ())),
        "record": json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=False),
    }


def merged(depends: Iterable[str]) -> list[tuple[str, str]]:
    """Return one dependency text per package name, sorted by name.

    conda-lock's format has a mapping where repodata has a list, in which a name may stand twice (`numpy
    >=1.21,<3` and `numpy 1.26.*|2.*`). Both hold, so that they are joined by commas; a choice (`|`) binds
    less tightly than a comma and gets parentheses.
    """
    versions: dict[str, list[str]] = {}
    builds: dict[str, list[str]] = {}
    for text in depends:
        spec = rattler.MatchSpec(text, strict=False)
        name = spec.name.normalized
        versions.setdefault(name, [])
        if spec.version not in (None, "*", *versions[name]):
            versions[name].append(str(spec.version))
        if spec.build not in (None, "*", *builds.get(name, ())):
            builds.setdefault(name, []).append(str(spec.build))
    return [(name, _joined(versions[name], builds.get(name, []))) for name in sorted(versions)]


def _joined(versions: Sequence[str], builds: Sequence[str]) -> str:
    several = len(versions) > 1
    version = ",".join(f"({v})" if several and "|" in v else v for v in versions)
    # Two patterns for one build string cannot be written as one; conda-lock's own writer keeps none.
    build = builds[0] if len(builds) == 1 else ""
    return f"{version or '*'} {build}" if build else version


def _build_of(record: rattler.RepoDataRecord) -> Message:
    facts = json.loads(record.to_json())
    asked = [rattler.MatchSpec(text, strict=False) for text in facts.get("depends", ())]
    about = [spec.version for spec in asked if spec.name.normalized in ("python", "python_abi")]
    specs = [rattler.VersionSpec(text) for text in about if text not in (None, "*")]
    fitting = [minor for minor in _MINORS if all(_allows(spec, minor) for spec in specs)]
    return {
        "version": str(record.version),
        "build": facts.get("build", ""),
        "timestamp": facts.get("timestamp"),
        "pythons": fitting if specs else None,
    }


def _allows(spec: rattler.VersionSpec, minor: str) -> bool:
    # `python >=3.11.4,<3.12` is met by a late patch release, `python_abi 3.11.*` by the bare version.
    return spec.matches(rattler.Version(f"{minor}.99")) or spec.matches(rattler.Version(minor))


def _virtual(name: str, version: str, build: str) -> rattler.GenericVirtualPackage:
    return rattler.GenericVirtualPackage(PackageName(name), rattler.Version(version), BuildString(build))


def _is_from(record: rattler.RepoDataRecord, base_url: str) -> bool:
    return str(record.channel).rstrip("/") == base_url.rstrip("/")


def _record(facts: Message, archives: dict[str, str]) -> rattler.RepoDataRecord:
    url = facts["url"]
    channel, subdir, filename = url.rsplit("/", 2)
    record = rattler.PackageRecord(
        name=facts["name"],
        version=facts["version"],
        build=BuildString(facts["build"]),
        build_number=_build_number(facts["build"]),
        subdir=subdir,
        arch=None,
        platform=None,
        sha256=bytes.fromhex(facts["sha256"]),
        md5=bytes.fromhex(facts["md5"]) if facts["md5"] else None,
    )
    place = Path(archives[url]).as_uri() if url in archives else url
    return rattler.RepoDataRecord(record, file_name=filename, url=place, channel=f"{channel}/")


def _build_number(build: str) -> int:
    number = build.rpartition("_")[2]
    return int(number) if number.isdigit() else 0


def _wrong_hash(record: rattler.RepoDataRecord, verified: Path) -> str | None:
    """Return the problem of an archive on disk whose hash is wrong; rattler does not check such archives."""
    parts = urlsplit(record.url)
    if parts.scheme != "file":
        return None
    path = Path(unquote(parts.path))
    expected = (record.sha256 or b"").hex()
    known = path.stat()
    state = f"{path}\n{known.st_size} {known.st_mtime_ns} {known.st_ino}\n"
    note = verified / f"archive-{expected}"
    if note.exists() and note.read_text("utf-8", "surrogateescape") == state:
        return None
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_HASHED_AT_ONCE):
            digest.update(chunk)
    if digest.hexdigest() != expected:
        return (
            f"Hash mismatch for {record.name.normalized} {record.version}: the lock says {expected}, "
            f"{path} has {digest.hexdigest()}"
        )
    verified.mkdir(parents=True, exist_ok=True)
    temporary = verified / f".archive-{expected}.{os.getpid()}"
    temporary.write_text(state, "utf-8", "surrogateescape")
    temporary.replace(note)
    return None


def main() -> None:
    """Answer requests until the input ends, then exit without shutting down."""
    # Libraries may write to standard output: it is the answers' alone, and becomes standard error.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    helper = Helper()
    loop = asyncio.new_event_loop()
    for line in sys.stdin:
        answers.write(json.dumps(loop.run_until_complete(helper.answer(json.loads(line)))) + "\n")
        answers.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
