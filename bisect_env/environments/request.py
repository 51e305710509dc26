"""Describes which environment a combination asks for, and a package that is built from a commit. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field, replace
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
    """The part of an environment that comes from conda channels, with its Python.

    Attributes:
        channels: Names or addresses, most important first; each package comes from the first that has it.
        pins: Package to exact version.
        builds: Package to a pattern that its build string has to match (`cuda*`).
        packages: Further specs, as conda writes them (`cuda-version 12.8`).
        virtual_packages: Name to version of what the host is to have (`__cuda`); `__archspec` to the name of
            a microarchitecture. Never asked of this host, so that locks are the same everywhere.
        engine: What solves: `rattler`, or `conda-lock` with the conda, mamba or micromamba that is here.
    """

    channels: tuple[str, ...]
    pins: Mapping[str, str] = field(default_factory=dict)
    builds: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    virtual_packages: Mapping[str, str] = field(default_factory=dict)
    engine: Literal["rattler", "conda-lock"] = "rattler"

    def specs(self, python: str) -> tuple[str, ...]:
        """Return all requested packages as match specs, always with Python.

        Args:
            python: `3.11`, `3.11.7`, or "" for any.
        """
        exact = python.count(".") > 1
        own = f"python =={python}" if exact else f"python {python}.*" if python else "python"
        pins = (
            f"{name} =={version} {self.builds.get(name, '')}".rstrip() for name, version in self.pins.items()
        )
        return (own, *pins, *self.packages)

    def facts(self) -> dict[str, object]:
        """Return all of it, for a canonical text."""
        return {
            "channels": list(self.channels),
            "pins": sorted(self.pins.items()),
            "builds": sorted(self.builds.items()),
            "packages": sorted(self.packages),
            "virtual_packages": sorted(self.virtual_packages.items()),
            "engine": self.engine,
        }


@dataclass(frozen=True, slots=True)
class EnvironmentRequest:
    """One environment to lock; equal requests have equal `key`s.

    Attributes:
        python: `3.11` (newest patch release found) or `3.11.7` (exactly that); "" with conda alone: any.
        pins: Package to exact version, for every package axis. A name may carry extras (`dask[array]`).
        packages: Further requirements, as PEP 508 texts.
        dependencies: `none` installs pins and packages alone, whatever their metadata demand; `newest` is
            `resolve` without regard to a neighbour, whose locks are others.
        overrides: Requirements that replace what any metadata say about those packages.
        allow_source: Whether source distributions may be built: all, none, or these packages only.
        index: URL of the package index; None for the configured one.
        indexes: Further indexes that are asked before it.
        sources: Package to the name of the only index among them that it comes from.
        find_links: Folders and pages with further archives.
        platform: conda's name of the platform the environment is for.
        exclude_newer: Files uploaded at or after this moment do not exist (see `matrix.scalars.cutoff`);
            None for the index as it stands.
        conda: What comes from conda channels; None for an environment of PyPI packages alone.
        commits: What is built from commits; none of it stands among the pins.
        image: Name, or exact reference, of the container image that it is in; "" for none. With no `python`
            and no `conda` the image itself is the environment.
        archives: Wheels among which the solver chooses, as URLs that end in `#sha256=…`; none for all that
            the index has.

    Raises:
        UsageError: A requirement cannot be read. Nothing unread is passed on to the solver, where a line
            such as `--index-url ...` would be an option.
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
        """Return the pins as requirements, followed by the further packages."""
        return (*(f"{name}=={version}" for name, version in self.pins.items()), *self.packages)

    @property
    def exclude_newer_text(self) -> str | None:
        """Return `exclude_newer` as RFC 3339 text in UTC."""
        if self.exclude_newer is None:
            return None
        return self.exclude_newer.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    @property
    def key(self) -> str:
        """Return a canonical text of the whole request."""
        allowed = self.allow_source if isinstance(self.allow_source, bool) else sorted(self.allow_source)
        return json.dumps(
            {
                "python": self.python,
                "pins": sorted(self.pins.items()),
                "packages": sorted(self.packages),
                "dependencies": self.dependencies,
                "overrides": sorted(self.overrides),
                "allow_source": allowed,
                "index": self.index,
                **({"indexes": [astuple(one) for one in self.indexes]} if self.indexes else {}),
                **({"sources": sorted(self.sources.items())} if self.sources else {}),
                **({"find_links": self.find_links} if self.find_links else {}),
                "platform": self.platform,
                "exclude_newer": self.exclude_newer_text,
                "conda": self.conda.facts() if self.conda else None,
                **({"image": self.image} if self.image else {}),
                **({"archives": sorted(self.archives)} if self.archives else {}),
                **({"commits": sorted(one.url for one in self.commits)} if self.commits else {}),
            },
            separators=(",", ":"),
        )

    def may_build(self, name: str) -> bool:
        """Return whether this package may be built from its source distribution."""
        if isinstance(self.allow_source, bool):
            return self.allow_source
        return canonicalize_name(name) in {canonicalize_name(allowed) for allowed in self.allow_source}


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
# Describes a package that is built from a commit, with everything that a build needs. Pure.

