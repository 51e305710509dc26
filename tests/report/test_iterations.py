"""Failure rates of single iterations, where a process runs the script several times."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from bisect_env.answers.verdict_document import MeasuredRate, VerdictDocument
from bisect_env.matrix.grid import Combination
from bisect_env.report.build import with_iterations
from bisect_env.storage.entries import StoredTrial
from bisect_env.trials.records import Evidence, Outcome, Phase

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FAILED = StoredTrial(
    sequence=1,
    study_id="s",
    reused=False,
    matched=True,
    trial_id="t",
    combination=Combination.of({"lib": "2"}),
    lock_hash="0" * 64,
    outcome=Outcome.CRASH,
    evidence=Evidence.BAD,
    detail="",
    returncode=-11,
    phase=Phase.BODY,
    started_at=NOW,
    duration=1.0,
    signature="",
    hash_seed=0,
    copies={},
    host="",
    worker="",
    gpu="",
    recorded_at=NOW,
    iterations=10,
)
PASSED = replace(FAILED, outcome=Outcome.PASS, evidence=Evidence.GOOD)
# Six of the eight failures are trials of another combination that is the same environment.
VERDICT = VerdictDocument(
    first_bad={"lib": "2"}, bad_rate=MeasuredRate(hits=8, trials=10, rate=0.8, low=0.44, high=0.97)
)


def test_iterations_are_those_of_the_trials_of_the_combination() -> None:
    others = [
        replace(FAILED, combination=Combination.of({"lib": "3"}), iterations=1000),
        replace(FAILED, evidence=Evidence.VOID, iterations=1000),
    ]
    rate = with_iterations(VERDICT, [FAILED, FAILED, PASSED, PASSED, *others]).bad_rate
    assert rate is not None
    assert rate.per_iteration is not None
    assert (rate.hits, rate.trials, rate.iterations) == (8, 10, 40)
    assert rate.per_iteration.rate == pytest.approx(2 / 40)
    assert rate.per_iteration.low < 2 / 40 < rate.per_iteration.high


def test_without_iterations_there_is_no_rate_of_them() -> None:
    once = replace(FAILED, iterations=0)
    assert with_iterations(VERDICT, [once, replace(PASSED, iterations=0)]) == VERDICT
    assert with_iterations(VERDICT, []) == VERDICT
