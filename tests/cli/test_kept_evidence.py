"""Good and bad trials stay evidence, whatever comes later: skips, later options, other copies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.asking import Asking
from tests.cli.calls import RunCommand
from tests.cli.questions import at, matrix, report

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.fixture
def ask(tmp_path: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> Asking:
    return Asking(tmp_path, run, monkeypatch)


def first_bad(ask: Asking) -> tuple[str, str]:
    found = report(ask)["verdict"]
    return found["first_bad"]["n"], found["last_good"]["n"]


@pytest.mark.parametrize(
    "later",
    [
        "sys.exit(125)",
        # A program of its own that is gone: the trial is not runnable.
        "os.execv('/usr/bin/env', ['env', 'no-such-program-anywhere'])",
    ],
)
def test_a_skip_after_failures_costs_that_trial_alone(ask: Asking, later: str) -> None:
    script = f"""
        if n == 5 and calls("5") >= 2:
            {later}
        sys.exit(n >= 5)
    """
    done = ask.run("run", matrix(ask, script))
    assert done.returncode == 0, done.stderr
    assert first_bad(ask) == ("5", "4")
    five = at(report(ask), n="5")
    assert (five["status"], five["verdict"]) == ("solvable", "bad")
    assert five["bad"] >= 2
    assert "could not be tried" not in done.stdout + done.stderr


def test_a_skip_after_passes_costs_that_trial_alone(ask: Asking) -> None:
    script = """
        if n == 4 and calls("4") >= 1:
            sys.exit(125)
        sys.exit(n >= 5)
    """
    done = ask.run("run", matrix(ask, script))
    assert done.returncode == 0, done.stderr
    assert first_bad(ask) == ("5", "4")
    four = at(report(ask), n="4")
    assert (four["verdict"], four["good"]) == ("good", 1)
    assert four["skip"] >= 1


def test_a_combination_that_was_skipped_first_counts_once_it_fails(ask: Asking) -> None:
    script = """
        if n == 5 and not calls("5"):
            sys.exit(125)
        sys.exit(n >= 5)
    """
    name = matrix(ask, script)
    ask.run("run", name)
    assert at(report(ask), n="5")["status"] == "set-aside"
    # What a later command measures there is evidence, and the combination is tried again.
    ask.run("trial", name, "--at", "n=5", "-n", "2")
    assert ask.run("run", name).returncode == 0
    assert first_bad(ask) == ("5", "4")
    assert at(report(ask), n="5")["bad"] >= 2


@pytest.mark.parametrize("skipped", [["5", "4"], ["5", "6", "7", "8"], ["5"]])
def test_values_skipped_later_keep_their_trials(ask: Asking, skipped: list[str]) -> None:
    name = matrix(ask, "sys.exit(n >= 5)")
    assert ask.run("run", name).returncode == 0
    before = report(ask)
    assert first_bad(ask) == ("5", "4")
    words = [word for value in skipped for word in ("--skip", f"n={value}")]
    done = ask.run("run", name, *words)
    assert done.returncode == 0, done.stdout
    after = report(ask)
    assert first_bad(ask) == ("5", "4")
    for value in skipped:
        old, new = at(before, n=value), at(after, n=value)
        # They got no new trials, and lost none.
        assert (new["bad"], new["good"]) == (old["bad"], old["good"])
        if old["bad"]:
            assert new["verdict"] == "bad"
    # Once they are not skipped any more, nothing is called excluded.
    ask.run("run", name)
    assert {one["status"] for one in report(ask)["combinations"]} == {"solvable"}


@pytest.mark.parametrize(
    ("ends", "bad", "outcome"),
    [
        (["sys.exit(125)", "os.abort()", "pass"], {}, "crash"),
        (["sys.exit(125)", "sys.exit(1)", "pass"], {}, "exit-fail"),
        (["sys.exit(1)", "sys.exit(3)", "pass"], {"exit_codes": [3]}, "exit-fail"),
        (["os.abort()", "sys.exit(3)", "pass"], {"outcomes": ["exit-fail"]}, "exit-fail"),
        (["sys.exit(125)", "pass", "pass"], {}, "skip"),
    ],
)
def test_of_several_copies_the_one_that_failed_as_the_target_says_counts(
    ask: Asking, ends: list[str], bad: dict[str, object], outcome: str
) -> None:
    copies = "\n".join(f"    if k == {k}: {end}" for k, end in enumerate(ends))
    script = f"k = calls('{{}}'.format(n)) % 3\nif n >= 5:\n{copies}\n"
    trial = {"concurrency": 3, "bad": bad} if bad else {"concurrency": 3}
    done = ask.run("trial", matrix(ask, script, trial=trial), "--at", "n=7", "-n", "1")
    assert outcome in done.stdout, done.stdout
    seven = at(report(ask), n="7")
    expected = {"bad": 1, "skip": 0} if outcome != "skip" else {"bad": 0, "skip": 1}
    assert {name: seven[name] for name in expected} == expected
    assert seven["status"] == "solvable" or outcome == "skip"
