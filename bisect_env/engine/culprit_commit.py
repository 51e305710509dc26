"""Describes the commit that an answer names: its author, its changes and where to read on. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from bisect_env.matrix.history import CommitDetails

FILES = 50
"""Files of a commit that are listed."""
MOST_UNTRIED = 20
"""Commits between last good and first bad that are named."""
_PULL_REQUEST = re.compile(
    r"\(#(\d{1,9})\)\s*$|^Merge pull request #(\d{1,9})\b|\((?:\w[\w./-]*)?!(\d{1,9})\)\s*$"
)


def named_commits(verdict: Mapping[str, Any], axis: str) -> tuple[str, str, list[str]] | None:
    """First bad and last good commit of an axis that alone carries a verdict, and what is between them.

    Args:
        verdict: The verdict document.
        axis: Of commits.

    Returns:
        None where the verdict names no such commit.
    """
    first, last = verdict.get("first_bad"), verdict.get("last_good")
    is_about = verdict.get("status", "none") != "none" and verdict.get("culprit_axes") == [axis]
    if not is_about or not first or not last:
        return None
    between: list[str] = []
    for boundary in verdict.get("boundaries") or ():
        if boundary.get("axis") == axis and boundary.get("bad") == first:
            between = [str(one["combination"][axis]) for one in boundary.get("between") or ()]
    return str(first[axis]), str(last[axis]), between


def chapter(
    axis: str,
    package: str,
    bad: CommitDetails,
    good: CommitDetails,
    between: Sequence[CommitDetails],
    forge: str,
) -> dict[str, Any]:
    """The chapter of a report on the first bad commit.

    Args:
        axis: Of the matrix.
        package: That is built.
        bad: The first bad commit.
        good: The last good one.
        between: Commits between them that could not be tried.
        forge: Where the repository is looked at, "" where nobody knows.
    """
    return {
        "axis": axis,
        "package": package,
        "repository": forge,
        "commit": bad.commit,
        "subject": bad.subject,
        "author": bad.author,
        "authored": bad.authored.isoformat(),
        "committed": bad.committed.isoformat(),
        "is_merge": len(bad.parents) > 1,
        "pull_request": pull_request(bad.subject),
        "files": [list(one) for one in bad.files[:FILES]],
        "changed": len(bad.files),
        "added": sum(added or 0 for _, added, _ in bad.files),
        "removed": sum(removed or 0 for _, _, removed in bad.files),
        "compare": comparison(forge, good.commit, bad.commit),
        "last_good": {"commit": good.commit, "subject": good.subject},
        "untried": [{"commit": one.commit, "subject": one.subject} for one in between],
    }


def pull_request(subject: str) -> int | None:
    """The number of the pull request that a subject names."""
    found = _PULL_REQUEST.search(subject)
    return int(next(group for group in found.groups() if group)) if found else None


def comparison(forge: str, good: str, bad: str) -> str:
    """The address at which a forge compares two commits, "" where it has none.

    Args:
        forge: Address of the repository, as git has it.
        good: Hash.
        bad: Hash.
    """
    if "://" not in forge and (found := re.fullmatch(r"(?:[\w.-]+@)?([\w.-]+):(?!/)([\w./~+-]+)", forge)):
        forge = f"ssh://{found[1]}/{found[2]}"
    parts = urlsplit(forge)
    path = parts.path.strip("/").removesuffix(".git")
    if parts.scheme not in ("http", "https", "ssh", "git") or not parts.hostname or path.count("/") < 1:
        return ""
    # Of a port that ssh listens at no browser knows anything.
    host = parts.netloc.rpartition("@")[2] if parts.scheme in ("http", "https") else parts.hostname
    inner = "/-/compare/" if "gitlab" in parts.hostname else "/compare/"
    return f"https://{host}/{quote(path)}{inner}{good}...{bad}"


def bisect_log(
    tried: Sequence[tuple[str, str, str]], first_bad: str, labels: Mapping[str, str], *, is_sure: bool
) -> list[str]:
    """The trials as a log that `git bisect replay` reads.

    Args:
        tried: Commit, `bad`, `good` or `skip`, and a few words, oldest commit first.
        first_bad: The answer.
        labels: Hash to subject.
        is_sure: Whether nothing between it and the last good one is untried.
    """
    lines = ["git bisect start"]
    # git goes by the bad commit that it was told last.
    bad = [one for one in reversed(tried) if one[1] == "bad"]
    ordered = [*bad, *(one for one in tried if one[1] == "good"), *(one for one in tried if one[1] == "skip")]
    for commit, said, words in ordered:
        lines += [
            f"# {said}: [{commit}] {labels.get(commit, '')} {words}".rstrip(),
            f"git bisect {said} {commit}",
        ]
    if is_sure:
        lines.append(f"# first bad commit: [{first_bad}] {labels.get(first_bad, '')}".rstrip())
    return lines
