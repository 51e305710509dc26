"""Ways to start a process, bisected as a value axis: on a CPU everywhere, with CUDA where there is a GPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MATRICES = Path(__file__).parents[2] / "matrices"

pytestmark = [pytest.mark.slow, pytest.mark.integration]


def answer(name: str, folder: Path, *changes: tuple[str, str]) -> dict[str, object]:
    shutil.copytree(MATRICES / "repros", folder / "repros")
    text = (MATRICES / f"{name}.yaml").read_text("utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    matrix = folder / f"{name}.yaml"
    matrix.write_text(text, "utf-8")
    env = {
        **os.environ,
        "BISECT_ENV_CACHE": str(folder / "cache"),
        "BISECT_ENV_LOCKFILES": str(folder / "lockfiles"),
    }
    program = [sys.executable, "-m", "bisect_env", "run", matrix, "--db", folder / "results.sqlite", "--json"]
    done = subprocess.run(program, env=env, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def report_of(last_event: dict[str, object]) -> dict[str, object]:
    found = last_event.get("report", last_event)
    assert isinstance(found, dict)
    return found


def test_fork_is_the_first_bad_way(tmp_path: Path) -> None:
    # A hang costs its time limit: a short one, and no doubt about flakes.
    quick = ("  timeout: 10s", "  timeout: 3s")
    sure = ("trial:\n", "search: {confidence: 0.8, min_crash_rate: 0.5}\n\ntrial:\n")
    report = report_of(answer("fork_start_method", tmp_path, quick, sure))
    assert report["verdict"]["first_bad"] == {"start_method": "fork"}  # type: ignore[index]
    failures = report["failures"]
    assert isinstance(failures, list)
    assert failures[0]["outcome"] == "hang"
    assert "fork_start_method.py" in failures[0]["stack"]


@pytest.mark.skipif(not Path("/dev/nvidia0").exists(), reason="there is no GPU on this machine")
def test_a_forked_cuda_context_is_the_first_bad_one(tmp_path: Path) -> None:
    report = report_of(answer("fork_start_method_cuda", tmp_path))
    assert report["verdict"]["first_bad"] == {"start_method": "fork"}  # type: ignore[index]
    failures = report["failures"]
    assert isinstance(failures, list)
    assert failures[0]["outcome"] == "cuda-init"
