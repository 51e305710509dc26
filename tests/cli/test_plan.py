"""What `bisect-env plan` prints of costs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks.repositories import in_tree, pure, write
from tests.cli.calls import RunCommand
from tests.cli.processes import COMMAND
from tests.engine.studies import Studies

pytestmark = pytest.mark.integration

OPTIONS = ("--always", "--forecast", "60")


@pytest.fixture
def matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BISECT_ENV_CACHE", str(tmp_path / "cache"))
    return Studies(tmp_path).matrix("pass", trial="gpus: 2")


def test_gpu_hours_follow_from_trials_seconds_and_gpus(matrix: Path, run: RunCommand) -> None:
    code, out, _ = run("plan", str(matrix), "--json", *OPTIONS)
    assert code == 0
    (cost,) = json.loads(out)["forecast"]
    assert cost["gpus_per_trial"] == 2
    hours = cost["trial_seconds"] / 3600
    assert cost["gpu_hours"] == pytest.approx(cost["trials"] * 2 * hours)
    low, high = cost["trials_90_percent_range"]
    assert cost["gpu_hours_90_percent_range"] == pytest.approx([low * 2 * hours, high * 2 * hours])
    assert low <= cost["trials"] <= high


def test_people_see_trials_environments_and_gpu_hours(matrix: Path, run: RunCommand) -> None:
    code, out, err = run("plan", str(matrix), *OPTIONS)
    text = out + err
    assert code == 0
    assert "at most " in text
    assert "GPU-hours (90 %: " in text
    assert "(90 % of studies: " in text
    assert "in about 1 environment" in text


def test_without_gpus_nobody_speaks_of_them(matrix: Path, run: RunCommand) -> None:
    matrix.write_text(matrix.read_text().replace("gpus: 2", ""))
    code, out, err = run("plan", str(matrix), *OPTIONS)
    assert code == 0
    assert "GPU-hours" not in out + err


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A matrix of 40,000 combinations, which are one environment."""
    values = ", ".join(map(str, range(200)))
    matrix = tmp_path / "large.yaml"
    matrix.write_text(
        "version: 1\nname: large\n"
        f"axes:\n  batch: {{values: [{values}]}}\n  seed: {{values: [{values}]}}\n"
        "trial:\n  command: [python, -c, pass]\n"
    )
    return matrix


@pytest.mark.slow
def test_a_large_matrix_is_counted_not_listed(large: Path, run: RunCommand) -> None:
    code, out, _ = run("plan", str(large), "--json", "--always", "--forecast", "0")
    assert code == 0
    document = json.loads(out)
    assert document["counts"] == {"solvable": 40_000}
    assert document["combinations"] == []
    assert document["environments"] == 1
    assert document["forecast"] == []
    code, out, _ = run("plan", str(large), "--forecast", "0")
    assert code == 0
    assert "40000 combinations: 40000 buildable; 1 distinct environment" in out
    assert "no forecast of trials" in out


@pytest.mark.slow
def test_the_counts_are_there_before_studies_are_played(large: Path) -> None:
    command = [*COMMAND, "plan", str(large), "--rate", "0.01", "--forecast", "120"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            counted = next(line for line in process.stdout if "combinations:" in line)
            assert process.poll() is None  # it still plays
        finally:
            process.kill()
    assert "40000 buildable" in counted


@pytest.mark.slow
def test_a_forecast_may_take_longer(large: Path, run: RunCommand) -> None:
    code, out, _ = run("plan", str(large), "--json", "--always", "--forecast", "200")
    assert code == 0
    (cost,) = json.loads(out)["forecast"]
    # Most of them check the answer. How few find it: tests/search/test_stages.py.
    assert cost["trials"] < 100


def test_a_plan_says_that_it_builds_where_sources_are_let_in(matrix: Path, run: RunCommand) -> None:
    assert "source distributions are built" not in run("plan", str(matrix), *OPTIONS)[2]
    with matrix.open("a") as stream:
        stream.write("solver: {allow_source: true}\n")
    code, _, err = run("plan", str(matrix), *OPTIONS)
    assert code == 0
    assert "source distributions are built on this machine, and their build scripts run" in err


@pytest.mark.slow
def test_commits_are_planned_without_being_built(tmp_path: Path, run: RunCommand) -> None:
    place = tmp_path / "demo"
    write(place, pure("demo", 30, 12, files=in_tree("demo", version="")))
    matrix = tmp_path / "matrix.yaml"
    matrix.write_text(
        "version: 1\nname: commits\naxes:\n  demo: {git: demo, package: demo, from: v1.0}\n"
        "trial: {command: [python, -c, import demo]}\ngood: {demo: v1.0}\nbad: {demo: HEAD}\n"
    )
    code, out, _ = run("plan", str(matrix), "--cache", str(tmp_path / "cache"), "--json", "--forecast", "60")
    assert code == 0
    plan = json.loads(out)
    assert plan["counts"] == {"unlocked": 30}
    assert 5 <= plan["forecast"][0]["environments"] <= 8
    assert not (tmp_path / "cache" / "commits").exists()
