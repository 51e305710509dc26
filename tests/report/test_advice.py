"""Why there is no answer, as far as the trials tell, with a line to paste."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from bisect_env.answers.axes import AxisInfo
from bisect_env.answers.remedies import Asked
from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.matrix.grid import Combination
from bisect_env.matrix.schema import SearchLimits
from bisect_env.report.doubts import advice, good_side_warnings, several_failures, verdict_warnings
from bisect_env.report.model import FailureReport
from bisect_env.storage.entries import StoredTrial
from bisect_env.trials.records import Evidence, Outcome, Phase

AXES = (AxisInfo(name="lib", values=("1", "2", "3")), AxisInfo(name="python", values=("3.11",)))
ALWAYS = VerdictDocument(kind="always", trials=12)
NEVER = VerdictDocument(kind="never", trials=200)


def failure(detail: str, outcome: str = "exit-fail", evidence: str = "bad", trials: int = 4) -> FailureReport:
    return FailureReport(
        outcome=outcome,
        evidence=evidence,
        trials=trials,
        signature=f'[2,"{outcome}:X","body","a.py:f"]',
        trial="abcdef0123",
        combination={"lib": "1"},
        detail=detail,
    )


def said(
    verdict: VerdictDocument,
    failures: Sequence[FailureReport] = (),
    asked: Asked = Asked.IN_FILE,
    **settings: Any,
) -> str:
    return "\n".join(advice(verdict, AXES, failures, (), settings, ["repro.py"], asked=asked))


@pytest.mark.parametrize(
    ("detail", "line"),
    [
        ("ModuleNotFoundError: No module named 'yaml'", "add `packages: [pyyaml]`"),
        ("ModuleNotFoundError: No module named 'foo_bar.baz'", "that brings it: `packages: [NAME]`"),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: 'data/in.csv'",
            "`files: [repro.py, data/in.csv]`",
        ),
        ("URLError: <urlopen error [Errno -2] Name or service not known>", "`files`"),
        ("ValueError: 3", "`bisect-env report --trial abcdef01`"),
    ],
)
def test_always_bad(detail: str, line: str) -> None:
    assert line in said(ALWAYS, [failure(detail)])


@pytest.mark.parametrize(
    ("detail", "outcome", "words"),
    [
        ("ModuleNotFoundError: No module named 'yaml'", "exit-fail", "add `--with pyyaml`"),
        ("No such file or directory: 'in 1.csv'", "exit-fail", "add `--files 'in 1.csv'`"),
        ("URLError: <urlopen error [Errno -2] Name or service not known>", "exit-fail", "with `--files`"),
        ("idle for 60 s", "hang", "add `--timeout 5m`"),
    ],
)
def test_a_question_in_words_is_corrected_by_options(detail: str, outcome: str, words: str) -> None:
    text = said(ALWAYS, [failure(detail, outcome)], Asked.IN_WORDS)
    assert words in text
    assert "`trial`" not in text
    assert "matrix" not in text
    assert "--" not in said(ALWAYS, [failure(detail, outcome)]), "a matrix file takes no such option"


def test_what_has_no_option_is_told_with_the_way_to_a_matrix_file() -> None:
    never = said(NEVER, asked=Asked.IN_WORDS, min_crash_rate=0.02)
    assert "use `--rate 0.007`, or make" in never
    assert "`search: {amplify: true}` in a matrix file (`--save` writes one)" in never
    other = "\n".join(advice(NEVER, AXES, (), others(), {}, asked=Asked.IN_WORDS))
    assert "host-oom, import-error]}` in `trial` of a matrix file (`--save` writes one)" in other
    (warning,) = verdict_warnings(NEVER, asked=Asked.IN_WORDS)
    assert "`solver: {dependencies: newest}` in a matrix file" in warning


def test_two_environments_are_corrected_themselves() -> None:
    missing = failure("ModuleNotFoundError: No module named 'yaml'")
    assert "add pyyaml to both environments" in said(ALWAYS, [missing], Asked.BETWEEN)


def test_how_a_question_was_asked() -> None:
    assert Asked.of("m.yaml", ["lib"]) is Asked.IN_FILE
    assert Asked.of("m.yaml", ["environment"]) is Asked.IN_FILE
    assert Asked.of("", ["lib"]) is Asked.of(None, ["lib"]) is Asked.IN_WORDS
    assert Asked.of("", ["environment"]) is Asked.BETWEEN


@pytest.mark.parametrize(
    ("direction", "told", "not_told"),
    [
        ("regression", "first bad one lies before what is listed: list older versions, or look", "newer"),
        ("fixed", "first good one lies after what is listed: list newer versions, or look", "older"),
        ("either", "lies before or after what is listed: list more versions, or look", "older"),
        ("unordered", "everything fails in one way: look whether the script itself", "versions"),
    ],
)
def test_where_the_boundary_is_if_everything_fails(direction: str, told: str, not_told: str) -> None:
    axes = (AxisInfo(name="lib", values=("1", "2", "3"), direction=direction), AXES[1])
    (text,) = advice(ALWAYS, axes, [failure("ValueError: 3")], (), {})
    assert told in text
    assert not_told not in text
    # Of two axes, nobody knows which one to extend.
    two = (axes[0], AxisInfo(name="python", values=("3.11", "3.12")))
    (text,) = advice(ALWAYS, two, [failure("ValueError: 3")], (), {})
    assert "everything fails in one way: look whether the script itself is at fault" in text


@pytest.mark.parametrize(("elapsed", "told"), [(0.0, False), (12.0, False), (3599.5, True), (4000.0, True)])
def test_the_budget_is_used_up_only_once_its_time_has_passed(elapsed: float, told: bool) -> None:
    verdict = VerdictDocument(kind="all", trials=5)
    found = advice(verdict, AXES, (), (), {"budget": 3600.0, "max_trials": 500}, elapsed=elapsed)
    assert any("the time is used up" in text for text in found) is told


@pytest.mark.parametrize(("rate", "lower"), [(0.02, "0.002"), (0.0005, "0.0001"), (0.0001, None)])
def test_a_lower_rate_is_one_that_a_matrix_may_state(rate: float, lower: str | None) -> None:
    text = said(NEVER, min_crash_rate=rate)
    assert re.findall(r"use `search: {min_crash_rate: (.*?)}`, or make", text) == [lower] * (
        lower is not None
    )
    assert "the failure more frequent with" in text
    if lower is not None:
        assert SearchLimits(min_crash_rate=float(lower)).min_crash_rate == float(lower)


def test_a_good_end_that_is_bad_while_others_pass_was_stated_wrongly() -> None:
    passed = [stored("1", "", Evidence.GOOD)] * 3
    trials = [stored("3", '[2,"exit-fail:X","body","a.py:f"]'), *passed]
    wrong = VerdictDocument(reason="the stated good combination is bad")
    (text,) = advice(wrong, AXES, [failure("AssertionError")], trials, {})
    assert "lib=1 passed in 3 trials" in text
    assert "swap `good` and `bad` in the matrix" in text
    (text,) = advice(wrong, AXES, [failure("AssertionError")], trials, {}, asked=Asked.IN_WORDS)
    assert "swap `--good` and `--bad`, or leave both out" in text
    (text,) = advice(wrong, AXES, [failure("AssertionError")], trials[:1], {})
    assert "list older versions" in text


def test_passes_where_failures_are_rare_are_no_good_end() -> None:
    failed = stored("3", '[2,"exit-fail:X","body","a.py:f"]')
    seen = [failed, *[stored("3", "", Evidence.GOOD)] * 4]
    wrong = VerdictDocument(reason="the stated good combination is bad")
    few, many = ([*seen, *[stored("1", "", Evidence.GOOD)] * number] for number in (3, 20))
    assert "passed" not in advice(wrong, AXES, [failure("AssertionError")], few, {})[0]
    assert "lib=1 passed in 20 trials" in advice(wrong, AXES, [failure("AssertionError")], many, {})[0]


def test_swapped_ends_are_said_to_be_swapped_once_both_were_tried() -> None:
    ends = {end: {"lib": value, "python": "3.11"} for end, value in (("good", "3"), ("bad", "1"))}
    failed = stored("3", '[2,"exit-fail:X","body","a.py:f"]')
    passed = [stored("1", "", Evidence.GOOD)] * 3
    wrong = VerdictDocument(reason="the stated good combination is bad", ends_wrong=("good",), monotone=False)
    failures, stated = [failure("AssertionError")], {"ends": ends}
    (text,) = advice(wrong, AXES, failures, [failed, *passed], stated, asked=Asked.IN_WORDS)
    assert text.startswith("they are swapped: ")
    assert text.endswith("exchange `--good` and `--bad`")
    others = [failed, stored("2", "", Evidence.GOOD)]
    (text,) = advice(wrong, AXES, failures, others, stated)
    assert text.startswith("lib=2 passed in 1 trial")
    # What is seen from the wrong end says nothing about the history.
    assert verdict_warnings(wrong) == []
    assert len(verdict_warnings(VerdictDocument(monotone=False))) == 1


def test_a_time_limit_that_every_trial_reaches() -> None:
    assert "`timeout: 5m`" in said(ALWAYS, [failure("idle for 60 s", "hang")])


def test_never_bad_where_some_could_not_be_built() -> None:
    first, *_ = advice(NEVER, AXES, (), (), {}, (), ["no compiler", "needs submodules (vendored)\nmore"])
    assert first == "2 combinations could not be tried, and may be what fails: needs submodules (vendored)"


def test_always_bad_where_some_could_not_be_tried() -> None:
    first, *_ = advice(ALWAYS, AXES, [failure("ValueError: 3")], (), {}, (), ["exit code 125"])
    assert first == "1 combination could not be tried, and may be what works: exit code 125"


def test_why_nothing_could_be_tried() -> None:
    verdict = VerdictDocument(kind="always", reason="no combination can be tried")
    assert advice(verdict, AXES, (), (), {}, (), ["exit code 125"] * 3) == [
        "3 combinations could not be tried: exit code 125"
    ]


def test_never_bad() -> None:
    assert "min_crash_rate: 0.002" in said(NEVER, min_crash_rate=0.02)
    (other,) = advice(NEVER, AXES, (), others(), {})
    assert other.startswith(
        "9 trials failed in a way that is not counted, most as host-oom (no memory left): "
    )
    assert "`outcomes` lacks host-oom; to count it, write `bad: {outcomes: [crash, " in other


def test_not_decided() -> None:
    verdict = VerdictDocument(kind="all", trials=500)
    text = said(verdict, [failure("x", trials=9)], max_trials=500)
    assert "`search: {max_trials: 1000}`" in text
    assert "amplify" in text


def test_nothing_where_there_is_an_answer() -> None:
    assert said(VerdictDocument(status="confirmed", kind="all"), [failure("x")]) == ""


def test_two_failures_at_the_two_ends_are_two_problems() -> None:
    def trial(value: str, kind: str) -> StoredTrial:
        return stored(value, f'[2,"exit-fail:{kind}","body","a.py:f"]')

    trials = [trial("1", "URLError"), trial("3", "ImportError"), trial("3", "ImportError")]
    (first, *_) = advice(ALWAYS, AXES, [failure("x"), failure("y")], trials, {})
    assert "lib 1 fails as exit-fail:URLError, and lib 3 as exit-fail:ImportError" in first
    assert "`bad: {signature: 'exit-fail:ImportError in body, at a.py:f (v2)'}`" in first
    same = [trial("1", "URLError"), trial("3", "URLError"), trial("3", "ImportError")]
    assert "unrelated" not in "".join(advice(ALWAYS, AXES, [failure("x")], same, {}))


def test_an_answer_whose_bad_values_fail_in_two_ways_says_so() -> None:
    def trial(value: str, kind: str) -> StoredTrial:
        return stored(value, f'[2,"exit-fail:{kind}","body","a.py:f"]')

    answer = VerdictDocument(
        status="confirmed", kind="all", culprit_axes=("lib",), bad_values={"lib": ("1", "3")}
    )
    two = [trial("1", "ImportError"), trial("3", "TypeError"), trial("3", "TypeError")]
    (text,) = several_failures(answer, AXES, two)
    assert "lib 1 fails as exit-fail:ImportError, and lib 3 as exit-fail:TypeError" in text
    assert "`bad: {signature: 'exit-fail:TypeError in body, at a.py:f (v2)'}`" in text
    fixed = (AxisInfo(name="lib", values=("1", "2", "3"), direction="fixed"), AXES[1])
    (text,) = several_failures(answer, fixed, two)
    assert "`bad: {signature: 'exit-fail:ImportError" in text
    assert several_failures(answer, AXES, [*two, trial("1", "TypeError")]) == []
    assert several_failures(answer, AXES, two[1:]) == []
    assert several_failures(answer.model_copy(update={"status": "none"}), AXES, two) == []


def test_a_last_good_combination_that_fails_too_is_told_with_what_to_ask() -> None:
    last = {"lib": "2", "python": "3.8"}
    answer = VerdictDocument(
        culprit_axes=("python",),
        first_bad={**last, "python": "3.6"},
        last_good=last,
        directions={"python": "fixed"},
    )
    axes = (AXES[0], AxisInfo(name="python", values=("3.6", "3.8"), direction="fixed"))
    (text,) = good_side_warnings(answer, axes, 9, 142, 0.02)
    assert "the first good combination fails, too (9 of 142, " in text
    assert "to find where it ends, ask again" in text
    assert "python at 3.8 alone" in text
    (text,) = good_side_warnings(answer, axes[1:], 9, 142, 0.02)
    assert "ask again" not in text, "nothing else was varied"
    other = answer.model_copy(update={"first_bad": last, "last_good": answer.first_bad})
    (text,) = good_side_warnings(other, axes, 9, 142, 0.02)
    assert "the last good combination fails, too (9 of 142, " in text
    assert "more frequent; to find where it begins, ask again" in text
    assert good_side_warnings(answer, axes, 3, 142, 0.02) == [], "less often than anybody asked about"
    assert good_side_warnings(answer, axes, 0, 60, 0.02) == []
    assert good_side_warnings(VerdictDocument(culprit_axes=("python",)), axes, 0, 0, 0.02) == []


def others() -> list[StoredTrial]:
    """Nine trials that the host's memory ended."""
    one = replace(stored("1", "", Evidence.OTHER), outcome=Outcome.HOST_OOM, detail="no memory left")
    return [replace(one, matched=True)] * 9


def stored(value: str, signature: str, evidence: Evidence = Evidence.BAD) -> StoredTrial:
    known: dict[str, Any] = {
        "combination": Combination.of({"lib": value, "python": "3.11"}),
        "outcome": Outcome.EXIT_FAIL if evidence is Evidence.BAD else Outcome.PASS,
        "evidence": evidence,
        "signature": signature,
        "started_at": datetime(2026, 1, 1, tzinfo=UTC),
        "recorded_at": datetime(2026, 1, 1, tzinfo=UTC),
        "phase": Phase.BODY,
        "copies": {},
        "returncode": 1,
    }
    texts = {"trial_id", "lock_hash", "detail", "host", "worker", "gpu", "study_id"}
    for one in fields(StoredTrial):
        if one.name not in known and one.default is MISSING and one.default_factory is MISSING:
            known[one.name] = "" if one.name in texts else 0
    return StoredTrial(**known)
