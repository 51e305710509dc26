"""Solves the PyPI packages of an environment with uv, and chooses one archive for each package."""

from __future__ import annotations

import contextlib
import functools
import html
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import Version

from bisect_env.environments import lockfiles
from bisect_env.environments.commits import CommitBuilder
from bisect_env.environments.conda_lock import python_of
from bisect_env.environments.download import download, file_name, sha256_of
from bisect_env.environments.index import LOGIN_HINT, PypiCatalogue, advice, day_of
from bisect_env.environments.interpreters import Interpreter, machine_interpreters
from bisect_env.environments.lock import (
    LockedPackage,
    PackageNotFoundError,
    UnbuildableError,
    UnsolvableError,
)
from bisect_env.environments.request import EnvironmentRequest
from bisect_env.environments.uv_tool import (
    CACHE_CONTROL,
    Uv,
    build_cache,
    is_transient,
    plain_words,
    toml,
)
from bisect_env.environments.validation import provided_to_pypi
from bisect_env.environments.wheels import choose_wheel, tag_ranks
from bisect_env.errors import IndexUnavailableError, InfrastructureError
from bisect_env.matrix.versions import may_build
from bisect_env.running import Finished
from bisect_env.secrets import without_credentials
from bisect_env.temporary import temporary

_WANTS_NETWORK = "network was disabled"
"""Part of uv's error message if it needs the network but was run with `--offline`."""
_UNDATED = re.compile(r"`([^`]+)` is missing an upload date")
_UNKNOWN = re.compile(r"\b(\S+) was not found in the package registry")
# uv takes a package for unknown if its index wants other credentials, and names that index in a hint.
_REFUSED = re.compile(
    r"^hint: An index (?:URL )?\((\S+)\) .*\b(?:401 Unauthorized|403 Forbidden)", re.MULTILINE
)
_FAILED = re.compile(r"\bFailed to fetch: `?([^\s`]+)")


