"""Chapters that further commands add to the report of a study: the first bad commit, what `between` found."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from bisect_env.answers.verdict_document import AnswerPart


class TracedReport(AnswerPart):
    """The result of `bisect-env between` on two environments."""

    sentence: str = Field(description="The whole answer in one sentence.")
    study: str = Field(
        default="", description="Id of the study of the culprit's releases; empty if there is none."
    )
    releases: str = Field(default="", description="What that study says, in one sentence.")


class NamedCommit(AnswerPart):
    """A commit by hash and subject."""

    commit: str = Field(description="Full hash.")
    subject: str = Field(default="", description="First line of its message.")


class CommitReport(AnswerPart):
    """The first bad commit."""

    axis: str = Field(description="Axis whose value it is.")
    package: str = Field(description="Package that was built from it.")
    repository: str = Field(
        default="", description="Web address of the repository; empty if it is not known."
    )
    commit: str = Field(description="Full hash.")
    subject: str = Field(default="", description="First line of its message.")
    author: str = Field(default="", description="Name of its author.")
    authored: datetime = Field(description="When it was written.")
    committed: datetime = Field(description="When it came to where it is.")
    is_merge: bool = Field(default=False, description="Whether it has several parents.")
    pull_request: int | None = Field(default=None, description="Number, if its subject names one.")
    files: tuple[tuple[str, int | None, int | None], ...] = Field(
        default=(),
        description="Changed files: path, lines added and removed (null for binary files).",
    )
    changed: int = Field(default=0, description="Number of files that it changes.")
    added: int = Field(default=0, description="Lines of all files together.")
    removed: int = Field(default=0, description="Lines of all files together.")
    compare: str = Field(
        default="",
        description="Address of the comparison with the last good one; empty if the forge is not known.",
    )
    last_good: NamedCommit = Field(description="The last good commit.")
    untried: tuple[NamedCommit, ...] = Field(
        default=(), description="Those between the two that could not be tried: one of them may be it."
    )
    log: tuple[str, ...] = Field(default=(), description="What was tried, for `git bisect replay`.")
    study: str = Field(default="", description="Id of the study that found it; empty if it is this one.")
    sentence: str = Field(default="", description="What that study says.")
