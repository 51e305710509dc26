"""Defines the lock, which lists the exact packages of an environment, and the errors of solving and building.

A *lock* lists every package of an environment with version, URL and hash. It has a content hash of its own:
environments with equal content hashes are the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from bisect_env.errors import InfrastructureError, UsageError
from bisect_env.matrix.history import SHORT

# --------------------------------------------------------------------------------------------------
# Errors of one environment, of a package index and of a lock file.


class UnsolvableError(Exception):
    """The error raised if no environment satisfies a request. Solving again would fail in the same way.

    Args:
        message: The message of the solver.
        building: True if the solver failed because it had to build a source distribution to read its
            metadata, and that build failed. The combination then counts as unbuildable, not as unsolvable.
    """

    def __init__(self, message: str, building: bool = False) -> None:
        super().__init__(message, building)
        self.message = message
        self.building = building

    def __str__(self) -> str:
        return self.message


class UnbuildableError(Exception):
    """The error raised if a prefix (an installed environment) cannot be built from its lock.

    Args:
        message: The message of the installer.
        transient: True for network, checksum and disk problems, after which a second attempt may succeed.
            False if the environment itself cannot be built.
    """

    def __init__(self, message: str, transient: bool) -> None:
        super().__init__(message, transient)
        self.message = message
        self.transient = transient

    def __str__(self) -> str:
        return self.message


class PackageNotFoundError(UsageError):
    """The error raised if an index or channel does not have a package."""


class LockFileError(InfrastructureError):
    """The error raised if a lock file cannot be read or does not match its hash."""


# --------------------------------------------------------------------------------------------------
# A locked environment: exact packages, content hash, and the text that anyone can install from.


@dataclass(frozen=True, slots=True)
class LockedPackage:
    """One package of a lock, with its exact version, URL and hash.

    Attributes:
        name: Normalised name.
        version: Exact version.
        manager: `pip` or `conda` as in conda-lock's format, or `image`; "" for an interpreter of this host.
        url: URL of the archive, without user name and password.
        sha256: Hex digest of the archive.
        build: Build string of a conda package; "" for other packages.
        md5: Hex digest of a conda package, which conda-lock's file format requires; "" for other packages.
        dependencies: Pairs of package name and version constraint, for conda packages only.
    """

    name: str
    version: str
    manager: str
    url: str
    sha256: str
    build: str = ""
    md5: str = ""
    dependencies: tuple[tuple[str, str], ...] = ()

    @property
    def is_conda(self) -> bool:
        """Return whether the package comes from a conda channel."""
        return self.manager == "conda"

    @property
    def is_image(self) -> bool:
        """Return whether the package is a container image. Its `url` is then the image reference."""
        return self.manager == IMAGE

    @property
    def is_source(self) -> bool:
        """Return whether the package must be built before installation."""
        return self.manager == "pip" and not urlsplit(self.url).path.endswith(".whl")

    @property
    def is_commit(self) -> bool:
        """Return whether the package is built from a git commit.

        Its `sha256` is then the hash of the commit and the build settings.
        """
        return self.url.startswith("git+")

    @property
    def label(self) -> str:
        """Return the version of the package, with the build string or commit if there is one."""
        if self.is_commit:
            return f"{self.version} at {self.url.partition('#')[0].rpartition('@')[2][:SHORT]}"
        return f"{self.version} {self.build}".rstrip()

    @property
    def spec(self) -> str:
        """Return the package in its manager's syntax, such as `click==8.1.8` or `numpy ==2.0 py311_0`."""
        if self.is_conda:
            return f"{self.name} =={self.version} {self.build}".rstrip()
        return f"{self.name}=={self.version}"

    @property
    def source(self) -> str:
        """Return the channel or host from which the package comes.

        Return "" for an interpreter of this host.
        """
        if self.is_conda:
            return self.url.rsplit("/", 2)[0]
        parts = urlsplit(self.url)
        return parts.hostname or parts.scheme


# Values of a lock are written into Dockerfiles, requirements files and command lines. They may come from an
# untrusted database, file, index or channel. Only values that match these patterns are accepted.
IMAGE = "image"
"""Value of `LockedPackage.manager` for a container image."""
_FORMS = {
    "name": re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}"),
    "version": re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+!~-]{0,199}"),
    "build": re.compile(r"[A-Za-z0-9._+-]{0,199}"),
    "sha256": re.compile(r"[0-9a-f]{64}"),
    "md5": re.compile(r"([0-9a-f]{32})?"),
    # The characters of RFC 3986, and letters, but not those with a meaning in a shell or inside quotes.
    "url": re.compile(
        r"(https?://[\w\[]|file:///|git\+(https?|ssh|git)://[\w\[]|git\+file:///)"
        r"[\w.~:/?#\[\]@!&,=%+-]{0,4000}"
    ),
}
_IMAGE_FORMS = {
    **_FORMS,
    "name": re.compile(r"[a-z0-9][A-Za-z0-9._:/-]{0,400}"),
    "url": re.compile(r"([a-z0-9][A-Za-z0-9._:/-]{0,400}@)?(sha256:)?[0-9a-f]{64}"),
}
_PYTHON = re.compile(r"(\d{1,3}(\.\d{1,5}){0,2}((a|b|rc)\d{1,3})?t?)?")
_PLATFORM = re.compile(r"[a-z0-9]+-[a-z0-9_]+")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d))?")
_DEPENDENCY = re.compile(r"[^\x00-\x1f\x7f]{0,1000}")


