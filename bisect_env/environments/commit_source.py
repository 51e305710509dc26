"""Describes a package that is built from a commit, with everything that a build needs. Pure."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from packaging.utils import canonicalize_name

from bisect_env.environments.lock import LockedPackage, UnbuildableError
from bisect_env.matrix.secrets import without_credentials

_PREFIX = "git+"


@dataclass(frozen=True, slots=True)
class CommitRecipe:
    """How commits are built.

    Attributes:
        subdirectory: Where in the repository the package is; "" for its root.
        env: Environment variables, sorted.
        requires: What the build is made with instead of what the commit asks for.
        exclude_newer: First instant (RFC 3339) that is too new for what the build is made with; "" for that
            of the commit.
        time_limit: Seconds.
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
        """All settings that differ from the default, as a URL fragment in pip's format."""
        facts: list[tuple[str, str]] = []
        if self.subdirectory:
            facts.append(("subdirectory", self.subdirectory))
        facts += [(f"env.{name}", value) for name, value in self.env]
        facts += [("requires", text) for text in self.requires]
        if self.exclude_newer:
            facts.append(("exclude_newer", self.exclude_newer))
        if self.time_limit != CommitRecipe().time_limit:
            facts.append(("time_limit", f"{self.time_limit:g}"))
        if self.memory:
            facts.append(("memory", str(self.memory)))
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
            time_limit=float(plain.get("time_limit", cls().time_limit)),
            memory=int(plain.get("memory", 0)),
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
        """Normalised name."""
        return str(canonicalize_name(self.package.partition("[")[0]))

    @property
    def url(self) -> str:
        """The address for a lock, in pip's format, with all that a build needs."""
        is_path = "://" not in self.repository
        place = Path(self.repository).as_uri() if is_path else without_credentials(self.repository)
        fragment = self.build.fragment
        return f"{_PREFIX}{place}@{self.commit}{'#' if fragment else ''}{fragment}"

    @property
    def digest(self) -> str:
        """The hash of commit and recipe, which stands in a lock for the hash of an archive."""
        return hashlib.sha256(f"{self.commit}#{self.build.fragment}".encode()).hexdigest()

    def locked(self, version: str) -> LockedPackage:
        """The source as a package of a lock."""
        return LockedPackage(self.name, version, "pip", self.url, self.digest)

    @classmethod
    def of(cls, package: LockedPackage) -> CommitSource:
        """Read what `locked` wrote.

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
        return cls(package.name, repository, commit, build)
