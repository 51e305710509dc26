"""What a trial that did not run because of its host is answered with."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bisect_env.cluster.perform import GpuLender, GpuTrial, GpuUnavailableError, perform
from bisect_env.cluster.protocol import TrialLost
from bisect_env.environments.lock import Lock
from bisect_env.environments.prefix import Changed, Prefix
from bisect_env.trials.records import TrialRecord, TrialSpec
from tests.cluster.executor_contract import request


class Busy:
    """A lender none of whose GPUs are free."""

    def run(self, spec: TrialSpec, trial: GpuTrial) -> TrialRecord:
        raise GpuUnavailableError("every GPU is used by others")


@pytest.mark.parametrize(
    ("changed", "gpus", "says"),
    [
        (None, Busy(), "every GPU is used by others"),
        (Changed(datetime.now(UTC)), None, "files of its environment were changed"),
    ],
)
def test_what_lies_with_the_host_is_not_lost_under_the_trial(
    changed: Changed | None, gpus: GpuLender | None, says: str
) -> None:
    prefix = Prefix(Path(sys.prefix), Path(sys.executable))

    def build(lock: Lock, *, allow_source: bool | frozenset[str] = False, existing: bool = False) -> Prefix:
        return replace(prefix, changed=changed)

    lost = perform(request(), build=build, cancelled=lambda: False, worker="w", gpus=gpus)
    assert isinstance(lost, TrialLost)
    assert says in lost.reason
    assert lost.host
    assert not lost.under_trial
    assert (lost.change is None) is (changed is None)
