"""`--format junit`: one test suite a study, one test case a combination. Pure.

A combination that the verdict calls bad is a failure; one that could not be tried is skipped; one whose
trials all failed in a way that the study is not about is an error. Combinations that nobody tried, and those
whose trials are another one's, have no test case.
"""

from __future__ import annotations

import unicodedata
import xml.etree.ElementTree as ET

from bisect_env.report import words
from bisect_env.report.model import CombinationReport, Report
from bisect_env.report.sentence import interval, percent
from bisect_env.report.untrusted import LINE_WIDTH, clean, clean_lines, shortened, shown_lines


def junit_text(report: Report) -> str:
    """The report as JUnit XML, with a final newline."""
    cases = [one for one in report.combinations if _is_told(one)]
    suite = ET.Element("testsuite")
    counts = {"failures": 0, "errors": 0, "skipped": 0}
    properties = ET.SubElement(suite, "properties")
    for name, value in _properties(report):
        ET.SubElement(properties, "property", {"name": name, "value": _legal(clean(value))})
    for one in cases:
        kind = _case(suite, one, report)
        if kind:
            counts[kind] += 1
    ET.SubElement(suite, "system-out").text = _legal(_told(report))
    suite.attrib.update(
        {
            "name": _legal(clean(report.study.name)),
            "id": report.study.id,
            "tests": str(len(cases)),
            **{name: str(number) for name, number in counts.items()},
            "time": f"{sum(one.seconds for one in cases):.3f}",
            "timestamp": f"{report.study.created_at:%Y-%m-%dT%H:%M:%S}",
        }
    )
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _is_told(one: CombinationReport) -> bool:
    if not one.is_runnable:
        return True
    return one.same_as is None and bool(one.counted or one.other or one.skip)


def _properties(report: Report) -> list[tuple[str, str]]:
    verdict, study = report.verdict, report.study
    chance = verdict.get("probability")
    found = [
        ("verdict", str(verdict.get("status", "none"))),
        ("sentence", report.sentence),
        ("probability", "" if chance is None else f"{chance:.6f}"),
        ("study", study.id),
        ("matrix", study.matrix),
        ("bisect-env", study.version),
        ("exclude-newer", study.exclude_newer.isoformat() if study.exclude_newer else ""),
        *(("machine", machine) for machine in words.machines(report)),
        ("assumed", words.assumed(report)),
        *(("what would help", line) for line in report.advice),
        *(("warning", warning) for warning in report.warnings),
    ]
    return [(name, value) for name, value in found if value]


def _case(suite: ET.Element, one: CombinationReport, report: Report) -> str | None:
    """Append a combination; which of the suite's counters it belongs to."""
    case = ET.SubElement(
        suite,
        "testcase",
        {
            "classname": _legal(clean(report.study.name)),
            "name": _legal(words.named(one.combination)),
            "time": f"{one.seconds:.3f}",
        },
    )
    if not one.is_runnable:
        message = f"{one.status}: {clean(one.reason) or 'no reason given'}"
        ET.SubElement(case, "skipped", {"message": _legal(message)}).text = _legal(clean_lines(one.reason))
        return "skipped"
    rate = ""
    outcomes = ", ".join(f"{name} {number}" for name, number in one.outcomes.items())
    if one.rate is not None:
        shown = f"{percent(one.rate)}, 95 % interval {interval(*one.interval)}"
        rate = f"{one.bad} of {one.counted} trials were bad ({shown}): {outcomes}"
    is_bad = one.bad > 0 if one.verdict is None else one.verdict == "bad"
    if is_bad:
        kind = max(one.outcomes, key=lambda name: (name != "pass", one.outcomes[name]), default="bad")
        message = rate or "called bad by the verdict; nothing was counted here"
        ET.SubElement(case, "failure", {"message": message, "type": kind}).text = _legal(_stack(one, report))
        return "failures"
    if not one.counted:
        message = f"no trial says good or bad: {outcomes}"
        ET.SubElement(case, "error", {"message": message, "type": "other"}).text = _legal(_stack(one, report))
        return "errors"
    ET.SubElement(case, "system-out").text = rate
    return None


def _stack(one: CombinationReport, report: Report) -> str:
    """What was seen there, else the same failure elsewhere."""
    wanted = "bad" if one.bad else "other"
    known = [failure for failure in report.failures if failure.evidence == wanted]
    here = [failure for failure in known if failure.combination == one.combination]
    return "\n\n".join(
        f"{words.described(failure)} ({failure.trials} trials)\n"
        f"{shortened(clean(failure.detail), LINE_WIDTH)}\n"
        f"example: {words.named(failure.combination)}, trial {clean(failure.trial)}\n"
        f"{shown_lines(failure.stack)}"
        for failure in (here or known[:1])
    )


def _told(report: Report) -> str:
    """What belongs to the study as a whole."""
    lines = [clean(report.sentence), words.summary(report)]
    lines += [line for line in (words.reused(report), words.timing(report), words.course(report)) if line]
    lines += [f"{title}: {what}" for title, what in words.ends(report)]
    lines += [f"or ({chance}): {what}" for chance, what in words.alternatives(report)]
    if report.difference is not None:
        lines.append(f"packages from last good to first bad: {report.difference.summary}")
        for one in report.difference.changes:
            name, before, after, beside = words.change(one)
            lines.append(f"  {name} {before} → {after}{f' ({beside})' if beside else ''}")
    for step in report.reproduce:
        lines += [f"{clean(step.title)}:", *(f"  {clean(command)}" for command in step.commands)]
    return "\n".join(lines)


def _legal(text: str) -> str:
    """Without the characters that XML 1.0 cannot hold."""
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs", "Cn"))
