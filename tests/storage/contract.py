"""What every back end of the store promises; each back end's test class inherits it."""

from __future__ import annotations

import dataclasses
import itertools
import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import delete, select, update
from sqlmodel import select as select_rows

from bisect_env.answers.axes import AxisInfo
from bisect_env.answers.verdict_document import RateModels, VerdictDocument
from bisect_env.environments.lock import LockedPackage
from bisect_env.environments.lockfiles import make_lock
from bisect_env.errors import StorageError, UsageError
from bisect_env.matrix.files import StudyFile
from bisect_env.matrix.grid import AxisKind, Combination
from bisect_env.matrix.signatures import FROM_BAD_END, read_signature
from bisect_env.storage import backend
from bisect_env.storage.entries import (
    AMPLIFIED,
    CombinationState,
    EvidenceCounts,
    StoredTrial,
    StudyStatus,
    counts_of,
    environments_of,
    failures_of,
    machines_of,
)
from bisect_env.storage.query import ask, condition
from bisect_env.storage.store import Store
from bisect_env.storage.tables import METADATA, BlobRow
from bisect_env.trials.judge import Target
from bisect_env.trials.records import Evidence, Machine, Outcome, TrialRecord
from tests.storage.samples import (
    combination,
    definition,
    lock,
    opened_study,
    record,
    record_trial,
    signature,
    states,
    whole_record,
)

Reopen = Callable[[], Store]


CONFIRMED = VerdictDocument(status="confirmed", probability=0.97)


def logs_of(store: Store, trial_id: str) -> tuple[str, str, str]:
    whole = store.trial(trial_id)
    assert whole is not None
    return whole.record.stdout, whole.record.stderr, whole.record.stack


