import io
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from bisect_env.answers.axes import AxisInfo
from bisect_env.answers.origins import Origin
from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.cli.views import JsonView, LiveView, PlainView, QuietView, describe, interesting
from bisect_env.engine import events
from bisect_env.environments.progress import BuildStep
from bisect_env.matrix.grid import AxisKind, Combination, Direction
from bisect_env.trials.records import Evidence, Outcome, Phase, TrialRecord

A, B, C = (Combination((("pkg", v),)) for v in ("1", "2", "3"))


def record(combination: Combination = A, outcome: Outcome = Outcome.CRASH) -> TrialRecord:
    return TrialRecord(
        trial_id="t1",
        combination=combination,
        lock_hash="abc",
        outcome=outcome,
        detail="SIGSEGV \x1b[31m[bold]in the body",
        returncode=-11,
        phase=Phase.BODY,
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
        duration=0.25,
    )


def document(**more: Any) -> VerdictDocument:
    plain = {
        "status": "none",
        "reason": "no failure was seen often enough",
        "kind": "never",
        "first_bad": None,
        "last_good": None,
        "culprit_axes": [],
        "bad_values": {},
        "directions": {"pkg": "regression"},
        "probability": 0.4,
        "models": {"sharing": 0.4, "differing": 0.4},
        "boundaries": [],
        "bad_rate": None,
        "good_rate": None,
        "candidates": [],
        "typical_bad_rate": 0.3,
        "background_rate": 0.01,
        "ends_wrong": [],
        "trials": 3,
        "expected_left": 12.5,
    }
    return VerdictDocument.model_validate({**plain, **more})


def progress(**bad: float) -> events.Progress:
    chances = tuple((Combination((("pkg", v),)), p) for v, p in bad.items())
    return events.Progress(3, 1, {A: 1}, document(), chances)


EVERY: list[events.Event] = [
    events.StudyOpened("abc", "quickstart", 5),
    events.LockProgress(1, 2),
    events.Locked(10, 1, 2, 7),
    events.TrialStarted("t1", A),
    events.TrialFinished(record(), Evidence.BAD),
    events.SetAside((A, B), "env-unbuildable", "gcc failed\nmore"),
    events.Warned("B often fails in another way"),
    progress(**{"1": 0.1, "2": 0.9}),
    events.Concluded({"schema": 1, "verdict": {"status": "none"}}),
]


@pytest.mark.parametrize("event", EVERY, ids=lambda e: type(e).__name__)
def test_every_event_is_a_json_object_with_its_kind(event: events.Event) -> None:
    line = json.loads(json.dumps(event.as_json()))
    assert line["event"]


def test_kinds_of_events_differ() -> None:
    kinds = [event.as_json()["event"] for event in EVERY]
    assert len(set(kinds)) == len(kinds)


@pytest.mark.parametrize("event", EVERY, ids=lambda e: type(e).__name__)
def test_no_view_stumbles_and_none_lets_control_characters_through(event: events.Event) -> None:
    for make in (PlainView, QuietView, JsonView):
        stream = io.StringIO()
        make(stream)(event)
        assert "\x1b[31m" not in stream.getvalue()


def test_without_a_terminal_each_step_of_a_build_is_a_line_and_the_same_step_seldom() -> None:
    stream, now = io.StringIO(), 0.0
    view = PlainView(stream, clock=lambda: now)

    def build(what: str, package: str = "", done: int = 0, total: int = 0) -> None:
        view(events.Building("abc", BuildStep(what, package, done, total), ready=1, building=1))

    view(events.LockProgress(2, 4))
    now = 1.0
    view(events.LockProgress(4, 4))
    for now in range(10, 50):
        build("downloading", "torch 2.11.0", now * 10**8, 5 * 10**9)
    now = 55.0
    build("checking")
    assert stream.getvalue().splitlines() == [
        "locking 2 of 4",
        "downloading torch 2.11.0: 1.0 GB of 5.0 GB; environment 2",
        "downloading torch 2.11.0: 4.0 GB of 5.0 GB, about 7.5 s left; environment 2",
        "verifying installed files; environment 2",
    ]


def test_a_build_is_an_event_for_programs() -> None:
    stream = io.StringIO()
    event = events.Building("abc", BuildStep("unpacking", "torch 2.11.0", 1, 2), ready=0, building=2)
    JsonView(stream)(event)
    said = json.loads(stream.getvalue())
    said.pop("time")
    assert said == {
        "event": "building",
        "lock": "abc",
        "step": "unpacking",
        "package": "torch 2.11.0",
        "bytes_done": 1,
        "bytes_total": 2,
        "environments_ready": 0,
        "environments_building": 2,
    }


