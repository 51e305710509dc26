"""The JUnit report, read by a library that programs read such files with."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import junitparser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_env.report.build import load_report
from bisect_env.report.junit import junit_text
from bisect_env.report.model import Report
from bisect_env.storage.store import Store
from bisect_env.trials.records import Outcome
from tests.report.samples import CRASHES, StudyBuilder, axis, hostile_study, orjson_study, orjson_verdict


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(str(tmp_path / "results.sqlite")) as store:
        yield store


def suite_of(report: Report, tmp_path: Path) -> junitparser.TestSuite:
    path = tmp_path / "report.xml"
    path.write_text(junit_text(report), encoding="utf-8")
    (suite,) = junitparser.JUnitXml.fromfile(str(path))
    return suite


def test_a_study_is_a_suite(store: Store, tmp_path: Path) -> None:
    study = orjson_study(store)
    study.finished(orjson_verdict())
    report = load_report(store, study.study.id)
    suite = suite_of(report, tmp_path)
    assert (suite.name, suite.tests, suite.failures, suite.errors, suite.skipped) == (
        "orjson_crash",
        5,
        2,
        0,
        1,
    )
    assert suite.time == pytest.approx(43 * 0.25)
    cases = {case.name: case for case in suite}
    assert list(cases) == [f"python=3.11 orjson=3.9.{n}" for n in (7, 10, 11, 13, 14)]
    assert cases["python=3.11 orjson=3.9.10"].result == []
    (failure,) = cases["python=3.11 orjson=3.9.11"].result
    assert isinstance(failure, junitparser.Failure)
    assert failure.message == "3 of 18 trials were bad (17 %, 95 % interval 3.6–41 %): crash 3, pass 15"
    assert failure.type == "crash"
    assert "line 3 in main" in failure.text
    assert cases["python=3.11 orjson=3.9.11"].time == pytest.approx(4.5)
    (skipped,) = cases["python=3.11 orjson=3.9.13"].result
    assert isinstance(skipped, junitparser.Skipped)
    assert "has no wheel" in skipped.message
    properties = {p.name: p.value for p in suite.properties()}
    assert properties["sentence"] == report.sentence
    assert properties["verdict"] == "confirmed"
    # What belongs to the study as a whole is told once, beside the cases.
    element = ET.fromstring(junit_text(report)).find("testsuite")
    assert element is not None
    assert element.get("id") == study.study.id
    told = element.findtext("system-out") or ""
    assert told.startswith(report.sentence)
    assert "No package differs" in told
    # The totals are what the cases say.
    before = (suite.tests, suite.failures, suite.errors, suite.skipped)
    suite.update_statistics()
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == before


def test_without_a_verdict_what_failed_is_a_failure(store: Store, tmp_path: Path) -> None:
    study = StudyBuilder(store, [axis("a", "1", "2", "3", "4")], target=CRASHES)
    study.passes({"a": "1"}, 2)
    study.crashes({"a": "2"}, 1)
    study.trials({"a": "3"}, Outcome.EXIT_FAIL, 2, stderr="other trouble")
    suite = suite_of(load_report(store, study.study.id), tmp_path)
    kinds = {case.name: [type(one).__name__ for one in case.result] for case in suite}
    assert kinds == {"a=1": [], "a=2": ["Failure"], "a=3": ["Error"]}
    (error,) = [case.result[0] for case in suite if case.name == "a=3"]
    assert "no trial says good or bad: exit-fail 2" in error.message
    assert "other trouble" in error.text


def test_whatever_others_wrote_it_is_xml(store: Store, tmp_path: Path) -> None:
    evil = "]]></failure><failure/> \x00\x08\x1b[31m \ud800 \uffff \u202e &lt; é"
    study = hostile_study(store, evil.replace("\ud800", ""))
    text = junit_text(load_report(store, study.study.id))
    root = ET.fromstring(text)
    assert len(root.findall(".//failure")) == int(root.find("testsuite").get("failures", "0"))  # type: ignore[union-attr]
    suite = suite_of(load_report(store, study.study.id), tmp_path)
    assert any("]]></failure><failure/>" in (one.text or "") for case in suite for one in case.result)


@pytest.mark.slow
@given(st.text())
def test_any_text_makes_a_file_that_can_be_read(text: str) -> None:
    plain = Report.read(
        {
            "study": {"id": "0" * 32, "name": text, "status": "open", "created_at": "2026-11-02T08:00:00Z"},
            "verdict": {"status": "none", "sentence": text, "reason": text},
            "trials": 0,
            "trial_counts": {},
            "environments": 0,
            "combinations": [{"combination": {text: text}, "status": "env-unsolvable", "reason": text}],
            "warnings": [text],
        }
    )
    ET.fromstring(junit_text(plain).encode("utf-8"))
