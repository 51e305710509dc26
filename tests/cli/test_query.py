"""`bisect-env query` on both back ends: it answers, and cannot change anything."""

from __future__ import annotations

import csv
import io
import json
import re
import resource
from pathlib import Path

import pytest

from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.storage.store import Store
from bisect_env.trials.records import Outcome
from tests.cli.calls import RunCommand, objects
from tests.storage.conftest import postgres, postgres_url
from tests.storage.samples import opened_study, record, record_trial, whole_record

__all__ = ["postgres", "postgres_url"]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.integration)])
def db(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    is_file = request.param == "sqlite"
    reference = str(tmp_path / "r.sqlite") if is_file else str(request.getfixturevalue("postgres_url"))
    monkeypatch.setenv("BISECT_ENV_DB", reference)
    with Store.open(reference) as store:
        study = opened_study(store)
        record_trial(store, study.id, whole_record())
        record_trial(store, study.id, record("1.0", Outcome.PASS, worker="a,b\x1b[31m"))
        store.update_study(
            study.id,
            "finished",
            VerdictDocument(status="confirmed", probability=0.97, first_bad={"orjson": "2.0"}),
        )
    return reference


def test_every_view_answers(db: str, run: RunCommand) -> None:
    def asked(question: str) -> list[dict[str, object]]:
        code, out, err = run("query", question, "--json")
        assert (code, err) == (0, "")
        return objects(out)

    (verdict,) = asked("SELECT study, study_status, status, probability, first_bad FROM v_verdicts")
    assert json.loads(str(verdict.pop("first_bad"))) == {"orjson": "2.0"}
    assert verdict == {
        "study": "orjson",
        "study_status": "finished",
        "status": "confirmed",
        "probability": 0.97,
    }
    assert asked("SELECT combination, good, bad, skip FROM v_combinations ORDER BY combination") == [
        {"combination": '[["orjson","1.0"]]', "good": 1, "bad": 0, "skip": 0},
        {"combination": '[["orjson","1.1"]]', "good": 0, "bad": 0, "skip": 0},
        {"combination": '[["orjson","2.0"]]', "good": 0, "bad": 1, "skip": 0},
    ]
    crashed = (
        "SELECT DISTINCT o.version FROM v_trials t JOIN v_packages o ON o.lock_hash = t.lock_hash "
        "JOIN v_packages z ON z.lock_hash = t.lock_hash WHERE o.name = 'orjson' AND z.name = 'zipp' "
        "AND z.version LIKE '3.%' AND t.outcome = 'crash' AND t.gpu LIKE '%GPU-1%'"
    )
    assert asked(crashed) == [{"version": "2.0"}]


def test_a_table_and_csv(db: str, run: RunCommand) -> None:
    question = "SELECT outcome, worker, returncode FROM v_trials ORDER BY started_at, outcome DESC"
    code, out, _ = run("query", question)
    assert code == 0
    assert out.splitlines()[:3] == [
        "outcome  worker    returncode",
        "-------  --------  ----------",
        out.splitlines()[2],
    ]
    assert "\x1b" not in out
    rows = list(csv.reader(io.StringIO(run("query", question, "--csv")[1])))
    assert rows[0] == ["outcome", "worker", "returncode"]
    assert ["pass", "a,b", "0"] in rows
    code, out, _ = run(
        "query", "SELECT '=1+1' AS \"@a\", '-1' AS b, -1 AS c, '+x' AS d, '\t=2' AS e", "--csv"
    )
    assert (code, list(csv.reader(io.StringIO(out)))) == (
        0,
        [["'@a", "b", "c", "d", "e"], ["'=1+1", "'-1", "-1", "'+x", "'=2"]],
    )
    assert run("query", question, "--csv", "--json")[0] == 2


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM logs",
        "UPDATE studies SET name = 'x' RETURNING id",
        "CREATE TABLE x (y int)",
        "DROP VIEW v_trials",
        "SELECT 1; DELETE FROM logs",
        "COMMIT; DELETE FROM logs",
        "PRAGMA query_only = OFF",
        "PRAGMA journal_mode = DELETE",
        "ATTACH '{folder}/other.sqlite' AS other",
        "VACUUM INTO '{folder}/copy.sqlite'",
        "SET TRANSACTION READ WRITE",
        "COPY studies TO '{folder}/studies'",
        "WITH gone AS (DELETE FROM logs RETURNING 1) SELECT * FROM gone",
        "SELECT fts3_tokenizer('simple')",
        "SELECT file FROM pragma_database_list",
        "SELECT nothing FROM nowhere",
        "SELECT",
        "",
    ],
)
def test_nothing_can_be_changed(db: str, run: RunCommand, tmp_path: Path, statement: str) -> None:
    if statement == "SELECT" and db.startswith("postgresql"):
        pytest.skip("a query without columns is one")
    folder = tmp_path / "empty"
    folder.mkdir()
    code, out, err = run("query", statement.format(folder=folder))
    assert (code, out) == (2, ""), err
    assert "remedy: ask one SELECT" in err
    assert list(folder.iterdir()) == []
    with Store.open(db) as store:
        (study,) = store.studies()
        trials = store.trials(study.id)
        assert (study.name, len(trials)) == ("orjson", 2)
        assert all(store.trial(trial.trial_id) for trial in trials)


