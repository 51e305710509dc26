"""The commits between two of a repository, their order, and which of them are tried at first. Pure.

Each commit comes after its parents, and what a merge brings in stands between its first parent and the merge.
So bad ones follow good ones along every line of first parents, on which alone values of an axis are
chosen: first on the line of the range itself, and then, where a merge is the first bad one, on the line that
it merged.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

AT_ONCE = 500
"""Commits of a line up to which each is a value of the axis."""
FEWER = 250
"""Of a longer line about so many are; the others are looked at around the answer."""
SHORT = 10
"""Digits of a hash that people read."""

_HASH = re.compile(r"\b[0-9a-f]{40}(?:[0-9a-f]{24})?\b")


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit, as far as its place in a history needs it.

    Attributes:
        parents: Hashes, that of the branch it was made on first.
        subject: First line of its message.
    """

    parents: tuple[str, ...]
    subject: str = ""


@dataclass(frozen=True)
class History:
    """The commits between two.

    Attributes:
        first: Where it begins: the older end itself, or where the newer end's line left its history.
        last: Where it ends.
        commits: Hash to commit, for all that lie after `first`, `last` included.
        every: Whether what a merge brought in is looked at, too.
        first_subject: Of the commit `first`.
    """

    first: str
    last: str
    commits: Mapping[str, Commit]
    every: bool = False
    first_subject: str = ""

    @cached_property
    def line(self) -> tuple[str, ...]:
        """First parents from `first` to `last`."""
        return (self.first, *self._below(self.last), self.last)

    @cached_property
    def place(self) -> dict[str, int]:
        """Position of each commit that may be a value."""
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
        """The commits to begin with, oldest first, both ends among them."""
        return thinned(self.line)

    def inside(self, one: str, other: str) -> tuple[str, ...]:
        """Which commits to look at next where one of two neighbours on the axis is good and the other is bad.

        Args:
            one: Either commit.
            other: The other.

        Returns:
            Some that lie between them, oldest first; nothing where nothing does.
        """
        found = self._between(one, other)
        return thinned(found) if len(found) > AT_ONCE else found

    def left_out(self, values: Iterable[str]) -> dict[str, int]:
        """How many commits stand directly before each value without being one, where some do.

        Args:
            values: Those of an axis, oldest first.
        """
        counts = {value: len(self._between(one, value)) for one, value in itertools.pairwise(values)}
        return {value: number for value, number in counts.items() if number}

    def _between(self, one: str, other: str) -> tuple[str, ...]:
        place = self.place
        if one not in place or other not in place or one == other:
            return ()
        low, high = sorted((one, other), key=place.__getitem__)
        found = self._after(low, self._below(high))
        parents = self.commits[high].parents
        # What an octopus merge brings in has no order in itself: the merge stands for it.
        if not found and self.every and len(parents) == 2 and parents[1] in self.commits:
            found = self._after(low, (*self._below(parents[1]), parents[1]))
        return found

    def _after(self, low: str, line: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(commit for commit in line if self.place.get(commit, -1) > self.place[low])

    def subject(self, commit: str) -> str:
        """First line of a commit's message."""
        known = self.commits.get(commit)
        return known.subject if known else self.first_subject

    def label(self, commit: str) -> str:
        """How people read a commit: its hash, shortened, and its subject."""
        subject = self.subject(commit)
        return f"{commit[:SHORT]} ({subject})" if subject else commit[:SHORT]

    def _below(self, commit: str) -> tuple[str, ...]:
        """First parents of a commit within the range, oldest first, without itself and without `first`."""
        return tuple(self._down(commit))[::-1]

    def _down(self, commit: str) -> Iterable[str]:
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
        author: Name.
        authored: When it was written.
        committed: When it came to where it is.
        subject: First line of its message.
        parents: Hashes.
        files: What it changes from its first parent: path, lines added and removed, None for binary files.
        tags: That point to it.
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
    """A line as it is, or with about as many of its commits as can be looked at, both ends among them."""
    whole = tuple(line)
    if len(whole) <= AT_ONCE:
        return whole
    places = dict.fromkeys(round(i * (len(whole) - 1) / (FEWER - 1)) for i in range(FEWER))
    return tuple(whole[place] for place in places)


def readable(text: str, labels: Mapping[str, str] | None = None) -> str:
    """A text with its hashes of commits as people read them.

    Args:
        text: May hold any number of full hashes.
        labels: Hash to what stands for it; others are shortened.
    """
    known = labels or {}
    return _HASH.sub(lambda found: known.get(found[0], found[0][:SHORT]), text)
