"""GPUs and hosts that were lost under trials are named in the report."""

from __future__ import annotations

from datetime import UTC, datetime

from bisect_env.matrix.grid import Combination
from bisect_env.report.doubts import machine_warnings
from bisect_env.storage.entries import StoredTrial
from bisect_env.trials.records import Evidence, Outcome, Phase

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def trial(outcome: Outcome, *, gpu: str = "", host: str = "node1", detail: str = "") -> StoredTrial:
    return StoredTrial(
        sequence=1,
        study_id="s",
        reused=False,
        matched=True,
        trial_id="t",
        combination=Combination.of({"a": "1"}),
        lock_hash="0" * 64,
        outcome=outcome,
        evidence=Evidence.VOID,
        detail=detail,
        returncode=None,
        phase=Phase.UNKNOWN,
        started_at=NOW,
        duration=0.0,
        signature="",
        hash_seed=0,
        copies={},
        host=host,
        worker="w",
        gpu=gpu,
        recorded_at=NOW,
    )


def test_nothing_to_tell() -> None:
    assert machine_warnings([]) == []
    assert machine_warnings([trial(Outcome.PASS), trial(Outcome.WORKER_LOST, host="")]) == []


def test_a_sick_gpu_is_named_once_with_its_reason() -> None:
    sick = trial(
        Outcome.GPU_LOST,
        gpu="GPU-1",
        detail="GPU-1: the driver reported Xid 79 during the trial (the script: exit status 1)",
    )
    (told,) = machine_warnings([sick, sick, trial(Outcome.PASS, gpu="GPU-1")])
    assert told.startswith(
        "GPU GPU-1 on node1 was lost or sick in 2 trials (GPU-1: the driver reported Xid 79"
    )
    assert told.endswith(" during the trial); they are void")
    # Nothing else ran: it is not said that it did.
    (told,) = machine_warnings([sick])
    assert told.endswith(" during the trial); it is void")


def test_hosts_that_went_away() -> None:
    lost = [trial(Outcome.WORKER_LOST, host=f"node{i}") for i in (1, 2, 2, 3, 4, 5)]
    told = machine_warnings(lost)
    assert told[0] == "host node1 lost its worker or a GPU during 1 trial; it is void"
    assert told[1] == "host node2 lost its worker or a GPU during 2 trials; they are void"
    assert told[-1] == "2 more GPUs or hosts were lost during trials"
    assert machine_warnings(lost[:-1])[-1] == "1 more GPU or host was lost during trials"
