"""`bisect-env trial` and `verify` as a user gives them: a real command, a real cluster, a real Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bisect_env.cli.trial_command import TrialLines, verification_text
from bisect_env.engine import amplify, events
from bisect_env.engine.verify import Verification
from bisect_env.search.rate_test import RateClaim
from bisect_env.storage.store import Store
from bisect_env.trials.records import Evidence, Outcome, Perturbation
from tests.cli.calls import RunCommand
from tests.engine.studies import PYTHON, Studies
from tests.report.samples import record

SCRIPT = """
    import os, sys, time
    time.sleep(0.2)
    if int(sys.argv[1]) >= 5:
        os.abort()
"""


def command(folder: Path, *words: str) -> list[str]:
    cache = ["--cache", str(folder / "cache"), "--db", str(folder / "results.sqlite"), "--workers", "2"]
    return [sys.executable, "-m", "bisect_env", *words, *cache]


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    return Studies(tmp_path).matrix(SCRIPT)


@pytest.mark.slow
@pytest.mark.integration
def test_a_line_a_trial_and_the_rate(matrix: Path) -> None:
    words = command(matrix.parent, "trial", str(matrix), "--at", "level=7", "-n", "3")
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 3, done.stderr
    *lines, rate = done.stdout.splitlines()
    assert [line.split()[:3] for line in lines] == [["✗", str(n), "crash"] for n in (1, 2, 3)]
    assert rate == "3 of 3 trials were bad: 100 % (95 % interval 29–100 %)"
    # What is waited for in the first seconds is said.
    _, locking, study, starting, combination, making, *steps = done.stderr.splitlines()
    assert study.startswith("study ")
    assert (locking, starting) == (f"locking python={PYTHON} level=7", "starting workers")
    assert combination.startswith(f"python={PYTHON} level=7 (environment ")
    assert making == "making the environment, unless it is here already"
    assert all(step.endswith("environment 1") for step in steps)
    words = command(matrix.parent, "trial", str(matrix), "--at", "level=7", "-n", "1", "-q")
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout, done.stderr) == ("1 of 1 trials were bad: 100 % (95 % interval 2.5–100 %)\n", "")
    words = command(matrix.parent, "trial", str(matrix), "--at", "level=1", "-n", "2", "--json")
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    counted = [row["event"] for row in rows if row["event"] in ("trial", "rate")]
    assert counted == ["trial", "trial", "rate"]
    rate = rows[-1]
    assert (rate["bad"], rate["trials"], rate["combination"]["level"]) == (0, 2, "1")


@pytest.mark.slow
@pytest.mark.integration
def test_a_verification_goes_on_after_ctrl_c(matrix: Path) -> None:
    folder = matrix.parent
    words = command(folder, "trial", str(matrix), "--at", "level=1", "--until-rate", "10%")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(4):
            assert process.stdout.readline().startswith("✓")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "the same command goes on from here" in err
    assert "Traceback" not in out + err
    assert "error" not in err
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "going on after" in done.stderr
    assert "0 of 30 trials were bad" in done.stdout
    with Store.open(str(folder / "results.sqlite")) as store:
        assert len(store.trials(store.study().id)) == 30


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--at", "level=77"], "'77' is no value of the axis level"),
        ([], "no value for level"),
        (["--at", "level=1", "--until-rate", "1.5"], "--until-rate is 1.5"),
        (["--at", "level=1", "--until-rate", "150%"], "--until-rate is 1.5"),
        (["--at", "level=1", "--until-rate", "1x"], "1x is no share"),
        (["--at", "level=1", "--debug", "--amplify"], "--debug and --amplify exclude each other"),
        (["--at", "level=1", "--cuda"], "--cuda belongs to `--debug`"),
    ],
)
def test_what_cannot_be_verified(matrix: Path, run: RunCommand, words: list[str], says: str) -> None:
    code, _out, err = run(*command(matrix.parent, "trial", str(matrix), *words)[3:])
    assert code == 2
    assert says in err
    assert "remedy" in err


def test_a_limit_without_a_meaning_is_refused_before_a_study_begins(matrix: Path, run: RunCommand) -> None:
    words = ("trial", str(matrix), "--at", "level=1", "--until-rate", "0")
    code, _out, err = run(*command(matrix.parent, *words)[3:])
    assert (code, err.partition("\n")[0]) == (2, "error: --until-rate is 0")
    assert not (matrix.parent / "results.sqlite").exists()


@pytest.mark.integration
def test_a_cache_that_has_grown_is_told_of_at_the_end(
    matrix: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bisect_env.environments.cache.MUCH", -(2**62))
    words = command(matrix.parent, "trial", str(matrix), "--at", "level=1", "-n", "1")[3:]
    code, _out, err = run(*words)
    assert code == 0, err
    assert "`bisect-env env prune --size 5GB` takes away what was used longest ago" in err.splitlines()[-1]
    assert "env prune" not in run(*words, "--quiet")[2]
    _code, out, err = run(*words, "--json")
    assert json.loads(out.splitlines()[-1])["event"] == "rate"
    assert "env prune" in err


@pytest.mark.integration
@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("import sys; sys.exit(125)", "no trial counts: the script skipped this combination"),
        (
            "raise RuntimeError('CUDA error: no kernel image is available for execution on the device')",
            "no trial counts: unsupported: ",
        ),
    ],
)
def test_why_no_trial_counts(tmp_path: Path, run: RunCommand, script: str, says: str) -> None:
    matrix = Studies(tmp_path).matrix(script)
    code, out, err = run(*command(tmp_path, "trial", str(matrix), "--at", "level=1", "-n", "1")[3:])
    assert code == 1, err
    assert out.splitlines()[-1].startswith(says)


def test_other_trials_are_told_from_bad_ones(capsys: pytest.CaptureFixture[str]) -> None:
    lines = TrialLines()
    for outcome, evidence, detail in (
        (Outcome.EXIT_FAIL, Evidence.OTHER, "exit code 3"),
        (Outcome.KILLED_EXTERNAL, Evidence.VOID, "SIGKILL \x1b[31mred"),
        (Outcome.SKIP, Evidence.SKIP, "exit code 125"),
        (Outcome.NOT_RUNNABLE, Evidence.SKIP, "no such program"),
    ):
        one = record({"a": "1"}, "h", outcome, detail=detail, trial_id="t")
        lines(events.TrialFinished(one, evidence))
    assert capsys.readouterr().out.splitlines() == [
        "!   1  exit-fail        0.25 s  exit code 3; not counted",
        "?   2  killed-external     0.25 s  SIGKILL red; not counted",
        "-   3  skip             0.25 s  exit code 125; the script skipped it",
        "-   4  not-runnable     0.25 s  no such program; not counted",
    ]


def test_how_a_verification_is_told() -> None:
    def verification(claim: RateClaim | None, hits: int, trials: int, why: str = "") -> Verification:
        rate = hits / trials
        return Verification({"a": "1"}, claim, 0.01, 0.95, trials, hits, rate, (0.0, 0.5), 0.0097, why)

    assert verification_text(verification(RateClaim.BELOW, 0, 309)) == (
        "below the limit: a=1 fails in fewer than 1 % of runs (95 % sure): 0 of 309 trials were bad\n"
        "309 trials passed; zero in 309 alone means below 1 %"
    )
    assert verification_text(verification(RateClaim.ABOVE, 4, 40)).startswith(
        "above the limit: a=1 fails in more than 1 % of runs"
    )
    assert verification_text(verification(None, 4, 400, "the limit of 400 trials is reached")).endswith(
        "4 of 400 trials were bad (1 %, 95 % interval 0–50 %); the limit of 400 trials is reached"
    )


HUNTED = """
    import os, sys
    from planted import fails
    if int(sys.argv[1]) >= 5 and fails(0.9 if "HUNTS" in os.environ else 0.08, len(os.environ)):
        os.abort()
