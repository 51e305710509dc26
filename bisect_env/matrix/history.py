"""Orders the commits between a first and a last commit, and selects values of a commit axis among them. Pure.

In this order, parents precede their children, and the commits of a merged branch lie between the merge's
first parent and the merge. Values are selected from one *line* at a time, a chain of first parents. The first
line leads from the first to the last commit. If the first bad commit of a line is a merge, the next line is
the branch that it merged.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

AT_ONCE = 500
"""Maximum length of a line of which all commits become values at once."""
FEWER = 250
"""Number of commits selected from a longer line. Others are added later, near the first bad commit."""
SHORT = 10
"""Number of digits of a shortened hash."""

_HASH = re.compile(r"\b[0-9a-f]{40}(?:[0-9a-f]{24})?\b")


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of a git repository: its parents and its subject.

    Attributes:
        parents: Hashes of the parents, the first parent first.
        subject: First line of the commit message.
    """

    parents: tuple[str, ...]
    subject: str = ""


@dataclass(frozen=True)
class History:
    """The commits of a repository between an older and a newer commit.

    Attributes:
        first: Hash of the older commit. If it is not on the line of the newer commit, the hash of the commit
            at which that line branched off.
        last: Hash of the newer commit.
        commits: Hash to commit, for all commits after `first` up to `last`, in the order of `git log`.
        every: Whether commits of merged branches may be values, not only commits on the line of `last`.
        first_subject: Subject of the commit `first`.
    """

    first: str
    last: str
    commits: Mapping[str, Commit]
    every: bool = False
    first_subject: str = ""

    @cached_property
    def line(self) -> tuple[str, ...]:
        """Return the hashes of the commits from `first` to `last`, following first parents only.

        Both ends are included.
        """
        return (self.first, *self._below(self.last), self.last)

    @cached_property
    def place(self) -> dict[str, int]:
        """Return the position of each commit that can be a value of the axis, as a dict by hash.

        Parents come before their children. Without `every`, only the commits of `line` are in the dict.
        """
        if not self.every:
            return {commit: i for i, commit in enumerate(self.line)}
        # Depth-first search: parents in their order, and each commit after its parents.
        place = {self.first: 0}
        seen = {self.first}
        stack: list[tuple[str, int]] = [(self.last, 0)]
        while stack:
            commit, turn = stack.pop()
            parents = self.commits[commit].parents
            if turn < len(parents):
                stack.append((commit, turn + 1))
                parent = parents[turn]
                if parent in self.commits and parent not in seen:
                    seen.add(parent)
                    stack.append((parent, 0))
            elif commit not in place:
                place[commit] = len(place)
        return place

    def chosen(self) -> tuple[str, ...]:
        """Return the hashes of the commits with which the axis begins, oldest first.

        `first` and `last` are included.
        """
        return thinned(self.line)

    def inside(self, older: Iterable[str], newer: str, listed: Collection[str] = ()) -> tuple[str, ...]:
        """Return more commits to try, in order to find the one at which the behaviour changes.

        They are taken from the line of `newer`. If all commits of that line are already values of the axis,
        they are taken from a branch that the line merged, beginning with the newest merge.

        Args:
            older: Commits that behave like `first` (both good, or both bad). Their ancestors are assumed to
                behave in the same way.
            newer: A commit that behaves like `last`.
            listed: Commits that are already values of the axis, whether they could be tested or not.

        Returns:
            Hashes of the commits, oldest first; only a selection if there are more than `AT_ONCE`.
        """
        known = self._made_from(older)
        tips, seen = [newer], {*known}
        while tips:
            tip = tips.pop()
            line = [one for one in (*self._below(tip), tip) if one not in known]
            if found := [one for one in line if one != newer and one not in listed]:
                return thinned(found)
            # Continue with the branch of the newest merge.
            branches = [one for merge in line for one in self.parents(merge)[1:] if one in self.commits]
            tips += [one for one in dict.fromkeys(branches) if one not in seen]
            seen.update(branches)
        return ()

    def around(self, values: Sequence[str], older: Iterable[str], newer: str) -> tuple[str, ...]:
        """Add commits near the change of behaviour to the values of an axis, and return all values in order.

        The added commits are those of `inside`. The commits of `older` and their ancestors come first. In
        another order, a commit that cannot be built might come before a good commit of another branch, and be
        assumed good, too. If there is no commit to add, only the order may change.

        Args:
            values: Present values of the axis.
            older: Commits that behave like `first` (both good, or both bad).
            newer: First commit that behaves like `last`.
        """
        older = [*older]
        known = self._made_from(older)
        wanted = {*values, *self.inside(older, newer, values)}
        return tuple(sorted(wanted, key=lambda one: (one not in known, self.place[one])))

    def left_out(self, values: Iterable[str]) -> dict[str, int]:
        """Count the commits that an axis skips directly before each of its values.

        Values before which no commit is skipped are missing from the result.

        Args:
            values: Values of an axis, in order.
        """
        counts: dict[str, int] = {}
        known: set[str] = set()
        for value in values:
            new = self._made_from([value], known)
            skipped = len(new & self.commits.keys()) - 1
            if known and skipped > 0:
                counts[value] = skipped
            known |= new
        return counts

    def parents(self, commit: str) -> tuple[str, ...]:
        """Return the hashes of a commit's parents, or of only the first parent if `every` is false.

        The tuple is empty if the commit is not in `commits`.
        """
        known = self.commits.get(commit)
        return () if known is None else known.parents[: None if self.every else 1]

    def _made_from(self, commits: Iterable[str], known: Collection[str] = ()) -> set[str]:
        """Return some commits together with all of their ancestors, except the commits in `known`.

        Args:
            commits: Hashes of commits.
            known: Hashes of commits to leave out. Their ancestors must be in it, too.
        """
        found: set[str] = set()
        stack = list(commits)
        while stack:
            one = stack.pop()
            if one not in found and one not in known:
                found.add(one)
                stack += self.parents(one)
        return found

    def subject(self, commit: str) -> str:
        """Return the first line of the message of a commit in this history, or "" if it is not known."""
        known = self.commits.get(commit)
        return known.subject if known else self.first_subject

    def label(self, commit: str) -> str:
        """Return a readable name of a commit, such as `1a2b3c4d5e (Fix the cache)`.

        The name is the shortened hash and, in parentheses, the first line of the message, if that is known.
        """
        subject = self.subject(commit)
        return f"{commit[:SHORT]} ({subject})" if subject else commit[:SHORT]

    def _below(self, commit: str) -> tuple[str, ...]:
        """Return the commits from which a commit descends by first parents only, oldest first.

        The chain ends at `first`. `commit` itself and `first` are left out.
        """
        return tuple(self._down(commit))[::-1]

    def _down(self, commit: str) -> Iterator[str]:
        while True:
            parents = self.commits[commit].parents
            if not parents or parents[0] not in self.commits:
                return
            commit = parents[0]
            yield commit


