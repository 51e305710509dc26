"""A locked environment: exact packages, content hash, and the text that anyone can install from."""

from __future__ import annotations

from dataclasses import dataclass, field

from bisect_env.environments.failures import UnsolvableError


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
        """Whether it comes from a conda channel."""
        return self.manager == "conda"

    @property
    def is_source(self) -> bool:
        """Whether installing it has to build it first."""
        return self.manager == "pip" and not self.url.partition("#")[0].endswith(".whl")


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
    """

    content_hash: str
    python: str
    platform: str
    packages: tuple[LockedPackage, ...]
    text: str
    records: tuple[str, ...] = field(default=(), compare=False, repr=False)

    @property
    def is_conda(self) -> bool:
        """Whether its prefix is a conda environment, which brings its own interpreter."""
        return any(package.is_conda for package in self.packages)

    def __reduce__(self) -> tuple[object, ...]:
        return Lock, (self.content_hash, self.python, self.platform, self.packages, self.text)


LockResult = Lock | UnsolvableError
"""What a solver answers: a lock, or why there is none."""
