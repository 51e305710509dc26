"""Defines requests: the environment that a combination needs, and packages to build from commits. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from bisect_env.environments.lock import BuildLimit, LockedPackage, UnbuildableError
from bisect_env.errors import UsageError
from bisect_env.matrix.versions import PackageIndex, host_platform
from bisect_env.secrets import MASK, is_secret, without_credentials


@dataclass(frozen=True, slots=True)
class CondaRequest:
    """The conda packages and Python that an environment requests from conda channels.

    Attributes:
        channels: Names or addresses of channels, highest priority first. A package comes from the first
            channel that has it.
        pins: Maps package names to exact versions.
        builds: Maps package names to patterns that the build string must match (`cuda*`).
        packages: Additional match specs, such as `cuda-version 12.8`.
        virtual_packages: Maps virtual packages, which describe the host, to versions (`__cuda` to `12.8`),
            and `__archspec` to a microarchitecture. This host is not examined, so locks do not depend on it.
        engine: The solver: `rattler`, or `conda-lock` with the installed conda, mamba or micromamba.
    """

    channels: tuple[str, ...]
    pins: Mapping[str, str] = field(default_factory=dict)
    builds: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    virtual_packages: Mapping[str, str] = field(default_factory=dict)
    engine: Literal["rattler", "conda-lock"] = "rattler"

    def specs(self, python: str) -> tuple[str, ...]:
        """Return conda match specs, such as `numpy ==2.1.0`, of Python and all requested packages.

        Args:
            python: Python version: `3.11`, `3.11.7`, or "" for any.
        """
        exact = python.count(".") > 1
        own = f"python =={python}" if exact else f"python {python}.*" if python else "python"
        pins = (
            f"{name} =={version} {self.builds.get(name, '')}".rstrip() for name, version in self.pins.items()
        )
        return (own, *pins, *self.packages)


@dataclass(frozen=True, slots=True)
class EnvironmentRequest:
    """A request for one environment, which a solver turns into a lock.

    Attributes:
        python: Python version: `3.11` (its newest patch release on this host) or `3.11.7`. May be "" (any) if
            `conda` is set, or if the image provides Python.
        pins: Maps each package of an axis to its exact version. A name may have extras (`dask[array]`).
        packages: Additional requirements in PEP 508 format, such as `numpy>=1.24`.
        dependencies: `resolve` installs dependencies and prefers the versions of a neighbouring lock;
            `newest` installs dependencies without this preference; `none` installs no dependencies.
        overrides: Requirements that replace all requirements of other packages for the same packages.
        allow_source: Whether source distributions may be built: True, False, or only the named packages.
        index: URL of the package index; None for the configured one.
        indexes: Additional indexes with higher priority than `index`.
        sources: Maps a package to the name of the index in `indexes` that it must come from.
        find_links: Directories and web pages with additional archives.
        platform: conda's name of the platform, such as `linux-64`.
        exclude_newer: Ignore files uploaded at or after this time (see `matrix.scalars.cutoff`); None for no
            limit.
        conda: The packages from conda channels; None for an environment of PyPI packages only.
        commits: Packages to build from commits; they are not listed in `pins`.
        image: Name or exact reference of the container image; "" for none. Without `python` and `conda`, the
            image itself is the environment.
        archives: URLs, each ending in `#sha256=…`, of the wheels that the solver may choose; if empty, it may
            choose any file on the index.

    Raises:
        UsageError: A requirement has an invalid format. This check also prevents that a text such as
            `--index-url ...` reaches the solver, which would treat it as an option.
    """

    python: str
    pins: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    dependencies: Literal["resolve", "newest", "none"] = "resolve"
    overrides: tuple[str, ...] = ()
    allow_source: bool | frozenset[str] = False
    index: str | None = None
    indexes: tuple[PackageIndex, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    find_links: tuple[str, ...] = ()
    platform: str = field(default_factory=host_platform)
    exclude_newer: datetime | None = None
    conda: CondaRequest | None = None
    image: str = ""
    archives: tuple[str, ...] = ()
    commits: tuple[CommitSource, ...] = ()

    def __post_init__(self) -> None:
        for text in (*self.requirements, *self.overrides):
            _check_requirement(text)
        if self.exclude_newer is not None and self.exclude_newer.tzinfo is None:
            raise ValueError("exclude_newer needs a time zone: a naive time means another day elsewhere")

    @property
    def requirements(self) -> tuple[str, ...]:
        """Return the pins as requirements (`numpy==2.1.0`), followed by `packages`."""
        return (*(f"{name}=={version}" for name, version in self.pins.items()), *self.packages)

    @property
    def exclude_newer_text(self) -> str | None:
        """Return `exclude_newer` as RFC 3339 text in UTC."""
        if self.exclude_newer is None:
            return None
        return self.exclude_newer.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    @property
    def key(self) -> str:
        """Return a canonical JSON text of the request. Equal requests have equal texts."""
        allowed = self.allow_source if isinstance(self.allow_source, bool) else sorted(self.allow_source)
        facts = asdict(self) | {
            "packages": sorted(self.packages),
            "overrides": sorted(self.overrides),
            "allow_source": allowed,
            "exclude_newer": self.exclude_newer_text,
            "archives": sorted(self.archives),
            "commits": sorted(one.url for one in self.commits),
        }
        if self.conda is not None:
            facts["conda"] = asdict(self.conda) | {"packages": sorted(self.conda.packages)}
        return json.dumps(facts, sort_keys=True)


def _check_requirement(text: str) -> None:
    remedy = "write it like 'numpy>=1.24' or 'scipy==1.13.1'"
    if "\n" in text or "\r" in text:
        raise UsageError(f"{text!r} is not one requirement: it has several lines", remedy=remedy)
    try:
        Requirement(text)
    except InvalidRequirement as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(f"{text!r} is not a requirement: {reason}", remedy=remedy) from None


# --------------------------------------------------------------------------------------------------
# Packages that are built from commits, and the settings of their builds. Pure.

_PREFIX = "git+"


@dataclass(frozen=True, slots=True)
class CommitRecipe:
    """The settings for building a package from a commit.

    Attributes:
        subdirectory: Path of the package in the repository; "" for the root.
        env: Environment variables of the build, as sorted pairs.
        requires: Build requirements to install instead of the requirements that the commit states.
        exclude_newer: Time (RFC 3339). Build requirements uploaded at or after it are ignored. If "", it is
            derived from the date of the commit.
        time_limit: Time limit of the build in seconds. Does not affect the content of the wheel.
        memory: Memory limit of each build process in bytes; 0 for no limit. Does not affect the wheel.
        partial: Whether to build even if submodules or git-lfs files are missing, which are never fetched.
        index: URL of the package index for build requirements; "" for the configured one.
    """

    subdirectory: str = ""
    env: tuple[tuple[str, str], ...] = ()
    requires: tuple[str, ...] = ()
    exclude_newer: str = ""
    time_limit: float = 1800.0
    memory: int = 0
    partial: bool = False
    index: str = ""

    @property
    def fragment(self) -> str:
        """Return the non-default build settings as a URL fragment in pip's format, without secrets."""
        facts: list[tuple[str, str]] = []
        if self.subdirectory:
            facts.append(("subdirectory", self.subdirectory))
        facts += [(f"env.{name}", MASK if is_secret(name, value) else value) for name, value in self.env]
        facts += [("requires", text) for text in self.requires]
        if self.exclude_newer:
            facts.append(("exclude_newer", self.exclude_newer))
        if self.partial:
            facts.append(("partial", "true"))
        if self.index:
            facts.append(("index", without_credentials(self.index)))
        return urlencode(facts, quote_via=quote, safe="/:,")

    @classmethod
    def of(cls, fragment: str) -> CommitRecipe:
        """Parse build settings from a URL fragment that `CommitRecipe.fragment` returned.

        Raises:
            ValueError: The text has another format.
        """
        facts = parse_qsl(fragment, keep_blank_values=True)
        plain = {name: value for name, value in facts if not name.startswith("env.") and name != "requires"}
        return cls(
            subdirectory=plain.get("subdirectory", ""),
            env=tuple((name[4:], value) for name, value in facts if name.startswith("env.")),
            requires=tuple(value for name, value in facts if name == "requires"),
            exclude_newer=plain.get("exclude_newer", ""),
            partial=plain.get("partial") == "true",
            index=plain.get("index", ""),
        )


