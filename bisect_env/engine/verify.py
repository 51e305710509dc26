"""Runs one combination until its failure rate is shown to be below a limit, or above it.

A test that was interrupted goes on where it stopped. The ids of its trials are made from the id of the test
and their number, so that the database itself says which they are.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bisect_env.engine.single import One, SingleTrials
from bisect_env.engine.state import Tally
from bisect_env.search.numeric import clopper_pearson
from bisect_env.search.rate_test import RateClaim, RateTest, upper_bound
from bisect_env.storage.store import Store
from bisect_env.trials.records import Evidence

BEGUN, ENDED = "verify", "verified"
"""Kinds of decisions."""
PATIENCE = 10
"""Trials at most, in those that a flawless combination would need, unless the user says otherwise."""


@dataclass(frozen=True, slots=True)
class Verification:
    """How a test of a rate ended.

    Attributes:
        combination: Axis to value.
        claim: What was shown; None if nothing was.
        max_rate: The limit.
        confidence: Of the claim.
        trials: That are evidence.
        hits: Bad ones among them.
        rate: Their share, 0 without trials.
        interval: 95 % interval of the rate, by itself, without regard to the test.
        below: One-sided upper bound of the rate at the confidence, by itself.
        why_stopped: Why there is no claim, "" if there is one.
    """

    combination: dict[str, str]
    claim: RateClaim | None
    max_rate: float
    confidence: float
    trials: int
    hits: int
    rate: float
    interval: tuple[float, float]
    below: float
    why_stopped: str = ""

    def document(self) -> dict[str, Any]:
        """The verification as a JSON object."""
        return {
            "event": "verified",
            "combination": self.combination,
            "claim": None if self.claim is None else str(self.claim),
            "max_rate": self.max_rate,
            "confidence": self.confidence,
            "trials": self.trials,
            "bad": self.hits,
            "rate": self.rate,
            "interval": list(self.interval),
            "below": self.below,
            "why_stopped": self.why_stopped,
        }


class Verifier:
    """One test of a rate, in the database and in memory.

    Args:
        one: The combination.
        store: Where its trials are.
        max_rate: The limit.
        confidence: Of the claim.
        max_trials: Where to give up; None for ten times what a flawless combination would need.
        fresh: Begin a new test, even where one was interrupted.

    Attributes:
        resumed: Trials of an interrupted test that count on.
    """

    def __init__(
        self,
        one: One,
        store: Store,
        *,
        max_rate: float,
        confidence: float,
        max_trials: int | None = None,
        fresh: bool = False,
    ) -> None:
        self._one = one
        self._store = store
        self._test = RateTest(max_rate, confidence)
        self.limit = max_trials or PATIENCE * self._test.clean_needed
        self._facts = {
            "combination": one.single.combination.as_dict(),
            "lock": one.single.lock.content_hash,
            "max_rate": max_rate,
            "confidence": confidence,
        }
        unfinished = None if fresh else self._unfinished()
        self._id = unfinished or uuid.uuid4().hex
        if unfinished is None:
            store.record_decision(one.study.id, BEGUN, {"id": self._id, **self._facts})
        self._known = {trial.trial_id: trial for trial in store.trials(one.study.id)}
        mine = [self._known[trial_id] for trial_id in self._names() if trial_id in self._known]
        for trial in sorted(mine, key=lambda trial: trial.sequence):
            self._tell(trial.evidence)
        self.resumed = len(mine)

    @property
    def clean_needed(self) -> int:
        """Trials without a failure that show a rate below the limit."""
        return self._test.clean_needed

    def run(self, trials: SingleTrials) -> Verification:
        """Run trials until something is shown, nothing can be learnt, or the limit is reached."""
        names = (trial_id for trial_id in self._names(endless=True) if trial_id not in self._known)
        tally = trials.run(self._one.single, self._wanted, names, on_evidence=self._tell)
        return self.end(tally.why_aside() or "")

    def _wanted(self, tally: Tally, running: int) -> int:
        if self._test.claim is not None or tally.why_aside() is not None:
            return 0
        # As long as nothing failed it is known where the end would be; what runs beyond it runs for nothing.
        end = self.limit if self._test.hits else min(self.limit, self._test.clean_needed)
        return max(0, end - self._test.trials - running)

    def end(self, why: str = "") -> Verification:
        """The result so far; it is stored if the test has ended."""
        test = self._test
        if test.claim is None and not why and test.trials >= self.limit:
            why = f"the limit of {self.limit} trials is reached"
        if test.claim is not None or why:
            said = None if test.claim is None else str(test.claim)
            self._store.record_decision(self._one.study.id, ENDED, {"id": self._id, "claim": said})
        return Verification(
            self._one.single.combination.as_dict(),
            test.claim,
            test.max_rate,
            test.confidence,
            test.trials,
            test.hits,
            test.hits / test.trials if test.trials else 0.0,
            clopper_pearson(test.hits, test.trials),
            upper_bound(test.hits, test.trials, test.confidence),
            why,
        )

    def _tell(self, evidence: Evidence) -> None:
        if evidence in (Evidence.GOOD, Evidence.BAD):
            self._test.tell(evidence is Evidence.BAD)

    def _unfinished(self) -> str | None:
        ended, found = set(), None
        for decision in self._store.decisions(self._one.study.id):
            payload = decision.payload
            if decision.kind == ENDED:
                ended.add(payload.get("id"))
            elif decision.kind == BEGUN and all(payload.get(k) == v for k, v in self._facts.items()):
                found = str(payload["id"])
        return None if found in ended else found

    def _names(self, *, endless: bool = False) -> Iterator[str]:
        """Ids of this test's trials; trials were started in this order, and some may never have ended."""
        space = uuid.UUID(self._id)
        names = (uuid.uuid5(space, str(number)).hex for number in itertools.count())
        return names if endless else itertools.islice(names, 2 * self.limit + _LOST)


_LOST = 1000
"""Numbers that cancelled and lost trials may have used up."""