class StoreContract:
    """Modules of subclasses give `reference`, the database that `reopen` opens once more, for writing."""

    @pytest.fixture
    def store(self, reopen: Reopen) -> Store:
        return reopen()

    # -- studies -------------------------------------------------------------------------------------------

    def test_a_study_is_there_for_others_as_it_was_given(self, store: Store, reopen: Reopen) -> None:
        study = store.open_study(definition())
        assert study.definition == definition()
        assert study.status is StudyStatus.OPEN
        assert study.verdict is None
        assert study.finished_at is None
        assert abs(study.created_at - datetime.now(UTC)) < timedelta(minutes=5)
        assert reopen().study(study.id) == study

    def test_the_same_name_and_digest_go_on(self, store: Store, reopen: Reopen) -> None:
        first = store.open_study(definition())
        later = definition(
            description="other words",
            settings={"max_trials": 9},
            exclude_newer=datetime(2027, 1, 1, tzinfo=UTC),
        )
        again = reopen().open_study(later)
        assert again.id == first.id
        assert again.definition == dataclasses.replace(later, exclude_newer=first.exclude_newer)
        assert store.find_study("orjson", "d" * 64) == again
        assert store.find_study("orjson", "e" * 64) is None
        assert store.open_study(definition(digest="e" * 64)).id != first.id
        assert store.open_study(definition(name="another")).id != first.id
        assert len(store.studies()) == 3

    def test_a_finished_study_stays_finished_until_it_is_reopened(self, store: Store) -> None:
        study = store.open_study(definition())
        store.update_study(study.id, "finished", CONFIRMED)
        again = store.open_study(definition())
        assert (again.id, again.status, again.verdict) == (study.id, "finished", CONFIRMED)
        assert again.finished_at is not None
        store.update_study(study.id, StudyStatus.OPEN)
        opened = store.study(study.id)
        assert (opened.status, opened.finished_at) == ("open", None)
        assert opened.verdict == CONFIRMED

    @pytest.mark.parametrize("status", ["interrupted", "failed"])
    def test_a_stopped_study_is_open_again(self, store: Store, status: str) -> None:
        study = store.open_study(definition())
        store.update_study(study.id, verdict=VerdictDocument())
        store.update_study(study.id, status)
        assert store.study(study.id).status == status
        assert store.study(study.id).verdict == VerdictDocument()
        assert store.open_study(definition()).status == "open"

    def test_numbers_that_json_lacks_become_null(self, store: Store) -> None:
        study = store.open_study(definition())
        models = RateModels(sharing=float("nan"), differing=0.1)
        verdict = VerdictDocument(expected_left=float("inf"), models=models, reason="a\0b")
        store.update_study(study.id, verdict=verdict)
        read = store.study(study.id).verdict
        assert read is not None
        assert (read.expected_left, read.reason) == (None, "a\ufffdb")
        assert read.models == RateModels(sharing=None, differing=0.1)

    def test_axes_keep_their_order(self, store: Store) -> None:
        study = store.open_study(definition())
        store.update_study(study.id, verdict=VerdictDocument(first_bad={"z": "1", "a": "2", "m": "3"}))
        verdict = store.study(study.id).verdict
        assert verdict is not None
        assert list(verdict.first_bad or ()) == ["z", "a", "m"]

    def test_naming_a_study(self, store: Store) -> None:
        with pytest.raises(UsageError, match="there is no study"):
            store.study()
        old = store.open_study(definition("alpha", "1" * 64))
        middle = store.open_study(definition("alpha", "2" * 64))
        new = store.open_study(definition("beta"))
        assert store.study().id == new.id
        assert store.study(old.id).id == old.id
        assert store.study("alpha").id == middle.id
        length = next(n for n in range(1, 33) if sum(s.id[:n] == old.id[:n] for s in (old, middle, new)) == 1)
        assert store.study(old.id[:length].upper()).id == old.id
        store.open_study(definition("of no file", matrix_path=""))
        with pytest.raises(UsageError, match="there is no study ''"):
            store.study("")
        with pytest.raises(UsageError, match="did you mean alpha"):
            store.study("alhpa")

    # -- combinations and locks ----------------------------------------------------------------------------

    def test_combinations_keep_their_order_and_content(self, store: Store, reopen: Reopen) -> None:
        study = opened_study(store)
        assert reopen().combinations(study.id) == states()
        store.save_combinations(study.id, reversed(states()))
        assert store.combinations(study.id) == states()

    def test_what_running_taught_is_not_forgotten(self, store: Store) -> None:
        study = opened_study(store)
        store.set_combination(study.id, combination("2.0"), "env-unbuildable", "gcc is missing\n\0")
        store.save_combinations(study.id, states())
        learnt = store.combinations(study.id)[2]
        assert (learnt.status, learnt.reason) == ("env-unbuildable", "gcc is missing\n\ufffd")
        assert learnt.lock_hash == lock("2.0").content_hash
        # With another lock it is another environment, of which nothing is known.
        other = CombinationState(combination("2.0"), "solvable", "", lock("1.0").content_hash)
        store.save_combinations(study.id, [other])
        assert store.combinations(study.id)[2] == other

    def test_locks_come_back_whole_and_are_stored_once(self, store: Store, reopen: Reopen) -> None:
        study = opened_study(store)
        store.save_locks([lock("1.0"), lock("1.0"), lock("1.1")])
        other = opened_study(reopen(), "another")
        assert other.id != study.id
        for version in ("1.0", "1.1", "2.0"):
            assert store.lock(lock(version).content_hash) == lock(version)
        assert store.lock("0" * 64) is None

    def test_a_combination_of_hundreds_of_packages_is_stored_once(self, store: Store, reopen: Reopen) -> None:
        """A study of the packages between two environments has one axis for each package."""
        chance = random.Random(5)
        names = [f"package-{chance.randbytes(8).hex()}" for _ in range(300)]
        grid = tuple(AxisInfo(name=name, values=(chance.randbytes(8).hex(), "2.0")) for name in names)
        old, new = (Combination.of({axis.name: axis.values[n] for axis in grid}) for n in (0, 1))
        study = store.open_study(definition("between", grid=grid))
        store.save_locks([lock("2.0")])
        its = lock("2.0").content_hash
        both = [CombinationState(one, "solvable", "", its) for one in (old, new)]
        for _ in range(2):
            store.save_combinations(study.id, both)
        reopen().set_combination(study.id, new, "env-unbuildable", "no compiler")
        assert record_trial(store, study.id, record(combination=old))
        assert [(one.combination, one.status) for one in store.combinations(study.id)] == [
            (old, "solvable"),
            (new, "env-unbuildable"),
        ]
        (trial,) = store.trials(study.id)
        assert trial.combination == old
        # Another study may have the same one.
        again = store.open_study(definition("again", grid=grid))
        store.save_combinations(again.id, both)

    def test_what_is_not_there_is_a_defect_of_the_caller(self, store: Store) -> None:
        study = opened_study(store)
        unlocked = CombinationState(combination("3.0"), "solvable", "", "f" * 64)
        calls: list[Callable[[], object]] = [
            lambda: store.save_combinations(study.id, [unlocked]),
            lambda: store.set_combination(study.id, combination("9.9"), "env-unbuildable", ""),
            lambda: record_trial(store, study.id, record("9.9")),
            lambda: record_trial(store, study.id, record(lock_hash="f" * 64)),
        ]
        for call in calls:
            with pytest.raises(ValueError, match=r"combination|lock"):
                call()
        # In a damaged file, a list of studies may name one that is not found.
        gone = "0" * 32
        lost: list[Callable[[], object]] = [
            lambda: store.update_study(gone, verdict=VerdictDocument()),
            lambda: store.update_study(gone, StudyStatus.OPEN),
            lambda: store.save_combinations(gone, []),
            lambda: store.record_decision(gone, "ask", {}),
            lambda: record_trial(store, gone, record()),
        ]
        for call in lost:
            with pytest.raises(StorageError, match="has no study 0000"):
                call()
        assert store.trials(study.id) == []
        assert store.combinations(study.id) == states()

    # -- trials --------------------------------------------------------------------------------------------

    def test_a_trial_comes_back_whole(self, store: Store, reopen: Reopen) -> None:
        study = opened_study(store)
        given = whole_record()
        assert record_trial(store, study.id, given) is True
        found = reopen().trial(given.trial_id)
        assert found is not None
        assert found.record == given
        assert (found.study_id, store.evidence(found)) == (study.id, Evidence.BAD)
        assert store.trial("gone") is None

    def test_texts_that_databases_refuse_do_not_lose_a_trial(self, store: Store) -> None:
        study = opened_study(store)
        given = record(detail="a\0b\udcff", host="h\0", worker="\udc80", gpu="\ud800")
        assert record_trial(store, study.id, given)
        (found,) = store.trials(study.id)
        assert (found.detail, found.host, found.worker) == ("a\ufffdb?", "h\ufffd", "?")

    def test_other_time_zones_mean_the_same_moment(self, store: Store) -> None:
        study = opened_study(store)
        given = record(started_at=datetime(2026, 3, 1, 1, 0, tzinfo=timezone(timedelta(hours=5, minutes=30))))
        record_trial(store, study.id, given)
        (found,) = store.trials(study.id)
        assert found.started_at == given.started_at
        assert found.started_at.utcoffset() == timedelta(0)

    def test_a_trial_is_stored_once_and_never_changes(self, store: Store, reopen: Reopen) -> None:
        study = opened_study(store)
        given = whole_record()
        assert record_trial(store, study.id, given)
        changed = dataclasses.replace(given, outcome=Outcome.PASS, stdout="")
        assert record_trial(reopen(), study.id, changed) is False
        (light,) = store.trials(study.id)
        assert (light.outcome, light.evidence) == (Outcome.CRASH, Evidence.BAD)
        found = store.trial(given.trial_id)
        assert found is not None
        assert found.record == given

    def test_trials_come_in_the_order_of_recording(self, store: Store) -> None:
        study = opened_study(store)
        other = opened_study(store, "another")
        given = [record(started_at=datetime(2026, 1, 28 - i, tzinfo=UTC)) for i in range(5)]
        for one in given:
            record_trial(store, study.id, one)
            record_trial(store, other.id, record())
        assert [trial.trial_id for trial in store.trials(study.id)] == [one.trial_id for one in given]
        assert len(store.trials(other.id)) == 5

    def test_counts_failures_and_environments(self, store: Store) -> None:
        study = opened_study(store)
        other = opened_study(store, "another")
        hang, crash, skip = signature("hang"), signature("crash:SIGSEGV", "a:b"), signature("cuda-oom")
        plan = [
            *[("1.0", Outcome.PASS, "")] * 7,
            *[("2.0", Outcome.PASS, "")] * 2,
            *[("2.0", Outcome.HANG, hang)] * 1,
            *[("2.0", Outcome.CRASH, crash)] * 4,
            *[("2.0", Outcome.CUDA_OOM, skip)] * 3,
            *[("1.0", Outcome.WORKER_LOST, "")] * 2,
            *[("1.0", Outcome.SKIP, "")] * 1,
        ]
        ids: dict[str, list[str]] = {}
        for version, outcome, signed in plan:
            one = record(version, outcome, signature=signed)
            record_trial(store, study.id, one)
            ids.setdefault(signed, []).append(one.trial_id)
        record_trial(store, other.id, record("1.0", Outcome.CRASH))
        trials = store.trials(study.id)
        counts = counts_of(trials)
        assert set(counts) == {combination("1.0"), combination("2.0")}
        first, two = counts[combination("1.0")], counts[combination("2.0")]
        assert [getattr(first, str(evidence)) for evidence in Evidence] == [7, 0, 0, 1, 2]
        assert [getattr(two, str(evidence)) for evidence in Evidence] == [2, 5, 3, 0, 0]
        assert (first.counted, two.counted) == (7, 7)
        assert two.by_outcome[(Evidence.BAD, Outcome.CRASH)] == 4
        found = [(f.signature, f.outcome, f.evidence, f.trials, f.trial_id) for f in failures_of(trials)]
        assert found == [
            (crash, Outcome.CRASH, Evidence.BAD, 4, ids[crash][0]),
            (skip, Outcome.CUDA_OOM, Evidence.OTHER, 3, ids[skip][0]),
            (hang, Outcome.HANG, Evidence.BAD, 1, ids[hang][0]),
        ]
        assert environments_of(trials) == 2
        assert environments_of(store.trials(other.id)) == 1
        assert EvidenceCounts().counted == 0

    def test_an_environment_where_every_trial_is_void_does_not_count(self, store: Store) -> None:
        study = opened_study(store)
        record_trial(store, study.id, record("1.0", Outcome.WORKER_LOST))
        assert environments_of(store.trials(study.id)) == 0

    # -- evidence, and which failure a study is about -----------------------------------------------------

    def written(self, store: Store, study_id: str) -> list[tuple[str, str]]:
        """What SQL users see: trial and evidence, in order."""
        members, trials = METADATA.tables["study_trials"], METADATA.tables["trials"]
        query = (
            select(trials.c.trial_id, members.c.evidence)
            .join(members, members.c.trial_sequence == trials.c.sequence)
            .where(members.c.study_id == study_id)
            .order_by(members.c.id)
        )
        with store.reading() as session:
            return [(trial_id, evidence) for trial_id, evidence in session.connection().execute(query)]

    def test_the_target_follows_from_the_trials(self, store: Store, reopen: Reopen) -> None:
        """Whatever is told first, a trial means what the failure of the bad end says it means."""
        settings = {"ends": {"good": {"orjson": "1.0"}, "bad": {"orjson": "2.0"}}}
        study = opened_study(store, settings=settings, target=Target(signature=FROM_BAD_END))
        meant, another = signature("crash:SIGSEGV", "a:b"), signature("exit-fail:KeyError", "c:d")
        middle = record("1.0", Outcome.CRASH, signature=meant)
        record_trial(store, study.id, middle)
        record_trial(store, study.id, record("1.0", Outcome.EXIT_FAIL, signature=another))
        assert [trial.evidence for trial in store.trials(study.id)] == ["other", "other"]
        # Another command sees the failure of the bad end; what was stored before means something else now.
        record_trial(reopen(), study.id, record("2.0", Outcome.CRASH, signature=meant))
        trials = store.trials(study.id)
        assert [trial.evidence for trial in trials] == ["bad", "other", "bad"]
        assert self.written(store, study.id) == [(t.trial_id, str(t.evidence)) for t in trials]
        # A command that knew nothing of that records what it means by now.
        record_trial(store, study.id, record("1.0", Outcome.EXIT_FAIL, signature=another))
        assert self.written(store, study.id)[-1][1] == "other"
        found = store.trial(middle.trial_id)
        assert found is not None
        assert store.evidence(found) == "bad"

    def test_what_sql_users_see_follows_all_that_the_target_depends_on(
        self, store: Store, reopen: Reopen
    ) -> None:
        ends = {"ends": {"good": {"orjson": "1.0"}, "bad": {"orjson": "2.0"}}}
        meant, another = signature("crash:SIGSEGV", "a:b"), signature("exit-fail:KeyError", "c:d")

        def study(digest: str) -> str:
            opened = opened_study(
                store, "orjson", digest, settings=ends, target=Target(signature=FROM_BAD_END)
            )
            earlier = record("1.1", Outcome.CRASH, signature=meant, lock_hash=lock("1.0").content_hash)
            record_trial(store, opened.id, earlier)
            return opened.id

        def check(study_id: str, *expected: str) -> None:
            trials = store.trials(study_id)
            assert [str(trial.evidence) for trial in trials] == [*expected]
            assert self.written(store, study_id) == [(t.trial_id, str(t.evidence)) for t in trials]

        # What was made more frequent before is meant, whatever the bad end showed first.
        decided = study("a" * 64)
        record_trial(store, decided, record("2.0", Outcome.EXIT_FAIL, signature=another))
        check(decided, "other", "bad")
        reopen().record_decision(decided, AMPLIFIED, {"perturbation": {}, "signature": meant})
        check(decided, "bad", "other")
        # A command that began before that decision records by it.
        record_trial(store, decided, record("1.0", Outcome.CRASH, signature=meant))
        check(decided, "bad", "other", "bad")
        # A combination that turns out to be the same environment as the bad end shows what is meant, too.
        locked = study("b" * 64)
        check(locked, "other")
        same = CombinationState(combination("1.1"), "solvable", "", lock("2.0").content_hash)
        reopen().save_combinations(locked, [same])
        check(locked, "bad")
        record_trial(store, locked, record("1.0", Outcome.EXIT_FAIL, signature=another))
        check(locked, "bad", "other")

    def test_what_an_environment_warns_of_stays_when_it_is_saved_again(self, store: Store) -> None:
        study = opened_study(store)
        two, its = combination("2.0"), lock("2.0").content_hash
        store.save_locks([lock("3.0")])
        for content_hash, reason, expected in (
            (its, "", ""),
            (lock("3.0").content_hash, "numpy 2 with numpy 1's ABI", "numpy 2 with numpy 1's ABI"),
            # A command that goes on knows the lock, and has not solved it.
            (lock("3.0").content_hash, "", "numpy 2 with numpy 1's ABI"),
            (its, "", ""),
        ):
            store.save_combinations(study.id, [CombinationState(two, "solvable", reason, content_hash)])
            assert store.combinations(study.id)[2].reason == expected

    def test_conditions_find_the_same_trials_everywhere(self, store: Store, reference: str) -> None:
        grid = tuple(
            AxisInfo(name=name, kind=AxisKind.VALUE, values=values)
            for name, values in (("torch", ("2.4.0", "2.4.1")), ("mode", ("Éclair", "1.1")))
        )
        study = store.open_study(definition(grid=grid))
        store.save_locks([lock("2.0")])
        ids = {}
        for torch, mode in (("2.4.0", "1.1"), ("2.4.1", "Éclair")):
            place = Combination.of({"torch": torch, "mode": mode})
            state = CombinationState(place, "solvable", "", lock("2.0").content_hash)
            store.save_combinations(study.id, [state])
            one = record("2.0", Outcome.CRASH, combination=place, detail=f"in {mode}")
            record_trial(store, study.id, one)
            ids[one.trial_id] = torch
        for text, expected in {
            "detail~É": {"2.4.1"},
            "detail~éCLAIR": {"2.4.1"} if store.database.engine.dialect.name == "sqlite" else None,
            "detail~LAIR": {"2.4.1"},
            "detail~1.%": set(),
            "detail=*CLAIR": {"2.4.1"},
            "mode=Éclair": {"2.4.1"},
            "mode=É*": {"2.4.1"},
            "torch=2.4.*": {"2.4.0", "2.4.1"},
            "torch=2.4": set(),
            "torch!=2.4.0": {"2.4.1"},
            "started_at~2026-11": {"2.4.0", "2.4.1"},
            "returncode~0": {"2.4.0", "2.4.1"},
            "duration=0.2*": {"2.4.0", "2.4.1"},
            "duration!=0.*": set(),
        }.items():
            with ask(reference, f"SELECT trial_id FROM v_trials WHERE {condition(text)}") as (_, rows):
                found = {ids[trial_id] for (trial_id,) in rows}
            # Whether PostgreSQL knows that é is É depends on the locale of its database.
            assert expected is None or found == expected, text

    def test_questions_get_the_same_json_from_every_back_end(self, store: Store, reference: str) -> None:
        study = store.open_study(definition())
        verdict = VerdictDocument(
            first_bad={"torch": "2.4", "mode": "Éclair"}, culprit_axes=("torch", "mode")
        )
        store.update_study(study.id, verdict=verdict)
        with ask(reference, "SELECT first_bad, culprit_axes FROM v_verdicts") as (_, rows):
            assert [*map(tuple, rows)] == [('{"torch":"2.4","mode":"Éclair"}', '["torch","mode"]')]

    def test_only_the_first_failure_to_initialise_cuda_is_void(self, store: Store) -> None:
        study = opened_study(store, target=Target(outcomes=frozenset({Outcome.CUDA_INIT})))
        # A worker that was lost says nothing about CUDA.
        record_trial(store, study.id, record("2.0", Outcome.WORKER_LOST))
        for _ in range(3):
            record_trial(store, study.id, record("2.0", Outcome.CUDA_INIT))
        record_trial(store, study.id, record("1.0", Outcome.CUDA_INIT))
        evidence = [str(trial.evidence) for trial in store.trials(study.id)]
        assert evidence == ["void", "void", "bad", "bad", "void"]
        assert [said for _, said in self.written(store, study.id)] == evidence

    def test_a_study_that_somebody_deleted_by_hand_is_named(self, store: Store, reopen: Reopen) -> None:
        gone = store.open_study(definition())
        known = store.study_trials(gone.id)
        assert known.look() == []
        with reopen().writing() as session:
            session.connection().execute(delete(METADATA.tables["studies"]))
        with pytest.raises(StorageError, match=f"has no study {gone.id}"):
            known.look()

    # -- decisions and concurrency -------------------------------------------------------------------------

    def test_decisions_come_in_order(self, store: Store, reopen: Reopen) -> None:
        study = store.open_study(definition())
        for number in range(4):
            reopen().record_decision(study.id, "ask", {"number": number, "to": [{"b": "1", "a": "2"}]})
        found = store.decisions(study.id)
        assert [decision.payload["number"] for decision in found] == [0, 1, 2, 3]
        assert {decision.kind for decision in found} == {"ask"}
        assert [decision.at for decision in found] == sorted(decision.at for decision in found)

    def test_a_snapshot_sees_one_state(self, store: Store, reopen: Reopen) -> None:
        study = opened_study(store)
        writer = reopen()
        with store.reading():
            assert store.trials(study.id) == []
            assert record_trial(writer, study.id, record())
            with store.reading():
                assert store.trials(study.id) == []
            assert store.trials(study.id) == []
            assert counts_of(store.trials(study.id)) == {}
        assert len(store.trials(study.id)) == 1

    def test_a_reader_neither_waits_nor_makes_others_wait(self, store: Store, reference: str) -> None:
        study = opened_study(store)
        with Store.open(reference, read_only=True) as reader, reader.reading():
            assert reader.trials(study.id) == []
            for _ in range(20):
                record_trial(store, study.id, record())
            with store.database.engine.begin() as held:
                held.execute(update(METADATA.tables["studies"]).values(description="half-written"))
                assert reader.study(study.id).definition == definition()
            assert reader.trials(study.id) == []
        assert len(store.trials(study.id)) == 20

    def test_a_read_only_store_cannot_write(self, store: Store, reference: str) -> None:
        study = opened_study(store)
        with Store.open(reference, read_only=True) as reader:
            for write in (
                lambda: reader.open_study(definition("another")),
                lambda: record_trial(reader, study.id, record()),
                lambda: reader.set_combination(study.id, combination("1.0"), "env-unbuildable", "no"),
            ):
                with pytest.raises(StorageError, match="cannot be written"):
                    write()
            assert reader.trials(study.id) == []

    def test_threads_share_a_store(self, store: Store) -> None:
        study = opened_study(store)
        same, seeds = record(), itertools.count()
        new: list[bool] = []

        def write() -> None:
            mine = dataclasses.replace(same, hash_seed=next(seeds))
            for _ in range(10):
                assert record_trial(store, study.id, record())
                new.append(record_trial(store, study.id, mine))

        threads = [threading.Thread(target=write) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert new.count(True) == 1
        assert len(new) == 40
        assert len(store.trials(study.id)) == 41

    def test_two_who_open_the_same_study_at_once_get_the_same_one(self, reopen: Reopen) -> None:
        stores = [reopen() for _ in range(4)]
        start = threading.Barrier(4)
        ids: list[str] = []

        def begin(store: Store) -> None:
            start.wait()
            ids.append(store.open_study(definition()).id)

        threads = [threading.Thread(target=begin, args=(store,)) for store in stores]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(ids) == 4
        assert len(set(ids)) == 1

    # -- secrets -------------------------------------------------------------------------------------------

    def test_passwords_come_in_everywhere_and_are_stored_nowhere(self, store: Store) -> None:
        url = "https://me:hunter2@index.example/simple"
        study = store.open_study(
            definition(
                matrix_text=f"index: {url}\ntrial: {{env: {{MY_TOKEN: hunter2}}}}\n",
                description=url,
                settings={"note": url},
            )
        )
        package = LockedPackage("orjson", "2.0", "pip", f"{url}/o.whl?token=hunter2", "a" * 64)
        made = make_lock("3.11", "linux-64", [package])
        store.save_locks([made])
        store.save_combinations(
            study.id,
            [
                CombinationState(combination("1.0"), "env-unsolvable", f"{url} says no"),
                CombinationState(combination("2.0"), "solvable", "", made.content_hash),
            ],
        )
        store.set_combination(study.id, combination("1.0"), "env-unbuildable", f"{url} says no")
        logged = f"fetching {url} with Authorization: Bearer hunter2\n"
        given = record(
            lock_hash=made.content_hash,
            detail=url,
            signature=signature(url),
            stdout=logged,
            stderr=logged,
            stack=logged,
        )
        record_trial(store, study.id, given)
        store.record_decision(study.id, "ask", {"why": [url]})
        store.update_study(study.id, "failed", VerdictDocument(reason=url))
        found = store.trial(given.trial_id)
        assert found is not None
        assert "https://me:***@index.example/simple" in found.record.stdout
        assert "hunter2" not in repr(found)
        with store.database.reader.connect() as connection:
            for table in METADATA.sorted_tables:
                rows = connection.execute(table.select()).fetchall()
                assert "hunter2" not in repr(rows), table.name
        assert "hunter2" not in repr((store.studies(), store.lock(made.content_hash)))

    def test_a_signature_with_a_password_and_a_quote_is_stored_without_the_password(
        self, store: Store, reopen: Reopen
    ) -> None:
        said = 'check: Assertion `query == "password=hunter2"\' failed.'
        given = record(outcome=Outcome.CRASH, signature=signature("crash:SIGABRT", said))
        study = opened_study(store, target=Target(signature=given.signature))
        assert record_trial(store, study.id, given)
        store.record_decision(study.id, AMPLIFIED, {"perturbation": {}, "signature": given.signature})
        others = reopen()
        (found,) = others.trials(study.id)
        assert read_signature(found.signature).frames == (said.replace("hunter2", "***"),)
        assert others.study(study.id).definition.target.signature == found.signature
        assert found.evidence is Evidence.BAD
        assert [one.payload["signature"] for one in others.decisions(study.id)] == [found.signature]

    # -- claims --------------------------------------------------------------------------------------------

    def test_a_claim_is_won_by_whoever_knows_the_state(self, store: Store, reopen: Reopen) -> None:
        study = opened_study(store)
        two, one = combination("2.0"), combination("1.0")
        assert store.claim(study.id, "me", {"a": two, "b": two}, {two: 0}, lease=60) == [True, True]
        other = reopen()
        # Believes that nobody is there: somebody was faster.
        assert other.claim(study.id, "you", {"c": two}, {two: 0}, lease=60) == [False]
        assert (other.trials(study.id), other.claimed(study.id, "you")) == ([], {"me": {two: 2}})
        assert other.claim(study.id, "you", {"c": two, "d": one}, {two: 2, one: 0}, lease=60) == [True, True]
        assert store.claimed(study.id, "me") == {"you": {two: 1, one: 1}}
        # Recording ends a claim; what was claimed is then what is recorded.
        assert record_trial(other, study.id, record("2.0", trial_id="c"))
        trials = store.study_trials(study.id)
        assert [trial.trial_id for trial in trials.look()] == ["c"]
        assert store.claimed(study.id, "me") == {"you": {one: 1}}
        assert store.claim(study.id, "me", {"e": two}, {two: 2}, lease=60) == [False]
        assert store.claim(study.id, "me", {"e": two}, {two: 3}, lease=60) == [True]
        assert trials.look() == []

    def test_a_trial_that_another_command_runs_or_recorded_is_not_claimed_again(
        self, store: Store, reopen: Reopen
    ) -> None:
        study = opened_study(store)
        two = combination("2.0")
        assert store.claim(study.id, "me", {"a": two, "b": two}, {two: 0}, lease=60) == [True, True]
        record_trial(store, study.id, record("2.0", trial_id="b"))
        # Two rate tests that continue one series choose the same ids.
        other = reopen()
        assert other.claim(study.id, "you", {"a": two}, {two: 2}, lease=60) == [False]
        assert other.claim(study.id, "you", {"b": two}, {two: 2}, lease=60) == [False]
        assert other.claim(study.id, "you", {"c": two}, {two: 2}, lease=60) == [True]
        assert store.claimed(study.id, "you") == {"me": {two: 1}}

    def test_the_lease_of_the_dead_lapses(self, store: Store, reopen: Reopen) -> None:
        study = opened_study(store)
        two = combination("2.0")
        store.claim(study.id, "dead", {"a": two}, {two: 0}, lease=0.0)
        store.claim(study.id, "alive", {"b": two}, {two: 0}, lease=60)
        time.sleep(0.05)
        other = reopen()
        assert other.claimed(study.id, "you") == {"alive": {two: 1}}
        assert other.claim(study.id, "you", {"c": two}, {two: 1}, lease=60) == [True]
        # It was only slow: its result counts all the same.
        assert record_trial(store, study.id, record("2.0", trial_id="a"))
        assert counts_of(store.trials(study.id))[two].good == 1

    def test_claims_are_renewed_and_released(self, store: Store, reopen: Reopen) -> None:
        study = opened_study(store)
        two = combination("2.0")
        store.claim(study.id, "me", {"a": two, "b": two}, {two: 0}, lease=0.0)
        time.sleep(0.05)
        assert reopen().claimed(study.id, "you") == {}
        record_trial(store, study.id, record("2.0", trial_id="b"))
        store.renew(study.id, "me", {"a": two, "b": two}, lease=60)
        assert reopen().claimed(study.id, "you") == {"me": {two: 1}}
        store.release("me", ["gone"])
        store.release("you")
        assert reopen().claimed(study.id, "you") == {"me": {two: 1}}
        store.release("me", ["a"])
        assert reopen().claimed(study.id, "you") == {}

    def test_claims_of_many_at_once_are_won_once(self, store: Store, reopen: Reopen) -> None:
        study = opened_study(store)
        two, won = combination("2.0"), []
        stores = [reopen() for _ in range(6)]
        start = threading.Barrier(len(stores))

        def take(number: int) -> None:
            start.wait(timeout=60)
            for i in range(8):
                (mine,) = stores[number].claim(
                    study.id, str(number), {f"{number}-{i}": two}, {two: i}, lease=60
                )
                won.extend([i] if mine else [])

        threads = [threading.Thread(target=take, args=(number,)) for number in range(len(stores))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert len(won) == len(set(won))
        assert sorted(won) == list(range(len(won)))

    def test_what_was_known_before_is_not_counted_again(self, store: Store, reopen: Reopen) -> None:
        study = opened_study(store)
        two = combination("2.0")
        for _ in range(3):
            record_trial(store, study.id, record("2.0"))
        mine = store.study_trials(study.id)
        mine.look()
        assert mine.last == store.trials(study.id)[-1].sequence
        mine.record([(record("2.0"), "")])
        assert store.claim(study.id, "me", {"a": two}, {two: 0}, lease=60, after=mine.last) == [True]
        # A trial that another command recorded since is not known here.
        record_trial(reopen(), study.id, theirs := record("2.0"))
        assert store.claim(study.id, "me", {"b": two}, {two: 1}, lease=60, after=mine.last) == [False]
        assert [trial.trial_id for trial in mine.look()] == [theirs.trial_id]
        assert store.claim(study.id, "me", {"b": two}, {two: 1}, lease=60, after=mine.last) == [True]
        # What comes while this command records is told with it.
        record_trial(reopen(), study.id, more := record("1.0"))
        own = record("2.0")
        assert [trial.trial_id for trial in mine.record([(own, "")])] == [more.trial_id, own.trial_id]

    def test_trials_of_a_batch_are_those_of_one_after_another(self, store: Store) -> None:
        batch, single = opened_study(store), opened_study(store, digest="e" * 64)
        given = [
            record(version, stdout=out, stderr=err, trial_id="0" * 31 + str(number))
            for number, (version, out, err) in enumerate(
                [("2.0", "same", ""), ("1.0", "same", "same"), ("2.0", "", ""), ("1.0", "x" * 50_000, "y")]
            )
        ]
        keyed = [(one, str(i)) for i, one in enumerate(given)]
        trials = store.study_trials(batch.id)
        assert len(trials.record([*keyed[:2]])) == 2
        # What is there already stays, and its neighbours are stored all the same.
        assert len(trials.record(keyed)) == 2
        for one, key in keyed:
            other = dataclasses.replace(one, trial_id="f" + one.trial_id[1:])
            assert record_trial(store, single.id, other, trial_key=key)
        for one, twin in zip(store.trials(batch.id), store.trials(single.id), strict=True):
            alike = {"trial_id": "", "study_id": "", "sequence": 0, "recorded_at": one.recorded_at}
            assert dataclasses.replace(one, **alike) == dataclasses.replace(twin, **alike)
            assert logs_of(store, one.trial_id) == logs_of(store, twin.trial_id)
        whole = store.trial(given[3].trial_id)
        assert whole is not None
        assert (whole.record.stdout, whole.record.stderr) == ("x" * 50_000, "y")

    # -- trials of other studies ---------------------------------------------------------------------------

    def test_trials_of_other_studies_count_where_they_are_reused(self, store: Store, reopen: Reopen) -> None:
        old, new = opened_study(store), opened_study(store, "another")
        here, there = Machine("x86_64", "H100", "570.1"), Machine("x86_64", "A100", "570.1")
        plan = [
            *[(Outcome.PASS, "k", here)] * 3,
            (Outcome.CRASH, "k", here),
            (Outcome.WORKER_LOST, "k", here),
            (Outcome.CRASH, "k", there),
            (Outcome.CRASH, "other", here),
            (Outcome.PASS, "", here),
        ]
        for outcome, key, machine in plan:
            signed = signature("crash:SIGSEGV") if outcome is Outcome.CRASH else ""
            record_trial(
                store, old.id, record("2.0", outcome, machine=machine, signature=signed), trial_key=key
            )
        two = combination("2.0")
        trials = store.study_trials(new.id)
        taken = trials.reuse({"k": two, "unknown": combination("1.0")}, [here])
        assert [trial.evidence for trial in taken] == ["good", "good", "good", "bad"]
        assert all(trial.machine == here and trial.reused and trial.study_id == old.id for trial in taken)
        assert trials.reuse({"k": two}, [here]) == []
        assert reopen().study_trials(new.id).reuse({"k": two}, [here]) == []
        assert store.study_trials(old.id).reuse({"k": two}, [here]) == []
        known = reopen().trials(new.id)
        assert known == taken
        counts = counts_of(known)[two]
        assert (counts.good, counts.bad) == (3, 1)
        (group,) = failures_of(known)
        assert (group.trials, group.signature) == (1, signature("crash:SIGSEGV"))
        assert environments_of(known) == 1
        (origin,) = store.origins(new.id)
        assert (origin.study_id, origin.user, origin.host, origin.trials) == (old.id, "somebody", "here", 4)
        assert machines_of(store.trials(old.id)) == [there, here]
        assert machines_of(known) == []
        # In the study that measured them they count once, as before.
        assert counts_of(store.trials(old.id))[two].counted == 7

    def test_a_study_may_have_more_combinations_than_a_query_has_parameters(self, store: Store) -> None:
        old, new = opened_study(store), opened_study(store, "another")
        here = Machine("x86_64")
        for key in ("k69999", "k0"):
            record_trial(store, old.id, record("2.0", Outcome.PASS, machine=here), trial_key=key)
        keys = {f"k{number}": combination("2.0") for number in range(70_000)}
        taken = store.study_trials(new.id).reuse(keys, [here])
        recorded = [trial.trial_id for trial in store.trials(old.id)]
        assert [trial.trial_id for trial in taken] == recorded

    def test_what_a_trial_said_elsewhere_may_mean_something_else_here(self, store: Store) -> None:
        old = opened_study(store)
        new = opened_study(store, "another", target=Target(output=("^boom$",)))
        here = Machine("x86_64")
        for text_ in ("boom", "crack"):
            one = record("2.0", Outcome.CRASH, machine=here, stderr=text_)
            record_trial(store, old.id, one, trial_key="k")
        store.study_trials(new.id).reuse({"k": combination("1.0")}, [here])
        said = [(trial.evidence, trial.combination) for trial in store.trials(new.id)]
        assert said == [(Evidence.BAD, combination("1.0")), (Evidence.OTHER, combination("1.0"))]
        assert [trial.evidence for trial in store.trials(old.id)] == ["bad", "bad"]

    def test_a_fresh_study_begins_anew(self, store: Store) -> None:
        first = store.open_study(definition())
        fresh = store.open_study(definition(fresh=True))
        assert fresh.id != first.id
        assert fresh.definition.fresh
        # Without the flag the newest goes on, and stays fresh.
        again = store.open_study(definition())
        assert (again.id, again.definition.fresh) == (fresh.id, True)

    # -- artefacts -----------------------------------------------------------------------------------------

    def test_artefacts_come_back_and_equal_ones_are_stored_once(self, store: Store, reopen: Reopen) -> None:
        study = opened_study(store)
        first, second = record(stdout="same"), record(stdout="same", stderr="more")
        for one in (first, second):
            record_trial(store, study.id, one)
        assert logs_of(reopen(), first.trial_id) == ("same", "", "")
        assert logs_of(store, second.trial_id) == ("same", "more", "")
        with store.reading() as session:
            assert len(session.exec(select_rows(BlobRow)).all()) == 2
        assert store.trial("gone") is None

    def test_the_collector_never_drops_what_a_verdict_cites(self, store: Store) -> None:
        study, open_one = opened_study(store), opened_study(store, "open")
        chance = random.Random(7)

        def add(version: str, outcome: Outcome, where: str = "") -> str:
            text = chance.randbytes(20_000).hex()
            signed = "" if outcome is Outcome.PASS else signature(str(outcome))
            one = record(version, outcome, signature=signed, stdout=text, stderr="always the same")
            record_trial(store, where or study.id, one)
            return one.trial_id

        cited = {
            add("1.0", Outcome.PASS),
            add("2.0", Outcome.CRASH),
            add("2.0", Outcome.CUDA_OOM),
        }
        others = {add("2.0", Outcome.CRASH) for _ in range(4)}
        others |= {add("1.0", Outcome.PASS) for _ in range(4)}
        others |= {add("2.0", Outcome.CRASH, open_one.id)}
        verdict = VerdictDocument(
            status="confirmed", first_bad={"orjson": "2.0"}, last_good={"orjson": "1.0"}
        )
        store.update_study(study.id, "finished", verdict)
        assert not store.logs_beyond_limit()
        counts = counts_of(store.trials(study.id))
        dry = store.collect(0, dry=True)
        assert dry.before > 0
        assert store.collect(dry.before, dry=True).logs == 0
        done = store.collect(0)
        assert (done.logs, done.after) == (len(others), done.cited)
        assert (dry.logs, dry.after) == (done.logs, done.after)
        for trial_id in cited | others:
            found = store.trial(trial_id)
            assert found is not None
            assert found.collected == (trial_id in others)
            assert bool(found.record.stdout) == (trial_id in cited)
            assert found.record.stderr == "always the same"
        assert counts_of(store.trials(study.id)) == counts
        assert store.logs_beyond_limit()
        assert store.collect().limit == 0

    def test_others_write_while_the_collector_chooses_and_what_they_cite_stays(
        self, store: Store, reopen: Reopen, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ended, going, chance = opened_study(store), opened_study(store, "going"), random.Random(3)

        def add(study_id: str, version: str, outcome: Outcome) -> TrialRecord:
            one = record(version, outcome, stdout=chance.randbytes(5000).hex())
            record_trial(store, study_id, one)
            return one

        add(ended.id, "2.0", Outcome.CRASH)
        old, printed_again = (add(ended.id, "2.0", Outcome.CRASH) for _ in range(2))
        now_cited = [add(going.id, "2.0", Outcome.CRASH), add(going.id, "1.0", Outcome.PASS)]
        verdict = VerdictDocument(
            status="confirmed", first_bad={"orjson": "2.0"}, last_good={"orjson": "1.0"}
        )
        store.update_study(ended.id, "finished", verdict)
        # Whoever writes now waits a tenth of a second, and not a minute.
        monkeypatch.setattr(backend, "BUSY_SECONDS", 0.1)
        other, trials_of = reopen(), Store.trials
        writing = iter([True])

        def meanwhile(mine: Store, study_id: str) -> list[StoredTrial]:
            if mine is store and next(writing, False):
                other.update_study(going.id, "finished", verdict)
                record_trial(other, ended.id, record(stdout=printed_again.stdout))
            return trials_of(mine, study_id)

        monkeypatch.setattr(Store, "trials", meanwhile)
        done = store.collect(0)
        assert next(writing, False) is False
        for one in (old, printed_again, *now_cited):
            found = store.trial(one.trial_id)
            assert found is not None
            assert found.collected == (one is old)
        assert (done.logs, done.after) == (1, store.collect(dry=True).before)

    def test_the_collector_never_drops_a_file_of_a_study(self, store: Store) -> None:
        file = StudyFile("config.txt", b"a script may print this\n", executable=False)
        study = opened_study(store, files=(file,))
        record_trial(store, study.id, record("2.0", Outcome.CRASH, stdout=file.content.decode()))
        store.collect(0)
        assert store.files(study.id) == ((file,), ())

    def test_the_oldest_logs_go_first(self, store: Store) -> None:
        study = opened_study(store)
        given = [record(stdout=random.Random(i).randbytes(5000).hex()) for i in range(6)]
        for one in given:
            record_trial(store, study.id, one)
        before = store.collect(dry=True).before
        store.collect(before // 2 + 500)
        kept = [bool(found.record.stdout) for one in given if (found := store.trial(one.trial_id))]
        assert kept == [False, False, False, True, True, True]
