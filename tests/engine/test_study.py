import json
import os
import tempfile
from pathlib import Path

import pytest

from bisect_env.engine import events, searching
from bisect_env.errors import (
    EndsNotAsStatedError,
    ExitCode,
    MatrixError,
    StudyInterruptedError,
    UsageError,
)
from bisect_env.matrix.load import load_matrix
from bisect_env.report.build import load_report
from bisect_env.report.text import report_text
from bisect_env.search.goals import Goal
from bisect_env.storage.entries import CombinationStatus
from bisect_env.storage.store import Store
from bisect_env.temporary import PREFIX, TRIAL, make_held
from bisect_env.trials.records import Evidence, Outcome
from tests.engine.studies import CRASH_FROM_SIX, QUICK, Studies, crash_from_six

pytestmark = pytest.mark.integration


def test_a_certain_crash_is_found(studies: Studies) -> None:
    conclusion = studies.run(studies.matrix(CRASH_FROM_SIX))
    verdict = conclusion.report["verdict"]
    assert conclusion.exit_code == ExitCode.VERDICT
    assert verdict["status"] != "none"
    assert verdict["first_bad"] == {"python": verdict["first_bad"]["python"], "level": "6"}
    assert verdict["last_good"]["level"] == "5"
    assert verdict["culprit_axes"] == ["level"]
    assert conclusion.report["environments"] == 1


def test_a_flaky_crash_is_found(studies: Studies) -> None:
    script = """
        import os, sys
        from planted import fails
        if int(sys.argv[1]) >= 3 and fails(0.4, sys.argv[1]):
            os.abort()
    """
    verdict = studies.run(studies.matrix(script)).report["verdict"]
    assert (verdict["first_bad"]["level"], verdict["last_good"]["level"]) == ("3", "2")


def test_nothing_ever_fails(studies: Studies) -> None:
    path = studies.matrix("pass", rest="search: {min_crash_rate: 0.5}")
    conclusion = studies.run(path)
    assert conclusion.exit_code == ExitCode.NO_VERDICT
    assert conclusion.report["verdict"]["status"] == "none"
    assert "never bad" in conclusion.report["verdict"]["reason"]


def test_everything_fails(studies: Studies) -> None:
    conclusion = studies.run(studies.matrix("raise SystemExit(3)"))
    assert conclusion.exit_code == ExitCode.NO_VERDICT
    assert "always bad" in conclusion.report["verdict"]["reason"]


@pytest.mark.parametrize(("end", "script"), [("good", "raise SystemExit(3)"), ("bad", "pass")])
def test_an_end_that_is_not_as_stated(studies: Studies, end: str, script: str) -> None:
    level = "0" if end == "good" else "9"
    path = studies.matrix(script, rest=f"{end}: {{level: {level}}}\nsearch: {{min_crash_rate: 0.5}}")
    with pytest.raises(EndsNotAsStatedError, match=f"the stated {end} combination") as caught:
        studies.run(path)
    assert "exchange" not in str(caught.value.remedy), "one end alone cannot be mixed up"


@pytest.mark.slow
def test_a_stated_bad_end_that_passes_beside_failures_is_not_as_stated(studies: Studies) -> None:
    path = studies.matrix("import sys; sys.exit(int(sys.argv[1]) > 6)", rest="bad: {level: 4}")
    with pytest.raises(EndsNotAsStatedError, match="the stated bad combination"):
        studies.run(path)


def test_an_end_that_is_not_as_stated_comes_with_the_likely_reason(studies: Studies) -> None:
    path = studies.matrix("open('data.txt')", rest="good: {level: 0}\nbad: {level: 9}")
    with pytest.raises(EndsNotAsStatedError) as caught:
        studies.run(path)
    assert "data.txt]` in `trial`; else correct `good`" in str(caught.value.remedy)
    # No more than one trial of each combination and six repetitions say so.
    with Store.open(str(studies.db), read_only=True) as store:
        assert len(store.trials(store.study().id)) <= 10 + 6


