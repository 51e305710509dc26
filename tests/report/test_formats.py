"""No format lacks what another says, unless it is named here with the reason; the schema of the document."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

from bisect_env.report.build import load_report
from bisect_env.report.formats import Format, formatted, json_text, report_json_schema, report_schema_text
from bisect_env.report.model import Report
from bisect_env.storage.store import Store
from tests.report.samples import StudyBuilder, axis, hostile_study, orjson_study, orjson_verdict

ROOT = Path(__file__).parents[2]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(str(tmp_path / "results.sqlite")) as store:
        yield store


@pytest.fixture
def report(store: Store) -> Report:
    """A study that has something of everything."""
    found = load_report(store, hostile_study(store, "calm").study.id)
    reused = {"study_id": "f" * 32, "study": "older", "user": "ann", "host": "box", "trials": 4}
    target = "crash:calm in body, at calm:f < main.py:run (v2)"
    advice = ["say `files: [data.csv]` in `trial`"]
    traced = {"sentence": found.sentence, "study": "e" * 32, "releases": "numpy 2.0 is the first bad version"}
    commit = {
        "axis": "torch",
        "package": "torch",
        "commit": "c" * 40,
        "subject": "Read lazily calm (#812)",
        "author": "Ann",
        "authored": "2026-03-02T10:11:00+01:00",
        "committed": "2026-03-03T10:11:00+01:00",
        "pull_request": 812,
        "files": [["src/calm.py", 31, 12], ["logo.png", None, None]],
        "changed": 2,
        "added": 31,
        "removed": 12,
        "compare": "https://example.org/a/b/compare/x...y",
        "last_good": {"commit": "d" * 40, "subject": "Bump"},
        "log": ["git bisect start", "git bisect bad " + "c" * 40],
    }
    changes = {"reused": [reused], "target": target, "advice": advice, "traced": traced, "commit": commit}
    return Report.read({**found.document(), **changes})


def needles(report: Report) -> dict[str, list[str]]:
    """For each key of the document what a format must hold to show it."""
    study = report.study
    assert report.difference is not None
    return {
        "study.id": [study.id[:8]],
        "study.name": [study.name],
        "study.status": ["ended"],
        "study.description": ["it crashes"],
        "study.matrix": ["matrices/hostile-4.yaml"],
        "study.created_at": [f"{study.created_at:%H:%M:%S}"],
        "study.finished_at": [f"{study.finished_at:%H:%M:%S}"],
        "study.exclude_newer": ["2026-11-01"],
        "study.version": ["0.1.0"],
        "axes": ["torch", "cuml", "mode"],
        "target": ["crash:calm in body, at calm:f < main.py:run"],
        "advice": list(report.advice),
        "trials": ["17 trials"],
        "trial_counts": ["3 bad, 14 good", "4 other, 3 void"],
        "environments": ["2 environments"],
        "reused": ["4 by ann on box in study ffffffff (older)"],
        "failures": ["crash:calm in body, at calm:f", "SIGSEGV calm", "File calm"],
        "failures.other": ["exit-fail"],
        "stability": ["Bayes factor"],
        "warnings": list(report.warnings),
        "work": ["1 environment built in 2.5 s, 1 could not be built"],
        "machines": ["x86_64 H100calm driver 570"],
        "difference": ["2 packages changed (the one you asked about, and 1 more)", "1.26", "2.0calm"],
        "explanation": ["not torch itself: calm"],
        "explanation.intermediates": ["2 of 7"],
        "traced": ["numpy 2.0 is the first bad version (study eeeeeeee)"],
        "commit": ["c" * 40, "Read lazily calm (#812)", "+31 −12 lines", "src/calm.py  +31 −12", "#812"],
        "commit.compare": ["https://example.org/a/b/compare/x...y"],
        "commit.log": ["git bisect start"],
        "question": ["version: 1", "print('planted')"],
        "reproduce": [step.commands[0] for step in report.reproduce],
        "reproduce.all": [command for step in report.reproduce for command in step.commands],
        "combinations.rate": ["38 %", "8.5–76 %"],
        "combinations.reason": ["no solution calm", "compiler calm"],
        "combinations.warning": ["two CUDAs calm"],
        "combinations.lock": [str(one.lock)[:12] for one in report.combinations if one.lock][-1:],
        "combinations.other": ["4 failed otherwise"],
        "combinations.same_as": ["torch=2.1"],
        "combinations.outcomes": ["crash 3"],
        "verdict.sentence": [report.sentence],
        "verdict.status": ["likely"],
        "verdict.reason": ["probability calm"],
        "verdict.first_bad": ["torch=2.3calm cuml=24.06 mode=plain"],
        "verdict.last_good": ["torch=2.2 cuml=24.06 mode=plain"],
        "verdict.culprit_axes": ["torch"],
        "verdict.probability": ["97 %"],
        "verdict.bad_rate": ["3 of 8"],
        "verdict.good_rate": ["0 of 9"],
        "verdict.candidates": ["20 %"],
        "verdict.unexplained": ["the verdict does not explain torch=2.2"],
        "verdict.others": ["also bad", "such as"],
        "verdict.no_other": ["nothing else fails"],
        # A warning that is left out where an end is wrong, as here: tests/report/test_report.py has it.
        "verdict.monotone": [],
        "verdict.untested": [
            "torch 2.2 called good (3 trials, no failure; 61 % chance of that if all are bad)"
        ],
        "verdict.models": ["share one rate"],
        "verdict.typical_bad_rate": ["typical rate"],
        "verdict.background_rate": ["background rate"],
        "verdict.chance_of_luck": ["4 %"],
        "verdict.bayes_factors": ["evidence against no difference at all 32 to 1"],
        "verdict.ends_wrong": ["stated ends that are not as stated"],
        "verdict.expected_left": ["trials still needed"],
        "verdict.expected_environments_left": ["environments still to be built"],
    }


DEEP = {
    "stability",
    "combinations.lock",
    "combinations.outcomes",
    "verdict.models",
    "verdict.typical_bad_rate",
    "verdict.background_rate",
    "verdict.chance_of_luck",
    "verdict.bayes_factors",
    "verdict.ends_wrong",
    "verdict.expected_left",
    "verdict.expected_environments_left",
    "study.description",
    "study.created_at",
    "study.finished_at",
}
"""Figures behind the answer, for the page and for programs; the noteworthy is a warning everywhere."""
NOT_SHOWN = {
    # One screen: it names the page and the data.
    "text": DEEP
    | {"question", "commit.log", "explanation.intermediates", "study.exclude_newer"}
    | {"study.version", "failures.other", "machines", "verdict.status", "combinations.warning"},
    # For a bug report: what a maintainer of the package needs.
    "md": DEEP | {"verdict.status", "combinations.warning"},
    # Test cases, and what belongs to all of them.
    "junit": DEEP - {"combinations.outcomes"}
    | {"question", "commit.log", "explanation.intermediates"}
    | {"combinations.warning", "combinations.same_as", "combinations.other"},
    "html": set(),
}
"""Keys that a format leaves out."""


@pytest.mark.parametrize("form", NOT_SHOWN)
def test_each_format_shows_each_key(report: Report, form: str) -> None:
    text = formatted(report, form)
    if form == "html":
        text = re.sub(r"<(script|style)>.*?</\1>", "", text, flags=re.DOTALL)
        text = re.sub(r"<[^>]*>", " ", text)
    if form in ("html", "junit"):
        text = html.unescape(text)
    plain = " ".join(text.replace("\\", "").replace("`", "").replace("&amp;", "&").split())
    wanted = needles(report)
    lacking = {
        key: needle
        for key, found in wanted.items()
        if key not in NOT_SHOWN[form]
        for needle in found
        if " ".join(needle.replace("`", "").replace("\\", "").split()) not in plain
    }
    assert lacking == {}


def test_no_key_is_forgotten(report: Report) -> None:
    document = report.document()
    keys = {key.partition(".")[0] for key in needles(report)}
    assert set(document) - {"schema"} == keys - {"schema"} | {"verdict", "combinations"}
    told = {key.removeprefix("verdict.") for key in needles(report) if key.startswith("verdict.")}
    # What these say is in the sentence, or in other keys; and other answers than this one have these.
    said_elsewhere = {"kind", "bad_values", "directions", "boundaries", "trials", "weighed", "pattern"}
    of_others = {"certain", "cleared", "compatibility", "table"}
    assert set(document["verdict"]) - told == said_elsewhere | of_others
    assert set(Format) == {"text", "html", "md", "json", "junit", "csv"}


# -- the schema --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_documents_are_as_the_schema_says(report: Report, store: Store) -> None:
    schema = report_json_schema()
    validator = jsonschema.Draft202012Validator
    validator.check_schema(schema)
    study = orjson_study(store)
    unfinished = load_report(store, study.study.id)
    study.finished(orjson_verdict())
    for one in (report, unfinished, load_report(store, study.study.id)):
        validator(schema).validate(json.loads(json_text(one)))
    with pytest.raises(jsonschema.ValidationError):
        validator(schema).validate({**report.document(), "schema": 2})
    with pytest.raises(jsonschema.ValidationError):
        validator(schema).validate({k: v for k, v in report.document().items() if k != "verdict"})


def test_the_committed_schema_is_this_one() -> None:
    committed = (ROOT / "docs" / "reference" / "report-schema.json").read_text("utf-8")
    assert committed == report_schema_text(), "run `make schema`"


def test_every_key_of_a_verdict_and_of_an_explanation_is_described() -> None:
    definitions = report_json_schema()["$defs"]
    left, seen = ["VerdictDocument", "Explanation"], set()
    while left:
        name = left.pop()
        seen.add(name)
        for key, value in definitions[name].get("properties", {}).items():
            assert value.get("description"), f"{name}.{key}"
            left += set(re.findall(r"#/\$defs/(\w+)", json.dumps(value))) - seen
    assert {"VerdictDocument", "NeighbourPair", "UntriedCombination", "CalledCombination"} <= seen


@pytest.mark.parametrize("form", ["html", "junit", "md", "text"])
def test_a_line_of_a_megabyte_is_cut(store: Store, form: str) -> None:
    study = StudyBuilder(store, [axis("a", "1", "2")])
    study.passes({"a": "1"}, 2)
    study.crashes({"a": "2"}, 2, stack=f"before\n{'x' * 1_000_000}\nafter", detail="y" * 1_000_000)
    text = formatted(load_report(store, study.study.id), form)
    assert max(map(len, text.splitlines())) < 100_000
    assert len(text) < 250_000
    assert "before" in text
    assert "after" in text
    assert "x…" in text
