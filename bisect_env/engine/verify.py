"""Test whether the failure rate of one combination is below a limit or above it.

A test that was interrupted, or ended by its maximum number of trials, is resumed with all trials of the
combination that were recorded since it began.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from bisect_env.answers.phrases import how_many
from bisect_env.engine.plans import OneCombinationPlan, UntilRatePlan
from bisect_env.engine.session import Session
from bisect_env.engine.single import ChosenCombination, run_trials
from bisect_env.search.numeric import clopper_pearson
from bisect_env.search.rate_test import RateClaim, RateTest, upper_bound
from bisect_env.storage.entries import Decision
from bisect_env.storage.store import Store
from bisect_env.trials.records import Evidence

BEGUN, ENDED = "verify", "verified"
"""Kinds of the stored decisions that mark the beginning and the end of a test."""
GIVE_UP_AFTER = 10
"""Default maximum number of trials, as a multiple of the number of passes that show a rate below the
limit."""


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of testing whether a failure rate is below or above a limit.

    Attributes:
        combination: Axis name to value.
        claim: Whether the rate was shown to be below or above the limit; None if neither.
        max_rate: The limit.
        confidence: Confidence of the claim.
        trials: Number of trials that are evidence.
        bad: Number of bad trials among them.
        rate: Share of bad trials, 0 without trials.
        interval: 95 % confidence interval of the rate, computed as if the number of trials had been fixed.
        below: One-sided upper bound of the rate at the confidence, computed in the same way.
        why_stopped: Reason why there is no claim, "" if there is one.
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


class Verifier:
    """A test of whether the failure rate of one combination is below or above a limit.

    An interrupted test is resumed, unless `fresh` is set.

    Args:
        chosen: The combination.
        store: Database with its trials.
        max_rate: The limit.
        confidence: Confidence of the claim.
        max_trials: Maximum number of new trials; None for `GIVE_UP_AFTER` times the number of passes that are
            needed.
        fresh: Whether to begin a new test even if one was interrupted.

    Attributes:
        resumed: Number of trials of the interrupted test that are reused.
        clean_needed: Number of trials without a failure that show a rate below the limit.
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
        self._facts = {
            "combination": chosen.combination.as_dict(),
            "lock": chosen.lock.content_hash,
            "max_rate": max_rate,
            "confidence": confidence,
        }
        unfinished = None if fresh else self._unfinished()
        self._series: list[str] = []
        counted = 0
        if unfinished is None:
            self._id = uuid.uuid4().hex
            store.record_decision(chosen.study.id, BEGUN, {"id": self._id, **self._facts})
        else:
            self._id = str(unfinished.payload.get("id"))
            earlier = [
                trial
                for trial in store.trials(chosen.study.id)
                if trial.combination == chosen.combination and trial.recorded_at >= unfinished.at
            ]
            self._series = [trial.trial_id for trial in earlier]
            counted = sum(trial.evidence in (Evidence.GOOD, Evidence.BAD) for trial in earlier)
        self._new = max_trials or GIVE_UP_AFTER * self.clean_needed
        self.limit = counted + self._new
        self.resumed = len(self._series)

    def run(self, session: Session) -> Verification:
        """Run trials until the failure rate is shown to be below or above the limit.

        Also ends if no more trials are possible, or the maximum number of trials is reached.

        Args:
            session: As for `run_trials`.
        """

        def make_plan() -> OneCombinationPlan:
            test = RateTest(self._max_rate, self._confidence)
            return UntilRatePlan(self._chosen.index, test, self.limit)

        plan, _, why = run_trials(self._chosen, make_plan, session, series=self._series)
        assert isinstance(plan, UntilRatePlan)
        return self._end(plan, why)

    def _end(self, plan: UntilRatePlan, why: str) -> Verification:
        """Return the result of the test so far, and store it if the test has ended."""
        trials, hits, claim = plan.trials, plan.hits, plan.claim
        if claim is not None or why:
            said = None if claim is None else str(claim)
            self._store.record_decision(self._chosen.study.id, ENDED, {"id": self._id, "claim": said})
        if claim is None and not why and trials >= self.limit:
            # No end of the test: otherwise no number of such commands would show anything.
            why = (
                f"the limit of {how_many(self._new, 'trial')} is reached; "
                f"{how_many(plan.lacking, 'more pass')} would show a lower rate, and the same command goes on"
            )
        return Verification(
            self._chosen.combination.as_dict(),
            claim,
            self._max_rate,
            self._confidence,
            trials,
            hits,
            hits / trials if trials else 0.0,
            clopper_pearson(hits, trials),
            upper_bound(hits, trials, self._confidence),
            why,
        )

    def _unfinished(self) -> Decision | None:
        decisions = self._store.decisions(self._chosen.study.id)
        ended = {one.payload.get("id") for one in decisions if one.kind == ENDED}
        begun = [one for one in decisions if one.kind == BEGUN and one.payload.items() >= self._facts.items()]
        return begun[-1] if begun and begun[-1].payload.get("id") not in ended else None
