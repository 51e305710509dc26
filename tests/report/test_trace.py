"""How the posterior moved, and what ran when: from real studies, and from studies by hand."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bisect_env.answers.conclusion import verdict_document
from bisect_env.cluster.pool import PoolExecutor
from bisect_env.environments.lock import UnbuildableError
from bisect_env.errors import NoEnvironmentError
from bisect_env.matrix.grid import AxisKind, Direction, Grid, GridAxis
from bisect_env.report import formats, words
from bisect_env.report.build import ANSWERS, LIMIT, POINTS, load_report
from bisect_env.report.html import clock, lanes_of
from bisect_env.report.model import TimedTrial, TimelineReport
from bisect_env.search.goals import Goal
from bisect_env.search.searcher import Search
from bisect_env.search.trace import trace
from bisect_env.storage.store import Store
from tests.engine.studies import Studies
from tests.report.samples import StudyBuilder, axis, verdict

START = datetime(2026, 11, 2, 8, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(str(tmp_path / "results.sqlite")) as store:
        yield store


FLAKY = """
    import os, sys
    from planted import fails
    if int(sys.argv[1]) >= 6 and fails(0.6, sys.argv[1]):
        os.abort()
"""


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize(
    ("rest", "goal"),
    [
        ("", Goal.FIRST_BAD),
        ("good: {level: 0}\nbad: {level: 9}", Goal.FIRST_BAD),
        ("", Goal.EVERY_CONFIGURATION),
    ],
    ids=["plain", "stated ends", "every corner"],
)
def test_the_last_point_is_what_the_study_ended_with(tmp_path: Path, rest: str, goal: Goal) -> None:
    studies = Studies(tmp_path)
    conclusion = studies.run(studies.matrix(FLAKY, rest=rest), goal=goal)
    verdict, moved = conclusion.report["verdict"], conclusion.report["posterior"]
    first, last = moved["points"][0], moved["points"][-1]
    assert (first["trials"], last["trials"]) == (0, verdict["trials"])
    assert last["probabilities"][0] == pytest.approx(verdict["probability"], abs=2e-6)
    assert moved["answers"][0]["bad_values"] == {"level": ["6", "7", "8", "9"]}
    assert moved["answers"][0]["label"] == "level ≥ 6"
    numbers = [point["trials"] for point in moved["points"]]
    assert numbers == list(range(verdict["trials"] + 1))
    # Before any trial nothing was known, and the stated ends are part of what was believed then.
    assert first["probabilities"][0] < 0.3
    shown = conclusion.report["timeline"]
    assert len(shown["trials"]) == sum(conclusion.report["trial_counts"].values())
    assert {trial["combination"] for trial in shown["trials"]} <= set(range(10))
    (build,) = shown["builds"]
    assert build["seconds"] > 0
    assert build["combinations"] == list(range(10))
    # The environment was there before the first trial that needed it began.
    assert build["start"] + build["seconds"] <= min(trial["start"] for trial in shown["trials"]) + 0.5


@pytest.mark.integration
def test_a_build_that_fails_is_on_the_timeline(tmp_path: Path) -> None:
    def broken(*_: object, **__: object) -> None:
        raise UnbuildableError("no compiler\nsecond line", transient=False)

    studies = Studies(tmp_path)
    with pytest.raises(NoEnvironmentError):
        studies.run(studies.matrix("pass"), make_executor=lambda: PoolExecutor(broken, 2))  # type: ignore[arg-type]
    with Store.open(str(studies.db)) as store:
        builds = load_report(store, store.study().id).timeline.builds
    assert builds
    assert all(build.failed.startswith("no compiler") for build in builds)


def test_many_trials_are_looked_at_now_and_then(store: Store) -> None:
    study = StudyBuilder(store, [axis("a", "1", "2", "3")])
    for i in range(260):
        study.passes({"a": "1"}, 1) if i % 2 else study.crashes({"a": "3"}, 1)
    report = load_report(store, study.study.id)
    numbers = [point.trials for point in report.posterior.points]
    assert len(numbers) == POINTS + 1
    assert (numbers[0], numbers[1], numbers[-1]) == (0, 1, 260)
    assert len(report.posterior.answers) <= ANSWERS
    assert all(len(point.probabilities) == len(report.posterior.answers) for point in report.posterior.points)


def test_a_trace_does_not_contradict_its_verdict(store: Store) -> None:
    axes = [axis("a", "1", "2", "3")]
    for kind, certain in (("all", True), ("all", False), ("frontier", True)):
        study = StudyBuilder(store, axes, name=f"{kind}-{certain}".lower())
        study.passes({"a": "1"}, 9)
        study.crashes({"a": "2"}, 3)
        study.finished(verdict(axes, {"a": "2"}, {"a": "1"}, kind=kind, certain=certain))
        report = load_report(store, study.study.id)
        # Of a staircase the curves, which are those of rules, say nothing.
        assert bool(words.trace(report)) == (kind == "all")


def test_without_trials_that_count_there_is_no_trace(store: Store) -> None:
    study = StudyBuilder(store, [axis("a", "1", "2")])
    report = load_report(store, study.study.id)
    assert report.posterior.points == ()
    assert report.timeline.begin is None


def test_a_history_that_is_not_monotone_ends_as_it_did() -> None:
    axes = (GridAxis("a", AxisKind.PACKAGE, tuple(map(str, range(16))), Direction.REGRESSION),)
    grid = Grid(axes)
    groups = {index: index for index in grid.indices()}
    told = []
    live = Search(grid, groups)
    while not live.finished and len(told) < 1500:
        (index,) = live.ask(1)
        told.append((index, not 4 <= index[0] < 11))
        live.tell(index, hit=told[-1][1])
    assert not live.verdict.monotone
    seen = trace(Search(grid, groups), told, points=1500, answers=5)
    best = live.verdict.best
    assert (seen.answers[0].bad_cells() == best.hypothesis.bad_cells()).all()
    assert seen.probabilities[-1][0] == pytest.approx(best.probability)
    # What nobody thought of at first has no probability then.
    assert seen.probabilities[0][0] == 0.0


@pytest.mark.parametrize("length", ["short", pytest.param("long", marks=pytest.mark.slow)])
def test_any_history_goes_through_every_report(store: Store, length: str) -> None:
    """Old releases that fail for another reason are the everyday case: bad, good and bad, at any length."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    size = chance.randrange(20, 80) if length == "short" else chance.randrange(80, 301)
    direction = chance.choice(("regression", "fixed", "either"))
    turns = sorted(chance.sample(range(1, size), chance.randrange(1, 5)))
    first = chance.random() < 0.7
    bad = [(sum(turn <= place for turn in turns) % 2 == 0) == first for place in range(size)]
    print(f"{size} values, {direction}, changes at {turns}, the first is {'bad' if first else 'good'}")
    values = [f"1.{number}" for number in range(size)]
    grid = Grid((GridAxis("lib", AxisKind.VALUE, tuple(values), Direction(direction)),))
    study = StudyBuilder(store, [axis("lib", *values, direction=direction, kind="value")])
    search = Search(grid, {index: index for index in grid.indices()})
    while (wanted := search.ask(1)) and search.trials < 40:
        for index in wanted:
            cell = {"lib": values[index[0]]}
            (study.crashes if bad[index[0]] else study.passes)(cell, 1)
            search.tell(index, hit=bad[index[0]])
    study.finished(verdict_document(grid, search, {}))
    report = load_report(store, study.study.id)
    for form in ("text", "html", "md", "json", "junit", "csv"):
        assert formats.formatted(report, form)
    assert report.sentence
    if report.verdict.status == "confirmed":
        # However it is put, what was tried is called what it was.
        called = set(report.verdict.bad_values["lib"])
        seen = {values.index(one.combination["lib"]) for one in report.combinations if one.counted}
        assert {place for place in seen if values[place] in called} == {n for n in seen if bad[n]}


