"""Repeat trials that shared a GPU on a GPU of their own, and say whether the results agree.

Trials that share a GPU compete for its memory and time. Failures that are clearly caused by this are void
(`cluster/worker.py`). Others cannot be told from a failure of the script itself. A study whose trials share
GPUs therefore ends with a few trials that have a GPU to themselves.
"""

from __future__ import annotations

from collections import defaultdict

from bisect_env.answers.phrases import how_many
from bisect_env.matrix.grid import Index
from bisect_env.search.stopping import clean_trials
from bisect_env.search.study_search import StudySearch
from bisect_env.search.verdict import Status
from bisect_env.storage.entries import EvidenceCounts
from bisect_env.trials.records import Evidence, Outcome

ALONE = "alone"
"""Kind of the stored decision that marks a trial as having had its GPU to itself."""
_RATES = (0.02, 0.63)
"""Minimum and maximum failure rate that is assumed when computing the number of repeated trials: 149 trials
for a rare failure, three for one that looks certain."""


class Alone:
    """A record of the trials that had a GPU to themselves, which shows whether sharing GPUs caused failures.

    It also determines which trials of this kind are still needed.

    Args:
        gpus: The value of `trial.gpus`. Unless it is a fraction of a GPU, no trials are needed.
    """

    def __init__(self, gpus: float) -> None:
        self._is_needed = 0 < gpus < 1
        self._seen: defaultdict[Index, EvidenceCounts] = defaultdict(EvidenceCounts)

    def count(self, index: Index, evidence: Evidence, outcome: Outcome) -> None:
        """Count a trial that had its GPU to itself.

        Args:
            index: The representative of its combination's group.
            evidence: What it means for the study.
            outcome: What the script did.
        """
        self._seen[index].add(evidence, outcome)

    def wanted(self, search: StudySearch, places: int) -> list[Index]:
        """Return the combinations to try next, one entry per trial; each needs a GPU without other trials.

        These are representatives of their groups. The list is empty if no answer of the search
        stands, or if no more such trials are needed.

        Args:
            search: The search whose verdict is checked.
            places: Number of trials that can run at the same time, each on a GPU of its own.
        """
        bad, good = self._sides(search)
        chosen: list[Index] = []
        if good is not None and not self._seen[good].counted:
            chosen.append(good)
        if bad is not None and not self._seen[bad].bad:
            left = self._most(search, bad) - self._seen[bad].good
            chosen += [bad] * min(left, max(1, places - len(chosen)))
        return chosen

    def why_not(self, search: StudySearch) -> str | None:
        """Return why trials on unshared GPUs do not confirm the verdict, as text, or None if they do.

        There is a reason only if the answer of the search stands, but trials that had a GPU to
        themselves are missing or disagree.

        Args:
            search: The search whose verdict is checked.
        """
        bad, good = self._sides(search)
        if bad is not None and not self._seen[bad].bad:
            passed = self._seen[bad].good
            if passed:
                return (
                    f"it did not fail on a GPU of its own ({how_many(passed, 'trial')} passed there): "
                    "trials that share one may disturb each other"
                )
            return "its failure was seen on shared GPUs alone, and not yet on a GPU of its own"
        if good is not None and not self._seen[good].good:
            return "its last good combination was not tried on a GPU of its own yet"
        return None

    def _sides(self, search: StudySearch) -> tuple[Index | None, Index | None]:
        """Return the first bad and the last good combination, which are to be tried on unshared GPUs.

        Both are representatives of their groups. A side is None if the verdict has none, does not stand, or
        needs no trials on unshared GPUs.
        """
        verdict, stands_for = search.verdict, search.tallies.representative
        if not self._is_needed or not search.answered or verdict.status is Status.NONE:
            return None, None
        bad, good = verdict.best.first_bad, verdict.best.last_good
        return None if bad is None else stands_for(bad), None if good is None else stands_for(good)

    def _most(self, search: StudySearch, index: Index) -> int:
        hits, trials = search.counts(index)
        least, most = _RATES
        rate = min(most, max(least, hits / trials if trials else least))
        return clean_trials(rate)
