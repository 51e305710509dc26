"""A wall clock that jumps back an hour under a running study."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import pytest

from bisect_env.cluster import perform
from bisect_env.engine import events, specs
from bisect_env.matrix.grid import Combination
from bisect_env.storage import store as store_module
from bisect_env.storage import study_trials
from bisect_env.storage.store import Store
from bisect_env.trials.records import TrialRecord
from bisect_env.trials.run import run_trial
from tests.engine.studies import Studies

SCRIPT = "import sys; sys.exit(int(sys.argv[1]) >= 6)"


@pytest.mark.integration
def test_a_clock_set_back_by_an_hour_changes_nothing(
    studies: Studies, monkeypatch: pytest.MonkeyPatch
) -> None:
    def back() -> timedelta:
        told = [event for event in studies.events if isinstance(event, events.TrialFinished)]
        return timedelta(hours=1) if len(told) >= 3 else timedelta()

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) - back()

    def trial(*arguments: Any, **options: Any) -> TrialRecord:
        # The process of the trial reads the clock itself.
        record = run_trial(*arguments, **options)
        return replace(record, started_at=record.started_at - back())

    for module in (specs, study_trials):
        monkeypatch.setattr(module, "datetime", Clock)
    monkeypatch.setattr(perform, "run_trial", trial)
    database_now = store_module.time_of_database
    monkeypatch.setattr(
        store_module, "time_of_database", lambda session: database_now(session) - back().total_seconds()
    )
    report = studies.run(studies.matrix(SCRIPT)).report
    assert report["verdict"]["first_bad"]["level"] == "6"
    told = [event.record.trial_id for event in studies.events if isinstance(event, events.TrialFinished)]
    with Store.open(str(studies.db), read_only=True) as store:
        trials = store.trials(store.study(None).id)
        assert store.claimed(store.study(None).id, "somebody") == {}
    assert [trial.trial_id for trial in trials] == told
    assert [trial.sequence for trial in trials] == sorted(trial.sequence for trial in trials)
    assert any(b.started_at < a.started_at - timedelta(minutes=50) for a, b in itertools.pairwise(trials))
    assert min(trial.started_at for trial in trials) < datetime.now(UTC) - timedelta(minutes=50)


@pytest.mark.integration
def test_a_claim_of_before_the_clock_was_set_back_lapses(
    studies: Studies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its holder died: nobody gives it back, and by the clock of now it would stand for an hour."""
    path = studies.matrix(SCRIPT)
    report = studies.run(path).report
    study, one = report["study"]["id"], Combination.of(report["verdict"]["first_bad"])
    with Store.open(str(studies.db)) as store:
        recorded = sum(trial.combination == one for trial in store.trials(study))
        assert store.claim(study, "dead", {"a": one}, {one: recorded}, lease=60) == [True]
        assert store.claim(study, "me", {"b": one}, {one: recorded}, lease=60) == [False]
        now = store_module.time_of_database
        monkeypatch.setattr(store_module, "time_of_database", lambda session: now(session) - 3600.0)
        assert store.claimed(study, "me") == {}
        assert store.claim(study, "me", {"b": one}, {one: recorded}, lease=60) == [True]
        assert store.claimed(study, "you") == {"me": {one: 1}}
