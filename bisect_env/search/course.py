"""How the posterior moved, trial by trial: a search told again what it was told. Pure."""

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
class Course:
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


def course(
    search: Search,
    told: Sequence[tuple[Index, bool]],
    *,
    points: int,
    answers: int,
) -> Course:
    """Tell a search its trials, and look at its belief on the way.

    Args:
        search: That was told nothing yet; what is to be set aside is set aside.
        told: Combination and whether it showed the target, in order.
        points: How often to look at most; fewer where a look is dear (a large matrix).
        answers: How many answers to follow at most.
    """
    masses = [search.probabilities]
    # Whether axes were taken to change as their directions say; rarely both.
    assumed = [search.is_monotone]
    looks = _looks(len(told), points if len(masses[0]) <= _SMALL else max(2, points // 5))
    since: Counter[tuple[Index, bool]] = Counter()
    for number, (index, hit) in enumerate(told, start=1):
        since[index, hit] += 1
        if number in looks:
            for (cell, was), times in since.items():
                search.tell_counts(cell, times if was else 0, times)
            since.clear()
            masses.append(search.probabilities)
            assumed.append(search.is_monotone)
    last = [mass for mass, same in zip(masses, assumed, strict=True) if same == search.is_monotone]
    peaks = np.max(last, axis=0)
    # What is believed in the end, then whatever was believed most on the way.
    order = np.lexsort((-peaks, -last[-1]))
    chosen = [int(order[0]), *(int(n) for n in np.argsort(-peaks, kind="stable") if n != order[0])][:answers]
    followed = tuple(search.spokesman(n) for n in chosen)
    table = np.zeros((len(masses), len(chosen)))
    for row, (mass, same) in enumerate(zip(masses, assumed, strict=True)):
        if same == search.is_monotone:
            table[row] = mass[chosen]
    return Course(followed, (0, *sorted(looks)), table)


def _looks(trials: int, points: int) -> set[int]:
    """Numbers of trials after which to look: all, or evenly spread ones with the last."""
    return {int(n) for n in np.linspace(1, trials, min(points, trials)).round()} if trials else set()
