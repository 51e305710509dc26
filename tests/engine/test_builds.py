"""Environments first, and nothing idle meanwhile."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from bisect_env.cluster.base import build_result, one_of_each_host
from bisect_env.cluster.pool import PoolExecutor
from bisect_env.cluster.protocol import (
    BuildFailed,
    PrefixReady,
    WorkerOffer,
)
from bisect_env.engine import events
from bisect_env.environments.lock import Lock, UnbuildableError
from bisect_env.environments.prefix import Prefix
from bisect_env.errors import InfrastructureError, NoEnvironmentError
from tests.engine.studies import CRASH_FROM_SIX, Studies

A, B = "a" * 64, "b" * 64


def test_hosts_build_once_however_many_workers_they_have() -> None:
    offers = [WorkerOffer(f"tcp://{host}:{port}", host, 1) for host in "xy" for port in (3, 1, 2)]
    assert one_of_each_host(offers) == {"tcp://x:1", "tcp://y:1"}
    assert one_of_each_host([]) == set()


def test_what_hosts_say_together() -> None:
    quick, slow = PrefixReady(A, 0.0), PrefixReady(A, 7.0, ("mended",))
    broken, network = BuildFailed("", A, "no wheel", False), BuildFailed("", A, "timeout", True)
    assert build_result(A, {"x": quick, "y": slow}) == PrefixReady(A, 7.0, ("mended",))
    # Where it can be made trials go; where nobody can, what is true of the environment is told.
    (mended, elsewhere) = build_result(A, {"x": network, "y": slow}).notes  # type: ignore[union-attr]
    assert (mended, elsewhere.partition(";")[0]) == ("mended", "on x an environment cannot be made: timeout")
    assert build_result(A, {"x": network, "y": broken}) == broken
    # A host that is lost says nothing as long as another one answers.
    assert build_result(A, {"x": OSError("gone"), "y": slow}) == slow
    lost = build_result(A, {"x": OSError("gone")})
    assert isinstance(lost, BuildFailed)
    assert lost.transient
    assert "gone" in lost.message
    assert isinstance(build_result(A, {}), BuildFailed)


class SlowBuilder:
    """The real builder after a wait, which notes when it works, and fails where it is told to."""

    def __init__(self, seconds: float, fails: dict[int, bool] | None = None) -> None:
        self.seconds = seconds
        self.fails = fails or {}
        self.calls = 0
        self._guard = threading.Lock()
        self.spans: list[tuple[float, float]] = []

    def __call__(
        self, lock: Lock, *, allow_source: bool | frozenset[str] = False, existing: bool = False
    ) -> Prefix:
        import sys

        with self._guard:
            self.calls += 1
            number = self.calls
        started = time.monotonic()
        time.sleep(self.seconds)
        self.spans.append((started, time.monotonic()))
        if number in self.fails:
            raise UnbuildableError("planted", transient=self.fails[number])
        return Prefix(Path(sys.prefix), Path(sys.executable), self.seconds)


@pytest.mark.integration
def test_an_environment_that_breaks_for_a_moment_is_made_again(studies: Studies) -> None:
    builder = SlowBuilder(0.0, fails={1: True, 2: True})
    path = studies.matrix(CRASH_FROM_SIX)
    conclusion = studies.run(path, make_executor=lambda: PoolExecutor(builder, 2))
    assert conclusion.report["verdict"]["first_bad"]["level"] == "6"
    warnings = [event.text for event in studies.events if isinstance(event, events.Warned)]
    assert any("planted" in text and "tried again" in text for text in warnings)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("transient", "error", "says"),
    [
        (False, NoEnvironmentError, "no environment could be built: planted"),
        (True, InfrastructureError, "10 builds in a row failed; the last: building"),
    ],
)
def test_an_environment_that_cannot_be_made(
    studies: Studies, transient: bool, error: type[Exception], says: str
) -> None:
    builder = SlowBuilder(0.0, fails=dict.fromkeys(range(1, 100), transient))
    with pytest.raises(error, match=says):
        studies.run(studies.matrix(CRASH_FROM_SIX), make_executor=lambda: PoolExecutor(builder, 2))
    assert not [event for event in studies.events if isinstance(event, events.TrialStarted)]
    assert builder.calls in (3, 10)
