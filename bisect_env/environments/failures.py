"""What can be wrong with one environment, and what a user is told about an index or a lock file."""

from __future__ import annotations

from bisect_env.errors import InfrastructureError, UsageError


class UnsolvableError(Exception):
    """No environment satisfies the request: a property of the combination, not a failure of ours.

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
    """A lock file cannot be read, or its content is not what its hash says."""


def _unsolvable(message: str, building: bool) -> UnsolvableError:
    # Keyword-only arguments do not survive pickle's default, and these travel between processes.
    return UnsolvableError(message, building=building)
