"""A locked environment: exact packages with a content hash, and the errors that can come of one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import unquote

from bisect_env.errors import InfrastructureError, UsageError

# --------------------------------------------------------------------------------------------------
# What can be wrong with one environment, and what a user is told about an index or a lock file.


class UnsolvableError(Exception):
    """An error that no environment satisfies the request: a property of the combination.

    Args:
        message: The solver's words.
        building: Whether it was a source distribution whose build failed while its metadata was read,
            so that the combination is unbuildable rather than without a solution.
    """

    def __init__(self, message: str, *, building: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.building = building

    def __reduce__(self) -> tuple[object, ...]:
        return _unsolvable, (self.message, self.building)


class UnbuildableError(Exception):
    """A prefix could not be made from its lock.

    Args:
        message: The installer's words.
        transient: Network, checksum or disk trouble, which says nothing about the environment.
    """

    def __init__(self, message: str, transient: bool) -> None:
        super().__init__(message, transient)
        self.message = message
        self.transient = transient

    def __str__(self) -> str:
        return self.message


class PackageNotFoundError(UsageError):
    """The index does not know a package."""


class LockFileError(InfrastructureError):
    """An error about a lock file that cannot be read or does not match its hash."""


def _unsolvable(message: str, building: bool) -> UnsolvableError:
    # Keyword-only arguments do not survive pickle's default, and these travel between processes.
    return UnsolvableError(message, building=building)


# --------------------------------------------------------------------------------------------------
# A locked environment: exact packages, content hash, and the text that anyone can install from.


@dataclass(frozen=True, slots=True)
class LockedPackage:
    """One package of a lock.

    Attributes:
        name: Normalised name.
        version: Exact version.
        manager: `pip` or `conda`, as conda-lock names them.
        url: Where the archive is; without user name and password.
        sha256: Hex digest of the archive.
        build: conda's build string, "" for wheels.
        md5: Hex digest that conda-lock's format wants of conda packages, "" for wheels.
        dependencies: Pairs (name, what is asked of it) of conda packages, as that format has them.
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
        """Return whether it comes from a conda channel."""
        return self.manager == "conda"

    @property
    def is_image(self) -> bool:
        """Return whether it is a container image, whose reference is its URL."""
        return self.manager == IMAGE

    @property
    def is_source(self) -> bool:
        """Return whether it has to be built for installation."""
        return self.manager == "pip" and not self.url.partition("#")[0].endswith(".whl")

    @property
    def is_commit(self) -> bool:
        """Return whether it is built from a commit; its hash is then that of commit and recipe."""
        return self.url.startswith("git+")


# What a lock says goes into Dockerfiles, requirements and command lines, and may come from a database or a
# file that somebody else wrote, from an index or a channel: nothing else than these forms gets into one.
IMAGE = "image"
"""The manager of a container image, which is a package of a lock, too."""
_FORMS = {
    "name": re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}"),
    "version": re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+!~-]{0,199}"),
    "build": re.compile(r"[A-Za-z0-9._+-]{0,199}"),
    "sha256": re.compile(r"[0-9a-f]{64}"),
    "md5": re.compile(r"([0-9a-f]{32})?"),
    # The characters of RFC 3986, and letters, without those that mean something to a shell or in quotes.
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
    """Raise an error for values that no lock may contain. Pure.

    Args:
        python: See `Lock`.
        platform: See `Lock`.
        packages: See `Lock`.
        exclude_newer: The date of source builds.

    Raises:
        ValueError: A name, version, hash or URL is not of its form; the message names it.
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
        seconds: Time limit.
        memory: Bytes that one process may take; 0 for no limit.
    """

    package: str
    seconds: float
    memory: int


@dataclass(frozen=True, slots=True)
class Lock:
    """An exact environment.

    Attributes:
        content_hash: sha256 (hex) over Python version, platform, sorted URLs and hashes: equal locks
            are one environment.
        python: The interpreter's version as the combination asks for it (`3.11` or `3.11.7`); where it is a
            conda package, that package's version.
        platform: conda's name of the platform (`linux-64`).
        packages: Sorted by name.
        text: The lock in conda-lock's unified format (version 1); all that a worker needs.
        records: Of each conda package all that its channel says, as JSON, in the order of `packages`. Known
            where the lock was solved; neither read back from `text` nor sent to workers.
        exclude_newer: The date (RFC 3339) as of which build requirements of sources are resolved; None for
            the index as it stands, and where nothing is built.
        limits: What builds from commits may take, where that is not the default. The matrix states it for
            each run, so that it is part of neither the hash nor the text.
    """

    content_hash: str
    python: str
    platform: str
    packages: tuple[LockedPackage, ...]
    text: str
    records: tuple[str, ...] = field(default=(), compare=False, repr=False)
    exclude_newer: str | None = None
    limits: tuple[BuildLimit, ...] = field(default=(), compare=False, repr=False)

    @property
    def is_conda(self) -> bool:
        """Return whether its prefix is a conda environment, which contains its own interpreter."""
        return any(package.is_conda for package in self.packages)

    @property
    def image(self) -> str:
        """Return the reference of its container image, or ""."""
        return next((package.url for package in self.packages if package.is_image), "")

    @property
    def local_addresses(self) -> tuple[str, ...]:
        """Return the addresses of packages that are files of a host instead of web addresses."""
        return tuple(p.url for p in self.packages if p.url.startswith(("file:", "git+file:")))

    @property
    def has_commits(self) -> bool:
        """Return whether any package is built from a commit, which has no archive hash."""
        return any(package.is_commit for package in self.packages)

    def __reduce__(self) -> tuple[object, ...]:
        facts = (self.content_hash, self.python, self.platform, self.packages, self.text)
        return Lock, (*facts, (), self.exclude_newer, self.limits)


LockResult = Lock | UnsolvableError
"""What a solver answers: a lock, or why there is none."""
