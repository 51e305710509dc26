"""When a runner of trials goes on, waits, ends, or fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from datetime import UTC, datetime
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_env.cluster.protocol import (
    Completion,
    PrefixReady,
    PrefixRequest,
    TrialCompleted,
    TrialLost,
    TrialRequest,
)
from bisect_env.engine import runner as engine_runner
from bisect_env.engine.locking import Locking
from bisect_env.engine.opening import Expansion, open_study
from bisect_env.engine.runner import GRACE_SECONDS, IDLE_ROUNDS, TrialRunner, grace
from bisect_env.engine.series import Conditions, RunSetup
from bisect_env.engine.session import Session
from bisect_env.environments.lock import Lock
from bisect_env.environments.provider import Environments
from bisect_env.matrix.grid import AxisKind, Direction, Grid, GridAxis, Index
from bisect_env.matrix.load import load_matrix
from bisect_env.storage.store import Store
from bisect_env.trials.records import Machine, Outcome
from tests.engine.studies import PYTHON, Studies
from tests.storage.samples import lock, record

A: Index = (0, 0)
B: Index = (0, 1)


class Reopened:
    """A plan that is finished once A has passed, and wants B after all if A then fails."""

    def __init__(self) -> None:
        self.told: list[tuple[Index, bool]] = []

    @property
    def trials(self) -> int:
        return len(self.told)

    @property
    def finished(self) -> bool:
        return bool(self.told) and ((A, True) not in self.told or (B, False) in self.told)

    def ask(
        self,
        count: int,
        *,
        pending: Mapping[Index, int] | None = None,
        build_cost: Mapping[Index, float] | None = None,
        only: Collection[Index] | None = None,
        worth: float = 0.0,
    ) -> list[Index]:
        wanted = [B] if (A, True) in self.told else [A, A]
        return wanted[sum((pending or {}).values()) : count]

    def foresee(
        self, pending: Mapping[Index, int], build_cost: Mapping[Index, float] | None = None
    ) -> list[Index]:
        return [B]

    def tell(self, index: Index, *, hit: bool) -> None:
        self.told.append((index, hit))

    def set_aside(self, index: Index) -> None:
        raise AssertionError(index)


class LateHost:
    """An executor that answers the second trial, and the build of B, only while trials are being ended."""

    slots = 2

    def __init__(self, locks: Mapping[Index, Lock]) -> None:
        self._b = locks[B].content_hash
        self.answers: list[Completion] = []
        self.late: list[Completion] = []
        self.submitted: list[str] = []
        self.waits = 0

    def machines(self) -> frozenset[Machine]:
        return frozenset()

    def submit(self, request: TrialRequest) -> None:
        spec = request.spec
        self.submitted.append(spec.trial_id)
        is_late = len(self.submitted) == 2
        told = record(
            outcome=Outcome.CRASH if is_late else Outcome.PASS,
            trial_id=spec.trial_id,
            combination=spec.combination,
            lock_hash=spec.lock_hash,
        )
        (self.late if is_late else self.answers).append(TrialCompleted(told))

    def prepare(self, request: PrefixRequest) -> None:
        lock_hash = request.lock.content_hash
        is_late = lock_hash == self._b and not request.look
        (self.late if is_late else self.answers).append(PrefixReady(lock_hash, 1.0))

    def wait(self, timeout: float | None = None) -> list[Completion]:
        self.waits += 1
        assert self.waits < 1000, "it spins"
        found, self.answers = self.answers, []
        if not found and (self.late or timeout is None):
            time.sleep(min(0.05, timeout or 0.0))
        return found

    def wake(self) -> None:
        pass

    def cancel(self) -> None:
        self.answers, self.late = [*self.answers, *self.late], []

    def close(self) -> None:
        pass


def ran(
    studies: Studies,
    make_plan: Callable[[], Reopened],
    *,
    claims: bool = False,
    kind: type[TrialRunner] = TrialRunner,
    host: Callable[[Mapping[Index, Lock]], LateHost] = LateHost,
) -> TrialRunner:
    """Run a plan of A and B, where another command claims a trial of A if `claims` is set."""
    matrix = load_matrix(studies.matrix("pass"))
    locks = {A: lock("1.0"), B: lock("2.0")}
    axes = (("python", AxisKind.PACKAGE, (PYTHON,)), ("level", AxisKind.VALUE, ("0", "1")))
    grid = Grid(tuple(GridAxis(*axis, Direction.REGRESSION) for axis in axes))
    executor = host(locks)
    provider = Environments(studies.folder / "cache")
    with Store.open(str(studies.db)) as store:
        study = open_study(store, Expansion(matrix, grid, datetime.now(UTC), None))
        locking = Locking(matrix, grid, provider, known=locks, is_whole=False)
        store.save_locks(locks.values())
        store.save_combinations(study.id, [locking.prepared.state(index) for index in locks])
        if claims:
            wanted = {"another": grid.combination(A)}
            store.claim(study.id, "another command", wanted, {}, lease=60.0)
        session = Session(store, provider, lambda: executor)
        with closing(locking):
            setup = RunSetup(matrix, make_plan, session, study.id, lambda _index: Conditions(""))
            runner = kind(setup, locking)
            runner.replay()
            runner.run()
    return runner


@pytest.mark.integration
def test_a_late_failure_that_wants_an_environment_answered_meanwhile_is_followed(studies: Studies) -> None:
    runner = ran(studies, Reopened)
    assert cast("Reopened", runner.plan).told == [(A, False), (A, True), (B, False)]
    assert runner.state.building == set()
    assert runner.state.running == {}


class Stubborn(Reopened):
    """A plan that says that it wants trials, and never lets one begin. It is finished after 20 requests."""

    asked = 0

    @property
    def finished(self) -> bool:
        return self.asked >= 20

    def ask(
        self,
        count: int,
        *,
        pending: Mapping[Index, int] | None = None,
        build_cost: Mapping[Index, float] | None = None,
        only: Collection[Index] | None = None,
        worth: float = 0.0,
    ) -> list[Index]:
        if pending is not None:
            return []
        self.asked += 1
        return [A]

    def foresee(
        self, _pending: Mapping[Index, int], _build_cost: Mapping[Index, float] | None = None
    ) -> list[Index]:
        return []


@pytest.mark.integration
def test_a_runner_for_which_nothing_happens_fails_within_a_few_rounds(
    studies: Studies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_runner, "WAIT_SECONDS", 0.01)
    plans: list[Stubborn] = []

    def make_plan() -> Stubborn:
        plans.append(Stubborn())
        return plans[-1]

    with pytest.raises(RuntimeError, match="cannot be begun"):
        ran(studies, make_plan)
    assert plans[-1].asked == IDLE_ROUNDS + 1


@pytest.mark.integration
def test_a_runner_waits_without_end_for_trials_that_other_commands_run(
    studies: Studies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_runner, "WAIT_SECONDS", 0.01)
    assert cast("Stubborn", ran(studies, Stubborn, claims=True).plan).asked == 20


@given(st.none() | st.floats(0, 1e6))
def test_running_trials_get_a_moment_to_end_unless_all_of_them_are_wanted(seconds: float | None) -> None:
    assert 0 <= grace(seconds, waits=False) <= GRACE_SECONDS
    assert grace(seconds, waits=True) == float("inf")


class OncePassed(Reopened):
    """A plan that tries A twice at the same time, and is finished once one trial has ended."""

    @property
    def finished(self) -> bool:
        return bool(self.told)


class HangingHost(LateHost):
    """An executor whose second trial hangs: it ends a second after it began, unless it is cancelled."""

    hangs_until = 0.0

    def submit(self, request: TrialRequest) -> None:
        super().submit(request)
        self.hangs_until = time.monotonic() + 1.0

    def wait(self, timeout: float | None = None) -> list[Completion]:
        if self.late and time.monotonic() > self.hangs_until:
            self.answers, self.late = [*self.answers, *self.late], []
        return super().wait(timeout)

    def cancel(self) -> None:
        ids = [one.record.trial_id for one in self.late if isinstance(one, TrialCompleted)]
        self.answers += [TrialLost(trial_id, "cancelled") for trial_id in ids]
        self.late = []


class CallsBad(TrialRunner):
    """A runner whose plan expects that A fails."""

    def _calls_bad(self, index: Index) -> bool:
        return True


class CallsGood(TrialRunner):
    """A runner whose plan expects that A passes."""

    def _calls_bad(self, index: Index) -> bool:
        return False


@pytest.mark.integration
@pytest.mark.parametrize(("kind", "hits"), [(CallsGood, [False, True]), (CallsBad, [False])])
def test_a_hang_of_what_is_called_good_is_waited_for(
    studies: Studies, kind: type[TrialRunner], hits: list[bool]
) -> None:
    """Cancelled, it would be no evidence, and A would have passed in every trial."""
    runner = ran(studies, OncePassed, kind=kind, host=HangingHost)
    assert [hit for _, hit in cast(Reopened, runner.plan).told] == hits