def test_plain_lines_tell_what_matters() -> None:
    stream = io.StringIO()
    view = PlainView(stream, clock=lambda: 0.0)
    for event in EVERY:
        view(event)
    text = stream.getvalue()
    assert "going on after 5 trials" in text
    assert "10 combinations, 1 excluded, 2 without a solution: 7 distinct environments" in text
    assert "set aside: pkg=1 and 1 more (env-unbuildable: gcc failed: more)" in text
    assert "crash: pkg=1" in text
    assert "3 trials, 1 of them bad" in text


def test_progress_lines_are_not_a_flood() -> None:
    now = 0.0
    stream = io.StringIO()
    view = PlainView(stream, clock=lambda: now)
    for _ in range(100):
        view(progress(**{"1": 0.5}))
        now += 0.1
    assert stream.getvalue().count("trials") <= 2 * 3


def test_the_same_failure_is_a_line_once_and_then_a_number() -> None:
    now = 0.0
    stream = io.StringIO()
    view = PlainView(stream, clock=lambda: now)
    for combination, times in ((A, 12), (B, 2)):
        for _ in range(times):
            view(events.TrialFinished(record(combination), Evidence.BAD))
    now = 10.0
    view(progress(**{"1": 0.5}))
    view(events.TrialFinished(record(), Evidence.BAD))
    view(events.Concluded({"schema": 1}))
    lines = stream.getvalue().splitlines()
    assert len([line for line in lines if line.startswith("crash: pkg=1")]) == 3
    assert len([line for line in lines if line.endswith("11 more times")]) == 1
    assert len([line for line in lines if line.endswith(": 1 more time")]) == 2


def test_an_event_says_when() -> None:
    stream = io.StringIO()
    before = datetime.now(UTC)
    JsonView(stream)(events.Warned("text"))
    said = datetime.fromisoformat(json.loads(stream.getvalue())["time"])
    assert abs((said - before).total_seconds()) < 60


def test_quiet_json_is_warnings_errors_and_the_answer() -> None:
    stream = io.StringIO()
    view = JsonView(stream, quiet=True)
    for event in [*EVERY, events.Failed(2, "what", None, None)]:
        view(event)
    kinds = {json.loads(line)["event"] for line in stream.getvalue().splitlines()}
    assert kinds == {events.Warned.kind, events.Failed.kind, events.Concluded.kind}


def test_what_was_counted_before_is_in_the_table_and_a_failure_stays() -> None:
    now = 100.0
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=30)
    chances = {str(i): 0.5 for i in range(2, 40)} | {"1": 1.0}
    seen = progress(**chances)
    seen = replace(seen, running={}, counts={A: (3, 7)}, verdict=document(probability=0.35))
    with LiveView(console, clock=lambda: now) as view:
        now = 165.0
        view(seen)
        drawn = Console(file=io.StringIO(), width=160)
        drawn.print(view.drawn())
    out = drawn.file.getvalue()  # type: ignore[attr-defined]
    (row,) = [line for line in out.splitlines() if line.startswith("pkg=1 ")]
    assert row.split()[1:3] == ["7", "3"]
    assert "1 min 5 s" in out
    assert out.count("35 %") + out.count("35%") <= 1, "one probability, not two that differ"


def test_a_pass_is_not_a_line() -> None:
    event = events.TrialFinished(record(outcome=Outcome.PASS), Evidence.GOOD)
    assert describe(event) is None


def test_the_live_view_draws_the_open_question() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=30)
    with LiveView(console) as view:
        for event in EVERY:
            view(event)
        drawn = Console(file=io.StringIO(), width=100)
        drawn.print(view.drawn())
    out = drawn.file.getvalue()  # type: ignore[attr-defined]
    assert "quickstart (study abc)" in out
    assert "pkg=2" in out
    assert "90%" in out
    assert "running 1" in out


def test_the_table_keeps_what_is_open_in_the_grids_order() -> None:
    chances = {str(i): p for i, p in enumerate([0.0, 0.01, 0.4, 0.6, 0.99, 1.0])}
    shown = interesting(progress(**chances), 3)
    assert [c["pkg"] for c, _ in shown] == ["1", "2", "3"] or [c["pkg"] for c, _ in shown] == ["2", "3", "4"]


def test_a_bad_end_that_only_passes_is_told_with_what_that_excludes() -> None:
    passing = replace(progress(), hits=0, passing=(A, 40, 0.02))
    line = describe(passing) or ""
    assert "pkg=1 passed 40 times: it fails in less than 7.2 % of runs, if at all" in line
    # What ends it is said in the words of a command line.
    assert "Ctrl-C ends it here; with `--always`, or `--rate 0.5`, fewer passes are enough" in line
    assert "--always" not in (describe(replace(passing, passing=(A, 400, 0.02))) or "--always")
    for few in (None, (A, 9, 0.02)):
        assert " passed " not in (describe(replace(passing, passing=few)) or " passed ")
    soon = describe(replace(passing, passing=(A, 3, 0.02), verdict=document(expected_left=1.0))) or ""
    assert "no failure yet; continuing until a failure rate of 2 % can be ruled out" in soon
    assert "left" not in soon
    on = Combination.of({"pkg": "1", "python": "3.11"})
    assert "no failure yet on Python 3.11;" in (describe(replace(passing, passing=(on, 3, 0.02))) or "")


