"""What every executor promises, tested with real trials; each executor's test class inherits it."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil
import pytest

from bisect_env.cluster.protocol import (
    BuildFailed,
    Completion,
    Executor,
    PrefixReady,
    PrefixRequest,
    TrialCompleted,
    TrialLost,
    TrialRequest,
)
from bisect_env.environments.lock import Lock, UnbuildableError
from bisect_env.environments.prefix import Prefix
from bisect_env.errors import InfrastructureError, InterpreterNotFoundError
from bisect_env.trials.records import Outcome
from bisect_env.trials.workdir import TRIAL_ID
from tests.trials.trial_support import make_spec

PATIENCE = 60.0
"""Seconds after which a test gives up: a guard against hanging, not a measure."""


def build(lock: Lock, *, allow_source: bool, existing: bool = False) -> Prefix:
    """Takes this interpreter's own prefix for every lock, except where the lock's text asks for a failure."""
    if lock.text == "told":
        raise UnbuildableError(f"allow_source is {allow_source}", False)
    if lock.text == "unbuildable":
        raise UnbuildableError("no wheel fits", False)
    if lock.text == "network":
        raise UnbuildableError("cannot reach the index", True)
    if lock.text == "interpreter":
        raise InterpreterNotFoundError("there is no Python 2.1")
    if lock.text == "cache":
        raise InfrastructureError("the cache cannot be written")
    if lock.text.startswith("until "):
        wait_until(Path(lock.text.removeprefix("until ")).exists)
    if lock.text == "defect":
        raise AssertionError("a defect in the builder")
    return Prefix(Path(sys.prefix), Path(sys.executable), 1.5 if allow_source else 0.0)


def request(code: str = "pass", lock_text: str = "", **changes: object) -> TrialRequest:
    allow_source = bool(changes.pop("allow_source", False))
    spec = make_spec(code, **{"timeout": 60.0, **changes})
    return TrialRequest(spec, Lock("0" * 64, "3.11", "linux-64", (), lock_text), allow_source)


def until(path: Path) -> str:
    """A script that ends when a file is there."""
    return f"import os, time\nwhile not os.path.exists({str(path)!r}): time.sleep(0.02)"


def prepared(lock_text: str = "", *, allow_source: bool = False, existing: bool = False) -> PrefixRequest:
    return PrefixRequest(Lock("0" * 64, "3.11", "linux-64", (), lock_text), allow_source)


def collect(executor: Executor, count: int) -> list[Completion]:
    answers: list[Completion] = []
    deadline = time.monotonic() + PATIENCE
    while len(answers) < count and time.monotonic() < deadline:
        answers += executor.wait(1.0)
    assert len(answers) == count
    return answers


def trial_id(answer: Completion) -> str:
    assert not isinstance(answer, PrefixReady)
    return answer.record.trial_id if isinstance(answer, TrialCompleted) else answer.trial_id


def processes_of(trial: str) -> list[psutil.Process]:
    """Living processes of a trial below this process, which starts or is an ancestor of every worker here."""
    return with_mark(trial, psutil.Process().children(recursive=True))


def left_of(trial: str) -> list[psutil.Process]:
    """Living processes of a trial anywhere: what a killed worker leaves is below no process of ours.

    Every process of the host is looked at: for what has to be gone, not for what is waited for.
    """
    return with_mark(trial, psutil.process_iter())


def with_mark(trial: str, processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(TRIAL_ID) == trial and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def wait_until(
    condition: Callable[[], object], seconds: float = PATIENCE, said: Callable[[], str] = lambda: ""
) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain\n{said()}"
        time.sleep(0.02)


class ExecutorContract:
    """Subclasses give `executor`, with two slots."""

    @pytest.fixture
    def executor(self) -> Iterator[Executor]:
        raise NotImplementedError

    def test_every_trial_is_answered_exactly_once(self, executor: Executor) -> None:
        codes = {
            "pass": Outcome.PASS,
            "import sys; sys.exit(3)": Outcome.EXIT_FAIL,
            "import os; os.abort()": Outcome.CRASH,
            "import gone": Outcome.IMPORT_ERROR,
        }
        expected = {}
        for code, outcome in codes.items():
            for _ in range(4):
                one = request(code)
                expected[one.spec.trial_id] = outcome
                executor.submit(one)
        answers = collect(executor, len(expected))
        assert all(isinstance(answer, TrialCompleted) for answer in answers), answers
        seen = {a.record.trial_id: a.record.outcome for a in answers if isinstance(a, TrialCompleted)}
        assert seen == expected
        assert executor.wait(0.2) == []

    def test_equal_trials_each_run(self, executor: Executor, tmp_path: Path) -> None:
        code = f"import os; open(os.path.join({str(tmp_path)!r}, str(os.getpid())), 'w').close()"
        equal = [request(code) for _ in range(5)]
        for one in equal:
            executor.submit(one)
        ids = [trial_id(answer) for answer in collect(executor, 5)]
        assert sorted(ids) == sorted(one.spec.trial_id for one in equal)
        assert len(list(tmp_path.iterdir())) == 5

    def test_trials_of_one_combination_run_at_the_same_time(self, executor: Executor, tmp_path: Path) -> None:
        assert executor.slots == 2
        meet = f"""
            import os, time
            place = {str(tmp_path)!r}
            open(os.path.join(place, str(os.getpid())), "w").close()
            while len(os.listdir(place)) < 2: time.sleep(0.01)
        """
        for _ in range(2):
            executor.submit(request(meet))
        answers = collect(executor, 2)
        assert {a.record.outcome for a in answers if isinstance(a, TrialCompleted)} == {Outcome.PASS}

    @pytest.mark.parametrize(
        ("text", "transient", "message"),
        [
            ("unbuildable", False, "no wheel fits"),
            ("network", True, "cannot reach the index"),
            ("interpreter", False, "there is no Python 2.1"),
            ("cache", True, "the cache cannot be written"),
        ],
    )
    def test_builds_that_fail(self, executor: Executor, text: str, transient: bool, message: str) -> None:
        one = request(lock_text=text)
        executor.submit(one)
        assert collect(executor, 1) == [
            BuildFailed(one.spec.trial_id, one.lock.content_hash, message, transient)
        ]

    def test_a_defect_while_building_is_a_loud_harness_error(self, executor: Executor) -> None:
        executor.submit(request(lock_text="defect"))
        (answer,) = collect(executor, 1)
        assert isinstance(answer, TrialCompleted)
        assert answer.record.outcome is Outcome.HARNESS_ERROR
        assert "a defect in the builder" in answer.record.stack

    def test_what_the_builder_was_told_and_says_arrives(self, executor: Executor) -> None:
        executor.submit(request(lock_text="told", allow_source=True))
        (answer,) = collect(executor, 1)
        assert isinstance(answer, BuildFailed)
        assert answer.message == "allow_source is True"
        executor.submit(request(allow_source=True))
        (answer,) = collect(executor, 1)
        assert isinstance(answer, TrialCompleted)
        assert answer.record.worker

    def test_what_is_prepared_is_answered_once_for_all_hosts(self, executor: Executor) -> None:
        executor.prepare(prepared(allow_source=True))
        assert collect(executor, 1) == [PrefixReady("0" * 64, 1.5)]
        for text, transient in (("unbuildable", False), ("network", True), ("interpreter", False)):
            executor.prepare(prepared(text))
            (answer,) = collect(executor, 1)
            assert isinstance(answer, BuildFailed)
            assert (answer.trial_id, answer.lock_hash, answer.transient) == ("", "0" * 64, transient)
        # What is no failure but a defect is shown by the first trial, which has a record for it.
        executor.prepare(prepared("defect"))
        assert collect(executor, 1) == [PrefixReady("0" * 64)]
        assert executor.wait(0.2) == []

    def test_a_build_takes_no_place_of_a_trial(self, executor: Executor, tmp_path: Path) -> None:
        built = tmp_path / "built"
        executor.prepare(prepared(f"until {built}"))
        for _ in range(2):
            executor.submit(request())
        first = collect(executor, 2)
        assert all(isinstance(answer, TrialCompleted) for answer in first)
        built.touch()
        assert collect(executor, 1) == [PrefixReady("0" * 64)]
        # Nor do trials hold up a build.
        for _ in range(2):
            executor.submit(request("import time; time.sleep(600)"))
        executor.prepare(prepared())
        assert collect(executor, 1) == [PrefixReady("0" * 64)]
        executor.cancel()
        assert all(isinstance(answer, TrialLost) for answer in collect(executor, 2))

    def test_cancel_ends_running_and_waiting_trials_and_spares_later_ones(self, executor: Executor) -> None:
        requests = [request("import time; time.sleep(600)") for _ in range(5)]
        for one in requests:
            executor.submit(one)
        wait_until(lambda: sum(bool(processes_of(one.spec.trial_id)) for one in requests) == 2)
        executor.cancel()
        answers = collect(executor, 5)
        assert all(isinstance(answer, TrialLost) and "cancelled" in answer.reason for answer in answers)
        assert {trial_id(answer) for answer in answers} == {one.spec.trial_id for one in requests}
        executor.cancel()
        executor.submit(request())
        (later,) = collect(executor, 1)
        assert isinstance(later, TrialCompleted)
        assert later.record.outcome is Outcome.PASS
        wait_until(lambda: not any(left_of(one.spec.trial_id) for one in requests))

    def test_what_has_ended_but_was_not_asked_for_is_answered_by_its_record(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        one = request(f"open({str(tmp_path / 'ran')!r}, 'w')")
        executor.submit(one)
        wait_until((tmp_path / "ran").exists)
        wait_until(lambda: not left_of(one.spec.trial_id))
        time.sleep(0.5)  # the record is made, and lies there
        executor.cancel()
        (answer,) = collect(executor, 1)
        assert isinstance(answer, TrialCompleted)
        assert executor.wait(0.2) == []

    def test_wait_returns_when_its_time_is_over_or_nothing_is_due(self, executor: Executor) -> None:
        assert executor.wait() == []
        one = request("import time; time.sleep(600)")
        executor.submit(one)
        before = time.monotonic()
        assert executor.wait(0.3) == []
        assert 0.25 < time.monotonic() - before < PATIENCE
        assert executor.wait(0.0) == []
        executor.cancel()
        collect(executor, 1)

    def test_trials_that_want_gpus_are_refused_at_once(self, executor: Executor) -> None:
        with pytest.raises(InfrastructureError, match="GPU"):
            executor.submit(request(gpus=1))
        assert executor.wait(0.1) == []

    def test_the_child_sees_nothing_of_its_workers_environment(self, executor: Executor) -> None:
        executor.submit(request("import os; print('\\n'.join(os.environ))"))
        (answer,) = collect(executor, 1)
        assert isinstance(answer, TrialCompleted)
        names = answer.record.stdout.split()
        assert not [n for n in names if n.startswith(("DASK", "MALLOC", "PYTEST")) or "NUM_THREADS" in n]

    def test_the_child_takes_signals_and_cpus_as_the_user_would(self, executor: Executor) -> None:
        code = """
            import os, signal
            print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, len(os.sched_getaffinity(0)))
        """
        executor.submit(request(code))
        (answer,) = collect(executor, 1)
        assert isinstance(answer, TrialCompleted)
        assert answer.record.stdout == f"True {len(os.sched_getaffinity(0))}\n"
