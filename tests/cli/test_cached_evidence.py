"""The column `evidence` is a cache for SQL of users: nothing that the program shows or decides reads it."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bisect_env.engine import events
from bisect_env.errors import StudyInterruptedError
from bisect_env.storage.query import evidence_condition
from bisect_env.trials.records import Evidence
from tests.cli.calls import RunCommand, objects
from tests.engine.studies import CRASH_FROM_SIX, Studies


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("evidence=bad", {"bad"}),
        ("evidence != bad", {"good", "other", "void", "skip"}),
        ("evidence~o", {"good", "other", "void"}),
        ("evidence=B*", {"bad"}),
        ("evidence=nonsense", set()),
        ("evidence='bad'", None),
        ("evidence=bad or so", None),
        ("outcome=crash", None),
    ],
)
def test_which_evidence_a_condition_accepts(text: str, accepted: set[str] | None) -> None:
    assert evidence_condition(text) == accepted


@pytest.mark.slow
@pytest.mark.integration
def test_a_wrong_cached_column_changes_no_list_no_report_and_no_study(
    tmp_path: Path, run: RunCommand
) -> None:
    studies = Studies(tmp_path)
    matrix = studies.matrix(CRASH_FROM_SIX)

    def is_halfway() -> bool:
        ended = [one.evidence for one in studies.events if isinstance(one, events.TrialFinished)]
        return {Evidence.GOOD, Evidence.BAD} <= set(ended)

    with pytest.raises(StudyInterruptedError):
        studies.run(matrix, stopped=is_halfway)

    def listed(*words: str) -> list[Any]:
        code, out, err = run("report", "--trials", "--json", "--db", str(studies.db), *words)
        assert (code, err) == (0, ""), words
        return objects(out)

    def reported() -> Any:
        return json.loads(run("report", "--json", "--db", str(studies.db))[1])

    def spoil() -> None:
        with sqlite3.connect(studies.db) as connection:
            swap = "CASE evidence WHEN 'bad' THEN 'good' ELSE 'bad' END"
            assert connection.execute(f"UPDATE study_trials SET evidence = {swap}").rowcount

    trials, report = listed(), reported()
    counts = Counter(trial["evidence"] for trial in trials)
    assert counts["good"]
    assert counts["bad"]
    spoil()
    assert (listed(), reported()) == (trials, report)
    for one in Evidence:
        assert listed("--where", f"evidence={one}") == [t for t in trials if t["evidence"] == one]
    newest = next(trial for trial in trials if trial["evidence"] != "bad")
    where = ("--where", "evidence!=bad", "--limit", "1")
    _, out, err = run("report", "--trials", "--json", "--db", str(studies.db), *where)
    assert (objects(out), err) == ([newest], "the newest 1; `--limit` shows more\n")

    # The same command goes on from there, to the answer of a study whose column was never wrong.
    verdict = studies.run(matrix).report["verdict"]
    assert (verdict["status"], verdict["first_bad"]["level"]) == ("confirmed", "6")
    trials, report = listed(), reported()
    spoil()
    assert (listed(), reported()) == (trials, report)
