"""What follows an answer that stands: it is announced at once, and checking it takes a bounded time."""

from __future__ import annotations

import time
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.engine import events, settling, study
from bisect_env.errors import InfrastructureError
from bisect_env.trials.records import Evidence
from tests.engine.studies import Studies, crash_from_six

SLOW = crash_from_six("time.sleep(0.2)")
SECONDS = st.floats(0, 1e5)


class Answer:
    """The part of a search on which the time limit of its checks depends."""

    def __init__(self) -> None:
        self.answered = False
        self.is_ended = False

    def end_checks(self) -> None:
        self.is_ended = True

    def resume_checks(self) -> None:
        self.is_ended = False


@pytest.mark.checked
@given(SECONDS)
def test_checks_take_no_longer_than_a_second_or_half_of_the_time_so_far(took: float) -> None:
    search: Any = Answer()
    limits = settling.CheckTime(is_sure=False)
    assert not limits.look(search, 0.0)
    search.answered = True
    assert limits.look(search, took)
    # Numbers instead of the constants, so that this test fails when the constants change.
    most = max(1.0, took / 2)
    assert limits.seconds == pytest.approx(most)
    limits.look(search, took + 0.999 * most)
    assert not search.is_ended
    limits.look(search, took + 1.001 * most)
    assert search.is_ended


@pytest.mark.checked
@given(SECONDS, SECONDS)
def test_an_answer_that_stands_again_is_checked_for_a_share_of_all_the_time(took: float, more: float) -> None:
    search: Any = Answer()
    limits = settling.CheckTime(is_sure=False)
    search.answered = True
    limits.look(search, took)
    search.answered = False
    assert not limits.look(search, took + 1e6)
    assert not search.is_ended
    search.answered = True
    assert limits.look(search, took + 1e6 + more)
    assert limits.seconds == pytest.approx((took + 1e6 + more) / 2)
    assert not search.is_ended


def test_a_failure_after_the_checks_have_ended_gives_the_new_answer_checks_of_its_own() -> None:
    """A trial that is waited for because it may hang can fail when the time of the checks is over."""
    search: Any = Answer()
    limits = settling.CheckTime(is_sure=False)
    search.answered = True
    limits.look(search, 10.0)
    limits.look(search, 100.0)
    assert search.is_ended
    search.answered = False
    limits.look(search, 101.0)
    search.answered = True
    assert limits.look(search, 102.0)
    assert not search.is_ended
    limits.look(search, 200.0)
    assert search.is_ended


@given(SECONDS, SECONDS)
def test_checks_that_are_to_be_sure_have_no_limit(took: float, later: float) -> None:
    search: Any = Answer()
    search.answered = True
    limits = settling.CheckTime(is_sure=True)
    assert limits.look(search, took)
    limits.look(search, took + later)
    assert limits.seconds is None
    assert not search.is_ended


def trial_seconds(studies: Studies, *, answered: bool) -> float:
    """Return the run time of trials before or after the answer was announced, per trial that can run."""
    at = next(n for n, one in enumerate(studies.events) if isinstance(one, events.Answered))
    part = studies.events[at:] if answered else studies.events[:at]
    return sum(one.record.duration for one in part if isinstance(one, events.TrialFinished))


@pytest.mark.checked
@pytest.mark.integration
def test_a_short_study_announces_a_second_of_checks(studies: Studies) -> None:
    def answered() -> list[events.Answered]:
        return [event for event in studies.events if isinstance(event, events.Answered)]

    studies.run(studies.matrix(crash_from_six()), stopped=lambda: bool(answered()))
    half = trial_seconds(studies, answered=False) / 2
    assert [event.seconds == 1.0 or 1.0 < (event.seconds or 0.0) <= half for event in answered()] == [True]