@dataclass(frozen=True, slots=True)
class CommitDetails:
    """The author, dates, subject, changed files and tags of a commit, for reports.

    Attributes:
        commit: Hash of the commit.
        author: Name of the author.
        authored: Author date.
        committed: Committer date.
        subject: First line of the commit message.
        parents: Hashes of the parents.
        files: Path, number of lines added and number of lines removed, for each file that differs from the
            first parent. The numbers are None for binary files.
        tags: Tags of the commit.
    """

    commit: str
    author: str
    authored: datetime
    committed: datetime
    subject: str
    parents: tuple[str, ...]
    files: tuple[tuple[str, int | None, int | None], ...] = ()
    tags: tuple[str, ...] = ()


def thinned(line: Iterable[str]) -> tuple[str, ...]:
    """Reduce a long list of commits to `FEWER` evenly spaced ones; shorter lists stay as they are.

    A list is long if it has more than `AT_ONCE` commits. The first and the last one are always kept.
    """
    whole = tuple(line)
    if len(whole) <= AT_ONCE:
        return whole
    places = dict.fromkeys(round(i * (len(whole) - 1) / (FEWER - 1)) for i in range(FEWER))
    return tuple(whole[place] for place in places)


def is_commit(text: str) -> bool:
    """Return whether a text is the full hash of a commit."""
    return _HASH.fullmatch(text) is not None


def readable(text: str, labels: Mapping[str, str] | None = None) -> str:
    """Replace all full commit hashes in a text by readable names, such as `1a2b3c4d5e (Fix the cache)`.

    Args:
        text: Text with any number of full hashes.
        labels: Hash to readable name; hashes that are not in it are shortened.
    """
    known = labels or {}
    return _HASH.sub(lambda found: known.get(found[0], found[0][:SHORT]), text)
