"""What real CUDA failures printed (H200, driver 580.159.04, CuPy 14.2, torch 2.11+cu130), and what they are.

Written by `python -m benchmarks.gpu_check --record`; only paths were changed.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bisect_env.trials.classify import ExitRecord, classify
from bisect_env.trials.records import Outcome

RECORDED = Path(__file__).with_name("recorded")

EXPECTED = {
    "cupy_fork_after_init": (Outcome.CUDA_INIT, 3),
    "cupy_illegal_address": (Outcome.CUDA_FAULT, 700),
    "cupy_out_of_memory": (Outcome.CUDA_OOM, 2),
    "torch_device_assert": (Outcome.CUDA_FAULT, 710),
    "torch_fork_after_init": (Outcome.CUDA_INIT, 3),
    "torch_illegal_address": (Outcome.CUDA_FAULT, 700),
    "torch_out_of_memory": (Outcome.CUDA_OOM, 2),
}


def test_every_recording_is_looked_at() -> None:
    assert {path.stem for path in RECORDED.glob("*.json")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_recorded_failures_of_real_gpus(name: str) -> None:
    said = json.loads((RECORDED / f"{name}.json").read_text("utf-8"))
    found = classify(ExitRecord(**said))
    outcome, number = EXPECTED[name]
    assert found.outcome is outcome, found
    assert found.detail.startswith(f"CUDA error {number} "), found
