"""All errors that users see: one class and one exit code for each kind.

A message has three parts: what happened, what was tried, what to do next. The command line prints them
without a traceback; anything that is not a `BisectEnvError` is a defect of ours and ends with code 70.
"""

from collections.abc import Sequence
from enum import IntEnum

_QUOTED_LINES = 12


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
        "mend it, then start the same command again: it goes on where it stopped",
    ),
    ExitCode.INTERNAL: ("a defect of ours", "please report it with the log file that the message names"),
    ExitCode.INTERRUPTED: (
        "interrupted (Ctrl-C)",
        "start the same command again: it goes on where it stopped",
    ),
}
"""What each code means, and what to do then; `docs/reference/exit-codes.md` is made from this."""


class BisectEnvError(Exception):
    """Base of everything that is shown to a user as a message instead of a traceback.

    Args:
        what: What happened, one sentence.
        tried: What was attempted before giving up, if that helps.
        remedy: What to do next, in the imperative.
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
    """Several lines, such as a compiler's, under the first one; of many the last, which say what failed."""
    lines = text.splitlines()
    if len(lines) > _QUOTED_LINES:
        lines = ["…", *lines[-_QUOTED_LINES:]]
    return "\n    ".join(lines)


class UsageError(BisectEnvError):
    """The command line asks for something that cannot be."""

    exit_code = ExitCode.USAGE


class MatrixError(BisectEnvError):
    """A matrix file is wrong; holds every problem found, not the first alone.

    Args:
        path: The file as the user named it.
        problems: One text a problem, each naming its line and its remedy.
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
    """The stated good combination crashes, or the stated bad one never does."""

    exit_code = ExitCode.ENDS_NOT_AS_STATED


class NoEnvironmentError(BisectEnvError):
    """No combination of the matrix could be made into an environment."""

    exit_code = ExitCode.NO_ENVIRONMENT


class InfrastructureError(BisectEnvError):
    """Something the trials need is missing or broken: index, cluster, disk, interpreter, GPU."""

    exit_code = ExitCode.INFRASTRUCTURE


class StorageError(InfrastructureError):
    """The results database cannot be opened, read or written."""


class IndexUnavailableError(InfrastructureError):
    """A package index cannot be reached or answers with something that is not an index."""


class InterpreterNotFoundError(InfrastructureError):
    """A Python version that the matrix names is neither on this machine nor to be fetched."""


class StudyInterruptedError(BisectEnvError):
    """The user stopped the study (Ctrl-C); everything finished is stored."""

    exit_code = ExitCode.INTERRUPTED
