"""The comparison of answers with what is known."""

from __future__ import annotations

import pytest

from tests.cases.run_asked import FOLDER, problems, questions


def test_every_question_has_its_script_and_its_truth():
    for name, question in questions().items():
        assert (FOLDER / name / "repro.py").is_file()
        assert question["command"][0] in ("run", "between")
        assert question["truth"].keys() & {"first_bad", "culprits", "releases"}


@pytest.mark.parametrize(
    ("said", "count"),
    [
        ({"first_bad": {"a": "2"}, "last_good": {"a": "1"}}, 0),
        ({"first_bad": {"a": "3"}, "last_good": {"a": "2"}}, 2),
        ({"first_bad": None, "last_good": None}, 2),
    ],
)
def test_an_answer_is_compared(said, count):
    truth = {"first_bad": {"a": 2}, "last_good": {"a": 1}}
    assert len(problems({"verdict": said}, truth, {})) == count


def test_culprits_and_their_releases_are_compared():
    report = {"verdict": {}, "explanation": {"culprits": [1], "changes": [{"name": "a"}, {"name": "b"}]}}
    truth = {"culprits": ["b"], "releases": {"b": 2}}
    assert problems(report, truth, {"verdict": {"first_bad": {"b": "2"}}}) == []
    assert len(problems(report, truth, {})) == 1
    assert len(problems({"verdict": {}}, {"culprits": ["b"]}, {})) == 1
