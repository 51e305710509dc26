"""The model, the document and the text, from studies in a real database."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bisect_env.answers.axes import AxisInfo
from bisect_env.answers.untrusted import write
from bisect_env.answers.verdict_document import NeighbourPair, VerdictDocument, calls_bad
from bisect_env.environments.lock import LockedPackage
from bisect_env.matrix.grid import Combination
from bisect_env.report.build import load_report, report_document
from bisect_env.report.doubts import verdict_warnings
from bisect_env.report.formats import formatted, json_text
from bisect_env.report.model import Report
from bisect_env.report.text import STACK_LINES, report_text, stack_lines
from bisect_env.report.words import ROWS, rows
from bisect_env.search.numeric import clopper_pearson
from bisect_env.storage.store import Store
from bisect_env.trials.records import Machine, Outcome
from tests.report.samples import CRASHES, StudyBuilder, axis, orjson_study, orjson_verdict, rate, verdict
from tests.report.samples import record as samples_record
from tests.storage.samples import record_trial, signature


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(str(tmp_path / "results.sqlite")) as store:
        yield store


@pytest.fixture
def study(store: Store) -> StudyBuilder:
    study = orjson_study(store)
    study.finished(orjson_verdict())
    return study


@pytest.fixture
def report(store: Store, study: StudyBuilder) -> Report:
    return load_report(store, study.study.id)


def row(report: Report, **values: str) -> Any:
    (found,) = [one for one in report.combinations if values.items() <= one.combination.items()]
    return found


# -- the document ------------------------------------------------------------------------------------------


def test_the_document_has_what_was_promised(report: Report, store: Store) -> None:
    document = report_document(store, report.study.id)
    assert document["schema"] == 1
    assert document["study"]["id"] == report.study.id
    assert document["study"]["name"] == "orjson_crash"
    said = document["verdict"]
    assert said["status"] == "confirmed"
    assert said["first_bad"] == {"python": "3.11", "orjson": "3.9.11"}
    assert said["last_good"] == {"python": "3.11", "orjson": "3.9.10"}
    assert said["culprit_axes"] == ["orjson"]
    assert said["probability"] == 0.9712
    assert said["reason"].startswith("probability")
    assert said["sentence"].startswith("orjson 3.9.11 is the first bad version")
    assert ": crashed in 3 of 18 trials" in said["sentence"]
    assert document["trials"] == 42
    assert document["trial_counts"] == {"good": 38, "bad": 4, "other": 0, "void": 1, "skip": 0}
    assert document["environments"] == 4
    assert [one["combination"]["orjson"] for one in document["combinations"]] == list(report.axes[1].values)


def test_one_row_of_the_document(report: Report, study: StudyBuilder) -> None:
    low, high = clopper_pearson(3, 18)
    first_bad = json.loads(json_text(report))["combinations"][4]
    assert len(first_bad.pop("lock")) == 64
    assert first_bad == {
        "combination": {"python": "3.11", "orjson": "3.9.11"},
        "status": "solvable",
        "reason": "",
        "good": 15,
        "bad": 3,
        "other": 0,
        "void": 0,
        "skip": 0,
        "outcomes": {"crash": 3, "pass": 15},
        "rate": 3 / 18,
        "interval": [low, high],
        "verdict": "bad",
        "same_as": None,
        "seconds": 4.5,
    }
    untried = row(report, orjson="3.9.12")
    assert (untried.rate, untried.interval, untried.verdict) == (None, (0.0, 1.0), "bad")
    gone = row(report, orjson="3.9.13")
    assert (gone.status, gone.lock, gone.verdict) == ("env-unsolvable", None, None)
    assert "has no wheel" in gone.reason


def test_a_document_can_be_read_again(report: Report) -> None:
    again = Report.read(json.loads(json_text(report)))
    assert again == report
    assert report_text(again) == report_text(report)
    newer = {**report.document(), "invented_later": {"x": 1}}
    assert Report.read(newer) == report


def test_json_is_strict_and_ascii(store: Store) -> None:
    study = orjson_study(store)
    study.finished(orjson_verdict(expected_left=float("inf"), reason="\x1b[31m☃"))
    text = json_text(load_report(store, study.study.id))
    assert text.isascii()
    assert "\x1b" not in text
    assert json.loads(text, parse_constant=pytest.fail)["verdict"]["expected_left"] is None


@pytest.mark.parametrize(
    ("status", "expected"),
    [("env-unbuildable", "env-unbuildable"), ("set-aside", "set-aside"), ("excluded", "excluded")],
)
def test_statuses(store: Store, status: str, expected: str) -> None:
    study = StudyBuilder(store, [axis("a", "1", "2")])
    study.fill(lambda cell: (status, "because\nof this") if cell["a"] == "2" else ("solvable", ""))
    found = row(load_report(store, study.study.id), a="2")
    assert (found.status, found.reason, found.verdict) == (expected, "because\nof this", None)


def test_combinations_with_one_environment_share_their_trials(store: Store) -> None:
    study = StudyBuilder(
        store, [axis("day", "1", "2", "3", kind="date"), axis("threads", "1", "8", kind="value")]
    )
    study.fill(lock_of=lambda cell: "same" if cell["day"] in "12" else "other")
    study.trials({"day": "1", "threads": "8"}, Outcome.CRASH, 3, "same")
    study.trials({"day": "1", "threads": "8"}, Outcome.PASS, 1, "same")
    report = load_report(store, study.study.id)
    shared = row(report, day="2", threads="8")
    assert (shared.bad, shared.good, shared.same_as) == (3, 1, {"day": "1", "threads": "8"})
    assert row(report, day="1", threads="8").same_as is None
    # Another value of a value axis is another measurement, although the environment is the same.
    assert row(report, day="2", threads="1").counted == 0
    assert row(report, day="3", threads="8").counted == 0
    assert report.trials == 4
    assert "same environment as day=1" in report_text(report)


@pytest.mark.parametrize(
    ("document", "cell", "expected"),
    [
        ({"status": "none", "kind": "all", "bad_values": {"a": ["1"]}}, {"a": "1"}, None),
        (
            {"status": "likely", "kind": "all", "bad_values": {"a": ["1"], "b": ["2"]}},
            {"a": "1", "b": "2"},
            True,
        ),
        (
            {"status": "likely", "kind": "all", "bad_values": {"a": ["1"], "b": ["2"]}},
            {"a": "1", "b": "1"},
            False,
        ),
        (
            {"status": "likely", "kind": "any", "bad_values": {"a": ["1"], "b": ["2"]}},
            {"a": "1", "b": "1"},
            True,
        ),
        (
            {"status": "likely", "kind": "any", "bad_values": {"a": ["1"], "b": ["2"]}},
            {"a": "3", "b": "1"},
            False,
        ),
        ({"status": "likely", "kind": "always"}, {"a": "1"}, True),
        ({"status": "likely", "kind": "never"}, {"a": "1"}, False),
        ({"status": "likely", "kind": "all", "bad_values": {}}, {"a": "1"}, None),
        ({}, {"a": "1"}, None),
    ],
)
def test_what_a_verdict_says_of_a_combination(
    document: dict[str, Any], cell: dict[str, str], expected: bool | None
) -> None:
    assert calls_bad(VerdictDocument.model_validate(document))(cell) is expected


def test_frequent_other_failures_and_spoilt_trials_are_warned_about(store: Store) -> None:
    study = StudyBuilder(store, [axis("a", "1", "2", "3")], target=CRASHES)
    study.passes({"a": "1"}, 10)
    study.trials({"a": "1"}, Outcome.EXIT_FAIL, 5)
    study.trials({"a": "1"}, Outcome.IMPORT_ERROR, 1)
    study.passes({"a": "2"}, 50)
    study.trials({"a": "2"}, Outcome.EXIT_FAIL, 3)
    study.trials({"a": "3"}, Outcome.HOST_OOM, 9)
    report = load_report(store, study.study.id)
    assert report.warnings == (
        (
            "a=1: 6 of 16 trials failed in another way (5 as exit-fail, 1 as import-error); "
            "they are not counted, and can hide the answer"
        ),
        "9 of 78 trials were lost to the infrastructure (host-oom 9); they say nothing about the script",
    )
    assert f"warning: {report.warnings[0]}" in report_text(report)


def test_bad_failures_come_before_more_frequent_other_ones(store: Store) -> None:
    study = StudyBuilder(store, [axis("a", "1", "2")], target=CRASHES)
    for kind in range(6):
        study.trials({"a": "1"}, Outcome.EXIT_FAIL, 4, signature=signature(f"other {kind}"))
    study.crashes({"a": "2"}, 2)
    report = load_report(store, study.study.id)
    assert [failure.evidence for failure in report.failures] == ["bad"] + ["other"] * 4


def test_a_failure_without_a_stack_shows_the_end_of_its_output(store: Store) -> None:
    study = StudyBuilder(store, [axis("a", "1", "2")])
    lines = "\n".join(f"line {i}" for i in range(100))
    study.trials({"a": "2"}, Outcome.EXIT_FAIL, 1, stderr=lines, stack="", signature="")
    (failure,) = load_report(store, study.study.id).failures
    assert failure.stack.splitlines() == [f"line {i}" for i in range(85, 100)]


# -- the text ----------------------------------------------------------------------------------------------


def test_the_text_of_a_confirmed_study(report: Report) -> None:
    short = report.study.id[:8]
    trial = next(f.trial for f in report.failures)[:8]
    place = "at orjson/__init__.py:dumps < script.py:main (v1)"
    assert (
        report_text(report)
        == f"""\
