"""Where prefixes are, and who has to make them yet."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from bisect_env.cluster.base import ATTEMPTS, DaskExecutor, PrefixHosts, build_result
from bisect_env.cluster.pool import PoolExecutor
from bisect_env.cluster.protocol import BuildFailed, Completion, PrefixReady, WorkerOffer
from bisect_env.environments.lock import Lock
from bisect_env.environments.prefix import Prefix
from tests.cluster.executor_contract import build, prepared

HASH = prepared().lock.content_hash
OLD = [WorkerOffer("tcp://a:1", "a", 1), WorkerOffer("tcp://a:2", "a", 1)]
NEW = [WorkerOffer("tcp://b:1", "b", 1), WorkerOffer("tcp://b:2", "b", 1)]
READY = PrefixReady(HASH)
FAILED = BuildFailed("", HASH, "too old", False)


def known() -> PrefixHosts:
    known = PrefixHosts()
    known.note_request(prepared(), OLD)
    known.note_answers(prepared(), {"a": READY})
    return known


def test_without_prefixes_nobody_is_ruled_out() -> None:
    nothing = PrefixHosts()
    assert nothing.workers_with(HASH, OLD + NEW) is None
    assert nothing.offers_with_prefixes(OLD + NEW) == OLD + NEW
    assert nothing.builds_on_new_hosts([HASH], OLD + NEW) == []


def test_a_host_that_joins_makes_what_is_in_use_once() -> None:
    where = known()
    assert where.builds_on_new_hosts([HASH], OLD) == []
    assert where.workers_with(HASH, OLD) is None, "all have it"
    assert where.builds_on_new_hosts(["another"], OLD + NEW) == []
    ((request, builders),) = where.builds_on_new_hosts([HASH], OLD + NEW)
    assert request == prepared()
    assert [offer.address for offer in builders] == ["tcp://b:1"], "one builds for all of its host"
    assert where.builds_on_new_hosts([HASH], OLD + NEW) == [], "it is under way"
    assert where.workers_with(HASH, OLD + NEW) == ["tcp://a:1", "tcp://a:2"]
    assert where.offers_with_prefixes(OLD + NEW) == OLD
    where.note_answers(prepared(), {"b": READY})
    assert where.workers_with(HASH, OLD + NEW) is None
    assert where.offers_with_prefixes(OLD + NEW) == OLD + NEW


def test_where_it_cannot_be_made_it_is_not_tried_again_and_where_it_was_lost_it_is() -> None:
    where = known()
    where.builds_on_new_hosts([HASH], OLD + NEW)
    where.note_answers(prepared(), {"b": FAILED})
    assert where.builds_on_new_hosts([HASH], OLD + NEW) == []
    assert where.workers_with(HASH, OLD + NEW) == ["tcp://a:1", "tcp://a:2"]
    other = known()
    other.builds_on_new_hosts([HASH], OLD + NEW)
    other.note_answers(prepared(), {"b": OSError("gone")})
    assert other.builds_on_new_hosts([HASH], OLD + NEW) != []


def test_a_look_at_an_environment_builds_none_and_does_not_count_as_a_build() -> None:
    where = known()
    where.builds_on_new_hosts([HASH], OLD + NEW)
    where.note_answers(prepared(), {"b": FAILED})
    look = replace(prepared(), look=True)
    # A host without the environment says that all is well.
    where.note_request(look, OLD + NEW)
    where.note_answers(look, {"a": READY, "b": READY})
    assert where.workers_with(HASH, OLD + NEW) == ["tcp://a:1", "tcp://a:2"]
    third = WorkerOffer("tcp://c:1", "c", 1)
    ((request, builders),) = where.builds_on_new_hosts([HASH], [*OLD, *NEW, third])
    assert not request.look, "a host that joins builds"
    assert builders == [third]


def test_when_all_that_have_it_are_gone_anybody_may_try() -> None:
    assert known().workers_with(HASH, NEW) is None
    assert known().offers_with_prefixes(NEW) == NEW


def test_what_may_pass_is_tried_again_a_few_times_on_a_host_while_others_have_it() -> None:
    where = known()
    for _ in range(ATTEMPTS):
        ((_, builders),) = where.builds_on_new_hosts([HASH], OLD + NEW)
        assert [offer.address for offer in builders] == ["tcp://b:1"]
        where.note_answers(prepared(), {"b": BuildFailed("", HASH, "timeout", True)})
    assert where.builds_on_new_hosts([HASH], OLD + NEW) == []


def test_a_host_that_cannot_make_what_another_has_is_told_once() -> None:
    lacking = BuildFailed("", HASH, "the build failed (this host has no gcc):\nlog\nof it", True)
    answers = {"a": PrefixReady(HASH, 3.0, ("mended",)), "b": lacking}
    made = build_result(HASH, answers)
    assert isinstance(made, PrefixReady)
    assert (made.build_seconds, made.notes[0]) == (3.0, "mended")
    assert made.notes[1].startswith(
        "on b an environment cannot be made: the build failed (this host has no gcc); its trials run else"
    )
    assert build_result(HASH, answers, known={"b"}) == PrefixReady(HASH, 3.0, ("mended",))


def client(identity: Callable[..., object]) -> SimpleNamespace:
    """Return a client of a scheduler that gives the answers of `identity`."""
    return SimpleNamespace(
        status="running",
        sync=lambda call, **given: call(**given),
        scheduler=SimpleNamespace(identity=identity),
        close=lambda **_: None,
    )


def test_a_build_whose_workers_cannot_be_listed_is_answered() -> None:
    def unreadable(**_: object) -> None:
        raise ValueError("not a scheduler's answer")

    executor = DaskExecutor(build)
    executor.client = client(unreadable)
    executor.prepare(prepared())
    deadline = time.monotonic() + 10
    answers: list[Completion] = []
    while not answers and time.monotonic() < deadline:
        with contextlib.suppress(ValueError):
            answers += executor.wait(0.1)
    (answer,) = answers
    assert isinstance(answer, BuildFailed)
    assert answer.transient


def test_without_workers_asking_for_a_build_returns_and_closing_ends_the_wait() -> None:
    executor = DaskExecutor(build)
    executor.client = client(lambda **_: {"workers": {}})
    before = set(threading.enumerate())
    caller = threading.Thread(target=executor.prepare, args=(prepared(),), daemon=True)
    caller.start()
    # Far less than `NO_WORKERS_GRACE`, for which the build itself waits.
    caller.join(20)
    assert not caller.is_alive()
    waiting = set(threading.enumerate()) - before
    assert waiting, "the build waits for a worker"
    assert executor.wait(0.1) == []
    executor.close()
    for thread in waiting:
        thread.join(20)
        assert not thread.is_alive()


def test_a_look_does_not_wait_for_builds_that_are_queued() -> None:
    may_end = threading.Event()

    def slow(lock: Lock, *, allow_source: bool | frozenset[str], existing: bool = False) -> Prefix:
        assert existing or may_end.wait(60)
        return Prefix(Path(sys.prefix), Path(sys.executable))

    with closing(PoolExecutor(slow, slots=1)) as executor:
        executor.prepare(prepared("one"))
        executor.prepare(prepared("another"))
        look = replace(prepared(), look=True)
        executor.prepare(look)
        (first,) = executor.wait(30)
        may_end.set()
        assert first == PrefixReady(look.lock.content_hash)


def test_few_threads_look_at_many_environments() -> None:
    """A table may have more environments than a host allows threads."""
    held = threading.Event()

    def wait_and_build(lock: Lock, **_: object) -> Prefix:
        held.wait(20.0)
        return Prefix(Path(sys.prefix), Path(sys.executable))

    before = threading.active_count()
    with closing(PoolExecutor(wait_and_build, 2)) as executor:
        for _ in range(300):
            executor.prepare(replace(prepared(), look=True))
        assert threading.active_count() <= before + 2 + 2, "two for trials and two for looks at most"
        held.set()
        answers: list[Completion] = []
        while len(answers) < 300:
            answers += executor.wait(20.0)
        assert all(isinstance(answer, PrefixReady) for answer in answers)