def test_what_a_user_may_do_is_said_once() -> None:
    now = 0.0
    stream = io.StringIO()
    view = PlainView(stream, clock=lambda: now)
    for passes in (20, 40, 60):
        view(replace(progress(), hits=0, passing=(A, passes, 0.02)))
        now += 60.0
    certain = replace(progress(), counts={A: (0, 9), B: (3, 3), C: (2, 2)})
    for trials in (20, 40):
        view(replace(certain, trials=trials))
        now += 60.0
    lines = stream.getvalue().splitlines()
    assert [line for line in lines if "passed 60 times: it fails in less than" in line]
    assert ["Ctrl-C ends it here" in line for line in lines] == [True, False, False, False, False]
    assert ["`--always` ends sooner" in line for line in lines] == [False, False, False, True, False]


def test_a_failure_that_came_every_time_gets_always_offered() -> None:
    """The search waits for rare failures that nobody looks for."""
    certain = replace(progress(), counts={A: (0, 9), B: (3, 3), C: (2, 2)})
    assert "`--always` ends sooner" in (describe(certain) or "")
    for other in (
        replace(certain, counts={A: (0, 9), B: (3, 4), C: (2, 2)}),
        replace(certain, counts={B: (2, 2)}),
        # Versions of a flaky package that failed in their only trial, among others that passed.
        replace(certain, counts={A: (1, 1), B: (1, 1), C: (1, 1)}),
        replace(certain, is_certain=True),
        replace(certain, verdict=document(expected_left=2.0)),
    ):
        assert "--always" not in (describe(other) or "--always")


def test_an_answer_on_the_way_is_told_as_the_report_tells_it() -> None:
    values = ("1", "2", "3", "4")
    axes = [AxisInfo(name="pkg", kind=AxisKind.VALUE, direction=Direction.EITHER, values=values)]
    gap = document(
        status="confirmed",
        kind="all",
        first_bad={"pkg": "4"},
        last_good={"pkg": "3"},
        culprit_axes=["pkg"],
        bad_values={"pkg": ["1", "4"]},
        directions={"pkg": "either"},
        boundaries=[{"axis": "pkg", "bad": {"pkg": "4"}, "good": {"pkg": "3"}, "between": []}],
        probability=0.99,
    )
    line = describe(events.Answered(gap, 1, 10.0, axes)) or ""
    assert "pkg is broken up to 1 and from 4 on" in line
    assert "checking it for 10 s at most (`--sure` checks on: up to 1 more trial)" in line
    with LiveView(Console(file=io.StringIO(), force_terminal=True)) as view:
        view(replace(progress(**{"1": 0.5}), verdict=gap, axes=axes))
        drawn = Console(file=io.StringIO(), width=160)
        drawn.print(view.drawn())
    assert "pkg is broken up to 1 and from 4 on" in drawn.file.getvalue()  # type: ignore[attr-defined]


def test_a_table_is_told_by_its_calls_and_no_answer_has_a_probability_of_zero() -> None:
    table = {"good": 20, "bad": 11, "tried": 15, "complete": False}
    left = replace(progress(), trials=15, hits=6, verdict=document(expected_left=2.0, probability=0.0))
    mapped = replace(left, verdict=document(expected_left=2.0, probability=0.0, table=table))
    assert describe(mapped) == (
        "15 trials, 6 of them bad; 31 combinations called good or bad so far; about 2 trials left"
    )
    assert describe(left) == "15 trials, 6 of them bad; about 2 trials left"


def test_one_is_not_told_as_several() -> None:
    one = replace(progress(), trials=1, verdict=document(expected_left=1.2, probability=0.999))
    assert describe(one) == "1 trial, 1 of them bad; best answer so far 99.9 %; about 1 trial left"
    answered = replace(one, verdict=document(expected_left=0.0, probability=1.0 - 1e-6))
    assert describe(answered) == "1 trial, 1 of them bad; best answer so far > 99.9 %; checking the answer"
    assert describe(events.StudyOpened("abc", "x", 1)) == "study abc (x), going on after 1 trial"
    origins = tuple(Origin(study_id=one, study="x", user="ann", host="box", trials=3) for one in ("a", "b"))
    assert (describe(events.Reused(6, origins)) or "").startswith(
        "starts from 6 trials that were measured before (3 by"
    )
    assert (describe(events.Reused(1, origins)) or "").startswith("1 more trial measured before, 6 by now (3")
