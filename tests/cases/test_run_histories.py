"""What is known of real histories: how their truths are taken, and what they say."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import yaml

from benchmarks.commit_plays import culprits, descendants, play
from benchmarks.commits import merges
from benchmarks.repositories import Change, in_tree, pure, write
from bisect_env.environments.repository import Repository
from tests.cases import run_histories
from tests.cases.run_histories import FOLDER, cases, compared, first_bad, unbuildable


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


def tangled(chance: random.Random, size: int) -> list[Change]:
    """Commits on branches of branches, merged in any order, all of which the last one has in its history."""
    changes = [Change({"n": "1"}, tags=["v0"])]
    tips = [1]
    for number in range(2, size):
        what = chance.random()
        files = {"n": str(number)}
        if what < 0.25 and len(tips) > 1:
            first, *others = chance.sample(tips, chance.choice([2, 2, 2, 3]) if len(tips) > 2 else 2)
            changes.append(Change(files, "Merge", parents=[first, *others]))
            tips = [one for one in tips if one not in (first, *others)]
        else:
            parent = chance.choice(tips) if what < 0.8 else chance.randrange(1, number)
            changes.append(Change(files, f"Number {number}", parents=[parent]))
            tips = [one for one in tips if one != parent]
        tips.append(number)
    while len(tips) > 1:
        changes.append(Change({"n": str(len(changes) + 1)}, "Merge", parents=tips[:2]))
        tips = [*tips[2:], len(changes)]
    return changes


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("every", [False, True], ids=["first-parents", "all"])
@pytest.mark.parametrize("stretches", [0, 1])
def test_any_commit_is_found_whatever_was_merged_and_does_not_build(
    tmp_path: Path, stretches: int, every: bool
) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    chance = random.Random(seed)
    place = tmp_path / "clone"
    write(place, tangled(chance, 40))
    history = Repository(str(place), tmp_path / "cache").history("v0", "main", every=every)
    known = culprits(history)
    for culprit in chance.sample(known, min(6, len(known))):
        broken = unbuildable(history, stretches, chance)
        # `compared` raises where another commit is named. Git takes both ends on trust, and halves branches
        # of branches together, where we go into one after the other.
        more = compared(place, history, culprit, broken)
        if not every:
            assert more <= 3 + len(broken), (culprit, broken)


@pytest.mark.integration
def test_a_flaky_commit_of_a_merged_branch_is_found(tmp_path: Path) -> None:
    chance = random.Random(5)
    place = tmp_path / "clone"
    commits = write(place, merges(1.0).changes)
    history = Repository(str(place), tmp_path / "cache").history("v1.0", "v1.1", every=True)
    for culprit in (commits[7], commits[38]):
        found = play(history, descendants(history, culprit), rate=0.5, chance=chance)
        assert found.first_bad == culprit


@pytest.mark.integration
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