"""


@pytest.mark.slow
@pytest.mark.integration
def test_circumstances_that_make_a_failure_frequent_are_found(
    tmp_path: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = (Perturbation("harmless", env={"HARMLESS": "1"}), Perturbation("hunts", env={"HUNTS": "1"}))
    monkeypatch.setattr(amplify, "catalogue", lambda _cpus, _seeds, repeats: tried)
    words = ("trial", str(Studies(tmp_path).matrix(HUNTED)), "--amplify", "--cache", str(tmp_path / "cache"))
    words += ("--db", str(tmp_path / "results.sqlite"))
    code, out, err = run(*words)
    assert code == 0, err
    assert f"bad end: python={PYTHON} level=9; good end: python={PYTHON} level=0" in err
    assert [line.split()[0] for line in out.splitlines()[:3]] == ["as", "harmless", "hunts"]
    assert "\nbest: hunts (" in out
    assert "saves about " in out
    # The same circumstances at an end that never fails make nothing more frequent.
    code, out, err = run(*words, "--good", "level=0", "--bad", "level=1", "--json")
    assert code == 1, err
    assert json.loads(out.splitlines()[-1])["perturbation"] == {}
    # Where no direction says which ends are meant, it is those of the answer.
    axes = "level: {values: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], direction: either}"
    either = Studies(tmp_path).matrix(HUNTED.replace("0.08", "1.0"), axes=axes)
    assert run("run", str(either), "--always", "--quick", *words[3:])[0] == 0
    _code, _out, err = run("trial", str(either), *words[2:])
    assert f"bad end: python={PYTHON} level=5; good end: python={PYTHON} level=4" in err