class PypiSolver:
    """A solver for the PyPI packages of one environment request.

    Args:
        request: The request; its conda part is ignored.
        cache_dir: The cache directory of bisect-env.
        timeout: Time limit in seconds for each run of uv, including builds that are needed for metadata.
        conda: The solved conda packages, including Python, to which the PyPI packages are added. The PyPI
            packages that these provide keep their versions. If empty, use an interpreter of this machine.

    Raises:
        InterpreterNotFoundError: The requested Python is neither installed nor downloadable.
        InfrastructureError: This machine has no Python that uv can run.
    """

    def __init__(
        self,
        request: EnvironmentRequest,
        cache_dir: Path,
        timeout: float,
        conda: Sequence[LockedPackage] = (),
    ) -> None:
        self._request = request
        self._cache_dir = cache_dir
        self._timeout = timeout
        self._provided = provided_to_pypi(conda)
        self._uv = Uv(cache_dir, request.index, indexes=request.indexes, find_links=request.find_links)
        self._python: list[str | Path]
        if conda:
            version = python_of(conda)
            # The interpreter that the environment will have, for its wheel tags; it is not installed yet.
            self._interpreter = Interpreter(Path("/nowhere/python"), version)
            # uv needs an interpreter to run. Use another one, if possible of the same minor version.
            self._python = ["-p", _another_than(self._interpreter).path, "--python-version", version]
        else:
            self._interpreter = machine_interpreters().find(request.python)
            self._python = ["-p", self._interpreter.path]

    def solve(self, prefer: Sequence[LockedPackage] = ()) -> list[LockedPackage]:
        """Choose the PyPI packages that satisfy the request.

        Args:
            prefer: Packages of a neighbouring lock, which are reused where possible.

        Raises:
            UnsolvableError: No set of PyPI packages satisfies the request, together with the conda packages.
            IndexUnavailableError: The package index fails.
            InfrastructureError: uv fails.
        """
        with temporary("commits") as folder:
            direct, built = self._commits(folder)
            known = [package for package in prefer if package.name not in built and not package.is_conda]
            packages = self._packages(known, direct, built)
        _check_pins(self._request, packages)
        return [package for package in packages if package.name not in self._provided]

    def _commits(self, folder: Path) -> tuple[list[str], dict[str, LockedPackage]]:
        """Return uv's requirements, and the lock entries, of the packages that are built from commits.

        Each requirement names a path with the metadata of the commit. Metadata are written to `folder`.
        """
        direct, built = [], {}
        for number, source in enumerate(self._request.commits):
            own = folder / str(number)
            own.mkdir()
            try:
                builder = CommitBuilder(self._cache_dir, self._uv)
                place, version = builder.stand_in(source, self._interpreter, own)
            except UnbuildableError as error:
                if error.transient:
                    raise InfrastructureError(
                        error.message, remedy="correct that, then give the same command again"
                    ) from error
                raise UnsolvableError(error.message, building=True) from error
            direct.append(f"{source.package} @ {place.as_uri()}")
            built[source.name] = source.locked(version)
        return direct, built

    def _packages(
        self, prefer: Sequence[LockedPackage], direct: Sequence[str], built: Mapping[str, LockedPackage]
    ) -> list[LockedPackage]:
        """Solve the request, and choose an archive for each package.

        Args:
            prefer: PyPI packages of a neighbouring lock.
            direct: Additional requirements, for packages that are built from commits.
            built: Maps the names of these packages to the packages of the lock.
        """
        request, ranks = self._request, tag_ranks(self._interpreter)
        wheels_only: set[str] = set()
        while True:
            packages: list[LockedPackage] = []
            refused: set[str] = set()
            for entry in self._solved(wheels_only, prefer, direct):
                if entry["name"] in built:
                    packages.append(built[entry["name"]])
                    continue
                wheels = {_name_of(wheel): wheel for wheel in entry.get("wheels", ())}
                best = choose_wheel(wheels, ranks)
                if best is not None:
                    chosen = wheels[best]
                elif "sdist" in entry and may_build(request.allow_source, entry["name"]):
                    chosen = entry["sdist"]
                elif "sdist" in entry and request.allow_source and entry["name"] not in wheels_only:
                    refused.add(entry["name"])
                    continue
                elif "archive" in entry and (
                    _name_of(entry["archive"]).endswith(".whl")
                    or may_build(request.allow_source, entry["name"])
                ):
                    chosen = entry["archive"]
                else:
                    raise UnsolvableError(_no_file(entry, self._interpreter))
                packages.append(_locked(entry, chosen))
            if not refused:
                return packages
            # uv can only be told which packages must not be built. Solve again with those that the last
            # solution would have to build. Each round adds at least one package, so the loop ends.
            wheels_only |= refused

    def _solved(
        self, wheels_only: set[str], prefer: Sequence[LockedPackage], direct: Sequence[str]
    ) -> list[Mapping[str, Any]]:
        """Solve the request with uv, and return the package entries of the `pylock.toml` that uv writes."""
        request, uv = self._request, self._uv
        own = None
        if request.allow_source:
            own = build_cache(self._cache_dir, request.exclude_newer_text, request.python)
        # Use an empty directory, because uv reads the settings of a project in its working directory.
        with temporary("lock") as cwd:
            (cwd / "requirements.in").write_text("\n".join((*request.requirements, *direct, "")), "utf-8")
            args: list[str | Path] = ["pip", "compile", "requirements.in", *self._python]
            if request.sources:
                # uv reads from this file which index a package must come from.
                (cwd / "pyproject.toml").write_text(_sources(request), "utf-8")
                args.append("pyproject.toml")
            args += ["--format", "pylock.toml", "--no-header", "--no-annotate"]
            if prefer:
                # If the output file exists, uv prefers the versions in it.
                known = lockfiles.text(prefer, without_credentials(uv.index))
                (cwd / "pylock.toml").write_text(known, "utf-8")
                args += ["-o", "pylock.toml"]
            if self._provided:
                lines = [f"{name}=={version}" for name, version in sorted(self._provided.items())]
                (cwd / "constraints.txt").write_text("\n".join((*lines, "")), "utf-8")
                args += ["-c", "constraints.txt"]
            if not request.allow_source:
                args += ["--only-binary", ":all:"]
            for name in sorted(wheels_only):
                args += ["--only-binary", name]
            if request.dependencies == "none":
                args.append("--no-deps")
            if request.overrides:
                (cwd / "overrides.in").write_text("\n".join((*request.overrides, "")), "utf-8")
                args += ["--overrides", "overrides.in"]
            builds = bool(request.allow_source)
            if request.archives and without_credentials(uv.index) == uv.index:
                (cwd / "archives.html").write_text(_links(request.archives), "utf-8")
                args.append("--no-index")
                options: dict[str, Any] = {"find_links": [str(cwd / "archives.html")]}
                options |= {"cwd": cwd, "timeout": self._timeout, "builds": builds, "extra": own}
                # Try offline first: the metadata of wheels never change, but uv would check each one again.
                finished = uv.run([*args, "--offline"], **options)
                if finished.returncode != 0 and _WANTS_NETWORK in plain_words(finished.stderr):
                    finished = uv.run(args, **options)
            else:
                if request.exclude_newer_text is not None:
                    args += ["--exclude-newer", request.exclude_newer_text]
                    for name in _dated_by_name(request):
                        args += ["--exclude-newer-package", f"{name}=false"]
                finished = uv.run(args, cwd=cwd, timeout=self._timeout, builds=builds, extra=own)
        if finished.returncode != 0 or finished.timed_out:
            raise self._failure(finished)
        return list(tomllib.loads(finished.stdout).get("packages", ()))

    def _failure(self, finished: Finished) -> UnsolvableError | InfrastructureError:
        request, words = self._request, plain_words(finished.stderr)
        index = without_credentials(self._uv.index)
        if finished.timed_out:
            if request.allow_source:
                return UnsolvableError(f"not solved in {self._timeout:.0f} s: {words}", building=True)
            return IndexUnavailableError(
                f"the package index {index} gave no solution in {self._timeout:.0f} s",
                remedy="check the network, then give the same command again",
            )
        no_solution = "No solution found" in words
        refused = _REFUSED.search(words) if _UNKNOWN.search(words) else None
        if refused is not None:
            index = without_credentials(refused[1])
        elif failed := _FAILED.search(words):
            index = self._uv.index_of(failed[1])
        if refused is not None or (not no_solution and is_transient(words)):
            return IndexUnavailableError(
                f"the package index {index} cannot be used: {words}",
                tried=f"solving for Python {request.python} with {', '.join(request.requirements)}",
                remedy="check the network, proxy, credentials and free disk space, then give the same "
                f"command again{'' if refused is None else LOGIN_HINT}",
            )
        if finished.returncode not in (1, 2):
            return InfrastructureError(
                f"uv ended with status {finished.returncode}: {words}",
                remedy="give the same command again; if it stays so, report it to uv",
            )
        for name in dict.fromkeys(_UNKNOWN.findall(words)):
            if meant := advice(name, self._uv.index):
                words += f"\nThere is no {name}{meant}"
        if undated := dict.fromkeys(_UNDATED.findall(finished.stderr)):
            # First, because lists of combinations show the first line only.
            words = "\n".join((*_without_dates(request, self._uv.asked, undated), words))
        if "--no-build" in words:
            words += "\nA matrix allows to build from source with `solver: {allow_source: true}`."
        return UnsolvableError(words, building=not no_solution and "Failed to build" in words)