_PREFIX = "git+"


@dataclass(frozen=True, slots=True)
class CommitRecipe:
    """A recipe for building commits.

    Attributes:
        subdirectory: Where in the repository the package is; "" for its root.
        env: Environment variables, sorted.
        requires: What the build is made with instead of what the commit asks for.
        exclude_newer: First instant (RFC 3339) that is too new for what the build is made with; "" for that
            of the commit.
        time_limit: Seconds. Like `memory` no part of what is built: a build that ends within one limit gives
            the same wheel within another.
        memory: Bytes that one process of the build may take; 0 for no limit.
        partial: Whether to build without submodules and files of git-lfs.
        index: Address of the package index that builds are made from; "" for the configured one.
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
        """Return what changes a wheel and differs from the default, without secrets, in pip's URL format."""
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
        """Read what `fragment` wrote.

        Raises:
            ValueError: It did not.
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


@dataclass(frozen=True, slots=True)
class CommitSource:
    """A package that is to be built from a commit.

    Attributes:
        package: Name, which may carry extras.
        repository: Address, or absolute path of a clone.
        commit: Full hash.
        build: How.
    """

    package: str
    repository: str
    commit: str
    build: CommitRecipe = field(default_factory=CommitRecipe)

    @property
    def name(self) -> str:
        """Return the normalised name."""
        return str(canonicalize_name(self.package.partition("[")[0]))

    @property
    def url(self) -> str:
        """Return the address for a lock in pip's format, with all settings of the build."""
        is_path = "://" not in self.repository
        place = Path(self.repository).as_uri() if is_path else without_credentials(self.repository)
        fragment = self.build.fragment
        return f"{_PREFIX}{place}@{self.commit}{'#' if fragment else ''}{fragment}"

    @property
    def limit(self) -> BuildLimit:
        """Return the time and memory limits of its build."""
        return BuildLimit(self.name, self.build.time_limit, self.build.memory)

    @property
    def digest(self) -> str:
        """Return the hash of commit and recipe, which replaces an archive's hash in a lock."""
        return hashlib.sha256(f"{self.commit}#{self.build.fragment}".encode()).hexdigest()

    def locked(self, version: str) -> LockedPackage:
        """Return the source as a package of a lock."""
        return LockedPackage(self.name, version, "pip", self.url, self.digest)

    @classmethod
    def of(cls, package: LockedPackage, limits: Iterable[BuildLimit] = ()) -> CommitSource:
        """Read what `locked` wrote.

        Args:
            package: As it stands in a lock.
            limits: What builds may take; the defaults for packages without an entry.

        Raises:
            UnbuildableError: The package is no commit, or says more than one may.
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
