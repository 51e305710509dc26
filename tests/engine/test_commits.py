"""Whole studies over commits: the first bad one is found, with few builds, past commits that cannot be built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.repositories import Change, in_tree, pure, write
from tests.engine.studies import PYTHON, Studies

SCRIPT = "import demo\nassert demo.works(), 'planted'\n"


def matrix(studies: Studies, place: Path, *, keys: str = "", rest: str = "", script: str = SCRIPT) -> Path:
    (studies.folder / "script.py").write_text(script)
    path = studies.folder / "matrix.yaml"
    path.write_text(
        f"version: 1\nname: commits\naxes:\n  python: {{package: python, versions: ['{PYTHON}']}}\n"
        f"  demo: {{git: {place.name}, package: demo, from: v1.0, to: v1.1{keys}}}\n"
        f"trial: {{files: [script.py], timeout: 20s}}\n{rest}"
    )
    return path


def repository(studies: Studies, changes: list[Change]) -> tuple[Path, list[str]]:
    place = studies.folder / "demo repo"
    return place, write(place, changes)


def builds(studies: Studies) -> int:
    return len(list((studies.folder / "cache" / "commits").glob("*/*.whl")))


def verdict(conclusion: Any) -> Any:
    return conclusion.report["verdict"]


@pytest.mark.parametrize("bad", [2, 9, 23, 40])
def test_the_first_bad_commit_is_found_with_as_many_builds_as_git_takes(studies: Studies, bad: int) -> None:
    place, commits = repository(studies, pure("demo", 40, bad, files=in_tree("demo")))
    rest = "good: {demo: v1.0}\nbad: {demo: v1.1}\nsearch: {crash_rate: 1}\n"
    conclusion = studies.run(matrix(studies, place, rest=rest))
    assert verdict(conclusion)["first_bad"]["demo"] == commits[bad - 1]
    assert verdict(conclusion)["last_good"]["demo"] == commits[bad - 2]
    said = verdict(conclusion)["sentence"]
    assert f"demo {commits[bad - 1][:10]} (Change number {bad} (#{1000 + bad})) is the first bad comm" in said
    # git bisect tries 5 or 6 of 39, and takes both ends on trust.
    assert builds(studies) <= 6 + 2


def test_show(studies: Studies):
    from bisect_env.engine import events
    place, commits = repository(studies, pure("demo", 40, 23, files=in_tree("demo")))
    rest = "good: {demo: v1.0}\nbad: {demo: v1.1}\n"
    conclusion = studies.run(matrix(studies, place, rest=rest))
    for e in studies.events:
        if isinstance(e, events.TrialFinished): print(commits.index(e.record.combination["demo"])+1, e.evidence)
        if isinstance(e, events.Answered): print("ANSWERED")
    from bisect_env.report.text import print_report
    print_report(conclusion.report)
    assert 0