def test_the_budget_of_trials_ends_the_study(studies: Studies) -> None:
    path = studies.matrix(CRASH_FROM_SIX, rest="search: {max_trials: 3}")
    conclusion = studies.run(path)
    assert conclusion.report["trials"] == 3
    assert conclusion.exit_code == ExitCode.NO_VERDICT


def test_trials_of_a_command_that_stored_no_time_are_part_of_the_budget(studies: Studies) -> None:
    # As after `kill -9`: the first command has no budget, and notes nothing when it ends.
    path = studies.matrix(crash_from_six("time.sleep(0.5)"))

    def stopped() -> bool:
        return sum(isinstance(event, events.TrialFinished) for event in studies.events) >= 3

    with pytest.raises(StudyInterruptedError):
        studies.run(path, stopped=stopped, slots=1)
    path.write_text(path.read_text() + "\nsearch: {budget: 1s}\n")
    studies.events.clear()
    assert studies.run(path, slots=1).exit_code is ExitCode.NO_VERDICT
    assert not [event for event in studies.events if isinstance(event, events.TrialStarted)]


def test_other_failures_are_set_aside_and_never_counted(studies: Studies) -> None:
    script = """
        import os, sys
        level = int(sys.argv[1])
        if level in (4, 5):
            sys.exit(3)
        if level >= 6:
            os.abort()
    """
    conclusion = studies.run(studies.matrix(script, trial="bad: {outcomes: [crash]}"))
    verdict = conclusion.report["verdict"]
    assert verdict["first_bad"]["level"] == "6"
    assert verdict["last_good"]["level"] == "3"
    between = {cell["combination"]["level"] for cell in verdict["boundaries"][0]["between"]}
    assert between == {"4", "5"}
    assert all(
        row["good"] + row["bad"] == 0
        for row in conclusion.report["combinations"]
        if row["combination"]["level"] in ("4", "5")
    )


def test_exit_code_125_skips_the_combination(studies: Studies) -> None:
    script = """
        import os, sys
        level = int(sys.argv[1])
        sys.exit(125 if level == 5 else 0) if level < 6 else os.abort()
    """
    verdict = studies.run(studies.matrix(script)).report["verdict"]
    assert (verdict["first_bad"]["level"], verdict["last_good"]["level"]) == ("6", "4")


def test_a_command_that_runs_nowhere_stops_the_study(studies: Studies) -> None:
    path = studies.matrix("pass")
    path.write_text(path.read_text().replace("python script.py", "no-such-program"))
    with pytest.raises(UsageError, match="cannot be run in any"):
        studies.run(path)
    concluded = studies.events[-1]
    assert isinstance(concluded, events.Concluded)
    assert concluded.report["study"]["status"] == "failed"
    assert concluded.report["verdict"]["status"] == "none"


