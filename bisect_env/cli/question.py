"""Finds the question that a command line asks in words, or whose matrix file or report it names."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bisect_env.cli.asking import Flags, ask, refuse_beside
from bisect_env.cli.spelling import RANGE, SCRIPTS, is_file, names_matrix
from bisect_env.errors import UsageError
from bisect_env.matrix.load import Matrix, load_matrix, stored_matrix
from bisect_env.matrix.schema import PackageAxis
from bisect_env.storage.entries import Study

_REPORTS = (".html", ".json")


@dataclass(frozen=True, slots=True)
class FoundTarget:
    """The matrix that a command works on, and where it came from: a file, a study or the command line.

    Attributes:
        matrix: The question.
        study: The study that the user named; None if the user named a file or asked in words.
        words: Whether the question was asked in words.
        report: Path of the report that holds the question; "" for any other target.
    """

    matrix: Matrix
    study: Study | None = None
    words: bool = False
    report: str = ""

    @property
    def shown(self) -> str:
        """Return how messages name the target, such as `this question` or the path of a matrix file."""
        return "this question" if self.words else self.reference

    @property
    def reference(self) -> str:
        """Return the word (path, or name of a study) by which another command can name the same target."""
        return self.report or (self.matrix.shown if self.study is None else self.study.name)

    def stated_ends(self, flags: Flags) -> dict[str, str]:
        """Return the combinations given by `--good` and `--bad`, with the keys `good` and `bad`.

        The dict is empty if the question was asked on the command line: then the matrix holds them already.
        """
        given = {} if self.words else {"good": flags.good, "bad": flags.bad}
        return {end: ",".join(text) for end, text in given.items() if text}


def asked_target(words: Sequence[str], flags: Flags, without: Sequence[str] = ()) -> FoundTarget | None:
    """Return the question in the words of a command line or in the file that they name; None for a study."""
    if flags.asks:
        return FoundTarget(ask(flags, words), words=True)
    if len(words) == 1 and words[0].endswith(_REPORTS) and is_file(words[0]):
        # Imported here because most questions are not read from reports.
        from bisect_env.report.shared_question import question_of_report

        refuse_beside(flags, f"the report {words[0]}", without=without)
        matrix = stored_matrix(*question_of_report(Path(words[0])), "")
        return FoundTarget(matrix, report=words[0])
    if words and names_matrix(words[0]):
        if len(words) > 1:
            raise UsageError(
                f"{words[0]} is a matrix file, which has its command in it: {' '.join(words[1:])} "
                "is one too many",
                remedy="leave it out, or ask with `-p PACKAGE -- COMMAND`",
            )
        refuse_beside(flags, f"the matrix file {words[0]}", without=without)
        return FoundTarget(load_matrix(words[0]))
    if len(words) > 1 or (words and (RANGE & set(words[0]) or words[0].endswith(SCRIPTS))):
        return FoundTarget(ask(flags, words), words=True)
    return None


def refuse_broken_scripts(matrix: Matrix) -> None:
    """Raise an error if a script cannot be parsed, before environments are built for it.

    Nothing is checked if the matrix has a newer Python than the running one, which may know more syntax.

    Raises:
        UsageError: The script of the command has a syntax error.
    """
    command = matrix.file.trial.command
    axis = matrix.file.axes.get("python")
    versions = axis.versions if isinstance(axis, PackageAxis) and isinstance(axis.versions, tuple) else ()
    try:
        newest = max(tuple(int(part) for part in version.split(".")[:2]) for version in versions)
    except ValueError:
        return
    if newest > sys.version_info[:2]:
        return
    for file in matrix.files:
        if file.name in command and file.name.endswith(".py"):
            try:
                ast.parse(file.content, file.name)
            except (RecursionError, MemoryError):
                continue  # too deep for this Python's compiler; that of the trial may take it
            except (SyntaxError, ValueError) as error:
                line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
                raise UsageError(
                    f"the script cannot run: {file.name}{line}: {type(error).__name__}: "
                    f"{getattr(error, 'msg', error)}",
                    remedy="correct the script",
                ) from None
