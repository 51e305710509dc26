"""What answers say agrees with their tables: counts of what was tried, labels, limits, advice, grammar."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.asking import Asking
from tests.cli.calls import RunCommand
from tests.cli.questions import matrix, report

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(200)]


@pytest.fixture
def ask(tmp_path: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> Asking:
    return Asking(tmp_path, run, monkeypatch)


def unordered(**axes: str) -> dict[str, Any]:
    """Return axes without order, each with one letter per value, as arguments of `matrix`."""
    return {
        "axes": {name: list(values) for name, values in axes.items()},
        "directions": dict.fromkeys(axes, "unordered"),
    }


def test_always_bad_counts_what_was_not_tried(ask: Asking) -> None:
    ask.run("run", matrix(ask, "sys.exit(1)", **unordered(a="0123", b="012", c="0123")))
    found = report(ask)
    untried = sum(not one["bad"] for one in found["combinations"])
    assert untried
    assert found["verdict"]["kind"] == "always"
    assert (
        f"all of those tried show the failure, and {untried} were not tried" in found["verdict"]["sentence"]
    )


def test_two_bad_values_of_an_axis_without_order_are_named(ask: Asking) -> None:
    ask.run("run", matrix(ask, "sys.exit(a in 'gy')", **unordered(a="rgbyk", b="pqst")))
    said = report(ask)["verdict"]["sentence"]
    assert "a is g or y" in said
    assert "no simple rule" not in said


def test_what_is_called_good_by_its_passes_is_not_called_bad_beside(ask: Asking) -> None:
    ask.run("run", matrix(ask, "sys.exit(a == 'g' and b in 'qt')", **unordered(a="rgbyk", b="pqst")))
    found = report(ask)
    bad = {
        (one["first"]["a"], one["first"]["b"]) for one in found["verdict"]["untested"] if one["called_bad"]
    }
    for one in found["combinations"]:
        if one["good"] and not one["bad"]:
            assert one["verdict"] == "good"
            assert (one["combination"]["a"], one["combination"]["b"]) not in bad


def test_a_combination_that_only_failed_otherwise_is_not_called_good(ask: Asking) -> None:
    script = """
        if n <= 2:
            raise AttributeError("another problem")
        if n >= 6:
            raise ValueError("the problem")
    """
    name = matrix(ask, script, axes={"n": [str(n) for n in range(1, 9)], "m": ["x", "y"]})
    assert ask.run("run", name).returncode == 0
    found = report(ask)
    only = [one for one in found["combinations"] if one["other"] and not one["good"] + one["bad"]]
    assert only
    assert {one["verdict"] for one in only} == {None}
    text = ask.run("report", "--details").stdout
    assert "nothing counted" not in text
    assert "failed otherwise" in text
    thin = [line for line in text.splitlines() if "thinly tested" in line]
    assert not any(f"n {value} called good (no trial)" in line for line in thin for value in "12")


def test_a_limit_of_trials_interrupts_a_rate_test_and_does_not_end_it(ask: Asking) -> None:
    name = matrix(ask, "sys.exit(n >= 5)")
    words = ("trial", name, "--at", "n=1", "--until-rate", "20%", "-n", "5")
    first = ask.run(*words).stdout
    assert "0 of 5 trials were bad" in first
    assert "limit of 5 trials is reached; " in first
    assert "more passes would show" in first
    said = [ask.run(*words).stdout for _ in range(3)]
    assert "0 of 10 trials were bad" in said[0]
    assert any("below the limit" in text for text in said)


def test_one_trial_is_one_trial(ask: Asking) -> None:
    name = matrix(ask, "sys.exit(n >= 5)")
    done = ask.run("trial", name, "--at", "n=1", "--until-rate", "99%")
    assert "1 trial passed" in done.stdout
    assert "1 trials passed" not in done.stdout


@pytest.mark.parametrize("window", [(3, 5), (2, 6)])
def test_a_failure_that_was_fixed_before_the_stated_bad_end_names_the_better_end(
    ask: Asking, window: tuple[int, int]
) -> None:
    low, high = window
    name = matrix(ask, f"sys.exit({low} <= n <= {high})", good={"n": "1"}, bad={"n": "8"})
    ask.run("trial", name, "--at", f"n={high}", "-n", "2")
    ask.run("trial", name, "--at", f"n={high + 1}", "-n", "2")
    done = ask.run("run", name)
    assert "the stated bad combination is not bad" in done.stderr
    assert any(one["bad"] for one in report(ask)["combinations"])
    (advice,) = report(ask)["advice"]
    assert f"and it was fixed in {high + 1}" in advice
    assert f"`bad: {{n: '{high}'}}`" in advice
    assert advice in done.stderr


@pytest.mark.parametrize(
    ("bad", "script", "said"),
    [
        ({"exit_codes": [3]}, "sys.exit(n >= 5)", "`exit_codes` has 3, and the code was 1"),
        (
            {"exit_codes": [3], "outcomes": ["exit-fail"]},
            "sys.exit(n >= 5)",
            "`exit_codes` has 3, and the code was 1",
        ),
        ({"signals": ["SIGSEGV"]}, "if n >= 5: os.abort()", "`signals` lacks SIGABRT"),
        ({"outcomes": ["crash"]}, "sys.exit(n >= 5)", "`outcomes` lacks exit-fail"),
        ({"output": ["checksum"]}, "sys.exit(n >= 5)", "its output does not match `output`: 'checksum'"),
    ],
)
def test_advice_names_the_condition_that_a_failure_does_not_meet(
    ask: Asking, bad: dict[str, Any], script: str, said: str
) -> None:
    ask.run("run", matrix(ask, script, trial={"bad": bad}))
    (advice,) = (line for line in report(ask)["advice"] if "not counted" in line)
    assert said in advice
    assert "exit code 1" in advice or "SIGABRT" in advice
