"""`bisect-env map` as a user meets it: the table in every format, and the same study as `run`."""

import csv
import io
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.cli.processes import Command
from tests.engine.studies import Studies

pytestmark = pytest.mark.integration

NEEDS_A_NEW_LIB = """
    import os
    if int(os.environ["BISECT_ENV_APP"]) > int(os.environ["BISECT_ENV_LIB"]) + 2:
        os.abort()
"""


class Mapping(Command):
    """`bisect-env map` on a planted matrix."""

    def __init__(self, folder: Path, versions: int = 6) -> None:
        values = list(range(1, versions + 1))
        axes = f"lib: {{values: {values}}}\napp: {{values: {values}}}"
        super().__init__(folder, NEEDS_A_NEW_LIB, axes=axes)
        text = self.matrix.read_text()
        self.matrix.write_text(text.replace("python script.py {level}", "python script.py"))

    def call(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "bisect_env", command, *arguments],
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )


@pytest.fixture
def mapping(tmp_path: Path) -> Mapping:
    return Mapping(tmp_path)


def test_the_table_of_two_axes_in_every_format(mapping: Mapping) -> None:
    told = mapping.call("map", str(mapping.matrix))
    assert told.returncode == 0, told.stderr
    assert "30 of 36 combinations work, 6 fail" in told.stdout
    rows = {
        line.split()[0]: line.split()[1:] for line in told.stdout.splitlines() if line[:2] in ("5 ", "6 ")
    }
    marks = {row: [mark.strip("()") for mark in found] for row, found in rows.items()}
    assert marks["6"] == ["fails"] * 3 + ["works"] * 3
    assert marks["5"] == ["fails"] * 2 + ["works"] * 4
    assert any("(" in mark for row in rows.values() for mark in row), "everything was tried"
    # Asked again it is the same study, which answers at once.
    document = json.loads(mapping.call("map", str(mapping.matrix), "--format", "json").stdout)
    assert document["verdict"]["trials"] == int(told.stdout.partition(" trials (")[0].split()[-1])
    calls = document["verdict"]["table"]["calls"]
    assert len(calls) == 36
    for one in calls:
        app, lib = (int(one["combination"][axis]) for axis in ("app", "lib"))
        assert one["verdict"] == ("bad" if app > lib + 2 else "good")
        assert one["probability"] >= 0.95
    table = list(csv.DictReader(io.StringIO(mapping.call("report", "--format", "csv").stdout)))
    assert [row["verdict"] for row in table] == [
        "bad" if int(row["app"]) > int(row["lib"]) + 2 else "good" for row in table
    ]
    assert "| ✗ |" in mapping.call("report", "--format", "md").stdout
    page = mapping.folder / "table.html"
    assert mapping.call("map", str(mapping.matrix), "-f", "html", "-o", str(page)).returncode == 0
    assert '<table class="compatibility">' in page.read_text()


def test_the_rules_that_it_prints_leave_out_what_fails(mapping: Mapping) -> None:
    told = mapping.call("map", str(mapping.matrix), "-q").stdout
    rules = textwrap.dedent(told.partition("As rules of a matrix:\n")[2].partition("\n\n")[0])
    without = mapping.folder / "without.yaml"
    without.write_text(mapping.matrix.read_text() + rules + "\n")
    table = csv.DictReader(io.StringIO(mapping.call("map", str(without), "-q", "-f", "csv").stdout))
    for row in table:
        assert (row["status"] == "excluded") == (int(row["app"]) > int(row["lib"]) + 2)
        assert row["verdict"] == ("" if row["status"] == "excluded" else "good")


@pytest.mark.slow
def test_run_goes_on_from_a_table_and_a_table_from_a_run(tmp_path: Path) -> None:
    mapping = Mapping(tmp_path, versions=4)
    first = mapping.run("--quiet")
    assert first.returncode == 0, first.stderr
    trials = json.loads(mapping.call("report", "--format", "json").stdout)["trials"]
    table = json.loads(mapping.call("map", str(mapping.matrix), "-q", "-f", "json").stdout)
    assert table["trials"] >= trials
    assert len(table["verdict"]["table"]["calls"]) == 16
    again = mapping.run("--quiet")
    assert again.returncode == 0
    after = json.loads(mapping.call("report", "--format", "json").stdout)
    assert "table" not in after["verdict"]
    assert after["trials"] >= table["trials"]


def test_a_table_of_too_many_combinations_is_refused(tmp_path: Path) -> None:
    values = ", ".join(map(str, range(200)))
    path = Studies(tmp_path).matrix(
        NEEDS_A_NEW_LIB,
        axes=f"lib: {{values: [{values}], direction: either}}\napp: {{values: [{values}]}}",
    )
    path.write_text(path.read_text().replace("python script.py {level}", "python script.py"))
    told = subprocess.run(
        [sys.executable, "-m", "bisect_env", "map", str(path), "--db", str(tmp_path / "r.sqlite")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert told.returncode == 2
    assert "40000 combinations are too many for a table" in told.stderr
