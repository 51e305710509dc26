"""The contract of the package indexes that a matrix is expanded with; `environments` fulfils it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from bisect_env.matrix.history import CommitDetails, History
from bisect_env.matrix.versions import Manager


@dataclass(frozen=True, slots=True)
class Release:
    """One version of a package on an index.

    Attributes:
        version: As the index writes it.
        uploaded: When its first file appeared, with a time zone; None when the index does not say.
        yanked: Whether it was withdrawn.
        requires_python: The range of interpreters that its metadata names, or None.
        has_wheel: Whether any built archive exists for the platform.
        pythons: Minor versions (`3.11`) that it has built archives for; None when it has one for any.
        lacks: Why it cannot be had, in the catalogue's words, or "".
    """

    version: str
    uploaded: datetime | None = None
    yanked: bool = False
    requires_python: str | None = None
    has_wheel: bool = True
    pythons: frozenset[str] | None = None
    lacks: str = ""


class VersionCatalogue(Protocol):
    """Lists versions. Asked for ranges only: a matrix of lists needs no network."""

    def versions(self, package: str, *, manager: Manager, index: str | None) -> list[Release]:
        """Every release of a package, in any order; empty when the index does not know it.

        Args:
            package: Normalised name.
            manager: Which kind of index.
            index: Address of the PyPI-like index, or None for the configured one.

        Raises:
            IndexUnavailableError: The index cannot be reached or read.
        """
        ...

    def conda_versions(
        self, package: str, *, channels: Sequence[str], platform: str, build: str | None
    ) -> list[Release]:
        """Every version of a conda package, in any order; empty when no channel has it.

        Args:
            package: As conda writes it.
            channels: Names or addresses, most important first.
            platform: conda's name of it.
            build: Pattern that build strings have to match, or None.

        Raises:
            IndexUnavailableError: A channel cannot be reached or read.
        """
        ...

    def python_versions(self) -> list[str]:
        """Every interpreter version that trials can have here (`3.11.7`), in any order."""
        ...

    def commits(self, repository: str, first: str, last: str, *, every: bool) -> History:
        """The commits of a repository between two of them.

        Args:
            repository: Address, or absolute path of a clone.
            first: Tag, branch, hash or day of the older end.
            last: Of the newer end.
            every: Whether what was merged is looked at, too.

        Raises:
            UsageError: There is no such repository or commit, or nothing lies between the two.
            InfrastructureError: The repository cannot be reached, or git is missing.
        """
        ...

    def commit_details(self, repository: str, commits: Sequence[str]) -> tuple[list[CommitDetails], str]:
        """Commits as git describes them, and the web address of their repository.

        Args:
            repository: As for `commits`, which was asked before.
            commits: Hashes.

        Raises:
            InfrastructureError: The mirror cannot be read.
        """
        ...
