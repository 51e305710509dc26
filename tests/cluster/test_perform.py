"""What a trial that did not run because of its host is answered with."""

from __future__ import annotations

import sys
from pathlib import Path

from bisect_env.cluster.perform import GpuTrial, GpuUnavailableError, perform
from bisect_env.cluster.protocol import TrialLost
from bisect_env.environments.lock import Lock
from bisect_env.environments.prefix import Prefix
from bisect_env.trials.records import TrialRecord, TrialSpec
from tests.cluster.executor_contract import request


def busy(_spec: TrialSpec, _trial: GpuTrial) -> TrialRecord:
    raise GpuUnavailableError("every GPU is used by others")


def test_what_lies_with_the_host_is_not_lost_under_the_trial() -> None:
    def build(lock: Lock, *, allow_source: bool | frozenset[str] = False, existing: bool = False) -> Prefix:
        return Prefix(Path(sys.prefix), Path(sys.executable))

    lost = perform(request(), build=build, cancelled=lambda: False, worker="w", lend=busy)
    assert isinstance(lost, TrialLost)
    assert "every GPU is used by others" in lost.reason
    assert lost.host
    assert not lost.under_trial
