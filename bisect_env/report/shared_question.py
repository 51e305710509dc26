"""Writes the question into reports, reads it back, and removes home directories before reports are shared."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

from bisect_env.answers.untrusted import clean, command_line
from bisect_env.errors import UsageError
from bisect_env.matrix.files import StudyFile, name_problem
from bisect_env.report.model import QuestionFile, QuestionReport, Report, StepReport

MATRIX = "matrix.yaml"
"""File name under which reports list the text of the matrix."""
_SHORT_ID = 8
_IN_PAGE = re.compile(r'<script type="application/json" id="question">(.*?)</script>', re.DOTALL)
"""Matches the element of an HTML report that contains the question as JSON; the template writes it."""
_LARGEST = 64 * 1024 * 1024
"""Maximum size in bytes of a report that is read back."""
_USUAL_HOMES = r"/home/[^/\s\"'\\:<>]+|/Users/[^/\s\"'\\:<>]+|/root"


@functools.cache
def _homes(own: str) -> re.Pattern[str]:
    """Return a pattern for home directories, with the user's own one, which may be anywhere.

    Paths in web addresses do not match, because another character precedes them.
    """
    places = _USUAL_HOMES if own in ("", "/") else f"{re.escape(own)}|{_USUAL_HOMES}"
    return re.compile(rf"(?:(?<![\w/.:~-])|(?<=\\[nrt]))(?:{places})(?=[/\"'\s\\:,;)]|$)")


def question_files(question: QuestionReport) -> list[QuestionFile]:
    """Return the matrix and its files, or an empty list if the matrix is not known."""
    if not question.matrix:
        return []
    return [QuestionFile(name=MATRIX, text=question.matrix), *question.files]


def question_of_report(path: Path) -> tuple[str, tuple[StudyFile, ...]]:
    """Read the matrix and the files of its trials from a report in HTML or JSON format.

    Args:
        path: A report as HTML or JSON.

    Returns:
        Text of the matrix, and the files of the trial. Only the file names have been checked.

    Raises:
        UsageError: The file is not a report, or it lacks a file of the question.
    """
    try:
        if path.stat().st_size > _LARGEST:
            raise UsageError(f"{path} is too large for a report", remedy="name a report or a matrix file")
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", remedy="name a report or a matrix file") from None
    question = _question_in(text)
    if not question.matrix:
        raise UsageError(
            f"{path} holds no question", remedy="name a report that `bisect-env report` wrote as html or json"
        )
    if missing := ", ".join(question.left_out):
        raise UsageError(
            clean(f"{path} lacks {missing}: too large, no text, or with a password in it"),
            remedy="save the other files from the report, and add what it lacks",
        )
    for file in question.files:
        if (problem := name_problem(file.name)) is not None:
            remedy = "ask its author for the matrix and its files"
            raise UsageError(clean(f"{path}: {problem}"), remedy=remedy)
    files = (StudyFile(file.name, file.text.encode(), file.executable) for file in question.files)
    return question.matrix, tuple(files)


def _question_in(text: str) -> QuestionReport:
    """Return the question of a report in HTML or JSON format, or an empty one if there is none."""
    try:
        if text.lstrip().startswith("{"):
            return Report.model_validate_json(text).question
        found = _IN_PAGE.search(text)
        return QuestionReport() if found is None else QuestionReport.model_validate_json(found[1])
    except ValueError:
        return QuestionReport()


def shared(report: Report) -> Report:
    """Return a copy of a report without the paths of home directories, to be shown to other people.

    The script is not changed. If the matrix file is outside the current folder, commands name the study
    instead, which works for everybody with the database.
    """
    path, question = clean(report.study.matrix), report.question
    steps, matrix = report.reproduce, path
    if Path(path).is_absolute() or ".." in Path(path).parts:
        steps, matrix = tuple(_by_study(step, path, report.study.id) for step in steps), Path(path).name
    study = report.study.model_copy(update={"matrix": matrix})
    plain = report.model_copy(update={"question": QuestionReport(), "reproduce": steps, "study": study})
    # In JSON text, the `n` of `\n` would precede a path at the beginning of a line.
    found = Report.model_validate_json(json.dumps(without_homes(json.loads(plain.model_dump_json()))))
    # Change only comments of the matrix, because the other lines are the question itself.
    lines = question.matrix.splitlines(keepends=True)
    text = "".join(without_homes(line) if line.startswith("#") else line for line in lines)
    return found.model_copy(update={"question": question.model_copy(update={"matrix": text})})


def without_homes(value: Any) -> Any:
    """Return a copy of a JSON value without home directories in its strings.

    These are the usual ones of any user, and that of the user who runs this process.
    """
    if isinstance(value, str):
        return _homes(str(Path.home())).sub("~", value)
    if isinstance(value, dict):
        return {without_homes(key): without_homes(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_homes(item) for item in value]
    return value


def _by_study(step: StepReport, path: str, study: str) -> StepReport:
    named = [command.replace(command_line(path), study[:_SHORT_ID]) for command in step.commands]
    return step.model_copy(update={"commands": tuple(named)})
