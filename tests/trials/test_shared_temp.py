"""Files that others leave in the place of temporary files: no tool of a trial takes them for its own."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from bisect_env.matrix.files import StudyFile
from bisect_env.trials.records import Outcome, TrialRecord
from bisect_env.trials.run import run_trial
from tests.trials.trial_support import PREFIX, make_spec

pytestmark = pytest.mark.integration
Run = Callable[..., TrialRecord]

SETUP_CFG = "[tool:pytest]\naddopts = --evil\n[mypy]\npython_version = 1.0\n[coverage:run]\nplugins = evil\n"
HOSTILE = {
    "conftest.py": "raise SystemExit('ran as the user')\n",
    "pytest.ini": "[pytest]\naddopts = --evil\n",
    "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--evil'\n[tool.ruff]\nevil = 1\n",
    "setup.cfg": SETUP_CFG,
    "setup.py": "",
    "tox.ini": "[pytest]\naddopts = --evil\n",
    ".coveragerc": "[run]\nplugins = evil\n",
    "ruff.toml": "evil = 1\n",
    "mypy.ini": "[mypy]\npython_version = 1.0\n",
    ".env": "EVIL=1\n",
}
CONFTEST = """
def pytest_terminal_summary(terminalreporter):
    terminalreporter.line("conftest of the matrix")
"""
CHECK = "def test_one() -> None:\n    assert True\n"
# As python-dotenv does it: from the script's directory up to the root, the first one there is.
FIND_ENV = """
import pathlib
found = next((p / ".env" for p in pathlib.Path(__file__).resolve().parents if (p / ".env").is_file()), None)
assert not found or not found.read_text(), found
"""


@pytest.fixture
def shared(private_temp: Path) -> Path:
    """The place of temporary files, where somebody has left files."""
    for name, text in HOSTILE.items():
        (private_temp / name).write_text(text)
    subprocess.run(["git", "init", "--quiet", str(private_temp)], check=True)
    return private_temp


@pytest.mark.parametrize(
    "command",
    [
        ("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_one.py"),
        ("python", "-m", "ruff", "check", "test_one.py"),
        ("python", "-m", "mypy", "--cache-dir=/dev/null", "test_one.py"),
        ("python", "find_env.py"),
    ],
    ids=["pytest", "ruff", "mypy", "dotenv"],
)
def test_no_tool_finds_them(shared: Path, command: tuple[str, ...]) -> None:
    files = (StudyFile("test_one.py", CHECK.encode()), StudyFile("find_env.py", FIND_ENV.encode()))
    record = run_trial(make_spec(command=command, files=files), PREFIX)
    said = record.stdout + record.stderr
    assert record.outcome is Outcome.PASS, said
    assert "python_version" not in said


def test_git_finds_no_repository(shared: Path) -> None:
    code = "import subprocess; subprocess.run(['git', 'rev-parse', '--show-toplevel'])"
    record = run_trial(make_spec(code), PREFIX)
    assert "not a git repository" in record.stderr
    assert record.stdout == ""


def test_what_the_matrix_brings_is_found(shared: Path) -> None:
    """And the names of tests are those of the working directory."""
    files = (
        StudyFile("test_one.py", CHECK.replace("True", "False").encode()),
        StudyFile("pyproject.toml", b"[tool.pytest.ini_options]\naddopts = '-q -p no:cacheprovider'\n"),
        StudyFile("conftest.py", CONFTEST.encode()),
    )
    record = run_trial(make_spec(command=("python", "-m", "pytest"), files=files), PREFIX)
    assert "conftest of the matrix" in record.stdout
    assert "FAILED test_one.py::test_one" in record.stdout
    without = run_trial(make_spec(command=("python", "-m", "pytest"), files=files[:1]), PREFIX)
    assert "FAILED test_one.py::test_one" in without.stdout