def test_a_reason_that_is_no_unicode_text_does_not_keep_a_verdict_from_being_stored(store: Store) -> None:
    values = [str(number) for number in range(6)]
    grid = Grid((GridAxis("lib", AxisKind.VALUE, tuple(values), Direction.REGRESSION),))
    study = StudyBuilder(store, [axis("lib", *values, kind="value")])
    search = Search(grid, {index: index for index in grid.indices()})
    search.set_aside((3,))
    while (wanted := search.ask(1)) and search.trials < 40:
        for index in wanted:
            search.tell(index, hit=index[0] >= 3)
    study.finished(verdict_document(grid, search, {(3,): ("env-unbuildable", "gcc said \udcff\0")}))
    (boundary,) = load_report(store, study.study.id).verdict.boundaries
    assert [(one.combination, one.reason) for one in boundary.between] == [({"lib": "3"}, "gcc said ?\ufffd")]


def test_what_is_told_again_is_what_was_believed_then() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    axes = tuple(
        GridAxis(name, AxisKind.PACKAGE, tuple("12345"), Direction.REGRESSION) for name in ("a", "b")
    )
    grid = Grid(axes)
    groups = {index: index for index in grid.indices()}
    told = [(index, index[0] >= 3 and chance.random() < 0.6) for index in chance.choices(list(groups), k=60)]
    seen = trace(Search(grid, groups), told, points=1000, answers=4)
    assert seen.trials == tuple(range(61))
    live = Search(grid, groups)
    for number, (index, hit) in enumerate(told, start=1):
        live.tell(index, hit=hit)
        believed = {one.hypothesis.bad_cells().tobytes(): one.probability for one in live.verdict.candidates}
        for answer, p in zip(seen.answers, seen.probabilities[number], strict=True):
            assert p == pytest.approx(believed.get(answer.bad_cells().tobytes(), 0.0))
    best = live.verdict.best.hypothesis
    assert (seen.answers[0].bad_cells() == best.bad_cells()).all()


