"""Finds what a command is about: a matrix file, a study, a report, or a question in words."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bisect_env.answers.untrusted import command_line
from bisect_env.cli.asking import Flags, ask, refuse_beside, save, shown_question, with_search
from bisect_env.cli.options import ShownOptions
from bisect_env.cli.output import say
from bisect_env.cli.references import RANGE, SCRIPTS, has_database, names_matrix
from bisect_env.engine.stored import matrix_of, refuse_strangers, was_asked_here
from bisect_env.errors import UsageError
from bisect_env.matrix.load import Matrix, load_matrix, stored_matrix
from bisect_env.matrix.schema import PackageAxis
from bisect_env.report.shared_question import question_of_report
from bisect_env.storage.entries import Study
from bisect_env.storage.store import Store

_REPORTS = (".html", ".json")


@dataclass(frozen=True, slots=True)
class FoundTarget:
    """The question that a command was given, and where it came from.

    Attributes:
        matrix: The question.
        study: The study that the user named; None if the user named a file or asked in words.
        words: Whether the question was asked in words.
    """

    matrix: Matrix
    study: Study | None = None
    words: bool = False

    @property
    def reference(self) -> str:
        """Return the word that names the target in another command."""
        if self.study is not None:
            return self.study.name
        return self.matrix.shown


def find_target(
    words: Sequence[str],
    flags: Flags | None = None,
    *,
    db: str | None,
    runs: bool = True,
    to: Path | None = None,
    without: Sequence[str] = (),
) -> FoundTarget:
    """Return what a command is about.

    Args:
        words: As given: nothing, one word for a matrix, a study or a report, or a question.
        flags: The options of a question; None if the command takes no questions.
        db: Results database that may have the study.
        runs: Whether the command runs what the question says; then studies that others asked are refused.
        to: Matrix file to write the question to, which the command then goes by.
        without: Fields of the flags that the command has another use for.

    Raises:
        UsageError: There is no such target.
        MatrixError: The matrix file is wrong.
    """
    target = _found(list(words), flags or Flags(), db, runs=runs, without=without)
    if flags is not None:
        target = FoundTarget(with_search(target.matrix, flags), target.study, target.words)
    if runs:
        refuse_broken_scripts(target.matrix)
    return target if to is None else FoundTarget(save(target.matrix, to))


def _found(
    words: list[str], flags: Flags, db: str | None, *, runs: bool, without: Sequence[str]
) -> FoundTarget:
    if flags.asks:
        return FoundTarget(ask(flags, words), words=True)
    if len(words) == 1 and words[0].endswith(_REPORTS) and Path(words[0]).is_file():
        refuse_beside(flags, f"the report {words[0]}", without=without)
        return FoundTarget(stored_matrix(*question_of_report(Path(words[0])), ""))
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
    study, matrix = _stored(words[0] if words else None, db)
    refuse_beside(flags, f"the study {study.name}", without=without)
    if runs:
        refuse_strangers(study)
    return FoundTarget(matrix, study)


def _stored(reference: str | None, db: str | None) -> tuple[Study, Matrix]:
    """Return a study with its question.

    Raises:
        UsageError: There is no such study.
    """
    if not has_database(db):
        what = "nothing was asked" if reference is None else f"{reference!r} is no matrix file and no study"
        raise UsageError(
            f"{what}, and there is no results database yet",
            remedy='name a matrix file, or a range and a script: bisect-env run "orjson>=3.8" repro.py',
        )
    with Store.open(db, read_only=True) as store:
        try:
            study = store.study(reference)
        except UsageError as error:
            asked = command_line("bisect-env", "run", reference or "PACKAGE", "repro.py")
            raise UsageError(
                error.what, tried=error.tried, remedy=f"{error.remedy}; a package needs its script: {asked}"
            ) from None
        return study, matrix_of(store, study)


def announce(target: FoundTarget, shown: ShownOptions) -> None:
    """Print on stderr how a question in words was understood, for the user to check."""
    if target.words and not (shown.quiet or shown.as_json):
        again = "" if was_asked_here(target.matrix.digest) else " (`--save FILE` writes it to a file)"
        say(f"asked as the study {target.matrix.name}{again}:\n{shown_question(target.matrix)}", sys.stderr)


def refuse_broken_scripts(matrix: Matrix) -> None:
    """Raise an error for a script that cannot be parsed, before environments are made for it.

    Python versions newer than the running one may know more syntax: for them nothing is refused.

    Raises:
        UsageError: The script of the command has a syntax error.
    """
    command = matrix.file.trial.effective_command
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
            except (SyntaxError, ValueError) as error:
                line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
                raise UsageError(
                    f"the script cannot run: {file.name}{line}: {type(error).__name__}: "
                    f"{getattr(error, 'msg', error)}",
                    remedy="correct the script",
                ) from None