@pytest.mark.integration
@pytest.mark.parametrize(("most", "share"), [(0.6, 0.0), (0.0, 0.5)])
def test_checks_end_after_their_time_or_share_of_the_study_whichever_is_longer(
    studies: Studies, monkeypatch: pytest.MonkeyPatch, most: float, share: float
) -> None:
    monkeypatch.setattr(settling, "CHECK_SECONDS", most)
    monkeypatch.setattr(settling, "CHECK_SHARE", share)
    verdict = studies.run(studies.matrix(SLOW)).report["verdict"]
    (answered,) = (event for event in studies.events if isinstance(event, events.Answered))
    assert answered.seconds is not None
    assert answered.seconds <= max(most, share * trial_seconds(studies, answered=False))
    # Trials that were running when the time was over are waited for.
    assert trial_seconds(studies, answered=True) >= answered.seconds
    assert verdict["status"] == "likely"
    assert verdict["first_bad"]["level"] == "6"
    # Sixty-one passes were wanted; what the ones that there was time for exclude is said.
    (cleared,) = verdict["cleared"]
    assert 1 < cleared["trials"] < 61
    assert 0.05 < cleared["below"] < 1.0
    assert f"5 passed {cleared['trials']} times: a failure in fewer than" in verdict["sentence"]
    assert "`--sure` goes on" in verdict["sentence"]


