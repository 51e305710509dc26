"""Shows how the posterior of a study moved, by telling a search its trials again. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bisect_env.matrix.grid import Index
from bisect_env.search.families import FloatArray
from bisect_env.search.searcher import Search
from bisect_env.search.space import Hypothesis

_SMALL = 1000


@dataclass(frozen=True, slots=True)
class Trace:
    """How probable some answers were after some numbers of trials.

    Attributes:
        answers: Those that hold, or once held, the most; the best one at the end comes first.
        trials: Numbers of trials, ascending: the points.
        probabilities: Posterior of each answer at each point, shape (points, answers); 0 where the hypotheses
            of that time did not contain it.
    """

    answers: tuple[Hypothesis, ...]
    trials: tuple[int, ...]
    probabilities: FloatArray


def trace(
    search: Search,
    told: Sequence[tuple[Index, bool]],
    *,
    points: int,
    answers: int,
) -> Trace:
    """Tell a search its trials, and look at its belief on the way.

    Which hypotheses are weighed depends on the counts (histories that change more often come in where trials
    speak for them, and which ones depends on what was tried). Answers of different moments are therefore
    matched by what they say of the combinations, never by their number.

    Args:
        search: That was told nothing yet; what is to be set aside is set aside.
        told: Combination and whether it showed the target, in order.
        points: How often to look at most; fewer where a look is dear (a large matrix).
        answers: How many answers to follow at most.
    """
    masses = [search.probabilities]
    prints = [search.fingerprints]
    looks = _looks(len(told), points if len(masses[0]) <= _SMALL else max(2, points // 5))
    since: Counter[tuple[Index, bool]] = Counter()
    for number, (index, hit) in enumerate(told, start=1):
        since[index, hit] += 1
        if number in looks:
            for (cell, was), times in since.items():
                search.tell_counts(cell, times if was else 0, times)
            since.clear()
            masses.append(search.probabilities)
            prints.append(search.fingerprints)
    last = prints[-1]
    peaks = masses[-1].copy()
    # The same hypotheses are in use most of the time, hence one match for each kind.
    places = {id(each): _places(each, last) for each in prints}
    for mass, each in zip(masses, prints, strict=True):
        here = places[id(each)]
        peaks = np.maximum(peaks, np.where(here >= 0, mass[here], 0.0))
    # What is believed in the end, then whatever was believed most on the way.
    order = np.lexsort((-peaks, -masses[-1]))
    chosen = [int(order[0]), *(int(n) for n in np.argsort(-peaks, kind="stable") if n != order[0])][:answers]
    followed = tuple(search.representative(n) for n in chosen)
    table = np.zeros((len(masses), len(chosen)))
    for row, (mass, each) in enumerate(zip(masses, prints, strict=True)):
        here = places[id(each)][chosen]
        table[row] = np.where(here >= 0, mass[here], 0.0)
    return Trace(followed, (0, *sorted(looks)), table)


def _places(among: FloatArray, wanted: FloatArray) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Return where each row of `wanted` stands in `among`, -1 where it does not."""
    if among is wanted:
        return np.arange(len(wanted))
    known = {row.tobytes(): place for place, row in enumerate(among)}
    return np.array([known.get(row.tobytes(), -1) for row in wanted], dtype=np.intp)


def _looks(trials: int, points: int) -> set[int]:
    """Numbers of trials after which to look: all, or evenly spread ones with the last."""
    return {int(n) for n in np.linspace(1, trials, min(points, trials)).round()} if trials else set()