@pytest.mark.parametrize(
    ("question", "says"),
    [
        ("SELECT nothing FROM v_trials", "nothing"),
        ("SELEC 1", "SELEC"),
        ("SELECT count(*) FROM v_trails", "v_trails"),
    ],
)
def test_a_slip_is_told_in_a_few_lines(db: str, run: RunCommand, question: str, says: str) -> None:
    code, out, err = run("query", question)
    assert (code, out) == (2, "")
    assert says in err
    assert "not authorized" not in err
    assert len(err.splitlines()) <= 5


def test_a_column_that_is_not_there_gets_those_that_are(db: str, run: RunCommand) -> None:
    _, _, err = run("query", "SELECT package, versoin FROM v_packages")
    assert "v_packages has lock_hash, " in err
    assert "version" in err.partition("v_packages has")[2]
    assert "v_trials has" not in err
    _, _, err = run("query", "SELECT nothing FROM packages")
    assert "packages has " in err
    assert "name" in err.partition("packages has")[2]


@pytest.mark.parametrize("question", ["SELECT * FROM trails", "SELECT * FROM v_trials NATURAL JOIN trails"])
def test_a_table_that_is_not_there_gets_those_that_are(db: str, run: RunCommand, question: str) -> None:
    _, _, err = run("query", question)
    assert "ask one SELECT over v_combinations, v_trials, v_verdicts, v_packages; the tables behind" in err
    listed = err.partition("the tables behind these views are ")[2]
    assert {"studies", "trials", "locks", "packages"} <= set(re.split(r"[,\s]+", listed))


def test_a_number_that_no_database_knows_is_refused(db: str, run: RunCommand) -> None:
    code, _, err = run("report", "--trials", "--limit", "99999999999999999999999")
    assert code == 2
    assert "Traceback" not in err
    assert len(err.splitlines()) < 12


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT "


@pytest.mark.parametrize("what", ["count(*) FROM n", "i FROM n", "max(i) FROM n WHERE i < 0"])
def test_an_endless_question_is_ended(db: str, run: RunCommand, what: str) -> None:
    code, out, err = run("query", ENDLESS + what, "--time-limit", "0.1")
    assert (code, out) == (2, "")
    assert "was not answered within 0.1 s" in err
    assert "--time-limit" in err


@pytest.mark.parametrize(
    "question",
    [
        "SELECT length(zeroblob(1000000000))",
        "SELECT hex(randomblob(100000000))",
        ENDLESS + "hex(randomblob(1000000)) FROM n",
    ],
)
def test_a_huge_answer_is_given_up(
    run: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    monkeypatch.setenv("BISECT_ENV_DB", str(tmp_path / "r.sqlite"))
    Store.open(str(tmp_path / "r.sqlite")).close()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    code, out, err = run("query", question, "--time-limit", "100")
    assert (code, out) == (2, "")
    assert "the answer takes more than 256 MiB" in err
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 700 * 1024  # KiB


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "database.md"


def test_the_examples_of_the_documentation_run(db: str, run: RunCommand) -> None:
    examples = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(examples) == 3
    for example in examples:
        code, out, err = run("query", example, "--json")
        assert (code, err) == (0, ""), example
        assert all(isinstance(row, dict) for row in objects(out))
