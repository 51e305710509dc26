"""Writes the question into reports, reads it back, and removes home directories before reports are shared."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

from bisect_env.answers.untrusted import clean, command_line
from bisect_env.errors import UsageError
from bisect_env.matrix.files import StudyFile, name_problem
from bisect_env.report.model import QuestionFile, QuestionReport, Report, StepReport

MATRIX = "matrix.yaml"
"""Name of the matrix beside its files."""
_SHORT_ID = 8
_ADDRESS = "data:text/plain;charset=utf-8;base64,"
_LARGEST = 64 * 1024 * 1024
"""Maximum size in bytes of a report that is read back."""
# Home directories of users. Paths in web addresses do not match, because another character precedes them.
_HOMES = re.compile(
    r"(?<![\w/.:~-])(?:/home/[^/\s\"'\\:<>]+|/Users/[^/\s\"'\\:<>]+|/root)(?=[/\"'\s\\:,;)]|$)"
)


def question_files(question: QuestionReport) -> list[QuestionFile]:
    """Return the matrix and its files, or an empty list if the matrix is not known."""
    if not question.matrix:
        return []
    return [QuestionFile(name=MATRIX, text=question.matrix), *question.files]


def address_of(text: str) -> str:
    """Return a `data:` URL that contains a text, for a link with which readers save the text."""
    return _ADDRESS + base64.b64encode(text.encode("utf-8", "replace")).decode()


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
    files, left_out = _from_json(text) if text.lstrip().startswith("{") else _from_page(text)
    matrix = next((file.content for file in files if file.name == MATRIX), None)
    if matrix is None:
        raise UsageError(
            f"{path} holds no question", remedy="name a report that `bisect-env report` wrote as html or json"
        )
    if left_out:
        raise UsageError(
            clean(f"{path} lacks {', '.join(left_out)}: too large, no text, or with a password in it"),
            remedy="save the other files from the report, and add what it lacks",
        )
    for file in files:
        if (problem := name_problem(file.name)) is not None:
            remedy = "ask its author for the matrix and its files"
            raise UsageError(clean(f"{path}: {problem}"), remedy=remedy)
    return matrix.decode("utf-8", "replace"), tuple(file for file in files if file.name != MATRIX)


def _from_json(text: str) -> tuple[list[StudyFile], Sequence[str]]:
    try:
        question = Report.model_validate_json(text).question
    except ValueError:
        return [], ()
    files = question_files(question)
    return [StudyFile(one.name, one.text.encode(), one.executable) for one in files], question.left_out


def _from_page(text: str) -> tuple[list[StudyFile], Sequence[str]]:
    parser = _Links()
    parser.feed(text)
    return parser.files, parser.left_out


class _Links(HTMLParser):
    """A parser that collects the question's files from the links of an HTML report."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[StudyFile] = []
        self.left_out: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record a link that holds a file, or the name of a file that was left out."""
        values = {name: value or "" for name, value in attrs}
        if values.get("class") == "left-out":
            self.left_out.append(values.get("data-name", ""))
        if tag != "a" or values.get("class") != "question" or not values.get("href", "").startswith(_ADDRESS):
            return
        name, executable = values.get("download", ""), values.get("data-executable") == "yes"
        try:
            content = base64.b64decode(values["href"].removeprefix(_ADDRESS), validate=True)
        except binascii.Error:
            self.left_out.append(name)
            return
        self.files.append(StudyFile(name, content, executable))


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
    found = Report.model_validate_json(_HOMES.sub("~", plain.model_dump_json()))
    # Change only comments of the matrix, because the other lines are the question itself.
    lines = question.matrix.splitlines(keepends=True)
    text = "".join(_HOMES.sub("~", line) if line.startswith("#") else line for line in lines)
    return found.model_copy(update={"question": question.model_copy(update={"matrix": text})})


def _by_study(step: StepReport, path: str, study: str) -> StepReport:
    named = [command.replace(command_line(path), study[:_SHORT_ID]) for command in step.commands]
    return step.model_copy(update={"commands": tuple(named)})
