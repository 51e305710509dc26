"""Where prefixes are, and who has to make them yet."""

from __future__ import annotations

import contextlib
import time
from types import SimpleNamespace

from bisect_env.cluster.base import ATTEMPTS, DaskExecutor, Whereabouts, outcome
from bisect_env.cluster.protocol import BuildFailed, Completion, PrefixReady, WorkerOffer
from tests.cluster.executor_contract import build, prepared

HASH = prepared().lock.content_hash
OLD = [WorkerOffer("tcp://a:1", "a", 1), WorkerOffer("tcp://a:2", "a", 1)]
NEW = [WorkerOffer("tcp://b:1", "b", 1), WorkerOffer("tcp://b:2", "b", 1)]
READY = PrefixReady(HASH)
FAILED = BuildFailed("", HASH, "too old", False)


def known() -> Whereabouts:
    known = Whereabouts()
    known.asked(prepared(), OLD)
    known.answered(HASH, {"a": READY})
    return known


def test_without_prefixes_nobody_is_ruled_out() -> None:
    nothing = Whereabouts()
    assert nothing.fit(HASH, OLD + NEW) is None
    assert nothing.at_work(OLD + NEW) == OLD + NEW
    assert nothing.late([HASH], OLD + NEW) == []


def test_a_host_that_joins_makes_what_is_in_use_once() -> None:
    where = known()
    assert where.late([HASH], OLD) == []
    assert where.fit(HASH, OLD) is None, "all have it"
    assert where.late(["another"], OLD + NEW) == []
    ((request, builders),) = where.late([HASH], OLD + NEW)
    assert request == prepared()
    assert [offer.address for offer in builders] == ["tcp://b:1"], "one builds for all of its host"
    assert where.late([HASH], OLD + NEW) == [], "it is under way"
    assert where.fit(HASH, OLD + NEW) == ["tcp://a:1", "tcp://a:2"]
    assert where.at_work(OLD + NEW) == OLD
    where.answered(HASH, {"b": READY})
    assert where.fit(HASH, OLD + NEW) is None
    assert where.at_work(OLD + NEW) == OLD + NEW


def test_where_it_cannot_be_made_it_is_not_tried_again_and_where_it_was_lost_it_is() -> None:
    where = known()
    where.late([HASH], OLD + NEW)
    where.answered(HASH, {"b": FAILED})
    assert where.late([HASH], OLD + NEW) == []
    assert where.fit(HASH, OLD + NEW) == ["tcp://a:1", "tcp://a:2"]
    other = known()
    other.late([HASH], OLD + NEW)
    other.answered(HASH, {"b": OSError("gone")})
    assert other.late([HASH], OLD + NEW) != []


def test_when_all_that_have_it_are_gone_anybody_may_try() -> None:
    assert known().fit(HASH, NEW) is None
    assert known().at_work(NEW) == NEW


def test_what_may_pass_is_tried_again_a_few_times_on_a_host_while_others_have_it() -> None:
    where = known()
    for _ in range(ATTEMPTS):
        ((_, builders),) = where.late([HASH], OLD + NEW)
        assert [offer.address for offer in builders] == ["tcp://b:1"]
        where.answered(HASH, {"b": BuildFailed("", HASH, "timeout", True)})
    assert where.late([HASH], OLD + NEW) == []


def test_a_host_that_cannot_make_what_another_has_is_told_once() -> None:
    lacking = BuildFailed("", HASH, "the build failed (this host has no gcc):\nlog\nof it", True)
    answers = {"a": PrefixReady(HASH, 3.0, ("mended",)), "b": lacking}
    made = outcome(HASH, answers)
    assert isinstance(made, PrefixReady)
    assert (made.build_seconds, made.notes[0]) == (3.0, "mended")
    assert made.notes[1].startswith(
        "on b an environment cannot be made: the build failed (this host has no gcc); its trials run else"
    )
    assert outcome(HASH, answers, known={"b"}) == PrefixReady(HASH, 3.0, ("mended",))


def test_a_build_whose_workers_cannot_be_listed_is_answered() -> None:
    def unreadable(**_: object) -> None:
        raise ValueError("not a scheduler's answer")

    executor = DaskExecutor(build)
    executor.client = SimpleNamespace(status="running", scheduler_info=unreadable)
    executor.prepare(prepared())
    deadline = time.monotonic() + 10
    answers: list[Completion] = []
    while not answers and time.monotonic() < deadline:
        with contextlib.suppress(ValueError):
            answers += executor.wait(0.1)
    (answer,) = answers
    assert isinstance(answer, BuildFailed)
    assert answer.transient