def _with_user(url: str) -> str:
    """Return a repository's URL without secrets, but with the user name that an `ssh://` URL needs."""
    parts, public = urlsplit(url), without_credentials(url)
    # In a web address, the user name may be a token.
    if parts.scheme in ("http", "https") or not parts.username:
        return public
    return public.replace("://", f"://{parts.username}@", 1)


@dataclass(frozen=True, slots=True)
class CommitSource:
    """A package to build from a commit.

    Attributes:
        package: Name of the package, optionally with extras (`dask[array]`).
        repository: URL of the repository, or absolute path of a local clone.
        commit: Full hash of the commit.
        build: Settings of the build.
    """

    package: str
    repository: str
    commit: str
    build: CommitRecipe = field(default_factory=CommitRecipe)

    @property
    def name(self) -> str:
        """Return the normalised name of the package, without extras."""
        return str(canonicalize_name(self.package.partition("[")[0]))

    @property
    def url(self) -> str:
        """Return the URL for a lock, in pip's format: `git+https://…@<commit>#<settings of the build>`."""
        is_path = "://" not in self.repository
        place = Path(self.repository).as_uri() if is_path else _with_user(self.repository)
        fragment = self.build.fragment
        return f"{_PREFIX}{place}@{self.commit}{'#' if fragment else ''}{fragment}"

    @property
    def limit(self) -> BuildLimit:
        """Return the time and memory limits for building the package."""
        return BuildLimit(self.name, self.build.time_limit, self.build.memory)

    @property
    def digest(self) -> str:
        """Return the hash of the commit and build settings, which a lock records as the package's hash."""
        return hashlib.sha256(f"{self.commit}#{self.build.fragment}".encode()).hexdigest()

    def locked(self, version: str) -> LockedPackage:
        """Return the package built from this commit as an entry of a lock.

        Args:
            version: Version of the package at this commit.
        """
        return LockedPackage(self.name, version, "pip", self.url, self.digest)

    @classmethod
    def of(cls, package: LockedPackage, limits: Iterable[BuildLimit] = ()) -> CommitSource:
        """Convert a lock entry that `locked` made back to its `CommitSource`.

        Args:
            package: A package that is built from a commit.
            limits: Time and memory limits of builds; packages without an entry get the defaults.

        Raises:
            UnbuildableError: The URL names no commit, or its subdirectory leaves the repository.
        """
        address, _, fragment = package.url.removeprefix(_PREFIX).partition("#")
        place, at, commit = address.rpartition("@")
        try:
            build = CommitRecipe.of(fragment)
        except ValueError:
            at = ""
        if not at or not re.fullmatch(r"[0-9a-f]{40}([0-9a-f]{24})?", commit):
            raise UnbuildableError(f"{package.url} names no commit", transient=False)
        if ".." in build.subdirectory.split("/") or build.subdirectory.startswith("/"):
            raise UnbuildableError(f"{package.url} leaves its repository", transient=False)
        repository = unquote(urlsplit(place).path) if place.startswith("file://") else place
        for limit in limits:
            if limit.package == package.name:
                build = replace(build, time_limit=limit.seconds, memory=limit.memory)
        return cls(package.name, repository, commit, build)