def test_a_command_that_ran_nowhere_at_first_loses_no_combination(
    studies: Studies, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = studies.folder / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    path = studies.matrix("pass", trial="allow_host: [tool]")
    path.write_text(path.read_text().replace("python script.py", "tool"))
    with pytest.raises(UsageError, match="cannot be run in any"):
        studies.run(path)
    tool = folder / "tool"
    tool.write_text("#!/bin/sh\n[ $1 -lt 6 ]\n")
    tool.chmod(0o755)
    for _ in range(2):
        verdict = studies.run(path).report["verdict"]
        assert (verdict["last_good"]["level"], verdict["first_bad"]["level"]) == ("5", "6")
        with Store.open(str(studies.db), read_only=True) as store:
            states = store.combinations(store.study().id)
        assert not [one for one in states if one.status is CombinationStatus.SET_ASIDE]


def test_a_combination_in_which_no_test_is_judged_is_not_tried_again(studies: Studies) -> None:
    path = studies.matrix("", rest="search: {crash_rate: 1.0}")
    nothing = "echo '=== no tests ran in 0.01s ==='; exit 5"
    (studies.folder / "script.py").write_text(f"[ $1 = 5 ] && {{ {nothing}; }}; sleep 0.3; [ $1 -lt 6 ]\n")
    path.write_text(path.read_text().replace("python script.py", "sh script.py"))
    first = studies.run(path).report["verdict"]
    with Store.open(str(studies.db), read_only=True) as store:
        before = store.trials(store.study().id)
    assert [trial.outcome for trial in before].count(Outcome.NOT_RUNNABLE) == 1
    again = studies.run(path).report["verdict"]
    with Store.open(str(studies.db), read_only=True) as store:
        assert store.trials(store.study().id) == before
        states = store.combinations(store.study().id)
    assert again == first
    assert [one.combination["level"] for one in states if one.status is CombinationStatus.SET_ASIDE] == ["5"]


def test_an_interrupted_study_goes_on_where_it_stopped(studies: Studies) -> None:
    path = studies.matrix(CRASH_FROM_SIX)

    def finished() -> list[events.TrialFinished]:
        return [event for event in studies.events if isinstance(event, events.TrialFinished)]

    with pytest.raises(StudyInterruptedError, match="goes on from here"):
        studies.run(path, stopped=lambda: len(finished()) >= 3)
    first = {event.record.trial_id for event in finished()}
    conclusion = studies.run(path)
    everything = {event.record.trial_id for event in finished()}
    with Store.open(str(studies.db), read_only=True) as store:
        stored = [trial.trial_id for trial in store.trials(store.study(None).id)]
    assert first < everything
    assert sorted(stored) == sorted(everything)
    assert conclusion.report["verdict"]["first_bad"]["level"] == "6"


def test_a_study_can_be_stopped_before_anything_ran(studies: Studies) -> None:
    path = studies.matrix(CRASH_FROM_SIX, rest=QUICK)
    with pytest.raises(StudyInterruptedError, match="stopped after 0 trials"):
        studies.run(path, stopped=lambda: True)
    concluded = studies.events[-1]
    assert isinstance(concluded, events.Concluded)
    assert concluded.report["study"]["status"] == "interrupted"
    assert studies.run(path).report["verdict"]["first_bad"]["level"] == "6"


def test_the_report_of_a_first_study_that_still_runs_shows_its_answer_so_far(
    studies: Studies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "SAVE_EVERY", 0.0)
    told: list[str] = []

    def look() -> bool:
        with Store.open(str(studies.db), read_only=True) as store:
            if not told and (study := store.study()).verdict is not None:
                told.append(report_text(load_report(store, study.id)))
        return False

    studies.run(studies.matrix(CRASH_FROM_SIX, rest=QUICK), stopped=look)
    assert "not ended" in told[0]
    assert "the best guess so far" in told[0]


def test_a_finished_study_answers_at_once(studies: Studies) -> None:
    path = studies.matrix(CRASH_FROM_SIX, rest=QUICK)
    before = studies.run(path).report
    studies.events.clear()
    again = studies.run(path, slots=0).report  # no executor could be made with that
    assert again["verdict"] == before["verdict"]
    assert not [event for event in studies.events if isinstance(event, events.TrialStarted)]


def test_a_command_that_runs_nothing_takes_away_what_killed_ones_left(
    studies: Studies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = studies.matrix(CRASH_FROM_SIX, rest=QUICK)
    studies.run(path)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    for prefix in (TRIAL, PREFIX):
        _, lock = make_held(prefix)
        os.close(lock)
    mine, lock = make_held(TRIAL)
    studies.run(path, slots=0)
    assert list((tmp_path / "tmp").iterdir()) == [mine], "what somebody holds stays"
    os.close(lock)


def test_an_answer_needs_no_environment_any_more(studies: Studies) -> None:
    path = studies.matrix(CRASH_FROM_SIX, rest=QUICK)
    before = studies.run(path).report
    (studies.folder / "cache").rename(studies.folder / "away")
    (studies.folder / "cache").write_text("not a directory")
    studies.events.clear()
    again = studies.run(path).report
    assert again["study"]["status"] == "finished"
    assert again["verdict"] == before["verdict"]


def test_every_trial_is_stored_before_it_is_told(studies: Studies) -> None:
    conclusion = studies.run(studies.matrix(CRASH_FROM_SIX, rest=QUICK))
    counted = [
        event
        for event in studies.events
        if isinstance(event, events.TrialFinished) and event.evidence in (Evidence.GOOD, Evidence.BAD)
    ]
    assert conclusion.report["trials"] == len(counted)
    json.dumps(conclusion.report)


@pytest.mark.slow
def test_every_failing_configuration_is_found_one_after_the_other(studies: Studies) -> None:
    """Mode 1 fails from level 3 on, mode 0 from level 7 on, and mode 2 never."""
    axes = "level: {values: [0, 1, 2, 3, 4, 5, 6, 7, 8]}\nmode: {values: [a, b, c], direction: unordered}"
    script = """
        import os, sys
        level, mode = int(sys.argv[1]), os.environ["BISECT_ENV_MODE"]
        if level >= {"a": 7, "b": 3, "c": 99}[mode]:
            os.abort()
    """
    path = studies.matrix(script, axes=axes)
    conclusion = studies.run(path, goal=Goal.EVERY_CONFIGURATION)
    verdict = conclusion.report["verdict"]
    assert verdict["status"] != "none"
    found = [verdict, *verdict["others"]]
    assert {(one["first_bad"]["level"], one["first_bad"]["mode"]) for one in found} == {
        ("3", "b"),
        ("7", "a"),
    }
    assert verdict["no_other"] >= 0.9


def test_rates_of_processes_and_of_bodies(studies: Studies) -> None:
    """With the body repeated within a process, a rare failure is found soon, and both rates are told."""
    path = studies.matrix(
        """
        import sys
        from planted import fails
        if int(sys.argv[1]) >= 6 and fails(0.06, sys.argv[1]):
            raise ValueError
        """,
        trial="repeat_within: 60",
    )
    report = studies.run(path).report
    verdict = report["verdict"]
    assert verdict["first_bad"]["level"] == "6"
    bad = verdict["bad_rate"]
    assert bad["rate"] > 0.5
    assert bad["per_iteration"]["low"] < 0.06 < bad["per_iteration"]["high"] + 0.04
    assert bad["hits"] <= bad["iterations"] <= 60 * bad["trials"]
    assert f"of {bad['iterations']} iterations" in verdict["sentence"]
    good = verdict["good_rate"]
    assert good["iterations"] == 60 * good["trials"]


def test_a_staircase_says_of_what_was_tried_whether_it_is_bad(studies: Studies) -> None:
    path = studies.matrix(
        """
        import sys
        x, y = map(int, sys.argv[1:3])
        if (x >= 2 and y >= 1) or (x >= 1 and y >= 3):
            raise ValueError
        """,
        axes="x: {values: [0, 1, 2, 3]}\ny: {values: [0, 1, 2, 3, 4]}",
    )
    path.write_text(path.read_text().replace("{level}", "{x} {y}"))
    report = studies.run(path).report
    assert report["verdict"]["kind"] == "frontier"
    for one in report["combinations"]:
        expected = None if not one["bad"] + one["good"] else ("bad" if one["bad"] else "good")
        assert one["verdict"] == expected, one


def test_a_variable_has_the_value_of_an_axis(studies: Studies) -> None:
    script = """
        import os, sys
        assert os.environ["OPTIONS"] == '{"a": 1} {level}'
        sys.exit(int(os.environ["THREADS"]) >= 6)
    """
    env = """env: {THREADS: "{level}", OPTIONS: '{"a": 1} {{level}}'}"""
    verdict = studies.run(studies.matrix(script, trial=env, rest=QUICK)).report["verdict"]
    assert (verdict["last_good"]["level"], verdict["first_bad"]["level"]) == ("5", "6")


def test_a_variable_that_names_no_axis_is_refused(studies: Studies) -> None:
    path = studies.matrix("", trial="env: {THREADS: '{levle}'}")
    with pytest.raises(MatrixError) as caught:
        load_matrix(path)
    assert "trial.env.THREADS: {levle} is no axis; did you mean 'level'?" in str(caught.value)
    assert "or write {{levle}} for the braces" in str(caught.value)