# -- the timeline ------------------------------------------------------------------------------------------


def test_trials_and_builds_are_on_one_clock(store: Store) -> None:
    study = StudyBuilder(store, [axis("a", "1", "2")])
    for i in range(3):
        changes = {"host": "node", "worker": str(i), "started_at": START + timedelta(seconds=10 * i)}
        study.crashes({"a": "2"}, 1, duration=4.0, **changes)
    report = load_report(store, study.study.id)
    assert report.timeline.begin == START
    assert [(t.start, t.seconds, t.combination, t.worker) for t in report.timeline.trials] == [
        (0.0, 4.0, 1, "0"),
        (10.0, 4.0, 1, "1"),
        (20.0, 4.0, 1, "2"),
    ]
    assert report.combinations[1].seconds == 12.0


def test_of_very_many_trials_some_are_listed(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    monkeypatch.setattr("bisect_env.report.build.LIMIT", 10)
    study = StudyBuilder(store, [axis("a", "1", "2")])
    study.passes({"a": "1"}, 25)
    line = load_report(store, study.study.id).timeline
    assert (len(line.trials), line.left_out) == (9, 16)
    assert LIMIT >= 1000


def at(start: float, seconds: float, host: str = "h", worker: str = "0") -> TimedTrial:
    return TimedTrial(
        trial=f"{start}",
        combination=0,
        outcome="pass",
        evidence="good",
        start=start,
        seconds=seconds,
        host=host,
        worker=worker,
    )


def test_long_pauses_are_cut_and_short_ones_are_not() -> None:
    line = TimelineReport(begin=START, trials=(at(0, 10), at(40, 10), at(7250, 10), at(7260, 5)))
    place, cuts = clock(line)
    assert cuts == [(50, 7200)]
    assert [place(moment) for moment in (0, 45, 50)] == [0, 45, 50]
    # The pause takes a little, and what comes after keeps its lengths.
    assert place(7250) == 62
    assert place(7265) - place(7250) == 15
    moments = [place(m) for m in range(0, 7300, 7)]
    assert moments == sorted(moments)


def test_with_too_many_workers_hosts_have_the_lanes() -> None:
    few = TimelineReport(trials=tuple(at(i, 1, worker=str(i)) for i in range(5)))
    assert list(lanes_of(few)) == [f"h {i}" for i in range(5)]
    many = TimelineReport(trials=tuple(at(i, 1, host=f"h{i % 3}", worker=str(i)) for i in range(60)))
    assert {name: len(trials) for name, trials in lanes_of(many).items()} == {"h0": 20, "h1": 20, "h2": 20}
