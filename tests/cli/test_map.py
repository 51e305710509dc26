"""`bisect-env map` as a user meets it: the table in every format, and the same study as `run`."""

import csv
import io
import json
import textwrap
from pathlib import Path

import pytest

from tests.cli.calls import RunCommand
from tests.engine.studies import Studies

pytestmark = pytest.mark.integration

NEEDS_A_NEW_LIB = """
    import os
    if int(os.environ["BISECT_ENV_APP"]) > int(os.environ["BISECT_ENV_LIB"]) + 2:
        os.abort()
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, place in (("DB", "results.sqlite"), ("CACHE", "cache"), ("LOCKFILES", "lockfiles")):
        monkeypatch.setenv(f"BISECT_ENV_{name}", str(tmp_path / place))
    monkeypatch.chdir(tmp_path)


def matrix(folder: Path, versions: int = 6, more: str = "") -> str:
    """A matrix of two axes with so many versions each."""
    values = f"values: {list(range(1, versions + 1))}{more}"
    path = Studies(folder).matrix(NEEDS_A_NEW_LIB, axes=f"lib: {{{values}}}\napp: {{{values}}}")
    path.write_text(path.read_text().replace("python script.py {level}", "python script.py"))
    return str(path)


def test_the_table_of_two_axes_in_every_format(tmp_path: Path, run: RunCommand) -> None:
    path = matrix(tmp_path)
    code, told, err = run("map", path)
    assert code == 0, err
    assert "30 of 36 combinations work, 6 fail" in told
    rows = {line.split()[0]: line.split()[1:] for line in told.splitlines() if line[:2] in ("5 ", "6 ")}
    marks = {row: [mark.strip("()") for mark in found] for row, found in rows.items()}
    assert marks["6"] == ["fails"] * 3 + ["works"] * 3
    assert marks["5"] == ["fails"] * 2 + ["works"] * 4
    assert any("(" in mark for row in rows.values() for mark in row), "everything was tried"
    # Asked again it is the same study, which answers at once.
    assert run("map", path)[1] == told
    document = json.loads(run("report", "--format", "json")[1])
    assert f"after {document['verdict']['trials']} trials" in told
    calls = document["verdict"]["table"]["calls"]
    assert len(calls) == 36
    for one in calls:
        app, lib = (int(one["combination"][axis]) for axis in ("app", "lib"))
        assert one["verdict"] == ("bad" if app > lib + 2 else "good")
        assert one["probability"] >= 0.8
    table = list(csv.DictReader(io.StringIO(run("report", "--format", "csv")[1])))
    assert [row["verdict"] for row in table] == [
        "bad" if int(row["app"]) > int(row["lib"]) + 2 else "good" for row in table
    ]
    assert "| ✗ |" in run("report", "--format", "md")[1]
    page = tmp_path / "table.html"
    assert run("report", "-f", "html", "-o", str(page))[0] == 0
    assert '<table class="compatibility"' in page.read_text()


@pytest.mark.slow
def test_the_rules_that_it_prints_leave_out_what_fails(tmp_path: Path, run: RunCommand) -> None:
    path = matrix(tmp_path)
    told = run("map", path, "-q")[1]
    rules = textwrap.dedent(told.partition("As rules of a matrix:\n")[2].partition("\n\n")[0])
    without = tmp_path / "without.yaml"
    without.write_text(Path(path).read_text() + rules + "\n")
    assert run("map", str(without), "-q")[0] == 0
    table = csv.DictReader(io.StringIO(run("report", "-f", "csv")[1]))
    for row in table:
        assert (row["status"] == "excluded") == (int(row["app"]) > int(row["lib"]) + 2)
        assert row["verdict"] == ("" if row["status"] == "excluded" else "good")


@pytest.mark.slow
def test_axes_that_may_change_either_way_are_no_reason_to_refuse_a_table(
    tmp_path: Path, run: RunCommand
) -> None:
    code, told, err = run("map", matrix(tmp_path, 19, ", direction: either"), "-q")
    assert code == 0, err
    assert "225 of 361 combinations work, 136 fail" in told


@pytest.mark.slow
def test_run_goes_on_from_a_table_and_a_table_from_a_run(tmp_path: Path, run: RunCommand) -> None:
    path = matrix(tmp_path, versions=4)
    code, _, err = run("run", path, "--quiet")
    assert code == 0, err
    trials = json.loads(run("report", "--format", "json")[1])["trials"]
    run("map", path, "-q")
    table = json.loads(run("report", "-f", "json")[1])
    assert table["trials"] >= trials
    assert len(table["verdict"]["table"]["calls"]) == 16
    assert run("run", path, "--quiet")[0] == 0
    after = json.loads(run("report", "--format", "json")[1])
    assert after["verdict"]["table"] is None
    assert after["trials"] >= table["trials"]


def test_a_table_of_too_many_combinations_is_refused(tmp_path: Path, run: RunCommand) -> None:
    code, _, err = run("map", matrix(tmp_path, versions=200, more=", direction: either"))
    assert code == 2
    assert "40000 combinations are too many for a table, which has at most 20,000" in err
