"""Chooses the commit that `git bisect` would look at next, also after skipped commits. Pure.

Where builds are dear and failures certain, whoever looks where git looks builds no more than it, whatever
cannot be built or was merged. Any other way is luckier now and then, and unluckier at other times.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence

MOST = 20_000
"""Commits up to which what each was made from is counted exactly: the memory for it grows with the square."""

_MODULO = 32768
_WORD = 2**32


def looked_at_next(
    parents: Mapping[str, Sequence[str]], bad: str, skipped: Collection[str], *, skips: bool
) -> str | None:
    """Return which commit git checks out next.

    Args:
        parents: Of each commit that may be the first bad one, in git's order, oldest first; parents that are
            none of these are not counted.
        bad: The oldest that is known to be bad, made from all others.
        skipped: Those that cannot be tested.
        skips: Whether any commit at all was skipped, be it one of these or not.

    Returns:
        Its hash; None where none is left between the good ones and the bad one.
    """
    if len(parents) < 2:
        return None
    count = len(parents)
    reaches = _reaches(parents)
    if not skips:
        return _halfway(parents, reaches) or max(
            reaches, key=lambda one: min(reaches[one], count - reaches[one])
        )
    chosen = _untested({one: min(n, count - n) for one, n in reaches.items()}, bad, skipped)
    return None if chosen == bad else chosen


def looked_at_next_in_line(
    hashes: Sequence[str], weights: Sequence[int], skipped: Collection[int], *, skips: bool
) -> int | None:
    """Return which of some commits in a row git would check out next if it knew no others.

    Args:
        hashes: Of the commits after the newest good one, oldest first; the last is the oldest bad one.
        weights: How many commits each of them stands for, with itself: what lies between them is not listed.
        skipped: Positions of those that cannot be tested.
        skips: Whether any commit at all was skipped, be it one of these or not.

    Returns:
        Its position; None where none is left between the good and the bad one.
    """
    count = len(hashes)
    if count < 2:
        return None
    below = list(itertools.accumulate(weights))
    # How many commits each can rule out.
    tells = [min(one, below[-1] - one) for one in below]
    if not skips:
        # Of two in the middle git takes the older one, but never the oldest of three.
        return 1 if below == [1, 2, 3] else tells.index(max(tells))
    aside = {hashes[place] for place in skipped}
    chosen = _untested(dict(zip(hashes, tells, strict=True)), hashes[-1], aside)
    return None if chosen in (None, hashes[-1]) else hashes.index(str(chosen))


def _reaches(parents: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return how many of the commits each was made from, itself among them."""
    bits: dict[str, int] = {}
    place = {commit: 1 << n for n, commit in enumerate(parents)}
    for commit in parents:
        stack = [commit]
        while stack:
            one = stack[-1]
            waiting = [other for other in parents[one] if other in place and other not in bits]
            if one in bits or not waiting:
                stack.pop()
                own = place[one]
                for other in parents[one]:
                    own |= bits.get(other, 0)
                bits[one] = own
            else:
                stack += waiting
    return {commit: bits[commit].bit_count() for commit in parents}


def _halfway(parents: Mapping[str, Sequence[str]], reaches: Mapping[str, int]) -> str | None:
    """The first commit that git comes by that halves them: merges first, those without parents never."""
    count = len(parents)
    inside = {commit: [one for one in made_from if one in parents] for commit, made_from in parents.items()}

    def halves(commit: str) -> bool:
        off = abs(2 * reaches[commit] - count)
        return off <= 1 or off < count // 1024

    for commit, made_from in inside.items():
        if len(made_from) > 1 and halves(commit):
            return commit
    known = {commit for commit, made_from in inside.items() if len(made_from) != 1}
    # Several rounds only where clocks went wrong, and a commit is dated before its parent.
    while len(known) < count:
        for commit, made_from in inside.items():
            if commit not in known and made_from[0] in known:
                known.add(commit)
                if halves(commit):
                    return commit
    return None


def _untested(tells: Mapping[str, int], bad: str, skipped: Collection[str]) -> str | None:
    """Return what git takes where commits were skipped, by how many each can rule out."""
    # Of equal ones it then takes them by their hashes.
    ordered = sorted(tells, key=lambda one: (-tells[one], one))
    able = [one for one in ordered if one not in skipped]
    if not able:
        return None
    return able[0] if able[0] == ordered[0] else _stepped_aside(able, bad)


def _stepped_aside(able: Sequence[str], bad: str) -> str:
    """Git's own chance, which depends on nothing but the number of commits that are left."""
    number = len(able)
    chance = (number * 1103515245 + 12345) % _WORD // 65536 % _MODULO
    place = number * chance // _MODULO * math.isqrt(chance) // math.isqrt(_MODULO)
    return able[place - 1] if able[place] == bad and place else able[place]
