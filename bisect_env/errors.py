"""Errors that are shown to users, with one exception class and one exit code for each kind.

A message has three parts: what happened, what was tried, and what to do next. The command line prints a
`BisectEnvError` without a traceback. Any other exception is a bug in bisect-env and exits with code 70.
"""

from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path

_QUOTED_LINES = 12


def without_kind(message: str) -> str:
    """Remove the prefix `Value error, ` that pydantic puts before the message of an error."""
    return message.removeprefix("Value error, ")


class ExitCode(IntEnum):
    """The documented exit codes of `bisect-env` (see `docs/reference/exit-codes.md`)."""

    VERDICT = 0
    NO_VERDICT = 1
    USAGE = 2
    FAILURE_SEEN = 3
    ENDS_NOT_AS_STATED = 4
    NO_ENVIRONMENT = 5
    INFRASTRUCTURE = 6
    INTERNAL = 70
    INTERRUPTED = 130


EXIT_CODES: dict[ExitCode, tuple[str, str]] = {
    ExitCode.VERDICT: (
        (
            "there is a verdict (`confirmed` or `likely`); `trial`: no trial was bad, or with `--until-rate` "
            "the rate is shown to be below the limit; other commands: done"
        ),
        "read it; `bisect-env report` shows it again",
    ),
    ExitCode.NO_VERDICT: (
        (
            "no verdict (`trial --until-rate`: nothing was shown either way); the reason is named (nothing "
            "ever fails, everything fails, budget spent)"
        ),
        "widen the matrix, or give it more trials",
    ),
    ExitCode.USAGE: (
        "the command line or the matrix is wrong",
        "every problem is listed with its line and remedy",
    ),
    ExitCode.FAILURE_SEEN: (
        (
            "`trial`: some trial was bad; with `--debug`, the failure showed; with `--until-rate`, the rate "
            "is shown to be above the limit"
        ),
        "the failure is there; `bisect-env report --trials` lists what was seen",
    ),
    ExitCode.ENDS_NOT_AS_STATED: (
        "an end is not as stated: the known good combination fails, or the known bad one never does",
        "correct `good`, `bad` or `trial.bad`",
    ),
    ExitCode.NO_ENVIRONMENT: ("no environment could be built", "`bisect-env plan` lists the reasons"),
    ExitCode.INFRASTRUCTURE: (
        "infrastructure: the index, the database, the cluster, an interpreter or a GPU is missing or broken",
        "repair it, then start the same command again: it goes on where it stopped",
    ),
    ExitCode.INTERNAL: ("a defect of ours", "please report it with the log file that the message names"),
    ExitCode.INTERRUPTED: (
        "interrupted (Ctrl-C)",
        "start the same command again: it goes on where it stopped",
    ),
}
"""For each exit code, a pair of texts: its meaning, and what the user should do.

`docs/reference/exit-codes.md` is generated from this table.
"""


class BisectEnvError(Exception):
    """The base class of errors that are shown to users as a message instead of a traceback.

    Args:
        what: One sentence that says what happened.
        tried: What was attempted before the error, or None.
        remedy: What the user should do next, in the imperative, or None.
    """

    exit_code: ExitCode = ExitCode.INTERNAL

    def __init__(self, what: str, *, tried: str | None = None, remedy: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.tried = tried
        self.remedy = remedy

    def __str__(self) -> str:
        parts = [self.what]
        if self.tried:
            parts.append(f"tried: {_indented(self.tried)}")
        if self.remedy:
            parts.append(f"remedy: {self.remedy}")
        return "\n  ".join(parts)


def _indented(text: str) -> str:
    """Indent all lines of a text but the first. Only the last lines of a long text are kept."""
    lines = text.splitlines()
    if len(lines) > _QUOTED_LINES:
        lines = ["…", *lines[-_QUOTED_LINES:]]
    return "\n    ".join(lines)


class UsageError(BisectEnvError):
    """An error raised if the command line is invalid or cannot be carried out."""

    exit_code = ExitCode.USAGE


class MatrixError(BisectEnvError):
    """An error raised if a matrix file is invalid. The error lists all problems that were found.

    Args:
        path: The file, as the user named it.
        problems: One text per problem. Each text names the line and the remedy.
    """

    exit_code = ExitCode.USAGE

    def __init__(self, path: str, problems: Sequence[str]) -> None:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__(f"{path}: {count}")
        self.path = path
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return "\n  ".join([self.what, *self.problems])


class EndsNotAsStatedError(BisectEnvError):
    """An error raised if the stated good combination fails, or the stated bad combination never fails."""

    exit_code = ExitCode.ENDS_NOT_AS_STATED


class NoEnvironmentError(BisectEnvError):
    """An error raised if no environment can be built for any combination of the matrix."""

    exit_code = ExitCode.NO_ENVIRONMENT


class InfrastructureError(BisectEnvError):
    """An error raised if something that trials need is missing or broken, such as the index or a GPU."""

    exit_code = ExitCode.INFRASTRUCTURE


class StorageError(InfrastructureError):
    """An error raised if the results database cannot be opened, read or written."""


class IndexUnavailableError(InfrastructureError):
    """An error raised if a package index cannot be reached or returns an invalid answer."""


class InterpreterNotFoundError(InfrastructureError):
    """An error raised if a Python version of the matrix is not installed and cannot be downloaded."""


class StudyInterruptedError(BisectEnvError):
    """An error raised if the user interrupts the study. All finished trials are stored."""

    exit_code = ExitCode.INTERRUPTED


def expanded(path: str | Path) -> Path:
    """Replace `~` or `~user` at the beginning of a path by the home directory.

    Raises:
        UsageError: This directory is not known, for example because there is no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UsageError(
            f"{path} begins with a home directory that is not known here",
            remedy="correct the path; `./~name` is a folder of that name",
        ) from None
