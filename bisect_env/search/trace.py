"""Shows how the posterior of a study moved, by telling a search its trials again. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bisect_env.matrix.grid import Index
from bisect_env.search.families import FloatArray
from bisect_env.search.searcher import StudySearch
from bisect_env.search.space import Hypothesis


@dataclass(frozen=True, slots=True)
class Trace:
    """The probabilities of some answers after increasing numbers of trials.

    Attributes:
        answers: The answers that are, or once were, the most probable; the final best one comes first.
        trials: Numbers of trials, ascending: the points.
        probabilities: Posterior of each answer at each point, shape (points, answers); 0 where it was not
            among the answers of the verdict at that time.
    """

    answers: tuple[Hypothesis, ...]
    trials: tuple[int, ...]
    probabilities: FloatArray


def trace(search: StudySearch, told: Sequence[tuple[Index, bool]], *, points: int, answers: int) -> Trace:
    """Feed trials to a search and record the answers of its verdict on the way.

    Which answers a verdict compares depends on the counts. Answers of different moments are therefore
    matched by the combinations that they call bad.

    Args:
        search: A search without trials, with all exclusions already made.
        told: Pairs of a combination and whether the trial showed the target, in order.
        points: Maximum number of points.
        answers: Maximum number of answers to follow.
    """
    moments = [_probabilities(search)]
    looks = _looks(len(told), points)
    for number, (index, hit) in enumerate(told, start=1):
        search.tell(index, hit=hit)
        if number in looks:
            moments.append(_probabilities(search))
    peaks: dict[bytes, float] = {}
    hypotheses: dict[bytes, Hypothesis] = {}
    for moment in moments:
        for key, (hypothesis, probability) in moment.items():
            hypotheses[key] = hypothesis
            peaks[key] = max(peaks.get(key, 0.0), probability)
    # The best answer at the end, then those that were the most probable at any time.
    best = next(iter(moments[-1]))
    order = sorted(peaks, key=lambda key: (key != best, -peaks[key]))[:answers]
    table = [[moment[key][1] if key in moment else 0.0 for key in order] for moment in moments]
    return Trace(
        tuple(hypotheses[key] for key in order), (0, *sorted(looks)), np.array(table, dtype=np.float64)
    )


def _probabilities(search: StudySearch) -> dict[bytes, tuple[Hypothesis, float]]:
    """Return the answers of a verdict, the best one first, keyed by the combinations that they call bad."""
    candidates = search.verdict.candidates
    return {one.hypothesis.bad_cells().tobytes(): (one.hypothesis, one.probability) for one in candidates}


def _looks(trials: int, points: int) -> set[int]:
    """Return the numbers of trials after which to record: all, or evenly spread ones including the last."""
    return {int(n) for n in np.linspace(1, trials, min(points, trials)).round()} if trials else set()
