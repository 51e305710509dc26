"""`--format junit`: one test suite per study, one test case per combination. Pure.

A combination that the verdict calls bad is a failure. A combination that could not be tried is skipped. A
combination is an error if all its trials failed in ways that the study is not about. Untried combinations,
and those whose trials belong to an equal combination, have no test case.
"""

from __future__ import annotations

import io
import unicodedata

from junitparser import Attr, Error, Failure, JUnitXml, Skipped, SystemOut, TestCase, TestSuite
from junitparser.junitparser import FinalResult

from bisect_env.answers.phrases import how_many, interval, percent
from bisect_env.answers.untrusted import LINE_WIDTH, clean, clean_lines, shortened, shown_lines
from bisect_env.report import words
from bisect_env.report.model import CombinationReport, Report
from bisect_env.report.text import report_text


class _Suite(TestSuite):
    """A `<testsuite>` element with the additional attribute `id`, which holds the id of the study."""

    id = Attr()


def junit_text(report: Report) -> str:
    """Return the report as JUnit XML, with a final newline."""
    suite = _Suite(_legal(clean(report.study.name)))
    suite.id = report.study.id
    suite.timestamp = f"{report.study.created_at:%Y-%m-%dT%H:%M:%S}"
    for name, value in _properties(report):
        suite.add_property(name, _legal(clean(value)))
    suite.add_testcases([_case(one, report) for one in report.combinations if _is_told(one)])
    suite.append(SystemOut(_legal(report_text(report))))  # type: ignore[no-untyped-call]
    document = JUnitXml()
    document.add_testsuite(suite)
    written = io.BytesIO()
    document.write(written, pretty=True)
    return written.getvalue().decode("utf-8").rstrip("\n") + "\n"


def _is_told(one: CombinationReport) -> bool:
    if not one.is_runnable:
        return True
    return one.same_as is None and bool(one.counted or one.other or one.skip)


def _properties(report: Report) -> list[tuple[str, str]]:
    verdict, study = report.verdict, report.study
    chance = verdict.probability
    found = [
        ("verdict", verdict.status),
        ("sentence", report.sentence),
        ("probability", "" if chance is None else f"{chance:.6f}"),
        ("study", study.id),
        ("matrix", study.matrix),
        ("bisect-env", study.version),
        ("exclude-newer", study.exclude_newer.isoformat() if study.exclude_newer else ""),
        *(("machine", machine) for machine in words.machines(report)),
        ("assumed", words.untested(report)),
        *(("what would help", line) for line in report.advice),
        *(("warning", warning) for warning in report.warnings),
    ]
    return [(name, value) for name, value in found if value]


def _case(one: CombinationReport, report: Report) -> TestCase:
    case = TestCase(
        _legal(words.named(one.combination)), _legal(clean(report.study.name)), round(one.seconds, 3)
    )
    if not one.is_runnable:
        message = f"{one.status}: {clean(one.reason) or 'no reason given'}"
        case.result = _result(Skipped(_legal(message)), clean_lines(one.reason))
        return case
    rate = ""
    outcomes = ", ".join(f"{name} {number}" for name, number in one.outcomes.items())
    if one.rate is not None:
        shown = f"{percent(one.rate)}, 95 % interval {interval(*one.interval)}"
        rate = f"{one.bad} of {one.counted} trials were bad ({shown}): {outcomes}"
    is_bad = one.bad > 0 if one.verdict is None else one.verdict == "bad"
    if is_bad:
        kind = max(one.outcomes, key=lambda name: (name != "pass", one.outcomes[name]), default="bad")
        message = rate or "called bad by the verdict; nothing was counted here"
        case.result = _result(Failure(_legal(message), _legal(kind)), _stack(one, report))
    elif not one.counted:
        message = f"no trial says good or bad: {outcomes}"
        case.result = _result(Error(_legal(message), "other"), _stack(one, report))
    else:
        case.system_out = _legal(rate)
    return case


def _result(result: FinalResult, text: str) -> FinalResult:
    result.text = _legal(text)
    return result


def _stack(one: CombinationReport, report: Report) -> str:
    """Return the failures at a combination as text with their stacks.

    If the report has no failure from this combination, the most frequent one of the study is returned.
    """
    wanted = "bad" if one.bad else "other"
    known = [failure for failure in report.failures if failure.evidence == wanted]
    here = [failure for failure in known if failure.combination == one.combination]
    return "\n\n".join(
        f"{words.described(failure)} ({how_many(failure.trials, 'trial')})\n"
        f"{shortened(clean(failure.detail), LINE_WIDTH)}\n"
        f"example: {words.named(failure.combination)}, trial {clean(failure.trial)}\n"
        f"{shown_lines(failure.stack)}"
        for failure in (here or known[:1])
    )


def _legal(text: str) -> str:
    """Return a text without the characters that XML 1.0 does not allow."""
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs", "Cn"))
