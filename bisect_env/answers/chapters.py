"""Chapters that further commands add to the report of a study: the first bad commit, what `between` found."""

from __future__ import annotations

from datetime import datetime

from bisect_env.answers.verdict_document import AnswerPart


class TracedReport(AnswerPart):
    """The result of `bisect-env between` on two environments.

    Attributes:
        sentence: The whole answer in one sentence.
        study: Id of the study of the culprit's releases, "" where there is none.
        releases: What that study says, in one sentence.
    """

    sentence: str
    study: str = ""
    releases: str = ""


class NamedCommit(AnswerPart):
    """A commit by hash and subject."""

    commit: str
    subject: str = ""


class CommitReport(AnswerPart):
    """The first bad commit.

    Attributes:
        axis: Whose value it is.
        package: That was built from it.
        repository: Where people look at it, "" where nobody knows.
        commit: Full hash.
        subject: First line of its message.
        author: Name.
        authored: When it was written.
        committed: When it came to where it is.
        is_merge: Whether it has several parents.
        pull_request: Number, if its subject names one.
        files: What it changes from its first parent: path, lines added and removed, None for binary files.
        changed: How many files.
        added: Lines.
        removed: Lines.
        compare: Address of the comparison with the last good one, "" where the forge is not known.
        last_good: The last good commit.
        untried: Those between the two that could not be tried: one of them may be it.
        log: What was tried, for `git bisect replay`.
        study: Id of the study that found it, "" if it is this one.
        sentence: What that study says.
    """

    axis: str
    package: str
    repository: str = ""
    commit: str
    subject: str = ""
    author: str = ""
    authored: datetime
    committed: datetime
    is_merge: bool = False
    pull_request: int | None = None
    files: tuple[tuple[str, int | None, int | None], ...] = ()
    changed: int = 0
    added: int = 0
    removed: int = 0
    compare: str = ""
    last_good: NamedCommit
    untried: tuple[NamedCommit, ...] = ()
    log: tuple[str, ...] = ()
    study: str = ""
    sentence: str = ""