def _another_than(interpreter: Interpreter) -> Interpreter:
    able = machine_interpreters().installed()
    if not able:
        raise InfrastructureError("uv finds no Python that it can run", remedy="install Python 3.11 or newer")
    same = [i for i in able if i.release[:2] == interpreter.release[:2]]
    return max(same or able, key=lambda i: i.release)


def _sources(request: EnvironmentRequest) -> str:
    """Return the text of a `pyproject.toml` that tells uv which index each package must come from."""
    names = json.dumps(sorted(request.sources))
    lines = ["[project]", 'name = "indexes"', 'version = "0"', f"dependencies = {names}", "[tool.uv.sources]"]
    lines += [
        f"{json.dumps(name)} = {{index = {json.dumps(index)}}}" for name, index in request.sources.items()
    ]
    for one in request.indexes:
        if one.name in request.sources.values():
            lines += ["[[tool.uv.index]]", f"name = {json.dumps(one.name)}", f"url = {json.dumps(one.url)}"]
            lines += ["explicit = true", f"cache-control = {toml(CACHE_CONTROL)}"]
    return "\n".join((*lines, ""))


def _dated_by_name(request: EnvironmentRequest) -> Iterator[str]:
    """Yield the packages that are pinned to a development version dated before `exclude_newer`.

    The date comes from the version itself, such as `2.9.0.dev20260131`.
    """
    for name, version in request.pins.items():
        day = day_of(Version(version))
        if day is not None and request.exclude_newer is not None and day < request.exclude_newer:
            yield str(canonicalize_name(name.partition("[")[0]))


