"""A limit of time that some runs meet is told to be a question of speed, and a flaky failure is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bisect_env.report.build import load_report
from bisect_env.storage.store import Store
from bisect_env.trials.records import Outcome
from tests.report.samples import StudyBuilder, axis, verdict

AXES = [axis("scipy", "1.14.0", "1.14.1", "1.15.0")]


@pytest.fixture
def study(tmp_path: Path) -> Iterator[StudyBuilder]:
    with Store.open(str(tmp_path / "results.sqlite")) as store:
        yield StudyBuilder(store, AXES)


def ran(study: StudyBuilder, version: str, outcome: Outcome, *durations: float) -> None:
    for duration in durations:
        study.trials({"scipy": version}, outcome, 1, duration=duration)


def told(study: StudyBuilder) -> list[str]:
    report = load_report(study.store, study.study.id)
    return [warning for warning in report.warnings if "question of speed" in warning]


@pytest.mark.parametrize("outcome", [Outcome.EXIT_FAIL, Outcome.HANG])
def test_a_limit_that_some_runs_of_a_version_meet(study: StudyBuilder, outcome: Outcome) -> None:
    ran(study, "1.14.0", Outcome.PASS, 1.0, 1.02, 1.1, 1.05)
    ran(study, "1.15.0", Outcome.PASS, 1.8, 1.85, 1.9)
    ran(study, "1.15.0", outcome, 2.0, 2.1, 2.3)
    study.finished(verdict(AXES, {"scipy": "1.15.0"}, {"scipy": "1.14.1"}))
    (text,) = told(study)
    assert "slower runs of scipy=1.15.0 fail, and faster ones pass" in text
    assert "scipy 1.14.0 takes 1.0 s, scipy 1.15.0 takes 1.9 s" in text
    for help_ in ("--workers 1", "OMP_NUM_THREADS=1", "time.process_time()", "best of nine"):
        assert help_ in text


def test_a_few_failures_that_happen_to_be_slow_are_no_question_of_speed(study: StudyBuilder) -> None:
    """Where versions take equally long, two failures of which both are slow are no news: chance is 1 in 4."""
    ran(study, "1.14.0", Outcome.PASS, 1.0, 1.02, 1.1, 1.3)
    ran(study, "1.15.0", Outcome.PASS, 1.0, 1.02, 1.1, 1.3)
    ran(study, "1.15.0", Outcome.EXIT_FAIL, 1.2, 1.21)
    study.finished(verdict(AXES, {"scipy": "1.15.0"}, {"scipy": "1.14.1"}))
    assert told(study) == []


def test_a_traceback_that_takes_its_time_is_no_question_of_speed(study: StudyBuilder) -> None:
    ran(study, "1.15.0", Outcome.PASS, 0.1, 0.11, 0.1)
    ran(study, "1.15.0", Outcome.EXIT_FAIL, *[0.12, 0.125, 0.13] * 3)
    study.finished(verdict(AXES, {"scipy": "1.15.0"}, {"scipy": "1.14.1"}))
    assert told(study) == []


def test_durations_that_differ_where_everything_fails(study: StudyBuilder) -> None:
    ran(study, "1.14.0", Outcome.EXIT_FAIL, 1.0, 1.02, 1.1)
    ran(study, "1.15.0", Outcome.EXIT_FAIL, 2.0, 2.1, 2.3)
    (text,) = told(study)
    assert "every run fails" in text


@pytest.mark.parametrize(
    ("outcome", "durations"),
    [
        (Outcome.EXIT_FAIL, (0.5, 0.6, 0.5, 0.7)),  # fails early
        (Outcome.HANG, (60.0, 60.1, 60.0)),  # a deadlock now and then
        (Outcome.CRASH, (1.9, 2.0, 2.1, 2.0)),
        (Outcome.EXIT_FAIL, (1.0, 1.01, 1.02, 1.0)),  # as fast as what passes
    ],
)
def test_a_flaky_failure_is_no_question_of_speed(
    study: StudyBuilder, outcome: Outcome, durations: tuple[float, ...]
) -> None:
    ran(study, "1.14.0", Outcome.PASS, 1.0, 1.01, 1.02, 1.0)
    ran(study, "1.15.0", Outcome.PASS, 1.0, 1.01, 1.02, 1.0)
    ran(study, "1.15.0", outcome, *durations)
    study.finished(verdict(AXES, {"scipy": "1.15.0"}, {"scipy": "1.14.1"}))
    assert told(study) == []


def test_slower_failures_of_one_version_among_many_are_chance(study: StudyBuilder) -> None:
    """Durations of a real study: each run of humanize failed with probability 0.33, whatever its duration."""
    ran(study, "1.14.0", Outcome.PASS, 0.077, 0.091, 0.125)
    ran(study, "1.14.0", Outcome.EXIT_FAIL, 0.093, 0.128)
    ran(study, "1.14.1", Outcome.PASS, 0.121, 0.123)
    ran(study, "1.14.1", Outcome.EXIT_FAIL, 0.093, 0.127)
    ran(study, "1.15.0", Outcome.PASS, 0.065, 0.078, 0.079, 0.088, 0.094, 0.125, 0.127)
    ran(study, "1.15.0", Outcome.EXIT_FAIL, 0.097, 0.104)
    study.finished(verdict(AXES, {"scipy": "1.14.1"}, {"scipy": "1.14.0"}))
    assert told(study) == []


def test_a_failure_that_ends_a_run_early_everywhere_is_none(study: StudyBuilder) -> None:
    ran(study, "1.14.0", Outcome.PASS, 5.0, 5.1, 5.2)
    ran(study, "1.15.0", Outcome.EXIT_FAIL, 0.1, 0.1, 0.1)
    study.finished(verdict(AXES, {"scipy": "1.15.0"}, {"scipy": "1.14.1"}))
    assert told(study) == []
