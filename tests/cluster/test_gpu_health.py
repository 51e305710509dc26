"""Readings as NVML gives them (codes of `nvml.h`), and what they mean for the trial in between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from bisect_env.cluster.gpus import SICK_XIDS, Reading, Suspicions, after_trial, before_trial
from bisect_env.cluster.perform import GpuTrial, GpuUnavailableError
from bisect_env.cluster.worker import HostGpus
from bisect_env.matrix.grid import Combination
from bisect_env.trials.records import Outcome, Phase, TrialRecord, TrialSpec
from bisect_env.trials.run import GpuWatch

A, B = "GPU-a", "GPU-b"
HEALTHY = Reading(A, count=2, uncorrected=0)


@pytest.mark.parametrize(("code", "word"), [(15, "lost"), (16, "reset"), (6, "does not find")])
def test_a_gpu_that_is_gone_gets_no_trial(code: int, word: str) -> None:
    reading = Reading(A, error=code)
    for found in (before_trial(reading), after_trial(HEALTHY, reading)):
        assert found is not None
        assert found.aside
        assert word in found.reason


@pytest.mark.parametrize("code", [0, 3, 4, 999])
def test_what_nvml_cannot_or_may_not_say_is_no_illness(code: int) -> None:
    # Not supported, no permission (containers), unknown.
    assert before_trial(Reading(A, error=code)) is None
    assert after_trial(HEALTHY, Reading(A, error=code)) is None


@pytest.mark.parametrize("xid", sorted(SICK_XIDS))
def test_xids_of_sick_hardware_put_the_gpu_aside(xid: int) -> None:
    found = after_trial(HEALTHY, HEALTHY, [31, xid])
    assert found is not None
    assert found.aside
    assert f"Xid {xid}" in found.reason


@pytest.mark.parametrize("xid", [8, 13, 31, 43, 45, 69])
def test_xids_that_the_script_brought_about_are_its_own(xid: int) -> None:
    assert after_trial(HEALTHY, HEALTHY, [xid]) is None


def test_a_vanished_neighbour_voids_the_trial_and_spares_the_gpu() -> None:
    found = after_trial(HEALTHY, replace(HEALTHY, count=1))
    assert found is not None
    assert not found.aside
    assert "2 GPUs before the trial and 1 after" in found.reason


def test_new_memory_errors_put_the_gpu_aside_and_old_ones_do_not() -> None:
    old = replace(HEALTHY, uncorrected=3)
    assert after_trial(old, old) is None
    found = after_trial(HEALTHY, old)
    assert found is not None
    assert found.aside
    assert after_trial(replace(HEALTHY, uncorrected=None), old) is None


def test_one_environment_alone_cannot_accuse_a_gpu() -> None:
    suspicions = Suspicions()
    assert [suspicions.lost([A], "lock") for _ in range(5)] == [[]] * 5
    assert [f.uuid for f in suspicions.lost([A], "other lock")] == [A]


def test_a_trial_that_could_use_the_gpu_clears_it() -> None:
    suspicions = Suspicions()
    suspicions.lost([A], "lock")
    suspicions.used([A])
    assert suspicions.lost([A], "other lock") == []


# -- lending -------------------------------------------------------------------------------------------------


class Recorded:
    """A monitor that plays back readings, one after another; the last one stays."""

    def __init__(self, readings: Sequence[Reading], xids: Sequence[int] = ()) -> None:
        self.readings = list(readings)
        self.seen = list(xids)
        self.watched: Sequence[str] = ()

    def read(self, uuid: str) -> Reading:
        reading = self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]
        return replace(reading, uuid=uuid)

    @contextmanager
    def watch(self, uuids: Sequence[str]) -> Iterator[Recorded]:
        self.watched = uuids
        yield self

    def describe(self, _uuids: Sequence[str]) -> tuple[str, str]:
        return "Planted GPU", "570.1"

    def xids(self, _uuid: str) -> list[int]:
        return self.seen

    def reported(self) -> list[int]:
        return [xid for _ in self.watched for xid in self.seen]

    def busy(self) -> float | None:
        return max({A: 0.25, B: 0.75}.get(uuid, 0.0) for uuid in self.watched)


def spec(gpus: int = 1, lock: str = "lock") -> TrialSpec:
    return TrialSpec("t", Combination.of({"a": "1"}), lock, ("python",), gpus=gpus)


def ends(outcome: Outcome, saw: list[list[str]] | None = None) -> GpuTrial:
    def trial(uuids: Sequence[str], _watch: GpuWatch | None = None) -> TrialRecord:
        if saw is not None:
            saw.append(list(uuids))
        return TrialRecord(
            *("t", Combination.of({"a": "1"}), "lock", outcome, "what it said", 0, Phase.BODY),
            *(datetime.now(UTC), 1.0),
        )

    return trial


def lender(*readings: Reading, xids: Sequence[int] = ()) -> tuple[HostGpus, list[tuple[str, int]]]:
    gpus, aside = HostGpus(((A, B), Recorded(readings, xids))), []
    gpus.on_excluded = lambda uuid, _why, left: aside.append((uuid, left))
    return gpus, aside


def test_each_trial_is_lent_gpus_that_no_other_has() -> None:
    gpus, _ = lender(HEALTHY)
    saw: list[list[str]] = []

    def outer(uuids: Sequence[str], _watch: GpuWatch | None) -> TrialRecord:
        saw.append(list(uuids))
        with pytest.raises(GpuUnavailableError, match="2 GPUs are asked for, and 1 are free"):
            gpus.run(spec(2), ends(Outcome.PASS))
        return gpus.run(spec(), ends(Outcome.PASS, saw))

    gpus.run(spec(), outer)
    assert sorted(saw) == [[A], [B]]
    gpus.run(spec(2), ends(Outcome.PASS, saw))
    assert sorted(saw[-1]) == [A, B]


def test_a_trial_whose_gpu_was_lost_meanwhile_is_void_and_the_gpu_aside() -> None:
    gpus, aside = lender(HEALTHY, Reading(A, error=15), HEALTHY)
    record = gpus.run(spec(), ends(Outcome.EXIT_FAIL))
    assert record.outcome is Outcome.GPU_LOST
    assert "it was lost" in record.detail
    assert "what it said" in record.detail
    assert aside == [(A, 1)]
    saw: list[list[str]] = []
    for _ in range(3):
        gpus.run(spec(), ends(Outcome.PASS, saw))
    assert saw == [[B]] * 3
    assert gpus.enough(1)
    assert not gpus.enough(2)


def test_a_pass_on_a_sick_gpu_is_void_too() -> None:
    gpus, aside = lender(HEALTHY, xids=[79])
    assert gpus.run(spec(), ends(Outcome.PASS)).outcome is Outcome.GPU_LOST
    assert aside == [(A, 1)]


def test_a_lost_gpu_is_found_before_it_is_lent() -> None:
    gpus, aside = lender(Reading(A, error=16), HEALTHY)
    with pytest.raises(GpuUnavailableError, match="must be reset"):
        gpus.run(spec(), ends(Outcome.PASS))
    assert aside == [(A, 1)]


def test_xids_of_a_fault_are_noted() -> None:
    gpus, aside = lender(HEALTHY, xids=[31])
    record = gpus.run(spec(), ends(Outcome.CUDA_FAULT))
    assert record.outcome is Outcome.CUDA_FAULT
    assert record.detail.endswith("Xid 31 (GPU memory page fault)")
    assert aside == []


def test_running_out_of_memory_beside_others_says_nothing() -> None:
    gpus, _ = lender(replace(HEALTHY, processes=frozenset({4711})))
    with pytest.raises(GpuUnavailableError, match="4711"):
        gpus.run(spec(), ends(Outcome.CUDA_OOM))
    assert gpus.run(spec(), ends(Outcome.PASS)).outcome is Outcome.PASS


def test_processes_of_others_are_seen_before_and_after_a_trial() -> None:
    before, after = replace(HEALTHY, processes=frozenset({7})), replace(HEALTHY, processes=frozenset({8, 9}))
    gpus, _ = lender(before, after)
    with pytest.raises(GpuUnavailableError, match="7, 8, 9"):
        gpus.run(spec(), ends(Outcome.CUDA_OOM))


def test_a_combination_that_calls_every_gpu_lost_takes_none_away() -> None:
    gpus, aside = lender(HEALTHY)
    for _ in range(6):
        assert gpus.run(spec(), ends(Outcome.GPU_LOST)).outcome is Outcome.GPU_LOST
    assert aside == []
    gpus.run(spec(lock="other"), ends(Outcome.GPU_LOST))
    assert len(aside) == 1


def test_a_failure_of_ours_gives_the_gpu_back() -> None:
    gpus, _ = lender(HEALTHY)

    def fails(_uuids: Sequence[str], _watch: GpuWatch | None) -> TrialRecord:
        raise RuntimeError("ours")

    for _ in range(5):
        with pytest.raises(RuntimeError):
            gpus.run(spec(), fails)
    assert gpus.run(spec(2), ends(Outcome.PASS)).outcome is Outcome.PASS


def test_a_trial_hears_of_its_own_gpus() -> None:
    gpus, _ = lender(HEALTHY, xids=[31])
    heard: list[tuple[float | None, list[int]]] = []

    def trial(uuids: Sequence[str], watch: GpuWatch | None) -> TrialRecord:
        assert watch is not None
        heard.append((watch.busy(), list(watch.reported())))
        return ends(Outcome.PASS)(uuids, watch)

    gpus.run(spec(1), trial)
    gpus.run(spec(2), trial)
    assert heard == [(0.25, [31]), (0.75, [31, 31])]
