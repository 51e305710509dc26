"""The commits between two of a repository, their order, and which of them are tried at first. Pure.

Each commit comes after its parents, and what a merge brings in stands between its first parent and the merge.
So bad ones follow good ones along every line from parent to child, on one of which alone values of an axis
are chosen: first on the first parents of the range itself, and then, where a merge is the first bad one, on
the line that it merged. Whoever knows for certain what was good and bad may have any line that leads from the
one to the other (`laid_out`): what is known to be good stands before it, what is known to be bad after it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
        commits: Hash to commit, for all that lie after `first`, `last` included, in the order of `git log`.
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
        """Return the commits to begin with, oldest first, both ends among them."""
        return thinned(self.line)

    def inside(self, before: Sequence[str], value: str) -> tuple[str, ...]:
        """Return which commits to look at next where a value of an axis is bad and the one before it is good.

        Args:
            before: The values before it, in their order.
            value: The value.

        Returns:
            Some that lie between them, oldest first; nothing where nothing does.
        """
        found = self._between(self._made_from(before), value)
        return thinned(found) if len(found) > AT_ONCE else found

    def left_out(self, values: Iterable[str]) -> dict[str, int]:
        """Return how many commits stand directly before each value without being one, where some do.

        Args:
            values: Those of an axis, in their order.
        """
        counts: dict[str, int] = {}
        known: set[str] = set()
        for value in values:
            if known and (number := len(self._between(known, value))):
                counts[value] = number
            self._made_from([value], known)
        return counts

    def candidates(self, good: Iterable[str], bad: str) -> dict[str, tuple[str, ...]]:
        """Commits of which one is the first bad one, with the parents of each, in git's order, oldest first.

        Args:
            good: Commits that are known to be good, and with them what they were made from.
            bad: One that is not.
        """
        known = self._made_from(good)
        left = self._made_from([bad]) - known
        left.discard(self.first)
        return {one: self.parents(one) for one in reversed([*self.commits]) if one in left}

    def laid_out(
        self,
        tried: Collection[str],
        good: Collection[str],
        bad: Sequence[str],
        through: str | None,
        last_good: str,
    ) -> tuple[str, ...]:
        """Commits as the values of an axis on which bad ones follow good ones, whatever was merged.

        Args:
            tried: Those that were tried, be it in vain.
            good: Those of them that are good.
            bad: Those that are bad, or taken to be, the oldest first.
            through: A line of commits that lie between good and bad ones is to pass through this one; None
                where there is no such commit.
            last_good: Is to stand last of the good ones.

        Returns:
            What is good, or was made into something good; then what may be either; then what is bad.
        """
        open_ = self.candidates(good, bad[0])
        known = self._made_from(good)
        line = set() if through is None else set(self._line_through(open_, bad[0], through))
        before = {one for one in {*tried, self.first} if one in known} - {last_good}
        between = ({one for one in tried if one in open_} | line) - {*bad}
        after = {*tried, *bad, self.last} - before - between - {last_good}
        order = self.place.__getitem__
        return (
            *sorted(before, key=order),
            last_good,
            *sorted(between, key=order),
            *sorted(after, key=lambda one: (one != bad[0], order(one))),
        )

    def is_in_order(self, values: Sequence[str]) -> bool:
        """Return whether values are those to begin with, and others, in the order of the history."""
        places = [self.place.get(value, -1) for value in values]
        return places == sorted(places) and {*values} >= {*self.chosen()}

    def in_order(self, values: Iterable[str]) -> tuple[str, ...]:
        """Return what to begin with again, and those of some values that lie on the same line."""
        line = {*self.line}
        wanted = {*self.chosen(), *(value for value in values if value in line)}
        return tuple(sorted(wanted, key=self.place.__getitem__))

    def _line_through(self, open_: Mapping[str, object], bad: str, through: str) -> tuple[str, ...]:
        """Commits from parent to child, of which one is given, below a bad one; some of them if many."""
        above = {through}
        for one in sorted(open_, key=self.place.__getitem__):
            if above.intersection(self.parents(one)):
                above.add(one)
        line = [bad]
        while line[-1] != through:
            line.append(next(one for one in self.parents(line[-1]) if one in above))
        while below := [one for one in self.parents(line[-1])[:1] if one in open_]:
            line += below
        return (through, *thinned(line[:0:-1]))

    def parents(self, commit: str) -> tuple[str, ...]:
        """Return what a commit was made from, as far as it may be a value."""
        known = self.commits.get(commit)
        return () if known is None else known.parents[: None if self.every else 1]

    def _made_from(self, commits: Iterable[str], known: set[str] | None = None) -> set[str]:
        """Commits of the range, and all of it that they were made from.

        Args:
            commits: The commits.
            known: To which they are added.
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
        parents = self.parents(value)
        # What an octopus merge brings in has no order in itself: the merge stands for it.
        if not found and len(parents) == 2 and parents[1] in self.commits:
            merged = (*self._below(parents[1]), parents[1])
            found = tuple(one for one in merged if one not in known)
        return found

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


def is_commit(text: str) -> bool:
    """Return whether a text is the full hash of a commit."""
    return _HASH.fullmatch(text) is not None


def readable(text: str, labels: Mapping[str, str] | None = None) -> str:
    """Return a text with its hashes of commits as people read them.

    Args:
        text: May hold any number of full hashes.
        labels: Hash to what stands for it; others are shortened.
    """
    known = labels or {}
    return _HASH.sub(lambda found: known.get(found[0], found[0][:SHORT]), text)
