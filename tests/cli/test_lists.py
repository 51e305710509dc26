"""`bisect-env report --list` and `--trials` on both back ends."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.storage.store import Store
from tests.cli.calls import RunCommand, objects
from tests.cli.test_query import db
from tests.storage.conftest import postgres, postgres_url
from tests.storage.samples import opened_study

__all__ = ["db", "postgres", "postgres_url"]


def test_studies(db: str, run: RunCommand) -> None:
    code, out, err = run("report", "--list")
    assert (code, err) == (0, "")
    head, _, line = out.splitlines()
    assert head.split()[:6] == ["study_id", "study", "status", "verdict", "trials", "reused"]
    assert line.split()[1:6] == ["orjson", "finished", "confirmed", "2", "0"]
    (found,) = objects(run("report", "--list", "--json")[1])
    assert (found["study"], found["trials"], len(found["study_id"])) == ("orjson", 2, 32)
    assert run("report", "--list", "--csv")[1].startswith("study_id,study,")


@pytest.mark.parametrize(
    ("culprits", "shown"),
    [
        ((), "none"),
        (("helper",), "culprit helper"),
        (("helper", "glue", "other"), "culprit helper, glue and 1 more"),
    ],
)
def test_a_study_of_culprits_is_listed_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: RunCommand, culprits: tuple[str, ...], shown: str
) -> None:
    path = tmp_path / "r.sqlite"
    monkeypatch.setenv("BISECT_ENV_DB", str(path))
    with Store.open(str(path)) as store:
        study = opened_study(store)
        verdict = VerdictDocument(kind="explanation", sentence="it is so", culprit_axes=culprits)
        store.update_study(study.id, "finished", verdict)
    *_, line = run("report", "--list")[1].splitlines()
    assert re.split(" {2,}", line)[3] == shown
    (found,) = objects(run("report", "--list", "--json")[1])
    assert (found["verdict"], json.loads(str(found["culprit_axes"]))) == ("none", [*culprits])


def test_trials(db: str, run: RunCommand) -> None:
    def asked(*words: str) -> list[str]:
        code, out, err = run("report", "--trials", *words, "--json")
        assert (code, err) == (0, ""), words
        return [trial["outcome"] for trial in objects(out)]

    assert asked() == ["pass", "crash"]
    assert asked("--where", "outcome=crash") == ["crash"]
    assert asked("--where", "outcome = 'crash' OR returncode = 0") == ["pass", "crash"]
    assert asked("--where", "outcome=crash", "--where", "orjson=1.0") == []
    assert asked("--where", "orjson=2.*") == ["crash"]
    assert asked("--where", "gpu~GPU-1", "--installed", "zipp=3.*") == ["crash"]
    assert asked("--where", "gpu~gpu-1") == asked("--where", "gpu=gPU-*") == ["crash"], "in whatever case"
    assert asked("--installed", "zipp=4.*") == []
    assert asked("--where", "returncode<0") == ["crash"]
    code, out, err = run("report", "--trials", "--limit", "1")
    assert (code, len(out.splitlines())) == (0, 3)
    assert "orjson=1.0" in out
    assert "the newest 1; `--limit` shows more" in err
    assert "\x1b" not in out


@pytest.mark.parametrize("text", ["Outcome!=pass", "outcom=crash", "orjso=2.0"])
def test_a_condition_on_what_is_neither_column_nor_axis_finds_nothing_else(
    db: str, run: RunCommand, text: str
) -> None:
    code, out, err = run("report", "--trials", "--where", text)
    assert (code, out) == (2, "")
    assert "error: no column and no axis is called" in err
    assert "name an axis, or one of trial_id, " in err


def test_a_condition_that_cannot_be_read(db: str, run: RunCommand) -> None:
    code, out, err = run("report", "--trials", "--where", "outcome = nonsense or so")
    assert (code, out) == (2, "")
    assert "remedy: " in err
    assert run("report", "--trials", "--installed", "a b")[0] == 2
    assert run("report", "--trials", "--where", "1=1); DELETE FROM studies; --")[0] == 2
    assert objects(run("report", "--list", "--json")[1])
