"""No verdict is older than its trials: those of another command or a merge are weighed in every format."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.asking import Asking
from tests.cli.calls import RunCommand
from tests.cli.questions import matrix, report

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(120)]

LATER = """
    import pathlib
    if n == 4:
        sys.exit(pathlib.Path({flag!r}).exists())
    sys.exit(n >= 5)
"""
"""From 5 on the script fails, and at 4 once a file exists."""


@pytest.fixture
def ask(tmp_path: Path, run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> Asking:
    return Asking(tmp_path, run, monkeypatch)


@pytest.fixture
def flag(tmp_path: Path) -> Path:
    return tmp_path / "flag"


def with_search(ask: Asking, name: str, **search: Any) -> None:
    """Change the settings of the search in a matrix file, which does not change the question."""
    path = ask.folder / name
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "search": search}, sort_keys=False))


def listed(ask: Asking) -> dict[str, Any]:
    (row,) = (json.loads(line) for line in ask.run("report", "--list", "--json").stdout.splitlines())
    return dict(row)


def test_trials_after_the_answer_are_weighed_everywhere(ask: Asking, flag: Path) -> None:
    name = matrix(ask, LATER.format(flag=str(flag)))
    assert ask.run("run", name, "--quick").returncode == 0
    before = report(ask)
    assert before["verdict"]["first_bad"]["n"] == "5"
    assert not [text for text in before["warnings"] if "came after" in text]
    flag.touch()
    ask.run("trial", name, "--at", "n=4", "-n", "6")
    found = report(ask)
    assert found["verdict"]["trials"] == found["trials"] == before["trials"] + 6
    # Four fails in six of its trials, so that it is not called good at the old confidence.
    said = found["verdict"]
    assert (said["status"], said["last_good"]["n"]) != ("confirmed", "4")
    assert [text for text in found["warnings"] if "6 trials came after this study had ended" in text]
    text = ask.run("report").stdout
    assert text.splitlines()[0] == said["sentence"]
    assert "--fresh" not in text
    row = listed(ask)
    assert (row["verdict"], row["sentence"]) == (said["status"], said["sentence"])
    junit = ET.fromstring(ask.run("report", "--format", "junit").stdout)
    properties = {one.get("name"): one.get("value") for one in junit.iter("property")}
    assert properties["verdict"] == said["status"]
    for form in ("md", "html"):
        assert said["sentence"][:40] in ask.run("report", "--format", form).stdout
    # The names of the answer's combinations follow, too.
    if said["first_bad"]["n"] != "5":
        done = ask.run("trial", name, "--at", "first-bad", "-n", "1")
        assert f"n={said['first_bad']['n']} " in done.stderr
    # And `run` comes to the same answer or goes on to a better one.
    ask.run("run", name)
    assert report(ask)["verdict"]["first_bad"]["n"] != "5"


def test_trials_of_a_merged_database_are_weighed(ask: Asking, flag: Path) -> None:
    name = matrix(ask, LATER.format(flag=str(flag)))
    assert ask.run("run", name, "--quick").returncode == 0
    other = ask.folder / "other.sqlite"
    shutil.copy(ask.folder / "results.sqlite", other)
    flag.touch()
    ask.run("trial", name, "--at", "n=4", "-n", "6", "--db", str(other))
    ask.run("db", "merge", str(other))
    found = report(ask)
    assert found["verdict"]["trials"] == found["trials"]
    assert (found["verdict"]["status"], found["verdict"]["last_good"]["n"]) != ("confirmed", "4")


def test_a_merge_never_replaces_an_answer_by_one_that_knew_less(ask: Asking) -> None:
    name = matrix(ask, "sys.exit(n >= 5)", search={"max_trials": 2})
    ask.run("run", name)
    other = ask.folder / "other.sqlite"
    shutil.copy(ask.folder / "results.sqlite", other)
    with_search(ask, name)
    assert ask.run("run", name).returncode == 0
    with_search(ask, name, max_trials=3)
    ask.run("run", name, "--db", str(other))
    ask.run("db", "merge", str(other))
    found = report(ask)
    assert found["verdict"]["status"] == "confirmed"
    assert found["verdict"]["first_bad"]["n"] == "5"
    assert found["verdict"]["trials"] == found["trials"]


@pytest.mark.parametrize("search", [{"budget": "1s"}, {"max_trials": 3}])
def test_what_is_next_never_drops_trials(ask: Asking, search: dict[str, Any]) -> None:
    name = matrix(ask, "time.sleep(0.6)\nsys.exit(n >= 5)", search=search)
    ask.run("run", name)
    text = ask.run("report").stdout
    assert report(ask)["verdict"]["status"] != "confirmed"
    assert "--fresh" not in text + ask.run("report", "--format", "json").stdout
    assert report(ask)["reproduce"][-1]["title"] == "Go on with the search"