orjson 3.9.11 is the first bad version (last good 3.9.10): crashed in 3 of 18 trials (17 %, 95 % interval \
3.6–41 %) against 0 of 12 (0–26 %); probability 97 % after 42 trials

orjson_crash (study {short}, ended): 42 trials (4 bad, 38 good; not counted: 1 void), 4 environments
  within 0.2 s
  first bad   python=3.11 orjson=3.9.11
  last good   python=3.11 orjson=3.9.10

orjson  bad  trials  rate (95 % interval)
3.9.7     0       4  0 % (0–60 %)          good
3.9.8     0       0                        good (not tried)
3.9.9     0       0                        good (not tried)
3.9.10    0      12  0 % (0–26 %)          good, ← last good
3.9.11    3      18  17 % (3.6–41 %)       bad, ← first bad
3.9.12    0       0                        bad (not tried)
3.9.13                                     env-unsolvable
3.9.14    1       8  12 % (0.3–53 %)       bad

env-unsolvable: python=3.11 orjson=3.9.13: × No solution found: ╰─▶ orjson 3.9.13 has no wheel

Most frequent failure (4 of 4 bad trials): crash:SIGSEGV in body, {place}
  SIGSEGV
  example: python=3.11 orjson=3.9.11 (all that it printed: bisect-env report --trial {trial})
    Fatal Python error: Segmentation fault
      File "script.py", line 3 in main

