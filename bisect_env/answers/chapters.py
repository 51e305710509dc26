"""Additional parts of a study's report: the first bad commit, and the result of `bisect-env between`."""

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
    releases: str = Field(default="", description="Verdict of that study in one sentence.")


class NamedCommit(AnswerPart):
    """The hash and the subject line of a commit."""

    commit: str = Field(description="Full hash of the commit.")
    subject: str = Field(default="", description="First line of the commit message.")


class CommitReport(AnswerPart):
    """The chapter of a report about the first bad commit."""

    axis: str = Field(description="Axis that has the commit as a value.")
    package: str = Field(description="Package that was built from the commit.")
    repository: str = Field(
        default="", description="Web address of the repository; empty if it is not known."
    )
    commit: str = Field(description="Full hash of the commit.")
    subject: str = Field(default="", description="First line of the commit message.")
    author: str = Field(default="", description="Name of the commit's author.")
    authored: datetime = Field(description="When the commit was written (author date).")
    committed: datetime = Field(description="When the commit was applied (committer date).")
    is_merge: bool = Field(default=False, description="Whether the commit is a merge.")
    pull_request: int | None = Field(
        default=None, description="Number of the pull request, if the first line of the message names one."
    )
    files: tuple[tuple[str, int | None, int | None], ...] = Field(
        default=(),
        description="Changed files: path, lines added and removed (null for binary files).",
    )
    changed: int = Field(default=0, description="Number of changed files.")
    added: int = Field(default=0, description="Lines added in all files.")
    removed: int = Field(default=0, description="Lines removed in all files.")
    compare: str = Field(
        default="",
        description="Web address of the comparison with the last good commit; empty if the forge is not "
        "known.",
    )
    last_good: NamedCommit = Field(description="The last good commit.")
    untried: tuple[NamedCommit, ...] = Field(
        default=(),
        description="Commits between the two that could not be tried; any of them may be the first bad one.",
    )
    log: tuple[str, ...] = Field(default=(), description="Log of the tried commits, for `git bisect replay`.")
    study: str = Field(default="", description="Id of the study that found the commit; empty for this study.")
    sentence: str = Field(default="", description="Verdict of that study.")
