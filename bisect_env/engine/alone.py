"""Repeats trials that ran on shared GPUs on a GPU of their own, and says whether they agree.

Trials that share a GPU take its memory and its time from each other. What that alone can break is void
(`cluster/worker.py`); what it may break in ways that nobody can tell from the script's own failure is why a
study whose trials share GPUs ends with a few that do not.
"""

from __future__ import annotations

import math
from collections import defaultdict

from bisect_env.matrix.grid import Index
from bisect_env.search.searcher import StudySearch
from bisect_env.search.verdict import Status
from bisect_env.storage.entries import EvidenceCounts
from bisect_env.trials.records import Evidence, Outcome

ALONE = "alone"
"""Kind of the decision that says which trial had its GPU to itself."""
_MISS = 0.05
"""How likely a failure of the rate that was seen may stay away in all of the trials that wait for it."""
_RATES = (0.02, 0.63)
"""Rates of failure that are believed: one that looks certain waits for three trials, a rare one for 149."""


class Alone:
    """Results of trials that had a GPU to themselves.

    Args:
        gpus: `trial.gpus`; where it is no share of a GPU, nothing is wanted.
    """

    def __init__(self, gpus: float) -> None:
        self._is_needed = 0 < gpus < 1
        self._seen: defaultdict[Index, EvidenceCounts] = defaultdict(EvidenceCounts)

    def count(self, index: Index, evidence: Evidence, outcome: Outcome) -> None:
        """Count a trial of this combination that had its GPU to itself."""
        self._seen[index].add(evidence, outcome)

    def wanted(self, search: StudySearch, places: int) -> list[Index]:
        """Return combinations to try alone now, one entry per trial.

        Empty if such trials cannot add anything.

        Args:
            search: Search whose answer is checked.
            places: Trials that can run at the same time, each on a GPU of its own.
        """
        best = search.verdict.best
        if not self._is_needed or search.verdict.status is not Status.CONFIRMED:
            return []
        chosen: list[Index] = []
        if best.last_good is not None and not self._seen[best.last_good].counted:
            chosen.append(best.last_good)
        if best.first_bad is not None and not self._seen[best.first_bad].bad:
            left = self._most(search, best.first_bad) - self._seen[best.first_bad].good
            chosen += [best.first_bad] * min(left, max(1, places - len(chosen)))
        return chosen

    def why_not(self, search: StudySearch) -> str | None:
        """Return why a confirmed answer should not be called confirmed; None if nothing contradicts it."""
        best = search.verdict.best
        if not self._is_needed or search.verdict.status is not Status.CONFIRMED:
            return None
        if best.first_bad is not None and not self._seen[best.first_bad].bad:
            passed = self._seen[best.first_bad].good
            if passed:
                return (
                    f"it did not fail on a GPU of its own ({passed} trials passed there): "
                    "trials that share one may disturb each other"
                )
            return "its failure was seen on shared GPUs alone, and not yet on a GPU of its own"
        if best.last_good is not None and not self._seen[best.last_good].good:
            return "its last good combination was not tried on a GPU of its own yet"
        return None

    def _most(self, search: StudySearch, index: Index) -> int:
        hits, trials = search.counts(index)
        least, most = _RATES
        rate = min(most, max(least, hits / trials if trials else least))
        return math.ceil(math.log(_MISS) / math.log1p(-rate) - 1e-9)