def check_forms(
    python: str, platform: str, packages: Iterable[LockedPackage], exclude_newer: str | None
) -> None:
    """Raise an error if a version, URL, hash or other value of a lock has an invalid format.

    This function is pure.

    Args:
        python: See `Lock`.
        platform: See `Lock`.
        packages: See `Lock`.
        exclude_newer: See `Lock`.

    Raises:
        ValueError: A value, for example a version or URL, does not have its format; the message names it.
    """
    if not _PYTHON.fullmatch(python):
        raise ValueError(f"{python!a:.80} is no version of Python")
    if not _PLATFORM.fullmatch(platform):
        raise ValueError(f"{platform!a:.80} is no platform")
    if exclude_newer is not None and not _MOMENT.fullmatch(exclude_newer):
        raise ValueError(f"{exclude_newer!a:.80} is no date")
    for package in packages:
        forms = {"pip": _FORMS, "conda": _FORMS, IMAGE: _IMAGE_FORMS}.get(package.manager)
        if forms is None:
            raise ValueError(f"{package.manager!a:.80} is no package manager")
        for attribute, form in forms.items():
            value = getattr(package, attribute)
            if not form.fullmatch(value):
                raise ValueError(
                    f"{value!a:.120} cannot be the {attribute} of a package"
                    + ("" if attribute == "name" else f" ({package.name!a:.80})")
                )
        file_name = unquote(package.url.partition("?")[0].partition("#")[0].rpartition("/")[2])
        if package.manager != "image" and (
            file_name in ("", ".", "..") or "/" in file_name or not file_name.isprintable()
        ):
            raise ValueError(f"{package.url!a:.120} names no file")
        for words in package.dependencies:
            if not all(_DEPENDENCY.fullmatch(word) for word in words):
                raise ValueError(f"{words!a:.120} cannot be a dependency of {package.name}")


@dataclass(frozen=True, slots=True)
class BuildLimit:
    """The time and memory limits for building a package from a commit.

    Attributes:
        package: Normalised name.
        seconds: Time limit in seconds.
        memory: Memory limit of each process in bytes; 0 for no limit.
    """

    package: str
    seconds: float
    memory: int


@dataclass(frozen=True, slots=True)
class Lock:
    """The exact packages of an environment, with a hash that is equal for equal environments.

    Attributes:
        content_hash: sha256 (hex) of the Python version, the platform, and the sorted URLs and hashes of the
            packages. Locks with equal hashes describe the same environment.
        python: Python version as the combination requests it (`3.11` or `3.11.7`). In a conda environment,
            the version of the conda package `python`.
        platform: conda's name of the platform, such as `linux-64`.
        packages: The packages, sorted by name.
        text: The lock in conda-lock's unified file format (version 1). A worker needs nothing else.
        exclude_newer: Date (RFC 3339). Packages uploaded later are not used to build sources. None if there
            is no such limit or nothing is built.
        limits: Limits for builds from commits that differ from the default. They come from the matrix of the
            current run and are neither part of the hash nor of `text`.
    """

    content_hash: str
    python: str
    platform: str
    packages: tuple[LockedPackage, ...]
    text: str
    exclude_newer: str | None = None
    limits: tuple[BuildLimit, ...] = field(default=(), compare=False, repr=False)

    @property
    def is_conda(self) -> bool:
        """Return whether the environment contains conda packages, and thus its own Python."""
        return any(package.is_conda for package in self.packages)

    @property
    def image(self) -> str:
        """Return the reference of the lock's container image, or "" if the lock has no image."""
        return next((package.url for package in self.packages if package.is_image), "")

    @property
    def local_addresses(self) -> tuple[str, ...]:
        """Return the URLs of packages that are local files or local repositories."""
        return tuple(p.url for p in self.packages if p.url.startswith(("file:", "git+file:")))

    @property
    def has_commits(self) -> bool:
        """Return whether any package is built from a commit. Such a package has no archive hash."""
        return any(package.is_commit for package in self.packages)


LockResult = Lock | UnsolvableError
"""The result of solving: a lock, or the error that says why there is none."""