No package differs

How to reproduce:
  bisect-env reproduce {report.study.id[:12]} --output repro
  cd repro
  uv venv --python 3.11 env
  uv pip sync --python env/bin/python --require-hashes requirements.txt
  PATH="$PWD/env/bin:$PATH" ./run.sh 100
  bisect-env trial matrices/orjson_crash.yaml --at orjson=3.9.11 # first bad
  bisect-env trial matrices/orjson_crash.yaml --at orjson=3.9.10 # last good
  bisect-env run matrices/orjson_crash.yaml --fresh

To read in a browser: bisect-env report {short} --format html -o report.html
Everything as data: bisect-env report {short} --format json
"""
    )


def test_the_answer_fits_a_screen(report: Report) -> None:
    short = report.study.id[:8]
    trial = report.failures[0].trial[:8]
    assert (
        report_text(report, details=False)
        == f"""\
orjson 3.9.11 is the first bad version (last good 3.9.10): crashed in 3 of 18 trials (17 %, 95 % interval \
3.6–41 %) against 0 of 12 (0–26 %); probability 97 % after 42 trials

orjson  bad  trials  rate (95 % interval)
3.9.7     0       4  0 % (0–60 %)          good
3.9.10    0      12  0 % (0–26 %)          good, ← last good
3.9.11    3      18  17 % (3.6–41 %)       bad, ← first bad
3.9.13                                     env-unsolvable
3.9.14    1       8  12 % (0.3–53 %)       bad
… and 3 more combinations

crash:SIGSEGV in body, at orjson/__init__.py:dumps < script.py:main (v1) (4 of 4 bad trials)
    Fatal Python error: Segmentation fault
      File "script.py", line 3 in main
all that it printed: bisect-env report --trial {trial}

Next:
  bisect-env reproduce {report.study.id[:12]} --output repro  # to see it again
  bisect-env report {short} --details  # everything; a page to share: --format html -o report.html
