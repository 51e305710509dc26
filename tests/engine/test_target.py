"""Studies about one failure among several: named, or taken from the known bad end."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bisect_env.engine import events
from bisect_env.errors import EndsNotAsStatedError, MatrixError, NoEnvironmentError, StudyInterruptedError
from bisect_env.matrix.load import load_matrix
from bisect_env.matrix.signatures import read_signature
from bisect_env.report.build import report_document
from bisect_env.report.model import Report
from bisect_env.report.text import report_text
from bisect_env.storage.store import Store
from bisect_env.trials.records import Evidence
from tests.engine.studies import PYTHON, QUICK, Studies
from tests.engine.test_reuse import renamed
from tests.engine.test_single import opened

# From 3 on one failure, from 6 on the one that is looked for; at 8 now and then the other as well.
TWO_FAILURES = """
    import os, sys
    from planted import fails
    def early(): raise KeyError("another problem")
    def late(): os.abort()
    level = int(sys.argv[1])
    if level >= 6:
        early() if level == 8 and fails(0.3) else late()
    if level >= 3:
        early()
"""
# These failures are no flakes: few trials tell.
REST = f"bad: {{level: 9}}\n{QUICK}"
FROM_BAD_END = {"trial": "bad: {signature: from-bad-end}", "rest": REST}


def first_bad(report: dict[str, Any]) -> str | None:
    cell = report["verdict"]["first_bad"]
    return cell["level"] if cell else None


def evidence(studies: Studies) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for event in studies.events:
        if isinstance(event, events.TrialFinished):
            level = event.record.combination["level"]
            found.setdefault(level, Counter())[str(event.evidence)] += 1
    return found


@pytest.mark.integration
def test_without_a_target_any_failure_counts(studies: Studies) -> None:
    report = studies.run(studies.matrix(TWO_FAILURES, rest=QUICK)).report
    assert first_bad(report) == "3"
    assert report["target"] == ""


@pytest.mark.integration
def test_the_target_is_that_of_the_bad_end(studies: Studies) -> None:
    report = studies.run(studies.matrix(TWO_FAILURES, **FROM_BAD_END)).report
    assert first_bad(report) == "6"
    target = read_signature(report["target"])
    assert (target.kind, target.frames[0]) == ("crash:SIGABRT", "script.py:late")
    # Nothing but the bad end was tried before it had failed.
    levels = [e.combination["level"] for e in studies.events if isinstance(e, events.TrialStarted)]
    finished = next(i for i, e in enumerate(studies.events) if isinstance(e, events.TrialFinished))
    begun = sum(isinstance(e, events.TrialStarted) for e in studies.events[:finished])
    assert set(levels[:begun]) == {"9"}
    said = evidence(studies)
    assert set(said["9"]) == {"bad"}
    assert all(set(said.get(level, ())) <= {"other"} for level in "345")
    assert said.get("5") or said.get("4") or said.get("3")
    text = report_text(Report.read(report))
    # By which comparison it was made is said where that is not this one's.
    assert ["target", *report["target"].removesuffix(" (v2)").split()] in [
        line.split() for line in text.splitlines()
    ]
    assert "(v2)" not in text


@pytest.mark.integration
def test_a_signature_copied_from_a_report_is_the_target(studies: Studies) -> None:
    studies.run(studies.matrix(TWO_FAILURES, rest=QUICK))
    with Store.open(str(studies.db)) as store:
        study = store.studies()[0].id
        text = report_text(Report.read(report_document(store, study)))
    shown = next(line for line in text.splitlines() if "script.py:late" in line and "crash" in line)
    signature = shown[shown.index("crash:") :].strip()
    studies.events.clear()
    path = studies.matrix(TWO_FAILURES, trial=f"bad: {{signature: {signature!r}}}", rest=QUICK)
    report = studies.run(path, fresh=True).report
    assert first_bad(report) == "6"
    assert report["target"].removesuffix(" (v2)") == signature


@pytest.mark.integration
def test_the_report_says_where_another_crash_is_other(studies: Studies) -> None:
    # From 6 on every third trial fails in another way, as they take their numbers; one may be ended unseen.
    numbers = studies.folder / "numbers"
    numbers.mkdir()
    script = f"""
        import itertools, os, sys
        def number():
            for n in itertools.count(1):
                try:
                    return os.mkdir(f"{numbers!s}/{{n}}") or n
                except FileExistsError:
                    pass
        if int(sys.argv[1]) >= 6:
            sys.exit(3) if number() % 3 == 2 else os.abort()
    """
    trial = "bad: {signature: from-bad-end, outcomes: [crash]}"
    report = studies.run(studies.matrix(script, trial=trial, rest=REST)).report
    assert first_bad(report) == "6"
    told = [w for w in report["warnings"] if "failed in another way" in w]
    assert told
    assert " as exit-fail:3" in told[0]
    assert any(failure["evidence"] == "other" for failure in report["failures"])


@pytest.mark.integration
def test_it_is_kept_when_the_study_goes_on(studies: Studies) -> None:
    path = studies.matrix(TWO_FAILURES, **FROM_BAD_END)

    def twice() -> bool:
        return sum(isinstance(event, events.TrialFinished) for event in studies.events) >= 2

    with pytest.raises(StudyInterruptedError):
        studies.run(path, stopped=twice)
    with Store.open(str(studies.db)) as store:
        settled = store.target(store.studies()[0].id)
    assert not settled.is_open
    report = studies.run(path).report
    assert first_bad(report) == "6"
    with Store.open(str(studies.db)) as store:
        assert store.target(report["study"]["id"]) == settled


@pytest.mark.integration
def test_trials_of_another_study_settle_it_without_any_new_one(studies: Studies) -> None:
    # Everything has been measured already, without a target.
    first = studies.run(studies.matrix(TWO_FAILURES, rest=REST)).report
    assert first_bad(first) == "3"
    path = studies.matrix(TWO_FAILURES, **FROM_BAD_END)
    studies.events.clear()
    report = studies.run(renamed(path)).report
    assert first_bad(report) == "6"
    reused = next(event for event in studies.events if isinstance(event, events.Reused))
    assert reused.trials == first["trials"]
    with Store.open(str(studies.db)) as store:
        trials = store.trials(report["study"]["id"])
    settled = next(t for t in trials if t.combination["level"] == "9" and t.evidence is Evidence.BAD)
    assert settled.study_id == first["study"]["id"]


@pytest.mark.integration
def test_a_bad_end_that_does_not_fail_is_said_to_be_wrong(studies: Studies) -> None:
    script = "import os, sys\nif sys.argv[1] == '5': os.abort()"
    path = studies.matrix(script, **FROM_BAD_END)
    with pytest.raises(EndsNotAsStatedError, match="the stated bad combination is not bad"):
        studies.run(path)
    assert set(evidence(studies)) == {"9"}


@pytest.mark.integration
def test_a_bad_end_that_cannot_be_run_is_said_at_once(studies: Studies) -> None:
    path = studies.matrix("import sys; sys.exit(125 if sys.argv[1] == '9' else 0)", **FROM_BAD_END)
    with pytest.raises(NoEnvironmentError, match=r"the bad end.*cannot be run"):
        studies.run(path)
    assert set(evidence(studies)) == {"9"}


@pytest.mark.parametrize(
    ("bad", "ends", "says"),
    [
        ("signature: from-bad-end", "", "needs a combination that is known to be bad; add the key `bad`"),
        ("signature: nonsense", "", "is no signature; copy one from a report"),
        ("signature: 'crash:SIGSEGV in body, at a.py:f (v1)'", "", "is of version 1"),
        ("{signature: 'crash:SIGSEGV in body (v2)', outcomes: [hang]}", "", "which `outcomes` lacks"),
        ("{signature: 'crash:SIGSEGV in body', outcomes: [hang]}", "", "which `outcomes` lacks"),
    ],
)
def test_what_a_matrix_may_say(studies: Studies, bad: str, ends: str, says: str) -> None:
    trial = f"bad: {{{bad}}}" if not bad.startswith("{") else f"bad: {bad}"
    with pytest.raises(MatrixError) as error:
        load_matrix(studies.matrix("pass", trial=trial, rest=ends))
    assert says in str(error.value)


def test_a_matrix_without_a_signature_is_the_study_that_it_was(studies: Studies, tmp_path: Path) -> None:
    plain = load_matrix(studies.matrix("pass", trial="bad: {outcomes: [crash]}")).digest
    named = load_matrix(
        studies.matrix("pass", trial="bad: {outcomes: [crash], signature: 'crash:SIGSEGV (v2)'}")
    ).digest
    assert plain != named


@pytest.mark.integration
def test_two_commands_on_one_study_agree_on_the_failure(studies: Studies) -> None:
    # The bad end fails in two ways, so that each command may meet another one first.
    script = """
        import os, sys
        from planted import fails
        def one(): raise KeyError("one")
        def two(): os.abort()
        if int(sys.argv[1]) >= 6: (one if fails(0.5, sys.argv[1]) else two)()
    """
    path = studies.matrix(script, **FROM_BAD_END)
    other = Studies(studies.folder)
    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(lambda each: each.run(path).report, (studies, other)))
    assert reports[0]["study"]["id"] == reports[1]["study"]["id"]
    assert reports[0]["target"] == reports[1]["target"] != ""
    kind = read_signature(reports[0]["target"]).kind
    told = [e for s in (studies, other) for e in s.events if isinstance(e, events.TrialFinished)]
    assert told
    for event in told:
        if event.record.signature:
            is_target = read_signature(event.record.signature).kind == kind
            assert (str(event.evidence) == "bad") is is_target, event.record.signature
    # Half of the trials fail in the other way: a combination may be set aside for that.
    assert all(int(first_bad(report) or 0) >= 6 for report in reports)


@pytest.mark.integration
def test_trials_by_themselves_are_judged_by_the_same_target(studies: Studies) -> None:
    path = studies.matrix(TWO_FAILURES, **FROM_BAD_END)
    with opened(studies, path, "level=5") as one:
        # Nobody knows yet which failure is meant.
        assert one.run(2).other == 2
    with opened(studies, path, "level=9") as one:
        assert one.run(2).bad == 2
        assert not one.store.target(one.study.id).is_open
    with opened(studies, path, "level=4") as one:
        assert one.run(2).other == 2
    assert first_bad(studies.run(path).report) == "6"


@pytest.mark.integration
def test_passes_and_failures_of_a_flaky_middle_count_alike_once_the_bad_end_has_failed(
    studies: Studies,
) -> None:
    script = """
        import os, sys
        from planted import fails
        if int(sys.argv[1]) == 9 or (int(sys.argv[1]) >= 5 and fails(0.5)):
            os.abort()
    """
    path = studies.matrix(script, **FROM_BAD_END)
    with opened(studies, path, "level=6") as one:
        tally = one.run(20)
        # What failed cannot be bad while nobody knows which failure is meant; nor is it good.
        assert tally.other > 0
        assert tally.bad == 0
        failed = tally.other
    assert int(first_bad(studies.run(path).report) or 0) >= 5
    with Store.open(str(studies.db), read_only=True) as store:
        trials = store.trials(store.study().id)
    middle = Counter(trial.evidence for trial in trials if trial.combination["level"] == "6")
    assert Evidence.OTHER not in middle
    assert middle[Evidence.BAD] >= failed
    assert middle[Evidence.GOOD] >= 20 - failed


@pytest.mark.integration
@pytest.mark.parametrize("version", [" (v2)", ""])
def test_a_named_signature_holds_for_trials_by_themselves(studies: Studies, version: str) -> None:
    signature = f"crash:SIGABRT in body, at script.py:late < script.py:<module>{version}"
    path = studies.matrix(TWO_FAILURES, trial=f"bad: {{signature: {signature!r}}}", rest=QUICK)
    with opened(studies, path, "level=5") as one:
        assert one.run(1).other == 1
    with opened(studies, path, "level=7") as one:
        assert one.run(1).bad == 1


TWO_PROBLEMS = """
    import sys
    level = int(sys.argv[1])
    if level <= 2:
        raise ConnectionError("no host")
    if level >= 6:
        raise AttributeError("gone")
