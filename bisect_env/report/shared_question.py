"""Shows the question in reports, reads it back from them, and hides what is of no use to other people."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

from bisect_env.answers.untrusted import clean, command_line
from bisect_env.errors import UsageError
from bisect_env.matrix.files import StudyFile, name_problem
from bisect_env.report.model import QuestionReport, Report, StepReport

MATRIX = "matrix.yaml"
"""Name of the matrix beside its files."""
_SHORT_ID = 8
_ADDRESS = "data:text/plain;charset=utf-8;base64,"
_LARGEST = 64 * 1024 * 1024
"""Bytes of a report that is read back."""
# A page in a browser never has a slash before such a path: addresses of the web stay.
_HOMES = re.compile(
    r"(?<![\w/.:~-])(?:/home/[^/\s\"'\\:<>]+|/Users/[^/\s\"'\\:<>]+|/root)(?=[/\"'\s\\:,;)]|$)"
)


@dataclass(frozen=True, slots=True)
class ShownFile:
    """A file of the question as a page shows it.

    Attributes:
        name: Relative path.
        text: Content.
        executable: Whether its owner may execute it.
        address: The content as a link to save.
    """

    name: str
    text: str
    executable: bool
    address: str


def question_files(question: QuestionReport) -> list[ShownFile]:
    """Return the matrix and its files for a page; empty if the matrix is not known."""
    if not question.matrix:
        return []
    given = [(MATRIX, question.matrix, False)]
    given += [(file.name, file.text, file.executable) for file in question.files]
    return [
        ShownFile(
            clean(name),
            text,
            executable,
            _ADDRESS + base64.b64encode(text.encode("utf-8", "replace")).decode(),
        )
        for name, text, executable in given
    ]


def question_of_report(path: Path) -> tuple[str, tuple[StudyFile, ...]]:
    """Read the question out of a report.

    Args:
        path: A report as HTML or JSON.

    Returns:
        Text of the matrix, and the files of the trial. Nothing of it has been checked but the names.

    Raises:
        UsageError: It is no such report, or lacks a file of the question.
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
    given = [StudyFile(MATRIX, question.matrix.encode(), executable=False)] if question.matrix else []
    given += [StudyFile(one.name, one.text.encode(), one.executable) for one in question.files]
    return given, question.left_out


def _from_page(text: str) -> tuple[list[StudyFile], Sequence[str]]:
    parser = _Links()
    parser.feed(text)
    return parser.files, parser.left_out


class _Links(HTMLParser):
    """Collects the files of the question from the links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[StudyFile] = []
        self.left_out: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep a link to save a file, and the name of a file that is left out."""
        values = {name: value or "" for name, value in attrs}
        if values.get("class") == "left-out":
            self.left_out.append(values.get("data-name", ""))
        if tag != "a" or values.get("class") != "question" or not values.get("href", "").startswith(_ADDRESS):
            return
        try:
            content = base64.b64decode(values["href"].removeprefix(_ADDRESS), validate=True)
        except binascii.Error:
            return
        name, executable = values.get("download", ""), values.get("data-executable") == "yes"
        self.files.append(StudyFile(name, content, executable))


def shared(report: Report) -> Report:
    """Return a report for other people: without paths of anybody's home, with commands that they can paste.

    The script stays as it is. A matrix that lies outside of the folder where the command was given is named
    by its study, which everybody with the database knows.
    """
    path, question = clean(report.study.matrix), report.question
    steps, matrix = report.reproduce, path
    if Path(path).is_absolute() or ".." in Path(path).parts:
        steps, matrix = tuple(_by_study(step, path, report.study.id) for step in steps), Path(path).name
    study = report.study.model_copy(update={"matrix": matrix})
    plain = report.model_copy(update={"question": QuestionReport(), "reproduce": steps, "study": study})
    found = Report.model_validate_json(_HOMES.sub("~", plain.model_dump_json()))
    # Only comments of the matrix: the rest of it is the question.
    lines = question.matrix.splitlines(keepends=True)
    text = "".join(_HOMES.sub("~", line) if line.startswith("#") else line for line in lines)
    return found.model_copy(update={"question": question.model_copy(update={"matrix": text})})


def _by_study(step: StepReport, path: str, study: str) -> StepReport:
    named = [command.replace(command_line(path), study[:_SHORT_ID]) for command in step.commands]
    return step.model_copy(update={"commands": tuple(named)})
