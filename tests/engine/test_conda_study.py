"""A study of conda packages from the matrix to the verdict, and its plan."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bisect_env.cli.plan_command import one_line
from bisect_env.environments.lockfiles import SUFFIX
from tests.environments.conda_channel import Channel

from .studies import PYTHON, Studies

pytestmark = pytest.mark.integration

CRASH = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"
MATRIX = f"""\
version: 1
name: demo
axes:
  python: {{package: python, manager: conda, versions: ["{PYTHON}"]}}
  demo: {{package: demo, manager: conda, build: cuda*, versions: ">=1.0"}}
  other: {{package: other, manager: conda, versions: ["1.0", "2.0"]}}
  cuda: {{package: cuda-version, manager: conda, versions: ["12.8"]}}
channels: [./channel]
exclude:
  - {{when: {{demo: "4.0", other: "2.0"}}, why: we have seen enough}}
trial:
  command: python -c "import demo, other"
  timeout: 20s
"""


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    channel = Channel(tmp_path / "channel")
    channel.add_python()
    channel.add("cuda-version", "12.8", constrains=["__cuda >=12"])
    for n in range(1, 5):
        # 3.0 and later crash as they are imported; nothing below cares about CUDA but one library.
        code = CRASH if n >= 3 else ""
        channel.add_library("demo", f"{n}.0", f"cuda12{n}_0", code=code, depends=["__cuda"])
        channel.add_library("demo", f"{n}.1", "cpu_0")
    channel.add("pytorch", "2.8.0", "cpu_generic_0")
    channel.add_library("other", "1.0")
    channel.add_library("other", "2.0", depends=["demo <4", "demo !=1.0", "pytorch"])
    channel.write()
    path = tmp_path / "matrix.yaml"
    path.write_text(MATRIX)
    return path


def plan(matrix: Path, *options: str) -> str:
    home = str(matrix.parent)
    done = subprocess.run(
        # A failure without chance is played fastest.
        [sys.executable, "-m", "bisect_env", "plan", str(matrix), "--rate", "1", *options],
        env={"PATH": "/usr/bin:/bin", "HOME": home, "BISECT_ENV_CACHE": f"{home}/cache"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_study_of_conda_packages_finds_the_release(matrix: Path, tmp_path: Path):
    studies = Studies(tmp_path)
    # With one slot, the combinations that are tried do not depend on timing.
    report = studies.run(matrix, slots=1).report
    assert report["verdict"]["status"] != "none"
    assert report["verdict"]["first_bad"]["demo"] == "3.0"
    assert report["verdict"]["last_good"]["demo"] == "2.0"
    (warning,) = report["warnings"]
    assert "CPU-only builds beside a CUDA axis: pytorch 2.8.0 cpu_generic_0" in warning
    # Which combinations nobody asked for before the answer was there is a matter of time.
    tried = {one["lock"] for one in report["combinations"] if one["good"] + one["bad"]}
    assert len(tried) >= 4
    sides = [report["verdict"][side] for side in ("first_bad", "last_good")]
    of_sides = {one["lock"] for one in report["combinations"] if one["combination"] in sides}
    assert len(of_sides) == 2
    assert of_sides <= tried
    folder = tmp_path / "lockfiles" / "demo"
    assert tried <= {path.name.removesuffix(SUFFIX) for path in folder.glob(f"*{SUFFIX}")}


@pytest.mark.slow
def test_the_plan_says_what_can_be_built_and_why_not(matrix: Path):
    text = plan(matrix)
    assert "demo (regression, 4 values): 1.0, 2.0, 3.0, 4.0" in text
    assert "8 combinations: 6 buildable, 1 excluded, 1 unsolvable; 6 distinct environments" in text
    reason = "excluded: we have seen enough (exclude[0], line 10)"
    assert f"python={PYTHON} demo=4.0 other=2.0 cuda=12.8: {reason}" in text
    (why,) = [line for line in text.splitlines() if "unsolvable: " in line]
    assert why.startswith(f"  python={PYTHON} demo=1.0 other=2.0 cuda=12.8: unsolvable: ")
    assert "demo" in why.split("unsolvable:")[1]
    assert "├" not in text
    (warning,) = [line for line in text.splitlines() if "warning:" in line]
    assert f"python={PYTHON} demo=2.0 other=2.0 cuda=12.8 and 1 more: CPU-only builds" in warning
    whole = plan(matrix, "--why")
    assert "cannot be installed" in whole
    assert len(whole.splitlines()) > len(text.splitlines())


@pytest.mark.slow
def test_the_plan_as_json_has_rules_and_warnings(matrix: Path):
    rows = {
        (row["combination"]["demo"], row["combination"]["other"]): row
        for row in json.loads(plan(matrix, "--json"))["combinations"]
    }
    assert rows["4.0", "2.0"]["rule"] == {"key": "exclude[0]", "line": 10}
    assert rows["1.0", "2.0"]["status"] == "env-unsolvable"
    assert "\n" in rows["1.0", "2.0"]["reason"], "the whole text, with its lines"
    assert rows["2.0", "2.0"]["warnings"] != []
    assert rows["2.0", "1.0"]["warnings"] == []


def test_a_solvers_tree_on_one_line():
    tree = (
        "Cannot solve the request because of: The following packages are incompatible\n"
        "├─ a ==1 cannot be installed because there are no viable options:\n"
        "│  └─ a 1 would require\n"
        "│     └─ b >=2, for which no candidates were found.\n"
    )
    assert one_line(tree) == (
        "a ==1 cannot be installed because there are no viable options; a 1 would require; "
        "b >=2, for which no candidates were found."
    )
    assert one_line("No solution found when resolving dependencies:\n  ╰─▶ Because a") == "Because a"
