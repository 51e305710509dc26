"""Chooses the commit that `git bisect` would look at next, also after skipped commits. Pure.

Where builds are dear and failures certain, whoever looks where git looks builds no more than it, whatever
cannot be built. Any other way round such a stretch is luckier now and then, and unluckier at other times.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence

_MODULO = 32768
_WORD = 2**32


def looked_at_next(
    hashes: Sequence[str], weights: Sequence[int], skipped: Collection[int], *, skips: bool
) -> int | None:
    """Which commit git checks out next.

    Args:
        hashes: Of the commits after the newest good one, oldest first; the last is the oldest bad one.
        weights: How many commits each of them stands for, with itself: what a merge brought in is not listed.
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
        best = max(tells)
        # Of two in the middle git takes the older one, but never the oldest of three.
        return 1 if below == [1, 2, 3] else tells.index(best)
    # Of equal ones it then takes them by their hashes.
    ordered = sorted(range(count), key=lambda i: (-tells[i], hashes[i]))
    able = [i for i in ordered if i not in skipped]
    place = able[0] if able[:1] == ordered[:1] else _stepped_aside(able, count - 1)
    return None if place == count - 1 else place


def _stepped_aside(able: Sequence[int], bad: int) -> int:
    """Git's own chance, which depends on nothing but the number of commits that are left."""
    number = len(able)
    chance = (number * 1103515245 + 12345) % _WORD // 65536 % _MODULO
    place = number * chance // _MODULO * math.isqrt(chance) // math.isqrt(_MODULO)
    return able[place - 1] if able[place] == bad and place else able[place]
