"""Orders the commits between two ends, and chooses values of an axis among them. Pure.

Parents come before their children, and what a merge brings in comes between its first parent and the merge.
Values are chosen from one line of first parents at a time: that of the range, and then, if a merge is the
first bad commit, that of the branch that it merged.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

AT_ONCE = 500
"""Lines with at most so many commits are tried commit by commit."""
FEWER = 250
"""Number of commits chosen from a longer line; the others are added around the answer."""
SHORT = 10
"""Digits of a shortened hash."""

_HASH = re.compile(r"\b[0-9a-f]{40}(?:[0-9a-f]{24})?\b")


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit with the facts that place it in a history.

    Attributes:
        parents: Hashes of its parents, the first parent first.
        subject: First line of its message.
    """

    parents: tuple[str, ...]
    subject: str = ""


@dataclass(frozen=True)
class History:
    """The commits between two ends.

    Attributes:
        first: The older end, or the commit where the newer end's line left the older end's history.
        last: The newer end.
        commits: Hash to commit, for all commits after `first` up to `last`, in the order of `git log`.
        every: Whether commits that a merge brought in are looked at, too.
        first_subject: Subject of the commit `first`.
    """

    first: str
    last: str
    commits: Mapping[str, Commit]
    every: bool = False
    first_subject: str = ""

    @cached_property
    def line(self) -> tuple[str, ...]:
        """Return the first parents from `first` to `last`."""
        return (self.first, *self._below(self.last), self.last)

    @cached_property
    def place(self) -> dict[str, int]:
        """Return the position of each commit that may be a value."""
        if not self.every:
            return {commit: i for i, commit in enumerate(self.line)}
        # Depth first, parents in their order, each commit after what it was made from.
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
        """Return the commits to begin with, oldest first, both ends among them."""
        return thinned(self.line)

    def inside(self, older: Iterable[str], newer: str, listed: Collection[str] = ()) -> tuple[str, ...]:
        """Return which commits to look at next between the two sides of a boundary.

        The first parents of the newer side come first. Once all of them are listed, the commits that one
        of their merges brought in follow, the newest merge first.

        Args:
            older: Commits that behave as the older end; their ancestors count as such, too.
            newer: A commit that behaves as the newer end.
            listed: Commits that are values of the axis already, whether they could be tried or not.

        Returns:
            The commits, oldest first; a selection if there are more than `AT_ONCE`.
        """
        known = self._made_from(older)
        tips, seen = [newer], {*known}
        while tips:
            tip = tips.pop()
            line = [one for one in (*self._below(tip), tip) if one not in known]
            if found := [one for one in line if one != newer and one not in listed]:
                return thinned(found)
            # The newest merge of the line is the next to be gone into.
            branches = [one for merge in line for one in self.parents(merge)[1:] if one in self.commits]
            tips += [one for one in dict.fromkeys(branches) if one not in seen]
            seen.update(branches)
        return ()

    def around(self, values: Sequence[str], older: Iterable[str], newer: str) -> tuple[str, ...]:
        """Return the values of an axis with further commits around a boundary, in an order that fits trials.

        Ancestors of older commits come before every commit that may still be the culprit. Otherwise a
        commit that cannot be built would seem good if it came before a good one of another branch.

        Args:
            values: Present values of the axis.
            older: Commits that behave as the older end.
            newer: The first commit that behaves as the newer end.

        Returns:
            The same values if no commit is left to look at.
        """
        older = [*older]
        known = self._made_from(older)
        wanted = {*values, *self.inside(older, newer, values)}
        return tuple(sorted(wanted, key=lambda one: (one not in known, self.place[one])))

    def left_out(self, values: Iterable[str]) -> dict[str, int]:
        """Return how many commits directly before each value are no values.

        Zero counts are left out.

        Args:
            values: Values of an axis, in their order.
        """
        counts: dict[str, int] = {}
        known: set[str] = set()
        for value in values:
            if known and (number := len(self._between(known, value))):
                counts[value] = number
            self._made_from([value], known)
        return counts

    def parents(self, commit: str) -> tuple[str, ...]:
        """Return the parents of a commit that may be values."""
        known = self.commits.get(commit)
        return () if known is None else known.parents[: None if self.every else 1]

    def _made_from(self, commits: Iterable[str], known: set[str] | None = None) -> set[str]:
        """Return the given commits and all their ancestors within the range.

        Args:
            commits: The commits.
            known: Set to which they are added; its members are not followed again.
        """
        found = set() if known is None else known
        stack = list(commits)
        while stack:
            one = stack.pop()
            if one not in found:
                found.add(one)
                stack += self.parents(one)
        return found

    def _between(self, known: Collection[str], value: str) -> tuple[str, ...]:
        if value in known:
            return ()
        found = tuple(one for one in self._below(value) if one not in known)
        merged = (one for line in self._merged(value) for one in line if one not in known)
        return found or tuple(dict.fromkeys(merged))

    def _merged(self, commit: str) -> list[tuple[str, ...]]:
        """Return the commits of each branch that a merge brought in, oldest first.

        Empty for other commits.
        """
        tips = [one for one in self.parents(commit)[1:] if one in self.commits]
        return [(*self._below(tip), tip) for tip in tips]

    def subject(self, commit: str) -> str:
        """Return the first line of a commit's message."""
        known = self.commits.get(commit)
        return known.subject if known else self.first_subject

    def label(self, commit: str) -> str:
        """Return a readable name of a commit: its shortened hash and its subject."""
        subject = self.subject(commit)
        return f"{commit[:SHORT]} ({subject})" if subject else commit[:SHORT]

    def _below(self, commit: str) -> tuple[str, ...]:
        """Return the first-parent ancestors of a commit within the range, oldest first.

        The commit itself and `first` are left out.
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
    """A commit as git describes it: author, dates, subject, changed files and tags.

    Attributes:
        commit: Its hash.
        author: Name of the author.
        authored: Time of writing.
        committed: Time of the commit.
        subject: First line of its message.
        parents: Hashes of its parents.
        files: Changes from its first parent: path, lines added and removed, None for binary files.
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
    """Return a line of commits, thinned evenly if it is long; both ends are kept."""
    whole = tuple(line)
    if len(whole) <= AT_ONCE:
        return whole
    places = dict.fromkeys(round(i * (len(whole) - 1) / (FEWER - 1)) for i in range(FEWER))
    return tuple(whole[place] for place in places)


def is_commit(text: str) -> bool:
    """Return whether a text is the full hash of a commit."""
    return _HASH.fullmatch(text) is not None


def readable(text: str, labels: Mapping[str, str] | None = None) -> str:
    """Return a text with readable names instead of commit hashes.

    Args:
        text: May hold any number of full hashes.
        labels: Hash to readable name; other hashes are shortened.
    """
    known = labels or {}
    return _HASH.sub(lambda found: known.get(found[0], found[0][:SHORT]), text)