"""
    )


@pytest.mark.slow
@pytest.mark.parametrize("size", [30, 300, 3000])
def test_the_answer_fits_a_screen_however_large_the_study_is(store: Store, size: int) -> None:
    axes = [axis("lib", *[f"1.{i}" for i in range(size)])]
    stack = "\n".join(f"  frame {i}" for i in range(500))
    study = StudyBuilder(store, axes)
    for i in range(0, size, max(1, size // 40)):
        if i > size // 2:
            study.crashes({"lib": f"1.{i}"}, 2, stack=stack)
        else:
            study.passes({"lib": f"1.{i}"}, 2)
    bad, good = ({"lib": f"1.{size // 2 + more}"} for more in (1, 0))
    study.passes(good, 2)
    study.crashes(bad, 2, stack=stack)
    study.finished(verdict(axes, bad, good))
    text = report_text(load_report(store, study.study.id), details=False)
    assert len(text.splitlines()) <= 24
    for said in ("← last good", "← first bad", "  frame 499", "--details"):
        assert said in text
    rows_shown = [line for line in text.splitlines() if line.startswith("1.")]
    assert 5 <= len(rows_shown) <= 10
    assert "not tried" not in text


def test_a_fix_is_told_as_one(store: Store) -> None:
    axes = [axis("lib", "1.0", "1.1", "1.2", direction="fixed")]
    axes[0]["withdrawn"] = ["1.1.1", "1.3"]
    study = StudyBuilder(store, axes)
    study.crashes({"lib": "1.1"}, 4)
    study.passes({"lib": "1.2"}, 4)
    study.finished(verdict(axes, {"lib": "1.1"}, {"lib": "1.2"}))
    report = load_report(store, study.study.id)
    for form in ("text", "md", "html", "junit"):
        text = formatted(report, form) + report_text(report, details=False)
        assert "last bad" in text
        assert "first good" in text
        assert not re.search(r"first bad|last good", text.replace("reproduce first-bad", "")), form
    assert "lib 1.1.1 between 1.1 and 1.2 was withdrawn and not tried" in report_text(report, details=False)


def test_the_packages_of_a_fix_change_from_the_last_bad_to_the_first_good(store: Store) -> None:
    study = StudyBuilder(store, [axis("day", "2020-01-01", "2020-01-02", direction="fixed", kind="date")])
    study.packages = {
        day: (LockedPackage("greenlet", version, "pip", f"https://x.example/{version}.whl", digest * 32),)
        for day, version, digest in (("2020-01-01", "0.4.16", "ab"), ("2020-01-02", "0.4.17", "cd"))
    }
    study.fill()
    study.crashes({"day": "2020-01-01"}, 4)
    study.passes({"day": "2020-01-02"}, 4)
    study.finished(verdict(study.axes, {"day": "2020-01-01"}, {"day": "2020-01-02"}))
    report = load_report(store, study.study.id)
    assert "(last bad 2020-01-01), with greenlet 0.4.16 → 0.4.17: " in report.sentence
    assert "  greenlet 0.4.16 → 0.4.17" in report_text(report)
    assert "| package | last bad | first good |" in formatted(report, "md")
    assert '<th scope="col">last bad</th><th scope="col">first good</th>' in formatted(report, "html")
    assert report.difference is not None
    assert report.difference.before == {"day": "2020-01-01"}


@pytest.mark.slow
@pytest.mark.parametrize("status", ["confirmed", "none"])
def test_a_verdict_without_a_rule_calls_both_sides_of_its_boundary(store: Store, status: str) -> None:
    """The good side fails at the rate of the background, as often as that happens."""
    study = StudyBuilder(store, [axis("a", "1", "2", "3"), axis("b", "1", "2")])
    good, bad = {"a": "1", "b": "1"}, {"a": "1", "b": "2"}
    study.crashes(good, 9)
    study.passes(good, 177)
    study.crashes(bad, 7)
    study.crashes({"a": "2", "b": "1"}, 1)
    study.passes({"a": "2", "b": "1"}, 40)
    study.crashes({"a": "2", "b": "2"}, 3)
    rates = {"typical_bad_rate": 0.9, "background_rate": 0.05}
    study.finished(verdict(study.axes, bad, good, status=status, kind="pair", bad_values={}, **rates))
    report = load_report(store, study.study.id)
    said = [row(report, a=a, b=b).verdict for a, b in ("11", "12", "21", "22", "31")]
    assert said == (["good", "bad", "good", "bad", None] if status == "confirmed" else [None] * 5)


def test_a_study_without_a_verdict_says_what_is_known(store: Store) -> None:
    study = orjson_study(store)
    report = load_report(store, study.study.id)
    assert not report.has_verdict
    text = report_text(report)
    assert text.startswith("No verdict after 42 trials: the study has not come to a verdict yet\n")
    assert "(study " in text
    assert "not ended" in text
    assert "3.9.11    3      18  17 % (3.6–41 %)" in text
    assert "first bad" not in text


@pytest.mark.parametrize("status", ["interrupted", "finished"])
def test_nothing_is_to_be_reproduced_without_an_answer(store: Store, status: str) -> None:
    study = orjson_study(store)
    study.finished(orjson_verdict(status="none", probability=0.1), status)
    report = load_report(store, study.study.id)
    assert [command for step in report.reproduce for command in step.commands if " run " not in command] == []
    text = report_text(report, details=False)
    assert re.search(r"bisect-env run matrices/orjson_crash.yaml.*  # to go on\n", text)
    assert "# first bad" not in text


def test_other_answers_are_named_while_none_is_confirmed(store: Store) -> None:
    study = orjson_study(store)
    candidates = [
        {"kind": "all", "first_bad": {"orjson": f"3.9.{n}"}, "culprit_axes": ["orjson"], "probability": p}
        for n, p in ((11, 0.8), (12, 0.15), (14, 0.005))
    ]
    study.finished(orjson_verdict(status="likely", probability=0.8, candidates=candidates))
    text = report_text(load_report(store, study.study.id))
    assert "  or (15 %)   first bad orjson=3.9.12 (culprit orjson)\n" in text
    assert "3.9.14 (culprit" not in text
    # Answers that differ beyond their common boundary are one line, and none if it is that of the verdict.
    candidates = [
        {"kind": "all", "first_bad": {"orjson": f"3.9.{n}"}, "culprit_axes": ["orjson"], "probability": p}
        for n, p in ((11, 0.6), (11, 0.2), (12, 0.1), (12, 0.05), (13, 0.05))
    ]
    study.finished(orjson_verdict(status="likely", probability=0.8, candidates=candidates))
    text = report_text(load_report(store, study.study.id), details=False)
    assert re.findall(r"^or \((.*)\): first bad orjson=(\S+)", text, re.MULTILINE) == [
        ("10 %", "3.9.12"),
        ("5 %", "3.9.13"),
    ]


def test_the_signs_of_a_table_are_explained_where_they_occur(store: Store) -> None:
    axes = [axis("lib", "1", "2")]
    called = {"1": "good", "2": "bad"}
    calls = [
        {"combination": {"lib": version}, "verdict": what, "tried": True, "probability": 0.99}
        for version, what in called.items()
    ]
    table = {"good": 1, "bad": 1, "tried": 1, "complete": True, "calls": calls}
    study = StudyBuilder(store, axes)
    study.passes({"lib": "1"}, 3)
    study.finished(verdict(axes, None, None, kind="table", table=table))
    assert "(works), (fails): not tried itself" in report_text(load_report(store, study.study.id))
    study.crashes({"lib": "2"}, 3)
    text = report_text(load_report(store, study.study.id))
    assert "2    fails" in text
    assert "not tried itself" not in text
    assert "cannot be tried" not in text


def test_what_did_not_matter_is_said(store: Store) -> None:
    axes = [axis("a", "1", "2"), axis("b", "1", "2"), axis("c", "1")]
    study = StudyBuilder(store, axes)
    bad, good = {"a": "2", "b": "1", "c": "1"}, {"a": "1", "b": "1", "c": "1"}
    study.finished(verdict(axes, bad, good))
    text = report_text(load_report(store, study.study.id))
    assert "  does not matter   b\n" in text
    assert "a  b  bad  trials" in text


def test_untrusted_text_reaches_no_terminal(store: Store) -> None:
    evil = "\x1b[2J\x1b]0;owned\x07[bold red]boo[/bold red] [link=x]y[/link] \u202egnp.exe\r\x9b31m:smile:"
    axes = [axis("a\x1b[1m[red]", "1", f"2{evil}")]
    study = StudyBuilder(store, axes, name=f"name{evil}")
    bad, good = {axes[0]["name"]: axes[0]["values"][1]}, {axes[0]["name"]: "1"}
    study.fill(lambda cell: ("env-unsolvable", evil) if cell == good else ("solvable", ""))
    study.crashes(bad, 3, stack=f"{evil}\n{evil}", detail=evil, signature=json.dumps([1, evil, evil, evil]))
    study.trials(bad, Outcome.EXIT_FAIL, 3, detail=evil)
    study.finished(verdict(axes, bad, good, reason=evil, status="likely"))
    report = load_report(store, study.study.id)
    plain = report_text(report)
    assert not [c for c in plain if ord(c) < 32 and c != "\n"]
    assert not set(plain) & set("\x7f\x9b\u202e")
    assert "owned" not in plain
    # Markup and emoji codes are text like any other.
    assert "[bold red]boo[/bold red] [link=x]y[/link]" in plain
    assert ":smile:" in plain
    # On a terminal the only escapes are ours: colours, never moves or titles.
    coloured = report_text(report, terminal=True, width=100)
    assert set(re.findall(r"\x1b[^m]{0,12}m?", coloured)) <= set(re.findall(r"\x1b\[[0-9;]+m", coloured))
    assert "\x1b]" not in coloured
    assert "[red]" in coloured


def test_a_terminal_gets_colours_and_its_width(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = report_text(report, terminal=True, width=60)
    assert "\x1b[1m" in coloured
    visible = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert max(len(line) for line in visible.splitlines()) <= 60
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in report_text(report, terminal=True, width=60)


def test_a_stream_that_cannot_encode_gets_question_marks(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    with path.open("w", encoding="ascii") as stream:
        write(report_text(report), stream)
    assert "3.6?41 %" in path.read_text("ascii")


def test_long_stacks_are_shortened_in_the_middle() -> None:
    lines = stack_lines("\n".join(f"  frame {i}" for i in range(100)))
    assert len(lines) == STACK_LINES + 1
    assert lines[0] == "  frame 0"
    assert lines[-1] == "  frame 99"
    assert f"… {100 - STACK_LINES} lines …" in lines
    assert stack_lines("a\n\n\x1b[1Ab\n") == ["a", "b"]
    assert len(stack_lines("x" * 10_000)[0]) == 160


def test_a_stack_names_its_functions_and_not_the_cache() -> None:
    prefix = f"/home/ann/.cache/bisect-env/prefixes/{'0a' * 32}"
    module = "lib/python3.11/site-packages/package/with/many/folders/module.py"
    (line,) = stack_lines(f'  File "{prefix}/{module}", line 12, in the_function_that_failed')
    assert line == f'  File "{module}", line 12, in the_function_that_failed'


# -- the table ---------------------------------------------------------------------------------------------


def long_axis(direction: str = "regression") -> list[dict[str, Any]]:
    return [axis("lib", *[f"1.{i}" for i in range(300)], direction=direction)]


def test_long_runs_do_not_flood_the_terminal(store: Store) -> None:
    study = StudyBuilder(store, long_axis())
    for i in (0, 75, 112, 130, 140):
        study.passes({"lib": f"1.{i}"}, 5)
    for i in (150, 155, 200):
        study.crashes({"lib": f"1.{i}"}, 2)
    study.passes({"lib": "1.149"}, 9)
    document = verdict(study.axes, {"lib": "1.150"}, {"lib": "1.149"})
    study.finished(document)
    report = load_report(store, study.study.id)
    found = rows(report)
    assert found.hidden == 0
    assert sum(len(one.members) for one in found.shown) == 300
    assert len(found.shown) <= 20
    alone = [one.values["lib"] for one in found.shown if len(one.members) == 1]
    assert {"1.149", "1.150", "1.155", "1.200"} <= set(alone)
    text = report_text(report)
    assert "1.201 … 1.299" in text
    assert "bad (not tried), 99 combinations" in text
    assert len(text.splitlines()) < 50


@pytest.mark.slow
def test_a_noisy_table_keeps_both_sides_of_the_boundary(store: Store) -> None:
    study = StudyBuilder(store, long_axis())
    for i in range(0, 300, 2):
        (study.crashes if i >= 150 else study.passes)({"lib": f"1.{i}"}, 1)
    study.crashes({"lib": "1.60"}, 1)
    study.finished(verdict(study.axes, {"lib": "1.150"}, {"lib": "1.149"}))
    found = rows(load_report(store, study.study.id)).shown
    assert [(one.values["lib"], one.bad, one.counted) for one in found] == [
        ("1.0 … 1.148", 1, 76),
        ("1.149", 0, 0),
        ("1.150", 1, 1),
        ("1.151 … 1.299", 74, 74),
    ]
    assert found[0].numbers() == ("1", "76", "1.3 % (< 0.1–7.1 %)")


def test_rows_beyond_the_limit_are_counted(store: Store) -> None:
    axes = [axis("a", *map(str, range(60))), axis("b", "1", "2")]
    study = StudyBuilder(store, axes)
    bad, good = {"a": "7", "b": "2"}, {"a": "7", "b": "1"}
    study.crashes({"a": "50", "b": "2"}, 5)
    study.finished(verdict(axes, bad, good))
    report = load_report(store, study.study.id)
    found = rows(report)
    assert len(found.shown) == ROWS
    assert sum(len(one.members) for one in found.shown) + found.hidden == 120
    shown = [dict(one.values) for one in found.shown]
    assert bad in shown
    assert good in shown
    assert {"a": "50", "b": "2"} in shown
    assert f"… and {found.hidden} more combinations" in report_text(report)


@pytest.mark.slow
def test_without_a_verdict_passing_and_failing_stay_apart(store: Store) -> None:
    study = StudyBuilder(store, long_axis())
    for i in range(0, 300, 2):
        (study.crashes if i >= 150 else study.passes)({"lib": f"1.{i}"}, 1)
    found = rows(load_report(store, study.study.id))
    for one in found.shown:
        assert len({(m.bad > 0, m.counted > 0) for m in one.members}) == 1


def test_a_row_stands_for_what_one_reads_in_it(store: Store) -> None:
    axes = [axis(name, *map(str, range(count))) for name, count in (("a", 3), ("b", 4), ("c", 5))]
    study = StudyBuilder(store, axes)
    study.fill()
    study.passes({"a": "1", "b": "2", "c": "4"}, 3)
    found = rows(load_report(store, study.study.id)).shown
    assert any(len(row.members) > 1 for row in found)
    for row in found:
        ranges = [name for name, value in row.values.items() if " … " in value]
        assert len(ranges) == (len(row.members) > 1)
        for member in row.members:
            assert all(
                member.combination[name] == row.values[name] for name in row.values if name not in ranges
            )


def test_trials_of_equal_environments_count_once_in_a_row(store: Store) -> None:
    study = StudyBuilder(store, [axis("day", *map(str, range(1, 8)), kind="date")])
    study.fill(lock_of=lambda cell: "same")
    study.trials({"day": "1"}, Outcome.PASS, 6, "same")
    (only,) = rows(load_report(store, study.study.id)).shown
    assert (only.values["day"], only.counted, len(only.members)) == ("1 … 7", 6, 7)


def test_a_row_of_combinations_measured_elsewhere_has_the_trials_of_each(store: Store) -> None:
    axes = [axis("day", "d1", "d2", kind="date"), axis("n", *"0123")]
    study = StudyBuilder(store, axes)
    study.fill(lock_of=lambda cell: cell["n"])
    for value in "0123":
        study.trials({"day": "d1", "n": value}, Outcome.PASS, 5, value)
    found = rows(load_report(store, study.study.id)).shown
    assert [(row.values["day"], row.counted, len(row.members)) for row in found] == [
        ("d1", 20, 4),
        ("d2", 20, 4),
    ]


def test_only_counted_trials_are_said_to_have_been_measured_before(store: Store) -> None:
    axes = [axis("lib", "1", "2")]
    old, new = (StudyBuilder(store, axes, name=name) for name in ("old", "new"))
    cell = {"lib": "1"}
    here = Machine("x86_64")
    for i, outcome in enumerate([Outcome.PASS] * 3 + [Outcome.SKIP] * 2):
        one = samples_record(cell, old.locks["1"], outcome, trial_id=f"t{i}", machine=here)
        record_trial(store, old.study.id, one, trial_key="k")
    store.study_trials(new.study.id).reuse({"k": Combination.of(cell)}, [here])
    report = load_report(store, new.study.id)
    assert (report.trials, [one.trials for one in report.reused]) == (3, [3])
    assert "3 of these were measured before: 3 by " in report_text(report)


def test_builds_of_one_lock_are_one_environment(store: Store) -> None:
    study = StudyBuilder(store, [axis("lib", "1", "2")])
    for _ in range(2):
        store.record_decision(study.study.id, "built", {"lock": study.locks["1"], "seconds": 2.5})
    assert "1 environment built in 5.0 s" in report_text(load_report(store, study.study.id))


def test_reasons_are_grouped(store: Store) -> None:
    study = StudyBuilder(store, [axis("a", *map(str, range(20)))])
    study.fill(lambda cell: ("env-unsolvable", f"no wheel of kind {int(cell['a']) % 5}"))
    text = report_text(load_report(store, study.study.id))
    assert text.count("env-unsolvable: a=") == 3
    assert "env-unsolvable: a=0 and 3 more: no wheel of kind 0\n" in text
    assert "env-unsolvable: 2 more reasons" in text


def test_what_is_the_same_of_one_commit_as_of_another_is_one_reason(store: Store) -> None:
    commits = [f"{number:040x}"[::-1] for number in range(1, 6)]
    study = StudyBuilder(store, [axis("demo", *commits)])
    study.fill(lambda cell: ("env-unbuildable", f"the commit {cell['demo'][:10]} needs submodules"))
    text = report_text(load_report(store, study.study.id))
    assert text.count("needs submodules") == 1
    assert "and 4 more: the commit 1000000000 needs submodules" in text


def test_the_report_of_a_study_that_goes_on_is_one_state(store: Store, tmp_path: Path) -> None:
    study = orjson_study(store)
    with Store.open(str(tmp_path / "results.sqlite"), read_only=True) as reader, reader.reading():
        before = report_document(reader, study.study.id)
        study.passes({"python": "3.11", "orjson": "3.9.7"}, 5)
        assert report_document(reader, study.study.id) == before
    assert report_document(store, study.study.id)["trials"] == before["trials"] + 5


def test_a_report_needs_no_rate_that_was_not_measured(store: Store) -> None:
    study = StudyBuilder(store, [])
    study.finished(VerdictDocument(reason="nothing to try"))
    text = report_text(load_report(store, study.study.id))
    assert text.startswith("No verdict: nothing to try\n")
    assert rate(0, 0)["high"] == 1.0


def test_what_can_be_done_where_nothing_failed() -> None:
    (said,) = verdict_warnings(VerdictDocument(kind="never", trials=40))
    assert "bisect-env trial --amplify" in said
    assert "bisect-env trial --at" in said
    assert "min_crash_rate" in said
    assert verdict_warnings(VerdictDocument(kind="never")) == []
    assert verdict_warnings(VerdictDocument(status="confirmed", kind="all", trials=40)) == []


def test_the_hint_at_either_is_given_where_it_would_help() -> None:
    def document(changes: int, direction: str) -> VerdictDocument:
        return VerdictDocument(
            status="confirmed",
            kind="all",
            monotone=False,
            boundaries=(NeighbourPair(axis="lib"),) * changes,
            directions={"lib": direction},
        )

    assert "direction: either" in verdict_warnings(document(2, "regression"))[0]
    assert "direction: either" not in verdict_warnings(document(3, "regression"))[0]
    assert "direction: either" not in verdict_warnings(document(3, "either"))[0]
    assert "not monotone" in verdict_warnings(document(3, "either"))[0]


@pytest.mark.parametrize(
    ("stated", "bad", "good", "found"),
    [("regression", "2", "3", "fixed"), ("fixed", "3", "2", "regression")],
)
def test_a_failure_against_the_direction_of_its_axis_is_not_told_as_an_alternating_history(
    stated: str, bad: str, good: str, found: str
) -> None:
    verdict = VerdictDocument(
        status="confirmed",
        kind="all",
        monotone=False,
        boundaries=(NeighbourPair(axis="lib", bad={"lib": bad}, good={"lib": good}),),
        directions={"lib": stated},
    )
    (said,) = verdict_warnings(verdict, [AxisInfo(name="lib", values=("1", "2", "3", "4"))])
    assert f"against its direction (`{stated}`)" in said
    assert f"`direction: {found}` says so beforehand" in said
    assert "broken again" not in said


def test_a_rate_that_changed_is_called_probable_with_how_strong_the_evidence_is(store: Store) -> None:
    study = StudyBuilder(store, [axis("lib", "1", "2")])
    study.passes({"lib": "2"}, 40)
    study.crashes({"lib": "2"}, 20)
    (warning,) = [one for one in load_report(store, study.study.id).warnings if "during the study" in one]
    assert "the failure's rate probably changed" in warning
    assert "15 of 15 trials were bad, about 16 times the rate of the same combinations before" in warning
    assert "Bayes factor" in warning
    assert warning.endswith("if so, something beside the versions changed")


def test_a_rate_that_did_not_change_is_no_warning(store: Store) -> None:
    study = StudyBuilder(store, [axis("lib", "1", "2")])
    for _ in range(10):
        study.passes({"lib": "2"}, 2)
        study.crashes({"lib": "2"}, 1)
    assert not [one for one in load_report(store, study.study.id).warnings if "during the study" in one]
