"""Plans that try one combination at a time, without processes and a database."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from bisect_env.engine.explain import CulpritPlan
from bisect_env.engine.intermediates import changes_of
from bisect_env.engine.plans import UntilRatePlan
from bisect_env.matrix.grid import Combination, Index
from bisect_env.search.culprits import CulpritSearch
from bisect_env.search.rate_test import RateClaim, RateTest
from bisect_env.storage.entries import StoredTrial
from bisect_env.trials.records import Evidence, Outcome, Phase


def test_an_environment_set_aside_is_tried_no_more_while_its_trials_still_run() -> None:
    """Two trials run at the same time and end one after the other, so that the plan is never idle."""
    slots, culprit, others_before_aside = 2, 2, 3
    plan = CulpritPlan(CulpritSearch(4, (0, 20), (20, 20)), 2000)
    first = plan.ask(slots)[0]
    running: list[Index] = []
    began: Counter[Index] = Counter()
    others = 0
    while not plan.finished:
        asked = plan.ask(slots - len(running), pending=Counter(running))
        running += asked
        began.update(asked)
        index = running.pop(0)
        if index != first:
            plan.tell(index, hit=culprit in changes_of(index))
            continue
        # The first environment always fails in another way.
        others += 1
        if others == others_before_aside:
            plan.set_aside(first)
        assert began[first] < 20, "it was set aside"
    assert plan.search.answer.changes == {culprit}
    assert began[first] <= others_before_aside + slots


def test_no_more_trials_are_begun_than_may_be_counted() -> None:
    plan = CulpritPlan(CulpritSearch(6, (0, 20), (6, 20)), 5)
    running: list[Index] = []
    while not plan.finished:
        running += plan.ask(4 - len(running), pending=Counter(running))
        assert plan.trials + len(running) <= 5
        plan.tell(running.pop(0), hit=False)
    assert plan.trials == 5
    assert not running


def ended(number: int, began: float, duration: float, *, hit: bool) -> StoredTrial:
    """Return a trial that began at a time in seconds and took some seconds."""
    day = datetime(2026, 1, 1, tzinfo=UTC)
    return StoredTrial(
        trial_id=f"{number:06}",
        combination=Combination.of({"v": "1"}),
        lock_hash="0" * 64,
        outcome=Outcome.HANG if hit else Outcome.PASS,
        detail="",
        returncode=None if hit else 0,
        phase=Phase.BODY,
        started_at=day + timedelta(seconds=began),
        duration=duration,
        sequence=number,
        study_id="study",
        reused=False,
        matched=False,
        recorded_at=day + timedelta(seconds=began + duration),
        evidence=Evidence.BAD if hit else Evidence.GOOD,
    )


def claim_with(workers: int, rate: float, slowness: float, coins: random.Random) -> RateClaim | None:
    """Play one test on simulated workers; failures take `slowness` times as long as passes."""
    test = RateTest(0.05)
    plan = UntilRatePlan((0,), test, 10 * test.clean_needed)
    now, number, running = 0.0, 0, list[tuple[float, int, float, bool]]()
    while True:
        for _ in plan.ask(workers - len(running), pending={(0,): len(running)}):
            hit, number = coins.random() < rate, number + 1
            end = now + (slowness if hit else 1.0) * coins.uniform(0.9, 1.1)
            heapq.heappush(running, (end, number, now, hit))
        if plan.finished:
            assert not running
            return plan.claim
        now, trial, began, hit = heapq.heappop(running)
        plan.observe((0,), ended(trial, began, now - began, hit=hit))
        plan.tell((0,), hit=hit)


@pytest.mark.parametrize(("workers", "slowness"), [(1, 1.0), (16, 1.0), (16, 600.0), (64, 20.0)])
def test_failures_that_take_longer_than_passes_do_not_make_a_rate_look_lower(
    workers: int, slowness: float
) -> None:
    """At the limit itself, at most one claim of twenty may be false."""
    coins, tests = random.Random(20261128), 100
    claims = Counter(claim_with(workers, 0.05, slowness, coins) for _ in range(tests))
    print(claims)
    # A binomial count with p = 0.05 exceeds 12 of 100 in one of 1,000 runs.
    assert claims[RateClaim.BELOW] <= 12
    assert Counter(claim_with(workers, 0.25, slowness, coins) for _ in range(20)) == {RateClaim.ABOVE: 20}
    assert Counter(claim_with(workers, 0.0, slowness, coins) for _ in range(5)) == {RateClaim.BELOW: 5}
