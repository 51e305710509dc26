"""Tests whether the failure rate of one combination is below a limit or above it.

An interrupted test is resumed. The ids of its trials are computed from the id of the test and their number,
so that the database itself says which trials belong to it.
"""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass
from typing import Any

from bisect_env.engine.plans import OnePlan, UntilRate
from bisect_env.engine.runner import Series
from bisect_env.engine.session import Session
from bisect_env.engine.single import ChosenCombination, run_trials
from bisect_env.search.numeric import clopper_pearson
from bisect_env.search.rate_test import RateClaim, RateTest, upper_bound
from bisect_env.storage.store import Store

BEGUN, ENDED = "verify", "verified"
"""Kinds of decisions."""
GIVE_UP_AFTER = 10
"""Default maximum of trials, as a multiple of the passes that show a rate below the limit."""


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a test of a rate.

    Attributes:
        combination: Axis to value.
        claim: What was shown; None if nothing was.
        max_rate: The limit.
        confidence: Confidence of the claim.
        trials: That are evidence.
        bad: Bad ones among them.
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
    bad: int
    rate: float
    interval: tuple[float, float]
    below: float
    why_stopped: str = ""

    def document(self) -> dict[str, Any]:
        """Return the verification as a JSON object."""
        return {"event": "verified", **asdict(self)}


class Verifier:
    """One test of a rate, in the database and in memory.

    Args:
        chosen: The combination.
        store: Where its trials are.
        max_rate: The limit.
        confidence: Confidence of the claim.
        max_trials: Where to give up; None for ten times what a flawless combination would need.
        fresh: Begin a new test, even where one was interrupted.

    Attributes:
        resumed: Trials of an interrupted test that count on.
        clean_needed: Trials without a failure that show a rate below the limit.
    """

    def __init__(
        self,
        chosen: ChosenCombination,
        store: Store,
        *,
        max_rate: float,
        confidence: float,
        max_trials: int | None = None,
        fresh: bool = False,
    ) -> None:
        self._chosen = chosen
        self._store = store
        self._max_rate, self._confidence = max_rate, confidence
        self.clean_needed = RateTest(max_rate, confidence).clean_needed
        self.limit = max_trials or GIVE_UP_AFTER * self.clean_needed
        self._facts = {
            "combination": chosen.combination.as_dict(),
            "lock": chosen.lock.content_hash,
            "max_rate": max_rate,
            "confidence": confidence,
        }
        unfinished = None if fresh else self._unfinished()
        self._id = unfinished or uuid.uuid4().hex
        if unfinished is None:
            store.record_decision(chosen.study.id, BEGUN, {"id": self._id, **self._facts})
        self._series = Series(self._id, [one.trial_id for one in store.trials(chosen.study.id)])
        self.resumed = self._series.resumed

    def run(self, session: Session) -> Verification:
        """Run trials until a claim is shown, nothing can be learnt, or the limit is reached.

        Args:
            session: As for `run_trials`.
        """

        def make_plan() -> OnePlan:
            test = RateTest(self._max_rate, self._confidence)
            return UntilRate(self._chosen.index, test, self.limit)

        plan, _, why = run_trials(self._chosen, make_plan, session, series=self._series)
        assert isinstance(plan, UntilRate)
        return self._end(plan.test, why)

    def _end(self, test: RateTest, why: str) -> Verification:
        """Return the result so far; it is stored if the test has ended."""
        if test.claim is None and not why and test.trials >= self.limit:
            why = f"the limit of {self.limit} trials is reached"
        if test.claim is not None or why:
            said = None if test.claim is None else str(test.claim)
            self._store.record_decision(self._chosen.study.id, ENDED, {"id": self._id, "claim": said})
        return Verification(
            self._chosen.combination.as_dict(),
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

    def _unfinished(self) -> str | None:
        ended, found = set(), None
        for decision in self._store.decisions(self._chosen.study.id):
            payload = decision.payload
            if decision.kind == ENDED:
                ended.add(payload.get("id"))
            elif decision.kind == BEGUN and all(payload.get(k) == v for k, v in self._facts.items()):
                found = str(payload["id"])
        return None if found in ended else found