def _without_dates(
    request: EnvironmentRequest, indexes: Sequence[str], files: Iterable[str]
) -> Iterator[str]:
    """Yield a message for each index that states no upload dates for some of the given files.

    Args:
        request: The request.
        indexes: URLs of the indexes that are asked for packages without an index of their own.
        files: Names of files without upload dates.
    """
    urls = {one.name: one.url for one in request.indexes}
    packages: dict[str, set[str]] = {}
    for file in files:
        name = _package_of(file)
        own = urls.get(request.sources.get(name, ""))
        places = [own] if own is not None else [url for url in indexes if file in _undated(name, url)]
        where = " or ".join(map(without_credentials, places or indexes))
        packages.setdefault(where, set()).add(name)
    for where, names in packages.items():
        yield (
            f"The index {where} gives no upload dates of {', '.join(sorted(names))}, so that "
            "`exclude_newer` and date axes hide all files there."
        )


@functools.lru_cache(64)
def _undated(package: str, index: str) -> frozenset[str]:
    """Return the names of a package's files for which an index states no upload date."""
    with contextlib.suppress(PackageNotFoundError, IndexUnavailableError):
        files = PypiCatalogue().files(package, index=index)
        return frozenset(file.filename for file in files if file.uploaded is None)
    return frozenset()


def _package_of(file: str) -> str:
    # The name of a wheel holds no hyphen; the version of a source distribution follows the last one.
    name = file.partition("-")[0] if file.endswith(".whl") else file.rpartition("-")[0]
    return str(canonicalize_name(name))


def _links(archives: Iterable[str]) -> str:
    """Return an HTML page with links to archives, in the format of a package index."""
    lines = (f'<a href="{html.escape(url)}">{html.escape(file_name(url))}</a>' for url in archives)
    return "\n".join(("<!DOCTYPE html>", "<html><body>", *lines, "</body></html>", ""))


def _check_pins(request: EnvironmentRequest, packages: Iterable[LockedPackage]) -> None:
    versions = {package.name: package.version for package in packages}
    for name, version in request.pins.items():
        normal = canonicalize_name(name.partition("[")[0])
        if normal not in versions or not _same_version(versions[normal], Version(version)):
            raise UnsolvableError(
                f"{name} is asked for as {version}, and an override makes it {versions.get(normal, 'absent')}"
            )


def _same_version(text: str, version: Version) -> bool:
    # `==1.0` is also met by 1.0+cpu.
    other = Version(text)
    return other == version or (version.local is None and Version(other.public) == version)


def _address_of(archive: Mapping[str, Any]) -> str:
    return str(archive.get("url") or Path(archive["path"]).absolute().as_uri())


def _name_of(archive: Mapping[str, Any]) -> str:
    return str(archive.get("name") or file_name(_address_of(archive)))


def _locked(entry: Mapping[str, Any], archive: Mapping[str, Any]) -> LockedPackage:
    version = entry.get("version")
    if version is None:
        raise UnsolvableError(f"{entry['name']} comes from an archive whose version is not stated")
    url = _address_of(archive)
    sha256 = archive.get("hashes", {}).get("sha256") or _sha256_of(url)
    return LockedPackage(canonicalize_name(entry["name"]), version, "pip", without_credentials(url), sha256)


def _sha256_of(url: str) -> str:
    # Some indexes, such as plain directories, state no hashes. Compute the hash of the current file.
    with temporary("hash") as folder:
        try:
            download(url, folder / "archive")
            return sha256_of(folder / "archive")
        except (OSError, UnbuildableError) as error:
            raise IndexUnavailableError(
                str(error),
                tried="making up for the hash that the index does not state",
                remedy="check the index, then give the same command again",
            ) from error


def _no_file(entry: Mapping[str, Any], interpreter: Interpreter) -> str:
    if "vcs" in entry or "directory" in entry:
        return f"{entry['name']} comes from a repository or folder, which has no fixed content to lock"
    return (
        f"{entry['name']} {entry['version']} has no wheel for CPython {interpreter.version} "
        f"({interpreter.abi}) on this platform, and building from source is not allowed or not possible"
    )
