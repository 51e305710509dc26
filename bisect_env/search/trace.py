"""Show how the posterior of a study changed, by recording its trials in a new search one by one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bisect_env.matrix.grid import Index
from bisect_env.search.families import FloatArray
from bisect_env.search.space import Hypothesis
from bisect_env.search.study_search import StudySearch


@dataclass(frozen=True, slots=True)
class Trace:
    """A record of how the probabilities of several answers changed as trials were added.

    Attributes:
        answers: The hypotheses with the highest probabilities at any time. The most probable one at the end
            is first.
        trials: How many trials had been recorded at each point, ascending from 0.
        probabilities: Posterior of each answer at each point, shape (points, answers); 0 if the verdict at
            that point did not list the answer.
    """

    answers: tuple[Hypothesis, ...]
    trials: tuple[int, ...]
    probabilities: FloatArray


def trace(search: StudySearch, results: Sequence[tuple[Index, bool]], *, points: int, answers: int) -> Trace:
    """Replay trials in a new search and record how the probabilities of its answers change.

    Verdicts at different points list different answers. Answers are matched by the combinations that they
    call bad.

    Args:
        search: A search without trials from which combinations were already excluded (`set_aside`).
        results: Pairs (combination, whether the trial showed the target failure), in the order of the trials.
        points: Maximum number of points.
        answers: Maximum number of answers to record.
    """
    moments = [_probabilities(search)]
    looks = _looks(len(results), points)
    for number, (index, hit) in enumerate(results, start=1):
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
    """Return each answer of the current verdict with its probability, the most probable first.

    Each value is (hypothesis, probability). The keys are the bytes of the hypothesis's table of bad
    combinations.
    """
    candidates = search.verdict.candidates
    return {one.hypothesis.bad_cells().tobytes(): (one.hypothesis, one.probability) for one in candidates}


def _looks(trials: int, points: int) -> set[int]:
    """Choose after how many trials to record probabilities: evenly spaced from 1 up to `trials`.

    The set is empty if there are no trials.
    """
    return {int(n) for n in np.linspace(1, trials, min(points, trials)).round()} if trials else set()
