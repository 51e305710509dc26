"""Nothing is measured twice: what is taken from other studies, and what is not."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bisect_env.answers.origins import Origin, origins_text
from bisect_env.cli.views import describe
from bisect_env.engine import events
from bisect_env.engine.locking import Prepared, group
from bisect_env.engine.reuse import reusable, trial_key
from bisect_env.environments.lock import Lock
from bisect_env.matrix.expand import expand
from bisect_env.matrix.load import Matrix, load_matrix
from bisect_env.report.build import report_document
from bisect_env.report.model import Report
from bisect_env.report.text import report_text
from bisect_env.search.goals import Goal
from bisect_env.storage.entries import StoredTrial, counts_of
from bisect_env.storage.query import ask
from bisect_env.storage.store import Store
from bisect_env.trials.judge import Target
from bisect_env.trials.records import Evidence, Machine, Outcome
from tests.engine.studies import CRASH_FROM_SIX, QUICK, Studies
from tests.storage.samples import combination, definition, opened_study, record, record_trial


def started(studies: Studies) -> int:
    return sum(isinstance(event, events.TrialStarted) for event in studies.events)


def renamed(path: Path, *changes: tuple[str, str]) -> Path:
    text = path.read_text()
    for old, new in (("name: planted", "name: again"), *changes):
        assert old in text
        text = text.replace(old, new)
    other = path.with_name("again.yaml")
    other.write_text(text)
    return other


@pytest.mark.integration
def test_a_new_study_starts_from_what_was_measured(studies: Studies) -> None:
    path = studies.matrix(CRASH_FROM_SIX)
    first = studies.run(path).report
    studies.events.clear()
    # Other words for people, other axes around it, another order of the search: the same measurements.
    again = studies.run(renamed(path, ("version: 1", "version: 1\ndescription: another question"))).report
    assert again["study"]["id"] != first["study"]["id"]
    assert again["verdict"]["first_bad"] == first["verdict"]["first_bad"]
    assert again["trials"] == first["trials"]
    assert started(studies) == 0
    (told,) = (event for event in studies.events if isinstance(event, events.Reused))
    assert told.trials == first["trials"]
    (origin,) = again["reused"]
    assert (origin["study_id"], origin["trials"]) == (first["study"]["id"], first["trials"])
    text = report_text(Report.read(again))
    assert f"{first['trials']} of these were measured before" in text
    assert f"in study {first['study']['id'][:8]} (planted)" in text
    assert studies.run(path).report["reused"] == []
    # Asked again, it knows from whom it has them.
    assert studies.run(renamed(path)).report["reused"] == again["reused"]


@pytest.mark.integration
def test_the_answer_can_be_asked_for_in_sql(studies: Studies) -> None:
    report = studies.run(studies.matrix(CRASH_FROM_SIX, rest=QUICK)).report
    with ask(str(studies.db), "SELECT status, sentence, probability FROM v_verdicts") as (_, rows):
        ((status, sentence, probability),) = rows
    verdict = report["verdict"]
    assert (status, sentence, probability) == ("likely", verdict["sentence"], verdict["probability"])
    assert "level 6 is probably the first bad value" in sentence


@pytest.mark.integration
def test_a_fresh_study_measures_anew(studies: Studies) -> None:
    path = studies.matrix(CRASH_FROM_SIX, rest=QUICK)
    first = studies.run(path).report
    studies.events.clear()
    fresh = studies.run(path, fresh=True).report
    assert fresh["study"]["id"] != first["study"]["id"]
    assert fresh["reused"] == []
    assert started(studies) > 0
    # It is the newest now, and answers for the matrix; being continued it still reuses nothing.
    assert studies.run(path).report["study"]["id"] == fresh["study"]["id"]


@pytest.mark.integration
def test_whose_trials_count_is_said_and_can_be_ones_own_alone(
    studies: Studies, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = studies.matrix(CRASH_FROM_SIX, rest=QUICK)
    monkeypatch.setenv("LOGNAME", "eve")
    studies.run(path)
    monkeypatch.setenv("LOGNAME", "ann")
    # A question of her own, answered in part by trials of somebody else.
    other = renamed(path, ("confidence: 0.8", "confidence: 0.99"))
    mixed = studies.run(other).report
    taken = sum(origin["trials"] for origin in mixed["reused"])
    assert 0 < taken < mixed["trials"]
    text = report_text(Report.read(mixed))
    assert "it rests on trials of 2 users: " in text
    assert f"eve {taken}" in text
    assert f"ann {mixed['trials'] - taken}" in text
    # Neither eve's study of the same matrix, nor her own that has reused eve's trials, but her own trials.
    for asked in (path, other):
        own = studies.run(asked, only_mine=True).report
        assert own["study"]["id"] not in {mixed["study"]["id"], *(one["study_id"] for one in mixed["reused"])}
        assert {origin["user"] for origin in own["reused"]} <= {"ann"}
        assert own["reused"]
        assert "users: " not in report_text(Report.read(own))
        assert studies.run(asked, only_mine=True).report["study"]["id"] == own["study"]["id"]


@pytest.mark.integration
@pytest.mark.parametrize(
    "change",
    [("timeout: 20s", "timeout: 21s"), ("{level}", "{level} more"), ("trial:", "trial:\n  env: {A: 1}")],
)
def test_other_conditions_are_another_measurement(studies: Studies, change: tuple[str, str]) -> None:
    path = studies.matrix(CRASH_FROM_SIX, rest="search: {max_trials: 4}")
    studies.run(path)
    again = studies.run(renamed(path, change)).report
    assert again["reused"] == []


@pytest.mark.integration
def test_another_machine_is_another_measurement(studies: Studies) -> None:
    path = studies.matrix(CRASH_FROM_SIX, rest="search: {max_trials: 4}")
    studies.run(path)
    with Store.open(str(studies.db)) as store, store.writing() as session:
        session.connection().exec_driver_sql("UPDATE trials SET cpu = 'aarch64'")
    assert studies.run(renamed(path)).report["reused"] == []


@pytest.mark.integration
def test_what_a_trial_says_is_judged_anew(studies: Studies) -> None:
    script = """
        import os, sys
        print("the culprit" if int(sys.argv[1]) % 2 else "harmless")
        if int(sys.argv[1]) >= 6:
            os.abort()
    """
    path = studies.matrix(script)
    first = studies.run(path).report
    assert first["trial_counts"]["bad"] > 0
    change = ("files: [script.py]", "files: [script.py]\n  bad: {outcomes: [crash], output: ['culprit']}")
    with Store.open(str(studies.db), read_only=True) as store:
        crashed = [t for t in store.trials(first["study"]["id"]) if t.outcome is Outcome.CRASH]
    studies.run(renamed(path, change))
    with Store.open(str(studies.db), read_only=True) as store:
        reused = {t.trial_id: t for t in store.trials(store.study("again").id) if t.reused}
    for trial in crashed:
        odd = int(trial.combination["level"]) % 2
        assert reused[trial.trial_id].evidence == (Evidence.BAD if odd else Evidence.OTHER)


@pytest.mark.integration
def test_one_history_has_another_answer_under_each_target(studies: Studies) -> None:
    script = """
        import os, sys
        level = int(sys.argv[1])
        if level >= 8:
            print("gone", flush=True)
        if level >= 6:
            os.abort()
        if level >= 3:
            sys.exit(3)
    """
    path = studies.matrix(script, rest=QUICK)
    history = studies.run(path, goal=Goal.TABLE).report["study"]["id"]
    targets = ("", "bad: {outcomes: [crash]}", "bad: {outcomes: [crash], output: [gone]}")
    for bad, first_bad in zip(targets, ("3", "6", "8"), strict=True):
        changes = [("files: [script.py]", f"files: [script.py]\n  {bad}")] if bad else []
        studies.events.clear()
        report = studies.run(renamed(path, *changes)).report
        assert report["verdict"]["first_bad"]["level"] == first_bad
        assert report["verdict"]["status"] != "none"
        with Store.open(str(studies.db), read_only=True) as store:
            facts = {trial.trial_id: trial for trial in store.trials(history)}
            here = {trial.trial_id: trial for trial in store.trials(report["study"]["id"])}
        # Every fact of the history is there, unchanged, and is evidence of what this study looks for.
        for trial_id, fact in facts.items():
            level = int(fact.combination["level"])
            meant = Evidence.BAD if level >= int(first_bad) else Evidence.OTHER
            expected = Evidence.GOOD if level < 3 else meant
            assert here[trial_id].evidence is expected
            assert here[trial_id].outcome is fact.outcome


@pytest.mark.integration
def test_a_study_on_unlike_machines_says_so(studies: Studies) -> None:
    path = studies.matrix(CRASH_FROM_SIX, rest=QUICK)
    first = studies.run(path).report
    assert first["warnings"] == []
    with Store.open(str(studies.db)) as store:
        with store.writing() as session:
            session.connection().exec_driver_sql(
                "UPDATE trials SET cpu = 'aarch64', gpu_model = 'GH200', driver = '1' "
                "WHERE sequence = (SELECT min(sequence) FROM trials)"
            )
        (warning,) = report_document(store, first["study"]["id"])["warnings"]
    assert "2 classes of machines (aarch64 with GH200, driver 1; " in warning


def test_programs_hear_what_was_reused() -> None:
    origin = Origin(study_id="0a1b2c3d4e", study="quickstart", user="ann", host="box-1", trials=30)
    event = events.Reused(30, (origin,))
    assert event.as_json() == {"event": "reused", "trials": 30, "origins": [origin.model_dump()]}
    told = (
        "starts from 30 trials that were measured before (30 by ann on box-1 in study 0a1b2c3d (quickstart))"
    )
    assert describe(event) == told
    many = origins_text(
        [origin.model_copy(update={"user": "", "host": "", "trials": n}) for n in (5, 4, 3, 2, 1)]
    )
    assert many.startswith("5 by somebody on some host in study")
    assert many.endswith(", 2 more studies with 3 trials")


# -- the decisions alone ------------------------------------------------------------------------------------


def planted(studies: Studies, **replace: str) -> tuple[Matrix, Prepared]:
    matrix = load_matrix(studies.matrix("pass", **replace))
    grid = expand(matrix, None, None)  # type: ignore[arg-type]
    lock = Lock("a" * 64, "3.11", "linux-64", (), "")
    locks = dict.fromkeys(grid.indices(), lock)
    return matrix, Prepared(grid, locks, {}, group(grid, locks))


def test_the_key_covers_what_decides_a_trial_and_nothing_else(studies: Studies) -> None:
    matrix, prepared = planted(studies)
    indices = list(prepared.grid.indices())
    combinations = [prepared.grid.combination(index) for index in indices]
    lock, first = prepared.locks[indices[0]], combinations[0]
    assert len({trial_key(matrix, one, lock) for one in combinations}) == len(indices)
    key = trial_key(matrix, first, lock)
    for same in ({"rest": "search: {max_trials: 9}"}, {"rest": "description: other words"}):
        other, _ = planted(studies, **same)
        assert trial_key(other, first, lock) == key
    for different in ({"trial": "concurrency: 2"}, {"trial": "gpus: 1"}, {"trial": "env: {A: b}"}):
        other, _ = planted(studies, **different)
        assert trial_key(other, first, lock) != key
    (studies.folder / "script.py").write_text("print(1)")
    assert trial_key(load_matrix(studies.folder / "matrix.yaml"), first, lock) != key
    assert trial_key(matrix, first, dataclasses.replace(lock, content_hash="b" * 64)) != key


def test_machines_that_are_not_known_are_not_the_same() -> None:
    cpu, gpu = Machine("x86_64"), Machine("x86_64", "H100", "570.1")
    assert reusable([cpu, gpu, Machine("")], 0) == {cpu, gpu}
    assert reusable([cpu, gpu, Machine("x86_64", "H100")], 1) == {gpu}


class OneKey:
    """A study whose combination 2.0 has one key, on a database with trials of another."""

    def __init__(self, folder: Path) -> None:
        self.store = Store.open(str(folder / "results.sqlite"))
        self.old = opened_study(self.store, "old")
        self.new = opened_study(self.store, "new")

    def measured(self, outcome: Outcome, **changes: object) -> str:
        one = record("2.0", outcome, machine=Machine("x86_64"), **changes)
        record_trial(self.store, self.old.id, one, trial_key="k")
        return one.trial_id

    def reuse(self, **target: Any) -> Callable[[], list[StoredTrial]]:
        """Return a function that takes what has been recorded of the key since its last call."""
        # The study goes on with this target.
        self.new = self.store.open_study(definition("new", target=Target(**target)))
        trials = self.store.study_trials(self.new.id)
        trials.look()
        return lambda: trials.reuse({"k": combination("2.0")}, [Machine("x86_64")])


@pytest.fixture
def one(tmp_path: Path) -> OneKey:
    return OneKey(tmp_path)


def test_all_trials_of_a_key_are_taken_whatever_they_did(one: OneKey) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    outcomes = [
        chance.choice([Outcome.PASS, Outcome.CRASH, Outcome.EXIT_FAIL, Outcome.HANG]) for _ in range(60)
    ]
    for outcome in outcomes:
        one.measured(outcome)
    taken = one.reuse()()
    assert [trial.outcome for trial in taken] == outcomes
    counts = counts_of(one.store.trials(one.new.id))[combination("2.0")]
    assert counts.good == outcomes.count(Outcome.PASS)
    assert counts.bad == len(outcomes) - counts.good


def test_what_says_nothing_is_not_taken(one: OneKey) -> None:
    for outcome in (Outcome.WORKER_LOST, Outcome.HOST_OOM, Outcome.NOT_RUNNABLE, Outcome.CUDA_INIT):
        one.measured(outcome)
    one.measured(Outcome.CUDA_INIT)
    reuse = one.reuse()
    # As in a study of its own: a GPU that could not be opened once is void, twice it is a failure.
    assert [(t.outcome, t.evidence) for t in reuse()] == [
        (Outcome.CUDA_INIT, Evidence.VOID),
        (Outcome.CUDA_INIT, Evidence.OTHER),
    ]
    assert reuse() == []


def test_what_is_recorded_later_is_taken_at_the_next_look(one: OneKey) -> None:
    reuse = one.reuse()
    assert reuse() == []
    first = one.measured(Outcome.PASS)
    assert [trial.trial_id for trial in reuse()] == [first]
    second = one.measured(Outcome.CRASH)
    assert [trial.trial_id for trial in reuse()] == [second]
    assert [trial.trial_id for trial in one.reuse()()] == []


def test_of_a_key_with_collected_logs_nothing_is_taken_where_output_decides(one: OneKey) -> None:
    one.measured(Outcome.CRASH, stderr="boom")
    one.store.collect(0)
    one.measured(Outcome.CRASH, stderr="another boom")
    assert one.reuse(output=("boom",))() == []
    assert len(one.reuse()()) == 2
