"""The runner of the cases, against a program that only pretends."""

import json
import sys
from pathlib import Path

import pytest

from tests.cases import run_cases

FAKE = """#!{python}
import json, sys
if sys.argv[1] == "run":
    print("out of luck", file=sys.stderr)
    sys.exit({code})
print({report!r})
"""

RIGHT = {
    "verdict": {
        "status": "confirmed",
        "first_bad": {"python": "3.11", "orjson": "3.9.11"},
        "last_good": {"python": "3.11", "orjson": "3.9.10"},
        "culprit_axes": ["orjson"],
    },
    "trials": 123,
    "environments": 7,
    "combinations": [],
}


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def install(report: str, code: int = 0) -> None:
        path = tmp_path / "bisect-env"
        path.write_text(FAKE.format(python=sys.executable, report=report, code=code))
        path.chmod(0o755)
        monkeypatch.setattr(run_cases, "PROGRAM", path)

    return install


@pytest.mark.integration
def test_a_right_verdict(program, capsys):
    program(json.dumps(RIGHT))
    assert run_cases.main(["quickstart"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == [
        "case",
        "true",
        "answer",
        "verdict",
        "right?",
        "trials",
        "environments",
        "seconds",
    ]
    assert "orjson 3.9.10 → 3.9.11 (confirmed)" in out[2]
    assert out[2].split()[-4:-1] == ["yes", "123", "7"]


@pytest.mark.integration
def test_a_wrong_verdict_and_a_failed_run(program, capsys):
    wrong = {**RIGHT, "verdict": {"status": "none", "reason": "budget spent"}}
    program(json.dumps(wrong), code=1)
    assert run_cases.main(["quickstart"]) == 1
    out = capsys.readouterr().out
    assert "no verdict (budget spent)" in out
    assert "`bisect-env run` ended with 1; its last words: out of luck" in out


@pytest.mark.integration
def test_no_report_at_all(program, capsys):
    program("not JSON", code=70)
    assert run_cases.main(["quickstart"]) == 1
    assert "no JSON" in capsys.readouterr().out


def test_unknown_case(capsys):
    with pytest.raises(SystemExit) as caught:
        run_cases.main(["quikstart"])
    assert caught.value.code == 2
    assert "no such case: quikstart" in capsys.readouterr().err