"""


@pytest.mark.checked
@pytest.mark.integration
def test_failures_of_two_kinds_at_the_two_ends_are_two_problems(tmp_path: Path) -> None:
    studies = Studies(tmp_path)
    path = studies.matrix(TWO_PROBLEMS)
    report = studies.run(path).report
    assert report["verdict"]["first_bad"] == {**report["verdict"]["first_bad"], "level": "6"}
    assert report["verdict"]["kind"] != "island"
    told = [event.text for event in studies.events if isinstance(event, events.Warned)]
    (text,) = [text for text in told if "nothing to do with each other" in text]
    assert "level=0 fails as exit-fail:ConnectionError" in text.replace(f"python={PYTHON} ", "")
    assert "exit-fail:AttributeError in body" in text
    assert "bad: {signature:" in text
    with Store.open(str(studies.db), read_only=True) as store:
        study = store.study(None)
        assert store.target(study.id).signature
        said = {(int(t.combination["level"]), t.evidence) for t in store.trials(study.id)}
    assert {level for level, evidence in said if evidence is Evidence.BAD} <= {6, 7, 8, 9}
    assert {level for level, evidence in said if evidence is Evidence.OTHER} <= {0, 1, 2}
    # The same command knows it from then on.
    assert studies.run(path).report["verdict"]["first_bad"]["level"] == "6"


@pytest.mark.integration
@pytest.mark.parametrize("how", ["budget", "stopped"])
@pytest.mark.parametrize(("values", "slots"), [(2, 1), (2, 2), (4, 2)])
@pytest.mark.parametrize("most", [2, 3, 5])
def test_a_study_that_ends_in_doubt_about_two_problems_goes_on_with_them(
    studies: Studies, most: int, values: int, slots: int, how: str
) -> None:
    script = failing({"ConnectionError": range(1), "AttributeError": range(values - 1, values)})
    path = studies.matrix(script, axes=f"level: {{values: {[*range(values)]}}}")
    text = path.read_text()

    def stopped() -> bool:
        return how == "stopped" and sum(isinstance(e, events.TrialFinished) for e in studies.events) >= most

    if how == "budget":
        path.write_text(f"{text}search: {{max_trials: {most}}}\n")
    with contextlib.suppress(EndsNotAsStatedError, StudyInterruptedError):
        studies.run(path, quick=True, stopped=stopped, slots=slots)
    if how == "budget":
        with Store.open(str(studies.db), read_only=True) as store:
            assert len(store.trials(store.study(None).id)) <= most
    path.write_text(text)
    report = studies.run(path, quick=True, slots=slots).report
    # Of two values, none passes.
    assert first_bad(report) == ("3" if values == 4 else None)
    with Store.open(str(studies.db), read_only=True) as store:
        said = {(t.combination["level"], t.evidence) for t in store.trials(store.study(None).id)}
    assert ("0", Evidence.BAD) not in said


def failing(parts: Mapping[str, range]) -> str:
    """A script that raises these exceptions at these levels."""
    lines = [f"if int(sys.argv[1]) in {part}: raise {name}('planted')" for name, part in parts.items()]
    return "\n".join(["import sys", *lines])


LEVELS = f"level: {{values: {[*range(16)]}}}"


@pytest.mark.integration
@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize(("start", "end", "slots"), [(11, 14, 2), (14, 17, 1), (15, 17, 1), (15, 18, 3)])
def test_no_answer_takes_two_problems_for_one(
    studies: Studies, start: int, end: int, slots: int, quick: bool
) -> None:
    """What fails for another reason is neither announced nor the answer of a study without checks."""
    script = failing({"KeyError": range(start, end), "AttributeError": range(19, 21)})
    # A stated end is tried first: both failures have been seen when there is an answer.
    path = studies.matrix(script, axes=f"level: {{values: {[*range(21)]}}}", rest="bad: {level: 20}")
    report = studies.run(path, slots=slots, quick=quick).report
    assert first_bad(report) == "19"
    announced = [event.verdict.first_bad for event in studies.events if isinstance(event, events.Answered)]
    assert {(one or {})["level"] for one in announced} <= {"19"}


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.checked
@pytest.mark.parametrize("slots", [1, 2, 6])
@pytest.mark.parametrize("turned", [False, True])
def test_what_fails_for_a_reason_of_its_own_and_was_mended_is_another_problem(
    studies: Studies, slots: int, turned: bool
) -> None:
    """Whichever of the two the search meets first: with one worker it is the other one."""
    if turned:
        script = failing({"KeyError": range(6, 10), "AttributeError": range(4)})
        path = studies.matrix(script, axes=LEVELS.replace("}", ", direction: fixed}"))
    else:
        path = studies.matrix(
            failing({"KeyError": range(6, 10), "AttributeError": range(12, 16)}), axes=LEVELS
        )
    report = studies.run(path, slots=slots).report
    assert report["verdict"]["status"] != "none"
    assert first_bad(report) == ("3" if turned else "12")
    assert report["verdict"]["last_good"]["level"] == ("4" if turned else "11")
    told = [event.text for event in studies.events if isinstance(event, events.Warned)]
    said = evidence(studies)
    met = [level for level in map(str, range(6, 10)) if said.get(level)]
    assert ("nothing to do with each other" in " ".join(told)) is bool(met)
    assert met or slots > 1
    with Store.open(str(studies.db), read_only=True) as store:
        of_others = [t for t in store.trials(store.study(None).id) if t.combination["level"] in met]
    assert {trial.evidence for trial in of_others} <= {Evidence.OTHER}
    # Whoever asks again has the same answer, and is told of the other failure.
    again = studies.run(path).report
    assert first_bad(again) == first_bad(report)
    assert any("KeyError" in warning for warning in again["warnings"]) is bool(met)


@pytest.mark.integration
@pytest.mark.checked
@pytest.mark.parametrize("slots", [1, 2, 6])
def test_a_failure_that_only_changes_its_face_begins_where_something_fails_first(
    studies: Studies, slots: int
) -> None:
    script = failing({"KeyError": range(6, 10), "AttributeError": range(10, 16)})
    report = studies.run(studies.matrix(script, axes=LEVELS), slots=slots).report
    assert (report["verdict"]["status"] != "none", first_bad(report)) == (True, "6")
    assert report["target"] == ""
    assert any("fails in two ways" in warning for warning in report["warnings"])


@pytest.mark.integration
@pytest.mark.checked
def test_one_failure_that_was_mended_and_came_back_is_one_problem(studies: Studies) -> None:
    script = failing({"KeyError": range(3, 7)}) + "\nif int(sys.argv[1]) >= 12: raise KeyError('planted')"
    report = studies.run(studies.matrix(script, axes=LEVELS), slots=1).report
    assert (first_bad(report), report["target"]) == ("3", "")
    assert {b["bad"]["level"] for b in report["verdict"]["boundaries"]} == {"3", "6", "12"}


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.checked
@pytest.mark.parametrize("end", ["sys.exit(125)", "import os; os.abort()"])
def test_where_nothing_can_be_learnt_between_two_kinds_is_looked_at_in_vain_once(
    studies: Studies, end: str
) -> None:
    script = failing({"KeyError": range(6, 10), "AttributeError": range(11, 16)})
    path = studies.matrix(
        f"{script}\nif sys.argv[1] == '10': {end}", axes=LEVELS, trial="bad: {outcomes: [exit-fail]}"
    )
    report = studies.run(path, slots=2, sure=True).report
    assert (report["verdict"]["status"] != "none", first_bad(report)) == (True, "6")
    assert sum(evidence(studies).get("10", Counter()).values()) <= 4
    (last_good,) = [one for one in report["combinations"] if one["combination"]["level"] == "5"]
    assert last_good["good"] >= 60, "the checks of the answer go on"


@pytest.mark.integration
def test_what_fails_beyond_a_stated_bad_end_is_no_matter(studies: Studies) -> None:
    parts = {"KeyError": range(5, 8), "AttributeError": range(10, 13), "ValueError": range(13, 16)}
    path = studies.matrix(failing(parts), axes=LEVELS, rest="good: {level: 2}\nbad: {level: 12}")
    report = studies.run(path, slots=4).report
    assert (report["verdict"]["status"] != "none", first_bad(report)) == (True, "10")


@pytest.mark.integration
def test_one_failure_at_both_ends_is_one_problem(tmp_path: Path) -> None:
    studies = Studies(tmp_path)
    report = studies.run(studies.matrix("raise KeyError")).report
    assert report["verdict"]["status"] == "none" or report["verdict"]["kind"] == "always"
    with Store.open(str(studies.db), read_only=True) as store:
        assert not store.target(store.study(None).id).signature
