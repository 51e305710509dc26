"""Every benchmark can be run: what nobody runs for months is broken when it is wanted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted(p.stem for p in (ROOT / "benchmarks").glob("*.py") if "__main__" in p.read_text("utf-8"))

SMALL: dict[str, list[str]] = {
    "answers": ["--studies", "1"],
    "cluster": ["--only", "asking", "--trials", "40"],
    "commits": ["--only", "linear", "--rates", "1", "--output", "commits.json"],
    "commits_equal_error": ["--only", "linear", "--rates", "1", "--studies", "2", "--output", "few.json"],
    "database": ["--trials", "2000"],
    "environments": ["--repeats", "1"],
    "hot_path": ["--workers", "2", "--trials", "60"],
    "faults": ["--rounds", "2", "--only", "main", "signals", "--seed", "1"],
    "everyday": ["--case", "click", "--turns", "1"],
    "harness": ["--trials", "2"],
    "rivals": ["--question", "certain", "--tool", "loop", "--tool", "bisect-env", "--turns", "1"],
    "search": ["--rows", "certain", "equal:0,0.5", "6x6:*", "calibration", "--studies", "2", "--write"],
}
TOO_SLOW = {"database": "too slow", "harness": "OVER"}
"""What a benchmark says then."""
ELSEWHERE = {
    "gpu_check": "needs a GPU",
    "gpu_deaths": "needs a GPU",
    "real_metadata": "has a test of its own below",
}


def run(script: str, arguments: list[str], folder: Path, limit: float = 280.0) -> str:
    """Its output; run where what it writes beside itself is not the repository's."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{script}", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=limit,
    )
    # These end with 1 where a limit is exceeded, as on a busy machine.
    is_slow = script in TOO_SLOW and TOO_SLOW[script] in done.stdout
    assert "reads all trials" not in done.stdout
    assert done.returncode == int(is_slow), done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The benchmarks in a folder of their own, since some write results, pictures and tables in pages."""
    for name in ("benchmarks", "tests", "matrices", "docs"):
        (tmp_path / name).mkdir()
        for path in (ROOT / name).rglob("*"):
            if path.suffix in (".py", ".json", ".yaml", ".md") and "broken" not in path.parts:
                target = tmp_path / path.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())
    return tmp_path


def test_every_script_is_run_or_says_why_not() -> None:
    assert set(SCRIPTS) == SMALL.keys() | ELSEWHERE.keys()


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("script", SMALL)
def test_it_runs_in_small(script: str, copy: Path) -> None:
    run(script, SMALL[script], copy)


def repodata(*packages: tuple[str, str]) -> str:
    """What a channel says of packages that depend on nothing."""
    records = {
        f"{name}-{version}-cuda_0.conda": {
            "name": name,
            "version": version,
            "build": "cuda_0",
            "build_number": 0,
            "depends": [],
            "subdir": "linux-64",
            "sha256": "0" * 64,
            "md5": "0" * 32,
            "size": 1,
        }
        for name, version in packages
    }
    return json.dumps({"info": {"subdir": "linux-64"}, "packages": {}, "packages.conda": records})


@pytest.mark.integration
@pytest.mark.slow
def test_real_metadata_of_channels_with_few_packages(copy: Path) -> None:
    known = {
        "rapidsai": [("cuml", "25.02.00")],
        "conda-forge": [("python", "3.10.0"), ("python", "3.12.0"), ("cuda-version", "12.8")],
        "nvidia": [("pytorch", "2.4.1"), ("pytorch", "2.5.1")],
    }
    for channel, packages in known.items():
        for subdir in ("linux-64", "noarch"):
            folder = copy / "channels" / channel / subdir
            folder.mkdir(parents=True)
            (folder / "repodata.json").write_text(repodata(*(packages if subdir == "linux-64" else ())))
    out = run("real_metadata", [str(copy / "channels")], copy)
    assert "4 of 168 combinations can be solved" in out
