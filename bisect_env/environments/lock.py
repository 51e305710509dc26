"""A locked environment: exact packages, content hash, and the text that anyone can install from."""

from __future__ import annotations

from dataclasses import dataclass


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
    """

    name: str
    version: str
    manager: str
    url: str
    sha256: str
    build: str = ""

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
        python: The interpreter's version as the combination asks for it (`3.11` or `3.11.7`).
        platform: conda's name of the platform (`linux-64`).
        packages: Sorted by name.
        text: The lock in conda-lock's unified format (version 1); all that a worker needs.
    """

    content_hash: str
    python: str
    platform: str
    packages: tuple[LockedPackage, ...]
    text: str
