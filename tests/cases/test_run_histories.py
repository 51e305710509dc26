"""What is known of real histories: how their truths are taken, and what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from benchmarks.commits import merges
from benchmarks.repositories import in_tree, pure, write
from bisect_env.environments.repository import Repository
from tests.cases import run_histories
from tests.cases.run_histories import FOLDER, cases, descendants, first_bad, git_bisect, searched


@pytest.mark.parametrize("name", sorted(cases()))
def test_each_history_has_one_first_bad_commit(name: str) -> None:
    seen = [json.loads(line) for line in (FOLDER / "truth" / f"{name}.jsonl").read_text().splitlines()]
    assert len(seen) > 30
    assert (seen[0]["built"], seen[0]["exit"]) == (True, 0), "the good end"
    assert len({one["commit"] for one in seen}) == len(seen)
    assert len(first_bad(seen, every=bool(cases()[name].get("every")))) == 1


def test_the_first_bad_commit_is_made_of_none_that_fails() -> None:
    #  a - b - d - e      d merges c, which fails; x cannot be built
    #   \- c -/
    def one(commit: str, parents: str, exit_: int, *, built: bool = True) -> dict[str, object]:
        return {"commit": commit, "parents": list(parents), "built": built, "exit": exit_}

    seen = [one("a", "", 0), one("b", "a", 0), one("c", "a", 1), one("d", "bc", 1), one("e", "d", 1)]
    assert first_bad(seen, every=True) == ["c"]
    assert first_bad([seen[0], seen[1], seen[3], seen[4]], every=False) == ["d"]
    assert first_bad([seen[0], one("x", "a", -1, built=False), one("y", "x", 1)], every=True) == []


def test_any_commit_of_merged_branches_is_found_with_two_builds_more_than_git_takes(tmp_path: Path) -> None:
    place = tmp_path / "clone"
    commits = write(place, merges(1.0).changes)
    history = Repository(str(place), tmp_path / "cache").history("v1.0", "v1.1", every=True)
    for culprit in (commits[1], commits[7], commits[30], commits[38], commits[-1]):
        bad = descendants(history, culprit)
        found, built = searched(history, bad)
        theirs = git_bisect(place, "v1.0", "v1.1", {one: int(one in bad) for one in commits})
        assert found == culprit
        assert len(built) <= len(theirs) + 2


def test_a_truth_is_taken_by_building_every_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = write(tmp_path / "clone", pure("demo", 3, 3, files=in_tree("demo")))
    case = {"package": "demo", "from": "v1.0", "to": "v1.1", "script": "import demo; assert demo.works()"}
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump({"own": case}))
    monkeypatch.setattr(run_histories, "FOLDER", tmp_path)
    assert run_histories.truth(tmp_path / "clone", "own") == 0
    lines = (tmp_path / "truth" / "own.jsonl").read_text().splitlines()
    seen = [json.loads(line) for line in lines]
    assert [(one["commit"], one["built"], one["exit"]) for one in seen] == [
        (commit, True, int(number == 2)) for number, commit in enumerate(commits)
    ]
