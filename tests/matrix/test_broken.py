"""Every broken matrix file gives exactly the text beside it (BISECT_ENV_UPDATE_GOLDEN=1 writes them anew)."""

import os
from pathlib import Path

import pytest

from bisect_env.errors import ExitCode, MatrixError
from bisect_env.matrix.load import load_matrix

BROKEN = Path(__file__).parent / "broken"
FILES = sorted(BROKEN.glob("*.yaml"))


def test_there_are_at_least_thirty():
    assert len(FILES) >= 30


@pytest.mark.timeout(20)  # generous: guards against a file that makes the loader hang
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_message(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(BROKEN)
    with pytest.raises(MatrixError) as caught:
        load_matrix(path.name)
    message = str(caught.value) + "\n"
    golden = path.with_suffix(".txt")
    if os.environ.get("BISECT_ENV_UPDATE_GOLDEN"):
        golden.write_text(message, encoding="utf-8")
    assert caught.value.exit_code is ExitCode.USAGE
    assert message == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_problem_has_a_remedy(path: Path):
    with pytest.raises(MatrixError) as caught:
        load_matrix(path)
    assert caught.value.problems
    for problem in caught.value.problems:
        what, separator, remedy = problem.rpartition("; ")
        assert separator, f"no remedy in: {problem}"
        assert what
        assert remedy
        assert "Error" not in problem
        assert "pydantic" not in problem