@pytest.mark.slow
@pytest.mark.integration
def test_what_keeps_trials_waiting_takes_nothing_from_the_checks(
    studies: Studies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler that hands out trials slowly, as beside busy cores, does not cut the checks."""
    monkeypatch.setattr(settling, "CHECK_SECONDS", 0.5)
    path = studies.matrix(crash_from_six())
    quiet = studies.run(path).report["verdict"]["cleared"][0]["trials"]
    studies.events.clear()
    keep = studies.events.append
    checking: list[events.Event] = []

    class Waiting(list[events.Event]):
        def append(self, event: events.Event) -> None:
            keep(event)
            if isinstance(event, events.TrialStarted) and checking:
                time.sleep(0.3)
            checking.extend([event] * isinstance(event, events.Answered))

    watched, studies.events = studies.events, Waiting()
    slowly = studies.run(path, fresh=True).report["verdict"]["cleared"][0]["trials"]
    assert watched
    assert slowly >= quiet / 2


@pytest.mark.parametrize(
    ("status", "ends_wrong", "checks", "says"),
    [
        ("confirmed", (), 5, True),
        # "probability 33 % after 7 trials; now checking it" was once said on resuming a killed study.
        ("none", (), 5, False),
        ("likely", (), 5, True),
        ("confirmed", ("good",), 5, False),
        ("confirmed", (), 0, False),
    ],
)
def test_that_an_answer_is_checked_is_said_if_there_is_one(
    status: Literal["confirmed", "likely", "none"], ends_wrong: tuple[str, ...], checks: int, says: bool
) -> None:
    verdict = VerdictDocument(status=status, probability=0.33, ends_wrong=ends_wrong)
    assert settling.is_announced(verdict, checks) is says


@pytest.mark.slow
@pytest.mark.checked
@pytest.mark.integration
def test_who_wants_to_be_sure_gets_all_checks_in_environments_that_exist(studies: Studies) -> None:
    verdict = studies.run(studies.matrix(crash_from_six()), sure=True).report["verdict"]
    told = next(n for n, event in enumerate(studies.events) if isinstance(event, events.Answered))
    before = {e.record.combination for e in studies.events[:told] if isinstance(e, events.TrialFinished)}
    after = {e.record.combination for e in studies.events[told:] if isinstance(e, events.TrialFinished)}
    assert len(after - before) <= 1
    (cleared,) = verdict["cleared"]
    assert cleared["trials"] >= 61
    assert cleared["below"] <= 0.05


@pytest.mark.slow
@pytest.mark.checked
@pytest.mark.integration
def test_whoever_stops_the_checks_gets_the_answer(studies: Studies) -> None:
    path = studies.matrix(SLOW)

    def answered() -> bool:
        return any(isinstance(event, events.Answered) for event in studies.events)

    conclusion = studies.run(path, sure=True, stopped=answered)
    assert conclusion.exit_code == 0
    assert conclusion.report["study"]["status"] == "finished"
    assert conclusion.report["verdict"]["first_bad"]["level"] == "6"
    # The same command answers at once, and goes on checking only where that is asked for.
    studies.events.clear()
    again = studies.run(path)
    assert again.report["verdict"] == conclusion.report["verdict"]
    assert not [event for event in studies.events if isinstance(event, events.TrialStarted)]
    verdict = studies.run(path, sure=True).report["verdict"]
    assert verdict["cleared"][0]["trials"] > conclusion.report["verdict"]["cleared"][0]["trials"]


def started(studies: Studies) -> int:
    return sum(isinstance(event, events.TrialStarted) for event in studies.events)


@pytest.mark.slow
@pytest.mark.checked
@pytest.mark.integration
def test_checks_cut_by_the_limit_of_trials_go_on_under_a_larger_limit(studies: Studies) -> None:
    path = studies.matrix(crash_from_six(), rest="search: {max_trials: 8}")
    first = studies.run(path, sure=True).report
    assert first["verdict"]["status"] == "likely"
    assert first["verdict"]["trials"] == 8
    studies.events.clear()
    again = studies.run(path).report
    assert started(studies) == 0
    assert again["verdict"] == first["verdict"]
    path.write_text(path.read_text().replace("max_trials: 8", "max_trials: 20"))
    assert studies.run(path).report["verdict"]["trials"] > 8


@pytest.mark.slow
@pytest.mark.checked
@pytest.mark.integration
def test_a_quick_study_is_checked_when_it_is_asked_for_without_quick(studies: Studies) -> None:
    path = studies.matrix(crash_from_six())
    first = studies.run(path, quick=True).report["verdict"]
    studies.events.clear()
    assert studies.run(path, quick=True).report["verdict"] == first
    assert started(studies) == 0
    checked = studies.run(path).report["verdict"]
    assert checked["trials"] > first["trials"]
    assert checked["first_bad"] == first["first_bad"]
    studies.events.clear()
    assert studies.run(path).report["verdict"] == checked
    assert started(studies) == 0


@pytest.mark.slow
@pytest.mark.checked
@pytest.mark.integration
def test_a_quick_study_is_checked_though_a_command_failed_in_between(
    studies: Studies, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = studies.matrix(crash_from_six())
    first = studies.run(path, quick=True).report["verdict"]

    def fails(*_args: object) -> None:
        raise InfrastructureError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(study, "save_prepared", fails)
        with pytest.raises(InfrastructureError):
            studies.run(path)
    assert studies.run(path).report["verdict"]["trials"] > first["trials"]


@pytest.mark.slow
@pytest.mark.checked
@pytest.mark.integration
def test_stopping_checks_that_have_raised_a_doubt_ends_with_the_answer(studies: Studies) -> None:
    # The last good level passes until the answer stands, and then fails: the answer is in doubt.
    doubtful = studies.folder / "doubtful"
    script = crash_from_six(
        f"if os.path.exists({str(doubtful)!r}) and sys.argv[1] == '5': os.abort()\ntime.sleep(0.05)"
    )
    path = studies.matrix(script)

    def stopped() -> bool:
        if any(isinstance(event, events.Answered) for event in studies.events):
            doubtful.touch()
        return any(
            isinstance(event, events.TrialFinished)
            and event.evidence is Evidence.BAD
            and event.record.combination["level"] == "5"
            for event in studies.events
        )

    conclusion = studies.run(path, sure=True, stopped=stopped)
    report = conclusion.report
    assert report["study"]["status"] == "finished"
    assert conclusion.exit_code == (1 if report["verdict"]["status"] == "none" else 0)
    # The same command goes on: the question is open.
    studies.events.clear()
    assert studies.run(path).report["verdict"]["first_bad"]["level"] == "5"
    assert started(studies)


@pytest.mark.slow
@pytest.mark.checked
@pytest.mark.integration
def test_progress_is_told_while_a_trial_that_may_hang_is_waited_for(studies: Studies) -> None:
    again = str(studies.folder / "again")
    waits = f"""
        if sys.argv[1] == "5":
            with open({again!r}, "a") as passes:
                passes.write(".")
            # The fifth trial comes while the answer is checked, and outlasts the time for that.
            time.sleep(5 if os.path.getsize({again!r}) == 5 else 0.1)
    """
    assert studies.run(studies.matrix(crash_from_six(waits))).exit_code == 0
    told = studies.events
    waiting = [n for n, one in enumerate(told) if isinstance(one, events.Said) and "may hang" in one.text]
    after = told[waiting[0] :]
    ended = [n for n, one in enumerate(after) if isinstance(one, events.TrialFinished)]
    progress = [one for one in after[: ended[0]] if isinstance(one, events.Progress)]
    assert len(progress) >= 3
    assert all(sum(one.running.values()) for one in progress)
